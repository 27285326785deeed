"""Logit bias and bans. A ban that would remove every token keeps the best token of the row it received."""

import torch
from torch import Tensor

from headway.errors import InputError
from headway.sampling.distribution import alive, narrowed, on_host
from headway.sampling.history import History, members
from headway.sampling.reshaping import best_alone


def logit_bias(l: Tensor, bias: tuple[Tensor, Tensor]) -> Tensor:
    """l[i] + value; −inf bans. `bias`: ids and values (B or 1, M), ids padded with −1."""
    ids, values = bias
    if on_host(ids) and ids.numel() and int(ids.max()) >= l.shape[1]:
        raise InputError(f"logit_bias names token {int(ids.max())}: the vocabulary has ids 0 to {l.shape[1] - 1}")
    is_token = (ids >= 0) & (ids < l.shape[1])
    offset = torch.zeros(ids.shape[0], l.shape[1] + 1, dtype=torch.float64, device=l.device)
    offset.scatter_(1, torch.where(is_token, ids, l.shape[1]), torch.where(is_token, values, 0.0))
    return _never_empty(l, narrowed(l.double() + offset[:, :-1], l.dtype))


def no_repeat_ngram(l: Tensor, n: Tensor, *, history: History, max_n: int) -> Tensor:
    """Ban every token that would complete an n-gram again (Paulus et al. 2017). `max_n`: the largest n."""
    T = history.ids.shape[1]
    if not T:
        return l
    ids, lengths = history.ids, history.lengths
    position = torch.arange(T, device=ids.device)[None]  # a candidate for the last token of the n-gram
    matches = (position >= n - 1) & (position < lengths) & (n >= 1) & (lengths >= n)
    for back in range(1, min(max_n, T)):  # compare the token `back` positions earlier with the end of the history
        earlier = ids.roll(back, dims=1)
        suffix = ids.gather(1, (lengths - back).clamp(min=0))
        matches &= (earlier == suffix) | (back > n - 1)
    is_token = matches & (ids >= 0) & (ids < l.shape[1])
    banned = torch.zeros(l.shape[0], l.shape[1] + 1, dtype=torch.bool, device=l.device)
    banned.scatter_(1, torch.where(is_token, ids, l.shape[1]), True)
    return _never_empty(l, l.masked_fill(banned[:, :-1], -torch.inf))


def min_new_tokens(l: Tensor, min_new: Tensor, eos_ids: Tensor, *, history: History) -> Tensor:
    """Ban EOS until `min_new` tokens have been generated."""
    banned = members(None, eos_ids, l.shape[1]) & (history.n_generated < min_new)
    return _never_empty(l, l.masked_fill(banned, -torch.inf))


def _never_empty(l: Tensor, result: Tensor) -> Tensor:
    """The result, or only the best token of l in rows where nothing is left."""
    return torch.where(alive(result).any(dim=-1, keepdim=True), result, best_alone(l))
