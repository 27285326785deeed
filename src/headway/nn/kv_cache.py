"""What decoding remembers. A state is passed to `step` and returned by it, never kept on the model.

The KV cache holds, for every layer, the keys and values of all positions so far: 2 · n · d_kv · L numbers per row,
allocated once for `capacity` = n positions, so that a new token is written in place, beside those before it.
Rows may be of different lengths: row b owns the first `length[b]` slots, whatever lies behind them is never seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.errors import InputError
from headway.nn.positions import Positions

if TYPE_CHECKING:
    from headway.nn.beam_cache import BeamCache


class State(Protocol):
    """What a model's `step` takes and gives back, be it a KV cache, an (h, c) or the last n − 1 tokens."""

    @property
    def length(self) -> Tensor:
        """(B,) tokens seen by each row."""
        ...

    @property
    def nbytes(self) -> int: ...

    def reorder(self, rows: Tensor | Sequence[int]) -> Self:
        """Row i of the result is row `rows[i]`: repeat rows for beams, drop those that finished."""
        ...

    def copy(self) -> Self: ...


def row_indices(rows: Tensor | Sequence[int], length: Tensor) -> Tensor:
    """Which rows of a state to keep, as (N,) indices on its device; values are checked where they are on the host."""
    index = torch.as_tensor(rows)
    if index.numel() == 0:
        index = index.long().reshape(0)
    if index.dim() != 1 or index.dtype not in (torch.int64, torch.int32):
        raise InputError(
            f"rows of shape {tuple(index.shape)} and type {index.dtype}: reorder takes a list of row numbers, such as "
            f"[0, 0, 2]"
        )
    if index.device.type == "cpu" and index.numel() and not 0 <= int(index.min()) <= int(index.max()) < len(length):
        raise InputError(f"rows {index.tolist()} of a state of {len(length)}: from 0 to {len(length) - 1}")
    return index.to(length.device, torch.long)


@dataclass(frozen=True)
class KVCache:
    """A state is *consumed* by `step`: the result shares its memory. Branch with `copy` or `reorder`."""

    keys: Tensor  # (L, B, G, capacity, K)
    values: Tensor
    length: Tensor  # (B,) on the device
    bound: int = 0  # no row is longer: known on the host, so that no step waits for the device to ask
    is_even: bool = True  # all rows are exactly `bound` long: slices serve where masks would be needed
    limit: int | None = None  # the capacity may grow to this: the caller's, the positions', or without end

    @staticmethod
    def empty(
        n_layers: int,
        batch_size: int,
        n_kv_heads: int,
        capacity: int,
        d_head: int,
        *,
        limit: int | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> "KVCache":
        shape = (n_layers, batch_size, n_kv_heads, capacity, d_head)
        # Zeros, not whatever was in memory: an unused slot has weight 0, but 0 · NaN is NaN.
        keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        return KVCache(keys, values, torch.zeros(batch_size, dtype=torch.long, device=device), limit=limit)

    def __repr__(self) -> str:
        lengths = self.length.tolist() if self.length.device.type == "cpu" else f"at most {self.bound}"
        return f"KVCache({self.batch_size} rows of {lengths} tokens, capacity {self.capacity}, {self.nbytes:,} bytes)"

    @property
    def batch_size(self) -> int:
        return self.keys.shape[1]

    @property
    def capacity(self) -> int:
        return self.keys.shape[3]

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values: 2 · n · d_kv · L elements per row."""
        return self.keys.nbytes + self.values.nbytes

    def reorder(self, rows: Tensor | Sequence[int]) -> "KVCache":
        rows = row_indices(rows, self.length)
        keys, values = self.keys.index_select(1, rows), self.values.index_select(1, rows)
        return replace(self, keys=keys, values=values, length=self.length[rows])

    def copy(self) -> "KVCache":
        return replace(self, keys=self.keys.clone(), values=self.values.clone(), length=self.length.clone())

    def branch(self, n_beams: int) -> "BeamCache":
        """The same, to be continued in `n_beams` ways a row that share what they have in common."""
        from headway.nn.beam_cache import branch_cache

        return branch_cache(self, n_beams)

    def extend(self, n_tokens: int, lengths: Tensor | None = None) -> "CacheUpdate":
        """Make room for a step of `n_tokens` per row, of which the first `lengths` (B,) are real."""
        longest = self.bound + n_tokens
        if longest > self.capacity and not (self.is_even and lengths is None):
            # The bound counts padding as tokens. Before growing or refusing, ask the device for the true lengths.
            after = self.length + (n_tokens if lengths is None else lengths)
            longest = max(1, int(after.max())) if self.batch_size else self.bound
        if self.limit is not None and longest > self.limit:
            raise InputError(
                f"{longest} tokens are longer than the context of {self.limit} this cache was begun for: shorten the "
                f"prompt, or begin with start(capacity={longest}) if the model's positions reach that far"
            )
        return CacheUpdate(self if longest <= self.capacity else self._grown(longest), n_tokens, longest, lengths)

    def _grown(self, needed: int) -> "KVCache":
        """Twice the room, so that the cost of copying, spread over the tokens that fill it, stays constant."""
        more = max(needed, min(2 * self.capacity, self.limit or 2 * self.capacity)) - self.capacity
        keys, values = F.pad(self.keys, (0, 0, 0, more)), F.pad(self.values, (0, 0, 0, more))
        return replace(self, keys=keys, values=values)


class CacheUpdate:
    """One step in progress: where its tokens go, what they may look at, and the cache that results.

    While all rows are equally long their new tokens lie side by side: one slice is written, and plain causality
    says who sees what, even if some of the tokens are padding (it comes last, so no real token looks at it, and the
    next step writes over it). Otherwise every row has slots and a mask of its own.
    """

    def __init__(self, before: KVCache, n_tokens: int, longest: int, lengths: Tensor | None):
        self.before, self.n_tokens, self.lengths = before, n_tokens, lengths
        self.n_slots = longest  # slots that anyone may look at
        self.is_side_by_side = before.is_even and before.bound + n_tokens == longest
        steps = torch.arange(n_tokens, device=before.length.device)
        if self.is_side_by_side:
            self.pos = steps[None] + before.bound  # (1, T) the position of each token in its text
            return
        # Padding must land somewhere harmless: on its row's last real token, with that token's own values. A row
        # without any real token writes back what its slot holds.
        real = torch.full_like(before.length, n_tokens) if lengths is None else lengths
        self.take = torch.minimum(steps, real[:, None] - 1).clamp(min=0)  # (B, T) the token that is written …
        self.pos = (before.length[:, None] + self.take).clamp(max=before.capacity - 1)  # … and where
        self.has_token = real[:, None, None, None] > 0

    @property
    def mask(self) -> Tensor | None:
        """(B, 1, T, S): every slot up to one's own position; None where plain causality says the same."""
        if self.is_side_by_side:
            return None
        slots = torch.arange(self.n_slots, device=self.pos.device)
        return (slots <= self.pos[..., None]).unsqueeze(1)

    @property
    def causal(self) -> bool:
        return self.is_side_by_side

    def bias(self, positions: Positions) -> Tensor | None:
        """What these positions add to the scores of the new tokens."""
        return positions.bias(self.pos, torch.arange(self.n_slots, device=self.pos.device)[None])

    def layer(self, i: int) -> "LayerCache":
        return LayerCache(self.before.keys[i], self.before.values[i], self._write)

    def _write(self, slots: Tensor, new: Tensor) -> Tensor:
        if self.is_side_by_side:
            slots[:, :, self.before.bound : self.n_slots] = new
        else:
            rows = torch.arange(new.shape[0], device=new.device)[:, None]  # (B, 1)
            held = slots[rows, :, self.pos]  # (B, T, G, K)
            slots[rows, :, self.pos] = torch.where(self.has_token, new[rows, :, self.take], held)
        return slots[:, :, : self.n_slots]

    def after(self) -> KVCache:
        length = self.before.length + (self.n_tokens if self.lengths is None else self.lengths)
        is_even = self.before.is_even and self.lengths is None
        return replace(self.before, length=length, bound=self.n_slots, is_even=is_even)


@dataclass(frozen=True)
class LayerCache:
    """One layer's share of a step in progress."""

    keys: Tensor  # (B, G, capacity, K)
    values: Tensor
    write: Callable[[Tensor, Tensor], Tensor]

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new keys and values (B, G, T, K); return all there are so far (B, G, S, K), as views."""
        return self.write(self.keys, k), self.write(self.values, v)


@dataclass(frozen=True)
class TokenWindow:
    """The last n tokens of each row (B, n), −1 where its text had not begun: all that a model of a window remembers."""

    tokens: Tensor
    length: Tensor  # (B,)

    @classmethod
    def start(cls, batch_size: int, n: int, device: torch.device) -> "TokenWindow":
        if batch_size < 0:
            raise InputError(f"start(batch_size={batch_size}): rows from 0")
        tokens = torch.full((batch_size, n), -1, device=device)
        return cls(tokens, torch.zeros(batch_size, dtype=torch.long, device=device))

    @property
    def nbytes(self) -> int:
        return self.tokens.nbytes

    def before(self, ids: Tensor) -> Tensor:
        """The new tokens (B, T) after the old ones: (B, n + T)."""
        return torch.cat((self.tokens, ids.long().to(self.tokens.device)), dim=1)

    def after(self, ids: Tensor, lengths: Tensor | None) -> "TokenWindow":
        """Once these tokens are read, of each row as many as `lengths` says."""
        n = self.tokens.shape[1]
        real = torch.full_like(self.length, ids.shape[1]) if lengths is None else lengths.to(self.length.device)
        keep = real[:, None] + torch.arange(n, device=self.length.device)
        return TokenWindow(self.before(ids).gather(1, keep), self.length + real)

    def reorder(self, rows: Tensor | Sequence[int]) -> "TokenWindow":
        rows = row_indices(rows, self.length)
        return TokenWindow(self.tokens[rows], self.length[rows])

    def copy(self) -> "TokenWindow":
        return TokenWindow(self.tokens.clone(), self.length.clone())
