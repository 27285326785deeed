"""The token ids of a decode step, as two Triton kernels: embed the last tokens before it, append the new ones after it.

    x = scale * embedding[ids.clamp(min=0)] + offsets[lengths.clamp(max=capacity - 1)]               `embed_tokens`

    last_tokens.copy_(tokens)                                                                        `append_tokens`
    history.scatter_(1, history_lengths.clamp(max=width - 1), tokens)
    lengths += 1; history_lengths += 1; positions += 1

In PyTorch these are fifteen launches.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS_PER_PROGRAM = 128


@triton.jit
def _embed_kernel(
    ids, lengths, embedding, offsets, x, scale, capacity,
    D: tl.constexpr, HAS_OFFSETS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program per row."""
    b = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    token = tl.maximum(tl.load(ids + b), 0)  # −1: its row has failed
    row = scale * tl.load(embedding + token * D + d, mask=d < D, other=0.0).to(tl.float32)
    if HAS_OFFSETS:
        pos = tl.minimum(tl.load(lengths + b), capacity - 1)  # rows that have finished stay in the last slot
        row += tl.load(offsets + pos * D + d, mask=d < D, other=0.0).to(tl.float32)
    tl.store(x + b * D + d, row, mask=d < D)


def embed_tokens(
    ids: Tensor, lengths: Tensor, embedding: Tensor, offsets: Tensor | None, scale: float, capacity: int
) -> Tensor:
    """ids (B, 1), lengths (B,), embedding (V, D), offsets (at least `capacity`, D) or None → x (B, D) in float32."""
    B, D = len(ids), embedding.shape[1]
    x = torch.empty(B, D, dtype=torch.float32, device=ids.device)
    _embed_kernel[(B,)](
        ids, lengths, embedding, embedding if offsets is None else offsets, x, scale, capacity,
        D=D, HAS_OFFSETS=offsets is not None, BLOCK_D=triton.next_power_of_2(D), num_warps=4,
    )  # fmt: skip
    return x


@triton.jit
def _append_kernel(
    tokens, last_tokens, lengths, history, history_lengths, positions, n_rows, width, ROWS: tl.constexpr
):  # fmt: skip
    b = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = b < n_rows
    token = tl.load(tokens + b, mask=is_row, other=0)
    tl.store(last_tokens + b, token, mask=is_row)
    n = tl.load(history_lengths + b, mask=is_row, other=0)
    tl.store(history + b.to(tl.int64) * width + tl.minimum(n, width - 1), token, mask=is_row)
    tl.store(history_lengths + b, n + 1, mask=is_row)
    tl.store(lengths + b, tl.load(lengths + b, mask=is_row, other=0) + 1, mask=is_row)
    tl.store(positions + b, tl.load(positions + b, mask=is_row, other=0) + 1, mask=is_row)


def append_tokens(
    tokens: Tensor, last_tokens: Tensor, lengths: Tensor, history: Tensor, history_lengths: Tensor, positions: Tensor
) -> None:
    """Write tokens (B,) to last_tokens (B, 1) and to history (B, width) at history_lengths (B, 1), and increase the
    lengths: also those of the cache and the sampler's positions, both (B,). All are contiguous."""
    B, width = history.shape
    _append_kernel[(triton.cdiv(B, ROWS_PER_PROGRAM),)](
        tokens, last_tokens, lengths, history, history_lengths, positions, B, width, ROWS=ROWS_PER_PROGRAM, num_warps=4
    )
