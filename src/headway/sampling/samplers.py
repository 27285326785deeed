"""SAMPLERS: a function for every entry of the table in specs.py, and samplers bound to their values.

The functions live in constraints.py, penalties.py, filters.py and reshaping.py. This module says what else each of them
needs: the history, a uniform number, Mirostat's mu.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headway.errors import ConfigError, suggest
from headway.sampling import constraints, filters, penalties, reshaping
from headway.sampling.columns import to_column
from headway.sampling.drawing import GREEDY_BELOW
from headway.sampling.history import History
from headway.sampling.parameters import Parameter
from headway.sampling.specs import SAMPLER_SPECS, SamplerSpec, load_declared_sampler

Values = dict[str, list[Any]]  # parameter → one value for all rows, or one per row


@dataclass(frozen=True)
class Sampler:
    """A pure function `sampler(logits, **parameters)` → logits, both (B, V); `spec` describes it."""

    function: Callable[..., Tensor]
    needs: tuple[str, ...] = ()  # further arguments: history, uniform, mu, vocab_size, ids
    hints: Mapping[str, Callable[[Values], Any]] = field(default_factory=dict)  # arguments computed on the host
    by_id: bool = False  # columns must be token ids, so it cannot run on a subset of the vocabulary
    registered_name: str = ""  # of a sampler added by `headway.register`

    @property
    def name(self) -> str:
        return self.registered_name or self.function.__name__

    @property
    def is_capturable(self) -> bool:
        """Whether it may run in a CUDA graph: the built-in ones never wait for the device."""
        return not self.registered_name

    @property
    def spec(self) -> SamplerSpec:
        return SAMPLER_SPECS[self.name]

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return self.spec.parameters

    @property
    def group(self) -> str:
        return self.spec.group

    def __call__(self, logits: Tensor, *positional: Any, **keywords: Any) -> Tensor:
        """Parameters by position or name; `history`, `n_prompt`, `uniforms`, `mu` as in `Pipeline.apply`."""
        from headway.sampling.pipeline import Pipeline

        if len(positional) > len(self.parameters):
            raise ConfigError(
                f"{self.name} takes {len(self.parameters)} parameters ({', '.join(self.parameters)}), "
                f"but got {len(positional)} values"
            )
        context = {name: keywords.pop(name) for name in ("history", "n_prompt", "uniforms", "mu") if name in keywords}
        values = dict(zip(self.parameters, positional, strict=False))
        return Pipeline([{"stage": self.name, **values, **keywords}]).apply(logits, **context)


@dataclass(frozen=True)
class SamplerContext:
    """What a sampler may use besides the logits."""

    history: History
    uniform: Tensor | None  # (B, 1) decides whether xtc acts
    mu: Tensor | None  # (B, 1) Mirostat's state
    vocab_size: int


@dataclass
class BoundSampler:
    """A sampler with its values. `on` marks the rows it acts on (None: all); `columns` caches tensors per device."""

    sampler: Sampler
    values: Values
    on: list[bool] | None = None
    columns: dict[torch.device, dict[str, Any]] = field(default_factory=dict)

    @staticmethod
    def of(name: str, config: Mapping[str, Any]) -> "BoundSampler":
        """The named sampler with these values, checked; parameters left out take their defaults."""
        if isinstance(name, str) and name not in SAMPLERS:
            load_declared_sampler(name)
        if not isinstance(name, str) or name not in SAMPLERS:
            raise ConfigError(
                f"no sampler named {name!r}.{suggest(str(name), SAMPLERS)} "
                f"`headway generate --help-samplers` shows them all."
            )
        sampler = SAMPLERS[name]
        bound = BoundSampler(sampler, sampler.spec.parse(config))
        rows = [bound.row(i) for i in range(bound.n_rows or 1)]
        on = [not sampler.spec.is_off(row) for row in rows]
        bound.on = None if all(on) else on
        if name == "dynamic_temperature":
            for row in rows:
                if row["low"] > row["high"]:
                    raise ConfigError(
                        f"dynamic_temperature_low={row['low']:g} is above dynamic_temperature_high={row['high']:g}: "
                        f"low must be at most high"
                    )
        return bound

    @property
    def name(self) -> str:
        return self.sampler.name

    @property
    def n_rows(self) -> int | None:
        """The number of rows that the values are for; None if all rows share them."""
        counts = {len(rows) for rows in self.values.values() if len(rows) > 1}
        if self.on is not None and len(self.on) > 1:
            counts.add(len(self.on))
        return max(counts, default=None)

    @property
    def is_off(self) -> bool:
        return self.on is not None and not any(self.on)

    def select(self, rows: Sequence[int]) -> "BoundSampler":
        """The sampler for these rows of the batch, in this order."""
        values = {
            name: [column[i] for i in rows] if len(column) > 1 else column for name, column in self.values.items()
        }
        on = [self.on[i] for i in rows] if self.on is not None and len(self.on) > 1 else self.on
        return BoundSampler(self.sampler, values, None if on is None or all(on) else on)

    def row(self, i: int) -> dict[str, Any]:
        return {name: rows[i if len(rows) > 1 else 0] for name, rows in self.values.items()}

    def largest(self, name: str) -> Any:
        return max(self.values[name])

    def __call__(self, l: Tensor, context: SamplerContext, ids: Tensor | None = None) -> Tensor:
        """Apply the sampler; rows it is off for stay unchanged. `ids` (B, N): the token of each column, if a subset."""
        columns = self.on_device(l.device)
        extra = {"ids": ids} if "ids" in self.sampler.needs else {}
        extra |= {name: getattr(context, name) for name in self.sampler.needs if name != "ids"}
        extra |= {name: hint(self.values) for name, hint in self.sampler.hints.items()}
        parameters = {name: columns[name] for name in self.values}
        if "min_keep" in self.values and len(self.values["min_keep"]) == 1:
            parameters["min_keep"] = self.values["min_keep"][0]  # an int: nearly always 1, which costs nothing
        result = self.sampler.function(l, **parameters, **extra)
        return result if self.on is None else torch.where(columns["on"], result, l.to(result.dtype))

    def on_device(self, device: torch.device) -> dict[str, Any]:
        """The parameters as columns; also `on` (B, 1) if some rows are off."""
        if device not in self.columns:
            with torch.inference_mode(False):  # the columns outlive this call
                columns: dict[str, Any] = {
                    name: to_column(self.sampler.parameters[name], rows, device) for name, rows in self.values.items()
                }
                if self.on is not None:
                    columns["on"] = torch.tensor(self.on, device=device)[:, None]
            self.columns[device] = columns
        return self.columns[device]


SAMPLERS: dict[str, Sampler] = {
    sampler.name: sampler
    for sampler in (
        Sampler(constraints.logit_bias, by_id=True),
        Sampler(
            constraints.no_repeat_ngram,
            needs=("history",),
            hints={"max_n": lambda values: max(values["n"])},
            by_id=True,
        ),
        Sampler(constraints.min_new_tokens, needs=("history",), by_id=True),
        Sampler(penalties.repetition_penalty, needs=("history",), by_id=True),
        Sampler(penalties.frequency_penalty, needs=("history",), by_id=True),
        Sampler(penalties.presence_penalty, needs=("history",), by_id=True),
        Sampler(penalties.dry, needs=("history",), by_id=True),
        Sampler(filters.top_n_sigma),
        Sampler(filters.top_k),
        Sampler(filters.typical),
        Sampler(filters.tail_free),
        Sampler(filters.top_a),
        Sampler(filters.eta_cutoff),
        Sampler(filters.epsilon_cutoff),
        Sampler(filters.top_p),
        Sampler(filters.min_p),
        Sampler(filters.xtc, needs=("uniform", "vocab_size", "ids")),
        Sampler(reshaping.quadratic),
        Sampler(reshaping.dynamic_temperature),
        Sampler(
            reshaping.temperature,
            hints={"no_greedy_rows": lambda values: min(values["temperature"]) >= GREEDY_BELOW},
        ),
        Sampler(
            filters.mirostat_v1,
            needs=("mu", "vocab_size"),
            hints={"max_m": lambda values: max(values["m"])},
        ),
        Sampler(filters.mirostat_v2, needs=("mu",)),
    )
}
