"""From a row of logits to one token. Equal logits: the lower id is the better one."""

import torch
from torch import Tensor

from headway.errors import InputError
from headway.sampling.distribution import probabilities

GREEDY_BELOW = 1e-5  # a request for a temperature below this is a request for the best token


def greedy(logits: Tensor) -> Tensor:
    """(B, V) → (B,): the best token of each row."""
    logits = as_rows(logits)
    check_rows(logits)
    return logits.argmax(dim=-1)


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """logits (B, V), uniform (B,) in [0, 1) → (B,): token i with probability softmax(logits)[i].

    The uniform number is a point on the line of all probabilities laid end to end, by id. Removed tokens (−inf) have no
    length and are never drawn.
    """
    logits = as_rows(logits)
    check_rows(logits)
    mass = probabilities(logits).cumsum(dim=-1, dtype=torch.float64)  # (B, V)
    point = (
        uniform.to(mass.device, mass.dtype)[:, None] * mass[:, -1:]
    )  # the sum itself, which rounding may leave off 1
    return torch.searchsorted(mass, point, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)


def as_rows(logits: Tensor) -> Tensor:
    """(B, V) in float32 or wider."""
    if logits.dim() != 2 or not logits.is_floating_point():
        raise InputError(
            f"logits of shape {tuple(logits.shape)} and type {logits.dtype}: one row of numbers per text, (B, V)"
        )
    return logits if logits.dtype in (torch.float32, torch.float64) else logits.float()


def check_rows(logits: Tensor) -> None:
    """Numbers or −inf, at least one number a row. On a GPU nobody looks: that would stall it at every token."""
    if logits.device.type != "cpu" or not logits.numel():
        return
    best = logits.amax(dim=-1)  # NaN if there is one, +inf if there is one, −inf if there is nothing else
    if not bool(best.isfinite().all()):
        raise InputError(
            f"row {int((~best.isfinite()).nonzero()[0])} of the logits has NaN, +inf or no token left: nothing can be "
            f"chosen; were the weights damaged, or the training diverged?"
        )
