"""Averages of weights: along the way (EMA), and of the last checkpoints (Vaswani et al. 2017, §6.1).

Both are near where training is, with less of its noise; what is scored and saved is then the average.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class ExponentialMovingAverage:
    """average ← d · average + (1 − d) · weights after every step, d growing to `decay` over the first steps."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        self._live = dict(model.named_parameters())

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After `step` steps. While they are few, an average that reaches far back would be of noise."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.weights.values()), list(self._live.values()), 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the averaged weights inside the block, and its own again after it."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    @torch.no_grad()
    def swap(self) -> None:
        for name, own in self._live.items():
            kept = own.detach().clone()
            own.copy_(self.weights[name])
            self.weights[name].copy_(kept)


def mean_weights(sets: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each tensor over several sets of them, added up in float64."""
    total: dict[str, Tensor] = {}
    count = 0
    kinds: dict[str, torch.dtype] = {}
    for tensors in sets:
        count += 1
        for name, tensor in tensors.items():
            kinds[name] = tensor.dtype
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / count).to(kinds[name]) for name, tensor in total.items()}
