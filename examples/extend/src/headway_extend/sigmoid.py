"""An attention function: every key is weighted by itself, by a sigmoid, instead of by a softmax over all keys."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

import headway
from headway.nn import masks


def sigmoid_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """σ(Q Kᵀ / √d_k − ln S) V, S the number of keys a query attends to (Ramapuram et al. 2024)."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))  # grouped queries
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (B, H, T, S)
    if bias is not None:
        scores = scores + bias
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device) if mask is None else mask
    if causal:
        visible = visible & masks.causal(*scores.shape[-2:], device=q.device)
    n_keys = visible.sum(dim=-1, keepdim=True).clamp(min=1)
    weights = torch.sigmoid(scores - n_keys.log()) * visible
    return F.dropout(weights, dropout).to(v.dtype) @ v, weights


headway.register("attention", "sigmoid", sigmoid_attention)
