"""Weight averaging: an exponential moving average (EMA), and the mean of the last checkpoints (Vaswani et al. 2017,
§6.1).

Both stay near the trained weights with less of the noise of SGD; evaluation and checkpoints then use the average.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headway.models import Model
from headway.models.serialization import read_weights
from headway.runs import Run


class ExponentialMovingAverage:
    """average ← d · average + (1 − d) · weights after every step, where d grows to `decay` over the first steps.

    One fused update for all tensors, and a swap in place: 0.46 ms per step for GPT-2 124M on an H200, against 1.69 for
    `torch.optim.swa_utils.AveragedModel` (benchmarks/torch_parts.py), which also copies the whole module.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        self._parameters = dict(model.named_parameters())

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update after `step` steps. Early on the decay is smaller, so that the random initial weights fade."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.weights.values()), list(self._parameters.values()), 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the averaged weights inside the block and restore its own afterwards."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the averaged weights and the model's."""
        for name, parameter in self._parameters.items():
            current = parameter.detach().clone()
            parameter.copy_(self.weights[name])
            self.weights[name].copy_(current)


def steps_to_average(run: Run, last_step: int, n_checkpoints: int, save_every: int) -> list[int]:
    """Steps of the last `n_checkpoints` checkpoints: those saved every `save_every` steps, and the last one. The ones
    saved because they were the best do not count."""
    is_regular = {step: step == last_step or (save_every and step % save_every == 0) for step in run.checkpoint_steps()}
    return [step for step, regular in is_regular.items() if regular and 0 < step <= last_step][-n_checkpoints:]


def average_checkpoints(run: Run, steps: Iterable[int], model: Model) -> dict[str, Tensor]:
    """Mean weights of a run's checkpoints at `steps`, by the names of the model's parameters."""
    return mean_weights(read_weights(run.checkpoint_dir(step), model) for step in steps)


def mean_weights(checkpoints: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Mean of each tensor over several checkpoints, summed in float64."""
    totals: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    count = 0
    for tensors in checkpoints:
        count += 1
        for name, tensor in tensors.items():
            dtypes[name] = tensor.dtype
            totals[name] = totals[name] + tensor.double() if name in totals else tensor.double()
    return {name: (total / count).to(dtypes[name]) for name, total in totals.items()}
