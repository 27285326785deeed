"""Contrastive search: tokens that are likely, but unlike the text so far (Su et al. 2022).

    score(v) = (1 − α) p(v) − α max_j cos(h_v, h_j)

over the k most likely tokens v; h_v is the last hidden state after appending v, h_j are those of the text so far. Each
token costs a decode step of k rows. The search is deterministic.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.errors import ConfigError, InputError
from headway.generation.beam_search import Hypothesis
from headway.generation.inputs import Prompts, check_int, is_number, prompt_lists, search_processors, token_id_set
from headway.models.base import described, eval_mode
from headway.nn.kernels.cpu_linear import CPUKernels
from headway.nn.masks import padding
from headway.nn.padding import pad_ids
from headway.sampling import PerRowPipeline, Pipeline
from headway.sampling.drawing import as_logit_rows, check_logits
from headway.sampling.ranking import ranked

SCORE_TOLERANCE = 1e-12  # scores that differ by rounding alone are equal


def contrastive_pick(
    logits: Tensor, candidate_hidden: Tensor, context_hidden: Tensor, *, k: int = 4, alpha: float = 0.6
) -> int:
    """The token that contrastive search chooses, given logits (V,), the hidden states (k, D) of the k most likely
    tokens in ranking order, and those of the text so far (T, D)."""
    _check_options(k, alpha)
    candidate_hidden, context_hidden = torch.as_tensor(candidate_hidden), torch.as_tensor(context_hidden)
    rows = as_logit_rows(torch.as_tensor(logits).reshape(1, -1))
    check_logits(rows)
    n_candidates = min(k, rows.shape[1], candidate_hidden.shape[0])
    tokens = ranked(rows, n_candidates)
    mask = torch.ones(1, context_hidden.shape[0], dtype=torch.bool, device=rows.device)
    ranks, _ = _best_candidate(
        rows, tokens, candidate_hidden[None, :n_candidates], _unit(context_hidden)[None], mask, alpha
    )
    return int(tokens[0, int(ranks)])


def contrastive_search(
    model: Any,
    prompt: Prompts,
    *,
    k: int = 4,
    alpha: float = 0.6,
    max_new_tokens: int,
    eos_ids: Iterable[int] | int = (),
    pipeline: Pipeline | PerRowPipeline | Sequence[Mapping[str, Any]] | None = None,
    state: Any = None,
    vocab_size: int | None = None,
) -> list[Hypothesis]:
    """The continuation of each row of the prompt. `log_prob` is the model's; `score` sums the contrastive scores.

    `k` is the number of candidates per token and `alpha` the weight of being different: 0 is greedy. `pipeline` may
    hold bias, constraints and penalties. For an encoder-decoder, pass `state=model.start(source=…)`.
    """
    _check_options(k, alpha)
    check_int("max_new_tokens", max_new_tokens, 1)
    prompts = prompt_lists(prompt)
    pipe = search_processors(pipeline, "contrastive search", len(prompts))
    if not hasattr(model, "decode_hidden"):
        raise InputError(
            f"{described(model)} has no hidden states, which contrastive search compares: use a neural model, or "
            f"sampling"
        )
    config = _ContrastiveConfig(k, alpha, max_new_tokens, token_id_set(eos_ids), pipe, vocab_size)
    with eval_mode(model), CPUKernels(model), torch.inference_mode():
        return _search(model, prompts, config, state)


@dataclass(frozen=True)
class _ContrastiveConfig:
    k: int
    alpha: float
    max_new_tokens: int
    eos_ids: frozenset[int]
    pipe: Pipeline | PerRowPipeline  # constraints and penalties
    vocab_size: int | None  # logits past it are padding


@dataclass(frozen=True)
class _ActiveRows:
    """The rows that have not ended, and what the next token depends on. B is their number."""

    rows: list[int]  # indices of the prompts
    state: Any
    logits: Tensor  # (B, V) after the last token
    context: Tensor  # (B, T, D) hidden states of the text so far, as unit vectors …
    lengths: Tensor  # (B,) … and how many of them are real


@dataclass(frozen=True)
class _Choice:
    """The token chosen for each active row."""

    tokens: list[int]
    scores: list[float]
    log_probs: list[float]
    ranks: Tensor  # (B,) which of the k candidates
    hidden: Tensor  # (B, k, D) after each candidate
    state: Any  # of B · k rows, after each candidate


def _search(model: Any, prompts: list[list[int]], config: _ContrastiveConfig, state: Any) -> list[Hypothesis]:
    hypotheses = [Hypothesis([], 0.0, 0.0, False) for _ in prompts]
    active = _prefill(model, prompts, state, config.max_new_tokens)
    for length in range(1, config.max_new_tokens + 1):
        history = [prompts[row] + hypotheses[row].tokens for row in active.rows]
        choice = _choose(model, active, history, [len(prompts[row]) for row in active.rows], config)
        for row, token, score, log_prob in zip(
            active.rows, choice.tokens, choice.scores, choice.log_probs, strict=True
        ):
            h = hypotheses[row]
            hypotheses[row] = Hypothesis(
                [*h.tokens, token], h.score + score, h.log_prob + log_prob, token in config.eos_ids
            )
        slots = [slot for slot, row in enumerate(active.rows) if not hypotheses[row].ended]
        if not slots or length == config.max_new_tokens:
            break
        active = _append(model, active, choice, slots)
    return hypotheses


def _prefill(model: Any, prompts: list[list[int]], state: Any, max_new_tokens: int) -> _ActiveRows:
    ids, lengths = pad_ids(prompts, model.device)
    if state is None:
        state = model.start(batch_size=len(prompts), capacity=ids.shape[1] + max_new_tokens)
    hidden, state = model.decode_hidden(ids, state, lengths)
    lengths = lengths.to(hidden.device)
    last = hidden.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, hidden.shape[-1]))  # (B, 1, D)
    return _ActiveRows(list(range(len(prompts))), state, model.unembed(last)[:, 0], _unit(hidden), lengths)


def _choose(
    model: Any, active: _ActiveRows, history: list[list[int]], n_prompt: list[int], config: _ContrastiveConfig
) -> _Choice:
    """Run the k most likely tokens of each row through the model and choose the one with the best score."""
    logits = as_logit_rows(active.logits[:, : config.vocab_size])
    processed = config.pipe.select(active.rows).apply(logits, history=history, n_prompt=n_prompt)
    candidates = ranked(processed, min(config.k, processed.shape[1]))  # (B, k)
    slots = torch.arange(len(active.rows), device=candidates.device).repeat_interleave(candidates.shape[1])
    hidden, state = model.decode_hidden(candidates.reshape(-1, 1), active.state.reorder(slots))
    hidden = hidden.view(*candidates.shape, -1)  # (B, k, D)
    mask = padding(active.lengths, active.context.shape[1])
    ranks, scores = _best_candidate(processed, candidates, hidden, active.context, mask, config.alpha)
    tokens = candidates.gather(1, ranks[:, None])  # (B, 1)
    log_probs = logits.double().log_softmax(dim=-1).gather(1, tokens)
    return _Choice(tokens[:, 0].tolist(), scores.tolist(), log_probs[:, 0].tolist(), ranks, hidden, state)


def _append(model: Any, active: _ActiveRows, choice: _Choice, slots: list[int]) -> _ActiveRows:
    """Append the chosen tokens of the given slots; the other rows have ended."""
    index = torch.tensor(slots, device=choice.ranks.device)
    ranks, k = choice.ranks[index], choice.hidden.shape[1]
    hidden = choice.hidden[index, ranks]  # (B, D)
    context, lengths = F.pad(active.context[index], (0, 0, 0, 1)), active.lengths[index]
    context.scatter_(1, lengths[:, None, None].expand(-1, 1, hidden.shape[-1]), _unit(hidden)[:, None])
    return _ActiveRows(
        rows=[active.rows[slot] for slot in slots],
        state=choice.state.reorder(index * k + ranks),
        logits=model.unembed(hidden[:, None])[:, 0],
        context=context,
        lengths=lengths + 1,
    )


def _best_candidate(
    logits: Tensor, tokens: Tensor, hidden: Tensor, context: Tensor, mask: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """logits (B, V), candidate tokens (B, k) and their hidden states (B, k, D), unit vectors of the context (B, T, D)
    with their mask (B, T) → the rank of the best candidate (B,), the first of equals, and its score (B,)."""
    p = logits.double().softmax(dim=-1).gather(1, tokens)  # (B, k)
    cosine = _unit(hidden) @ context.mT  # (B, k, T)
    penalty = cosine.masked_fill(~mask[:, None], -torch.inf).amax(dim=-1) if mask.shape[1] else torch.zeros_like(p)
    score = (1 - alpha) * p - alpha * penalty
    score = score.masked_fill(~logits.gather(1, tokens).isfinite(), -torch.inf)  # fewer than k tokens were left
    best = score.amax(dim=-1, keepdim=True)
    return (score >= best - SCORE_TOLERANCE).int().argmax(dim=-1), best[:, 0]


def _unit(x: Tensor) -> Tensor:
    """Unit vectors in float64; a zero vector stays zero, so its cosine with anything is 0."""
    x = x.double()
    return x / x.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


def _check_options(k: int, alpha: float) -> None:
    check_int("k", k, 1)
    if not is_number(alpha) or not 0 <= alpha <= 1:
        raise ConfigError(f"alpha={alpha!r} must be a number from 0 (greedy) to 1")
