"""Masks say who may look at whom. `True` = may be looked at, everywhere in Headway.

Masks are boolean tensors of shape (…, T, S), query by key; combine them with `&`. Queries are the *last* T of S
positions, so that one function serves a whole text (T = S) and the next token after a cache (T = 1).
"""

import torch
from torch import Tensor


def causal(n_queries: int, n_keys: int | None = None, *, device: torch.device | None = None) -> Tensor:
    """Nobody looks ahead: query t sees keys 0 … S − T + t.

    >>> causal(4).int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    """
    n_keys = n_queries if n_keys is None else n_keys
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries)


def sliding_window(
    n_queries: int, n_keys: int | None = None, *, window: int, device: torch.device | None = None
) -> Tensor:
    """Causal, and no further back than `window` positions, oneself included (Beltagy et al. 2020, §3.1)."""
    n_keys = n_queries if n_keys is None else n_keys
    too_old = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries - window)
    return causal(n_queries, n_keys, device=device) & ~too_old


def padding(lengths: Tensor, n_keys: int) -> Tensor:
    """Rows are right-padded to `n_keys`: row b has `lengths[b]` real tokens. (B,) → (B, S)."""
    return torch.arange(n_keys, device=lengths.device) < lengths[:, None]


def document(documents: Tensor) -> Tensor:
    """Several texts in one row do not see each other. (B, T) document number of each token → (B, T, T)."""
    return documents[:, :, None] == documents[:, None, :]


def positions_in(documents: Tensor) -> Tensor:
    """Where each token stands in its own document. (B, T) document numbers, equal ones side by side → (B, T).

    >>> positions_in(torch.tensor([[0, 0, 0, 1, 1, 2]])).tolist()
    [[0, 1, 2, 0, 1, 0]]
    """
    places = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    is_first = torch.ones_like(documents, dtype=torch.bool)
    is_first[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return places - torch.where(is_first, places, 0).cummax(dim=1).values
