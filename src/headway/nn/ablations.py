"""Attention with its mask in the wrong place, to show why it has to come before the softmax.

    softmax(Q Kᵀ / √d_k + M) V        the definition: M is −∞ for later tokens, and rows sum to 1
    (softmax(Q Kᵀ / √d_k) ⊙ C) V      here: C is 0 for later tokens, and rows sum to less than 1

What is missing from 1 is the weight of later tokens: they leak through the denominator of the softmax.
"""

import torch.nn.functional as F
from torch import Tensor

from headway.nn import masks
from headway.nn.attention import masked_softmax, repeat_heads, scaled_scores


def mask_after_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`dot_product_attention` with the causal mask applied after the softmax; `mask`, which hides padding, before it.

    See `AttentionFn` for the arguments.
    """
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    weights = masked_softmax(scaled_scores(q, k, bias), mask)  # (B, H, T, S)
    if causal:
        weights = weights * masks.causal(*weights.shape[2:], device=weights.device)
    return F.dropout(weights, dropout).to(v.dtype) @ v, weights
