"""Every stage there is: what it does, what it may be told, and the order of the two presets.

The functions are in reshape.py, penalties.py, constraints.py and filters.py; here is what surrounds each: its
parameters with their ranges, its off value, and what of the row's surroundings it looks at.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headway.errors import ConfigError, suggest
from headway.sampling import constraints, filters, penalties
from headway.sampling import reshaping as reshape
from headway.sampling.drawing import GREEDY_BELOW
from headway.sampling.history import History
from headway.sampling.parameters import (
    BiasParam,
    IntParam,
    NumberParam,
    Parameter,
    ScopeParam,
    TokenIdsParam,
    parse_values,
)

Values = dict[str, list[Any]]  # of each parameter: one value, or one per row


@dataclass(frozen=True)
class Sampler:
    """A stage as a pure function: `stage(logits, **parameters)` → logits, (B, V) both."""

    function: Callable[..., Tensor]
    summary: str
    parameters: Mapping[str, Parameter]
    group: str  # "constraint", "penalty", "filter", "reshape" or "mirostat"
    is_off: Callable[[dict[str, Any]], bool]  # of one row's values
    needs: tuple[str, ...] = ()  # history, uniform, mu, ids, vocab_size: what the function is given besides
    hints: Mapping[str, Callable[[Values], Any]] = field(default_factory=dict)  # what the host knows of all values
    by_id: bool = False  # columns must be token ids: it cannot work on some of the vocabulary

    @property
    def name(self) -> str:
        return self.function.__name__

    def __call__(self, logits: Tensor, *values: Any, **given: Any) -> Tensor:
        """Parameters by place or by name; `history`, `n_prompt`, `uniforms` and `mu` as `Pipeline.apply` takes them."""
        from headway.sampling.pipeline import Pipeline

        if len(values) > len(self.parameters):
            raise ConfigError(
                f"{self.name} takes {len(self.parameters)} values, not {len(values)}: {', '.join(self.parameters)}"
            )
        around = {name: given.pop(name) for name in ("history", "n_prompt", "uniforms", "mu") if name in given}
        by_place = dict(zip(self.parameters, values, strict=False))
        return Pipeline([{"stage": self.name, **by_place, **given}]).apply(logits, **around)


@dataclass(frozen=True)
class SamplerContext:
    """What stages may look at besides their row."""

    history: History
    uniform: Tensor | None  # (B, 1) the coin of xtc
    mu: Tensor | None  # (B, 1) the state of Mirostat
    vocab_size: int


@dataclass
class BoundSampler:
    """A stage with its values. `on` says for which rows, where that is not all; columns are made once per device."""

    sampler: Sampler
    values: Values
    on: list[bool] | None = None
    columns: dict[torch.device, dict[str, Any]] = field(default_factory=dict)

    @staticmethod
    def of(name: str, given: Mapping[str, Any]) -> "BoundSampler":
        if not isinstance(name, str) or name not in SAMPLERS:
            raise ConfigError(
                f"no sampler named {name!r}.{suggest(str(name), SAMPLERS)} "
                f"`headway generate --list-samplers` shows them all."
            )
        stage = SAMPLERS[name]
        values = parse_values(
            name, stage.parameters, {ALIASES.get((name, key), key): value for key, value in given.items()}
        )
        call = BoundSampler(stage, values)
        on = [not stage.is_off(call.row(i)) for i in range(call.n_rows or 1)]
        call.on = None if all(on) else on
        if name == "dynamic_temperature":
            for i in range(call.n_rows or 1):
                if (row := call.row(i))["low"] > row["high"]:
                    raise ConfigError(f"dynamic_temperature.low={row['low']:g} is above high={row['high']:g}")
        return call

    @property
    def name(self) -> str:
        return self.sampler.name

    @property
    def n_rows(self) -> int | None:
        """For how many rows there are values; None: the same for all."""
        found = {len(rows) for rows in self.values.values() if len(rows) > 1}
        if self.on is not None and len(self.on) > 1:
            found.add(len(self.on))
        return max(found, default=None)

    @property
    def is_off(self) -> bool:
        return self.on is not None and not any(self.on)

    def select(self, rows: Sequence[int]) -> "BoundSampler":
        """The same for some rows, in this order."""
        values = {name: [some[i] for i in rows] if len(some) > 1 else some for name, some in self.values.items()}
        on = [self.on[i] for i in rows] if self.on is not None and len(self.on) > 1 else self.on
        return BoundSampler(self.sampler, values, None if on is None or all(on) else on)

    def row(self, i: int) -> dict[str, Any]:
        return {name: rows[i if len(rows) > 1 else 0] for name, rows in self.values.items()}

    def most(self, name: str) -> Any:
        return max(self.values[name])

    def __call__(self, l: Tensor, around: SamplerContext, ids: Tensor | None = None) -> Tensor:
        """The rows after this stage; those it is off for as they were."""
        columns = self.on_device(l.device)
        extra = {"ids": ids} if "ids" in self.sampler.needs else {}
        extra |= {name: getattr(around, name) for name in self.sampler.needs if name != "ids"}
        extra |= {name: hint(self.values) for name, hint in self.sampler.hints.items()}
        parameters = {name: columns[name] for name in self.values}
        if "min_keep" in self.values and len(self.values["min_keep"]) == 1:
            parameters["min_keep"] = self.values["min_keep"][0]  # nearly always 1: then there is nothing to do
        after = self.sampler.function(l, **parameters, **extra)
        return after if self.on is None else torch.where(columns["on"], after, l.to(after.dtype))

    def on_device(self, device: torch.device) -> dict[str, Any]:
        """The columns of all parameters, and of the rows it is `on` for where these are not all."""
        if device not in self.columns:
            with torch.inference_mode(False):  # they outlive the call
                made = {name: self.sampler.parameters[name].column(rows, device) for name, rows in self.values.items()}
                if self.on is not None:
                    made["on"] = torch.tensor(self.on, device=device)[:, None]
            self.columns[device] = made
        return self.columns[device]


MIN_KEEP = IntParam("tokens that stay at least, the first in the filter's own order", 1, default=1)
WINDOW = IntParam("how many of the last tokens count; 0: all", 0, default=0)
TAU = NumberParam("the surprise aimed at, in bits", 0, low_open=True, usual="5; 3 for small vocabularies")
ETA = NumberParam("how fast it steers", 0, default=0.1, usual="0.1")


def _filter(
    function: Callable[..., Tensor], summary: str, name: str, parameter: NumberParam, *, off: float, **rest: Any
) -> Sampler:
    parameters: dict[str, Parameter] = {name: parameter, "min_keep": MIN_KEEP}
    return Sampler(function, summary, parameters, "filter", lambda row: row[name] == off, **rest)


def _penalty(function: Callable[..., Tensor], summary: str, parameter: NumberParam, scope: str) -> Sampler:
    parameters: dict[str, Parameter] = {"penalty": parameter, "window": WINDOW, "scope": ScopeParam(scope)}
    off = parameter.off
    return Sampler(
        function, summary, parameters, "penalty", lambda row: row["penalty"] == off, needs=("history",), by_id=True
    )


SAMPLERS: dict[str, Sampler] = {
    "logit_bias": Sampler(
        constraints.logit_bias,
        "add to the logits of tokens you name; -inf bans one",
        {"bias": BiasParam("what to add to which token")},
        "constraint",
        lambda row: not row["bias"],
        by_id=True,
    ),
    "no_repeat_ngram": Sampler(
        constraints.no_repeat_ngram,
        "never the same n tokens twice",
        {"n": IntParam("length that may not come again", off=0, usual="3")},
        "constraint",
        lambda row: row["n"] == 0,
        needs=("history",),
        hints={"most": lambda values: max(values["n"])},
        by_id=True,
    ),
    "min_new_tokens": Sampler(
        constraints.min_new_tokens,
        "no end before so many tokens",
        {
            "min_new": IntParam("fewest new tokens before EOS is allowed", off=0),
            "eos_ids": TokenIdsParam("tokens that end a text"),
        },
        "constraint",
        lambda row: row["min_new"] == 0,
        needs=("history",),
        by_id=True,
    ),
    "repetition_penalty": _penalty(
        penalties.repetition_penalty,
        "scale down tokens already there",
        NumberParam("what their logits are divided by, or multiplied", 0, low_open=True, off=1.0, usual="1.05 to 1.2"),
        "all",
    ),
    "frequency_penalty": _penalty(
        penalties.frequency_penalty,
        "subtract for every time a token was written",
        NumberParam("what is subtracted per use; negative encourages", off=0.0, usual="0 to 1"),
        "generated",
    ),
    "presence_penalty": _penalty(
        penalties.presence_penalty,
        "subtract once from tokens already written",
        NumberParam("what is subtracted; negative encourages", off=0.0, usual="0 to 1"),
        "generated",
    ),
    "dry": Sampler(
        penalties.dry,
        "Don't Repeat Yourself: punish going on with a verbatim repeat, the longer the more",
        {
            "multiplier": NumberParam("strength", 0, off=0.0, usual="0.8"),
            "base": NumberParam("growth with each token of the repeat", 1, default=1.75, usual="1.75"),
            "allowed_length": IntParam("length of a repeat that is still free", 1, default=2, usual="2"),
            "window": WINDOW,
            "breakers": TokenIdsParam("tokens no repeat reaches across"),
        },
        "penalty",
        lambda row: row["multiplier"] == 0,
        needs=("history",),
        by_id=True,
    ),
    "top_n_sigma": _filter(
        filters.top_n_sigma,
        "within n standard deviations of the best logit",
        "n",
        NumberParam("how many standard deviations", 0, off=0.0, usual="1"),
        off=0,
    ),
    "top_k": _filter(
        filters.top_k, "the k best", "k", IntParam("how many tokens stay", off=0, usual="40"), off=0
    ),
    "typical": _filter(
        filters.typical,
        "the tokens whose surprise is closest to the expected one, holding mass p",
        "p",
        NumberParam("mass that stays", 0, 1, off=1.0, usual="0.9 to 0.95"),
        off=1,
    ),
    "tail_free": _filter(
        filters.tail_free,
        "cut where the sorted probabilities flatten",
        "z",
        NumberParam("share of the curve's bending that stays", 0, 1, off=1.0, usual="0.95"),
        off=1,
    ),
    "top_a": _filter(
        filters.top_a,
        "at least a times the square of the best probability",
        "a",
        NumberParam("factor of the squared best probability", 0, 1, off=0.0, usual="0.1 to 0.3"),
        off=0,
    ),
    "eta_cutoff": _filter(
        filters.eta_cutoff,
        "a probability floor that sinks where the model is undecided",
        "epsilon",
        NumberParam("the floor at low entropy", 0, 1, high_open=True, off=0.0, usual="3e-4 to 4e-3"),
        off=0,
    ),
    "epsilon_cutoff": _filter(
        filters.epsilon_cutoff,
        "a fixed probability floor",
        "epsilon",
        NumberParam("the floor", 0, 1, high_open=True, off=0.0, usual="3e-4 to 9e-4"),
        off=0,
    ),
    "top_p": _filter(
        filters.top_p,
        "the fewest best tokens that hold mass p (nucleus)",
        "p",
        NumberParam("mass that stays", 0, 1, off=1.0, usual="0.9 to 0.95"),
        off=1,
    ),
    "min_p": _filter(
        filters.min_p,
        "at least p times the best probability",
        "p",
        NumberParam("fraction of the best probability", 0, 1, off=0.0, usual="0.05 to 0.1"),
        off=0,
    ),
    "xtc": Sampler(
        filters.xtc,
        "exclude top choices: sometimes drop all likely tokens but the last",
        {
            "threshold": NumberParam(
                "probability of a top choice; off above 0.5", 0, 1, low_open=True, default=0.1, usual="0.1"
            ),
            "probability": NumberParam("how often it acts", 0, 1, off=0.0, usual="0.5"),
            "protected": TokenIdsParam("tokens that are never dropped"),
            "min_keep": MIN_KEEP,
        },
        "filter",
        lambda row: row["probability"] == 0 or row["threshold"] > 0.5,
        needs=("uniform", "vocab_size", "ids"),
    ),
    "quadratic": Sampler(
        reshape.quadratic,
        "a parabola: even out the top, crush the tail",
        {
            "factor": NumberParam("strength", 0, off=0.0, usual="0.2 to 0.3"),
            "curve": NumberParam("1: a parabola, 3: a cubic", 1, 3, default=1.0, usual="1"),
        },
        "reshape",
        lambda row: row["factor"] == 0,
    ),
    "dynamic_temperature": Sampler(
        reshape.dynamic_temperature,
        "a temperature between low and high, by the row's entropy",
        {
            "low": NumberParam("temperature where the model is sure", 0, off=1.0, usual="0.5"),
            "high": NumberParam("temperature where it is not; low or more", 0, off=1.0, usual="1.5"),
            "exponent": NumberParam("how entropy becomes temperature; 1: in proportion", 0, default=1.0, usual="1"),
        },
        "reshape",
        lambda row: row["low"] == row["high"] == 1,
    ),
    "temperature": Sampler(
        reshape.temperature,
        "flatten (above 1) or sharpen (below 1); 0: the best token alone",
        {"temperature": NumberParam("what logits are divided by", 0, off=1.0, usual="0.7 to 1")},
        "reshape",
        lambda row: row["temperature"] == 1,
        hints={"is_warm": lambda values: min(values["temperature"]) >= GREEDY_BELOW},
    ),
    "mirostat_v1": Sampler(
        filters.mirostat_v1,
        "steer the average surprise to tau, cutting by rank",
        {"tau": TAU, "eta": ETA, "m": IntParam("tokens the curve is fitted to", 2, default=100, usual="100")},
        "mirostat",
        lambda row: False,
        needs=("mu", "vocab_size"),
        hints={"most": lambda values: max(values["m"])},
    ),
    "mirostat_v2": Sampler(
        filters.mirostat_v2,
        "steer the average surprise to tau, cutting by surprise",
        {"tau": TAU, "eta": ETA},
        "mirostat",
        lambda row: False,
        needs=("mu",),
    ),
}  # fmt: skip

ALIASES = {("min_new_tokens", "min_new_tokens"): "min_new"}

_BEFORE = ["logit_bias", "no_repeat_ngram", "min_new_tokens"]
_PENALTIES = ["repetition_penalty", "frequency_penalty", "presence_penalty", "dry"]
_FILTERS = ["top_n_sigma", "top_k", "typical", "tail_free", "top_a", "eta_cutoff", "epsilon_cutoff", "top_p", "min_p"]
_RESHAPE = ["quadratic", "dynamic_temperature", "temperature"]
_MIROSTAT = ["mirostat_v1", "mirostat_v2"]

# Bias first, since it edits what the model said; penalties need the original scale; xtc must see only plausible tokens.
# `default` has temperature last, so that filters judge the model's own probabilities (llama.cpp's order);
# `temperature_first` is the order of transformers, vLLM and hosted APIs.
PRESETS: dict[str, list[str]] = {
    "default": [*_BEFORE, *_PENALTIES, *_FILTERS, "xtc", *_RESHAPE, *_MIROSTAT],
    "temperature_first": [*_BEFORE, *_PENALTIES, *_RESHAPE, *_FILTERS, "xtc", *_MIROSTAT],
}
