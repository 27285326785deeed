"""Run an encoder over many texts: batches of similar length, so that little padding is computed.

for number, hidden in run_encoder(model, inputs, model):
    ...                                              # in the order of their length, each with its number
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from headway.data.padding import pad
from headway.errors import InputError
from headway.models.base import Model, eval_mode
from headway.nn.block import Block
from headway.nn.kernels.cpu_encoder import encoder_kernels

DEFAULT_BATCH_SIZE = 32
# On a CPU, a batch of MIN_CUT_TOKENS tokens takes no text that is shorter than MIN_FILL times its longest.
MIN_CUT_TOKENS, MIN_FILL = 256, 0.8
MIN_BATCHES_TO_PACK = 3  # packing the weights takes as long as it saves in two batches

# ids (B, T), mask (B, T) or None if nothing is padded, segments (B, T) or None → (B, …)
ForwardFn = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
OnProgress = Callable[[int], None]  # texts done
T = TypeVar("T")


def as_texts(texts: Iterable[T], is_text: Callable[[T], bool], verb: str, name: str = "texts") -> list[T]:
    """The texts as a list; a single string, and what is no text, is refused."""
    if isinstance(texts, str):
        raise InputError(f"{name} is one string, and {verb} takes several: pass a list, [text]")
    items = list(texts)
    for number, item in enumerate(items, 1):
        if not is_text(item):
            raise InputError(f"text {number} is {item!r:.40}, not a text: leave it out, or pass a string")
    return items


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
    batches = _batches([len(row.ids) for row in inputs], batch_size, cut_padding=_runs_blocks_on_cpu(model))
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


def _batches(lengths: Sequence[int], batch_size: int, *, cut_padding: bool) -> list[list[int]]:
    """The numbers of all inputs in batches, the longest first: out of memory at once, or never.

    With `cut_padding` a batch also ends where shorter inputs begin. A GPU needs large batches. A CPU is as fast with
    small ones, so there every position of padding is lost time.
    """
    batches: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        batch = batches[-1] if batches else []
        longest = lengths[batch[0]] if batch else 0
        is_shorter = len(batch) * longest >= MIN_CUT_TOKENS and lengths[number] < MIN_FILL * longest
        if batch and len(batch) < batch_size and not (cut_padding and is_shorter):
            batch.append(number)
        else:
            batches.append([number])
    return batches


def _runs_blocks_on_cpu(model: Model) -> bool:
    """Not a recurrent encoder: that takes one step per position, for however many texts."""
    return model.device.type == "cpu" and any(isinstance(module, Block) for module in model.modules())
