"""The fast decode loop: the same tokens as `reference.decode`, in less time.

- The tokens of all rows are kept in one tensor beside the cache, so nothing is copied or rebuilt from token to token.
- A prompt that several rows share is prefilled once.
- When enough rows have finished, the batch is compacted to the active ones.
- On a GPU, where launching a few hundred kernels takes longer than running them, a decode step and its samplers are
  captured as one CUDA graph over a cache of fixed size, and replayed. With `lookahead`, the next step is launched
  before the tokens of the last one have reached the host, so that the GPU never waits for Python.
- On a CPU, a decode step of a float32 GPT with up to eight rows is one call of C code, if there is a compiler
  (models/fused_decode.py).

**Rows and slots.** A *row* is a prompt of the caller with its continuation; its number never changes. A *slot* is an
index into the batch dimension of the tensors. At first slot i holds row i. Compacting the batch drops the slots of
finished rows and moves the others up, so `rows[slot]` says which row a slot holds.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headway.devices import without_cudnn_attention
from headway.errors import InputError
from headway.generation.cuda_graph import DecodeGraph, TokenCopy, drop_graphs, release_graph, take_graph
from headway.generation.limits import cache_capacity, position_limit
from headway.models.base import LanguageModel, Seq2SeqLM
from headway.models.fused_decode import FastStep, WeightAddresses
from headway.models.gpt import GPT
from headway.nn.kv_cache import KVCache
from headway.nn.padding import pad_ids
from headway.nn.state import State
from headway.sampling import History, PerRowPipeline, Pipeline, SamplerState

COMPACT_AT_FRACTION = 0.75  # of the slots active: at or below it, the batch is compacted
COMPACT_GRAPH_AT_FRACTION = 0.5  # the same with a CUDA graph, which must then be captured again
INITIAL_HISTORY_TOKENS = 1024  # new tokens the history has space for at first; it grows by doubling


class DecodeLoop:
    """Samples one token for every active row with each `step`.

    After a step without `lookahead`, `logits` (slots, V) are the logits its tokens were drawn from and, without a CUDA
    graph, `previous_sampler_state` is the samplers' state before the draw.
    """

    def __init__(
        self,
        model: LanguageModel | Seq2SeqLM,
        prompts: Sequence[Sequence[int]],
        pipe: Pipeline | PerRowPipeline,
        max_new_tokens: int,
        *,
        seeds: Sequence[int],
        vocab_size: int | None = None,  # logits past it are padding
        state: State | None = None,  # of a model that has read a source; default: a new one
        use_cuda_graph: bool | None = None,  # default: on a GPU, if the cache has a fixed size
        compact_at_once: bool = False,  # a finished row may not take another step: its context is full
        lookahead: bool = False,  # with a CUDA graph: launch the next step early; `logits` are then that step's
    ):
        self.model, self.pipe, self.vocab_size = model, pipe, vocab_size
        self.device = model.device
        prompt_history = History.of(prompts, [len(prompt) for prompt in prompts], len(prompts), self.device)
        self.history = prompt_history.widened(min(max_new_tokens, INITIAL_HISTORY_TOKENS))
        self._length = prompt_history.ids.shape[1]  # tokens in the longest row so far
        self.max_length = self._length + max_new_tokens
        self.sampler_state = pipe.start(len(prompts), seeds, self.device)
        self.rows = list(range(len(prompts)))  # the row in each slot
        self.active = set(self.rows)  # rows that have not finished
        self.logits: Tensor
        self.previous_sampler_state: SamplerState
        self.state = state
        self._prompts = [tuple(prompt) for prompt in prompts]
        self._is_prefilled = self._is_captured = False
        self._graph: DecodeGraph | None = None
        self._addresses: WeightAddresses
        self._lookahead = lookahead
        self._steps_left = max_new_tokens  # to be launched
        self._pending: TokenCopy | list[int] | None = None  # tokens of a step that was launched ahead
        self._model_step = FastStep(model, len(prompts))
        has_fixed_size = not compact_at_once and cache_capacity(model, self.max_length) is not None
        wants_graph = self.device.type == "cuda" if use_cuda_graph is None else use_cuda_graph
        is_capturable = isinstance(pipe, Pipeline) and all(bound.sampler.is_capturable for bound in pipe.samplers)
        self._can_capture = wants_graph and has_fixed_size and is_capturable
        if not wants_graph and self.device.type != "cuda" and isinstance(model, nn.Module):
            drop_graphs(model)  # those from before it left the GPU
        self._compact_at_fraction = 1.0 if compact_at_once else COMPACT_AT_FRACTION

    @torch.inference_mode()
    def step(self) -> list[tuple[int, int, int]]:
        """Sample the next token of every active row: (row, slot, token). `self.logits[slot]` are its logits."""
        if self.device.type != "cuda":
            return self._step()
        with torch.cuda.device(self.device):  # streams and kernels are those of the current device
            return self._step()

    def _step(self) -> list[tuple[int, int, int]]:
        if not self._is_prefilled:
            with without_cudnn_attention(self.device):
                self._prefill()
            self._is_prefilled = True
            self._steps_left -= 1
            tokens = self.last_tokens[:, 0].tolist()
        else:
            self._compact()
            tokens = self._decode()
        if -1 in tokens:
            raise InputError(
                f"row {self.rows[tokens.index(-1)]} of the logits has NaN, +inf or no token left, so no token can be "
                f"drawn: were the weights damaged, or did training diverge?"
            )
        return [(row, slot, tokens[slot]) for slot, row in enumerate(self.rows) if row in self.active]

    def finish(self, row: int) -> None:
        """Stop sampling for this row."""
        self.active.discard(row)

    # ── one step ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _prefill(self) -> None:
        """Process the prompts in one step, equal prompts once, and sample the first tokens."""
        if self.state is not None:  # with a source of its own, each row is distinct
            prompts, index_of_row = list(self._prompts), list(range(len(self._prompts)))
        else:
            prompts = list(dict.fromkeys(self._prompts))
            index_of_prompt = {prompt: i for i, prompt in enumerate(prompts)}
            index_of_row = [index_of_prompt[prompt] for prompt in self._prompts]
            capacity = cache_capacity(self.model, self.max_length)
            if self._can_capture and len(prompts) == len(index_of_row) and type(self.model) is GPT:
                self._graph = self._take_graph()
                self.state = self._graph.empty_cache()
            else:
                self.state = self.model.start(batch_size=len(prompts), capacity=capacity)
        ids, lengths = pad_ids(prompts, self.device)
        logits, self.state = self._model_step(ids, self.state, lengths)
        if len(prompts) < len(index_of_row):
            index = torch.tensor(index_of_row, device=self.device)
            logits, self.state = logits[index], self.state.reorder(index)
        self._sample(logits[:, -1])

    def _decode(self) -> list[int]:
        """One decode step with the last tokens, by the graph if there is one."""
        if self._pending is not None and not self._steps_left:  # the last step has been launched
            pending, self._pending = self._pending, None
            return pending.wait() if isinstance(pending, TokenCopy) else pending
        if self._graph is not None and not self._addresses.are_valid():
            self._leave_graph()
        if not self._is_captured and self._can_capture and isinstance(self.state, KVCache):
            self._graph = self._graph or self._take_graph()
            with without_cudnn_attention(self.device):
                self._graph.load(self)
            self._is_captured = True
        if self._graph is not None and self._is_captured:
            return self._replay(self._graph)
        assert self.state is not None
        with without_cudnn_attention(self.device):
            logits, self.state = self._model_step(self.last_tokens, self.state)
        self._sample(logits[:, -1])
        tokens: list[int] = self.last_tokens[:, 0].tolist()
        return tokens

    def _replay(self, graph: DecodeGraph) -> list[int]:
        """The tokens of the next step. With lookahead it was launched in the call before, and the one after it is
        launched before we wait."""
        launched = graph.replay() if self._pending is None else self._pending
        self._steps_left -= self._pending is None
        self._pending = None
        if self._lookahead and self._steps_left > 0:
            self._pending = graph.replay()
            self._steps_left -= 1
        self.logits = graph.logits
        return launched.wait() if isinstance(launched, TokenCopy) else launched

    def _leave_graph(self) -> None:
        """The model has changed since the last token: the next graph copies the state from this one."""
        if isinstance(self._pending, TokenCopy):
            self._pending = self._pending.wait()
        self._graph, self._is_captured = None, False

    def _take_graph(self) -> DecodeGraph:
        if self.model.device != self.device:
            raise InputError(
                f"the model has moved from {self.device} to {self.model.device} while it generates; move it back, or "
                f"start a new generation"
            )
        assert isinstance(self.model, nn.Module)
        self._addresses = WeightAddresses(self.model)  # a graph holds them
        return take_graph(self, len(self.rows), self.max_length, position_limit(self.model))

    def _sample(self, logits: Tensor) -> None:
        """Draw a token for every slot from the logits (slots, V), and append it to the history."""
        self.logits = logits[:, : self.vocab_size].float()
        self.previous_sampler_state = self.sampler_state
        tokens, self.sampler_state = self.pipe.draw(self.logits, history=self.history, state=self.sampler_state)
        self.last_tokens = tokens[:, None]  # (slots, 1)
        self._length += 1
        if self._length > self.history.ids.shape[1]:
            self.history = self.history.widened(self.history.ids.shape[1])
        self.history.ids.scatter_(1, self.history.lengths, self.last_tokens)  # in place
        self.history.lengths.add_(1)

    def _compact(self) -> None:
        """Drop the slots of finished rows, if they are enough to be worth copying the state."""
        slots = [slot for slot, row in enumerate(self.rows) if row in self.active]
        fraction = COMPACT_GRAPH_AT_FRACTION if self._is_captured else self._compact_at_fraction
        if len(slots) == len(self.rows) or len(slots) > fraction * len(self.rows) or not slots:
            return
        if self._pending is not None and not self._steps_left:
            return  # the last step has been launched already
        index = torch.tensor(slots, device=self.device)
        assert self.state is not None
        self.state = self.state.reorder(index)
        self.history, self.sampler_state = self.history.reorder(index), self.sampler_state.reorder(index)
        self.last_tokens, self.rows = self.last_tokens[index], [self.rows[slot] for slot in slots]
        self.pipe = self.pipe.select(slots)
        if isinstance(self._pending, TokenCopy):
            self._pending = self._pending.wait()
        if self._pending is not None:
            self._pending = [self._pending[slot] for slot in slots]
        if self._graph is not None:
            release_graph(self._graph)
        self._graph, self._is_captured = None, False
