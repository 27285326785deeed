"""Pooling: one vector per text from the hidden states of its tokens. Padding has no part in it."""

import torch
from torch import Tensor


def mean_pool(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """hidden (B, T, D); mask (B, T), True = a real token. → the mean over real tokens (B, D)."""
    if mask is None:
        return hidden.mean(dim=1)
    n_tokens = mask.sum(dim=1, keepdim=True).clamp(min=1)
    return hidden.masked_fill(~mask[..., None], 0.0).sum(dim=1) / n_tokens.to(hidden.dtype)


def max_pool(hidden: Tensor, mask: Tensor | None = None) -> Tensor:
    """hidden (B, T, D); mask (B, T), True = a real token. → the largest value of each unit over real tokens (B, D)."""
    if mask is not None:
        hidden = hidden.masked_fill(~mask[..., None], torch.finfo(hidden.dtype).min)
    return hidden.amax(dim=1)
