"""A model under test with random inputs, called the same way whether it is a decoder, an encoder-decoder or an encoder.

`Probe` makes the calls and compares their results; the other files of this package say what to call and what must be
equal. A call that raises, and a comparison that fails, become a `Violation`.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from headway.errors import InputError
from headway.nn.masks import padding

ModelKind = Literal["language model", "encoder-decoder", "encoder"]

MIN_LENGTH = 4  # a prompt and three tokens after it
MAX_TOKENS = 1_000_000  # of the random batch
SOURCE_TOKENS = 7
MIN_ATOL = 1e-4  # nats; differences in the order of float32 sums stay below it for logits of order 10
ROUNDINGS = 8  # … and below this many rounding errors of the largest logit, in any precision


class Violation(Exception):  # noqa: N818  (a finding about a model, not an error of the caller)
    """A property that does not hold: what happened, with its numbers, and what to look for."""

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        row: int | None = None,
        position: int | None = None,
        difference: float | None = None,
    ):
        super().__init__(message)
        self.message, self.hint = message, hint
        self.row, self.position, self.difference = row, position, difference


class NotApplicable(Exception):  # noqa: N818
    """A property that this model cannot be checked for, with the reason."""


@dataclass(frozen=True)
class Probe:
    """A model and random inputs for it. Scores are log-probabilities, or the outputs themselves for an encoder."""

    model: Any
    kind: ModelKind
    vocab_size: int
    ids: Tensor  # (B, T)
    lengths: Tensor  # (B,) from 1 to T, different from row to row
    source: Tensor | None  # (B, S), for an encoder-decoder
    source_mask: Tensor | None
    atol: float
    shares_inputs: bool = False  # pass the tensors themselves to the model, not copies

    @property
    def batch_size(self) -> int:
        return self.ids.shape[0]

    @property
    def n_tokens(self) -> int:
        return self.ids.shape[1]

    @property
    def rows(self) -> list[int]:
        return list(range(self.batch_size))

    def other(self, ids: Tensor) -> Tensor:
        """A different token in place of each."""
        return (ids + 1) % self.vocab_size

    def other_padding(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """The ids (B, T) with other tokens beyond the lengths (B,)."""
        return torch.where(padding(lengths, ids.shape[1]), ids, self.other(ids))

    def _given(self, tensor: Tensor) -> Tensor:
        """A copy to pass to the model, which must not change it; the tensor itself where that is checked."""
        return tensor if self.shares_inputs else tensor.clone()

    # ── calls ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def source_inputs(self, rows: Sequence[int] | None) -> dict[str, Any]:
        if self.source is None or self.source_mask is None:
            return {}
        if rows is None:
            return {"source": self._given(self.source), "source_mask": self._given(self.source_mask)}
        index = torch.tensor(list(rows), device=self.source.device)
        return {"source": self.source[index], "source_mask": self.source_mask[index]}

    def output(self, ids: Tensor, lengths: Tensor | None = None, rows: Sequence[int] | None = None) -> Any:
        """What the model returns for these ids, whose rows are the given rows of the probe (all if None)."""
        options = self.source_inputs(rows)
        if lengths is not None:
            is_encoder = self.kind == "encoder"
            options |= {"mask": padding(lengths, ids.shape[1])} if is_encoder else {"lengths": lengths}
        return _call("model", self.model, self._given(ids), **options)

    def forward(self, ids: Tensor, lengths: Tensor | None = None, rows: Sequence[int] | None = None) -> Tensor:
        """Scores (B, T, V); of an encoder (B, T, D), or (B, 1, C) if it gives one vector per text."""
        return self.scores(self.output(ids, lengths, rows), ids.shape[1])

    def start(self, rows: Sequence[int] | None = None, capacity: int | None = None) -> Any:
        options = self.source_inputs(rows) or {"batch_size": self.batch_size if rows is None else len(rows)}
        options |= {} if capacity is None else {"capacity": capacity}
        return _call("start", self.model.start, **options)

    def step(self, ids: Tensor, state: Any, lengths: Tensor | None = None, *, last: bool = False) -> tuple[Tensor, Any]:
        options: dict[str, Any] = ({} if lengths is None else {"lengths": lengths}) | ({"last": True} if last else {})
        result = _call("step", self.model.step, self._given(ids), state, **options)
        if not isinstance(result, tuple) or len(result) != 2:
            raise Violation(f"step returns a {type(result).__name__}", "It must return the pair (logits, state).")
        return self.scores(result[0], ids.shape[1]), result[1]

    def copy(self, state: Any) -> Any:
        return _call("state.copy", state.copy)

    def reorder(self, state: Any, rows: list[int]) -> Any:
        return _call("state.reorder", state.reorder, torch.tensor(rows, device=self.ids.device))

    def steps(self, chunks: Sequence[Tensor], state: Any) -> tuple[Tensor, Any]:
        """The scores of consecutive steps without padding, side by side, and the last state."""
        outputs = []
        for ids in chunks:
            scores, state = self.step(ids, state)
            outputs.append(scores)
        return torch.cat(outputs, dim=1), state

    def scores(self, output: Any, n_tokens: int) -> Tensor:
        if not isinstance(output, Tensor) or output.dim() not in (2, 3):
            shape = f" of shape {tuple(output.shape)}" if isinstance(output, Tensor) else ""
            raise Violation(f"the model returns a {type(output).__name__}{shape}", "It must return a tensor (B, T, V).")
        scores = output.double()
        if self.kind != "encoder":
            return scores.log_softmax(dim=-1)
        if scores.dim() == 2:
            return scores[:, None]
        return scores.transpose(1, 2) if scores.shape[1] != n_tokens == scores.shape[2] else scores  # (B, 2, T): spans

    # ── comparisons ───────────────────────────────────────────────────────────────────────────────────────────────

    def compare(
        self,
        actual: Tensor,
        expected: Tensor,
        what: str,
        hint: str,
        *,
        lengths: Tensor | None = None,
        rows: Sequence[int] | None = None,
        first_position: int = 0,
    ) -> None:
        """Raise a `Violation` that begins with `what` if scores (B, T, V) differ at a real position.

        `rows` and `first_position` say which of the probe's rows and positions the tensors hold, for the message.
        """
        if actual.shape != expected.shape:
            raise Violation(f"{what}: the shapes are {tuple(actual.shape)} and {tuple(expected.shape)}", hint)
        is_equal = (actual == expected) | (actual.isnan() & expected.isnan())  # −inf − −inf is NaN
        difference = torch.where(is_equal, 0.0, (actual - expected).abs()).nan_to_num(nan=torch.inf, posinf=torch.inf)
        difference = difference.amax(dim=-1)  # (B, T)
        if lengths is not None:
            difference = difference.masked_fill(~padding(lengths, difference.shape[1]), 0.0)
        if not (difference > self.atol).any():
            return
        row, position = (int(i) for i in (difference > self.atol).nonzero()[0])
        largest = float(difference.max())
        unit = "" if self.kind == "encoder" else " nats"
        row, position = row if rows is None else rows[row], position + first_position
        message = f"{what} at row {row}, position {position}, by {largest:.2g}{unit} ({self.atol:.0e} allowed)"
        raise Violation(message, hint, row=row, position=position, difference=largest)


def make_probe(model: Any, *, batch_size: int, length: int, atol: float | None, seed: int) -> Probe:
    """Random inputs that fit the model's vocabulary and context."""
    kind, config = kind_of(model), getattr(model, "config", None)
    device, context = _device(model), getattr(config, "context", None)
    n_tokens, n_source = (min(n, context or n) for n in (length, SOURCE_TOKENS))
    if n_tokens < MIN_LENGTH:
        raise InputError(f"a context of {context} tokens is too short to be checked, which takes {MIN_LENGTH}")
    if batch_size * n_tokens > MAX_TOKENS:
        raise InputError(f"{batch_size} rows of {n_tokens} tokens are more than {MAX_TOKENS:,} tokens: check fewer")
    has_source = kind == "encoder-decoder"
    probe = Probe(  # with token 0 everywhere until the vocabulary is known
        model,
        kind,
        vocab_size=1,
        ids=torch.zeros(batch_size, n_tokens, dtype=torch.long, device=device),
        lengths=_ragged(batch_size, n_tokens).to(device),
        source=torch.zeros(batch_size, n_source, dtype=torch.long, device=device) if has_source else None,
        source_mask=padding(_ragged(batch_size, n_source), n_source).to(device) if has_source else None,
        atol=MIN_ATOL if atol is None else atol,
    )
    vocab_size = getattr(config, "vocab_size", None) or probe.forward(probe.ids).shape[-1]
    if vocab_size < 2:
        raise InputError("a vocabulary of 1 token: every text is the same, so there is nothing to check")
    if not 0 <= seed < 2**63:
        raise InputError(f"seed={seed} is not a seed: use a whole number from 0 to 2^63 - 1")
    rng = torch.Generator().manual_seed(seed)
    probe = replace(
        probe,
        vocab_size=vocab_size,
        ids=torch.randint(vocab_size, probe.ids.shape, generator=rng).to(device),
        source=torch.randint(vocab_size, (batch_size, n_source), generator=rng).to(device) if has_source else None,
    )
    return probe if atol is not None else replace(probe, atol=_default_atol(probe))


def _ragged(batch_size: int, n: int) -> Tensor:
    """Lengths (B,) from n to 1, different from row to row."""
    return torch.tensor([(n, n // 2, 1, n - 1)[b % 4] for b in range(batch_size)])


def _default_atol(probe: Probe) -> float:
    try:
        logits = probe.output(probe.ids)
        largest = float(logits.masked_fill(~logits.isfinite(), 0).abs().max())
        return max(MIN_ATOL, ROUNDINGS * torch.finfo(logits.dtype).eps * largest)
    except (Violation, AttributeError, TypeError, RuntimeError):  # the properties will say what is wrong with it
        return MIN_ATOL


def kind_of(model: object) -> ModelKind:
    """What the model is, by the members it has."""
    has_steps = hasattr(model, "start") or hasattr(model, "step")
    if callable(getattr(model, "encode", None)) and has_steps:
        return "encoder-decoder"
    return "encoder" if not has_steps and accepts(forward_function(model), "mask") else "language model"


def forward_function(model: object) -> Callable[..., Any] | None:
    """What runs when the model is called: `forward` of an nn.Module, whose `__call__` takes anything."""
    if isinstance(model, nn.Module):
        return None if type(model).forward is nn.Module.forward else model.forward
    return model if callable(model) else None


def accepts(function: Callable[..., Any] | None, name: str) -> bool:
    """Whether the function has a parameter of this name, or takes any keyword."""
    if function is None:
        return False
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C: it has no signature, so it cannot be known
        return True
    return name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _device(model: object) -> torch.device:
    device = getattr(model, "device", None)
    if device is not None:
        return torch.device(device)
    parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if parameter is None else parameter.device


def _call(name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call the model; an exception becomes a `Violation` that shows the call."""
    try:
        return function(*args, **options)
    except Exception as error:
        shown = [_shown(arg) for arg in args] + [f"{key}={_shown(value)}" for key, value in options.items()]
        lines = str(error).strip().splitlines() or ["no message"]
        raise Violation(f"{name}({', '.join(shown)}) raises {type(error).__name__}: {lines[0]}") from error


def _shown(value: object) -> str:
    """A short form of an argument: the shape of ids, the values of lengths."""
    if not isinstance(value, Tensor):
        return repr(value) if isinstance(value, int | None) else type(value).__name__
    return str(value.tolist()) if value.dim() == 1 else "×".join(map(str, value.shape))
