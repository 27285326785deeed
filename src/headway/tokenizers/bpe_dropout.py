"""BPE-dropout (Provilkov et al. 2020): while learning, some merges are left out, at random.

A model that always meets a word in the same pieces learns little about what those pieces are made of. With every merge
left out with probability p a word comes in many spellings, and small data goes further. In use nothing is left out.
"""

import json
import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import tokenizers as rust
from numpy.typing import NDArray

from headway.errors import ConfigError
from headway.tokenizers.base import Tokenizer

WAYS = 16  # spellings of a word; made when one is first asked for


class BPEDropout:
    """The words of texts by number, and each word in so many ways: way k of a word is always the same."""

    def __init__(self, tokenizer: Tokenizer, dropout: float, seed: int = 0):
        model = json.loads(tokenizer.backend.to_str())["model"]
        marks = ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
        bytes_of = set(rust.pre_tokenizers.ByteLevel.alphabet())
        is_byte_level = model["type"] == "BPE" and bytes_of <= set(model["vocab"]) and not any(map(model.get, marks))
        if not is_byte_level or tokenizer.reader is not None or tokenizer.backend.pre_tokenizer is None:
            raise ConfigError(
                f"tokenizer.bpe_dropout={dropout} leaves out merges of a byte-level BPE, which this {tokenizer.kind} is "
                f"not; set tokenizer.bpe_dropout=0"
            )
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        self.ranks = {(left, right): rank for rank, (left, right) in enumerate(pairs)}
        self.ids: dict[str, int] = model["vocab"]
        self.tokenizer, self.dropout, self.seed = tokenizer, dropout, seed
        self.words: list[str] = []
        self._numbers: dict[str, int] = {}
        self._made: list[list[list[int]] | None] = []  # the ways of each word

    def numbers(self, text: str) -> list[int]:
        """The words of a text, each by its number."""
        backend = self.tokenizer.backend
        if backend.normalizer is not None:
            text = backend.normalizer.normalize_str(text)
        found = []
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(text):
            if word not in self._numbers:
                self._numbers[word] = len(self.words)
                self.words.append(word)
                self._made.append(None)
            found.append(self._numbers[word])
        return found

    def spell(self, texts: Sequence[NDArray[np.integer]], uniforms: NDArray[np.float64]) -> list[list[int]]:
        """The tokens of some texts, given as numbers of words; a word in the way its number in [0, 1) says."""
        ways = iter((uniforms * WAYS).astype(np.int64).tolist())
        found = []
        for text in texts:
            ids: list[int] = []
            for number in text.tolist():
                made = self._made[number]
                if made is None:
                    made = self._made[number] = self._make(self.words[number])
                ids += made[next(ways)]
            found.append(ids)
        return found

    def _make(self, word: str) -> list[list[int]]:
        draw, rank_of, p = random.Random(f"{self.seed} {word}").random, self.ranks.get, self.dropout
        found = []
        for _ in range(WAYS):
            parts = list(word)
            while len(parts) > 1:
                kept = [
                    (rank, i)
                    for i, pair in enumerate(pairwise(parts))
                    if (rank := rank_of(pair)) is not None and draw() >= p
                ]
                if not kept:
                    break
                _, i = min(kept)
                parts[i : i + 2] = [parts[i] + parts[i + 1]]
            found.append([self.ids[part] for part in parts])
        return found
