"""Attention masks. `True` = may be attended to, everywhere in Headway.

Masks are boolean tensors of shape (…, T, S), query by key; combine them with `&`. Queries are the *last* T of S
positions, so one function serves a full sequence (T = S) and a decode step after a cache (T = 1).
"""

import torch
from torch import Tensor


def causal(n_queries: int, n_keys: int | None = None, *, device: torch.device | None = None) -> Tensor:
    """Query t attends to keys 0 … S − T + t: itself and earlier positions.

    >>> causal(4).int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    """
    n_keys = n_queries if n_keys is None else n_keys
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries)


def sliding_window(
    n_queries: int, n_keys: int | None = None, *, window: int, device: torch.device | None = None
) -> Tensor:
    """Causal, and limited to the last `window` positions, the query's own included (Beltagy et al. 2020, §3.1)."""
    n_keys = n_queries if n_keys is None else n_keys
    too_old = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries - window)
    return causal(n_queries, n_keys, device=device) & ~too_old


def padding(lengths: Tensor, n_keys: int) -> Tensor:
    """Rows are right-padded to `n_keys`: row b has `lengths[b]` real tokens. (B,) → (B, S)."""
    return torch.arange(n_keys, device=lengths.device) < lengths[:, None]


def document(documents: Tensor) -> Tensor:
    """Documents packed into one row do not attend to each other. (B, T) document number per token → (B, T, T)."""
    return documents[:, :, None] == documents[:, None, :]


def positions_in(documents: Tensor) -> Tensor:
    """The position of each token within its document. (B, T) document numbers, equal ones adjacent → (B, T).

    >>> positions_in(torch.tensor([[0, 0, 0, 1, 1, 2]])).tolist()
    [[0, 1, 2, 0, 1, 0]]
    """
    positions = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    is_first = torch.ones_like(documents, dtype=torch.bool)
    is_first[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return positions - torch.where(is_first, positions, 0).cummax(dim=1).values
