"""Random numbers that are a function of a row's seed and position: no generator to carry, to lose, or to share.

Each number is a hash of (seed, position, stream), by the finaliser of SplitMix64 (Steele, Lea & Flood 2014), computed
for all rows at once wherever the logits are. A row's text therefore depends on its seed alone, not on its neighbours.
"""

import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

TOKEN, XTC = 0, 1  # streams: the draw of the token, and the coin of `xtc`


def uniform(seed: Tensor, position: Tensor, stream: int) -> Tensor:
    """seed, position (B,) integers → (B,) in [0, 1), with 53 random bits."""
    x = _mix(_mix(seed + _signed(0x9E3779B97F4A7C15 * (stream + 1))) + position * _signed(0xD1342543DE82EF95))
    return _shift(x, 11).double() * 2.0**-53


def seeds(n_rows: int, seed: int | Sequence[int] | None, device: torch.device | str = "cpu") -> Tensor:
    """(B,): the numbers given, `seed + row` for one number, or new ones for none."""
    if seed is None:
        seed = secrets.randbits(62)
    given = seed.tolist() if hasattr(seed, "tolist") else seed
    values = [given + row for row in range(n_rows)] if isinstance(given, int) else list(given)
    return torch.tensor([_signed(int(value)) for value in values], dtype=torch.long, device=device)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, n: int) -> Tensor:
    """To the right as if there were no sign."""
    return (x >> n) & ((1 << (64 - n)) - 1)


def _signed(value: int) -> int:
    """The 64-bit integer with these bits; products of such integers wrap around."""
    return (value + 2**63) % 2**64 - 2**63
