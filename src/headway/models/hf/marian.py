"""The 2017 encoder-decoder as transformers stores it: `MarianMTModel` and `PegasusForConditionalGeneration`.

Both are the Transformer of Vaswani et al. 2017 with fixed sinusoidal positions and one matrix for both embeddings and
the output. Marian normalises after each residual, as the paper does. Pegasus normalises before each sublayer and has
one more norm at the end of the encoder and of the decoder.

Query, key and value are separate matrices in transformers. Headway fuses them: self-attention has one matrix (`qkv`),
cross-attention two (`q`, `kv`).

Departure: the order of the channels. Headway interleaves sines and cosines (sin, cos, sin, cos, …), as the paper
does; transformers puts all sines before all cosines. The channels of the residual stream may have any order, as long
as everything that reads or writes them agrees, so saving permutes them in every matrix and loading permutes them back.

A config fits if it also has tied embeddings, LayerNorm with ε = 1e-5 (fixed in transformers), biases, an even
d_model, a BOS token to start the decoder with, and an EOS token, which also pads. A non-zero `final_logits_bias` is
refused: Headway's output layer has no bias.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headway.config import TransformerConfig, build
from headway.models.hf.layout import (
    ACTIVATION_FROM_HF,
    ACTIVATION_TO_HF,
    Layout,
    TensorMapping,
    has_parts,
    has_standard_heads,
    require,
    special_ids,
    translate,
    weight_and_bias,
)
from headway.nn.positions import sinusoid

SIDES = ("encoder", "decoder")
NORM_EPS = 1e-5


# ── tensors ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _self_attention_and_feed_forward(side: str) -> tuple[TensorMapping, ...]:
    block, layer = f"{side}.blocks.{{i}}", f"model.{side}.layers.{{i}}"
    return (
        *weight_and_bias(f"{block}.attention.qkv", *(f"{layer}.self_attn.{x}_proj" for x in "qkv")),
        *weight_and_bias(f"{block}.attention.out", f"{layer}.self_attn.out_proj"),
        *weight_and_bias(f"{block}.norm1", f"{layer}.self_attn_layer_norm"),
        *weight_and_bias(f"{block}.feed_forward.up", f"{layer}.fc1"),
        *weight_and_bias(f"{block}.feed_forward.down", f"{layer}.fc2"),
        *weight_and_bias(f"{block}.norm2", f"{layer}.final_layer_norm"),
        *weight_and_bias(f"{side}.norm", f"model.{side}.layer_norm"),  # Pegasus only
    )


def _cross_attention() -> tuple[TensorMapping, ...]:
    block, layer = "decoder.blocks.{i}", "model.decoder.layers.{i}"
    return (
        *weight_and_bias(f"{block}.cross_attention.q", f"{layer}.encoder_attn.q_proj"),
        *weight_and_bias(f"{block}.cross_attention.kv", *(f"{layer}.encoder_attn.{x}_proj" for x in "kv")),
        *weight_and_bias(f"{block}.cross_attention.out", f"{layer}.encoder_attn.out_proj"),
        *weight_and_bias(f"{block}.cross_norm", f"{layer}.encoder_attn_layer_norm"),
    )


TENSORS = (
    TensorMapping("embedding.weight", ("model.shared.weight",)),
    *_self_attention_and_feed_forward("encoder"),
    *_self_attention_and_feed_forward("decoder"),
    *_cross_attention(),
)


def _permute_channels(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    """Reorder the dimension that runs over the channels of the residual stream (D), if this tensor has one."""
    module = name.split(".")[-2] if "." in name else name
    if module == "embedding" or (module in ("qkv", "q", "kv", "up") and not name.endswith("bias")):
        return tensor.index_select(1, order)  # reads the stream: (…, D)
    if module in ("out", "down") or "norm" in module:
        return tensor.index_select(0, order)  # writes or scales it: (D, …)
    return tensor


def _sines_first(d_model: int) -> Tensor:
    """Channels 0, 2, 4, … (sines), then 1, 3, 5, … (cosines)."""
    return torch.cat((torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)))


def _tensor_to_hf(name: str, tensor: Tensor, d_model: int) -> Tensor:
    return _permute_channels(name, tensor, _sines_first(d_model))


def _tensor_from_hf(name: str, tensor: Tensor, d_model: int) -> Tensor:
    return _permute_channels(name, tensor, _sines_first(d_model).argsort())


def _sinusoid_tables(c: TransformerConfig) -> dict[str, Tensor]:
    """transformers would recompute them, but warns when they are missing."""
    table = _tensor_to_hf("embedding", sinusoid(torch.arange(c.context), c.d_model), c.d_model)
    return {f"model.{side}.embed_positions.weight": table for side in SIDES}


# ── config.json ───────────────────────────────────────────────────────────────────────────────────────────────────


def _config_to_hf(norm_order: str, c: TransformerConfig) -> dict[str, Any] | None:
    parts = {"norm": "layer", "norm_order": norm_order, "bias": True, "tie_embeddings": True, "norm_eps": NORM_EPS}
    parts |= {"positions": "sinusoidal", "feed_forward": tuple(ACTIVATION_TO_HF)}
    if not has_standard_heads(c) or not has_parts(c, **parts):
        return None
    if c.d_model % 2 or c.bos_id is None or c.eos_id is None:
        return None
    return {
        "vocab_size": c.vocab_size,
        "max_position_embeddings": c.context,
        "d_model": c.d_model,
        "encoder_layers": c.n_encoder_layers,
        "encoder_attention_heads": c.n_heads,
        "encoder_ffn_dim": c.d_ff,
        "decoder_layers": c.n_decoder_layers,
        "decoder_attention_heads": c.n_heads,
        "decoder_ffn_dim": c.d_ff,
        "activation_function": ACTIVATION_TO_HF[c.feed_forward],
        "dropout": c.dropout,
        "scale_embedding": c.scale_embeddings,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "decoder_start_token_id": c.bos_id,
        "eos_token_id": c.eos_id,
        "forced_eos_token_id": None,
        "pad_token_id": c.eos_id,
    }


def _config_from_hf(norm_order: str, hf: Mapping[str, Any]) -> TransformerConfig:
    require(hf, share_encoder_decoder_embeddings=[True], tie_word_embeddings=[True])
    require(hf, decoder_attention_heads=[hf["encoder_attention_heads"]], decoder_ffn_dim=[hf["encoder_ffn_dim"]])
    require(hf, decoder_vocab_size=[hf["vocab_size"]], add_bias_logits=[False], normalize_embedding=[False])
    is_pre_norm = norm_order == "pre"  # these keys are in old files only
    require(hf, normalize_before=[is_pre_norm], add_final_layer_norm=[is_pre_norm], static_position_embeddings=[True])
    fields = {
        "vocab_size": hf["vocab_size"],
        "context": hf.get("max_position_embeddings", 1024),
        "d_model": hf["d_model"],
        "d_ff": hf["encoder_ffn_dim"],
        "n_heads": hf["encoder_attention_heads"],
        "n_layers": hf["encoder_layers"],
        "n_encoder_layers": hf["encoder_layers"],
        "n_decoder_layers": hf["decoder_layers"],
        "feed_forward": translate("activation_function", hf.get("activation_function", "gelu"), ACTIVATION_FROM_HF),
        "dropout": hf.get("dropout", 0.1),
        "scale_embeddings": hf.get("scale_embedding", False),
        "norm_order": norm_order,
        "norm_eps": NORM_EPS,
        **special_ids({**hf, "bos_token_id": hf.get("decoder_start_token_id")}),
    }
    return build(TransformerConfig, fields)


# ── layouts ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _layout(model_type: str, architecture: str, norm_order: str) -> Layout:
    return Layout(
        model_type=model_type,
        architecture=architecture,
        prefix="model.",
        tensors=TENSORS,
        config_to_hf=partial(_config_to_hf, norm_order),
        config_from_hf=partial(_config_from_hf, norm_order),
        ignored_suffixes=(".embed_positions.weight", ".embed_tokens.weight", "lm_head.weight"),
        must_be_zero=("final_logits_bias",),
        tensor_to_hf=_tensor_to_hf,
        tensor_from_hf=_tensor_from_hf,
        extra_tensors=_sinusoid_tables,
    )


MARIAN = _layout("marian", "MarianMTModel", norm_order="post")
PEGASUS = _layout("pegasus", "PegasusForConditionalGeneration", norm_order="pre")
