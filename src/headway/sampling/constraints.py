"""Bias and bans. A ban that would leave nothing keeps the best token of the row it received."""

import torch
from torch import Tensor

from headway.errors import InputError
from headway.sampling.distribution import alive, narrowed, on_host
from headway.sampling.history import History, members
from headway.sampling.reshaping import best_alone


def logit_bias(l: Tensor, bias: tuple[Tensor, Tensor]) -> Tensor:
    """l[i] + value; −inf bans. `bias`: ids and values (B or 1, M), ids filled up with −1."""
    ids, values = bias
    if on_host(ids) and ids.numel() and int(ids.max()) >= l.shape[1]:
        raise InputError(f"logit_bias names token {int(ids.max())}: the vocabulary has ids 0 to {l.shape[1] - 1}")
    real = (ids >= 0) & (ids < l.shape[1])
    offset = torch.zeros(ids.shape[0], l.shape[1] + 1, dtype=torch.float64, device=l.device)
    offset.scatter_(1, torch.where(real, ids, l.shape[1]), torch.where(real, values, 0.0))
    return _survive(l, narrowed(l.double() + offset[:, :-1], l.dtype))


def no_repeat_ngram(l: Tensor, n: Tensor, *, history: History, most: int) -> Tensor:
    """Ban every token that would complete an n-gram for the second time (Paulus et al. 2017). `most`: the largest n."""
    longest = history.ids.shape[1]
    if not longest:
        return l
    ids, lengths = history.ids, history.lengths
    at = torch.arange(longest, device=ids.device)[None]  # a candidate for the last token of the n-gram
    same = (at >= n - 1) & (at < lengths) & (n >= 1) & (lengths >= n)
    for back in range(1, min(most, longest)):  # the token `back` before it, against that in the tail
        mine = ids.roll(back, dims=1)
        tail = ids.gather(1, (lengths - back).clamp(min=0))
        same &= (mine == tail) | (back > n - 1)
    known = same & (ids >= 0) & (ids < l.shape[1])
    banned = torch.zeros(l.shape[0], l.shape[1] + 1, dtype=torch.bool, device=l.device)
    banned.scatter_(1, torch.where(known, ids, l.shape[1]), True)
    return _survive(l, l.masked_fill(banned[:, :-1], -torch.inf))


def min_new_tokens(l: Tensor, min_new: Tensor, eos_ids: Tensor, *, history: History) -> Tensor:
    """No end before so many tokens are written."""
    banned = members(None, eos_ids, l.shape[1]) & (history.n_generated < min_new)
    return _survive(l, l.masked_fill(banned, -torch.inf))


def _survive(before: Tensor, after: Tensor) -> Tensor:
    return torch.where(alive(after).any(dim=-1, keepdim=True), after, best_alone(before))
