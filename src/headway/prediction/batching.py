"""Run an encoder over many texts: batches of similar length, so that little padding is computed.

for number, hidden in run_encoder(model, inputs, model):
    ...                                              # in the order of their length, each with its number
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headway.data.padding import pad
from headway.errors import InputError
from headway.models.base import Model, eval_mode
from headway.nn.block import Block
from headway.nn.kernels.cpu_encoder import encoder_kernels

DEFAULT_BATCH_SIZE = 32
CPU_BATCH_TOKENS = 1024  # with padding. More is not faster on a CPU, and shorter batches have less padding
MIN_BATCHES_TO_PACK = 3  # packing the weights takes as long as it saves in two batches

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
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size} is not at least 1")
    batches = _batches([len(row.ids) for row in inputs], batch_size, _max_tokens(model))
    n_done = 0
    with eval_mode(model), encoder_kernels(model, pack=len(batches) >= MIN_BATCHES_TO_PACK):
        for numbers in batches:
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


def _batches(lengths: Sequence[int], batch_size: int, max_tokens: int | None) -> list[list[int]]:
    """The numbers of all inputs, the longest first: out of memory at once, or never. A batch has at most `batch_size`
    inputs and, unless a single one is longer, `max_tokens` tokens with its padding."""
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    batches = []
    while order:
        longest = max(1, lengths[order[0]])
        size = batch_size if max_tokens is None else min(batch_size, max(1, max_tokens // longest))
        batches.append(order[:size])
        order = order[size:]
    return batches


def _max_tokens(model: Model) -> int | None:
    """A recurrent encoder has no limit: it takes one step per position, for however many texts."""
    has_blocks = any(isinstance(module, Block) for module in model.modules())
    return CPU_BATCH_TOKENS if has_blocks and model.device.type == "cpu" else None
