"""Attention in explicit loops: the specification of `headway.nn.attention`."""

import math

import torch
from torch import Tensor


def attention_in_loops(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor]:
    B, H, T, K = q.shape
    G, S = k.shape[1], k.shape[2]
    out, weights = torch.zeros(B, H, T, K, dtype=q.dtype), torch.zeros(B, H, T, S, dtype=q.dtype)
    for b in range(B):
        for h in range(H):
            g = h // (H // G)  # the key/value head that serves query head h
            for t in range(T):
                scores = {}
                for s in range(S):
                    if causal and s > t + S - T:
                        continue
                    if mask is not None and not mask.expand(B, H, T, S)[b, h, t, s]:
                        continue
                    score = sum(q[b, h, t, i].item() * k[b, g, s, i].item() for i in range(K)) / math.sqrt(K)
                    scores[s] = score + (0.0 if bias is None else bias.expand(B, H, T, S)[b, h, t, s].item())
                if not scores:
                    continue  # nothing to attend to: zero
                largest = max(scores.values())
                total = sum(math.exp(x - largest) for x in scores.values())
                for s, x in scores.items():
                    weights[b, h, t, s] = math.exp(x - largest) / total
                    out[b, h, t] += weights[b, h, t, s] * v[b, g, s]
    return out, weights
