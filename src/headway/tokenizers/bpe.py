"""Byte-level BPE: start from the 256 bytes and repeatedly merge the most frequent adjacent pair.

Sennrich et al. 2016 merge characters; Radford et al. 2019, §2.2 merge bytes, so that every text can be encoded.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import tokenizers as rust

from headway.errors import ConfigError, DataError
from headway.tokenizers.base import Tokenizer
from headway.tokenizers.native_errors import native_errors
from headway.tokenizers.pre_tokenizers import split_pre_tokenizer, text_pieces
from headway.tokenizers.special_tokens import END_OF_TEXT, add_special_tokens, check_special_tokens

N_BYTES = 256
COUNT_PIECE_CHARS = 1 << 20  # words are counted in so many characters at a time


def train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    *,
    min_frequency: int = 0,
    special_tokens: Iterable[str] = (),
    progress: bool = False,
) -> Tokenizer:
    """Train a tokenizer of at most `vocab_size` tokens; fewer if the text runs out of pairs to merge."""
    extra = check_special_tokens(special_tokens, END_OF_TEXT)
    minimum = N_BYTES + 1 + len(extra)
    if vocab_size < minimum:
        raise ConfigError(
            f"vocab_size={vocab_size} is below {minimum}: byte-level BPE needs the 256 bytes and {END_OF_TEXT}"
            + (f", and {len(extra)} more special tokens were requested" if extra else "")
        )
    backend = byte_level_tokenizer(rust.models.BPE())
    trainer = rust.trainers.BpeTrainer(
        vocab_size=vocab_size - 1 - len(extra),
        min_frequency=min_frequency,
        initial_alphabet=sorted(rust.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=progress,
    )
    with native_errors("training a BPE tokenizer on this text", error=DataError):
        backend.train_from_iterator(texts, trainer)
    add_special_tokens(backend, [END_OF_TEXT], extra)  # last, as in GPT-2
    return Tokenizer(backend, bos=END_OF_TEXT, eos=END_OF_TEXT)


@dataclass(frozen=True)
class LearnedMerge:
    """A merge that training chose, and how often its pair occurred then."""

    left: str  # as the vocabulary spells it: "Ġt"
    right: str
    count: int


def count_words(texts: Iterable[str], counts: Counter[str]) -> Iterator[str]:
    """Pass texts through, and count the words that training sees: the pre-tokenizer's, in the characters for bytes."""
    pre_tokenizer = byte_level_tokenizer(rust.models.BPE()).pre_tokenizer
    for text in texts:
        for piece in text_pieces(text, COUNT_PIECE_CHARS):
            counts.update(word for word, _ in pre_tokenizer.pre_tokenize_str(piece))
        yield text


def learn_merges(word_counts: Mapping[str, int], n_merges: int, *, min_frequency: int = 0) -> list[LearnedMerge]:
    """The first merges of byte-level BPE (Sennrich et al. 2016, Algorithm 1), with the frequency of each pair.

    Each time the most frequent adjacent pair is merged in every word; of equally frequent pairs, the one whose pieces
    were known first, bytes in the order of their characters. These are the merges of `train_bpe`.
    """
    words = [(list(word), count) for word, count in word_counts.items()]
    ids = {character: id for id, character in enumerate(sorted(rust.pre_tokenizers.ByteLevel.alphabet()))}
    pair_counts: Counter[tuple[str, str]] = Counter()
    words_with: defaultdict[tuple[str, str], set[int]] = defaultdict(set)  # pair → indices of the words that have it
    for i, (parts, count) in enumerate(words):
        for pair in pairwise(parts):
            pair_counts[pair] += count
            words_with[pair].add(i)
    merges: list[LearnedMerge] = []
    while len(merges) < n_merges and pair_counts:
        best = max(pair_counts, key=lambda pair: (pair_counts[pair], -ids[pair[0]], -ids[pair[1]]))
        if pair_counts[best] < max(1, min_frequency):
            break
        merges.append(LearnedMerge(*best, pair_counts[best]))
        ids.setdefault("".join(best), len(ids))
        for i in words_with.pop(best):
            parts, count = words[i]
            pair_counts.subtract({pair: n * count for pair, n in Counter(pairwise(parts)).items()})
            parts[:] = _merged(parts, best)
            for pair in pairwise(parts):
                pair_counts[pair] += count
                words_with[pair].add(i)
        del pair_counts[best]
    return merges


def _merged(parts: list[str], pair: tuple[str, str]) -> list[str]:
    """The parts of a word with every occurrence of the pair joined, from left to right."""
    merged: list[str] = []
    for part in parts:
        if merged and (merged[-1], part) == pair:
            merged[-1] += part
        else:
            merged.append(part)
    return merged


def byte_level_tokenizer(model: rust.models.BPE, pattern: str | None = None) -> rust.Tokenizer:
    """A byte-level tokenizer around a BPE model; `pattern` replaces GPT-2's pre-tokenization."""
    backend = rust.Tokenizer(model)
    if pattern is None:
        backend.pre_tokenizer = rust.pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        to_bytes = rust.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = rust.pre_tokenizers.Sequence([split_pre_tokenizer(pattern), to_bytes])
    backend.decoder = rust.decoders.ByteLevel()
    return backend


def merge_below_rank(parts: list[bytes], ranks: Mapping[bytes, int], limit: int) -> list[bytes]:
    """Merge adjacent parts that spell the token of the lowest rank, as long as that rank is below `limit`.

    This is BPE as one would do it by hand. It stops at two parts: the pair that the token of rank `limit` is made from.
    """
    parts = list(parts)
    while len(parts) > 2:
        pair_ranks = [ranks.get(parts[i] + parts[i + 1], limit) for i in range(len(parts) - 1)]
        lowest = min(pair_ranks)
        if lowest >= limit:
            break
        i = pair_ranks.index(lowest)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts
