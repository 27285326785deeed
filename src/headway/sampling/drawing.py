"""From a row of logits to one token. Among equal logits the lower id ranks first."""

import torch
from torch import Tensor

from headway.errors import InputError
from headway.sampling.distribution import gpu_kernels, on_host, probabilities

BLOCK = 128  # columns per block when a long row is searched in two steps
GREEDY_BELOW = 1e-5  # lower temperatures mean greedy decoding


def greedy(logits: Tensor) -> Tensor:
    """(B, V) → (B,): the best token of each row."""
    logits = as_logit_rows(logits)
    check_logits(logits)
    return logits.argmax(dim=-1)


def best_column(rows: Tensor) -> Tensor:
    """(B, V) → (B,): the best token of each row, the first among equals. On a GPU, a row with NaN or without any token
    gets −1."""
    if kernels := gpu_kernels(rows, min_columns=1):
        return kernels.best_column(rows)
    check_logits(rows)
    column = rows.argmax(dim=-1)
    if on_host(rows):
        return column
    best = rows.gather(1, column[:, None])[:, 0]
    return torch.where(best.isfinite(), column, -1)


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """logits (B, V), uniform (B,) in [0, 1) → (B,): token i with probability softmax(logits)[i].

    Inverse transform sampling: the probabilities lie end to end by id, and the uniform number is a point on that line.
    Removed tokens (−inf) have no length and are never drawn.
    """
    logits = as_logit_rows(logits)
    check_logits(logits)
    p, point = probabilities(logits), uniform.to(logits.device, torch.float64)[:, None]
    n_blocks = p.shape[1] // BLOCK
    if n_blocks < BLOCK:
        return _locate(p, point)[0]
    # Long rows in two steps: find the block, then the column inside it. Only block sums are accumulated serially.
    n_even = n_blocks * BLOCK
    block_sums = p[:, :n_even].unflatten(1, (n_blocks, BLOCK)).sum(dim=-1, dtype=torch.float64)
    tail_sum = p[:, n_even:].sum(dim=-1, keepdim=True, dtype=torch.float64)
    block, point = _locate(torch.cat((block_sums, tail_sum), dim=1), point)
    columns = block[:, None] * BLOCK + torch.arange(BLOCK, device=p.device)  # in the tail, some exceed the row
    in_block = p.gather(1, columns.clamp(max=p.shape[1] - 1)).masked_fill(columns >= p.shape[1], 0.0)
    return block * BLOCK + _locate(in_block, point)[0]


def _locate(mass: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """Find the segment under a point, for segments of length `mass` (B, N) laid end to end.

    `point` (B, 1) is a fraction of the whole length. Returns the segment (B,) and how far into it the point lies, as a
    fraction of the segment (B, 1).
    """
    ends = mass.cumsum(dim=-1, dtype=torch.float64)
    position = point * ends[:, -1:]  # scale by the actual sum, which rounding may leave off 1
    index = torch.searchsorted(ends, position, right=True).clamp(max=mass.shape[1] - 1)
    width = mass.gather(1, index).double()
    fraction = (position - (ends.gather(1, index) - width)) / width
    return index[:, 0], fraction.clamp(0.0, 1 - 2.0**-53)


def as_logit_rows(logits: Tensor) -> Tensor:
    """(B, V) in float32 or wider."""
    logits = torch.as_tensor(logits)
    if logits.dim() != 2 or not logits.is_floating_point():
        raise InputError(
            f"logits of shape {tuple(logits.shape)} and type {logits.dtype}: pass floating-point rows (B, V)"
        )
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def check_logits(logits: Tensor) -> None:
    """Each row holds finite numbers or −inf, at least one of them finite. On a GPU the check is skipped: it would force
    a synchronisation per token."""
    if logits.shape[0] and not logits.shape[1]:
        raise InputError("the logits have no columns: the vocabulary must hold at least one token")
    if not on_host(logits) or not logits.numel():
        return
    best = logits.amax(dim=-1)  # NaN if there is one, else +inf if there is one; −inf if no token is left
    if not bool(best.isfinite().all()):
        raise InputError(
            f"row {int((~best.isfinite()).nonzero()[0])} of the logits has NaN, +inf or no token left, so no token can "
            f"be chosen: check the weights, or whether training diverged"
        )
