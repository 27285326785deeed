"""One decode step, its samplers included, captured as a CUDA graph."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headway.nn.kv_cache import KVCache
from headway.sampling import SamplerState

if TYPE_CHECKING:
    from headway.generation.decode_loop import DecodeLoop


class DecodeGraph:
    """A step and its samplers as one CUDA graph. Its inputs and outputs stay where they are: each replay reads the last
    token, lengths and sampler state from there, and writes the next."""

    def __init__(self, loop: "DecodeLoop"):
        self.loop = loop
        cache = loop.state
        assert isinstance(cache, KVCache)
        # Every row sees slots up to its own length, by a mask: shapes then never change.
        extent = min(cache.capacity, loop._room)
        loop.history = loop.history.widened(max(0, loop._room - loop.history.ids.shape[1]))
        self.cache = replace(
            cache,
            keys=cache.keys[:, :, :, :extent],
            values=cache.values[:, :, :, :extent],
            length=cache.length.clone(),
            bound=extent - 1,
            is_even=False,
        )
        loop._last = loop._last.clone()
        self.sampler = SamplerState(*(t.clone() for t in (loop.sampler.seed, loop.sampler.position, loop.sampler.mu)))
        kept = [t.clone() for t in self._changing()]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # choose kernels, make parameters
                self._once()
        torch.cuda.current_stream().wait_stream(side)
        self._restore(kept)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._once()
        self._restore(kept)

    def _changing(self) -> list[Tensor]:
        loop = self.loop
        return [loop._last, self.cache.length, loop.history.lengths, self.sampler.position, self.sampler.mu]

    def _restore(self, values: list[Tensor]) -> None:
        for tensor, value in zip(self._changing(), values, strict=True):
            tensor.copy_(value)

    def _once(self) -> None:
        loop = self.loop
        logits, after = loop.model.step(loop._last.clamp(min=0), self.cache, None, last=True)
        self.logits = logits[:, -1, : loop.vocab_size].float()
        token, sampler = loop.pipe.draw(self.logits, history=loop.history, state=self.sampler)
        loop._last.copy_(token[:, None])
        self.cache.length.copy_(after.length)
        at = loop.history.lengths.clamp(max=loop.history.ids.shape[1] - 1)
        loop.history.ids.scatter_(1, at, loop._last)
        loop.history.lengths.add_(1)
        self.sampler.position.copy_(sampler.position)
        self.sampler.mu.copy_(sampler.mu)

    def replay(self) -> None:
        self.graph.replay()
        loop = self.loop
        loop.logits, loop.sampler = self.logits, self.sampler
        loop.state = replace(self.cache, bound=self.cache.capacity - 1)
