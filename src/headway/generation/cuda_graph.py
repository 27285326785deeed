"""One decode step and its samplers, captured as a CUDA graph."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headway.nn.kv_cache import KVCache
from headway.sampling import SamplerState

if TYPE_CHECKING:
    from headway.generation.decode_loop import DecodeLoop

WARMUP_STEPS = 2  # before capture: they pick kernels and allocate the samplers' parameters


class DecodeGraph:
    """A captured decode step. Its inputs and outputs have fixed addresses: each replay reads the last tokens, the
    lengths and the sampler state from them and overwrites them with the next ones."""

    def __init__(self, loop: "DecodeLoop"):
        self.loop = loop
        cache = loop.state
        assert isinstance(cache, KVCache)
        # Every row attends to all `extent` slots under a mask that ends at its length, so shapes never change.
        extent = min(cache.capacity, loop.max_length)
        loop.history = loop.history.widened(max(0, loop.max_length - loop.history.ids.shape[1]))
        self.cache = replace(
            cache,
            keys=cache.keys[:, :, :, :extent],
            values=cache.values[:, :, :, :extent],
            length=cache.length.clone(),
            bound=extent - 1,
            is_uniform=False,
        )
        loop.last_tokens = loop.last_tokens.clone()
        state = loop.sampler_state
        self.sampler_state = SamplerState(*(tensor.clone() for tensor in (state.seed, state.position, state.mu)))
        self._capture()

    def _capture(self) -> None:
        """Warm up and capture. Both change the tensors a step updates, so these are restored afterwards."""
        saved = [tensor.clone() for tensor in self._updated_tensors()]
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(WARMUP_STEPS):
                self._decode_step()
        torch.cuda.current_stream().wait_stream(side_stream)
        self._restore(saved)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._decode_step()
        self._restore(saved)

    def _updated_tensors(self) -> list[Tensor]:
        loop, sampler = self.loop, self.sampler_state
        return [loop.last_tokens, self.cache.length, loop.history.lengths, sampler.position, sampler.mu]

    def _restore(self, values: list[Tensor]) -> None:
        for tensor, value in zip(self._updated_tensors(), values, strict=True):
            tensor.copy_(value)

    def _decode_step(self) -> None:
        loop = self.loop
        logits, cache = loop.model.step(loop.last_tokens.clamp(min=0), self.cache, None, last=True)
        self.logits = logits[:, -1, : loop.vocab_size].float()
        tokens, sampler_state = loop.pipe.draw(self.logits, history=loop.history, state=self.sampler_state)
        loop.last_tokens.copy_(tokens[:, None])
        self.cache.length.copy_(cache.length)
        positions = loop.history.lengths.clamp(max=loop.history.ids.shape[1] - 1)
        loop.history.ids.scatter_(1, positions, loop.last_tokens)
        loop.history.lengths.add_(1)
        self.sampler_state.position.copy_(sampler_state.position)
        self.sampler_state.mu.copy_(sampler_state.mu)

    def replay(self) -> None:
        """Run the step. The loop's logits, sampler state and cache are then those of the new tokens."""
        self.graph.replay()
        loop = self.loop
        loop.logits, loop.sampler_state = self.logits, self.sampler_state
        loop.state = replace(self.cache, bound=self.cache.capacity - 1)
