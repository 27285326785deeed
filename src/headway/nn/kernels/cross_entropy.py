"""The cross-entropy kernel in Triton. Import it only where it is used: machines without a GPU may have no Triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rows_to_gradient(
    logits, targets, losses, row_stride, n_columns, n_padded, smoothing, ignore,
    LANES: tl.constexpr, VEC: tl.constexpr,
):  # fmt: skip
    """One program per row, in two passes: first an online softmax (running maximum and sum of exponentials) per lane,
    reduced over the lanes at the end; then the gradient, whose reads hit the cache. A lane handles `VEC` adjacent
    columns at a time, so it loads them at once and rescales its sum once for all of them. Columns from `n_columns` on
    are padding: their gradient is 0."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    start = logits + row * row_stride
    columns = tl.arange(0, LANES)[:, None] * VEC + tl.arange(0, VEC)[None, :]  # (LANES, VEC)
    if target == ignore:
        tl.store(losses + row, 0.0)
        zeros = tl.zeros([LANES, VEC], logits.dtype.element_ty)
        for offset in range(0, n_padded, LANES * VEC):
            tl.store(start + offset + columns, zeros, mask=offset + columns < n_padded)
    else:
        lane_max = tl.full([LANES], -1e30, tl.float32)
        lane_sum = tl.zeros([LANES], tl.float32)  # of exponentials
        logit_sum = tl.zeros([LANES], tl.float32)
        for offset in range(0, n_columns, LANES * VEC):
            is_real = offset + columns < n_columns
            x = tl.load(start + offset + columns, mask=is_real, other=-float("inf")).to(tl.float32)
            new_max = tl.maximum(lane_max, tl.max(x, axis=1))
            lane_sum = lane_sum * tl.exp(lane_max - new_max) + tl.sum(tl.exp(x - new_max[:, None]), axis=1)
            lane_max = new_max
            if smoothing > 0.0:
                logit_sum += tl.sum(tl.where(is_real, x, 0.0), axis=1)
        row_max = tl.max(lane_max)
        log_z = row_max + tl.log(tl.sum(lane_sum * tl.exp(lane_max - row_max)))
        target_logit = tl.load(start + target).to(tl.float32)
        tl.store(losses + row, log_z - (1.0 - smoothing) * target_logit - smoothing * tl.sum(logit_sum) / n_columns)
        tl.debug_barrier()  # every thread must read the target's logit before any thread overwrites it
        for offset in range(0, n_padded, LANES * VEC):
            is_real = offset + columns < n_columns
            x = tl.load(start + offset + columns, mask=is_real, other=-float("inf")).to(tl.float32)
            gradient = tl.exp(x - log_z) - smoothing / n_columns
            gradient = tl.where(offset + columns == target, gradient - (1.0 - smoothing), gradient)
            tl.store(start + offset + columns, tl.where(is_real, gradient, 0.0), mask=offset + columns < n_padded)


def rows_to_gradient(
    logits: Tensor, targets: Tensor, losses: Tensor, n_columns: int, smoothing: float, ignore: int
) -> None:
    """Replace logits (R, V) by their gradient in place and write the losses (R,); see nn/cross_entropy.py."""
    vec = 8  # bfloat16 values are 16 bytes, the widest load
    lanes = min(512, triton.next_power_of_2(-(-logits.shape[1] // vec)))
    with torch.cuda.device(logits.device):
        _rows_to_gradient[(logits.shape[0],)](
            logits, targets, losses, logits.stride(0), n_columns, logits.shape[1], float(smoothing), ignore,
            LANES=lanes, VEC=vec, num_warps=max(1, lanes // 32),
        )  # fmt: skip
