"""Random numbers as a function of a row's seed and position: no generator to carry, lose or share.

Each number is a hash of (seed, position, stream) by the finaliser of SplitMix64 (Steele, Lea & Flood 2014), computed
for all rows at once on the device of the logits. A row's text therefore depends on its seed alone, not on the batch.
"""

import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

TOKEN, XTC = 0, 1  # streams: the draw of the token, and whether `xtc` acts


def uniform(seed: Tensor, position: Tensor, stream: int) -> Tensor:
    """seed, position (B,) integers → (B,) in [0, 1), with 53 random bits."""
    x = _mix(_mix(seed + _signed(0x9E3779B97F4A7C15 * (stream + 1))) + position * _signed(0xD1342543DE82EF95))
    return _logical_shift(x, 11).double() * 2.0**-53


def seeds(n_rows: int, seed: int | Sequence[int] | None, device: torch.device | str = "cpu") -> Tensor:
    """(B,): the given seeds, `seed + row` for a single one, or fresh ones for None."""
    if seed is None:
        seed = secrets.randbits(62)
    seed = seed.tolist() if hasattr(seed, "tolist") else seed
    values = [seed + row for row in range(n_rows)] if isinstance(seed, int) else list(seed)
    return torch.tensor([_signed(int(value)) for value in values], dtype=torch.long, device=device)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _logical_shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _logical_shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _logical_shift(x, 31)


def _logical_shift(x: Tensor, n: int) -> Tensor:
    """Shift right without copying the sign bit."""
    return (x >> n) & ((1 << (64 - n)) - 1)


def _signed(value: int) -> int:
    """The signed 64-bit integer with these bits; products of such integers wrap around."""
    return (value + 2**63) % 2**64 - 2**63
