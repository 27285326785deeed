"""Beam search: keep the B most likely prefixes instead of one (Wu et al. 2016, §7; the procedure is transformers').

    score = (sum of log-probabilities) / norm(length),   norm: length^α, or ((5 + length)/6)^α

Each step extends every active beam by every token and ranks all candidates. Candidates that end in EOS become finished
hypotheses; the best B others are the next active beams. No two beams hold the same text, since all start from one
prompt.

The search works on many prompts at once. A *row* is a prompt; a *slot* is a row of the logits and of the state, which
holds one beam of one prompt.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from headway.devices import without_cudnn_attention
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
from headway.nn.kernels.cpu_linear import CPUKernels
from headway.sampling import PerRowPipeline, Pipeline
from headway.sampling.drawing import check_logits
from headway.sampling.ranking import ranked

LENGTH_NORMS: dict[str, Callable[[int, float], float]] = {
    "power": lambda length, alpha: _power(length, alpha),
    "gnmt": lambda length, alpha: _power((5 + length) / 6, alpha),  # Wu et al. 2016, eq. 14
}
PRUNE_EVERY_TOKENS = 12  # drop cache slots that no beam attends to any more
FLOAT32_FROM_COLUMNS = 4096  # vocabulary from which log-probabilities are float32; their sums are always float64


def _power(base: float, alpha: float) -> float:
    """base^alpha, clamped so that it neither overflows nor underflows."""
    return math.exp(min(max(alpha * math.log(base), -700.0), 700.0)) if abs(alpha) > 100 else base**alpha


class Hypothesis(NamedTuple):
    """A continuation that a search found."""

    tokens: list[int]  # generated, EOS included
    score: float
    log_prob: float  # summed
    ended: bool  # by EOS, not by the length limit

    @property
    def tokens_without_eos(self) -> list[int]:
        return self.tokens[:-1] if self.ended else self.tokens


class _Beam(NamedTuple):
    log_prob: float  # summed
    tokens: list[int]
    slot: int


class _Candidate(NamedTuple):
    """A beam extended by one token."""

    log_prob: float  # summed
    beam: _Beam
    token: int


_Candidates = dict[int, list[_Candidate]]  # by row, best first


class TracedCandidate(NamedTuple):
    """A candidate of a step, and what became of it."""

    tokens: list[int]
    parent: int  # index of the beam that it extends among the beams that were active before the step
    token_log_prob: float  # of its last token
    log_prob: float  # summed
    score: float
    fate: Literal["live", "finished", "dropped"]


class BeamStep(NamedTuple):
    """A step of the search for one row, as `on_step` gets it."""

    row: int
    length: int  # tokens of each candidate
    candidates: list[TracedCandidate]  # best first, before the length norm
    finished: list[Hypothesis]  # after the step, best first
    is_done: bool  # the search of the row is over, and its live beams are given up


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
    on_step: Callable[[BeamStep], None] | None = None,
) -> list[list[Hypothesis]]:
    """For each row of the prompt its `n_best` continuations, best first.

    `model` needs `start(batch_size=…)`, `step(ids, state)` and a state with `reorder(rows)`. For an encoder-decoder,
    pass `state=model.start(source=…)`. One beam is greedy search. `pipeline` may hold bias, constraints and penalties;
    they act on log-probabilities. A row is done once B hypotheses are finished and, depending on `early_stopping`:

    - True: at once;
    - False: if no active beam, scored at its current length, beats the worst of them;
    - "never": if no active beam can beat it at any length.

    `on_step` is called with every step of every row; it changes nothing.
    """
    config = make_beam_config(num_beams, max_new_tokens, eos_ids, length_penalty, length_norm, early_stopping, n_best)
    prompts = prompt_lists(prompt)
    pipe = search_processors(pipeline, "beam search", len(prompts))
    return run_beam_search(model, prompts, config, pipe, state=state, vocab_size=vocab_size, on_step=on_step)


def run_beam_search(
    model: Any,
    prompts: list[list[int]],
    config: "BeamConfig",
    pipe: Pipeline | PerRowPipeline,
    *,
    state: Any = None,
    vocab_size: int | None = None,
    on_step: Callable[[BeamStep], None] | None = None,
) -> list[list[Hypothesis]]:
    """`beam_search` with options that are checked already."""
    is_ragged = len({len(row) for row in prompts}) > 1
    with eval_mode(model), without_cudnn_attention(), CPUKernels(model), torch.inference_mode():
        if is_ragged and not isinstance(model, LanguageModel):  # such a model takes rows of equal length only
            hypotheses = []
            for i, row in enumerate(prompts):
                row_state = None if state is None else state.reorder(torch.tensor([i]))
                hypotheses += _search(
                    model, [row], config, pipe.select([i]), row_state, vocab_size, on_row_step(on_step, [i])
                )
        else:
            hypotheses = _search(model, prompts, config, pipe, state, vocab_size, on_step)
    return [row[: config.n_best] for row in hypotheses]


def on_row_step(on_step: Callable[[BeamStep], None] | None, rows: Sequence[int]) -> Callable[[BeamStep], None] | None:
    """`on_step` for a search over some of the rows: its row i is `rows[i]`."""
    return None if on_step is None else lambda step: on_step(step._replace(row=rows[step.row]))


def make_beam_config(
    num_beams: int,
    max_new_tokens: int,
    eos_ids: Iterable[int] | int,
    length_penalty: float,
    length_norm: str,
    early_stopping: bool | str,
    n_best: int,
) -> "BeamConfig":
    """Check the options of a beam search."""
    check_int("num_beams", num_beams, 1)
    check_int("max_new_tokens", max_new_tokens, 1)
    check_int("n_best", n_best, 1, num_beams)
    if not isinstance(length_norm, str) or length_norm not in LENGTH_NORMS:
        raise ConfigError(f"length_norm={length_norm!r} must be one of {', '.join(LENGTH_NORMS)}")
    if not is_number(length_penalty):
        raise ConfigError(f"length_penalty={length_penalty!r} must be a number; 0 turns it off")
    if (isinstance(early_stopping, str) and early_stopping != "never") or early_stopping not in (True, False, "never"):
        raise ConfigError(f"early_stopping={early_stopping!r} must be True, False or 'never'")
    return BeamConfig(
        num_beams=int(num_beams),
        max_new_tokens=int(max_new_tokens),
        eos_ids=token_id_set(eos_ids),
        alpha=float(length_penalty),
        norm=LENGTH_NORMS[length_norm],
        early_stopping=early_stopping if isinstance(early_stopping, str) else bool(early_stopping),
        n_best=int(n_best),
    )


class BeamConfig(NamedTuple):
    """The options of a beam search, and the rules that follow from them."""

    num_beams: int
    max_new_tokens: int
    eos_ids: frozenset[int]
    alpha: float  # length penalty
    norm: Callable[[int, float], float]  # (length, α) → what the summed log-probability is divided by
    early_stopping: bool | str
    n_best: int

    @property
    def n_candidates(self) -> int:
        """Enough that `num_beams` of them are not EOS, even if every beam offers every EOS token."""
        return max(2, 1 + len(self.eos_ids)) * self.num_beams

    def select(
        self, candidates: list[_Candidate], length: int, finished: list[Hypothesis]
    ) -> tuple[list[_Candidate], list[Hypothesis]]:
        """Split ranked candidates of `length` tokens into those that stay active and those that finish; the latter
        join `finished`, of which the best `num_beams` are kept."""
        active: list[_Candidate] = []
        for rank, candidate in enumerate(candidates):
            is_eos = candidate.token in self.eos_ids
            if is_eos or length == self.max_new_tokens:
                if rank < self.num_beams:
                    score = candidate.log_prob / self.norm(length, self.alpha)
                    tokens = [*candidate.beam.tokens, candidate.token]
                    finished = [*finished, Hypothesis(tokens, score, candidate.log_prob, is_eos)]
            elif len(active) < self.num_beams:
                active.append(candidate)
        return active, sorted(finished, key=lambda h: -h.score)[: self.num_beams]

    def is_done(self, active: list[_Candidate], length: int, finished: list[Hypothesis]) -> bool:
        """Whether the search of a row is over."""
        if not active:
            return True
        if len(finished) < self.num_beams:
            return False
        if self.early_stopping is True or self.num_beams == 1:  # one beam is greedy: it ends at its first EOS
            return True
        best_length = self.max_new_tokens if self.early_stopping == "never" and self.alpha > 0 else length
        return active[0].log_prob / self.norm(best_length, self.alpha) <= finished[-1].score


def _search(
    model: Any,
    prompts: list[list[int]],
    config: BeamConfig,
    pipe: Pipeline | PerRowPipeline,
    state: Any,
    vocab_size: int | None,
    on_step: Callable[[BeamStep], None] | None,
) -> list[list[Hypothesis]]:
    """The finished hypotheses of each prompt, best first."""
    logits, state = prefill(model, prompts, state, max(map(len, prompts)) + config.max_new_tokens)
    decoder = _beam_decoder(model, state, config.num_beams, len(prompts))
    beams = {row: [_Beam(0.0, [], slot=row)] for row in range(len(prompts))}  # of rows still searching
    finished: list[list[Hypothesis]] = [[] for _ in prompts]
    for length in range(1, config.max_new_tokens + 1):
        survivors: _Candidates = {}
        for row, candidates in _best_candidates(logits[:, :vocab_size], beams, prompts, config, pipe).items():
            active, finished[row] = config.select(candidates, length, finished[row])
            is_done = config.is_done(active, length, finished[row])
            if not is_done:
                survivors[row] = active
            if on_step is not None:
                traced = _traced(candidates, beams[row], active, length, config)
                on_step(BeamStep(row, length, traced, finished[row], is_done))
        if not survivors:
            break
        logits = decoder.step(survivors)
        slots = iter(range(logits.shape[0]))
        beams = {
            row: [_Beam(c.log_prob, [*c.beam.tokens, c.token], next(slots)) for c in candidates]
            for row, candidates in survivors.items()
        }
    return finished


def _traced(
    candidates: list[_Candidate], beams: list[_Beam], active: list[_Candidate], length: int, config: BeamConfig
) -> list[TracedCandidate]:
    """The candidates of a step for `on_step`, after `BeamConfig.select` kept those that are `active`."""
    traced = []
    for rank, (log_prob, beam, token) in enumerate(candidates):
        is_finished = (token in config.eos_ids or length == config.max_new_tokens) and rank < config.num_beams
        is_live = any(candidates[rank] is candidate for candidate in active)
        fate: Literal["live", "finished", "dropped"] = "live" if is_live else "finished" if is_finished else "dropped"
        score = log_prob / config.norm(length, config.alpha)
        tokens, token_log_prob = [*beam.tokens, token], log_prob - beam.log_prob
        traced.append(TracedCandidate(tokens, beams.index(beam), token_log_prob, log_prob, score, fate))
    return traced


# ── decode steps ──────────────────────────────────────────────────────────────────────────────────────────────────


def _beam_decoder(model: Any, state: Any, num_beams: int, n_rows: int) -> "CopyingBeams | SharedCacheBeams":
    if num_beams > 1 and hasattr(state, "branch"):
        return SharedCacheBeams(model, state, num_beams, n_rows)
    return CopyingBeams(model, state)


class CopyingBeams:
    """Beams for any state: every beam is a row of the state, and `reorder` copies it when a beam has a new parent."""

    def __init__(self, model: Any, state: Any):
        self.model, self.state = model, state
        self.n_slots = 0

    def step(self, survivors: _Candidates) -> Tensor:
        """Logits (slots, V) after the survivors' tokens, row by row."""
        candidates = [candidate for row in survivors.values() for candidate in row]
        parents = [candidate.beam.slot for candidate in candidates]
        if parents != list(range(self.n_slots)):  # if every beam continues in its own slot, nothing moves
            self.state = self.state.reorder(torch.tensor(parents))
        self.n_slots = len(parents)
        ids = torch.tensor([[c.token] for c in candidates], device=getattr(self.model, "device", "cpu"))
        logits, self.state = decode_step(self.model, ids, self.state)
        return logits


class SharedCacheBeams:
    """Beams for a state that can `branch`: the beams of a row share the cache of their common prefix
    (nn/beam_cache.py). The state has one row per prompt and `num_beams` tokens per step."""

    def __init__(self, model: Any, state: Any, num_beams: int, n_rows: int):
        self.model, self.state, self.num_beams = model, state.branch(num_beams), num_beams
        self.rows = list(range(n_rows))  # rows still in the state
        self.beam_of_slot = [0] * n_rows  # the beam, from 0 to num_beams − 1 within its row, that each slot holds
        self.n_steps = 0

    def step(self, survivors: _Candidates) -> Tensor:
        """Logits (slots, V) after the survivors' tokens, row by row."""
        if len(survivors) < len(self.rows):
            self.state = self.state.reorder(torch.tensor([i for i, row in enumerate(self.rows) if row in survivors]))
            self.rows = [row for row in self.rows if row in survivors]
        parents, tokens = [], []
        for row in self.rows:
            candidates = survivors[row]
            padded = [*candidates, *candidates[:1] * (self.num_beams - len(candidates))]  # the state needs all beams
            parents.append([self.beam_of_slot[candidate.beam.slot] for candidate in padded])
            tokens.append([candidate.token for candidate in padded])
        self.state = self.state.follow(torch.tensor(parents))
        self.beam_of_slot = [beam for row in self.rows for beam in range(len(survivors[row]))]
        self.n_steps += 1
        if self.n_steps % PRUNE_EVERY_TOKENS == 0:
            self.state = self.state.pruned()
        logits, self.state = self.model.step(torch.tensor(tokens, device=self.model.device), self.state)
        logits = logits.flatten(0, 1)  # (rows · num_beams, V), padding included
        if len(self.beam_of_slot) == len(logits):
            return logits
        starts = {row: i * self.num_beams for i, row in enumerate(self.rows)}
        index = [starts[row] + beam for row in self.rows for beam in range(len(survivors[row]))]
        return logits[torch.tensor(index, device=logits.device)]


# ── candidates ────────────────────────────────────────────────────────────────────────────────────────────────────


def _best_candidates(
    logits: Tensor,
    beams: dict[int, list[_Beam]],
    prompts: list[list[int]],
    config: BeamConfig,
    pipe: Pipeline | PerRowPipeline,
) -> _Candidates:
    """The best extensions of the beams of each row: by summed log-probability, then by beam, then by token id."""
    check_logits(logits)
    rows_and_beams = [(row, beam) for row, row_beams in beams.items() for beam in row_beams]
    log_p, ranking_keys = _log_probs(logits, rows_and_beams, prompts, pipe)
    V = log_p.shape[1]
    n_candidates = min(config.n_candidates, V * max(map(len, beams.values())))
    tokens = ranked(ranking_keys, min(n_candidates, V))  # (slots, k): the best of each beam contain the best of all
    sums = torch.tensor([beam.log_prob for _, beam in rows_and_beams], dtype=torch.float64, device=log_p.device)
    values = log_p.gather(1, tokens).double() + sums[:, None]  # (slots, k)
    values, tokens = _beams_side_by_side(values, tokens, beams)  # (rows, beams, k)
    # A stable sort keeps equal values in order of their beams, the better beam first.
    order = values.flatten(1).sort(dim=-1, descending=True, stable=True).indices[:, : config.n_candidates]
    best_values, best_tokens = (x.flatten(1).gather(1, order).tolist() for x in (values, tokens))
    parents = (order // tokens.shape[2]).tolist()
    return {
        row: [
            _Candidate(value, beams[row][parent], token)
            for value, parent, token in zip(*columns, strict=True)
            if value > -math.inf
        ]
        for row, *columns in zip(beams, best_values, parents, best_tokens, strict=True)
    }


def _log_probs(
    logits: Tensor, rows_and_beams: list[tuple[int, _Beam]], prompts: list[list[int]], pipe: Pipeline | PerRowPipeline
) -> tuple[Tensor, Tensor]:
    """Log-probabilities (slots, V) after constraints and penalties, and the values to rank tokens by: the same, or the
    logits in float32, where rounding in log_softmax would create ties."""
    has_processors = not isinstance(pipe, Pipeline) or bool(pipe.samplers)
    if logits.dtype == torch.float32 and logits.shape[1] > FLOAT32_FROM_COLUMNS and not has_processors:
        return logits.log_softmax(dim=-1), logits
    log_p = logits.double().log_softmax(dim=-1)
    if has_processors:
        history = [prompts[row] + beam.tokens for row, beam in rows_and_beams]
        n_prompt = [len(prompts[row]) for row, _ in rows_and_beams]
        log_p = pipe.select([row for row, _ in rows_and_beams]).apply(log_p, history=history, n_prompt=n_prompt)
    return log_p, log_p


def _beams_side_by_side(values: Tensor, tokens: Tensor, beams: dict[int, list[_Beam]]) -> tuple[Tensor, Tensor]:
    """Regroup (slots, k) as (rows, beams, k). Rows with fewer beams are padded with values of −inf."""
    slots = [[beam.slot for beam in row_beams] for row_beams in beams.values()]
    n_beams = max(map(len, slots))
    index = torch.tensor([[*row, *row[:1] * (n_beams - len(row))] for row in slots], device=values.device)
    values, tokens = values[index], tokens[index]
    for i, row in enumerate(slots):
        values[i, len(row) :] = -math.inf
    return values, tokens
