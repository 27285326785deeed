"""A KV cache for several continuations of each row, which share what they have in common.

Continuations of one row form a tree. Reordering a cache for them copies it, token after token. Here nothing moves: a
row's beams are so many new tokens of that row, side by side, and a mask says which slots each of them sees.

    slots of a row     prompt │ 1st tokens: a b c │ 2nd tokens: d e f │ …
    seen by d, whose parent is b:  prompt, b, d

A step is then an ordinary step with `n_beams` tokens per row, all at the same position, and the source of an
encoder-decoder is read once for all of them. When beams change places, only the mask changes (`follow`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headway.errors import InputError
from headway.nn.kv_cache import KVCache, LayerCache, row_indices
from headway.nn.positions import Positions

ROOM = 64  # tokens of every beam there is room for at first


@dataclass(frozen=True)
class BeamCache:
    """Consumed by `step`, as a `KVCache` is."""

    cache: KVCache  # a row for each prompt
    visible: Tensor  # (B, n_beams, slots) which slots belong to a beam's text
    slot_positions: Tensor  # (B, slots) the position of the token in each slot
    n_prompt: int  # tokens of the longest prompt
    n_new: int = 0  # tokens each beam has
    limit: int | None = None  # tokens of the longest text there may be

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
        """Beam j of row i goes on from what was beam parents[i, j]."""
        index = parents.to(self.visible.device)[:, :, None].expand(-1, -1, self.visible.shape[2])
        return replace(self, visible=self.visible.gather(1, index))

    def pruned(self) -> "BeamCache":
        """Without the slots that no beam sees any more: beams soon have most of their past in common. Reading less is
        worth a copy now and then. Rows that have fewer such slots than others keep some that are not seen."""
        is_seen = self.visible.any(dim=1)  # (B, S)
        n_kept = int(is_seen.sum(dim=-1).max()) if len(is_seen) else 0
        if 2 * n_kept > is_seen.shape[1]:
            return self
        slots = is_seen.int().argsort(dim=-1, descending=True, stable=True)[:, :n_kept]  # (B, n) in their order
        keys, values = (
            torch.stack([part[:, row].index_select(2, slots[row]) for row in range(len(slots))], dim=1)
            for part in (self.cache.keys, self.cache.values)
        )
        room = self.cache.capacity - n_kept
        cache = replace(self.cache, keys=_with_room(keys, room), values=_with_room(values, room), bound=n_kept)
        seen = self.visible.gather(2, slots[:, None].expand(-1, self.visible.shape[1], -1))
        return replace(self, cache=cache, visible=seen, slot_positions=self.slot_positions.gather(1, slots))

    def reorder(self, rows: Tensor | Sequence[int]) -> "BeamCache":
        """Some rows with all their beams."""
        rows = row_indices(rows, self.cache.length)
        return replace(
            self, cache=self.cache.reorder(rows), visible=self.visible[rows], slot_positions=self.slot_positions[rows]
        )

    def copy(self) -> "BeamCache":
        return replace(self, cache=self.cache.copy())

    def extend(self, n_tokens: int, lengths: Tensor | None = None) -> "BeamCacheUpdate":
        if lengths is not None or n_tokens != self.visible.shape[1]:
            raise InputError(f"{n_tokens} tokens for {self.visible.shape[1]} beams: one token for each beam at a time")
        return BeamCacheUpdate(self)


Cache = KVCache | BeamCache


def _with_room(part: Tensor, n_slots: int) -> Tensor:
    """(L, B, G, S, K) → the same with slots to spare, which may hold anything: none is seen before it is written."""
    wider = part.new_empty(*part.shape[:3], part.shape[3] + n_slots, part.shape[4])
    wider[:, :, :, : part.shape[3]] = part
    return wider


def branch_cache(cache: KVCache, n_beams: int) -> BeamCache:
    """The same prompts, each to be continued in `n_beams` ways. The cache is copied, once."""
    B, bound = cache.batch_size, cache.bound
    room = min(ROOM, max(1, cache.capacity - bound)) * n_beams
    keys, values = (_with_room(part[:, :, :, :bound], room) for part in (cache.keys, cache.values))
    slots = torch.arange(bound, device=keys.device).expand(B, -1)
    seen = (slots < cache.length[:, None])[:, None].expand(-1, n_beams, -1)
    own = replace(cache, keys=keys, values=values, limit=None)
    return BeamCache(own, seen, slots, bound, limit=cache.limit)


def _grown(cache: KVCache) -> KVCache:
    """Twice the room, so that the cost of copying, spread over the tokens that fill it, stays constant."""
    return replace(cache, keys=_with_room(cache.keys, cache.capacity), values=_with_room(cache.values, cache.capacity))


class BeamCacheUpdate:
    """One step of all beams in progress: see `state.Extension`."""

    causal = False
    mask = None  # the bias says it

    def __init__(self, beams: BeamCache):
        n_beams = beams.visible.shape[1]
        longest = beams.cache.bound + n_beams
        if beams.limit is not None and beams.n_prompt + beams.n_new >= beams.limit:
            n = beams.n_prompt + beams.n_new + 1
            raise InputError(
                f"{n} tokens are longer than the context of {beams.limit} this cache was begun for: shorten the "
                f"prompt, or ask for fewer new tokens"
            )
        self.before = beams.cache if longest <= beams.cache.capacity else _grown(beams.cache)
        self.beams, self.n_slots = beams, longest
        self.pos = (beams.cache.length[:, None] + beams.n_new).expand(-1, n_beams)  # (B, n_beams)
        self.key_pos = torch.cat((beams.slot_positions, self.pos), dim=1)  # (B, S)
        itself = torch.eye(n_beams, dtype=torch.bool, device=self.pos.device).expand(len(self.pos), -1, -1)
        self.visible = torch.cat((beams.visible, itself), dim=2)  # (B, n_beams, S)

    def bias(self, positions: Positions) -> Tensor:
        """(B, 1 or H, n_beams, S): −inf for what a beam does not see, which for all layers is then made once."""
        # Of two equal rows: a single one would be taken to count up by one.
        bias = positions.bias(self.pos.repeat(2, 1), self.key_pos.repeat(2, 1))
        shown = self.before.keys.new_zeros(()) if bias is None else bias[: len(self.pos)].to(self.before.keys.dtype)
        return torch.where(self.visible[:, None], shown, -torch.inf)

    def layer(self, i: int) -> LayerCache:
        return LayerCache(self.before.keys[i], self.before.values[i], self._write)

    def _write(self, slots: Tensor, new: Tensor) -> Tensor:
        slots[:, :, self.before.bound : self.n_slots] = new
        return slots[:, :, : self.n_slots]

    def after(self) -> BeamCache:
        cache = replace(self.before, bound=self.n_slots)
        return replace(
            self.beams, cache=cache, visible=self.visible, slot_positions=self.key_pos, n_new=self.beams.n_new + 1
        )
