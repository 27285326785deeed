"""Start a model from the weights of another: take every tensor that matches, initialise the rest, say which is which.

    transfer = take_weights(model, "minilm")
    print(transfer.summary)          # 101 of 103 tensors from minilm; new: output.weight, output.bias

An encoder with a head holds the encoder under `encoder.`; a bare encoder does not. Both forms match each other. A head
is taken if the other model has one of the same class with the same labels, in whatever order; one with other labels is
an error, unless the caller wants a new head.
"""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from headway.config import ModelConfig, NGramConfig
from headway.errors import ConfigError, count, with_article
from headway.file_reading import read_json
from headway.files import file_digest
from headway.installed_files import INSTALLED_MODELS
from headway.models.base import Model
from headway.models.config_json import describe_model
from headway.models.heads import Classifier, Tagger
from headway.models.registry import empty_model
from headway.models.serialization import SHARDS, find_model, load
from headway.tokenizers import Tokenizer
from headway.tokenizers.loading import load_tokenizer, tokenizer_file

ENCODER = "encoder."  # prefix of the encoder's tensors in a model with a head
MAX_NAMES = 4  # of tensors in a message
PROBES = ("It's  NAÏVE, isn't it?\n", "schön für 2,000 Cafés", "北京 city", " a\tb ")  # that tokenizers should agree on
N_PROBE_WORDS, MIN_PROBE_LETTERS = 50, 3
# Settings that may differ from those of the weights: they change neither shapes nor what the weights compute.
FREE_SETTINGS = frozenset({
    "dropout", "input_dropout", "hidden_dropout", "embedding_dropout", "weight_drop", "variational_dropout",
    "labels", "multi_label", "bos_id", "eos_id",
})  # fmt: skip


def absolute_source(source: str) -> str:
    """The source as a path that is valid from any working directory, also if it is gone; the name of an installed model
    stays."""
    return source if source in INSTALLED_MODELS and not os.path.exists(source) else os.path.abspath(source)


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
    if isinstance(config, NGramConfig):
        raise ConfigError(
            f"model.init_from={source!r} is an n-gram, which is fitted in one pass and has no weights to start from: "
            f"leave it out, and train on both texts (data.mix)",
            setting="model.init_from",
        )
    own = msgspec.to_builtins(config)
    changes: dict[str, Any] = {name: getattr(given, name) for name in settings if getattr(given, name) is not None}
    for name, value in changes.items():
        if name not in FREE_SETTINGS and msgspec.to_builtins(value) != own[name] and not _is_free(name, value, config):
            raise ConfigError(
                f"model.{name}={value}, but the weights of {source} have {name}={own[name]}: leave it out, or train "
                f"from random weights, without model.init_from",
                setting=f"model.{name}",
            )
    if "dropout" in changes:  # where the others follow it, they still do
        follow = [name for name in ("input_dropout", "hidden_dropout") if own.get(name) == own["dropout"]]
        changes = dict.fromkeys(follow) | changes
    return config.replace(**changes).resolved()


def _is_free(name: str, value: Any, config: ModelConfig) -> bool:
    """Whether a setting is the context of a model whose weights do not depend on it, such as a GPT with rotary
    positions or a BiLSTM."""
    if name != "context":
        return False
    shapes = [
        {key: tensor.shape for key, tensor in empty_model(c).state_dict().items()}
        for c in (config, config.replace(context=value))
    ]
    return shapes[0] == shapes[1]


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
        _check_same_ids(source, tokenizer, own)
        return
    both = tokenizer.vocab.keys() & own.vocab.keys()  # tokens that only one side has come first
    differing = min(tokenizer.vocab.items() ^ own.vocab.items(), key=lambda item: (item[0] in both, item[1], item[0]))
    raise ConfigError(
        f"the tokenizer has {tokenizer.vocab_size:,} tokens, that of {source} has {own.vocab_size:,}; the first that "
        f"differs is {differing[0]!r}: leave tokenizer.path out to use the tokenizer of {source}"
    )


def _check_same_ids(source: str, tokenizer: Tokenizer, own: Tokenizer) -> None:
    """Refuse a tokenizer of the same vocabulary that splits or changes text in another way, such as a cased one."""
    words = sorted(token for token in own.vocab if token.isalpha() and len(token) > MIN_PROBE_LETTERS)[:N_PROBE_WORDS]
    for probe in (*PROBES, *words, *(word.title() for word in words)):
        if tokenizer.encode(probe) != own.encode(probe):
            raise ConfigError(
                f"the tokenizer has the tokens of {source}, but encodes {probe!r} in another way: "
                f"{tokenizer.encode(probe)}, not {own.encode(probe)}; leave tokenizer.path out to use that of {source}"
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
    if other.config.family != model.config.family:
        raise ConfigError(f"{source} is {with_article(other.config.family)}, not {with_article(model.config.family)}")
    takes_head = type(other) is type(model) and not new_head
    if takes_head:
        _check_same_labels(model, other, str(source))
    own, theirs = _by_part(model), _without_lost_pooler(_by_part(other))
    taken = [part for part in own if part in theirs and (takes_head or not part.is_head)]
    for part in taken:
        tensor = _with_labels_of(model, other, theirs[part].tensor) if part.is_head else theirs[part].tensor
        if own[part].tensor.shape != tensor.shape:
            raise ConfigError(
                f"{own[part].name!r} has shape {tuple(own[part].tensor.shape)} in this model and {tuple(tensor.shape)} "
                f"in {source}: the two must have the same sizes and vocabulary"
            )
        own[part].tensor.copy_(tensor)
    return WeightTransfer(
        str(source),
        _weights_digest(folder),
        taken=[own[part].name for part in taken],
        new=[named.name for part, named in own.items() if part not in taken],
        unused=[named.name for part, named in theirs.items() if part not in taken],
    )


class Part(NamedTuple):
    """A tensor of an encoder or of the head on it, by its name there. Both may have a `norm`."""

    is_head: bool
    name: str


class NamedTensor(NamedTuple):
    name: str  # in the state dict
    tensor: Tensor


def _by_part(model: Model) -> dict[Part, NamedTensor]:
    """Every tensor of a model. One without a head, such as a GPT, is all encoder."""
    has_head = hasattr(model, "encoder") and not hasattr(model, "decoder")
    return {
        Part(has_head and not name.startswith(ENCODER), name.removeprefix(ENCODER) if has_head else name): NamedTensor(
            name, tensor
        )
        for name, tensor in model.state_dict().items()
    }


def _without_lost_pooler(tensors: dict[Part, NamedTensor]) -> dict[Part, NamedTensor]:
    """All tensors but a pooler of zeros, which stands for one that the checkpoint did not hold (hf/bert.py)."""
    pooler = {part for part in tensors if not part.is_head and part.name.startswith("pooler.")}
    is_lost = not any(bool(tensors[part].tensor.any()) for part in pooler)
    return {part: named for part, named in tensors.items() if part not in pooler or not is_lost}


def _weights_digest(folder: Path) -> str:
    """One hash of all files of weights."""
    files = [*folder.glob("model*.safetensors"), *(folder / SHARDS).glob("*.safetensors")]
    digests = [file_digest(file) for file in sorted(files)]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def _check_same_labels(model: Model, other: Model, source: str) -> None:
    """Refuse a head with other labels; their order may differ."""
    if not isinstance(model, Classifier | Tagger) or not isinstance(other, Classifier | Tagger):
        return
    own, theirs = model.config.labels, other.config.labels
    way_out = "set model.new_head=true to start from its encoder only"
    if sorted(own) != sorted(theirs):  # those that differ come first
        raise ConfigError(
            f"the head of {source} has the labels {_listed(sorted(theirs, key=own.__contains__))}, the data has "
            f"{_listed(sorted(own, key=theirs.__contains__))}: {way_out}"
        )
    if isinstance(model, Classifier) and model.config.multi_label != other.config.multi_label:
        numbers = ["any number of labels" if m.config.multi_label else "one label" for m in (other, model)]
        raise ConfigError(f"the head of {source} gives a text {numbers[0]}, the data {numbers[1]}: {way_out}")


def _with_labels_of(model: Model, other: Model, tensor: Tensor) -> Tensor:
    """A tensor of the other model's head, with its rows in the order of the model's labels."""
    if not isinstance(model, Classifier | Tagger) or not isinstance(other, Classifier | Tagger):
        return tensor
    return tensor[[other.config.labels.index(label) for label in model.config.labels]]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more
