"""Contrastive search: likely, but not like what was said (Su et al. 2022).

    score(v) = (1 − α) p(v) − α max_j cos(h_v, h_j)

over the k most likely tokens v, h_v the last hidden state after appending v, h_j those of the text so far. It costs a
step of k rows per token, and says the same every time.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.errors import ConfigError, InputError
from headway.generation.beam_search import Hypothesis
from headway.generation.inputs import Prompts, check_int, is_number, prompt_lists, search_processors, token_id_set
from headway.models.base import eval_mode
from headway.sampling import PerRowPipeline, Pipeline
from headway.sampling.drawing import as_logit_rows, check_logits
from headway.sampling.ranking import ranked

EQUAL = 1e-12  # scores that differ by rounding alone are equal


def contrastive_pick(
    logits: Tensor, candidate_hidden: Tensor, context_hidden: Tensor, *, k: int = 4, alpha: float = 0.6
) -> int:
    """One choice: logits (V,), the states of the k best tokens in ranking order (k, D) and of the text (T, D)."""
    _check(k, alpha)
    candidate_hidden, context_hidden = torch.as_tensor(candidate_hidden), torch.as_tensor(context_hidden)
    row = as_logit_rows(torch.as_tensor(logits).reshape(1, -1))
    check_logits(row)
    n = min(k, row.shape[1], candidate_hidden.shape[0])
    best = ranked(row, n)
    mask = torch.ones(1, context_hidden.shape[0], dtype=torch.bool, device=row.device)
    place = _pick(row, best, candidate_hidden[None, :n], context_hidden[None], mask, alpha)
    return int(best[0, int(place)])


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
    """The continuation of each row of the prompt. `log_prob` is the model's, `score` the sum of what was compared."""
    _check(k, alpha)
    check_int("max_new_tokens", max_new_tokens, 1)
    prompts, ends = prompt_lists(prompt), token_id_set(eos_ids)
    pipe = search_processors(pipeline, "contrastive search", len(prompts))
    if not hasattr(model, "advance"):
        raise InputError(
            f"a {type(model).__name__} has no hidden states, and contrastive search compares them: use a neural model, "
            f"or sample"
        )
    with eval_mode(model), torch.inference_mode():
        return _search(model, prompts, k, alpha, max_new_tokens, ends, pipe, state, vocab_size)


def _search(
    model: Any,
    prompts: list[list[int]],
    k: int,
    alpha: float,
    longest: int,
    ends: frozenset[int],
    pipe: Pipeline | PerRowPipeline,
    state: Any,
    vocab_size: int | None,
) -> list[Hypothesis]:
    written: list[Hypothesis] = [Hypothesis([], 0.0, 0.0, False) for _ in prompts]
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    rows = [torch.tensor(prompt, dtype=torch.long) for prompt in prompts]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(model.device)
    if state is None:
        state = model.start(batch_size=len(prompts), capacity=int(lengths.max()) + longest)
    hidden, state = model.advance(ids, state, lengths)
    lengths = lengths.to(hidden.device)
    last = hidden.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, hidden.shape[-1]))
    logits = model.unembed(last)[:, 0]
    context = _unit(hidden)  # (B, T, D), of which `lengths` are real
    live = list(range(len(prompts)))
    for step in range(1, longest + 1):
        raw = as_logit_rows(logits[:, :vocab_size])
        history = [prompts[row] + written[row].tokens for row in live]
        processed = pipe.select(live).apply(raw, history=history, n_prompt=[len(prompts[row]) for row in live])
        best = ranked(processed, min(k, processed.shape[1]))  # (B, k)
        each = torch.arange(len(live), device=best.device).repeat_interleave(best.shape[1])
        hidden, expanded = model.advance(best.reshape(-1, 1), state.reorder(each))
        candidates = hidden.view(*best.shape, -1)  # (B, k, D)
        mask = torch.arange(context.shape[1], device=lengths.device) < lengths[:, None]
        place, score = _scores(processed, best, candidates, context, mask, alpha)
        log_p = raw.double().log_softmax(dim=-1)
        tokens = best.gather(1, place[:, None])
        chosen = log_p.gather(1, tokens)[:, 0].tolist()
        for slot, row in enumerate(live):
            token, before = int(tokens[slot, 0]), written[row]
            is_end = token in ends
            written[row] = Hypothesis(
                [*before.tokens, token], before.score + score[slot].item(), before.log_prob + chosen[slot], is_end
            )
        keep = [slot for slot, row in enumerate(live) if not written[row].ended]
        if not keep or step == longest:
            break
        index = torch.tensor(keep, device=best.device)
        state = expanded.reorder(index * best.shape[1] + place[index])
        new = candidates[index, place[index]]  # (B, D)
        logits = model.unembed(new[:, None])[:, 0]
        context = F.pad(context[index], (0, 0, 0, 1))
        lengths = lengths[index]
        context.scatter_(1, lengths[:, None, None].expand(-1, 1, new.shape[-1]), _unit(new)[:, None])
        lengths = lengths + 1
        live = [live[slot] for slot in keep]
    return written


def _pick(row: Tensor, best: Tensor, candidates: Tensor, context: Tensor, mask: Tensor, alpha: float) -> Tensor:
    return _scores(row, best, candidates, _unit(context), mask, alpha)[0]


def _scores(
    row: Tensor, best: Tensor, candidates: Tensor, context: Tensor, mask: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """row (B, V), best (B, k), candidates (B, k, D), context (B, T, D) of length 1, mask (B, T) → the place of the best
    score (B,), the first of equals, and that score."""
    p = row.double().softmax(dim=-1).gather(1, best)
    cosine = _unit(candidates) @ context.mT  # (B, k, T)
    alike = cosine.masked_fill(~mask[:, None], -torch.inf).amax(dim=-1) if mask.shape[1] else torch.zeros_like(p)
    score = (1 - alpha) * p - alpha * alike
    score = score.masked_fill(~row.gather(1, best).isfinite(), -torch.inf)  # fewer than k tokens were alive
    top = score.amax(dim=-1, keepdim=True)
    return (score >= top - EQUAL).int().argmax(dim=-1), top[:, 0]


def _unit(x: Tensor) -> Tensor:
    """Vectors of length 1 in float64; a zero vector stays zero, and has cosine 0 with anything."""
    wide = x.double()
    return wide / wide.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


def _check(k: int, alpha: float) -> None:
    check_int("k", k, 1)
    if not is_number(alpha) or not 0 <= alpha <= 1:
        raise ConfigError(f"alpha={alpha!r} must be a number from 0 (greedy) to 1")
