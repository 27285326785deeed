"""n-gram: the next token as it was counted after the last n − 1 (Shannon 1948; Katz 1987; Kneser & Ney 1995).

    p(w | h) = probability[h w]  if h w was counted,  else  backoff[h] · p(w | h without its first token)

counting.py numbers and counts the n-grams, smoothing.py makes the two columns, and here they are looked up: for one
token after each context (`log_probability`, millions a second) or for the whole vocabulary (`forward`, `step`), so that
an n-gram is trained, sampled and scored like any other model.

The number of an n-gram is found from the number of its context and its last token, in a table kept in the order of a
hash: the hash says where to begin, and a few steps to the right decide. Nothing is a Python object per n-gram; loaded
from a file, the columns stay there until they are read. All of it happens on the CPU, whose memory they fill; ids may
come from another device, and logits go back there.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from headway.config import NGramConfig
from headway.errors import CheckpointError, InputError
from headway.models.base import Model, last_real, mask_padding
from headway.models.builders import check_batch_size
from headway.models.ngram.counts import Array, Counts, count
from headway.models.ngram.smoothing import ALPHA, SMOOTHINGS
from headway.nn.embedding import check_ids
from headway.nn.kv_cache import TokenWindow

LOAD = 0.6  # share of the slots of a hash table that are taken
CHUNK = 1 << 14  # tokens looked up at once: what is in between then stays in the processor's cache


class NGram(Model):
    """Columns per order k, one entry per n-gram, sorted by context and then by token:

    `token`, `log_p` and, but for the longest, `backoff` (natural logarithms); `count`, empty where it is not known;
    `start` says where the followers of each context begin. The unigrams are the vocabulary, in its order.
    """

    config: NGramConfig
    WHOLE = (torch.int32, torch.int64)  # the first that has room
    COLUMNS: ClassVar = {
        "start": WHOLE,
        "token": WHOLE,
        "log_p": (torch.float32,),
        "backoff": (torch.float32,),
        "count": WHOLE,
    }

    def __init__(self, config: NGramConfig):
        super().__init__()
        self.config = config
        for k in range(1, config.order + 1):
            for name, kinds in self.COLUMNS.items():
                self.register_buffer(f"{name}{k}", torch.zeros(0, dtype=kinds[0]))
        self.init_weights()

    def init_weights(self) -> None:
        """Nothing counted yet: every token is equally likely."""
        none = np.zeros(0, np.int64)
        tokens = np.arange(self.config.vocab_size)
        uniform = np.full(len(tokens), 1 / self.n_words)
        self.set_ngrams(1, np.zeros_like(tokens), tokens, uniform, np.ones(len(tokens)))
        for k in range(2, self.config.order + 1):
            self.set_ngrams(k, none, none, none, none)

    # ── what the columns are ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def begin(self) -> int | None:
        """The token that begins a text and is nothing else: given, never predicted."""
        return self.config.bos_id if self.config.bos_id != self.config.eos_id else None

    @property
    def n_words(self) -> int:
        """Tokens that can come next."""
        return max(1, self.config.vocab_size - (self.begin is not None))

    @property
    def is_normalized(self) -> bool:
        """Probabilities sum to 1."""
        return self.config.smoothing != "stupid-backoff"

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def n_params(self) -> int:
        """N-grams held."""
        return sum(self.get_buffer(f"log_p{k}").numel() for k in range(1, self.config.order + 1))

    @property
    def nbytes(self) -> int:
        """Memory of the columns and of the tables to find them by."""
        return sum(b.nbytes for b in self.buffers()) + sum(f.nbytes for f in self._finders.values())

    def column(self, name: str, k: int) -> Array:
        return self.get_buffer(f"{name}{k}").numpy()

    def _set(self, k: int, *columns: Tensor) -> None:
        for name, column in zip(self.COLUMNS, columns, strict=True):
            setattr(self, f"{name}{k}", column)
        self._finders: dict[int, HashIndex] = {}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "NGram":
        """The columns stay where they are, in their own precision."""
        return self

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        order, V = self.config.order, self.config.vocab_size
        names = {f"{name}{k}" for k in range(1, order + 1) for name in self.COLUMNS}
        if odd := sorted(names ^ set(tensors)):
            raise CheckpointError(f"the tables lack or should not have {odd[0]!r} for order={order}")
        n_contexts = 1
        for k in range(1, order + 1):
            start, token, log_p, backoff, counted = (tensors[f"{name}{k}"] for name in self.COLUMNS)
            n = len(log_p)
            fit = all(tensors[f"{name}{k}"].dtype in kinds for name, kinds in self.COLUMNS.items())
            fit = fit and len(start) == n_contexts + 1 and int(start[0]) == 0 and int(start[-1]) == n == len(token)
            fit = fit and len(backoff) == (n if k < order else 0) and len(counted) in (0, n) and (k > 1 or n == V)
            if not fit or (n and not 0 <= int(token.min()) <= int(token.max()) < V):
                raise CheckpointError(f"the tables of {k}-grams do not fit each other or config.json")
            n_contexts = n
        for k in range(1, order + 1):
            self._set(k, *(tensors[f"{name}{k}"] for name in self.COLUMNS))

    # ── counting ──────────────────────────────────────────────────────────────────────────────────────────────────

    def fit(self, ids: Tensor | Array) -> "NGram":
        """Count a text (N,), or rows of them (B, N), and smooth as the config says."""
        rows = ids if isinstance(ids, np.ndarray) else ids.cpu().numpy()
        return self.fit_texts([[row] for row in np.atleast_2d(rows)])

    def fit_texts(self, texts: Sequence[Sequence[Array]]) -> "NGram":
        """The same for texts of any lengths, each in one piece or several, which may lie on disk."""
        c = self.config
        if c.smoothing == "given":
            raise InputError("these n-grams came with their probabilities: to count anew, set smoothing='kneser-ney'")
        for piece in (piece for text in texts for piece in text if len(piece)):
            check_ids(torch.tensor([[int(piece.min()), int(piece.max())]]), c.vocab_size)
        return self.smooth(count(texts, c.order, c.vocab_size, bos_id=c.bos_id, eos_id=c.eos_id))

    def smooth(self, counts: Counts) -> "NGram":
        """Take these counts, as the config says."""
        c = self.config
        kept = [kept_by(counts, k, c.prune) for k in range(1, c.order + 1)]
        weights = SMOOTHINGS[c.smoothing](counts, kept, c.k)
        prefix = np.zeros(c.vocab_size, np.int64)
        for k, (grams, keep, w) in enumerate(zip(counts.grams, kept, weights, strict=True), start=1):
            if k > 1:
                number = np.cumsum(kept[k - 2]) - 1  # of what is kept of the contexts
                prefix = number[grams.keys[keep] // c.vocab_size]
            columns = grams.keys[keep] % c.vocab_size, w.probability[keep], w.backoff[keep] if len(w.backoff) else None
            self.set_ngrams(k, prefix, *columns, count=grams.count[keep])
        return self

    def set_ngrams(
        self, k: int, prefix: Array, token: Array, p: Array, backoff: Array | None, *, count: Array | None = None
    ) -> None:
        """The n-grams of order k, sorted by the number of their context (the order below must be there) and token."""
        self.set_columns(k, prefix, token, _log(p), None if backoff is None else _log(backoff), count=count)

    def set_columns(
        self, k: int, prefix: Array, token: Array, log_p: Array, log_b: Array | None, *, count: Array | None = None
    ) -> None:
        """The same in logarithms."""
        n_contexts = 1 if k == 1 else len(self.column("log_p", k - 1))
        start = np.zeros(n_contexts + 1, np.int64)
        np.cumsum(np.bincount(prefix, minlength=n_contexts), out=start[1:])
        log_p = log_p.astype(np.float32)
        if k == 1 and self.begin is not None:
            log_p[self.begin] = -np.inf
        columns = (
            _narrow(start),
            _narrow(token),
            log_p,
            np.zeros(0, np.float32) if k == self.config.order or log_b is None else log_b.astype(np.float32),
            _narrow(np.zeros(0, np.int64) if count is None else count),
        )
        self._set(k, *map(torch.from_numpy, columns))

    # ── looking up ────────────────────────────────────────────────────────────────────────────────────────────────

    def contexts(self, k: int) -> Array:
        """The context of each n-gram of order k, by its number."""
        start = self.column("start", k)
        return np.repeat(np.arange(len(start) - 1), np.diff(start))

    def find(self, k: int, context: Array, token: Array) -> Array:
        """The numbers of n-grams of order k > 1, −1 where they were never counted."""
        if k not in self._finders:
            self._finders[k] = HashIndex(self.contexts(k) * self.config.vocab_size + self.column("token", k))
        return self._finders[k].find(context * self.config.vocab_size + token)

    def numbers(self, ids: Array) -> list[Array]:
        """Of the n-grams of 1, 2, … tokens that end at each place of ids (B, T), where −1 is nothing: their numbers,
        −1 where they were never counted."""
        found = [ids]
        for k in range(2, self.config.order + 1):
            number = np.full_like(ids, -1)
            context = found[-1][:, :-1]
            is_possible = context >= 0
            is_possible &= ids[:, 1:] >= 0
            number[:, 1:][is_possible] = self.find(k, context[is_possible], ids[:, 1:][is_possible])
            found.append(number)
        return found

    def _depth(self, ids: Array) -> Array:
        """How many tokens of its text stand up to each place of ids (B, T)."""
        place = np.arange(ids.shape[1])
        is_start = np.zeros_like(ids, dtype=bool) if self.begin is None else ids == self.begin
        before = np.maximum.accumulate(np.where(is_start, place, np.where(ids < 0, place + 1, 0)), axis=1)
        return place - before + 1

    def log_probability(self, ids: Tensor | Array) -> Array:
        """ln p of each token of a text (N,) given those before it, float32; of a begin token 0: it is given."""
        text = np.asarray(ids, dtype=np.int64)
        n = self.config.order - 1
        found = np.empty(len(text), np.float32)
        for at in range(0, len(text), CHUNK):
            before = min(n, at)
            found[at : at + CHUNK] = self._scored(text[None, at - before : at + CHUNK])[before:]
        return found

    def _scored(self, ids: Array) -> Array:
        numbers = self.numbers(ids)
        log_p = self.column("log_p", 1)[ids[0]]
        depth = self._depth(ids)[0] if self.config.smoothing in ("add-k", "stupid-backoff") else None
        for k in range(2, self.config.order + 1):
            context, number = numbers[k - 2][0, :-1], numbers[k - 1][0, 1:]
            is_new, is_found = context >= 0, number >= 0
            below = log_p[1:]  # a view: what shorter contexts say
            if depth is None:
                below[is_new] += self.column("backoff", k - 1)[context[is_new]]
            else:
                is_whole = depth[:-1] >= k - 1
                if self.config.smoothing == "add-k":
                    below[is_whole] = -math.log(self.n_words)
                else:
                    below[is_whole & ~is_new] += math.log(ALPHA)
                below[is_new] += self.column("backoff", k - 1)[context[is_new]]
            below[is_found] = self.column("log_p", k)[number[is_found]]
        if self.begin is not None:
            log_p[ids[0] == self.begin] = 0
        return log_p

    def logits_after(self, ids: Array) -> Array:
        """ln p of every token after each place of ids (B, T), where −1 is nothing: (B, T, V)."""
        numbers, V = self.numbers(ids), self.config.vocab_size
        found = np.broadcast_to(self.column("log_p", 1), (ids.size, V)).copy()
        depth = self._depth(ids).reshape(-1)
        for k in range(2, self.config.order + 1):
            context = numbers[k - 2].reshape(-1)
            is_whole, is_new = depth >= k - 1, context >= 0
            if self.config.smoothing == "add-k":
                found[is_whole] = self._uniform()
            elif self.config.smoothing == "stupid-backoff":
                found[is_whole & ~is_new] += math.log(ALPHA)
            rows = np.flatnonzero(is_new)
            if not len(rows):
                continue
            n = context[rows]
            found[rows] += self.column("backoff", k - 1)[n][:, None]
            start = self.column("start", k)
            # All followers of all contexts, end to end: the j-th of context n is at start[n] + j.
            followers = start[n + 1] - start[n]
            which = np.repeat(np.arange(len(n)), followers)
            at = np.repeat(start[n] - (np.cumsum(followers) - followers), followers) + np.arange(len(which))
            found[rows[which], self.column("token", k)[at]] = self.column("log_p", k)[at]
        return found.reshape(*ids.shape, V)

    def _uniform(self) -> Array:
        log_p = np.full(self.config.vocab_size, -math.log(self.n_words), np.float32)
        if self.begin is not None:
            log_p[self.begin] = -np.inf
        return log_p

    # ── the contract ──────────────────────────────────────────────────────────────────────────────────────────────

    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        ids, _ = mask_padding(ids, lengths)
        check_ids(ids, self.config.vocab_size)
        return torch.from_numpy(self.logits_after(ids.long().cpu().numpy())).to(ids.device)

    def start(self, batch_size: int = 1, capacity: int | None = None) -> TokenWindow:
        """No room is needed, so `capacity` is for the contract's sake."""
        return TokenWindow.start(batch_size, self.config.order - 1, self.device)

    def step(
        self, ids: Tensor, state: TokenWindow, lengths: Tensor | None = None, *, last: bool = False
    ) -> tuple[Tensor, TokenWindow]:
        ids, lengths = mask_padding(ids, lengths)
        check_batch_size(ids, len(state.length))
        check_ids(ids, self.config.vocab_size)
        logits = self.logits_after(state.before(ids).numpy())[:, self.config.order - 1 :]
        found = torch.from_numpy(logits).to(ids.device)
        return last_real(found, lengths) if last else found, state.after(ids, lengths)


class HashIndex:
    """From keys to their places, in a table of hashes in ascending order, each as near as there is room to the slot its
    hash names: what is looked for is there, or a few slots to the right, or a larger hash is met and it is nowhere
    (linear probing kept in order; Amble & Knuth 1974)."""

    MIX = np.int64(-7046029254386353131)  # 2^64 / golden ratio, odd: multiplying by it is one to one

    def __init__(self, keys: Array):
        hashes, order = (x.numpy() for x in torch.from_numpy(self._hash(keys)).sort())
        self.n_slots = int(len(keys) / LOAD) + 1
        place = np.arange(len(keys))
        slot = place + np.maximum.accumulate(self._slot(hashes) - place)
        self.hashes = np.full(max([self.n_slots, *(slot[-1:] + 1)]) + 1, 2**63 - 1)  # the last one ends every search
        self.hashes[slot] = hashes
        self.places = np.full(len(self.hashes), -1, np.int32 if len(keys) < 2**31 else np.int64)
        self.places[slot] = order

    @property
    def nbytes(self) -> int:
        return self.hashes.nbytes + self.places.nbytes

    def _hash(self, keys: Array) -> Array:
        return (keys ^ (keys >> 32)) * self.MIX

    def _slot(self, hashes: Array) -> Array:
        return (((hashes >> 32) + 2**31) * self.n_slots) >> 32

    def find(self, keys: Array) -> Array:
        """The place of each key, −1 where it is not there; in 8 bytes, since a place times the vocabulary is a key."""
        hashes = self._hash(keys)
        slot = self._slot(hashes)
        there = self.hashes.take(slot)
        on = np.flatnonzero(there < hashes)
        while len(on):
            slot[on] += 1
            next_there = self.hashes.take(slot[on])
            there[on] = next_there
            on = on[next_there < hashes[on]]
        return np.where(there == hashes, self.places.take(slot), np.int64(-1))


def kept_by(counts: Counts, k: int, prune: Sequence[int]) -> Array:
    """Which n-grams of k tokens stay: those seen more often than prune says for them, the last number for all longer
    ones too. Unigrams all stay."""
    least = prune[min(k, len(prune)) - 1] if prune and k > 1 else -1
    return np.asarray(counts.grams[k - 1].count > least)


def _narrow(whole: Array) -> Array:
    """In 4 bytes a number, where they are enough."""
    return whole.astype(np.int32 if not len(whole) or whole.max() < 2**31 else np.int64)


def _log(p: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(p).astype(np.float32)
