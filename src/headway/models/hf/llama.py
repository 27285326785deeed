"""Llama as transformers stores it: `LlamaForCausalLM` (Touvron et al. 2023).

A GPT with rotary positions, RMSNorm before each sublayer, SwiGLU, usually no biases, and optionally fewer key/value
heads than heads. In transformers query, key and value are three matrices, and the gate and up projections of SwiGLU
are two; Headway fuses them (`attention.qkv`, `feed_forward.gate_up`). Matrices are stored as (out, in), like ours.

Departures: rescaled rotary frequencies (`rope_type` other than "default", as in Llama 3.1) are refused, and so are
biases in attention alone or in the feed-forward alone. transformers applies dropout to the attention weights only;
its rate becomes Headway's `dropout`.
"""

from collections.abc import Mapping
from typing import Any

from headway.config import GPTConfig, build
from headway.errors import CheckpointError
from headway.models.hf.layout import Layout, TensorMapping, has_parts, require, special_ids, weight_and_bias

BLOCK, LAYER = "blocks.{i}", "model.layers.{i}"

TENSORS = (
    TensorMapping("embedding.weight", ("model.embed_tokens.weight",)),
    TensorMapping("embedding.output", ("lm_head.weight",)),
    *weight_and_bias(f"{BLOCK}.norm1", f"{LAYER}.input_layernorm"),
    *weight_and_bias(f"{BLOCK}.attention.qkv", *(f"{LAYER}.self_attn.{x}_proj" for x in "qkv")),
    *weight_and_bias(f"{BLOCK}.attention.out", f"{LAYER}.self_attn.o_proj"),
    *weight_and_bias(f"{BLOCK}.norm2", f"{LAYER}.post_attention_layernorm"),
    *weight_and_bias(f"{BLOCK}.feed_forward.gate_up", f"{LAYER}.mlp.gate_proj", f"{LAYER}.mlp.up_proj"),
    *weight_and_bias(f"{BLOCK}.feed_forward.down", f"{LAYER}.mlp.down_proj"),
    *weight_and_bias("norm", "model.norm"),
)


def config_to_hf(c: GPTConfig) -> dict[str, Any] | None:
    if not has_parts(
        c, positions="rotary", norm="rms", norm_order="pre", feed_forward="swiglu", scale_embeddings=False
    ):
        return None
    return {
        "vocab_size": c.vocab_size,
        "max_position_embeddings": c.context,
        "hidden_size": c.d_model,
        "intermediate_size": c.d_ff,
        "num_hidden_layers": c.n_layers,
        "num_attention_heads": c.n_heads,
        "num_key_value_heads": c.n_kv_heads,
        "head_dim": c.d_head,
        "hidden_act": "silu",
        "rms_norm_eps": c.norm_eps,
        "rope_theta": c.rope_theta,  # read by transformers 4; version 5 reads the next line
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_theta},
        "attention_bias": c.bias,
        "mlp_bias": c.bias,
        "attention_dropout": c.dropout,
        "tie_word_embeddings": c.tie_embeddings,
        "bos_token_id": c.bos_id,
        "eos_token_id": c.eos_id,
    }


def config_from_hf(hf: Mapping[str, Any]) -> GPTConfig:
    rope = {**(hf.get("rope_scaling") or {}), **(hf.get("rope_parameters") or {})}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default":
        raise CheckpointError(f"config.json: rotary frequencies rescaled by {rope_type!r:.80} are not supported yet")
    if unknown := sorted(rope.keys() - {"rope_type", "type", "rope_theta"}):
        raise CheckpointError(f"config.json: {unknown[0]!r:.80} of the rotary frequencies is not supported")
    thetas = [theta for theta in (rope.get("rope_theta"), hf.get("rope_theta")) if theta is not None]
    if thetas and thetas[0] != thetas[-1]:
        raise CheckpointError(f"config.json: two values of rope_theta, {thetas[0]!r:.40} and {thetas[1]!r:.40}")
    has_bias = hf.get("attention_bias", False)
    require(hf, hidden_act=["silu", "swish"], mlp_bias=[has_bias])
    fields = {
        "vocab_size": hf["vocab_size"],
        "context": hf.get("max_position_embeddings", 2048),
        "d_model": hf["hidden_size"],
        "d_ff": hf["intermediate_size"],
        "n_layers": hf["num_hidden_layers"],
        "n_heads": hf["num_attention_heads"],
        "n_kv_heads": hf.get("num_key_value_heads"),
        "d_head": hf.get("head_dim"),
        "norm_eps": hf.get("rms_norm_eps", 1e-6),
        "rope_theta": thetas[0] if thetas else 10_000.0,
        "bias": has_bias,
        "dropout": hf.get("attention_dropout", 0.0),
        "tie_embeddings": hf.get("tie_word_embeddings", False),
        "positions": "rotary",
        "norm": "rms",
        "feed_forward": "swiglu",
        **special_ids(hf),
    }
    return build(GPTConfig, fields)


LLAMA = Layout(
    model_type="llama",
    architecture="LlamaForCausalLM",
    also_loads=("LlamaModel",),
    prefix="model.",
    tensors=TENSORS,
    config_to_hf=config_to_hf,
    config_from_hf=config_from_hf,
    ignored_suffixes=(".rotary_emb.inv_freq",),  # computed, and saved by old versions of transformers
)
