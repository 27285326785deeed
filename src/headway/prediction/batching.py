"""Run an encoder over many texts: batches of similar length, so that little padding is computed.

for number, hidden in run_encoder(model, inputs, model):
    ...                                              # in the order of their length, each with its number
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headway.data.padding import pad
from headway.models.base import Model, eval_mode
from headway.nn.kernels.cpu_linear import CPUKernels

DEFAULT_BATCH_SIZE = 32

# ids (B, T), mask (B, T) or None if nothing is padded, segments (B, T) or None → (B, …)
ForwardFn = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
OnProgress = Callable[[int], None]  # texts done


class EncoderInput(NamedTuple):
    """A text, or two, as the encoder reads it: with its special tokens."""

    ids: list[int]
    segments: list[int] | None = None  # 0 or 1 per token; None: all 0


@torch.no_grad()  # per step of the generator: what the caller does in between is not affected
def run_encoder(
    model: Model,
    inputs: Sequence[EncoderInput],
    forward: ForwardFn,
    *,
    batch_size: int = DEFAULT_BATCH_SIZE,
    on_progress: OnProgress = lambda n_done: None,
) -> Iterator[tuple[int, Tensor]]:
    """The number of each input and its row of `forward`'s output, the longest inputs first.

    Rows of a tensor (B, T, …) keep the padding of their batch: take the first `len(ids)`. `model` is switched to eval
    mode, and on a CPU to its faster kernels, while this runs.
    """
    order = sorted(range(len(inputs)), key=lambda number: -len(inputs[number].ids))  # out of memory at once, or never
    n_done = 0
    with eval_mode(model), CPUKernels(model):
        for start in range(0, len(order), batch_size):
            numbers = order[start : start + batch_size]
            ids, mask = pad([inputs[number].ids for number in numbers], 0)
            segments: Tensor | None = None
            if any(inputs[number].segments is not None for number in numbers):
                rows = [inputs[number].segments or [0] * len(inputs[number].ids) for number in numbers]
                segments = pad(rows, 0)[0].to(model.device)
            is_padded = not bool(mask.all())
            output = forward(ids.to(model.device), mask.to(model.device) if is_padded else None, segments)
            yield from zip(numbers, output, strict=True)
            n_done += len(numbers)
            on_progress(n_done)
