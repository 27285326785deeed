"""Byte-level BPE: start from the 256 bytes, then merge the most frequent neighbours, again and again.

Sennrich et al. 2016 merge characters; Radford et al. 2019, §2.2 bytes, so that no text is ever unknown.
"""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import tokenizers as rust

from headway.errors import ConfigError
from headway.tokenizers.base import Tokenizer
from headway.tokenizers.pre_tokenizers import splitter
from headway.tokenizers.special_tokens import END, add_special, check_special

N_BYTES = 256


def train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    *,
    min_frequency: int = 0,
    special_tokens: Iterable[str] = (),
    progress: bool = False,
) -> Tokenizer:
    """A tokenizer of at most `vocab_size` tokens; fewer where the text has no more pairs to merge."""
    extra = check_special(special_tokens, END)
    least = N_BYTES + 1 + len(extra)
    if vocab_size < least:
        raise ConfigError(
            f"vocab_size={vocab_size} is below {least}: byte-level BPE begins with all 256 bytes, and {END}"
            + (f" and {len(extra)} special tokens more" if extra else "")
        )
    backend = byte_level(rust.models.BPE())
    trainer = rust.trainers.BpeTrainer(
        vocab_size=vocab_size - 1 - len(extra),
        min_frequency=min_frequency,
        initial_alphabet=sorted(rust.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=progress,
    )
    backend.train_from_iterator(texts, trainer)
    add_special(backend, [END], extra)  # last, as in GPT-2
    return Tokenizer(backend, bos=END, eos=END)


def byte_level(model: rust.models.BPE, pattern: str | None = None) -> rust.Tokenizer:
    """A byte-level tokenizer around merges; words are cut as in GPT-2, or by a pattern."""
    backend = rust.Tokenizer(model)
    if pattern is None:
        backend.pre_tokenizer = rust.pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        to_bytes = rust.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = rust.pre_tokenizers.Sequence([splitter(pattern), to_bytes])
    backend.decoder = rust.decoders.ByteLevel()
    return backend


MergePiece = TypeVar("MergePiece", str, bytes)


def merged(parts: list[MergePiece], ranks: Mapping[MergePiece, int], limit: int) -> list[MergePiece]:
    """Merge neighbours, those that spell the token of the lowest rank first, by ranks below `limit` alone.

    BPE as one would do it by hand. It stops at two parts: they are what a token of rank `limit` is made of.
    """
    parts = list(parts)
    while len(parts) > 2:
        found = [ranks.get(parts[i] + parts[i + 1], limit) for i in range(len(parts) - 1)]
        best = min(found)
        if best >= limit:
            break
        i = found.index(best)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts
