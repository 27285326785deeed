"""The operations of a decode step as Triton kernels, launched one by one; the interface is that of `CPUProgram`."""

import torch
from torch import Tensor, nn

from headway.nn.kernels.decode_attention import DecodeAttention
from headway.nn.kernels.decode_linear import SplitKWorkspace, fused_linear
from headway.nn.kernels.decode_norm import norm_rows
from headway.nn.kernels.decode_parts import PositionTables
from headway.nn.kernels.decode_tokens import embed_tokens


class TritonOperations:
    def __init__(
        self, n_rows: int, n_heads: int, n_kv_heads: int, d_head: int, capacity: int, tables: PositionTables,
        device: torch.device,
    ):  # fmt: skip
        self.attention = DecodeAttention(n_rows, n_heads, n_kv_heads, d_head, capacity, tables, device)
        self._scratch, self._capacity = SplitKWorkspace(), capacity

    def embed(self, ids: Tensor, lengths: Tensor, embedding: Tensor, offsets: Tensor | None, scale: float) -> Tensor:
        """ids (B, 1) at the positions `lengths` (B,) → embeddings (B, D) in float32."""
        return embed_tokens(ids, lengths, embedding, offsets, scale, self._capacity)

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, *, norm: nn.Module | None = None,
        activation: str = "none", gated: bool = False, residual: Tensor | None = None, dtype: torch.dtype | None = None,
    ) -> Tensor:  # fmt: skip
        """x (B, n_in) → residual + act(norm(x) Wᵀ + b), or with `gated` SwiGLU, in `dtype`."""
        if norm is not None and len(x) > 1:  # one row is normalised on the way
            x, norm = norm_rows(x, norm, weight.dtype), None
        options = {"activation": activation, "gated": gated, "residual": residual, "dtype": dtype}
        return fused_linear(x, weight, bias, norm=norm, scratch=self._scratch, **options)  # type: ignore[arg-type]
