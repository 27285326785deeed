"""Token sequences of different lengths as one padded batch."""

from collections.abc import Sequence

import torch
from torch import Tensor


def pad_ids(rows: Sequence[Sequence[int]], device: torch.device | str | None = None) -> tuple[Tensor, Tensor]:
    """Right-pad token ids with zeros: ids (B, T) int64 on `device`, and their lengths (B,) on the CPU.

    >>> ids, lengths = pad_ids([[5, 6, 7], [8]])
    >>> ids.tolist(), lengths.tolist()
    ([[5, 6, 7], [8, 0, 0]], [3, 1])
    """
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
    ids = torch.zeros(len(rows), int(lengths.max()) if len(rows) else 0, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row, dtype=torch.long)
    return ids.to(device=device), lengths
