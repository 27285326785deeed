"""Start a model from the weights of another: take every tensor that matches, initialise the rest, say which is which.

    transfer = take_weights(model, "minilm")
    print(transfer.summary)          # 101 of 103 tensors from minilm; new: output.weight, output.bias

An encoder with a head holds the encoder under `encoder.`; a bare encoder does not. Both forms match each other. A head
is taken if the other model has one of the same class with the same labels; one with other labels is an error, unless
the caller wants a new head.
"""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from headway.config import ModelConfig
from headway.errors import ConfigError, count, with_article
from headway.file_reading import read_json
from headway.files import file_digest
from headway.models.base import Model
from headway.models.config_json import describe_model
from headway.models.serialization import SHARDS, find_model, load
from headway.tokenizers import Tokenizer
from headway.tokenizers.loading import load_tokenizer, tokenizer_file

ENCODER = "encoder."  # prefix of the encoder's tensors in a model with a head
MAX_NAMES = 4  # of tensors in a message
# Settings that may differ from those of the weights: they change neither shapes nor what the weights compute.
FREE_SETTINGS = frozenset({
    "dropout", "input_dropout", "hidden_dropout", "embedding_dropout", "weight_drop", "variational_dropout",
    "labels", "multi_label", "bos_id", "eos_id",
})  # fmt: skip


def absolute_source(source: str) -> str:
    """The source as a path that is valid from any working directory; the name of an installed model stays."""
    return os.path.abspath(source) if os.path.exists(source) else source


def source_config(source: str | Path) -> ModelConfig:
    """The config of the model at `source`: a directory, a run's best checkpoint, or an installed model."""
    file = find_model(source) / "config.json"
    return describe_model(read_json(file), file).config.resolved()


def source_tokenizer(source: str | Path) -> Tokenizer | None:
    """The tokenizer of the model at `source`, if it has one."""
    folder = find_model(source)
    return load_tokenizer(folder) if tokenizer_file(folder) else None


def merged_config(source: str, given: ModelConfig, settings: list[str]) -> ModelConfig:
    """The config of the weights at `source` with the `settings` of `given`, which may not change what they compute."""
    config = source_config(source)
    if given.family != config.family:
        raise ConfigError(
            f"model.family={given.family!r}, but {source} is {with_article(config.family)}: leave model.family out, or "
            f"start from {with_article(given.family)}",
            setting="model.family",
        )
    own = msgspec.to_builtins(config)
    changes: dict[str, Any] = {name: getattr(given, name) for name in settings if getattr(given, name) is not None}
    for name, value in changes.items():
        if name not in FREE_SETTINGS and msgspec.to_builtins(value) != own[name]:
            raise ConfigError(
                f"model.{name}={value}, but the weights of {source} have {name}={own[name]}: leave it out, or train "
                f"from random weights, without model.init_from",
                setting=f"model.{name}",
            )
    return config.replace(**changes).resolved()


def check_same_vocabulary(source: str, tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer whose ids mean something else than those of the weights."""
    own = source_tokenizer(source)
    n_tokens = source_config(source).vocab_size
    if own is None:
        if tokenizer.vocab_size > n_tokens:
            raise ConfigError(
                f"the tokenizer has {tokenizer.vocab_size:,} tokens, the weights of {source} have {n_tokens:,}: give "
                f"the tokenizer that they were trained with, tokenizer.path=PATH"
            )
        return
    if tokenizer.vocab == own.vocab:
        return
    differing = sorted(tokenizer.vocab.items() ^ own.vocab.items(), key=lambda item: (item[1], item[0]))
    raise ConfigError(
        f"the tokenizer has {tokenizer.vocab_size:,} tokens, that of {source} has {own.vocab_size:,}; the first that "
        f"differs is {differing[0][0]!r}: leave tokenizer.path out to use the tokenizer of {source}"
    )


@dataclass(frozen=True)
class WeightTransfer:
    """Which tensors a model took from another, by name."""

    source: str
    digest: str  # SHA-256 of the file of weights, or of the digests of its parts
    taken: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)  # initialised at random
    unused: list[str] = field(default_factory=list)  # of the other model

    @property
    def summary(self) -> str:
        parts = [f"{len(self.taken)} of {count(len(self.taken) + len(self.new), 'tensor')} from {self.source}"]
        parts += [f"new: {_listed(self.new)}"] * bool(self.new)
        parts += [f"not used: {_listed(self.unused)}"] * bool(self.unused)
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        lists = {"new": self.new, "unused": self.unused}
        return {"init_from": self.source, "sha256": self.digest, "taken": len(self.taken), **lists}


@torch.no_grad()
def take_weights(model: Model, source: str | Path, *, new_head: bool = False) -> WeightTransfer:
    """Copy into `model` every tensor of the model at `source` that matches."""
    folder = find_model(source)
    other = load(folder)
    is_same_head = type(other) is type(model) and hasattr(model, "encoder")
    if is_same_head and not new_head:
        _check_same_labels(model, other, str(source))
    skips_head = not is_same_head or new_head
    own, theirs = (_by_part(m) for m in (model, other))
    taken, new = [], []
    for name, (is_head, tensor) in own.items():
        match = theirs.get(name)
        if match is None or (is_head and skips_head) or match[0] != is_head or _is_lost_pooler(name, match[1]):
            new.append(name)
            continue
        if match[1].shape != tensor.shape:
            raise ConfigError(
                f"{name!r} has shape {tuple(tensor.shape)} in this model and {tuple(match[1].shape)} in {source}: the "
                f"two must have the same sizes and vocabulary"
            )
        tensor.copy_(match[1])
        taken.append(name)
    unused = [name for name in theirs if name not in taken]
    return WeightTransfer(str(source), _weights_digest(folder), taken, new, unused)


def _by_part(model: Model) -> dict[str, tuple[bool, Tensor]]:
    """Every tensor by its name in the bare encoder, or in the head, and whether it is part of a head."""
    has_head = hasattr(model, "encoder") and not hasattr(model, "decoder")
    return {
        name.removeprefix(ENCODER) if has_head else name: (has_head and not name.startswith(ENCODER), tensor)
        for name, tensor in model.state_dict().items()
    }


def _weights_digest(folder: Path) -> str:
    """One hash of all files of weights."""
    files = [*folder.glob("model*.safetensors"), *(folder / SHARDS).glob("*.safetensors")]
    digests = [file_digest(file) for file in sorted(files)]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def _is_lost_pooler(name: str, tensor: Tensor) -> bool:
    """Whether a pooler is the zeros that stand for one that the checkpoint did not hold (hf/bert.py)."""
    return name.startswith("pooler.") and not bool(tensor.any())


def _check_same_labels(model: Model, other: Model, source: str) -> None:
    own, theirs = (getattr(m.config, "labels", []) for m in (model, other))
    if own != theirs:
        raise ConfigError(
            f"the head of {source} has the labels {_listed(theirs)}, the data has {_listed(own)}: set "
            f"model.new_head=true to start from its encoder only"
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
