"""From one long row of tokens to batches of windows for a causal language model."""

from collections.abc import Iterator

import torch
from torch import Tensor

from headway.errors import DataError


def random_windows(stream: Tensor, context: int, batch_size: int, *, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets (B, T), from places that depend on (seed, step) alone: any batch can be made again."""
    if len(stream) < 2:
        raise DataError(f"{len(stream)} tokens are too few to learn from: give more text")
    width = min(context, len(stream) - 1)
    rng = torch.Generator().manual_seed((seed << 32) + step)
    begin = torch.randint(len(stream) - width, (batch_size, 1), generator=rng)
    windows = stream[begin + torch.arange(width + 1)]  # (B, T + 1)
    return windows[:, :-1], windows[:, 1:]


def consecutive_windows(stream: Tensor, context: int, batch_size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The whole stream once: (inputs, targets, lengths), every token but the first a target exactly once."""
    n = len(stream) - 1
    begins = range(0, n, context)
    for i in range(0, len(begins), batch_size):
        rows = [stream[b : min(b + context, n) + 1] for b in begins[i : i + batch_size]]
        lengths = torch.tensor([len(row) - 1 for row in rows])
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        yield padded[:, :-1], padded[:, 1:], lengths
