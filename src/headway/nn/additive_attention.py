"""Additive attention: a small network scores the source states for a decoder state (Bahdanau et al. 2015, §3.1)."""

import torch
from torch import Tensor, nn


class AdditiveAttention(nn.Module):
    """e_ij = vᵀ tanh(W s_{i−1} + U h_j);   α_i = softmax(e_i);   c_i = Σ_j α_ij h_j"""

    def __init__(self, d_state: int, d_source: int, d_attention: int):
        super().__init__()
        self.W = nn.Linear(d_state, d_attention, bias=False)
        self.U = nn.Linear(d_source, d_attention)
        self.v = nn.Linear(d_attention, 1, bias=False)

    def forward(self, s: Tensor, h: Tensor, keys: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """One alignment step.

        s (B, D) decoder state s_{i−1};  h (B, S, E) encoder states;  keys (B, S, A) = U(h), computed once per sentence
        and passed in;  mask (B, S), True = real token.  Returns the context c (B, E) and the weights alpha (B, S).
        """
        e = self.v(torch.tanh(self.W(s).unsqueeze(1) + keys)).squeeze(-1)  # (B, S)  energies
        if mask is not None:
            e = e.masked_fill(~mask, -torch.inf)
        alpha = e.softmax(dim=-1)  # (B, S)  eq. 6
        c = (alpha.unsqueeze(1) @ h).squeeze(1)  # (B, E)  eq. 5
        return c, alpha
