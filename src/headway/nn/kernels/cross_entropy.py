"""GPU kernels in Triton, imported where they are used: there is no Triton on a machine without a GPU."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rows_to_gradient(
    logits, targets, losses, row_stride, n_columns, n_padded, smoothing, ignore,
    LANES: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """One program per row, in two passes: the largest logit and the sum of exponentials, lane by lane and joined at the
    end; then the gradient, whose reads come from the cache. A lane takes `EACH` neighbours at a time, so that it loads
    them in one go and rescales its sum once for all of them. Columns from `n_columns` on are padding: their gradient
    is 0."""
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    start = logits + row * row_stride
    columns = tl.arange(0, LANES)[:, None] * EACH + tl.arange(0, EACH)[None, :]  # (LANES, EACH)
    if target == ignore:
        tl.store(losses + row, 0.0)
        nothing = tl.zeros([LANES, EACH], logits.dtype.element_ty)
        for at in range(0, n_padded, LANES * EACH):
            tl.store(start + at + columns, nothing, mask=at + columns < n_padded)
    else:
        largest = tl.full([LANES], -1e30, tl.float32)  # of each lane
        total = tl.zeros([LANES], tl.float32)
        summed = tl.zeros([LANES], tl.float32)
        for at in range(0, n_columns, LANES * EACH):
            inside = at + columns < n_columns
            x = tl.load(start + at + columns, mask=inside, other=-float("inf")).to(tl.float32)
            new = tl.maximum(largest, tl.max(x, axis=1))
            total = total * tl.exp(largest - new) + tl.sum(tl.exp(x - new[:, None]), axis=1)
            largest = new
            if smoothing > 0.0:
                summed += tl.sum(tl.where(inside, x, 0.0), axis=1)
        highest = tl.max(largest)
        log_z = highest + tl.log(tl.sum(total * tl.exp(largest - highest)))
        picked = tl.load(start + target).to(tl.float32)
        tl.store(losses + row, log_z - (1.0 - smoothing) * picked - smoothing * tl.sum(summed) / n_columns)
        tl.debug_barrier()  # every thread has read the target's logit before any writes over it
        for at in range(0, n_padded, LANES * EACH):
            inside = at + columns < n_columns
            x = tl.load(start + at + columns, mask=inside, other=-float("inf")).to(tl.float32)
            gradient = tl.exp(x - log_z) - smoothing / n_columns
            gradient = tl.where(at + columns == target, gradient - (1.0 - smoothing), gradient)
            tl.store(start + at + columns, tl.where(inside, gradient, 0.0), mask=at + columns < n_padded)


def rows_to_gradient(
    logits: Tensor, targets: Tensor, losses: Tensor, n_columns: int, smoothing: float, ignore: int
) -> None:
    """See cross_entropy.py: logits (R, V) become their gradient in place, losses (R,) are written."""
    each = 8  # of bfloat16: 16 bytes, the widest load
    lanes = min(512, triton.next_power_of_2(-(-logits.shape[1] // each)))
    with torch.cuda.device(logits.device):
        _rows_to_gradient[(logits.shape[0],)](
            logits, targets, losses, logits.stride(0), n_columns, logits.shape[1], float(smoothing), ignore,
            LANES=lanes, EACH=each, num_warps=max(1, lanes // 32),
        )  # fmt: skip
