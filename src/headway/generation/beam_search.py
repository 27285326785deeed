"""Beam search: keep the B most likely beginnings, instead of one (Wu et al. 2016, §7; the procedure is transformers').

    score = (sum of log-probabilities) / norm(length),   norm: length^α, or ((5 + length)/6)^α

Each step continues every live beam by every token, and looks at the best few of all: those that end a text go to the
finished ones, the best B others live on. Of one text there are never two beams, since all grow from the one prompt.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from headway.devices import varying_shapes
from headway.errors import ConfigError
from headway.generation.inputs import (
    Prompts,
    check_int,
    decode_step,
    is_number,
    prefill,
    prompt_lists,
    search_processors,
    token_id_set,
)
from headway.models.base import LanguageModel, eval_mode
from headway.nn.linear import PackedWeights
from headway.sampling import PerRowPipeline, Pipeline
from headway.sampling.drawing import check_logits
from headway.sampling.ranking import ranked

NORMS: dict[str, Callable[[int, float], float]] = {
    "power": lambda length, alpha: _power(length, alpha),
    "gnmt": lambda length, alpha: _power((5 + length) / 6, alpha),  # Wu et al. 2016, eq. 14
}


def _power(base: float, alpha: float) -> float:
    """Short of overflow."""
    return math.exp(min(max(alpha * math.log(base), -700.0), 700.0)) if abs(alpha) > 100 else base**alpha


PRUNE_EVERY = 12  # tokens, after which what no beam goes on from is forgotten
MANY = 4096  # columns from which probabilities are computed in float32: sums of them are in float64 always


class Hypothesis(NamedTuple):
    tokens: list[int]  # generated, the end token included
    score: float
    log_prob: float  # summed
    ended: bool  # by an end token, not by the length


class _Beam(NamedTuple):
    value: float  # sum of log-probabilities
    tokens: list[int]
    slot: int  # its row of the state


def beam_search(
    model: Any,
    prompt: Prompts,
    *,
    num_beams: int = 5,
    max_new_tokens: int,
    eos_ids: Iterable[int] | int = (),
    length_penalty: float = 1.0,
    length_norm: str = "power",
    early_stopping: bool | Literal["never"] = False,
    n_best: int = 1,
    pipeline: Pipeline | PerRowPipeline | Sequence[Mapping[str, Any]] | None = None,
    state: Any = None,
    vocab_size: int | None = None,
) -> list[list[Hypothesis]]:
    """For each row of the prompt its `n_best` continuations, best first.

    `model` needs `start(batch_size=…)`, `step(ids, state)` and a state with `reorder(rows)`. A model with a source is
    started by the caller: `state=model.start(source=…)`. One beam is greedy search. `pipeline` may hold bias,
    constraints and penalties; they act on log-probabilities. `early_stopping`: True ends a row at its B-th finished
    text, False when no live beam beats the worst of them as it stands, "never" when none can, however long it grows.
    """
    rules = make_beam_config(num_beams, max_new_tokens, eos_ids, length_penalty, length_norm, early_stopping, n_best)
    prompts = prompt_lists(prompt)
    pipe = search_processors(pipeline, "beam search", len(prompts))
    is_ragged = len({len(row) for row in prompts}) > 1
    with eval_mode(model), varying_shapes(), PackedWeights(), torch.inference_mode():
        if is_ragged and not isinstance(model, LanguageModel):  # which takes rows of one length only
            found = []
            for i, row in enumerate(prompts):
                own = None if state is None else state.reorder(torch.tensor([i]))
                found += _search(model, [row], rules, pipe.select([i]), own, vocab_size)
        else:
            found = _search(model, prompts, rules, pipe, state, vocab_size)
    return [done[: int(n_best)] for done in found]


def make_beam_config(
    num_beams: int,
    max_new_tokens: int,
    eos_ids: Iterable[int] | int,
    length_penalty: float,
    length_norm: str,
    early_stopping: bool | str,
    n_best: int,
) -> "BeamConfig":
    """The options of a beam search, checked."""
    check_int("num_beams", num_beams, 1)
    check_int("max_new_tokens", max_new_tokens, 1)
    check_int("n_best", n_best, 1, num_beams)
    if not isinstance(length_norm, str) or length_norm not in NORMS:
        raise ConfigError(f"length_norm={length_norm!r} must be one of {', '.join(NORMS)}")
    if not is_number(length_penalty):
        raise ConfigError(f"length_penalty={length_penalty!r} must be a number; 0 is none")
    if (isinstance(early_stopping, str) and early_stopping != "never") or early_stopping not in (True, False, "never"):
        raise ConfigError(f"early_stopping={early_stopping!r} must be True, False or 'never'")
    early = early_stopping if isinstance(early_stopping, str) else bool(early_stopping)
    alpha, norm = float(length_penalty), NORMS[length_norm]
    return BeamConfig(int(num_beams), int(max_new_tokens), token_id_set(eos_ids), alpha, norm, early)


class BeamConfig(NamedTuple):
    n_beams: int
    longest: int
    eos: frozenset[int]
    alpha: float
    norm: Callable[[int, float], float]
    early: bool | str

    @property
    def n_candidates(self) -> int:
        """Enough that B of them do not end, even if every beam could end in every way."""
        return max(2, 1 + len(self.eos)) * self.n_beams

    def sort(
        self, candidates: list[tuple[float, _Beam, int]], step: int, done: list[Hypothesis]
    ) -> tuple[list[tuple[float, _Beam, int]], list[Hypothesis]]:
        """The best candidates (value, beam, token) in order → those that live on, and all that are finished."""
        live: list[tuple[float, _Beam, int]] = []
        for rank, (value, beam, token) in enumerate(candidates):
            is_end = token in self.eos
            if is_end or step == self.longest:
                if rank < self.n_beams:
                    score = value / self.norm(step, self.alpha)
                    done = [*done, Hypothesis([*beam.tokens, token], score, value, is_end)]
            elif len(live) < self.n_beams:
                live.append((value, beam, token))
        return live, sorted(done, key=lambda h: -h.score)[: self.n_beams]

    def is_over(self, live: list[tuple[float, _Beam, int]], step: int, done: list[Hypothesis]) -> bool:
        if not live:
            return True
        if len(done) < self.n_beams:
            return False
        if self.early is True or self.n_beams == 1:  # one beam is greedy: it ends where the best token ends it
            return True
        length = self.longest if self.early == "never" and self.alpha > 0 else step
        return live[0][0] / self.norm(length, self.alpha) <= done[-1].score


def _search(
    model: Any,
    prompts: list[list[int]],
    rules: BeamConfig,
    pipe: Pipeline | PerRowPipeline,
    state: Any,
    vocab_size: int | None,
) -> list[list[Hypothesis]]:
    done: list[list[Hypothesis]] = [[] for _ in prompts]
    beams: dict[int, list[_Beam]] = {row: [_Beam(0.0, [], row)] for row in range(len(prompts))}  # of rows not over
    logits, state = prefill(model, prompts, state, max(map(len, prompts)) + rules.longest)
    can_branch = rules.n_beams > 1 and hasattr(state, "branch")
    texts = SharedCacheBeams(model, state, rules.n_beams, len(prompts)) if can_branch else CopyingBeams(model, state)
    for step in range(1, rules.longest + 1):
        found = _candidates(logits[:, :vocab_size], beams, prompts, rules, pipe)
        nexts: dict[int, list[tuple[float, _Beam, int]]] = {}
        for row, candidates in found.items():
            live, done[row] = rules.sort(candidates, step, done[row])
            if not rules.is_over(live, step, done[row]):
                nexts[row] = live
        if not nexts:
            break
        logits = texts.advance(nexts)
        slots = iter(range(logits.shape[0]))
        beams = {
            row: [_Beam(value, [*beam.tokens, token], next(slots)) for value, beam, token in live]
            for row, live in nexts.items()
        }
    return done


class CopyingBeams:
    """The texts so far by the heart of the contract: every beam a row of its own, copied where beams change places."""

    def __init__(self, model: Any, state: Any):
        self.model, self.state = model, state
        self.n_slots: int | None = None

    def advance(self, nexts: dict[int, list[tuple[float, _Beam, int]]]) -> Tensor:
        """Logits (slots, V) after the new tokens of all rows, one row after the other."""
        chosen = [(beam.slot, token) for live in nexts.values() for _, beam, token in live]
        parents = [slot for slot, _ in chosen]
        if parents != list(range(self.n_slots or 0)):  # where every beam goes on in its place, nothing moves
            self.state = self.state.reorder(torch.tensor(parents))
        self.n_slots = len(parents)
        ids = torch.tensor([[token] for _, token in chosen], device=getattr(self.model, "device", "cpu"))
        logits, self.state = decode_step(self.model, ids, self.state)
        return logits


class SharedCacheBeams:
    """The texts so far where the state can branch: rows keep their place, and beams share what they have in common."""

    def __init__(self, model: Any, state: Any, n_beams: int, n_rows: int):
        self.model, self.state, self.n_beams = model, state.branch(n_beams), n_beams
        self.rows = list(range(n_rows))  # those still in the state
        self.places = list(range(n_rows))  # of each slot its beam: that of row i begin at i · n_beams
        self.is_first = True
        self.n_steps = 0

    def advance(self, nexts: dict[int, list[tuple[float, _Beam, int]]]) -> Tensor:
        if len(nexts) < len(self.rows):
            self.state = self.state.reorder(torch.tensor([i for i, row in enumerate(self.rows) if row in nexts]))
            self.rows = [row for row in self.rows if row in nexts]
        parents, tokens, places = [], [], []
        for i, row in enumerate(self.rows):
            live = nexts[row]
            places += [i * self.n_beams + j for j in range(len(live))]
            padded = [*live, *live[:1] * (self.n_beams - len(live))]  # where there are fewer, the first again
            parents.append([0 if self.is_first else self.places[beam.slot] % self.n_beams for _, beam, _ in padded])
            tokens.append([token for _, _, token in padded])
        self.state = self.state.follow(torch.tensor(parents))
        self.places, self.is_first = places, False
        self.n_steps += 1
        if self.n_steps % PRUNE_EVERY == 0:
            self.state = self.state.pruned()
        logits, self.state = self.model.step(torch.tensor(tokens, device=self.model.device), self.state)
        flat = logits.flatten(0, 1)  # (rows · n_beams, V)
        return flat if len(places) == len(flat) else flat[torch.tensor(places, device=flat.device)]


def _candidates(
    logits: Tensor,
    beams: dict[int, list[_Beam]],
    prompts: list[list[int]],
    rules: BeamConfig,
    pipe: Pipeline | PerRowPipeline,
) -> dict[int, list[tuple[float, _Beam, int]]]:
    """Of each row the best continuations of all its beams: value descending, then better beam, then lower token."""
    check_logits(logits)
    flat = [(row, beam) for row, some in beams.items() for beam in some]
    acts = not isinstance(pipe, Pipeline) or bool(pipe.samplers)
    is_long = logits.dtype == torch.float32 and logits.shape[1] > MANY and not acts
    log_p = (logits if is_long else logits.double()).log_softmax(dim=-1)  # (slots, V)
    if acts:
        history = [prompts[row] + beam.tokens for row, beam in flat]
        each = pipe.select([row for row, _ in flat])
        log_p = each.apply(log_p, history=history, n_prompt=[len(prompts[row]) for row, _ in flat])
    V = log_p.shape[1]
    n = min(rules.n_candidates, V * max(map(len, beams.values())))
    best = ranked(logits if is_long else log_p, min(n, V))  # the best of each beam hold the best of all
    before = torch.tensor([beam.value for _, beam in flat], dtype=torch.float64, device=log_p.device)[:, None]
    value = log_p.gather(1, best).double() + before  # (slots, k)
    # The k of all beams of a row side by side, those of better beams first; a stable sort leaves equals in that order.
    slots = [[beam.slot for beam in some] for some in beams.values()]
    widest = max(map(len, slots))
    index = torch.tensor([[*some, *some[:1] * (widest - len(some))] for some in slots], device=log_p.device)
    value, best = value[index], best[index]  # (rows, beams, k)
    for i, some in enumerate(slots):
        value[i, len(some) :] = -math.inf
    order = value.flatten(1).sort(dim=-1, descending=True, stable=True).indices[:, : rules.n_candidates]
    values, tokens = (x.flatten(1).gather(1, order).tolist() for x in (value, best))
    parents = (order // best.shape[2]).tolist()
    return {
        row: [(v, beams[row][j], token) for v, j, token in zip(*those, strict=True) if v > -math.inf]
        for row, *those in zip(beams, values, parents, tokens, strict=True)
    }
