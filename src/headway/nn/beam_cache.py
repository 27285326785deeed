"""A KV cache for several beams per row that share their common prefix.

The beams of one row form a tree. Reordering an ordinary cache copies it at every token. Here nothing is copied: the
beams of a row are `n_beams` new tokens of that row, stored next to each other, and a mask says which slots each beam
attends to.

    slots of a row     prompt │ 1st tokens: a b c │ 2nd tokens: d e f │ …
    visible to d, whose parent is b:  prompt, b, d

A decode step is then an ordinary step with `n_beams` tokens per row, all at the same position, and all beams of a row
share one encoded source in an encoder-decoder. When beams are reordered, only the mask changes (`follow`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headway.errors import InputError
from headway.nn.kv_cache import KVCache, LayerCache
from headway.nn.positions import Positions
from headway.nn.state import describe_state, row_indices

INITIAL_TOKENS_PER_BEAM = 64  # the cache grows by doubling from here


@dataclass(frozen=True, repr=False)
class BeamCache:
    """`step` consumes it, as it does a `KVCache`."""

    cache: KVCache  # one row per prompt
    visible: Tensor  # (B, n_beams, slots) True = the slot belongs to the beam's text
    slot_positions: Tensor  # (B, slots) the position of the token in each slot
    n_prompt: int  # tokens of the longest prompt
    n_new: int = 0  # tokens of each beam
    limit: int | None = None  # maximum length of prompt and beam together

    def __repr__(self) -> str:
        return describe_state(self)

    @property
    def batch_size(self) -> int:
        return self.cache.batch_size

    @property
    def length(self) -> Tensor:
        """(B,) tokens of the prompt and of a beam."""
        return self.cache.length + self.n_new

    @property
    def nbytes(self) -> int:
        return self.cache.nbytes

    def follow(self, parents: Tensor) -> "BeamCache":
        """Beam j of row i continues the former beam parents[i, j]."""
        index = parents.to(self.visible.device)[:, :, None].expand(-1, -1, self.visible.shape[2])
        return replace(self, visible=self.visible.gather(1, index))

    def pruned(self) -> "BeamCache":
        """Drop the slots that no beam attends to any more. Beams soon share most of their past, so reading fewer
        slots is worth an occasional copy. Rows with fewer live slots than others keep some dead ones."""
        is_live = self.visible.any(dim=1)  # (B, S)
        n_kept = int(is_live.sum(dim=-1).max()) if len(is_live) else 0
        if 2 * n_kept > is_live.shape[1]:
            return self
        slots = is_live.int().argsort(dim=-1, descending=True, stable=True)[:, :n_kept]  # (B, n) in slot order
        keys, values = (
            torch.stack([tensor[:, row].index_select(2, slots[row]) for row in range(len(slots))], dim=1)
            for tensor in (self.cache.keys, self.cache.values)
        )
        n_free = self.cache.capacity - n_kept
        cache = replace(self.cache, keys=_add_slots(keys, n_free), values=_add_slots(values, n_free), bound=n_kept)
        visible = self.visible.gather(2, slots[:, None].expand(-1, self.visible.shape[1], -1))
        return replace(self, cache=cache, visible=visible, slot_positions=self.slot_positions.gather(1, slots))

    def reorder(self, rows: Tensor | Sequence[int]) -> "BeamCache":
        """Select rows, each with all its beams."""
        rows = row_indices(rows, self.cache.length)
        return replace(
            self, cache=self.cache.reorder(rows), visible=self.visible[rows], slot_positions=self.slot_positions[rows]
        )

    def copy(self) -> "BeamCache":
        return replace(self, cache=self.cache.copy())

    def extend(self, n_tokens: int, lengths: Tensor | None = None) -> "BeamCacheUpdate":
        if lengths is not None or n_tokens != self.visible.shape[1]:
            raise InputError(
                f"{n_tokens} tokens for {self.visible.shape[1]} beams: a step takes exactly one token per beam"
            )
        return BeamCacheUpdate(self)


Cache = KVCache | BeamCache


def _add_slots(tensor: Tensor, n_slots: int) -> Tensor:
    """(L, B, G, S, K) → the same with `n_slots` more, uninitialised: none is attended to before it is written."""
    wider = tensor.new_empty(*tensor.shape[:3], tensor.shape[3] + n_slots, tensor.shape[4])
    wider[:, :, :, : tensor.shape[3]] = tensor
    return wider


def branch_cache(cache: KVCache, n_beams: int) -> BeamCache:
    """The same prompts with `n_beams` beams each. The cache is copied once."""
    B, bound = cache.batch_size, cache.bound
    n_free = min(INITIAL_TOKENS_PER_BEAM, max(1, cache.capacity - bound)) * n_beams
    keys, values = (_add_slots(tensor[:, :, :, :bound], n_free) for tensor in (cache.keys, cache.values))
    slots = torch.arange(bound, device=keys.device).expand(B, -1)
    visible = (slots < cache.length[:, None])[:, None].expand(-1, n_beams, -1)
    prompt_cache = replace(cache, keys=keys, values=values, limit=None)
    return BeamCache(prompt_cache, visible, slots, bound, limit=cache.limit)


def _grow(cache: KVCache) -> KVCache:
    """The capacity doubles, so copying is amortised O(1) per token."""
    return replace(cache, keys=_add_slots(cache.keys, cache.capacity), values=_add_slots(cache.values, cache.capacity))


class BeamCacheUpdate:
    """One step of all beams in progress; the counterpart of `kv_cache.CacheUpdate`."""

    causal = False
    mask = None  # part of the bias

    def __init__(self, beams: BeamCache):
        n_beams = beams.visible.shape[1]
        n_slots = beams.cache.bound + n_beams
        if beams.limit is not None and beams.n_prompt + beams.n_new >= beams.limit:
            n = beams.n_prompt + beams.n_new + 1
            raise InputError(
                f"{n} tokens are longer than the context of {beams.limit} this cache was created for: shorten the "
                f"prompt, or lower max_new_tokens"
            )
        self.cache = beams.cache if n_slots <= beams.cache.capacity else _grow(beams.cache)
        self.beams, self.n_slots = beams, n_slots
        self.pos = (beams.cache.length[:, None] + beams.n_new).expand(-1, n_beams)  # (B, n_beams)
        self.key_pos = torch.cat((beams.slot_positions, self.pos), dim=1)  # (B, S)
        itself = torch.eye(n_beams, dtype=torch.bool, device=self.pos.device).expand(len(self.pos), -1, -1)
        self.visible = torch.cat((beams.visible, itself), dim=2)  # (B, n_beams, S)

    def bias(self, positions: Positions) -> Tensor:
        """(B, 1 or H, n_beams, S): −inf for slots a beam must not attend to; computed once for all layers."""
        # Repeated to at least two rows: `Positions.bias` assumes that a single row holds consecutive positions.
        bias = positions.bias(self.pos.repeat(2, 1), self.key_pos.repeat(2, 1))
        dtype = self.cache.keys.dtype
        visible_bias = self.cache.keys.new_zeros(()) if bias is None else bias[: len(self.pos)].to(dtype)
        return torch.where(self.visible[:, None], visible_bias, -torch.inf)

    def layer(self, i: int) -> LayerCache:
        return LayerCache(self.cache.keys[i], self.cache.values[i], self._write)

    def _write(self, slots: Tensor, new: Tensor) -> Tensor:
        slots[:, :, self.cache.bound : self.n_slots] = new
        return slots[:, :, : self.n_slots]

    def updated_cache(self) -> BeamCache:
        cache = replace(self.cache, bound=self.n_slots)
        return replace(
            self.beams, cache=cache, visible=self.visible, slot_positions=self.key_pos, n_new=self.beams.n_new + 1
        )
