"""Byte-level BPE: start from the 256 bytes and repeatedly merge the most frequent adjacent pair.

Sennrich et al. 2016 merge characters; Radford et al. 2019, §2.2 merge bytes, so that every text can be encoded.
"""

from collections.abc import Iterable, Mapping

import tokenizers as rust

from headway.errors import ConfigError, DataError
from headway.tokenizers.base import Tokenizer
from headway.tokenizers.native_errors import native_errors
from headway.tokenizers.pre_tokenizers import split_pre_tokenizer
from headway.tokenizers.special_tokens import END_OF_TEXT, add_special_tokens, check_special_tokens

N_BYTES = 256


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
