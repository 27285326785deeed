"""The KV cache: the keys and values of every layer and position so far.

It holds 2 · n · d_kv · L numbers per row, allocated once for `capacity` = n positions, so each new token is written in
place after the previous ones. Rows may have different lengths: row b owns the first `length[b]` slots, and slots
beyond them are never attended to.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.errors import InputError
from headway.nn.positions import Positions
from headway.nn.state import describe_rows, row_indices

if TYPE_CHECKING:
    from headway.nn.beam_cache import BeamCache


@dataclass(frozen=True)
class KVCache:
    """`step` *consumes* a cache: the result shares its memory. Branch with `copy` or `reorder`."""

    keys: Tensor  # (L, B, G, capacity, K)
    values: Tensor
    length: Tensor  # (B,) on the device
    bound: int = 0  # upper bound on `length`, known on the host: no step has to synchronise with the device
    is_uniform: bool = True  # every row has exactly `bound` tokens: slices suffice, no mask is needed
    limit: int | None = None  # maximum capacity: the caller's or the positions' limit; None grows without end

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
        # Zeros, not uninitialised memory: an unused slot has weight 0, but 0 · NaN is NaN.
        keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        return KVCache(keys, values, torch.zeros(batch_size, dtype=torch.long, device=device), limit=limit)

    def __repr__(self) -> str:
        return f"KVCache({describe_rows(self.length)}, capacity {self.capacity}, {self.nbytes:,} bytes)"

    @property
    def batch_size(self) -> int:
        return self.keys.shape[1]

    @property
    def capacity(self) -> int:
        return self.keys.shape[3]

    @property
    def has_free_slot(self) -> bool:
        """Whether every row has space for another token. It may be False with slots free: `bound` is an upper bound."""
        return self.bound < self.capacity

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
        """A cache for `n_beams` continuations of each row, which share their common prefix."""
        from headway.nn.beam_cache import branch_cache

        return branch_cache(self, n_beams)

    def extend(self, n_tokens: int, lengths: Tensor | None = None) -> "CacheUpdate":
        """Prepare a step of `n_tokens` per row, of which the first `lengths` (B,) are real; grow if needed."""
        needed = self.bound + n_tokens
        if needed > self.capacity and not (self.is_uniform and lengths is None):
            # `bound` counts padding as tokens. Before growing or refusing, synchronise to get the true lengths.
            new_lengths = self.length + (n_tokens if lengths is None else lengths)
            needed = max(1, int(new_lengths.max())) if self.batch_size else self.bound
        if self.limit is not None and needed > self.limit:
            raise InputError(
                f"{needed} tokens are longer than the context of {self.limit} this cache was created for: shorten the "
                f"prompt, or call start(capacity={needed}) if the model's positions extend that far"
            )
        return CacheUpdate(self if needed <= self.capacity else self._grow(needed), n_tokens, needed, lengths)

    def _grow(self, needed: int) -> "KVCache":
        """The capacity grows geometrically, so copying is amortised O(1) per token."""
        n_added = max(needed, min(2 * self.capacity, self.limit or 2 * self.capacity)) - self.capacity
        keys, values = F.pad(self.keys, (0, 0, 0, n_added)), F.pad(self.values, (0, 0, 0, n_added))
        return replace(self, keys=keys, values=values)


class CacheUpdate:
    """One step in progress: the slots of its tokens, what they may attend to, and the resulting cache.

    While all rows have the same length, their new tokens fill the same slots: one slice is written and a plain causal
    mask suffices, even if some tokens are padding. Padding comes last, so no real token attends to it, and the next
    step overwrites it. Otherwise each row has its own slots and mask.
    """

    def __init__(self, cache: KVCache, n_tokens: int, n_slots: int, lengths: Tensor | None):
        self.cache, self.n_tokens, self.lengths = cache, n_tokens, lengths
        self.n_slots = n_slots  # slots in use once the step is done
        self.is_contiguous = cache.is_uniform and cache.bound + n_tokens == n_slots
        steps = torch.arange(n_tokens, device=cache.length.device)
        if self.is_contiguous:
            self.pos = steps[None] + cache.bound  # (1, T) the position of each token in its text
            return
        # Padding must be written somewhere harmless: to the slot of its row's last real token, with that token's own
        # values. A row without any real token writes back what its slot already holds.
        n_real = torch.full_like(cache.length, n_tokens) if lengths is None else lengths
        self.token_index = torch.minimum(steps, n_real[:, None] - 1).clamp(min=0)  # (B, T) the token to write …
        self.pos = (cache.length[:, None] + self.token_index).clamp(max=cache.capacity - 1)  # … and its slot
        self.has_token = n_real[:, None, None, None] > 0

    @property
    def mask(self) -> Tensor | None:
        """(B, 1, T, S): every slot up to the query's own position; None if plain causality says the same."""
        if self.is_contiguous:
            return None
        slots = torch.arange(self.n_slots, device=self.pos.device)
        return (slots <= self.pos[..., None]).unsqueeze(1)

    @property
    def causal(self) -> bool:
        return self.is_contiguous

    def bias(self, positions: Positions) -> Tensor | None:
        """The bias these positions add to the scores of the new tokens."""
        return positions.bias(self.pos, torch.arange(self.n_slots, device=self.pos.device)[None])

    def layer(self, i: int) -> "LayerCache":
        return LayerCache(self.cache.keys[i], self.cache.values[i], self._write)

    def _write(self, slots: Tensor, new: Tensor) -> Tensor:
        if self.is_contiguous:
            slots[:, :, self.cache.bound : self.n_slots] = new
        else:
            rows = torch.arange(new.shape[0], device=new.device)[:, None]  # (B, 1)
            old = slots[rows, :, self.pos]  # (B, T, G, K)
            slots[rows, :, self.pos] = torch.where(self.has_token, new[rows, :, self.token_index], old)
        return slots[:, :, : self.n_slots]

    def updated_cache(self) -> KVCache:
        length = self.cache.length + (self.n_tokens if self.lengths is None else self.lengths)
        is_uniform = self.cache.is_uniform and self.lengths is None
        return replace(self.cache, length=length, bound=self.n_slots, is_uniform=is_uniform)


@dataclass(frozen=True)
class LayerCache:
    """One layer's part of a `CacheUpdate`."""

    keys: Tensor  # (B, G, capacity, K)
    values: Tensor
    write: Callable[[Tensor, Tensor], Tensor]

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new keys and values (B, G, T, K); return those of all positions (B, G, S, K), as views."""
        return self.write(self.keys, k), self.write(self.values, v)
