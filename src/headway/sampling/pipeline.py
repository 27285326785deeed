"""A pipeline: stages in the order you say, from the model's logits to a token.

    pipe = Pipeline([{"stage": "top_k", "k": 40}, {"stage": "temperature", "temperature": 0.8}])
    pipe = Pipeline(preset="default", top_k=40, temperature=0.8)

    rows = pipe.apply(logits, history=[[1, 2, 3], …])          (B, V) → (B, V), removed tokens −inf
    ids, state = pipe.draw(logits, history=…, state=state)     one token a row

Two shortcuts make it fast, and neither changes a result. After `top_k` only the k columns that are left are computed
with, in the order of their ids, so that every stage works on them as on a whole row. And a temperature that stands
directly before `top_k` scales the k instead of the vocabulary: it changes no order.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from headway.errors import ConfigError, InputError, suggest
from headway.sampling.distribution import narrowed, probabilities
from headway.sampling.drawing import GREEDY_BELOW, as_logit_rows, check_logits, draw
from headway.sampling.history import History
from headway.sampling.parameters import flat_name
from headway.sampling.ranking import ranked
from headway.sampling.rng import TOKEN, XTC, seeds, uniform
from headway.sampling.samplers import PRESETS, SAMPLERS, BoundSampler, SamplerContext
from headway.sampling.settings import FLAT

NARROW_FROM = 8  # top_k narrows a row that has this many times k columns


@dataclass(frozen=True)
class SamplerState:
    """What a row carries from token to token: its seed, how many tokens it drew, and Mirostat's mu."""

    seed: Tensor  # (B,)
    position: Tensor  # (B,)
    mu: Tensor  # (B,)

    def to(self, device: torch.device) -> Self:
        return replace(self, seed=self.seed.to(device), position=self.position.to(device), mu=self.mu.to(device))

    def reorder(self, rows: Tensor | Sequence[int]) -> Self:
        index = torch.as_tensor(rows, dtype=torch.long, device=self.seed.device)
        return replace(self, seed=self.seed[index], position=self.position[index], mu=self.mu[index])


class Pipeline:
    """Stages applied from left to right. `stages` is a list of {"stage": name, parameter: value, …}; with a `preset`
    they are put in its order, and settings may be given by their flat names: `top_p=0.9, dry_multiplier=0.8`."""

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
                f'stages {stages!r}: a list of {{"stage": "top_k", "k": 40}}, or settings such as top_k=40'
            )
        given = [dict(stage) for stage in stages or []]
        for stage in given:
            if "stage" not in stage:
                raise ConfigError(f'a stage without a name: {stage!r}; each is {{"stage": "top_k", "k": 40}}')
        given += _from_settings(settings)
        alone = _without_strength(settings)
        calls = [BoundSampler.of(stage.pop("stage"), stage) for stage in given]
        names = [call.name for call in calls]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ConfigError(f"{repeated[0]} appears twice: a stage may appear once")
        self._take(_sorted(calls, preset, order))
        self.notes += alone

    def _take(self, calls: list[BoundSampler]) -> None:
        _check_order(calls)
        self.samplers, self.n_rows = calls, _count_rows(calls)
        self.notes, self.warnings = _notes(calls), _warnings(calls)
        self._plan = _plan([call for call in calls if not call.is_off])

    @classmethod
    def _of(cls, calls: list[BoundSampler]) -> "Pipeline":
        made = cls()
        made._take(calls)
        return made

    @classmethod
    def for_rows(cls, pipelines: Sequence[Any]) -> "Pipeline | PerRowPipeline":
        """One pipeline for a batch whose rows have each their own, of different stages even."""
        if not pipelines:
            raise ConfigError("no pipeline: one for each row")
        pipelines = [pipe if isinstance(pipe, Pipeline) else Pipeline(pipe) for pipe in pipelines]
        for order in (None, *PRESETS.values()):
            names = [call.name for call in pipelines[0].samplers] if order is None else order
            if all(_is_in_order(pipe, names) for pipe in pipelines):
                return cls._of(_merged(pipelines, names))
        return PerRowPipeline(pipelines)

    def __repr__(self) -> str:
        return f"Pipeline({self.stages})"

    @property
    def stages(self) -> list[dict[str, Any]]:
        """What the pipeline was made of, defaults filled in."""
        found = []
        for call in self.samplers:
            values = {name: rows if len(rows) > 1 else rows[0] for name, rows in call.values.items()}
            found.append({"stage": call.name, **{k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}})
        return found

    def only(self, *groups: str) -> "Pipeline":
        """The same with the stages of some groups alone."""
        return self._of([call for call in self.samplers if call.sampler.group in groups])

    def greedy(self) -> "Pipeline":
        """Bias, constraints and penalties, then the best token: what a request for temperature 0 means."""
        best = BoundSampler.of("temperature", {"temperature": 0.0})
        return self._of([*self.only("constraint", "penalty").samplers, best])

    def select(self, rows: Sequence[int]) -> "Pipeline":
        """The same for some rows of a batch, in this order."""
        return self if self.n_rows is None else self._of([call.select(rows) for call in self.samplers])

    def start(self, n_rows: int, seed: int | Sequence[int] | None = None, device: Any = "cpu") -> SamplerState:
        """The state of a new batch: row i draws from `seed + i`, or from the i-th of several seeds."""
        seed_column = seeds(n_rows, seed, device)
        if len(seed_column) != n_rows:
            raise InputError(f"{len(seed_column)} seeds for {n_rows} rows: one number, or one per row")
        position = torch.zeros(n_rows, dtype=torch.long, device=seed_column.device)
        return SamplerState(seed_column, position, self._first_mu(n_rows, seed_column.device))

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
        """logits (B, V) after all stages: (B, V), removed tokens −inf.

        `history` is a list of ids per row, or (ids, lengths), right-padded; the first `n_prompt` are the prompt's.
        `uniforms` (one per row, for xtc) and `mu` (for Mirostat) come from `state` where they are not given.
        """
        rows = as_logit_rows(logits)
        kept, ids = self._run(rows, self._around(rows, history, n_prompt, uniforms, mu, state))
        kept = narrowed(kept, rows.dtype)
        if ids is not None:
            return _whole(kept, ids, rows.shape[1])
        return kept.clone() if kept is logits else kept

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
        """One token a row (B,), and the state for the next. Without a state rows get new seeds.

        On a GPU, where looking for NaN would stall, a row that has no token to choose gets −1.
        """
        rows = as_logit_rows(logits)
        state = self.start(rows.shape[0], None, rows.device) if state is None else state
        kept, ids = self._run(rows, self._around(rows, history, n_prompt, uniforms, mu, state))
        place = draw(kept, uniform(state.seed, state.position, TOKEN))
        if rows.device.type != "cpu":
            place = torch.where(kept.amax(dim=-1).isfinite(), place, -1)
        token = place if ids is None else torch.where(place < 0, -1, ids.gather(1, place.clamp(min=0)[:, None])[:, 0])
        after = replace(state, position=state.position + 1)
        if self._mirostats:
            p = probabilities(kept).gather(1, place.clamp(min=0)[:, None])
            level = state.mu[:, None] if mu is None else _column(mu, rows)
            for call in self._mirostats:
                columns = call.on_device(rows.device)
                moved = level - columns["eta"] * (-p.log2().double() - columns["tau"])
                level = moved if call.on is None else torch.where(columns["on"], moved, level)
            after = replace(after, mu=level[:, 0])
        return token, after

    def explain(
        self,
        logits: Tensor,
        *,
        history: Any = None,
        n_prompt: Any = None,
        state: SamplerState | None = None,
        **rest: Any,
    ) -> Iterator[tuple[str, Tensor]]:
        """The rows (B, V) after each stage that is on, in the order given; first ("model", logits)."""
        rows = as_logit_rows(logits)
        check_logits(rows)
        around = self._around(rows, history, n_prompt, rest.get("uniforms"), rest.get("mu"), state)
        yield "model", rows
        for call in self.samplers:
            if not call.is_off:
                rows = call(rows, around)
                yield call.name, narrowed(rows, logits.dtype) if logits.dtype == torch.float32 else rows

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self, rows: Tensor, around: SamplerContext) -> tuple[Tensor, Tensor | None]:
        """The rows after all stages, and the ids of their columns where these are not the whole vocabulary."""
        ids: Tensor | None = None
        plan = self._plan
        if not (plan and plan[0].name == "top_k" and _narrows(plan[0], rows.shape[1])):
            check_logits(rows)  # otherwise below, on the best: NaN and inf are among them
        for i, call in enumerate(plan):
            if ids is not None and call.sampler.by_id:
                rows, ids = _whole(rows, ids, around.vocab_size), None
            if ids is None and call.name == "top_k" and _narrows(call, rows.shape[1]):
                most = max(call.most("k"), call.most("min_keep"))
                ids = ranked(rows, most).sort(dim=-1).values
                rows = rows.gather(1, ids)
                if i == 0:
                    check_logits(rows)
                if len(set(call.values["k"])) == 1 and call.most("min_keep") == 1:
                    continue  # exactly these
            rows = call(rows, around, ids)
        return rows, ids

    def _around(
        self, rows: Tensor, history: Any, n_prompt: Any, uniforms: Any, mu: Any, state: SamplerState | None
    ) -> SamplerContext:
        B = rows.shape[0]
        if self.n_rows not in (None, B):
            raise InputError(f"this pipeline has values for {self.n_rows} rows, the logits have {B}")
        if state is not None and state.seed.shape[0] != B:
            raise InputError(f"a state of {state.seed.shape[0]} rows for logits of {B}: reorder it with the rows")
        names = {call.name for call in self._plan}
        coin = None
        if "xtc" in names:
            coin = self._coin(rows, uniforms, state)
        level = None
        if self._mirostats:
            level = _column(mu, rows) if mu is not None else (
                state.mu[:, None] if state is not None else self._first_mu(B, rows.device)[:, None]
            )  # fmt: skip
        return SamplerContext(History.of(history, n_prompt, B, rows.device), coin, level, rows.shape[1])

    def _coin(self, rows: Tensor, uniforms: Any, state: SamplerState | None) -> Tensor:
        if uniforms is not None:
            return _column(uniforms, rows)
        if state is not None:
            return uniform(state.seed, state.position, XTC)[:, None]
        call = next(call for call in self._plan if call.name == "xtc")
        if set(call.values["probability"]) <= {0.0, 1.0}:
            return torch.zeros(rows.shape[0], 1, dtype=torch.float64, device=rows.device)
        raise InputError("xtc tosses a coin for each row: give uniforms=[…], numbers from 0 to below 1, or state=")

    @property
    def _mirostats(self) -> list[BoundSampler]:
        """One at most, but for rows that have different versions."""
        return [call for call in self._plan if call.sampler.group == "mirostat"]

    def _first_mu(self, n_rows: int, device: torch.device) -> Tensor:
        mu = torch.zeros(n_rows, 1, dtype=torch.float64, device=device)
        for call in self._mirostats:
            columns = call.on_device(device)
            mu = 2 * columns["tau"] if call.on is None else torch.where(columns["on"], 2 * columns["tau"], mu)
        return mu.expand(n_rows, 1)[:, 0].clone()


class PerRowPipeline:
    """Pipelines whose orders contradict each other, a row each: applied row by row."""

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
        column = seeds(n_rows, seed, device)
        states = [pipe.start(1, [int(s)], device) for pipe, s in zip(self.pipelines, column, strict=True)]
        return SamplerState(column, torch.cat([s.position for s in states]), torch.cat([s.mu for s in states]))

    def apply(self, logits: Tensor, **around: Any) -> Tensor:
        return torch.cat([pipe.apply(row, **rest) for pipe, row, rest in self._each(logits, around)])

    def draw(self, logits: Tensor, **around: Any) -> tuple[Tensor, SamplerState]:
        if around.get("state") is None:
            around["state"] = self.start(logits.shape[0], None, logits.device)
        drawn = [pipe.draw(row, **rest) for pipe, row, rest in self._each(logits, around)]
        parts = [torch.cat([getattr(state, name) for _, state in drawn]) for name in ("seed", "position", "mu")]
        return torch.cat([ids for ids, _ in drawn]), SamplerState(*parts)

    def _each(self, logits: Tensor, around: dict[str, Any]) -> Iterator[tuple[Pipeline, Tensor, dict[str, Any]]]:
        if logits.dim() != 2 or logits.shape[0] != self.n_rows:
            raise InputError(f"{self.n_rows} pipelines for logits of shape {tuple(logits.shape)}: one for each row")
        history = History.of(around.get("history"), around.get("n_prompt"), self.n_rows, logits.device)
        for i, pipe in enumerate(self.pipelines):
            row = torch.tensor([i], device=logits.device)
            rest: dict[str, Any] = {"history": history.reorder(row)}
            for name in ("uniforms", "mu"):
                if around.get(name) is not None:
                    rest[name] = torch.as_tensor(around[name]).reshape(-1).expand(self.n_rows)[i : i + 1]
            if around.get("state") is not None:
                rest["state"] = around["state"].reorder(row)
            yield pipe, logits[i : i + 1], rest


def _column(values: Any, rows: Tensor) -> Tensor:
    """One number, or one per row, as (B, 1)."""
    column = torch.as_tensor(values, dtype=torch.float64, device=rows.device).reshape(-1)
    if len(column) not in (1, rows.shape[0]):
        raise InputError(f"{len(column)} values for {rows.shape[0]} rows: one, or one per row")
    return column.expand(rows.shape[0])[:, None]


def _whole(rows: Tensor, ids: Tensor, vocab_size: int) -> Tensor:
    return rows.new_full((rows.shape[0], vocab_size), -torch.inf).scatter_(1, ids, rows)


def _narrows(call: BoundSampler, n_columns: int) -> bool:
    return call.on is None and NARROW_FROM * max(call.most("k"), call.most("min_keep")) <= n_columns


def _plan(calls: list[BoundSampler]) -> list[BoundSampler]:
    """The order of computing: temperatures directly before top_k after it."""
    plan = list(calls)
    for i in range(len(plan) - 1):
        first, second = plan[i], plan[i + 1]
        is_warm = first.name == "temperature" and min(first.values["temperature"]) >= GREEDY_BELOW
        if is_warm and second.name == "top_k" and second.on is None:
            plan[i : i + 2] = [second, first]
    return plan


def _merged(pipelines: Sequence[Pipeline], order: Sequence[str]) -> list[BoundSampler]:
    """The stages of several pipelines that agree on an order, with a value per row; on for the rows that have them."""
    calls = []
    for name in order:
        found = [next((call for call in pipe.samplers if call.name == name), None) for pipe in pipelines]
        some = next((call for call in found if call is not None), None)
        if some is not None:
            on = [call is not None and not call.is_off for call in found]
            values = {key: [(call or some).values[key][0] for call in found] for key in some.values}
            calls.append(BoundSampler(some.sampler, values, None if all(on) else on))
    return calls


def _count_rows(calls: list[BoundSampler]) -> int | None:
    found = {call.name: call.n_rows for call in calls if call.n_rows is not None}
    if len(set(found.values())) > 1:
        said = ", ".join(f"{name} {n}" for name, n in found.items())
        raise ConfigError(f"stages have values for different numbers of rows: {said}")
    return next(iter(found.values()), None)


def _check_order(calls: list[BoundSampler]) -> None:
    """Mirostat is the last filter. (Rows may have different versions of it: then each has one.)"""
    for i, call in enumerate(calls):
        if call.sampler.group == "mirostat":
            for later in calls[i + 1 :]:
                n = max(len(call.on or [1]), len(later.on or [1]))
                meet = any(a and b for a, b in zip(call.on or [True] * n, later.on or [True] * n, strict=False))
                if later.sampler.group in ("filter", "mirostat") and meet:
                    raise ConfigError(
                        f"{later.name} stands after {call.name}, which must be the last filter: it measures what was "
                        f"drawn from what it kept"
                    )


def _is_in_order(pipe: Pipeline, order: Sequence[str]) -> bool:
    names = [call.name for call in pipe.samplers]
    return pipe.n_rows is None and set(names) <= set(order) and names == [name for name in order if name in names]


def _sorted(calls: list[BoundSampler], preset: str | None, order: Sequence[str] | None) -> list[BoundSampler]:
    if order is not None:
        for name in order:
            if name not in SAMPLERS:
                BoundSampler.of(name, {})  # says so
        if repeated := [name for name in order if list(order).count(name) > 1]:
            raise ConfigError(f"{repeated[0]} appears twice in the order: a stage may appear once")
        if missing := [call.name for call in calls if call.name not in order]:
            raise ConfigError(f"{missing[0]} is set but not in the order {', '.join(order)}: add it, or leave it unset")
        return sorted(calls, key=lambda call: list(order).index(call.name))
    if preset is None:
        return calls
    if preset not in PRESETS:
        raise ConfigError(
            f"no order preset named {preset!r}.{suggest(preset, PRESETS)} There are: {', '.join(PRESETS)}"
        )
    return sorted(calls, key=lambda call: PRESETS[preset].index(call.name))


def _from_settings(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Flat settings as stages; a stage whose settings are all None is left out."""
    stages: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if name in SAMPLERS and isinstance(value, Mapping) and set(value) & set(SAMPLERS[name].parameters):
            stages.setdefault(name, {"stage": name}).update(value)
            continue
        if name not in FLAT:
            several = [flat for flat, (stage, _) in FLAT.items() if stage == name]
            near = f" Its settings are {', '.join(several)}." if several else suggest(name, FLAT)
            raise ConfigError(f"no setting named {name!r}.{near} `headway generate --list-samplers` shows them all")
        if value is not None:
            stage, parameter = FLAT[name]
            stages.setdefault(stage, {"stage": stage})[parameter] = value
    return list(stages.values())


def _without_strength(settings: Mapping[str, Any]) -> list[str]:
    """Settings of a stage that nothing turns on."""
    given = [name for name, value in settings.items() if value is not None]
    found = []
    for name in given:
        stage, parameter = FLAT.get(name, (name, ""))
        strengths = [p for p, kind in SAMPLERS[stage].parameters.items() if kind.default is None]
        flat = [flat_name(stage, p) for p in strengths]
        if parameter not in strengths and name in FLAT and flat and not set(flat) & set(given):
            found.append(f"{name} is set, but {flat[0]} is not, which turns {stage} on")
    return found


def _notes(calls: list[BoundSampler]) -> list[str]:
    """Settings without effect."""
    on = {call.name: call for call in calls if not call.is_off}
    filters = [name for name, call in on.items() if call.sampler.group == "filter"]
    if "temperature" in on and max(on["temperature"].values["temperature"]) < GREEDY_BELOW and filters:
        return [f"temperature below {GREEDY_BELOW:g} keeps one token, the best that {', '.join(filters)} left"]
    return []


def _warnings(calls: list[BoundSampler]) -> list[str]:
    """Settings that work against each other."""
    on = {call.name: call for call in calls if not call.is_off}
    place = {name: i for i, name in enumerate(on)}
    found = []
    filters = [name for name, call in on.items() if call.sampler.group == "filter"]
    if "temperature" in on and "dynamic_temperature" in on:
        found.append("temperature and dynamic_temperature are both on: logits are scaled twice")
    steering = [name for name in ("mirostat_v1", "mirostat_v2") if name in on]
    if steering and filters:
        found.append(f"{steering[0]} steers what {', '.join(filters)} caps without its knowing: leave one of them out")
    if "xtc" in on and (later := [name for name in ("min_p", "top_p") if place.get(name, -1) > place["xtc"]]):
        found.append(f"xtc stands before {' and '.join(later)}: with the top choices gone, the tail enters")
    if "repetition_penalty" in on:
        most = max(on["repetition_penalty"].values["penalty"])
        if most > 1.2:
            found.append(f"repetition_penalty {most:g} is above 1.2: it punishes function words, digits and brackets")
        if "dry" in on:
            found.append("repetition_penalty with dry: one of them is enough, both punish function words")
    return found
