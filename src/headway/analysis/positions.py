"""Position encodings as numbers: the code of each position, its frequencies, and what attention can tell from it.

    table           one row per position                           sinusoidal, learned, per-layer, binary
    frequencies     ω_k = 1/10000^(2k/D), falling along the row    sinusoidal, rotary
    similarity      PE·PEᵀ, or q·k of rotated queries and keys     of all these kinds (learned ones: cosines)
    bias            added to the scores, by distance and head      relative, alibi

Everything but the binary code is what nn/positions.py computes in a model: tables are read off by adding positions to
zeros, rotations by rotating unit vectors. The binary code is the lectures' first idea of one: a position written in
bits, the lowest first. Sines and cosines are its smooth form, in which neighbours are near each other.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.errors import ConfigError, InputError, suggest
from headway.models.adapter import refuse_path
from headway.models.base import described
from headway.models.registry import create
from headway.models.transformer import Transformer
from headway.nn.positions import Positions, Rotary, Sinusoidal, frequencies

KINDS = ("sinusoidal", "learned", "per-layer", "relative", "rotary", "alibi", "binary")
LEARNED = ("learned", "per-layer", "relative")  # the others are formulas
WITH_BIAS = ("relative", "alibi")
DEFAULT_LENGTH, DEFAULT_WIDTH, DEFAULT_HEADS = 51, 130, 8  # 51 × 130: the heat map of the lecture
MAX_LENGTH, MAX_WIDTH, MAX_HEADS = 2048, 8192, 128
SIDES = ("encoder", "decoder")


@dataclass(frozen=True)
class PositionCode:
    """What a kind of positions computes for the positions 0 … T − 1. Each field is None where the kind has none."""

    kind: str
    length: int  # T
    origin: str  # "formula", "untrained" (random initial values) or "model"
    table: Tensor | None = None  # (T, D); of rotary positions cos ω_k pos and sin ω_k pos, halves side by side
    frequencies: Tensor | None = None  # (⌈D/2⌉,), radians per position
    similarity: Tensor | None = None  # (T, T): PE·PEᵀ, cosines, rotated q·k, or bits that agree
    bias: Tensor | None = None  # (H, T, T), query × key
    is_causal: bool = True  # whether a query attends to earlier keys only

    @property
    def width(self) -> int:
        return 0 if self.table is None else self.table.shape[1]

    @property
    def least_distance(self) -> tuple[float, int, int] | None:
        """The least Euclidean distance between two rows of the table, and the positions of the first such pair."""
        if self.table is None:
            return None
        table = self.table.double()
        lengths = table.square().sum(dim=1)
        # |a − b|² = |a|² + |b|² − 2 a·b, one matrix product; in float64 the cancellation leaves errors of about 1e-7
        gaps = (lengths[:, None] + lengths - 2 * table @ table.T).clamp(min=0).sqrt()
        gaps = gaps.masked_fill(torch.ones_like(gaps, dtype=torch.bool).tril(), torch.inf)
        first, second = divmod(int((gaps <= gaps.min() * (1 + 1e-4)).int().argmax()), self.length)
        return float(gaps[first, second]), first, second

    def similarity_by_distance(self) -> list[tuple[float, float, float]]:
        """For each distance 0 … T − 1 the least, mean and greatest similarity of two positions that far apart. If all
        three are equal, similarity depends on the distance only."""
        if self.similarity is None:
            return []
        diagonals = [self.similarity.diagonal(-distance) for distance in range(self.length)]
        return [(float(d.min()), float(d.mean()), float(d.max())) for d in diagonals]

    def bias_by_offset(self) -> tuple[list[int], Tensor]:
        """The offsets key − query, ascending, and the bias (H, offsets) of each: all of them, or those up to 0 of a
        causal model."""
        if self.bias is None:
            raise InputError(f"{self.kind} positions add no bias to the scores: choose relative or alibi")
        before, after = self.bias[:, -1], self.bias[:, 0, 1:]  # the last query and all keys; the first and later keys
        offsets = list(range(1 - self.length, 1 if self.is_causal else self.length))
        return offsets, before if self.is_causal else torch.cat((before, after), dim=-1)


def position_code(
    kind: str | None = None,
    *,
    length: int | None = None,
    width: int | None = None,
    n_heads: int | None = None,
    model: Any = None,
    side: str | None = None,
) -> PositionCode:
    """The code of the first `length` positions (default: 51), `width` numbers wide (default: 130; rotary and per-layer
    positions have the width of a head), or for `n_heads` heads (default: 8).

    With a `model`, the positions are the model's own, with its widths and heads, and `kind` may be omitted; `side` is
    "encoder" or "decoder" of an encoder-decoder (default: decoder). Without one, learned kinds show their random
    initial values.
    """
    check_kind(kind)
    for name, value, most in (("width", width, MAX_WIDTH), ("n_heads", n_heads, MAX_HEADS)):
        if value is not None and not 1 <= value <= most:
            raise ConfigError(f"{name}={value} must be between 1 and {most:,}")
    if length is not None and not 2 <= length <= MAX_LENGTH:
        raise ConfigError(f"length={length} must be between 2 and {MAX_LENGTH:,}: two positions or more to compare")
    if model is not None:
        return _code_of_model(model, kind, length, width, n_heads, side)
    if side is not None:
        raise InputError(f"side={side!r} is one of a model: pass an encoder-decoder")
    kind, length = kind or "sinusoidal", length or DEFAULT_LENGTH
    if kind == "binary":
        table = binary_code(length)
        signs = 2 * table - 1
        return PositionCode(kind, length, "formula", table=table, similarity=(table.shape[1] + signs @ signs.T) / 2)
    width = width or DEFAULT_WIDTH
    if kind == "rotary" and width % 2:
        raise ConfigError(f"width={width} is odd, and rotary positions rotate pairs of numbers: use {width + 1}")
    positions = _untrained(kind, length, width, n_heads or DEFAULT_HEADS)
    origin = "untrained" if kind in LEARNED else "formula"
    return _code(kind, positions, length, width, origin, is_causal=True)


def check_kind(kind: str | None) -> None:
    """Raise a `ConfigError` with the nearest name if there are no such positions."""
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"no positions named {kind!r}; choose from {', '.join(KINDS)}.{suggest(kind, KINDS)}")


def binary_code(length: int) -> Tensor:
    """Positions 0 … T − 1 in bits, the lowest first, so that columns change ever more slowly: (T, bits) of 0 and 1."""
    bits = torch.arange(max(1, (length - 1).bit_length()))
    return ((torch.arange(length)[:, None] >> bits) & 1).float()


def _code_of_model(
    model: Any, kind: str | None, length: int | None, width: int | None, n_heads: int | None, side: str | None
) -> PositionCode:
    refuse_path(model)
    if width is not None or n_heads is not None:
        raise InputError("a model has its own width and heads: leave width and n_heads out")
    core: Any = model if isinstance(model, Transformer) else getattr(model, "encoder", model)
    positions: Any
    if isinstance(core, Transformer):
        if side not in (None, *SIDES):
            raise InputError(f"no side named {side!r}; choose from {', '.join(SIDES)}.{suggest(str(side), SIDES)}")
        positions = core.encoder.positions if side == "encoder" else core.decoder.positions
    elif side is not None:
        raise InputError(f"{described(model)} has one stack of layers: leave side={side!r} out")
    else:
        positions = getattr(core, "positions", None)
    if not isinstance(positions, Positions):
        raise InputError(
            f"{described(model)} has no position encoding: use a gpt, bert or transformer, or no model at all"
        )
    own_kind = core.config.positions
    if kind not in (None, own_kind):
        raise InputError(f"this model has {own_kind} positions, not {kind}: leave the kind out, or the model")
    if own_kind not in KINDS:
        raise InputError(f"this model has positions={own_kind!r}, which are nothing to show: use a model that has some")
    limit = positions.limit
    if length is not None and limit is not None and length > limit:
        raise InputError(f"length={length} is more than the {limit} positions of this model: choose at most {limit}")
    length = length or min(DEFAULT_LENGTH, limit or DEFAULT_LENGTH)
    c = core.config
    own_width = c.d_head if own_kind in ("rotary", "per-layer") else c.d_model
    is_causal = not (side == "encoder" or c.family == "bert")
    origin = "model" if own_kind in LEARNED else "formula"
    return _code(own_kind, positions, length, own_width, origin, is_causal=is_causal)


def _untrained(kind: str, length: int, width: int, n_heads: int) -> Positions:
    """Positions as a new GPT has them; learned ones with their random initial values, the same every time."""
    sizes: dict[str, Any] = (
        {"d_model": n_heads, "n_heads": n_heads} if kind in WITH_BIAS else {"d_model": width, "n_heads": 1}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = create("gpt", device="cpu", vocab_size=2, n_layers=0, context=length, positions=kind, **sizes)
    return model.positions


@torch.inference_mode()
def _code(kind: str, positions: Positions, length: int, width: int, origin: str, *, is_causal: bool) -> PositionCode:
    parameter = next(positions.parameters(), torch.zeros(0))
    pos = torch.arange(length, device=parameter.device)[None]
    if kind in WITH_BIAS:
        bias = positions.bias(pos, pos)
        assert bias is not None
        return PositionCode(kind, length, origin, bias=bias[0].float().cpu(), is_causal=is_causal)
    if isinstance(positions, Rotary):
        return PositionCode(
            kind, length, origin, table=_rotate(positions, _first_of_pairs(width), length),
            frequencies=frequencies(width, positions.theta), similarity=rotated_scores(positions, length),
        )  # fmt: skip
    zeros = parameter.new_zeros(1, length, width)
    transform = positions.qkv_transform(pos)
    table = positions.embed(zeros, pos) if transform is None else transform(*[zeros[:, None]] * 3)[0][:, 0]
    table = table[0].float().cpu()
    if isinstance(positions, Sinusoidal):  # PE·PEᵀ; all rows have the length √(D/2)
        omega = frequencies(width)
        return PositionCode(kind, length, origin, table=table, frequencies=omega, similarity=table @ table.T)
    rows = F.normalize(table, dim=-1)  # learned rows differ in length: cosines
    return PositionCode(kind, length, origin, table=table, similarity=rows @ rows.T)


def rotated_scores(positions: Rotary, length: int, q: Tensor | None = None, k: Tensor | None = None) -> Tensor:
    """q·k (T, T) of one query vector and one key vector (K,), each rotated at every position. By default both are all
    ones, whose product is 2 Σ_k cos(ω_k × distance)."""
    ones = torch.ones(positions.d_head)
    rotated_q, rotated_k = (_rotate(positions, ones if x is None else x, length) for x in (q, k))
    return rotated_q @ rotated_k.T


def _first_of_pairs(width: int) -> Tensor:
    """(K,): the unit vector (1, 0) in every pair; a rotation turns it into cos and sin of the angle."""
    return torch.cat((torch.ones(width // 2), torch.zeros(width // 2)))


def _rotate(positions: Rotary, x: Tensor, length: int) -> Tensor:
    """The vector x (K,) rotated at every position: (T, K)."""
    rows = x.expand(1, 1, length, -1)
    return positions.qkv_transform(torch.arange(length)[None])(rows, rows, rows)[0][0, 0]
