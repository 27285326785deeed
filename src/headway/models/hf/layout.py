"""How one Hugging Face transformers class stores a Headway model: its `config.json` and its tensor names.

A `Layout` describes one transformers class, such as `GPT2LMHeadModel`. `config_to_hf` and `config_from_hf` translate
the config; `tensors` is a table of Headway name → transformers name(s). Three conventions cover almost everything:

- `{i}` in a name stands for the layer index: one line of the table per kind of tensor, not per layer.
- Headway fuses projections that read the same input (W_Q, W_K, W_V; the gate and up matrices of SwiGLU). Such a
  tensor lists several transformers names; it is their concatenation by rows, in that order.
- GPT-1 and GPT-2 store matrices as (in, out), PyTorch's `nn.Linear` as (out, in): `transposed`.

A model that no layout fits is saved as `headway-…`, with Headway's config and tensor names.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.config import ModelConfig, StackConfig
from headway.errors import CheckpointError


class TensorMapping(NamedTuple):
    """One Headway tensor and the transformers tensors it is made of. Tensors the model lacks are skipped."""

    headway: str
    hf: tuple[str, ...]
    transposed: bool = False


def weight_and_bias(headway: str, *hf: str, transposed: bool = False) -> tuple[TensorMapping, TensorMapping]:
    """The mappings of a linear layer or a norm. The bias is skipped if the model has none."""
    return (
        TensorMapping(f"{headway}.weight", tuple(f"{name}.weight" for name in hf), transposed),
        TensorMapping(f"{headway}.bias", tuple(f"{name}.bias" for name in hf)),
    )


@dataclass(frozen=True)
class Layout:
    model_type: str  # in config.json
    architecture: str  # the transformers class, in config.json
    prefix: str  # of the tensor names; published files may omit it
    tensors: tuple[TensorMapping, ...]
    config_to_hf: Callable[[Any], dict[str, Any] | None]  # None: this layout cannot express the config
    config_from_hf: Callable[[Mapping[str, Any]], ModelConfig]
    ignored_suffixes: tuple[str, ...]  # buffers and copies of tied matrices, which need no loading
    ignored_prefixes: tuple[str, ...] = ()  # heads on top of the encoder, which are not loaded
    optional: tuple[str, ...] = ()  # Headway tensors that a checkpoint may lack; they become zeros
    aliases: Mapping[str, str] = field(default_factory=dict)  # transformers name → second name of the same tensor
    must_be_zero: tuple[str, ...] = ()  # transformers tensors without a counterpart in Headway
    tensor_to_hf: Callable[[str, Tensor, int], Tensor] | None = None  # (Headway name, tensor, d_model) → tensor
    tensor_from_hf: Callable[[str, Tensor, int], Tensor] | None = None  # the inverse of `tensor_to_hf`
    extra_tensors: Callable[[Any], dict[str, Tensor]] | None = None  # stored by transformers, computed by Headway
    also_loads: tuple[str, ...] = ()  # transformers classes whose files differ by heads that are not loaded

    def to_hf(self, config: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Headway's tensors under the names, and in the form, that transformers reads."""
        hf_tensors: dict[str, Tensor] = {}
        unmapped = set(tensors)
        for mapping in self._per_layer(config):
            if mapping.headway not in tensors:
                continue
            unmapped.remove(mapping.headway)
            tensor = tensors[mapping.headway]
            if self.tensor_to_hf is not None:
                tensor = self.tensor_to_hf(mapping.headway, tensor, config.d_model)
            if mapping.transposed:
                tensor = tensor.T
            row_counts = _row_counts(mapping, config)
            parts = tensor.split(row_counts) if row_counts else (tensor,)
            for name, part in zip(mapping.hf, parts, strict=True):
                hf_tensors[name] = part.contiguous()
                if name in self.aliases:
                    hf_tensors[self.aliases[name]] = hf_tensors[name]
        assert not unmapped, f"no mapping in the {self.model_type} layout for {sorted(unmapped)}"
        if self.extra_tensors is not None:
            hf_tensors |= self.extra_tensors(config)
        return hf_tensors

    def rows(self, config: StackConfig) -> dict[str, dict[str, slice]]:
        """Headway name → the transformers tensors it is made of, and the rows of each in it."""
        table = {}
        for mapping in self._per_layer(config):
            ends = list(accumulate(_row_counts(mapping, config) or []))
            slices = [slice(*ends) for ends in pairwise([0, *ends])] or [slice(None)]
            table[mapping.headway] = dict(zip(mapping.hf, slices, strict=True))
        return table

    def from_hf(
        self, config: StackConfig, hf_tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Headway's tensors out of a transformers checkpoint.

        `expected`, the model's state dict, says which tensors the model has and what shapes they have.
        """
        hf_tensors = self._canonical_names(hf_tensors)
        tensors: dict[str, Tensor] = {}
        used: set[str] = set()
        for mapping in self._per_layer(config):
            if mapping.headway not in expected:
                used.update(mapping.hf)  # the output matrix of a model with tied embeddings, say
                continue
            missing = [name for name in mapping.hf if name not in hf_tensors]
            if missing and mapping.headway in self.optional:
                tensors[mapping.headway] = torch.zeros_like(expected[mapping.headway], device="cpu")
                continue
            if missing:
                raise CheckpointError(
                    f"missing tensor {missing[0]!r} in the checkpoint: a {self.model_type} model with this "
                    f"config.json needs it"
                )
            tensor = _join(mapping, config, hf_tensors, expected[mapping.headway].shape)
            if self.tensor_from_hf is not None:
                tensor = self.tensor_from_hf(mapping.headway, tensor, config.d_model)
            tensors[mapping.headway] = tensor
            used.update(mapping.hf)
        self._check_all_used(hf_tensors, used)
        return tensors

    def _canonical_names(self, hf_tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Undo what differs from file to file: old names of norms, aliases, a missing prefix, unused zeros."""
        canonical = {_modern_norm_name(name): tensor for name, tensor in hf_tensors.items()}
        for name, alias in self.aliases.items():
            if (copy := canonical.pop(alias, None)) is not None:
                canonical.setdefault(name, copy)
        if not any(name.startswith(self.prefix) for name in canonical):
            canonical = {n if n.startswith("lm_head") else self.prefix + n: tensor for n, tensor in canonical.items()}
        for name in self.must_be_zero:
            if (tensor := canonical.pop(name, None)) is not None and tensor.any():
                raise CheckpointError(
                    f"{name!r} is not all zeros, and Headway's model has no such tensor: only checkpoints in which it "
                    f"is zero can be loaded"
                )
        return canonical

    def _check_all_used(self, hf_tensors: Mapping[str, Tensor], used: set[str]) -> None:
        """An unknown tensor is an error: the model would silently compute something else without it."""
        unexpected = [
            name
            for name in hf_tensors
            if name not in used and not name.endswith(self.ignored_suffixes)
            if not name.startswith(self.ignored_prefixes)
        ]
        if unexpected:
            raise CheckpointError(
                f"unexpected tensor {unexpected[0]!r} in the checkpoint (and {len(unexpected) - 1} more): a "
                f"{self.model_type} model with this config.json lacks it; does config.json belong to another model?"
            )

    def _per_layer(self, config: Any) -> Iterator[TensorMapping]:
        """The table with `{i}` filled in, for every layer of the side (encoder, decoder) that the name begins with."""
        for mapping in self.tensors:
            side = mapping.headway.split(".")[0]
            n_layers = getattr(config, f"n_{side}_layers", config.n_layers)
            for i in range(n_layers) if "{i}" in mapping.headway else (0,):
                hf_names = tuple(name.format(i=i) for name in mapping.hf)
                yield TensorMapping(mapping.headway.format(i=i), hf_names, mapping.transposed)


def _join(mapping: TensorMapping, config: StackConfig, hf_tensors: Mapping[str, Tensor], shape: torch.Size) -> Tensor:
    """One Headway tensor of this shape out of its transformers parts, each of which must have its right shape."""
    parts = [hf_tensors[name].T if mapping.transposed else hf_tensors[name] for name in mapping.hf]
    row_counts = _row_counts(mapping, config) or [shape[0]]
    for name, part, n_rows in zip(mapping.hf, parts, row_counts, strict=True):
        part_shape = (n_rows, *shape[1:])
        if part.shape != part_shape:
            raise CheckpointError(
                f"{name!r} has shape {tuple(hf_tensors[name].shape)} where config.json asks for "
                f"{part_shape[::-1] if mapping.transposed else part_shape}: config.json and the weights do not agree"
            )
    return torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()


def _row_counts(mapping: TensorMapping, c: StackConfig) -> list[int] | None:
    """Rows of the Headway tensor that each transformers tensor takes; None: all of them."""
    if len(mapping.hf) == 3:  # query, key, value
        return [c.n_heads * c.d_head, c.n_kv_heads * c.d_head, c.n_kv_heads * c.d_head]
    if ".kv." in mapping.headway:
        return [c.n_kv_heads * c.d_head, c.n_kv_heads * c.d_head]
    return [c.d_ff, c.d_ff] if len(mapping.hf) == 2 else None  # gate, up


def _modern_norm_name(name: str) -> str:
    """Old checkpoints call a norm's weight and bias γ and β, as Ba et al. 2016 do."""
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name


# ── helpers for the configs ───────────────────────────────────────────────────────────────────────────────────────

ACTIVATION_TO_HF = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new", "relu2": "relu2"}
ACTIVATION_FROM_HF = {hf: headway for headway, hf in ACTIVATION_TO_HF.items()} | {"gelu_pytorch_tanh": "gelu-tanh"}


def has_parts(c: StackConfig, **parts: Any) -> bool:
    """Whether each named setting has this value, or one of this tuple of values."""
    return all(getattr(c, name) in (value if isinstance(value, tuple) else (value,)) for name, value in parts.items())


def has_standard_heads(c: StackConfig) -> bool:
    """Whether every head has its own keys and values, and all heads together are as wide as the model."""
    return c.n_kv_heads == c.n_heads and c.n_heads * c.d_head == c.d_model


def translate(setting: str, value: str, table: Mapping[str, str]) -> str:
    """Headway's word for the value of a setting in config.json."""
    if not isinstance(value, str) or value not in table:
        raise CheckpointError(f"config.json: {setting}={value!r:.80} is not supported; use one of {', '.join(table)}")
    return table[value]


def require(hf_config: Mapping[str, Any], **supported: Any) -> None:
    """Raise if a setting has a value Headway does not implement: ignoring it would silently change the numbers.

    The first supported value is the default of transformers.
    """
    for name, values in supported.items():
        if hf_config.get(name, values[0]) not in values:
            value = f"{hf_config[name]!r:.80}"
            raise CheckpointError(f"config.json: {name}={value} is not supported; only {values[0]!r} is")


def special_ids(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """BOS and EOS ids. transformers writes its defaults even where the vocabulary is smaller: those become None."""

    def id_in_vocabulary(value: Any) -> int | None:
        value = value[0] if isinstance(value, list) and value else value
        return value if type(value) is int and 0 <= value < hf_config["vocab_size"] else None

    return {
        "bos_id": id_in_vocabulary(hf_config.get("bos_token_id")),
        "eos_id": id_in_vocabulary(hf_config.get("eos_token_id")),
    }
