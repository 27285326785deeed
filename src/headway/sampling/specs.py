"""The table of samplers: one entry each, with its parameters, in the order in which the preset `default` applies them.

Command-line flags, `headway generate --help-samplers`, the tables of docs/decoding.md, keyword arguments and checks all
come from this table. It needs no torch; samplers.py attaches a function to each entry.

A parameter has two names. Inside its sampler it is short: `{"stage": "dry", "multiplier": 0.8}`. Its flat name is
unique: `dry_multiplier=0.8` as a keyword, `--dry-multiplier 0.8` as a flag.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headway.entry_points import declared, load_declared
from headway.errors import ConfigError, suggest
from headway.sampling.parameters import (
    BiasParam,
    IntParam,
    NumberParam,
    Parameter,
    ScopeParam,
    TokenIdsParam,
    to_python,
)

GROUPS = {
    "constraint": "Bias and bans",
    "penalty": "Penalties",
    "filter": "Filters",
    "reshape": "Reshaping",
    "mirostat": "Mirostat",
}


@dataclass(frozen=True)
class SamplerSpec:
    """What a sampler is called, does and takes."""

    name: str
    group: str  # a key of GROUPS
    summary: str
    definition: str  # Markdown; l: logits, p: probabilities, H: entropy in nats, of the tokens not yet removed
    parameters: Mapping[str, Parameter]
    primary: str | None = None  # the parameter whose flat name is the sampler's name: `top_k` for top_k's k
    off_if: Callable[[Mapping[str, Any]], bool] | None = None  # where "all switches are off" is not the rule

    @property
    def switches(self) -> list[str]:
        """The parameters without a default: setting one turns the sampler on."""
        return [name for name, parameter in self.parameters.items() if parameter.default is None]

    def is_off(self, values: Mapping[str, Any]) -> bool:
        """Whether one row's values leave the logits unchanged, so that the sampler is skipped."""
        if self.off_if is not None:
            return self.off_if(values)
        return all(values[name] == self.parameters[name].off for name in self.switches)

    def flat_name(self, parameter: str) -> str:
        """`top_k` for top_k's k, `dry_multiplier` for dry's multiplier, `repetition_window` for a penalty's window."""
        if parameter == self.primary:
            return self.name
        return f"{self.name.removesuffix('_penalty')}_{parameter}"

    def parse(self, config: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Check values and fill in defaults: per parameter a list of one value, or of one value per row."""
        config = {ALIASES.get((self.name, name), name): value for name, value in config.items()}
        for name in config:
            if name not in self.parameters:
                known = ", ".join(self.parameters)
                hint = suggest(name, self.parameters)
                raise ConfigError(f"{self.name} has no parameter {name!r}.{hint} It has: {known}")
        values = {}
        for name, parameter in self.parameters.items():
            flat = self.flat_name(name)
            default = parameter.off if parameter.default is None else parameter.default
            if name not in config and default is None:
                raise ConfigError(f"{self.name} needs {name} (setting {flat}): {parameter.help}, {parameter.range}")
            value = to_python(config.get(name, default))
            if isinstance(parameter, NumberParam) and isinstance(value, list):
                value = [v[0] if isinstance(v, list) and len(v) == 1 else v for v in value]  # a column (B, 1)
            rows = list(value) if parameter.is_per_row(value) else [value]
            if not rows:
                raise ConfigError(f"{flat} is an empty list: give one value, or one per row")
            values[name] = [parameter.check(flat, row) for row in rows]
        n_rows = {name: len(rows) for name, rows in values.items() if len(rows) > 1}
        if len(set(n_rows.values())) > 1:
            counts = ", ".join(f"{name} has {n}" for name, n in n_rows.items())
            raise ConfigError(f"{self.name} has values for different numbers of rows: {counts}")
        return values


MIN_KEEP = IntParam("tokens to keep at least, those the filter ranks highest", 1, default=1, flag=False)
WINDOW = IntParam("number of most recent tokens that count, 0 for all", 0, default=0)
TAU = NumberParam("target surprise in bits", 0, low_open=True, usual="5, or 3 for small vocabularies")
ETA = NumberParam("learning rate of the controller", 0, default=0.1, usual="0.1")


def _filter(name: str, summary: str, definition: str, parameter: str, kind: NumberParam) -> SamplerSpec:
    return SamplerSpec(name, "filter", summary, definition, {parameter: kind, "min_keep": MIN_KEEP}, primary=parameter)


def _penalty(name: str, summary: str, definition: str, kind: NumberParam, scope: str) -> SamplerSpec:
    parameters: dict[str, Parameter] = {"penalty": kind, "window": WINDOW, "scope": ScopeParam(scope)}
    return SamplerSpec(name, "penalty", summary, definition, parameters, primary="penalty")


_SPECS = [
    SamplerSpec(
        "logit_bias",
        "constraint",
        "add a value to the logits of the tokens you name; -inf bans a token",
        "l + value; −inf bans",
        {"bias": BiasParam("tokens and their values")},
        primary="bias",
        off_if=lambda values: not values["bias"],
    ),
    SamplerSpec(
        "no_repeat_ngram",
        "constraint",
        "never generate the same n tokens twice",
        "bans each token that would complete an n-gram of the history again",
        {"n": IntParam("length of the n-grams", off=0, usual="3")},
        primary="n",
    ),
    SamplerSpec(
        "min_new_tokens",
        "constraint",
        "ban EOS until this many tokens have been generated",
        "bans `eos_ids` while fewer than `min_new` tokens have been generated",
        {
            "min_new": IntParam("fewest new tokens before EOS", off=0),
            "eos_ids": TokenIdsParam("tokens that end a text, by default the model's", flag=False),
        },
        primary="min_new",
    ),
    _penalty(
        "repetition_penalty",
        "scale down the logits of tokens that already occurred",
        "for each token in scope, once however often it occurred: l/θ, or l·θ where l is negative (θ the penalty)",
        NumberParam(
            "divisor of positive logits, factor of negative ones", 0, low_open=True, off=1.0, usual="1.05 to 1.2"
        ),
        "all",
    ),
    _penalty(
        "frequency_penalty",
        "subtract from a token's logit for each time it was generated",
        "l − penalty · count of the token in scope",
        NumberParam("amount per occurrence, negative to encourage repeats", off=0.0, usual="0 to 1"),
        "generated",
    ),
    _penalty(
        "presence_penalty",
        "subtract once from the logits of tokens already generated",
        "l − penalty for each token in scope, once",
        NumberParam("amount, negative to encourage repeats", off=0.0, usual="0 to 1"),
        "generated",
    ),
    SamplerSpec(
        "dry",
        "penalty",
        "Don't Repeat Yourself: penalise tokens that extend a verbatim repeat, more for longer repeats",
        "let m be the length of the longest suffix of the history that also occurs earlier, followed by the token, and "
        "contains no breaker; if m ≥ allowed_length: l − multiplier · base^(m − allowed_length), the power capped at "
        "e^60; breakers themselves are never penalised",
        {
            "multiplier": NumberParam("strength of the penalty", 0, off=0.0, usual="0.8"),
            "base": NumberParam("growth of the penalty per token of the repeat", 1, default=1.75, usual="1.75"),
            "allowed_length": IntParam("shortest repeat that is penalised", 1, default=2, usual="2"),
            "window": WINDOW,
            "breakers": TokenIdsParam(
                "sequence breakers: a repeat is not matched across these tokens",
                usual=r'\n : " * (the default of `generate`)',
                flag_alias="dry_breaker",
            ),
        },
    ),
    _filter(
        "top_n_sigma",
        "keep logits within n standard deviations of the best",
        "l ≥ max l − nσ, σ the population standard deviation of the logits not yet removed",
        "n",
        NumberParam("number of standard deviations", 0, off=0.0, usual="1"),
    ),
    _filter(
        "top_k",
        "keep the k most likely tokens",
        "the first k of the ranking",
        "k",
        IntParam("number of tokens to keep", off=0, usual="40"),
    ),
    _filter(
        "typical",
        "keep the tokens whose surprise is closest to the entropy, up to probability mass p",
        "ranked by |−ln p_i − H| ascending (ties: lower id first), the shortest prefix with mass ≥ p; may remove the "
        "best token",
        "p",
        NumberParam("probability mass to keep", 0, 1, off=1.0, usual="0.9 to 0.95"),
    ),
    _filter(
        "tail_free",
        "cut the tail where the curve of sorted probabilities flattens",
        "with q the sorted probabilities and c_j = |q_j − 2q_{j+1} + q_{j+2}|: the first "
        "1 + #{j : (c_0+…+c_j)/Σc ≤ z}; rows of at most two tokens, or of equal logits, stay as they are",
        "z",
        NumberParam("fraction of the curvature to keep", 0, 1, off=1.0, usual="0.95"),
    ),
    _filter(
        "top_a",
        "keep probabilities of at least a times the squared best one",
        "p_i ≥ a · p_max²",
        "a",
        NumberParam("factor of the squared best probability", 0, 1, off=0.0, usual="0.1 to 0.3"),
    ),
    _filter(
        "eta_cutoff",
        "keep probabilities above a floor that drops as the entropy grows",
        "p_i ≥ min(ε, √ε e^−H)",
        "epsilon",
        NumberParam("floor at low entropy", 0, 1, high_open=True, off=0.0, usual="3e-4 to 4e-3"),
    ),
    _filter(
        "epsilon_cutoff",
        "keep probabilities above a fixed floor",
        "p_i ≥ ε",
        "epsilon",
        NumberParam("probability floor", 0, 1, high_open=True, off=0.0, usual="3e-4 to 9e-4"),
    ),
    _filter(
        "top_p",
        "keep the smallest set of most likely tokens with probability mass p (nucleus sampling)",
        "the shortest prefix of the ranking with mass ≥ p",
        "p",
        NumberParam("probability mass to keep", 0, 1, off=1.0, usual="0.9 to 0.95"),
    ),
    _filter(
        "min_p",
        "keep probabilities of at least p times the best one",
        "l − max l ≥ ln p",
        "p",
        NumberParam("fraction of the best probability", 0, 1, off=0.0, usual="0.05 to 0.1"),
    ),
    SamplerSpec(
        "xtc",
        "filter",
        "exclude top choices: at random steps, remove all likely tokens except the least likely of them",
        "with probability `probability`: if two or more tokens have p_i ≥ threshold, removes all of these but the last "
        "in the ranking, unless that removes a protected token or leaves fewer than `min_keep` tokens; off if "
        "threshold > 0.5",
        {
            "threshold": NumberParam(
                "probability that makes a token a top choice, off above 0.5",
                0,
                1,
                low_open=True,
                default=0.1,
                usual="0.1",
            ),
            "probability": NumberParam("probability of acting at a step", 0, 1, off=0.0, usual="0.5"),
            "protected": TokenIdsParam("tokens that are never removed, by default EOS and newlines", flag=False),
            "min_keep": MIN_KEEP,
        },
        off_if=lambda values: values["probability"] == 0 or values["threshold"] > 0.5,
    ),
    SamplerSpec(
        "quadratic",
        "reshape",
        "smooth with a parabola: even out the most likely tokens, suppress the tail",
        "with M = max l and d = l − M: M − f(3 − c)/2 · d² + f(c − 1)/2 · d³ (f the factor, c the curve)",
        {
            "factor": NumberParam("strength", 0, off=0.0, usual="0.2 to 0.3"),
            "curve": NumberParam("shape, from parabola to cubic", 1, 3, default=1.0, usual="1"),
        },
    ),
    SamplerSpec(
        "dynamic_temperature",
        "reshape",
        "choose a temperature between low and high by the entropy of the distribution",
        "T = low + (high − low) · (H / ln n)^exponent, n the number of tokens not yet removed, low ≤ high; "
        "then as `temperature`",
        {
            "low": NumberParam("temperature at zero entropy", 0, off=1.0, usual="0.5"),
            "high": NumberParam("temperature at maximal entropy, at least low", 0, off=1.0, usual="1.5"),
            "exponent": NumberParam("exponent of the normalised entropy, 1 for linear", 0, default=1.0, usual="1"),
        },
    ),
    SamplerSpec(
        "temperature",
        "reshape",
        "flatten the distribution (above 1) or sharpen it (below 1); 0 is greedy, `generate` uses 0.8 by default",
        "l/T; below 1e-5 only the best token stays, its logit unchanged",
        {"temperature": NumberParam("divisor of the logits", 0, off=1.0, usual="0.7 to 1")},
        primary="temperature",
    ),
    SamplerSpec(
        "mirostat_v1",
        "mirostat",
        "steer the average surprise to tau, truncating by rank; must be the last filter",
        "keeps the first k: s = Σt_i b_i / Σt_i² over the best m, t_i = ln((i+2)/(i+1)), b_i the gaps between logits; "
        "e = s − 1; k = ⌊(e · 2^mu / (1 − V^−e))^(1/s)⌋; mu as in `mirostat_v2`",
        {"tau": TAU, "eta": ETA, "m": IntParam("tokens that Zipf's law is fitted to", 2, default=100, usual="100")},
    ),
    SamplerSpec(
        "mirostat_v2",
        "mirostat",
        "steer the average surprise to tau, truncating by surprise; must be the last filter",
        "keeps −log2 p_i ≤ mu, at least the best token; mu starts at 2·tau, and after each draw "
        "mu ← mu − eta · (surprise of the token in the filtered row, in bits − tau)",
        {"tau": TAU, "eta": ETA},
    ),
]

SAMPLER_SPECS: dict[str, SamplerSpec] = {spec.name: spec for spec in _SPECS}

# Settings of several samplers at once, also keywords and flags.
SHARED_PARAMETERS: dict[str, NumberParam] = {
    "min_keep": IntParam("tokens that every filter keeps at least, those it ranks highest", 1, default=1),
}

# Other names for a parameter inside its sampler.
ALIASES = {("min_new_tokens", "min_new_tokens"): "min_new"}

# Flat name → (sampler, parameter).
FLAT_NAMES: dict[str, tuple[str, str]] = {
    spec.flat_name(parameter): (spec.name, parameter) for spec in _SPECS for parameter in spec.parameters
}


def _in_order(*groups: str) -> list[str]:
    return [spec.name for group in groups for spec in _SPECS if spec.group == group]


# Bias comes first, because it edits the model's output; penalties need the original scale; xtc must see only plausible
# tokens. `default` has temperature last, so that filters judge the model's own probabilities (llama.cpp's order);
# `temperature_first` is the order of transformers, vLLM and hosted APIs.
ORDER_PRESETS: dict[str, list[str]] = {
    "default": _in_order("constraint", "penalty", "filter", "reshape", "mirostat"),
    "temperature_first": _in_order("constraint", "penalty", "reshape", "filter", "mirostat"),
}


def add_spec(spec: SamplerSpec) -> None:
    """Add a sampler of one's own to the table: in each order, after the others of its group."""
    if spec.group not in GROUPS:
        raise ConfigError(f"group={spec.group!r} is not one of {', '.join(GROUPS)}")
    SAMPLER_SPECS[spec.name] = spec
    FLAT_NAMES.update({spec.flat_name(parameter): (spec.name, parameter) for parameter in spec.parameters})
    for order in ORDER_PRESETS.values():
        if spec.name not in order:
            last = max(i for i, name in enumerate(order) if SAMPLER_SPECS[name].group == spec.group)
            order.insert(last + 1, spec.name)


def load_declared_sampler(name: str) -> None:
    """Import the sampler that a name belongs to, if an installed package declares it: `top_x`, `top_x_window`."""
    owners = [sampler for sampler in declared("sampler") if name == sampler or name.startswith(f"{sampler}_")]
    for owner in owners:
        load_declared("sampler", owner)


def flat_name(sampler: str, parameter: str) -> str:
    return SAMPLER_SPECS[sampler].flat_name(parameter)
