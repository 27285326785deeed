"""Models of any class: whatever has `__call__`, `start` and `step` generates, scores and is searched like a built-in.

`language_model` accepts an object that keeps the contract of base.py, and fills in what it leaves out: `device`,
`context` and `eos_id` of its config, the `last` argument of `step`.
"""

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headway.errors import InputError
from headway.models.base import LanguageModel, Seq2SeqLM, described, last_real, tokenizer_of
from headway.models.bert import BERT, MaskedLM
from headway.models.heads import Classifier, SpanReader, Tagger

MEMBERS = ("__call__", "start", "step")
CONFIG_DEFAULTS = {"context": None, "bos_id": None, "eos_id": None}
ENCODER_PURPOSES: dict[type, str] = {
    MaskedLM: "predicts masked tokens (`headway fill` uses it)",
    BERT: "encodes text",
    Classifier: "labels texts (`headway classify` uses it)",
    Tagger: "tags words (`headway tag` uses it)",
    SpanReader: "finds answers in texts (`headway answer` uses it)",
}


def missing_members(model: object) -> list[str]:
    """The methods of the contract that a model lacks; generation and scoring need all of them."""
    return [name for name in MEMBERS if not callable(getattr(model, name, None))]


def refuse_path(model: object) -> None:
    """Raise an `InputError` if this is the path of a model, where a loaded model is needed."""
    if isinstance(model, str | Path):
        raise InputError(f"{str(model)!r} is a path: pass headway.load({str(model)!r})")


def language_model(model: object) -> LanguageModel:
    """Return the model as a `LanguageModel`; raise an `InputError` that says why it is none."""
    refuse_path(model)
    missing = missing_members(model)
    if isinstance(model, Seq2SeqLM) or (callable(getattr(model, "encode", None)) and not missing):
        raise InputError(
            f"{type(model).__name__} is a sequence-to-sequence model, which needs a source text: use "
            f"`headway translate` (headway.translate in Python), or a language model such as gpt or ngram"
        )
    for encoder, purpose in ENCODER_PURPOSES.items():
        if missing and isinstance(model, encoder):
            raise InputError(
                f"{described(model)} {purpose} and does not continue text: use a language model such as gpt"
            )
    if missing:
        names = ", ".join(f"`{name}`" for name in missing)
        raise InputError(
            f"{type(model).__name__} is not a language model: it has no {names}. A language model predicts the next "
            f"token by model(ids, lengths), model.start(…) and model.step(…): see docs/contract.md"
        )
    if isinstance(model, LanguageModel) and not _incomplete_config(model.config) and _takes_last(model):
        return model
    return AdaptedLM(model)


class AdaptedLM(nn.Module):
    """A model of another class, with the optional members of the contract filled in."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model  # a submodule, if it is a module: eval() and train() reach it
        self.training = isinstance(model, nn.Module) and model.training
        self.tokenizer = tokenizer_of(model)
        self.config = _AdaptedConfig(getattr(model, "config", None), self._vocab_size)

    @property
    def device(self) -> torch.device:
        if (device := getattr(self.model, "device", None)) is not None:
            return torch.device(device)
        parameters = self.model.parameters() if isinstance(self.model, nn.Module) else iter(())
        return next((p.device for p in parameters), torch.device("cpu"))

    def _vocab_size(self) -> int:
        """The width of the logits, where the config does not say."""
        with torch.no_grad():
            return int(self.model(torch.zeros(1, 1, dtype=torch.long, device=self.device)).shape[-1])

    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.model(ids) if lengths is None else self.model(ids, lengths)

    def start(self, batch_size: int = 1, capacity: int | None = None) -> Any:
        takes_capacity = _takes(self.model.start, "capacity")
        return self.model.start(batch_size=batch_size, **({"capacity": capacity} if takes_capacity else {}))

    def step(self, ids: Tensor, state: Any, lengths: Tensor | None = None, *, last: bool = False) -> tuple[Tensor, Any]:
        with torch.no_grad():
            logits, state = self.model.step(ids, state, *([] if lengths is None else [lengths]))
        return (last_real(logits, lengths) if last else logits), state


class _AdaptedConfig:
    """The config of a foreign model, with defaults for what it does not have."""

    def __init__(self, config: Any, vocab_size: Any):
        self._config, self._count_vocab = config, vocab_size

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name == "vocab_size" and not hasattr(self._config, "vocab_size"):
            return self._count_vocab()
        return getattr(self._config, name, *([CONFIG_DEFAULTS[name]] if name in CONFIG_DEFAULTS else []))


def _incomplete_config(config: object) -> bool:
    return not all(hasattr(config, name) for name in ("vocab_size", *CONFIG_DEFAULTS))


def _takes_last(model: LanguageModel) -> bool:
    return _takes(model.step, "last") and _takes(model.start, "capacity")


def _takes(function: Any, name: str) -> bool:
    """Whether a function has a parameter of this name, or takes any."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return True
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
