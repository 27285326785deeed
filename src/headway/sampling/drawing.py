"""From a row of logits to one token. Equal logits: the lower id is the better one."""

import torch
from torch import Tensor

from headway.errors import InputError
from headway.sampling.distribution import on_host, probabilities

BLOCK = 128  # columns of a stretch, where a row is long
GREEDY_BELOW = 1e-5  # a request for a temperature below this is a request for the best token


def greedy(logits: Tensor) -> Tensor:
    """(B, V) → (B,): the best token of each row."""
    logits = as_logit_rows(logits)
    check_logits(logits)
    return logits.argmax(dim=-1)


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """logits (B, V), uniform (B,) in [0, 1) → (B,): token i with probability softmax(logits)[i].

    The uniform number is a point on the line of all probabilities laid end to end, by id. Removed tokens (−inf) have no
    length and are never drawn.
    """
    logits = as_logit_rows(logits)
    check_logits(logits)
    p, point = probabilities(logits), uniform.to(logits.device, torch.float64)[:, None]
    n_blocks = p.shape[1] // BLOCK
    if n_blocks < BLOCK:
        return _under(p, point)[0]
    # A long line in two looks: which stretch of it, then where in that. Only the stretches are added up one by one.
    even = n_blocks * BLOCK
    sums = p[:, :even].unflatten(1, (n_blocks, BLOCK)).sum(dim=-1, dtype=torch.float64)
    rest = p[:, even:].sum(dim=-1, keepdim=True, dtype=torch.float64)
    block, point = _under(torch.cat((sums, rest), dim=1), point)
    columns = block[:, None] * BLOCK + torch.arange(BLOCK, device=p.device)  # of the rest some are past the end
    inside = p.gather(1, columns.clamp(max=p.shape[1] - 1)).masked_fill(columns >= p.shape[1], 0.0)
    return block * BLOCK + _under(inside, point)[0]


def _under(mass: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """Which piece of a line laid end to end is under a point, given as a share of the line (B, 1); and which share of
    that piece lies before the point (B, 1)."""
    ends = mass.cumsum(dim=-1, dtype=torch.float64)
    place = point * ends[:, -1:]  # of the sum itself, which rounding may leave off 1
    index = torch.searchsorted(ends, place, right=True).clamp(max=mass.shape[1] - 1)
    width = mass.gather(1, index).double()
    share = (place - (ends.gather(1, index) - width)) / width
    return index[:, 0], share.clamp(0.0, 1 - 2.0**-53)


def as_logit_rows(logits: Tensor) -> Tensor:
    """(B, V) in float32 or wider."""
    logits = torch.as_tensor(logits)
    if logits.dim() != 2 or not logits.is_floating_point():
        raise InputError(
            f"logits of shape {tuple(logits.shape)} and type {logits.dtype}: one row of numbers per text, (B, V)"
        )
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def check_logits(logits: Tensor) -> None:
    """Numbers or −inf, at least one number a row. On a GPU nobody looks: that would stall it at every token."""
    if logits.shape[0] and not logits.shape[1]:
        raise InputError("the logits have no columns: a vocabulary of at least one token")
    if not on_host(logits) or not logits.numel():
        return
    best = logits.amax(dim=-1)  # NaN if there is one, +inf if there is one, −inf if there is nothing else
    if not bool(best.isfinite().all()):
        raise InputError(
            f"row {int((~best.isfinite()).nonzero()[0])} of the logits has NaN, +inf or no token left: nothing can be "
            f"chosen; were the weights damaged, or the training diverged?"
        )
