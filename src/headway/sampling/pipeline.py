"""A pipeline: samplers in the order you choose, from the model's logits to a token.

    pipe = Pipeline([{"stage": "top_k", "k": 40}, {"stage": "temperature", "temperature": 0.8}])
    pipe = Pipeline(preset="default", top_k=40, temperature=0.8)

    rows = pipe.apply(logits, history=[[1, 2, 3], …])          (B, V) → (B, V), removed tokens −inf
    ids, state = pipe.draw(logits, history=…, state=state)     one token per row

Two shortcuts make it fast without changing any result. After `top_k` the later samplers run on the k remaining columns
only, sorted by token id, so that ties break as in the full row. And a temperature directly before `top_k` runs after
it, on k columns instead of the vocabulary: it does not change the ranking.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from headway.errors import ConfigError, InputError, suggest
from headway.sampling.distribution import narrowed, on_host, probabilities
from headway.sampling.drawing import GREEDY_BELOW, as_logit_rows, best_column, check_logits, draw
from headway.sampling.history import History
from headway.sampling.ranking import ranked
from headway.sampling.rng import TOKEN, XTC, seeds, uniform
from headway.sampling.samplers import SAMPLERS, BoundSampler, SamplerContext
from headway.sampling.specs import (
    FLAT_NAMES,
    ORDER_PRESETS,
    SAMPLER_SPECS,
    SHARED_PARAMETERS,
    load_declared_sampler,
)

MIN_NARROWING = 8  # top_k narrows rows that have at least this many times k columns


@dataclass(frozen=True)
class SamplerState:
    """What a row carries from token to token: its seed, the number of tokens drawn, and Mirostat's mu."""

    seed: Tensor  # (B,)
    position: Tensor  # (B,)
    mu: Tensor  # (B,)

    def to(self, device: torch.device) -> Self:
        return replace(self, seed=self.seed.to(device), position=self.position.to(device), mu=self.mu.to(device))

    def reorder(self, rows: Tensor | Sequence[int]) -> Self:
        index = torch.as_tensor(rows, dtype=torch.long, device=self.seed.device)
        return replace(self, seed=self.seed[index], position=self.position[index], mu=self.mu[index])


class Pipeline:
    """Samplers applied from left to right.

    `stages` is a list of {"stage": name, parameter: value, …}. Settings also go by their flat names: `top_p=0.9,
    dry_multiplier=0.8`. A `preset` or an `order` (a list of names) sorts the samplers; `min_keep` applies to every
    filter that is set.
    """

    def __init__(
        self,
        stages: Sequence[Mapping[str, Any]] | None = None,
        *,
        preset: str | None = None,
        order: Sequence[str] | None = None,
        **settings: Any,
    ):
        if isinstance(stages, Mapping) or not all(isinstance(stage, Mapping) for stage in stages or []):
            raise ConfigError(
                f'stages={stages!r} must be a list such as [{{"stage": "top_k", "k": 40}}]; settings such as top_k=40 '
                f"also work"
            )
        configs = [dict(stage) for stage in stages or []]
        for stage in configs:
            if "stage" not in stage:
                raise ConfigError(f'a stage without a name: {stage!r}; write {{"stage": "top_k", "k": 40}}')
        configs += _stages_from_settings(settings)
        samplers = [BoundSampler.of(stage.pop("stage"), stage) for stage in configs]
        names = [sampler.name for sampler in samplers]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"{repeated[0]} appears twice: use each sampler once")
        self._set_samplers(_sorted(samplers, preset, order))
        self.notes += unused_settings(settings)

    def _set_samplers(self, samplers: list[BoundSampler]) -> None:
        _check_mirostat_is_last(samplers)
        self.samplers, self.n_rows = samplers, _count_rows(samplers)
        self.notes, self.warnings = _notes(samplers), _warnings(samplers)
        self._schedule = _schedule([sampler for sampler in samplers if not sampler.is_off])

    @classmethod
    def _from_samplers(cls, samplers: list[BoundSampler]) -> "Pipeline":
        pipe = cls()
        pipe._set_samplers(samplers)
        return pipe

    @classmethod
    def for_rows(cls, pipelines: Sequence[Any]) -> "Pipeline | PerRowPipeline":
        """One pipeline for a batch, from one pipeline per row; these may have different samplers and orders."""
        if not pipelines:
            raise ConfigError("no pipelines were given: pass one per row")
        pipelines = [pipe if isinstance(pipe, Pipeline) else Pipeline(pipe) for pipe in pipelines]
        for order in (None, *ORDER_PRESETS.values()):
            names = [sampler.name for sampler in pipelines[0].samplers] if order is None else order
            if all(_is_in_order(pipe, names) for pipe in pipelines):
                return cls._from_samplers(_merged(pipelines, names))
        return PerRowPipeline(pipelines)

    def __repr__(self) -> str:
        return f"Pipeline({self.stages})"

    @property
    def stages(self) -> list[dict[str, Any]]:
        """The configuration of each sampler, with defaults filled in."""
        configs = []
        for sampler in self.samplers:
            values = {name: rows if len(rows) > 1 else rows[0] for name, rows in sampler.values.items()}
            values = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
            configs.append({"stage": sampler.name, **values})
        return configs

    def only(self, *groups: str) -> "Pipeline":
        """The pipeline restricted to samplers of these groups."""
        return self._from_samplers([sampler for sampler in self.samplers if sampler.sampler.group in groups])

    def greedy(self) -> "Pipeline":
        """Bias, constraints and penalties, then the best token: what a request for temperature 0 means."""
        best = BoundSampler.of("temperature", {"temperature": 0.0})
        return self._from_samplers([*self.only("constraint", "penalty").samplers, best])

    def select(self, rows: Sequence[int]) -> "Pipeline":
        """The pipeline for these rows of the batch, in this order."""
        return self if self.n_rows is None else self._from_samplers([sampler.select(rows) for sampler in self.samplers])

    def start(self, n_rows: int, seed: int | Sequence[int] | None = None, device: Any = "cpu") -> SamplerState:
        """The state of a new batch: row i uses `seed + i`, or the i-th of several seeds."""
        row_seeds = seeds(n_rows, seed, device)
        if len(row_seeds) != n_rows:
            raise InputError(f"{len(row_seeds)} seeds for {n_rows} rows: give one number, or one per row")
        position = torch.zeros(n_rows, dtype=torch.long, device=row_seeds.device)
        return SamplerState(row_seeds, position, self._initial_mu(n_rows, row_seeds.device))

    def apply(
        self,
        logits: Tensor,
        *,
        history: Any = None,
        n_prompt: Any = None,
        uniforms: Any = None,
        mu: Any = None,
        state: SamplerState | None = None,
    ) -> Tensor:
        """Apply all samplers to logits (B, V): (B, V), removed tokens −inf.

        `history` is a list of token ids per row, or (ids, lengths) with ids right-padded; the first `n_prompt` are the
        prompt. `uniforms` (one per row, for xtc) and `mu` (for Mirostat) override those of `state`.
        """
        rows = as_logit_rows(logits)
        filtered, ids = self._run(rows, self._context(rows, history, n_prompt, uniforms, mu, state))
        filtered = narrowed(filtered, rows.dtype)
        if ids is not None:
            return _expand(filtered, ids, rows.shape[1])
        return filtered.clone() if filtered is logits else filtered

    def draw(
        self,
        logits: Tensor,
        *,
        history: Any = None,
        n_prompt: Any = None,
        uniforms: Any = None,
        mu: Any = None,
        state: SamplerState | None = None,
    ) -> tuple[Tensor, SamplerState]:
        """Draw one token per row (B,); returns the state for the next token. Without a state, rows get new seeds.

        On a GPU, a row with NaN or without any token gets −1: checking for it would force a synchronisation.
        """
        rows = as_logit_rows(logits)
        state = self.start(rows.shape[0], None, rows.device) if state is None else state
        tokens, mu = self.draw_tokens(rows, history=history, n_prompt=n_prompt, uniforms=uniforms, mu=mu, state=state)
        return tokens, replace(state, position=state.position + 1, mu=state.mu if mu is None else mu)

    def draw_tokens(
        self,
        logits: Tensor,
        *,
        state: SamplerState,
        history: Any = None,
        n_prompt: Any = None,
        uniforms: Any = None,
        mu: Any = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The tokens that `draw` gives, and Mirostat's next mu (B,), None without Mirostat."""
        rows = as_logit_rows(logits)
        context = self._context(rows, history, n_prompt, uniforms, mu, state)
        if self._is_greedy:
            filtered, ids = self._run(rows, context, n_samplers=len(self._schedule) - 1)
            column = best_column(filtered)
        else:
            filtered, ids = self._run(rows, context)
            column = draw(filtered, uniform(state.seed, state.position, TOKEN))
            if not on_host(rows):
                column = torch.where(filtered.amax(dim=-1).isfinite(), column, -1)
        if ids is None and not self._mirostats:
            return column, None
        index = column.clamp(min=0)[:, None]
        tokens = column if ids is None else torch.where(column < 0, -1, ids.gather(1, index)[:, 0])
        if not self._mirostats:
            return tokens, None
        p = probabilities(filtered).gather(1, index)
        level = state.mu[:, None] if mu is None else _column(mu, rows)
        for mirostat in self._mirostats:
            columns = mirostat.on_device(rows.device)
            updated = level - columns["eta"] * (-p.log2().double() - columns["tau"])
            level = updated if mirostat.on is None else torch.where(columns["on"], updated, level)
        return tokens, level[:, 0]

    def explain(
        self,
        logits: Tensor,
        *,
        history: Any = None,
        n_prompt: Any = None,
        state: SamplerState | None = None,
        **overrides: Any,
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield ("model", logits), then (name, rows (B, V)) after each active sampler, in the given order."""
        rows = as_logit_rows(logits)
        check_logits(rows)
        context = self._context(rows, history, n_prompt, overrides.get("uniforms"), overrides.get("mu"), state)
        yield "model", rows
        for sampler in self.samplers:
            if not sampler.is_off:
                rows = sampler(rows, context)
                yield sampler.name, narrowed(rows, logits.dtype) if logits.dtype == torch.float32 else rows

    # ── internals ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _is_greedy(self) -> bool:
        """Whether the last sampler leaves only the best token of every row, so that there is nothing to draw: a draw
        takes some forty kernels, which on a GPU is as long as a decode step of a small model."""
        if not self._schedule or self._mirostats:  # Mirostat needs the probability of the token
            return False
        last = self._schedule[-1]
        return last.name == "temperature" and last.on is None and max(last.values["temperature"]) < GREEDY_BELOW

    def _run(
        self, rows: Tensor, context: SamplerContext, n_samplers: int | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The rows after the first `n_samplers`, by default all, and the token id of each column, or None for the whole
        vocabulary."""
        ids: Tensor | None = None
        schedule = self._schedule[:n_samplers]
        if not (schedule and schedule[0].name == "top_k" and _narrows(schedule[0], rows.shape[1])):
            check_logits(rows)  # otherwise the k best are checked below: NaN and +inf rank first
        for i, sampler in enumerate(schedule):
            if ids is not None and sampler.sampler.by_id:
                rows, ids = _expand(rows, ids, context.vocab_size), None
            if ids is None and sampler.name == "top_k" and _narrows(sampler, rows.shape[1]):
                n_kept = max(sampler.largest("k"), sampler.largest("min_keep"))
                ids = ranked(rows, n_kept).sort(dim=-1).values
                rows = rows.gather(1, ids)
                if i == 0:
                    check_logits(rows)
                if len(set(sampler.values["k"])) == 1 and sampler.largest("min_keep") == 1:
                    continue  # the columns are exactly the k best
            rows = sampler(rows, context, ids)
        return rows, ids

    def _context(
        self, rows: Tensor, history: Any, n_prompt: Any, uniforms: Any, mu: Any, state: SamplerState | None
    ) -> SamplerContext:
        B = rows.shape[0]
        if self.n_rows not in (None, B):
            raise InputError(f"this pipeline has values for {self.n_rows} rows, the logits have {B}")
        if state is not None and state.seed.shape[0] != B:
            raise InputError(f"a state of {state.seed.shape[0]} rows for logits of {B}: reorder the state as well")
        xtc = next((sampler for sampler in self._schedule if sampler.name == "xtc"), None)
        level = None
        if self._mirostats:
            if mu is not None:
                level = _column(mu, rows)
            else:
                level = (state.mu if state is not None else self._initial_mu(B, rows.device))[:, None]
        return SamplerContext(
            History.of(history, n_prompt, B, rows.device),
            None if xtc is None else _xtc_uniforms(xtc, rows, uniforms, state),
            level,
            rows.shape[1],
        )

    @property
    def _mirostats(self) -> list[BoundSampler]:
        """At most one per row; two if some rows use v1 and others v2."""
        return [sampler for sampler in self._schedule if sampler.sampler.group == "mirostat"]

    def _initial_mu(self, n_rows: int, device: torch.device) -> Tensor:
        mu = torch.zeros(n_rows, 1, dtype=torch.float64, device=device)
        for mirostat in self._mirostats:
            columns = mirostat.on_device(device)
            mu = 2 * columns["tau"] if mirostat.on is None else torch.where(columns["on"], 2 * columns["tau"], mu)
        return mu.expand(n_rows, 1)[:, 0].clone()


class PerRowPipeline:
    """One pipeline per row, applied row by row: for batches whose rows use contradictory orders."""

    def __init__(self, pipelines: Sequence[Pipeline]):
        self.pipelines = list(pipelines)
        self.n_rows = len(pipelines)
        self.notes = list(dict.fromkeys(note for pipe in pipelines for note in pipe.notes))
        self.warnings = list(dict.fromkeys(warning for pipe in pipelines for warning in pipe.warnings))

    def select(self, rows: Sequence[int]) -> "Pipeline | PerRowPipeline":
        return Pipeline.for_rows([self.pipelines[i] for i in rows])

    def greedy(self) -> "Pipeline | PerRowPipeline":
        return Pipeline.for_rows([pipe.greedy() for pipe in self.pipelines])

    def start(self, n_rows: int, seed: int | Sequence[int] | None = None, device: Any = "cpu") -> SamplerState:
        row_seeds = seeds(n_rows, seed, device)
        states = [pipe.start(1, [int(s)], device) for pipe, s in zip(self.pipelines, row_seeds, strict=True)]
        return SamplerState(row_seeds, torch.cat([s.position for s in states]), torch.cat([s.mu for s in states]))

    def apply(self, logits: Tensor, **context: Any) -> Tensor:
        return torch.cat([pipe.apply(row, **row_context) for pipe, row, row_context in self._rows(logits, context)])

    def draw(self, logits: Tensor, **context: Any) -> tuple[Tensor, SamplerState]:
        if context.get("state") is None:
            context["state"] = self.start(logits.shape[0], None, logits.device)
        draws = [pipe.draw(row, **row_context) for pipe, row, row_context in self._rows(logits, context)]
        columns = [torch.cat([getattr(state, name) for _, state in draws]) for name in ("seed", "position", "mu")]
        return torch.cat([ids for ids, _ in draws]), SamplerState(*columns)

    def _rows(self, logits: Tensor, context: dict[str, Any]) -> Iterator[tuple[Pipeline, Tensor, dict[str, Any]]]:
        """Each row's pipeline, logits (1, V) and context."""
        if logits.dim() != 2 or logits.shape[0] != self.n_rows:
            raise InputError(
                f"logits of shape {tuple(logits.shape)} for {self.n_rows} pipelines: give one row for each"
            )
        history = History.of(context.get("history"), context.get("n_prompt"), self.n_rows, logits.device)
        for i, pipe in enumerate(self.pipelines):
            row = torch.tensor([i], device=logits.device)
            row_context: dict[str, Any] = {"history": history.reorder(row)}
            for name in ("uniforms", "mu"):
                if context.get(name) is not None:
                    row_context[name] = torch.as_tensor(context[name]).reshape(-1).expand(self.n_rows)[i : i + 1]
            if context.get("state") is not None:
                row_context["state"] = context["state"].reorder(row)
            yield pipe, logits[i : i + 1], row_context


def _column(values: Any, rows: Tensor) -> Tensor:
    """One number, or one per row, as a column (B, 1)."""
    column = torch.as_tensor(values, dtype=torch.float64, device=rows.device).reshape(-1)
    if len(column) not in (1, rows.shape[0]):
        raise InputError(f"{len(column)} values for {rows.shape[0]} rows: give one, or one per row")
    return column.expand(rows.shape[0])[:, None]


def _xtc_uniforms(xtc: BoundSampler, rows: Tensor, uniforms: Any, state: SamplerState | None) -> Tensor:
    if uniforms is not None:
        return _column(uniforms, rows)
    if state is not None:
        return uniform(state.seed, state.position, XTC)[:, None]
    if set(xtc.values["probability"]) <= {0.0, 1.0}:  # then any number gives the same result
        return torch.zeros(rows.shape[0], 1, dtype=torch.float64, device=rows.device)
    raise InputError("xtc acts at random: pass uniforms=[…] (one number in [0, 1) per row) or state=")


def _expand(rows: Tensor, ids: Tensor, vocab_size: int) -> Tensor:
    """Rows over the columns `ids` (B, N) as rows over the vocabulary (B, V); other tokens are removed."""
    return rows.new_full((rows.shape[0], vocab_size), -torch.inf).scatter_(1, ids, rows)


def _narrows(top_k: BoundSampler, n_columns: int) -> bool:
    n_kept = max(top_k.largest("k"), top_k.largest("min_keep"))
    return top_k.on is None and MIN_NARROWING * n_kept <= n_columns


def _schedule(samplers: list[BoundSampler]) -> list[BoundSampler]:
    """The order of computation: a temperature directly before top_k moves behind it."""
    schedule = list(samplers)
    for i in range(len(schedule) - 1):
        first, second = schedule[i], schedule[i + 1]
        keeps_ranking = first.name == "temperature" and min(first.values["temperature"]) >= GREEDY_BELOW
        if keeps_ranking and second.name == "top_k" and second.on is None:
            schedule[i : i + 2] = [second, first]
    return schedule


def _merged(pipelines: Sequence[Pipeline], order: Sequence[str]) -> list[BoundSampler]:
    """The samplers of pipelines that agree on an order, with a value per row; off for rows that lack the sampler."""
    merged = []
    for name in order:
        per_row = [next((s for s in pipe.samplers if s.name == name), None) for pipe in pipelines]
        template = next((sampler for sampler in per_row if sampler is not None), None)
        if template is not None:
            on = [sampler is not None and not sampler.is_off for sampler in per_row]
            values = {key: [(sampler or template).values[key][0] for sampler in per_row] for key in template.values}
            merged.append(BoundSampler(template.sampler, values, None if all(on) else on))
    return merged


def _count_rows(samplers: list[BoundSampler]) -> int | None:
    n_rows = {sampler.name: sampler.n_rows for sampler in samplers if sampler.n_rows is not None}
    if len(set(n_rows.values())) > 1:
        counts = ", ".join(f"{name} has {n}" for name, n in n_rows.items())
        raise ConfigError(f"samplers have values for different numbers of rows: {counts}")
    return next(iter(n_rows.values()), None)


def _check_mirostat_is_last(samplers: list[BoundSampler]) -> None:
    """In every row, no filter follows Mirostat. (Rows may use different versions of it.)"""
    for i, mirostat in enumerate(samplers):
        if mirostat.sampler.group == "mirostat":
            for later in samplers[i + 1 :]:
                n = max(len(mirostat.on or [1]), len(later.on or [1]))
                both_on = zip(mirostat.on or [True] * n, later.on or [True] * n, strict=False)
                if later.sampler.group in ("filter", "mirostat") and any(a and b for a, b in both_on):
                    raise ConfigError(
                        f"{later.name} comes after {mirostat.name}, which must be the last filter: it measures the "
                        f"surprise of the token drawn from the tokens it kept"
                    )


def _is_in_order(pipe: Pipeline, order: Sequence[str]) -> bool:
    names = [sampler.name for sampler in pipe.samplers]
    return pipe.n_rows is None and set(names) <= set(order) and names == [name for name in order if name in names]


def _sorted(samplers: list[BoundSampler], preset: str | None, order: Sequence[str] | None) -> list[BoundSampler]:
    if order is not None:
        for name in order:
            if name not in SAMPLERS:
                BoundSampler.of(name, {})  # raises, with a suggestion
        if repeated := [name for name in order if list(order).count(name) > 1]:
            raise ConfigError(f"{repeated[0]} appears twice in the order: name each sampler once")
        if missing := [sampler.name for sampler in samplers if sampler.name not in order]:
            raise ConfigError(f"{missing[0]} is set but not in the order {', '.join(order)}: add it, or leave it unset")
        return sorted(samplers, key=lambda sampler: list(order).index(sampler.name))
    if preset is None:
        return samplers
    if preset not in ORDER_PRESETS:
        raise ConfigError(
            f"no order preset named {preset!r}.{suggest(preset, ORDER_PRESETS)} Presets: {', '.join(ORDER_PRESETS)}"
        )
    return sorted(samplers, key=lambda sampler: ORDER_PRESETS[preset].index(sampler.name))


def _stages_from_settings(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Group flat settings into stages; a sampler whose settings are all None is left out."""
    stages: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if name not in FLAT_NAMES and name not in SAMPLER_SPECS:
            load_declared_sampler(name)
        if name in SAMPLER_SPECS and isinstance(value, Mapping) and set(value) & set(SAMPLER_SPECS[name].parameters):
            stages.setdefault(name, {"stage": name}).update(value)
        elif name in FLAT_NAMES:
            if value is not None:
                sampler, parameter = FLAT_NAMES[name]
                stages.setdefault(sampler, {"stage": sampler})[parameter] = value
        elif name not in SHARED_PARAMETERS:
            its_settings = [flat for flat, (sampler, _) in FLAT_NAMES.items() if sampler == name]
            hint = f" Its settings are {', '.join(its_settings)}." if its_settings else suggest(name, FLAT_NAMES)
            raise ConfigError(f"no setting named {name!r}.{hint} `headway generate --help-samplers` shows them all")
    for name, shared in SHARED_PARAMETERS.items():
        if settings.get(name) is not None:
            value = shared.check(name, settings[name])
            for sampler, stage in stages.items():
                if name in SAMPLER_SPECS[sampler].parameters:
                    stage.setdefault(name, value)
    return list(stages.values())


def unused_settings(settings: Mapping[str, Any]) -> list[str]:
    """Notes on settings without effect: those of samplers that are off, and shared ones of filters if none is on."""
    set_names = [name for name, value in settings.items() if value is not None]
    notes = []
    for name in set_names:
        if name in FLAT_NAMES:
            sampler, parameter = FLAT_NAMES[name]
            spec = SAMPLER_SPECS[sampler]
            switches = [spec.flat_name(switch) for switch in spec.switches]
            if parameter not in spec.switches and switches and not set(switches) & set(set_names):
                notes.append(f"{name} is set, but {switches[0]}, which turns {sampler} on, is not")
    samplers = {FLAT_NAMES[name][0] if name in FLAT_NAMES else name for name in set_names}
    if not any(SAMPLER_SPECS[name].group == "filter" for name in samplers if name in SAMPLER_SPECS):
        notes += [f"{name} is set, but no filter is" for name in set_names if name in SHARED_PARAMETERS]
    return notes


def _notes(samplers: list[BoundSampler]) -> list[str]:
    """Settings without effect."""
    on = {sampler.name: sampler for sampler in samplers if not sampler.is_off}
    filters = [name for name, sampler in on.items() if sampler.sampler.group == "filter"]
    if "temperature" in on and max(on["temperature"].values["temperature"]) < GREEDY_BELOW and filters:
        return [f"a temperature below {GREEDY_BELOW:g} keeps only the best token that {', '.join(filters)} left"]
    return []


def _warnings(samplers: list[BoundSampler]) -> list[str]:
    """Settings that work against each other."""
    on = {sampler.name: sampler for sampler in samplers if not sampler.is_off}
    index = {name: i for i, name in enumerate(on)}
    warnings = []
    filters = [name for name, sampler in on.items() if sampler.sampler.group == "filter"]
    if "temperature" in on and "dynamic_temperature" in on:
        warnings.append("temperature and dynamic_temperature are both on: logits are scaled twice")
    mirostats = [name for name in ("mirostat_v1", "mirostat_v2") if name in on]
    if mirostats and filters:
        names = ", ".join(filters)
        warnings.append(f"{mirostats[0]} sets its own cutoff, and {names} truncates before it: turn one of them off")
    if "xtc" in on and (later := [name for name in ("min_p", "top_p") if index.get(name, -1) > index["xtc"]]):
        names = " and ".join(later)
        warnings.append(f"xtc runs before {names}, which then keeps unlikely tokens: put xtc last in the order")
    if "repetition_penalty" in on:
        penalty = max(on["repetition_penalty"].values["penalty"])
        if penalty > 1.2:
            warnings.append(
                f"repetition_penalty {penalty:g} is above 1.2: it penalises function words, digits, brackets"
            )
        if "dry" in on:
            warnings.append("repetition_penalty and dry are both on: one is enough, both penalise function words")
    return warnings
