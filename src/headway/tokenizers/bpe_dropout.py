"""BPE-dropout (Provilkov et al. 2020): during training, merges are skipped at random.

A model that sees every word in a single segmentation learns little about what its pieces are made of. Skipping each
merge with probability p gives a word many segmentations, which regularises training on small data. Inference uses all
merges.
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
from headway.tokenizers.native_errors import native_errors
from headway.tokenizers.sentencepiece import SentencePieceTokenizer

SEGMENTATIONS_PER_WORD = 16  # sampled when a word is first encoded


class BPEDropout:
    """Numbers the distinct words of texts, and encodes each word by one of its sampled segmentations.

    The segmentations of a word depend on the seed and the word alone.
    """

    def __init__(self, tokenizer: Tokenizer, dropout: float, seed: int = 0):
        if not _is_byte_level_bpe(tokenizer):
            raise ConfigError(
                f"tokenizer.bpe_dropout={dropout} needs a byte-level BPE tokenizer, and this one is {tokenizer.kind}; "
                f"set tokenizer.bpe_dropout=0"
            )
        model = json.loads(tokenizer.backend.to_str())["model"]
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        self.ranks = {(left, right): rank for rank, (left, right) in enumerate(pairs)}
        self.token_ids: dict[str, int] = model["vocab"]
        self.tokenizer, self.dropout, self.seed = tokenizer, dropout, seed
        self.words: list[str] = []
        self._word_ids: dict[str, int] = {}
        self._segmentations: list[list[list[int]] | None] = []  # of each word; None until it is first encoded

    def word_ids(self, text: str) -> list[int]:
        """The words of a text, each as its index in `words`."""
        backend = self.tokenizer.backend
        with native_errors("splitting this text into words"):
            if backend.normalizer is not None:
                text = backend.normalizer.normalize_str(text)
            words = backend.pre_tokenizer.pre_tokenize_str(text)
        ids = []
        for word, _ in words:
            if word not in self._word_ids:
                self._word_ids[word] = len(self.words)
                self.words.append(word)
                self._segmentations.append(None)
            ids.append(self._word_ids[word])
        return ids

    def encode(self, texts: Sequence[NDArray[np.integer]], uniforms: NDArray[np.float64]) -> list[list[int]]:
        """The token ids of texts given as word ids; `uniforms`, one per word in [0, 1), select the segmentations."""
        choices = iter((uniforms * SEGMENTATIONS_PER_WORD).astype(np.int64).tolist())
        results = []
        for text in texts:
            ids: list[int] = []
            for word_id in text.tolist():
                segmentations = self._segmentations[word_id]
                if segmentations is None:
                    segmentations = self._segmentations[word_id] = self._sample(self.words[word_id])
                ids += segmentations[next(choices)]
            results.append(ids)
        return results

    def _sample(self, word: str) -> list[list[int]]:
        uniform, rank_of, p = random.Random(f"{self.seed} {word}").random, self.ranks.get, self.dropout
        segmentations = []
        for _ in range(SEGMENTATIONS_PER_WORD):
            parts = list(word)
            while len(parts) > 1:
                merges = [
                    (rank, i)
                    for i, pair in enumerate(pairwise(parts))
                    if (rank := rank_of(pair)) is not None and uniform() >= p
                ]
                if not merges:
                    break
                _, i = min(merges)
                parts[i : i + 2] = [parts[i] + parts[i + 1]]
            segmentations.append([self.token_ids[part] for part in parts])
        return segmentations


def _is_byte_level_bpe(tokenizer: Tokenizer) -> bool:
    if isinstance(tokenizer, SentencePieceTokenizer) or tokenizer.backend.pre_tokenizer is None:
        return False
    model = json.loads(tokenizer.backend.to_str())["model"]
    unsupported = ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
    alphabet = set(rust.pre_tokenizers.ByteLevel.alphabet())
    return model["type"] == "BPE" and alphabet <= set(model["vocab"]) and not any(map(model.get, unsupported))
