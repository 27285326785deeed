"""Six position encodings. Without one, attention treats its input as a bag of words.

A position can enter in three ways, and each kind below uses exactly one of them:

    embed           added once to the embeddings              sinusoidal, learned
    qkv_transform   applied to q, k and v in every layer      per-layer, rotary
    bias            added to the scores of every layer        relative, ALiBi

Sinusoidal, rotary and ALiBi are formulas and extend to any length; learned tables end at `limit`. Formulas are
evaluated in float32 regardless of the model's precision (bfloat16 cannot tell position 257 from 258) and need no
buffers.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

QKVTransform = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


class Positions(nn.Module):
    """No positions, and the base class of the six kinds. `pos` (B or 1, T) counts from 0 at the start of a text."""

    limit: int | None = None  # longest sequence; None if unlimited

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        """x (B, T, D) embeddings → the same with positions added."""
        return x

    def qkv_transform(self, pos: Tensor) -> QKVTransform | None:
        """A function of q (B, H, T, K), k and v (B, G, T, K) of the new tokens; built once, applied in every layer."""
        return None

    def bias(self, query_pos: Tensor, key_pos: Tensor) -> Tensor | None:
        """The bias added to the scores: (B or 1, H, T, S), the same in all layers; None if there is none.

        query_pos (B or 1, T), key_pos (B or 1, S); a single row must hold consecutive positions.
        """
        return None


def frequencies(width: int, base: float = 10_000.0, device: torch.device | None = None) -> Tensor:
    """ω_k = base^(−2k/D), in radians per position: one per pair of dimensions, falling along the vector. (⌈D/2⌉,)"""
    even = torch.arange(0, width, 2, device=device, dtype=torch.float32)
    return base ** (-even / width)


def sinusoid(pos: Tensor, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos(same); Vaswani et al. 2017, §3.5. (…,) → (…, D)."""
    angle = pos[..., None].float() * frequencies(d_model, device=pos.device)  # (…, ⌈D/2⌉)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., :d_model]


class Sinusoidal(Positions):
    """Vaswani et al. 2017, §3.5."""

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        return x + sinusoid(pos, x.shape[-1]).to(x.dtype)


class Learned(Positions):
    """One vector per position, added to the embedding (Gehring et al. 2017; GPT-1, GPT-2, BERT)."""

    def __init__(self, context: int, d_model: int):
        super().__init__()
        self.limit = context
        self.weight = nn.Parameter(torch.empty(context, d_model))

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        return x + self.weight[pos]


class PerLayer(Positions):
    """An absolute position Π added again in every layer: Q + Π, K + Π, V + Π, one learned row Π[pos] of width K.

    Heads and layers share the table, so it also fits grouped-query attention, with fewer key than query heads.
    """

    def __init__(self, context: int, d_head: int):
        super().__init__()
        self.limit = context
        self.weight = nn.Parameter(torch.empty(context, d_head))

    def qkv_transform(self, pos: Tensor) -> QKVTransform:
        pi = self.weight[pos].unsqueeze(1)  # (B, 1, T, K)
        return lambda q, k, v: (q + pi, k + pi, v + pi)


class Rotary(Positions):
    """Rotate q and k by an angle proportional to their position, so that q·k depends only on their distance.

    Su et al. 2021, eq. 34. Departure: dimension i is paired with dimension i + K/2 instead of its neighbour. That is a
    fixed permutation of each head, and the convention of the published Llama weights in the transformers layout.
    """

    def __init__(self, d_head: int, theta: float):
        super().__init__()
        self.d_head, self.theta = d_head, theta

    def qkv_transform(self, pos: Tensor) -> QKVTransform:
        angle = pos[:, None, :, None].float() * frequencies(self.d_head, self.theta, pos.device)  # (B, 1, T, K/2)
        cos, sin = angle.cos(), angle.sin()

        def rotate(x: Tensor) -> Tensor:
            a, b = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, dim=-1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)

        return lambda q, k, v: (rotate(q), rotate(k), v)


class Relative(Positions):
    """A learned scalar per head and offset added to the scores (Shaw et al. 2018 as simplified by Raffel et al. 2020).

    Offsets beyond the context are clipped (models refuse such sequences, this module does not). All layers share the
    table (Raffel et al. 2020, §2.1).
    """

    def __init__(self, context: int, n_heads: int, *, is_causal: bool):
        super().__init__()
        self.limit = context
        self.max_offset = 0 if is_causal else context - 1
        self.min_offset = 1 - context
        self.weight = nn.Parameter(torch.empty(n_heads, self.max_offset - self.min_offset + 1))

    def bias(self, query_pos: Tensor, key_pos: Tensor) -> Tensor:
        if query_pos.shape[0] == key_pos.shape[0] == 1:
            return self._shifted(query_pos[0], key_pos[0])
        return self._gather(key_pos[:, None, :] - query_pos[:, :, None]).transpose(0, 1)  # (B, H, T, S)

    def _gather(self, offset: Tensor) -> Tensor:
        """offset = key − query position, of any shape (…) → (H, …)."""
        return self.weight[:, offset.clamp(self.min_offset, self.max_offset) - self.min_offset]

    def _shifted(self, query_pos: Tensor, key_pos: Tensor) -> Tensor:
        """The same for consecutive positions (T,) and (S,): every row is the row above, shifted right by one.
        (Positions of padding may not be consecutive; its rows are never used.)

        Gathering all T × S entries has a backward that adds millions of numbers into a few entries, one by one; on an
        H200 it took 200 ms for 2048 positions. Here each offset is gathered once, and the rows are laid out by reading
        T concatenated copies of them as rows one entry shorter (Dai et al. 2019, appendix B).
        """
        T, S = len(query_pos), len(key_pos)
        L = T + S - 1
        offset = key_pos[0] - (query_pos[0] + T - 1) + torch.arange(L, device=key_pos.device)
        row = self._gather(offset)  # (H, L): the last query's biases, then those of earlier queries for later keys
        if T == 1:
            return row[None, :, None]
        copies = row[:, None].expand(-1, T, -1).reshape(-1, T * L)
        return copies[:, T - 1 : -1].view(-1, T, L - 1)[None, :, :, :S]


def alibi_slopes(n_heads: int, device: torch.device | None = None) -> Tensor:
    """2^(−8/H), 2^(−16/H), …; Press et al. 2022, §3. (H,)

    For a number of heads that is not a power of two: the slopes of the power below, then every other slope of the power
    above, as in the authors' code.
    """
    below = 1 << (n_heads.bit_length() - 1)
    exponents = torch.arange(1, below + 1, device=device, dtype=torch.float32) * (8 / below)
    extra = torch.arange(0, n_heads - below, device=device, dtype=torch.float32) * (8 / below) + 4 / below
    return 2.0 ** -torch.cat((exponents, extra))


class ALiBi(Positions):
    """Scores fall linearly with distance, at a fixed slope per head (Press et al. 2022).

    In a bidirectional encoder the distance is the absolute one.
    """

    def __init__(self, n_heads: int):
        super().__init__()
        self.n_heads = n_heads

    def bias(self, query_pos: Tensor, key_pos: Tensor) -> Tensor:
        distance = (key_pos[:, None, None, :] - query_pos[:, None, :, None]).abs()  # (B, 1, T, S)
        return -alibi_slopes(self.n_heads, query_pos.device)[:, None, None] * distance


def make_positions(
    kind: str, *, context: int, d_model: int, d_head: int, n_heads: int, theta: float, is_causal: bool
) -> Positions:
    """The position encoding named `kind` in the config."""
    match kind:
        case "sinusoidal":
            return Sinusoidal()
        case "learned":
            return Learned(context, d_model)
        case "per-layer":
            return PerLayer(context, d_head)
        case "rotary":
            return Rotary(d_head, theta)
        case "relative":
            return Relative(context, n_heads, is_causal=is_causal)
        case "alibi":
            return ALiBi(n_heads)
        case "none":
            return Positions()
    raise ValueError(f"no positions named {kind!r}")  # configs are validated: only a bug gets here
