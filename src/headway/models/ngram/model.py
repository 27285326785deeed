"""n-gram: the next token as counted after the last n − 1 tokens (Shannon 1948; Katz 1987; Kneser & Ney 1995).

    p(w | h) = probability[h w]  if h w was counted,  else  backoff[h] · p(w | h without its first token)

counts.py counts the n-grams and gives each an index, smoothing.py computes the two columns, and this file looks them
up: for one token after each context (`log_probability`, millions a second) or for the whole vocabulary (`forward`,
`step`), so you train, sample and score an n-gram like any other model.

The index of an n-gram is found from the index of its context and its last token, in a hash table (hash_index.py).
There is no Python object per n-gram; columns loaded from a file are memory-mapped until they are read. Everything runs
on the CPU, in whose memory the columns are; ids may come from another device, and logits are returned there.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from headway.config import NGramConfig
from headway.errors import CheckpointError, InputError
from headway.memory import check_fits
from headway.models.base import Model, last_real, mask_padding
from headway.models.builders import check_batch_size
from headway.models.description import format_count
from headway.models.ngram.column_checks import check_log_probs, find_problem
from headway.models.ngram.counts import Array, Counts, count_ngrams
from headway.models.ngram.hash_index import HashIndex
from headway.models.ngram.smoothing import SMOOTHINGS, STUPID_BACKOFF_ALPHA
from headway.nn.embedding import check_ids
from headway.nn.state import TokenWindow

BYTES_PER_TOKEN = 48  # of the vocabulary, while the unigrams are made
SCORE_CHUNK_TOKENS = 1 << 14  # tokens scored at once: the intermediate arrays then stay in the processor's cache


class NGram(Model):
    """The n-grams of each order k as columns with one entry per n-gram, sorted by context and then by last token:

    `token`, the last token; `log_p` and, except for the longest order, `backoff` (natural logarithms); `count`, empty
    if unknown. The k-grams after context i are `start[i]` to `start[i + 1]`. The unigrams are the vocabulary, in order.
    """

    config: NGramConfig
    INTEGER = (torch.int32, torch.int64)  # the narrowest that fits
    COLUMNS: ClassVar = {
        "start": INTEGER,
        "token": INTEGER,
        "log_p": (torch.float32,),
        "backoff": (torch.float32,),
        "count": INTEGER,
    }

    def __init__(self, config: NGramConfig):
        super().__init__()
        self.config = config
        for k in range(1, config.order + 1):
            for name, dtypes in self.COLUMNS.items():
                self.register_buffer(f"{name}{k}", torch.zeros(0, dtype=dtypes[0]))
        self.init_weights()

    def init_weights(self) -> None:
        """No counts yet: every token is equally likely."""
        check_fits(BYTES_PER_TOKEN * self.config.vocab_size, f"an n-gram of {self.config.vocab_size:,} tokens")
        empty = np.zeros(0, np.int64)
        tokens = np.arange(self.config.vocab_size)
        uniform = np.full(len(tokens), 1 / self.n_predictable)
        self.set_probs(1, np.zeros_like(tokens), tokens, uniform, np.ones(len(tokens)))
        for k in range(2, self.config.order + 1):
            self.set_probs(k, empty, empty, empty, empty)

    # ── counting and fitting ──────────────────────────────────────────────────────────────────────────────────────

    def fit(self, ids: Tensor | Array) -> "NGram":
        """Count a text (N,) or a batch of texts (B, N), and smooth as configured."""
        rows = ids if isinstance(ids, np.ndarray) else ids.cpu().numpy()
        return self.fit_texts([[row] for row in np.atleast_2d(rows)])

    def fit_texts(self, texts: Sequence[Sequence[Array]]) -> "NGram":
        """`fit` for texts of any lengths, each in one or more pieces, which may be memory-mapped."""
        c = self.config
        if c.smoothing == "given":
            raise InputError(
                "smoothing='given' means that the probabilities came from a file: to count a text, set "
                "smoothing='kneser-ney'"
            )
        for piece in (piece for text in texts for piece in text if len(piece)):
            check_ids(torch.tensor([[int(piece.min()), int(piece.max())]]), c.vocab_size)
        return self.smooth(count_ngrams(texts, c.order, c.vocab_size, bos_id=c.bos_id, eos_id=c.eos_id))

    def smooth(self, counts: Counts) -> "NGram":
        """Prune and smooth these counts as configured, and store the result."""
        c = self.config
        is_kept = [_is_kept(counts, k, c.prune) for k in range(1, c.order + 1)]
        probs = SMOOTHINGS[c.smoothing](counts, is_kept, c.k)
        context = np.zeros(c.vocab_size, np.int64)
        for k, (grams, keep, columns) in enumerate(zip(counts.grams, is_kept, probs, strict=True), start=1):
            if k > 1:
                new_index = np.cumsum(is_kept[k - 2]) - 1  # contexts are numbered anew once pruned
                context = new_index[grams.keys[keep] // c.vocab_size]
            token = grams.keys[keep] % c.vocab_size
            backoff = columns.backoff[keep] if len(columns.backoff) else None
            self.set_probs(k, context, token, columns.probability[keep], backoff, count=grams.count[keep])
        return self

    def set_probs(
        self, k: int, context: Array, token: Array, p: Array, backoff: Array | None, *, count: Array | None = None
    ) -> None:
        """Store the k-grams, sorted by context index (order k − 1 must be stored already) and token."""
        self.set_log_probs(k, context, token, _log(p), None if backoff is None else _log(backoff), count=count)

    def set_log_probs(
        self,
        k: int,
        context: Array,
        token: Array,
        log_p: Array,
        log_backoff: Array | None,
        *,
        count: Array | None = None,
    ) -> None:
        """`set_probs`, from logarithms."""
        n_contexts = 1 if k == 1 else len(self.column("log_p", k - 1))
        start = np.zeros(n_contexts + 1, np.int64)
        np.cumsum(np.bincount(context, minlength=n_contexts), out=start[1:])
        log_p = log_p.astype(np.float32)
        if k == 1 and self.context_only_id is not None:
            log_p[self.context_only_id] = -np.inf
        if log_backoff is None or k == self.config.order:
            log_backoff = np.zeros(0)
        columns = (
            _narrow(start),
            _narrow(token),
            log_p,
            log_backoff.astype(np.float32),
            _narrow(np.zeros(0, np.int64) if count is None else count),
        )
        self._store(k, *map(torch.from_numpy, columns))

    # ── stored columns ────────────────────────────────────────────────────────────────────────────────────────────

    def column(self, name: str, k: int) -> Array:
        return self.get_buffer(f"{name}{k}").numpy()

    def _store(self, k: int, *columns: Tensor) -> None:
        for name, column in zip(self.COLUMNS, columns, strict=True):
            setattr(self, f"{name}{k}", column)
        self._hash_indexes: dict[int, HashIndex] = {}

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        order, V = self.config.order, self.config.vocab_size
        names = {f"{name}{k}" for k in range(1, order + 1) for name in self.COLUMNS}
        if mismatched := sorted(names ^ set(tensors)):
            problem = "missing" if mismatched[0] in names else "unexpected"
            raise CheckpointError(
                f"{problem} tensor {mismatched[0]!r} in the checkpoint: config.json says order={order}"
            )
        n_contexts = 1
        for k in range(1, order + 1):
            columns = {name: tensors[f"{name}{k}"] for name in self.COLUMNS}
            for name, column in columns.items():
                if column.dtype not in self.COLUMNS[name] or column.dim() != 1:
                    raise CheckpointError(f"'{name}{k}' is not a column of type {self.COLUMNS[name][0]}")
            arrays = {name: column.numpy() for name, column in columns.items()}
            is_normalized = self.config.smoothing != "stupid-backoff"
            problem = find_problem(k, order, V, n_contexts, **arrays, is_normalized=is_normalized)
            if not problem and k == 1 and self.context_only_id is not None:
                is_predicted = arrays["log_p"][self.context_only_id] > -np.inf
                problem = f"bos_id={self.context_only_id} has a probability" if is_predicted else ""
            if problem:
                raise CheckpointError(
                    f"model.safetensors contradicts config.json at order {k} ({problem}): copy the model again, or "
                    f"refit it"
                )
            n_contexts = len(columns["log_p"])
        for k in range(1, order + 1):
            self._store(k, *(tensors[f"{name}{k}"] for name in self.COLUMNS))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "NGram":
        """`to`, `half` and the like change nothing: the columns stay on the CPU, in their own dtypes."""
        return self

    @property
    def context_only_id(self) -> int | None:
        """A BOS token that is not EOS too: it occurs in contexts and is never predicted."""
        return self.config.bos_id if self.config.bos_id != self.config.eos_id else None

    @property
    def n_predictable(self) -> int:
        """W, the number of tokens that can come next."""
        return max(1, self.config.vocab_size - (self.context_only_id is not None))

    @property
    def is_normalized(self) -> bool:
        """Whether the probabilities sum to 1."""
        return self.config.smoothing != "stupid-backoff"

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def display_name(self) -> str:
        return f"{self.config.order}-gram"

    def _describe(self) -> list[str]:
        return [self.config.smoothing, f"{format_count(self.n_params)} n-grams"]

    @property
    def n_params(self) -> int:
        """The number of n-grams."""
        return sum(self.get_buffer(f"log_p{k}").numel() for k in range(1, self.config.order + 1))

    @property
    def nbytes(self) -> int:
        """Memory of the columns and of the hash tables built so far."""
        return sum(b.nbytes for b in self.buffers()) + sum(index.nbytes for index in self._hash_indexes.values())

    # ── lookup ────────────────────────────────────────────────────────────────────────────────────────────────────

    def context_indices(self, k: int) -> Array:
        """The index of each k-gram's context."""
        start = self.column("start", k)
        return np.repeat(np.arange(len(start) - 1), np.diff(start))

    def find(self, k: int, context: Array, token: Array) -> Array:
        """The index of each k-gram (k > 1), given the index of its context and its last token; −1 if not counted."""
        if k not in self._hash_indexes:
            keys = self.context_indices(k) * self.config.vocab_size + self.column("token", k)
            self._hash_indexes[k] = HashIndex(keys)
        return self._hash_indexes[k].find(context * self.config.vocab_size + token)

    def ngram_indices(self, ids: Array) -> list[Array]:
        """For each order k, the index of the k-gram that ends at each token of ids (B, T); −1 if it was not counted.

        An id of −1 is padding before the start of the text.
        """
        indices = [ids]
        for k in range(2, self.config.order + 1):
            index = np.full_like(ids, -1)
            context = indices[-1][:, :-1]
            is_possible = context >= 0
            is_possible &= ids[:, 1:] >= 0
            index[:, 1:][is_possible] = self.find(k, context[is_possible], ids[:, 1:][is_possible])
            indices.append(index)
        return indices

    def _context_lengths(self, ids: Array) -> Array:
        """The number of tokens of its text up to and including each token of ids (B, T); BOS starts a new text."""
        positions = np.arange(ids.shape[1])
        is_bos = np.zeros_like(ids, dtype=bool) if self.context_only_id is None else ids == self.context_only_id
        text_start = np.maximum.accumulate(np.where(is_bos, positions, np.where(ids < 0, positions + 1, 0)), axis=1)
        return positions - text_start + 1

    def log_probability(self, ids: Tensor | Array) -> Array:
        """ln p of each token of a text (N,) given those before it, float32. It is 0 for BOS, which is not predicted."""
        text = np.asarray(ids, dtype=np.int64)
        n_context = self.config.order - 1
        log_p = np.empty(len(text), np.float32)
        for start in range(0, len(text), SCORE_CHUNK_TOKENS):
            overlap = min(n_context, start)
            chunk = text[None, start - overlap : start + SCORE_CHUNK_TOKENS]
            log_p[start : start + SCORE_CHUNK_TOKENS] = self._score(chunk)[overlap:]
        return log_p

    def _score(self, ids: Array) -> Array:
        """ln p of each token of ids (1, T): from the unigram up, each counted context refines the estimate."""
        indices = self.ngram_indices(ids)
        log_p = self.column("log_p", 1)[ids[0]]
        needs_lengths = self.config.smoothing in ("add-k", "stupid-backoff")
        lengths = self._context_lengths(ids)[0] if needs_lengths else None
        for k in range(2, self.config.order + 1):
            context, index = indices[k - 2][0, :-1], indices[k - 1][0, 1:]
            has_context, has_ngram = context >= 0, index >= 0
            lower = log_p[1:]  # a view: the estimates from shorter contexts
            if lengths is not None:
                is_full = lengths[:-1] >= k - 1  # the text has k − 1 tokens of context here, counted or not
                if self.config.smoothing == "add-k":
                    lower[is_full] = -math.log(self.n_predictable)
                else:
                    lower[is_full & ~has_context] += math.log(STUPID_BACKOFF_ALPHA)
            lower[has_context] += self.column("backoff", k - 1)[context[has_context]]
            lower[has_ngram] = self.column("log_p", k)[index[has_ngram]]
        check_log_probs(log_p)
        if self.context_only_id is not None:
            log_p[ids[0] == self.context_only_id] = 0
        return log_p

    def next_log_probs(self, ids: Array) -> Array:
        """ln p of every token after each position of ids (B, T), where −1 is padding before the text: (B, T, V)."""
        indices, V = self.ngram_indices(ids), self.config.vocab_size
        log_p = np.broadcast_to(self.column("log_p", 1), (ids.size, V)).copy()
        lengths = self._context_lengths(ids).reshape(-1)
        for k in range(2, self.config.order + 1):
            context = indices[k - 2].reshape(-1)
            is_full, has_context = lengths >= k - 1, context >= 0
            if self.config.smoothing == "add-k":
                log_p[is_full] = self._uniform()
            elif self.config.smoothing == "stupid-backoff":
                log_p[is_full & ~has_context] += math.log(STUPID_BACKOFF_ALPHA)
            rows = np.flatnonzero(has_context)
            if not len(rows):
                continue
            context = context[rows]
            log_p[rows] += self.column("backoff", k - 1)[context][:, None]
            row, ngram = self._continuations(k, context)
            log_p[rows[row], self.column("token", k)[ngram]] = self.column("log_p", k)[ngram]
        check_log_probs(log_p)
        return log_p.reshape(*ids.shape, V)

    def _continuations(self, k: int, context: Array) -> tuple[Array, Array]:
        """The indices of all k-grams after these contexts (N,), end to end, and the entry of `context` of each.

        The j-th k-gram after context i has index start[i] + j.
        """
        start = self.column("start", k)
        counts = start[context + 1] - start[context]
        entry = np.repeat(np.arange(len(context)), counts)
        return entry, np.repeat(start[context] - (np.cumsum(counts) - counts), counts) + np.arange(len(entry))

    def _uniform(self) -> Array:
        log_p = np.full(self.config.vocab_size, -math.log(self.n_predictable), np.float32)
        if self.context_only_id is not None:
            log_p[self.context_only_id] = -np.inf
        return log_p

    # ── the contract ──────────────────────────────────────────────────────────────────────────────────────────────

    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        ids, _ = mask_padding(ids, lengths)
        check_ids(ids, self.config.vocab_size)
        return torch.from_numpy(self.next_log_probs(ids.long().cpu().numpy())).to(ids.device)

    def start(self, batch_size: int = 1, capacity: int | None = None) -> TokenWindow:
        """The state is the last n − 1 tokens, so `capacity` has no effect; the contract has it."""
        return TokenWindow.start(batch_size, self.config.order - 1, self.device)

    def step(
        self, ids: Tensor, state: TokenWindow, lengths: Tensor | None = None, *, last: bool = False
    ) -> tuple[Tensor, TokenWindow]:
        ids, lengths = mask_padding(ids, lengths)
        check_batch_size(ids, len(state.length))
        check_ids(ids, self.config.vocab_size)
        log_p = self.next_log_probs(state.concat(ids).numpy())[:, self.config.order - 1 :]
        logits = torch.from_numpy(log_p).to(ids.device)
        return last_real(logits, lengths) if last else logits, state.append(ids, lengths)


def _is_kept(counts: Counts, k: int, prune: Sequence[int]) -> Array:
    """Which k-grams survive pruning: those counted more than prune[k − 1] times. The last entry also holds for all
    longer n-grams; unigrams always stay."""
    threshold = prune[min(k, len(prune)) - 1] if prune and k > 1 else -1
    return np.asarray(counts.grams[k - 1].count > threshold)


def _narrow(integers: Array) -> Array:
    """As int32 where all values fit, else int64."""
    return integers.astype(np.int32 if not len(integers) or integers.max() < 2**31 else np.int64)


def _log(p: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(p).astype(np.float32)
