"""Checked parameter values as tensors: numbers as columns (1, 1) or (B, 1), token sets as (1, M) or (B, M)."""

from typing import Any

import torch
from torch import Tensor

from headway.sampling.parameters import BiasParam, NumberParam, Parameter, ScopeParam

NO_TOKEN = -1  # pads token sets to the same width


def to_column(parameter: Parameter, values: list[Any], device: torch.device) -> Tensor | tuple[Tensor, Tensor]:
    """One value for all rows, or one per row, as a tensor with a row each; a bias becomes (ids, offsets)."""
    if isinstance(parameter, NumberParam):
        dtype = torch.long if parameter.is_integer else torch.float64
        if len(values) == 1:  # a fill needs no copy from the host
            return torch.full((1, 1), values[0], dtype=dtype, device=device)
        return torch.tensor(values, dtype=dtype, device=device)[:, None]
    if isinstance(parameter, ScopeParam):
        return torch.tensor([value == "generated" for value in values], device=device)[:, None]
    if isinstance(parameter, BiasParam):
        ids = _padded([[id for id, _ in row] for row in values], NO_TOKEN, torch.long, device)
        return ids, _padded([[offset for _, offset in row] for row in values], 0.0, torch.float64, device)
    return _padded([list(ids) for ids in values], NO_TOKEN, torch.long, device)


def _padded(rows: list[list[Any]], fill: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    width = max(map(len, rows), default=0)
    padded = [row + [fill] * (width - len(row)) for row in rows]
    return torch.tensor(padded, dtype=dtype, device=device).view(len(rows), width)
