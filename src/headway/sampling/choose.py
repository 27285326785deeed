"""From a row of logits to one token. Equal logits: the lower id is the better one."""

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.errors import InputError

GREEDY_BELOW = 1e-5  # a request for a temperature below this is a request for the best token


def greedy(logits: Tensor) -> Tensor:
    """(B, V) → (B,): the best token of each row."""
    _check(logits)
    return logits.argmax(dim=-1)


def draw(logits: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """(B, V) → (B,): token i with probability softmax(logits)[i].

    Each row has a generator of its own and takes one uniform number from it, so its token depends on its seed and
    logits alone, not on its neighbours. Removed tokens (−inf) are never drawn.
    """
    _check(logits)
    uniform = torch.stack([torch.rand((), generator=g, dtype=torch.float64) for g in generators])
    mass = logits.double().softmax(dim=-1).cumsum(dim=-1)  # (B, V)
    point = uniform.to(mass.device)[:, None] * mass[:, -1:]  # the sum itself, which rounding may leave off 1
    return torch.searchsorted(mass, point, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)


def _check(logits: Tensor) -> None:
    """On the CPU; on a GPU looking would stall it at every token."""
    if logits.device.type == "cpu":
        bad = torch.isnan(logits).any(dim=-1) | (logits == torch.inf).any(dim=-1) | (logits == -torch.inf).all(dim=-1)
        if bad.any():
            raise InputError(
                f"row {int(bad.nonzero()[0])} of the logits has NaN, +inf or no token left: nothing can be chosen; "
                f"were the weights damaged, or the training diverged?"
            )
