"""How transformers lays out the models it knows: the fields of `config.json` and the names of the tensors.

A layout is a table: our name, their name or names. Several of theirs are the rows of one of ours, one below the
other (W_Q, W_K, W_V). GPT-1 and GPT-2 were published with matrices the other way round: `transposed`.
`{i}` stands for the layer. What no layout fits is saved as `headway-…`, with our own names.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.config import BERTConfig, GPTConfig, ModelConfig, StackConfig, TransformerConfig, build
from headway.errors import CheckpointError
from headway.nn.positions import sinusoid


class TensorMapping(NamedTuple):
    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False


def _pairs(ours: str, *theirs: str, transposed: bool = False) -> tuple[TensorMapping, TensorMapping]:
    """A linear layer or a norm: its weight and its bias."""
    return (
        TensorMapping(f"{ours}.weight", tuple(f"{t}.weight" for t in theirs), transposed),
        TensorMapping(f"{ours}.bias", tuple(f"{t}.bias" for t in theirs)),
    )


@dataclass(frozen=True)
class Layout:
    model_type: str
    architecture: str
    prefix: str  # what the names in files may go without
    names: tuple[TensorMapping, ...]
    ignored: tuple[str, ...]  # endings of tensors that hold no weights of their own: masks, copies of tied matrices
    write_config: Callable[[Any], dict[str, Any] | None]  # None: this config does not fit the layout
    read_config: Callable[[Mapping[str, Any]], ModelConfig]
    heads: tuple[str, ...] = ()  # beginnings of tensors of heads that may sit on top, and are left there
    optional: tuple[str, ...] = ()  # our names that a file may lack; they are then zero
    aliases: Mapping[str, str] = field(default_factory=dict)  # their name → another under which they keep a copy
    zeros: tuple[str, ...] = ()  # tensors of theirs that we have no place for, and which must be zero
    sines_first: bool = False  # their sinusoids have all sines before all cosines, ours by turns; see `_in_order`

    def to_theirs(self, config: Any, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        theirs: dict[str, Tensor] = {}
        left = set(ours)
        for name in self._expanded(config):
            if name.ours in ours:
                tensor = _in_order(name.ours, ours[name.ours], config.d_model) if self.sines_first else ours[name.ours]
                tensor = tensor.T if name.transposed else tensor
                rows = _rows(name, config)
                parts = tensor.split(rows) if rows else (tensor,)
                theirs.update((n, part.contiguous()) for n, part in zip(name.theirs, parts, strict=True))
                theirs.update((self.aliases[n], theirs[n]) for n in name.theirs if n in self.aliases)
                left.discard(name.ours)
        assert not left, f"no name in the {self.model_type} layout for {sorted(left)}"
        if self.sines_first:  # transformers would make them again, and say that they were missing
            table = _in_order("embedding", sinusoid(torch.arange(config.context), config.d_model), config.d_model)
            theirs |= {f"model.{side}.embed_positions.weight": table for side in ("encoder", "decoder")}
        return theirs

    def to_ours(
        self, config: StackConfig, theirs: Mapping[str, Tensor], wanted: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Tensors for the names in `wanted`; theirs may carry the prefix or not."""
        theirs = {_modern(name): tensor for name, tensor in theirs.items()}
        for main, alias in self.aliases.items():
            if (copy := theirs.pop(alias, None)) is not None:
                theirs.setdefault(main, copy)
        if not any(name.startswith(self.prefix) for name in theirs):
            theirs = {name if name.startswith("lm_head") else self.prefix + name: t for name, t in theirs.items()}
        for place in self.zeros:
            if (rest := theirs.pop(place, None)) is not None and rest.any():
                raise CheckpointError(
                    f"{place!r} is not zero, and there is no such part here: this model is not supported"
                )
        ours: dict[str, Tensor] = {}
        used: set[str] = set()
        for name in self._expanded(config):
            if name.ours not in wanted:
                used.update(name.theirs)  # a tied output matrix, a head that is not loaded
                continue
            missing = [n for n in name.theirs if n not in theirs]
            if missing and name.ours in self.optional:
                ours[name.ours] = torch.zeros_like(wanted[name.ours], device="cpu")
                continue
            if missing:
                raise CheckpointError(f"the weights lack {missing[0]!r}, which a {self.model_type} model has")
            parts = [theirs[n].T if name.transposed else theirs[n] for n in name.theirs]
            rows = _rows(name, config) or [wanted[name.ours].shape[0]]
            for n, part, n_rows in zip(name.theirs, parts, rows, strict=True):
                if part.shape != (n_rows, *wanted[name.ours].shape[1:]):
                    right = (n_rows, *wanted[name.ours].shape[1:])
                    raise CheckpointError(
                        f"{n!r} has shape {tuple(theirs[n].shape)} where config.json asks for "
                        f"{right[::-1] if name.transposed else right}: config.json and the weights do not agree"
                    )
            found = torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()
            ours[name.ours] = _in_order(name.ours, found, config.d_model, back=True) if self.sines_first else found
            used.update(name.theirs)
        strange = [n for n in theirs if n not in used and not n.endswith(self.ignored)]
        if strange := [n for n in strange if not n.startswith(self.heads)]:
            raise CheckpointError(
                f"the weights hold {strange[0]!r} and {len(strange) - 1} more that a {self.model_type} model has not: "
                f"is config.json of another model?"
            )
        return ours

    def _expanded(self, config: Any) -> Iterator[TensorMapping]:
        for name in self.names:
            side = name.ours.split(".")[0]
            n_layers = getattr(config, f"n_{side}_layers", config.n_layers)
            for i in range(n_layers) if "{i}" in name.ours else (0,):
                yield TensorMapping(name.ours.format(i=i), tuple(t.format(i=i) for t in name.theirs), name.transposed)


def _in_order(name: str, tensor: Tensor, d_model: int, *, back: bool = False) -> Tensor:
    """A tensor with the numbers of the stream between blocks in the order of the other side. They may stand in any, as
    long as all that reads or writes them agrees; only the positions that are added say which is which."""
    part = name.split(".")[-2] if "." in name else name
    if (part in ("qkv", "q", "kv", "up") and not name.endswith("bias")) or part == "embedding":
        axis = 1
    elif part in ("out", "down") or "norm" in part:
        axis = 0
    else:
        return tensor
    order = torch.cat((torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)))
    return tensor.index_select(axis, order.argsort() if back else order)


def _modern(name: str) -> str:
    """Norms were once saved with the letters of their paper."""
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name


def _rows(name: TensorMapping, c: StackConfig) -> list[int] | None:
    """How many rows of ours each of theirs takes."""
    if len(name.theirs) == 3:
        return [c.n_heads * c.d_head, c.n_kv_heads * c.d_head, c.n_kv_heads * c.d_head]
    if ".kv." in name.ours:
        return [c.n_kv_heads * c.d_head, c.n_kv_heads * c.d_head]
    return [c.d_ff, c.d_ff] if len(name.theirs) == 2 else None


ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new", "relu2": "relu2"}
FROM_ACTIVATIONS = {theirs: ours for ours, theirs in ACTIVATIONS.items()} | {"gelu_pytorch_tanh": "gelu-tanh"}


def _fits(c: StackConfig, **parts: Any) -> bool:
    """Whether the config has just these parts."""
    return all(getattr(c, name) in (value if isinstance(value, tuple) else (value,)) for name, value in parts.items())


def _is_plain(c: StackConfig) -> bool:
    """Whether all heads have keys of their own, and together make up the width."""
    return c.n_kv_heads == c.n_heads and c.n_heads * c.d_head == c.d_model


def _known(kind: str, value: str, table: Mapping[str, str]) -> Any:
    if value not in table:
        raise CheckpointError(f"config.json: {kind}={value!r} is not supported; there are {', '.join(table)}")
    return table[value]


def _refuse(config: Mapping[str, Any], **allowed: Any) -> None:
    """A foreign setting we do not implement is an error: ignoring it would change the numbers silently."""
    for name, values in allowed.items():
        if config.get(name, values[0]) not in values:
            raise CheckpointError(f"config.json: {name}={config[name]!r} is not supported; only {values[0]!r} is")


def _special(config: Mapping[str, Any]) -> dict[str, Any]:
    """Begin and end ids; those outside the vocabulary (transformers writes defaults) mean there are none."""

    def inside(value: Any) -> int | None:
        value = value[0] if isinstance(value, list) and value else value
        return value if isinstance(value, int) and 0 <= value < config["vocab_size"] else None

    return {"bos_id": inside(config.get("bos_token_id")), "eos_id": inside(config.get("eos_token_id"))}


# ── GPT-2 and GPT-1 ───────────────────────────────────────────────────────────────────────────────────────────────


def _gpt_names(embedding: str, positions: str) -> tuple[TensorMapping, ...]:
    h = "transformer.h.{i}"
    return (
        TensorMapping("embedding.weight", (embedding,)),
        TensorMapping("embedding.output", ("lm_head.weight",)),
        TensorMapping("positions.weight", (positions,)),
        *_pairs("blocks.{i}.norm1", f"{h}.ln_1"),
        *_pairs("blocks.{i}.attention.qkv", f"{h}.attn.c_attn", transposed=True),
        *_pairs("blocks.{i}.attention.out", f"{h}.attn.c_proj", transposed=True),
        *_pairs("blocks.{i}.norm2", f"{h}.ln_2"),
        *_pairs("blocks.{i}.feed_forward.up", f"{h}.mlp.c_fc", transposed=True),
        *_pairs("blocks.{i}.feed_forward.down", f"{h}.mlp.c_proj", transposed=True),
    )


def _gpt_shape(c: GPTConfig) -> dict[str, Any]:
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


def _read_gpt_shape(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "vocab_size": config["vocab_size"],
        "context": config.get("n_positions", 1024),
        "d_model": config["n_embd"],
        "n_layers": config["n_layer"],
        "n_heads": config["n_head"],
        "dropout": config.get("resid_pdrop", 0.1),
        "norm_eps": config.get("layer_norm_epsilon", 1e-5),
        "tie_embeddings": config.get("tie_word_embeddings", True),
        **_special(config),
    }


_GPT_PARTS = {"positions": "learned", "norm": "layer", "bias": True, "scale_embeddings": False}


def _write_gpt2(c: GPTConfig) -> dict[str, Any] | None:
    if not _is_plain(c) or not _fits(c, **_GPT_PARTS, norm_order="pre", feed_forward=tuple(ACTIVATIONS)):
        return None
    inner = None if c.d_ff == 4 * c.d_model else c.d_ff
    return {**_gpt_shape(c), "n_inner": inner, "activation_function": ACTIVATIONS[c.feed_forward]}


def _read_gpt2(config: Mapping[str, Any]) -> GPTConfig:
    _refuse(config, scale_attn_weights=[True], scale_attn_by_inverse_layer_idx=[False], add_cross_attention=[False])
    activation = _known("activation_function", config.get("activation_function", "gelu_new"), FROM_ACTIVATIONS)
    return build(GPTConfig, {**_read_gpt_shape(config), "d_ff": config.get("n_inner"), "feed_forward": activation})


def _write_gpt1(c: GPTConfig) -> dict[str, Any] | None:
    if not _is_plain(c) or not _fits(c, **_GPT_PARTS, norm_order="post", feed_forward=("gelu-tanh", "relu")):
        return None
    if c.d_ff != 4 * c.d_model:
        return None
    return {**_gpt_shape(c), "afn": "relu" if c.feed_forward == "relu" else "gelu"}


def _read_gpt1(config: Mapping[str, Any]) -> GPTConfig:
    activation = _known("afn", config.get("afn", "gelu"), {"gelu": "gelu-tanh", "relu": "relu"})
    return build(GPTConfig, {**_read_gpt_shape(config), "norm_order": "post", "feed_forward": activation})


_GPT_IGNORED = (".attn.bias", ".attn.masked_bias")

GPT2 = Layout(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    names=(
        *_gpt_names("transformer.wte.weight", "transformer.wpe.weight"),
        *_pairs("norm", "transformer.ln_f"),
    ),
    ignored=_GPT_IGNORED,
    write_config=_write_gpt2,
    read_config=_read_gpt2,
)
GPT1 = Layout(
    model_type="openai-gpt",
    architecture="OpenAIGPTLMHeadModel",
    prefix="transformer.",
    names=_gpt_names("transformer.tokens_embed.weight", "transformer.positions_embed.weight"),
    ignored=_GPT_IGNORED,
    write_config=_write_gpt1,
    read_config=_read_gpt1,
)


# ── Llama ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _write_llama(c: GPTConfig) -> dict[str, Any] | None:
    if not _fits(c, positions="rotary", norm="rms", norm_order="pre", feed_forward="swiglu", scale_embeddings=False):
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
        "rope_theta": c.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_theta},
        "attention_bias": c.bias,
        "mlp_bias": c.bias,
        "attention_dropout": c.dropout,
        "tie_word_embeddings": c.tie_embeddings,
        "bos_token_id": c.bos_id,
        "eos_token_id": c.eos_id,
    }


def _read_llama(config: Mapping[str, Any]) -> GPTConfig:
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise CheckpointError(f"config.json: rotary frequencies rescaled by {kind!r} are not supported yet")
    _refuse(config, hidden_act=["silu", "swish"], mlp_bias=[config.get("attention_bias", False)])
    fields = dict(
        vocab_size=config["vocab_size"],
        context=config.get("max_position_embeddings", 2048),
        d_model=config["hidden_size"],
        d_ff=config["intermediate_size"],
        n_layers=config["num_hidden_layers"],
        n_heads=config["num_attention_heads"],
        n_kv_heads=config.get("num_key_value_heads"),
        d_head=config.get("head_dim"),
        norm_eps=config.get("rms_norm_eps", 1e-6),
        rope_theta=rope.get("rope_theta") or config.get("rope_theta") or 10_000.0,
        bias=config.get("attention_bias", False),
        dropout=config.get("attention_dropout", 0.0),
        tie_embeddings=config.get("tie_word_embeddings", False),
        positions="rotary",
        norm="rms",
        feed_forward="swiglu",
        **_special(config),
    )
    return build(GPTConfig, fields)


_LLAMA_LAYER = "model.layers.{i}"
_LLAMA_QKV = tuple(f"{_LLAMA_LAYER}.self_attn.{x}_proj" for x in "qkv")

LLAMA = Layout(
    model_type="llama",
    architecture="LlamaForCausalLM",
    prefix="model.",
    names=(
        TensorMapping("embedding.weight", ("model.embed_tokens.weight",)),
        TensorMapping("embedding.output", ("lm_head.weight",)),
        *_pairs("blocks.{i}.norm1", f"{_LLAMA_LAYER}.input_layernorm"),
        *_pairs("blocks.{i}.attention.qkv", *_LLAMA_QKV),
        *_pairs("blocks.{i}.attention.out", f"{_LLAMA_LAYER}.self_attn.o_proj"),
        *_pairs("blocks.{i}.norm2", f"{_LLAMA_LAYER}.post_attention_layernorm"),
        *_pairs("blocks.{i}.feed_forward.gate_up", f"{_LLAMA_LAYER}.mlp.gate_proj", f"{_LLAMA_LAYER}.mlp.up_proj"),
        *_pairs("blocks.{i}.feed_forward.down", f"{_LLAMA_LAYER}.mlp.down_proj"),
        *_pairs("norm", "model.norm"),
    ),
    ignored=(".rotary_emb.inv_freq",),
    write_config=_write_llama,
    read_config=_read_llama,
)


# ── BERT ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _write_labels(labels: list[str]) -> dict[str, Any]:
    if not labels:
        return {}
    return {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}


def _read_labels(names: Mapping[Any, Any]) -> list[str]:
    return [str(name) for _, name in sorted(names.items(), key=lambda item: int(item[0]))]


def _write_bert(c: BERTConfig) -> dict[str, Any] | None:
    parts = {**_GPT_PARTS, "norm_order": "post", "feed_forward": tuple(ACTIVATIONS)}
    if not _is_plain(c) or not _fits(c, **parts):
        return None
    return {
        "vocab_size": c.vocab_size,
        "max_position_embeddings": c.context,
        "hidden_size": c.d_model,
        "intermediate_size": c.d_ff,
        "num_hidden_layers": c.n_layers,
        "num_attention_heads": c.n_heads,
        "hidden_act": ACTIVATIONS[c.feed_forward],
        "hidden_dropout_prob": c.dropout,
        "attention_probs_dropout_prob": c.dropout,
        "type_vocab_size": c.n_segments,
        "layer_norm_eps": c.norm_eps,
        "tie_word_embeddings": c.tie_embeddings,
        **(
            {"id2label": dict(enumerate(c.labels)), "label2id": {n: i for i, n in enumerate(c.labels)}}
            if c.labels
            else {}
        ),
    }


def _read_bert(config: Mapping[str, Any]) -> BERTConfig:
    _refuse(config, position_embedding_type=["absolute"], is_decoder=[False], add_cross_attention=[False])
    fields = {
        "vocab_size": config["vocab_size"],
        "context": config.get("max_position_embeddings", 512),
        "d_model": config["hidden_size"],
        "d_ff": config["intermediate_size"],
        "n_layers": config["num_hidden_layers"],
        "n_heads": config["num_attention_heads"],
        "feed_forward": _known("hidden_act", config.get("hidden_act", "gelu"), FROM_ACTIVATIONS),
        "dropout": config.get("hidden_dropout_prob", 0.1),
        "n_segments": config.get("type_vocab_size", 2),
        "norm_eps": config.get("layer_norm_eps", 1e-12),
        "tie_embeddings": config.get("tie_word_embeddings", True),
        "labels": [
            str(name) for _, name in sorted((config.get("id2label") or {}).items(), key=lambda item: int(item[0]))
        ],
    }
    return build(BERTConfig, fields)


_BERT_LAYER = "bert.encoder.layer.{i}"

BERT = Layout(
    model_type="bert",
    architecture="BertModel",
    prefix="bert.",
    names=(
        TensorMapping("embedding.weight", ("bert.embeddings.word_embeddings.weight",)),
        TensorMapping("positions.weight", ("bert.embeddings.position_embeddings.weight",)),
        TensorMapping("segments", ("bert.embeddings.token_type_embeddings.weight",)),
        *_pairs("embedding_norm", "bert.embeddings.LayerNorm"),
        *_pairs("blocks.{i}.attention.qkv", *(f"{_BERT_LAYER}.attention.self.{x}" for x in ("query", "key", "value"))),
        *_pairs("blocks.{i}.attention.out", f"{_BERT_LAYER}.attention.output.dense"),
        *_pairs("blocks.{i}.norm1", f"{_BERT_LAYER}.attention.output.LayerNorm"),
        *_pairs("blocks.{i}.feed_forward.up", f"{_BERT_LAYER}.intermediate.dense"),
        *_pairs("blocks.{i}.feed_forward.down", f"{_BERT_LAYER}.output.dense"),
        *_pairs("blocks.{i}.norm2", f"{_BERT_LAYER}.output.LayerNorm"),
        *_pairs("pooler", "bert.pooler.dense"),
    ),
    ignored=(".position_ids",),
    heads=("cls.", "classifier.", "qa_outputs."),
    write_config=_write_bert,
    read_config=_read_bert,
)

# The masked-LM head has the encoder inside it, and names of its own.
_HEAD = "cls.predictions"
MASKED_LM = Layout(
    model_type="bert",
    architecture="BertForMaskedLM",
    prefix="bert.",
    names=(
        *(TensorMapping(f"encoder.{name.ours}", name.theirs) for name in BERT.names),
        *_pairs("dense", f"{_HEAD}.transform.dense"),
        *_pairs("norm", f"{_HEAD}.transform.LayerNorm"),
        TensorMapping("bias", (f"{_HEAD}.decoder.bias",)),
        TensorMapping("output", (f"{_HEAD}.decoder.weight",)),
    ),
    ignored=(".position_ids",),
    heads=("cls.seq_relationship.",),
    aliases={f"{_HEAD}.decoder.bias": f"{_HEAD}.bias"},
    write_config=_write_bert,
    read_config=_read_bert,
    optional=("encoder.pooler.weight", "encoder.pooler.bias"),  # transformers saves this head without the pooler
)


def _read_labelled(config: Mapping[str, Any]) -> BERTConfig:
    """transformers leaves out the names of labels where there are two that nobody named."""
    found = _read_bert(config)
    return found if found.labels else found.replace(labels=["LABEL_0", "LABEL_1"])


def _head(architecture: str, output: str, *, optional: tuple[str, ...] = ()) -> Layout:
    """One linear layer on the encoder."""
    return Layout(
        model_type="bert",
        architecture=architecture,
        prefix="bert.",
        names=(*(TensorMapping(f"encoder.{name.ours}", name.theirs) for name in BERT.names), *_pairs("output", output)),
        ignored=(".position_ids",),
        write_config=_write_bert,
        read_config=_read_bert if output == "qa_outputs" else _read_labelled,
        optional=optional,
    )


# ── the encoder-decoder ───────────────────────────────────────────────────────────────────────────────────────────


def _write_pair(norm_order: str) -> Callable[[TransformerConfig], dict[str, Any] | None]:
    """Marian has the norm after the residual, as in the paper; Pegasus before it, and one more at the end."""

    def write(c: TransformerConfig) -> dict[str, Any] | None:
        parts = {"norm": "layer", "norm_order": norm_order, "bias": True, "tie_embeddings": True, "norm_eps": 1e-5}
        parts |= {"positions": "sinusoidal", "feed_forward": tuple(ACTIVATIONS)}
        if not _is_plain(c) or not _fits(c, **parts) or c.d_model % 2 or c.bos_id is None or c.eos_id is None:
            return None
        sides = {
            f"{side}_{name}": value
            for side in ("encoder", "decoder")
            for name, value in (
                ("layers", getattr(c, f"n_{side}_layers")),
                ("attention_heads", c.n_heads),
                ("ffn_dim", c.d_ff),
            )
        }
        return {
            "vocab_size": c.vocab_size,
            "max_position_embeddings": c.context,
            "d_model": c.d_model,
            **sides,
            "activation_function": ACTIVATIONS[c.feed_forward],
            "dropout": c.dropout,
            "scale_embedding": c.scale_embeddings,
            "is_encoder_decoder": True,
            "tie_word_embeddings": True,
            "decoder_start_token_id": c.bos_id,
            "eos_token_id": c.eos_id,
            "forced_eos_token_id": None,
            "pad_token_id": c.eos_id,
        }

    return write


def _read_pair(norm_order: str) -> Callable[[Mapping[str, Any]], TransformerConfig]:
    def read(config: Mapping[str, Any]) -> TransformerConfig:
        _refuse(config, share_encoder_decoder_embeddings=[True], tie_word_embeddings=[True])
        for name in ("attention_heads", "ffn_dim"):
            _refuse(config, **{f"decoder_{name}": [config[f"encoder_{name}"]]})
        fields = {
            "vocab_size": config["vocab_size"],
            "context": config.get("max_position_embeddings", 1024),
            "d_model": config["d_model"],
            "d_ff": config["encoder_ffn_dim"],
            "n_heads": config["encoder_attention_heads"],
            "n_layers": config["encoder_layers"],
            "n_encoder_layers": config["encoder_layers"],
            "n_decoder_layers": config["decoder_layers"],
            "feed_forward": _known("activation_function", config.get("activation_function", "gelu"), FROM_ACTIVATIONS),
            "dropout": config.get("dropout", 0.1),
            "scale_embeddings": config.get("scale_embedding", False),
            "norm_order": norm_order,
            "norm_eps": 1e-5,
            **_special({**config, "bos_token_id": config.get("decoder_start_token_id")}),
        }
        return build(TransformerConfig, fields)

    return read


def _side(side: str, cross: bool) -> tuple[TensorMapping, ...]:
    ours, theirs = f"{side}.blocks.{{i}}", f"model.{side}.layers.{{i}}"
    names = (
        *_pairs(f"{ours}.attention.qkv", *(f"{theirs}.self_attn.{x}_proj" for x in "qkv")),
        *_pairs(f"{ours}.attention.out", f"{theirs}.self_attn.out_proj"),
        *_pairs(f"{ours}.norm1", f"{theirs}.self_attn_layer_norm"),
        *_pairs(f"{ours}.feed_forward.up", f"{theirs}.fc1"),
        *_pairs(f"{ours}.feed_forward.down", f"{theirs}.fc2"),
        *_pairs(f"{ours}.norm2", f"{theirs}.final_layer_norm"),
        *_pairs(f"{side}.norm", f"model.{side}.layer_norm"),
    )
    if not cross:
        return names
    return (
        *names,
        *_pairs(f"{ours}.cross_attention.q", f"{theirs}.encoder_attn.q_proj"),
        *_pairs(f"{ours}.cross_attention.kv", *(f"{theirs}.encoder_attn.{x}_proj" for x in "kv")),
        *_pairs(f"{ours}.cross_attention.out", f"{theirs}.encoder_attn.out_proj"),
        *_pairs(f"{ours}.cross_norm", f"{theirs}.encoder_attn_layer_norm"),
    )


def _pair(model_type: str, architecture: str, norm_order: str) -> Layout:
    return Layout(
        model_type=model_type,
        architecture=architecture,
        prefix="model.",
        names=(
            TensorMapping("embedding.weight", ("model.shared.weight",)),
            *_side("encoder", cross=False),
            *_side("decoder", cross=True),
        ),
        ignored=(".embed_positions.weight", ".embed_tokens.weight", "lm_head.weight"),
        zeros=("final_logits_bias",),
        sines_first=True,
        write_config=_write_pair(norm_order),
        read_config=_read_pair(norm_order),
    )


MARIAN = _pair("marian", "MarianMTModel", "post")
PEGASUS = _pair("pegasus", "PegasusForConditionalGeneration", "pre")

_POOLER = ("encoder.pooler.weight", "encoder.pooler.bias")  # transformers saves these heads without it

# Model class, by name → the layouts it may be saved in, first fit first.
LAYOUTS: dict[str, tuple[Layout, ...]] = {
    "GPT": (GPT2, GPT1, LLAMA),
    "BERT": (BERT,),
    "Transformer": (MARIAN, PEGASUS),
    "MaskedLM": (MASKED_LM,),
    "Classifier": (_head("BertForSequenceClassification", "classifier"),),
    "Tagger": (_head("BertForTokenClassification", "classifier", optional=_POOLER),),
    "SpanReader": (_head("BertForQuestionAnswering", "qa_outputs", optional=_POOLER),),
}
