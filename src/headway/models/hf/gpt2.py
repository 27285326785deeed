"""GPT-2 and GPT-1 as transformers stores them: `GPT2LMHeadModel` and `OpenAIGPTLMHeadModel`.

The two share one layout, up to three points:

                     GPT-2 (`gpt2`)                        GPT-1 (`openai-gpt`)
    norms            before each sublayer, one at the end  after each residual, none at the end
    embeddings       `wte`, `wpe`                          `tokens_embed`, `positions_embed`
    feed-forward     any width (`n_inner`), any activation 4 · d_model, GELU (tanh) or ReLU

Both were published in TensorFlow, so their matrices are stored as (in, out), the transpose of ours. Query, key and
value are one matrix (`c_attn`), as in Headway. A config fits if it has learned positions, LayerNorm, biases, as many
key/value heads as heads, and unscaled embeddings; embeddings may be tied or not.

Departures: transformers has three dropout rates, Headway one; reading takes `resid_pdrop`. GPT-2's `gelu_new` and
GPT-1's `gelu` are both the tanh approximation, Headway's "gelu-tanh".
"""

from collections.abc import Mapping
from typing import Any

from headway.config import GPTConfig, build
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

PARTS = {"positions": "learned", "norm": "layer", "bias": True, "scale_embeddings": False}


# ── tensors ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _tensors(embedding: str, positions: str) -> tuple[TensorMapping, ...]:
    block, h = "blocks.{i}", "transformer.h.{i}"
    return (
        TensorMapping("embedding.weight", (f"transformer.{embedding}.weight",)),
        TensorMapping("embedding.output", ("lm_head.weight",)),
        TensorMapping("positions.weight", (f"transformer.{positions}.weight",)),
        *weight_and_bias(f"{block}.norm1", f"{h}.ln_1"),
        *weight_and_bias(f"{block}.attention.qkv", f"{h}.attn.c_attn", transposed=True),
        *weight_and_bias(f"{block}.attention.out", f"{h}.attn.c_proj", transposed=True),
        *weight_and_bias(f"{block}.norm2", f"{h}.ln_2"),
        *weight_and_bias(f"{block}.feed_forward.up", f"{h}.mlp.c_fc", transposed=True),
        *weight_and_bias(f"{block}.feed_forward.down", f"{h}.mlp.c_proj", transposed=True),
    )


GPT2_TENSORS = (*_tensors("wte", "wpe"), *weight_and_bias("norm", "transformer.ln_f"))
GPT1_TENSORS = _tensors("tokens_embed", "positions_embed")
CAUSAL_MASKS = (".attn.bias", ".attn.masked_bias")  # saved as buffers by old versions of transformers


# ── config.json ───────────────────────────────────────────────────────────────────────────────────────────────────


def _shape_to_hf(c: GPTConfig) -> dict[str, Any]:
    return {
        "vocab_size": c.vocab_size,
        "n_positions": c.context,
        "n_ctx": c.context,
        "n_embd": c.d_model,
        "n_layer": c.n_layers,
        "n_head": c.n_heads,
        "resid_pdrop": c.dropout,
        "embd_pdrop": c.dropout,
        "attn_pdrop": c.dropout,
        "layer_norm_epsilon": c.norm_eps,
        "bos_token_id": c.bos_id,
        "eos_token_id": c.eos_id,
        "tie_word_embeddings": c.tie_embeddings,
    }


def _shape_from_hf(hf: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "vocab_size": hf["vocab_size"],
        "context": hf.get("n_positions", 1024),
        "d_model": hf["n_embd"],
        "n_layers": hf["n_layer"],
        "n_heads": hf["n_head"],
        "dropout": hf.get("resid_pdrop", 0.1),
        "norm_eps": hf.get("layer_norm_epsilon", 1e-5),
        "tie_embeddings": hf.get("tie_word_embeddings", True),
        **special_ids(hf),
    }


def gpt2_config_to_hf(c: GPTConfig) -> dict[str, Any] | None:
    if not has_standard_heads(c):
        return None
    if not has_parts(c, **PARTS, norm_order="pre", feed_forward=tuple(ACTIVATION_TO_HF)):
        return None
    n_inner = None if c.d_ff == 4 * c.d_model else c.d_ff
    return {**_shape_to_hf(c), "n_inner": n_inner, "activation_function": ACTIVATION_TO_HF[c.feed_forward]}


def gpt2_config_from_hf(hf: Mapping[str, Any]) -> GPTConfig:
    require(hf, scale_attn_weights=[True], scale_attn_by_inverse_layer_idx=[False], add_cross_attention=[False])
    activation = translate("activation_function", hf.get("activation_function", "gelu_new"), ACTIVATION_FROM_HF)
    return build(GPTConfig, {**_shape_from_hf(hf), "d_ff": hf.get("n_inner"), "feed_forward": activation})


def gpt1_config_to_hf(c: GPTConfig) -> dict[str, Any] | None:
    if not has_standard_heads(c) or c.d_ff != 4 * c.d_model:
        return None
    if not has_parts(c, **PARTS, norm_order="post", feed_forward=("gelu-tanh", "relu")):
        return None
    return {**_shape_to_hf(c), "afn": "relu" if c.feed_forward == "relu" else "gelu"}


def gpt1_config_from_hf(hf: Mapping[str, Any]) -> GPTConfig:
    activation = translate("afn", hf.get("afn", "gelu"), {"gelu": "gelu-tanh", "relu": "relu"})
    return build(GPTConfig, {**_shape_from_hf(hf), "norm_order": "post", "feed_forward": activation})


# ── layouts ───────────────────────────────────────────────────────────────────────────────────────────────────────

GPT2 = Layout(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    also_loads=("GPT2Model",),
    prefix="transformer.",
    tensors=GPT2_TENSORS,
    config_to_hf=gpt2_config_to_hf,
    config_from_hf=gpt2_config_from_hf,
    ignored_suffixes=CAUSAL_MASKS,
)
GPT1 = Layout(
    model_type="openai-gpt",
    architecture="OpenAIGPTLMHeadModel",
    also_loads=("OpenAIGPTModel",),
    prefix="transformer.",
    tensors=GPT1_TENSORS,
    config_to_hf=gpt1_config_to_hf,
    config_from_hf=gpt1_config_from_hf,
    ignored_suffixes=CAUSAL_MASKS,
)
