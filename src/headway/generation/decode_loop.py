"""The faster decoding loop: it writes what `decoding.decode` writes, and

- keeps what rows have said in one tensor beside the cache, so that nothing is copied or rebuilt from token to token;
- reads a prompt that several rows share once;
- gives up the slots of rows that ended, once they are a good part of the batch;
- on a GPU, where starting some hundred kernels takes longer than running them, captures a step and its samplers as one
  CUDA graph over a cache of fixed size, and replays that.

On a CPU neither a graph nor `torch.compile` gains anything: a step is reading the weights once (docs/performance.md).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from headway.devices import varying_shapes
from headway.errors import InputError
from headway.generation.cuda_graph import DecodeGraph
from headway.generation.reference import cache_capacity
from headway.models.base import LanguageModel, Seq2SeqLM
from headway.nn.kv_cache import KVCache, State
from headway.nn.linear import PackedWeights
from headway.sampling import History, PerRowPipeline, Pipeline, SamplerState

SHRINK_AT = 0.75  # of the slots in use: then the others are given up
SHRINK_GRAPH_AT = 0.5  # the same where a graph must be captured anew
MARGIN = 1024  # tokens there is room for in the history at first


class DecodeLoop:
    """One token for every live row with each `step`. `logits` (slots, V) are what the last step chose from; without a
    graph also `drawn_from`, the sampler's state before it did."""

    def __init__(
        self,
        model: LanguageModel | Seq2SeqLM,
        prompts: Sequence[Sequence[int]],
        pipe: Pipeline | PerRowPipeline,
        max_new_tokens: int,
        *,
        seeds: Sequence[int],
        vocab_size: int | None = None,  # entries of the logits past it are padding
        state: State | None = None,
        graph: bool | None = None,  # default: on a GPU, where the cache has a fixed size
        drops_at_once: bool = False,  # rows that ended may not go on even unseen: they are at the end of the context
    ):
        self.model, self.pipe, self.vocab_size = model, pipe, vocab_size
        self.device = model.device
        given = History.of(prompts, [len(prompt) for prompt in prompts], len(prompts), self.device)
        self.history = given.widened(min(max_new_tokens, MARGIN))
        self._longest = given.ids.shape[1]  # tokens of the longest row so far
        self._room = self._longest + max_new_tokens
        self.sampler = pipe.start(len(prompts), seeds, self.device)
        self.rows = list(range(len(prompts)))  # the row of each slot
        self.live = set(self.rows)
        self.logits: Tensor
        self.drawn_from: SamplerState
        self.state = state
        self._prompts = [tuple(prompt) for prompt in prompts]
        self._graph: DecodeGraph | None = None
        self._packs = PackedWeights()
        can_capture = isinstance(pipe, Pipeline) and not drops_at_once and cache_capacity(model, self._room) is not None
        self._shrink_at = 1.0 if drops_at_once else SHRINK_AT
        self._captures = can_capture and (self.device.type == "cuda" if graph is None else graph)

    @torch.inference_mode()
    def step(self) -> list[tuple[int, int, int]]:
        """(row, slot, token) of every live row; `self.logits[slot]` is what it was chosen from."""
        with varying_shapes(), self._packs:
            return self._step()

    def _step(self) -> list[tuple[int, int, int]]:
        if not hasattr(self, "logits"):
            self._read_prompts()
        else:
            self._shrink()
            if self._graph is None and self._captures and isinstance(self.state, KVCache):
                self._graph = DecodeGraph(self)
            if self._graph is not None:
                self._graph.replay()
            else:
                logits, self.state = self.model.step(self._last, self.state, None, last=True)
                self._choose(logits[:, -1])
        tokens = self._last[:, 0].tolist()
        if -1 in tokens:
            raise InputError(
                f"row {self.rows[tokens.index(-1)]} of the logits has NaN, +inf or no token left: nothing can be "
                f"chosen; were the weights damaged, or the training diverged?"
            )
        return [(row, slot, tokens[slot]) for slot, row in enumerate(self.rows) if row in self.live]

    @property
    def last(self) -> Tensor:
        """(slots,) the tokens of the last step, on the device."""
        return self._last[:, 0]

    def end(self, row: int) -> None:
        """This row is finished."""
        self.live.discard(row)

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _read_prompts(self) -> None:
        """One step over the prompts, equal ones once."""
        if self.state is not None:
            distinct, where = list(self._prompts), list(range(len(self._prompts)))
        else:
            distinct = list(dict.fromkeys(self._prompts))
            place = {prompt: i for i, prompt in enumerate(distinct)}
            where = [place[prompt] for prompt in self._prompts]
            self.state = self.model.start(batch_size=len(distinct), capacity=cache_capacity(self.model, self._room))
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(p).long() for p in distinct], batch_first=True)
        lengths = torch.tensor([len(prompt) for prompt in distinct])
        logits, self.state = self.model.step(ids.to(self.device), self.state, lengths, last=True)
        if len(distinct) < len(where):
            index = torch.tensor(where, device=self.device)
            logits, self.state = logits[index], self.state.reorder(index)
        self._choose(logits[:, -1])

    def _choose(self, logits: Tensor) -> None:
        self.logits = logits[:, : self.vocab_size].float()
        self.drawn_from = self.sampler
        token, self.sampler = self.pipe.draw(self.logits, history=self.history, state=self.sampler)
        self._last = token[:, None]
        self._longest += 1
        if self._longest > self.history.ids.shape[1]:
            self.history = self.history.widened(self.history.ids.shape[1])
        # In place: the next token goes beside those before it.
        self.history.ids.scatter_(1, self.history.lengths, self._last)
        self.history.lengths.add_(1)

    def _shrink(self) -> None:
        slots = [slot for slot, row in enumerate(self.rows) if row in self.live]
        limit = self._shrink_at if self._graph is None else SHRINK_GRAPH_AT
        if len(slots) == len(self.rows) or len(slots) > limit * len(self.rows) or not slots:
            return
        index = torch.tensor(slots, device=self.device)
        assert self.state is not None
        self.state = self.state.reorder(index)
        self.history, self.sampler = self.history.reorder(index), self.sampler.reorder(index)
        self._last, self.rows = self._last[index], [self.rows[slot] for slot in slots]
        self.pipe = self.pipe.select(slots)
        self._graph = None
