"""Word tokenizer: the most frequent words of the training text are tokens, the others are <unk>.

A word includes the space before it, as in GPT-2, so that decoding is concatenation: "to be" is "to" and " be". A
newline includes the space before it too, so that the lines of Penn Treebank and WikiText have their published token
counts.

With pre_tokenizer="whitespace" a word is the same token at the start of a text and after a space, whitespace is
discarded, and a text is enclosed in <s> and </s>: the convention of n-gram language models. Decoding puts one space
between words.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

import tokenizers as rust

from headway.errors import ConfigError, DataError, suggest
from headway.tokenizers.base import Tokenizer
from headway.tokenizers.file_limits import MAX_VOCAB_SIZE
from headway.tokenizers.pre_tokenizers import WORD_PATTERNS, split_pre_tokenizer, split_words, text_pieces
from headway.tokenizers.special_tokens import (
    END_OF_TEXT,
    SENTENCE_TOKENS,
    UNK,
    add_special_tokens,
    check_special_tokens,
)

LONG_WORD_CHARS = 1000
MAX_LONG_WORDS_CHARS = 8 << 20  # of all long words together; the rest is <unk>. Encoded files would fill the vocabulary
SHORT_TEXT_CHARS = 64
MAX_COUNTED_TEXTS = 100_000
PIECE_CHARS = 1 << 20


def train_word(
    texts: Iterable[str],
    vocab_size: int | None = None,
    *,
    min_frequency: int = 1,
    pre_tokenizer: Literal["punctuation", "spaces", "whitespace"] = "punctuation",
    lowercase: bool = False,
    special_tokens: Iterable[str] = (),
) -> Tokenizer:
    """Train a tokenizer of all words that occur `min_frequency` times or more; at most `vocab_size` tokens if given."""
    if pre_tokenizer not in WORD_PATTERNS:
        names = ", ".join(map(repr, WORD_PATTERNS))
        near = suggest(pre_tokenizer, WORD_PATTERNS)
        raise ConfigError(f"pre_tokenizer={pre_tokenizer!r} is not one of {names}.{near}")
    defaults = list(SENTENCE_TOKENS if pre_tokenizer == "whitespace" else (UNK, END_OF_TEXT))
    extra = check_special_tokens(special_tokens, *defaults)
    if vocab_size is not None and vocab_size <= len(defaults) + len(extra):
        raise ConfigError(f"vocab_size={vocab_size} leaves no words beside {', '.join([*defaults, *extra])}")
    lower = rust.normalizers.Lowercase()
    counts: Counter[str] = Counter()
    long_chars = 0
    for text, n in _distinct_pieces(texts):
        words = split_words(lower.normalize_str(text) if lowercase else text, WORD_PATTERNS[pre_tokenizer])
        if len(text) > LONG_WORD_CHARS:
            words, long_chars = _without_too_many_long_words(words, counts, long_chars)
        if n == 1:
            counts.update(words)
        else:
            for word in words:
                counts[word] += n
    if pre_tokenizer == "whitespace":  # a special token that the text contains stays a word; the special one is renamed
        defaults = [_unused_name(token, counts) for token in defaults]
    for token in defaults:
        del counts[token]  # a special token in the text is not a word
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    frequent = {word: n for word, n in ranked if n >= min_frequency}
    if not frequent:
        maximum = ranked[0][1] if ranked else 0
        raise DataError(
            f"no word occurs min_frequency={min_frequency} times; the most frequent one occurs {maximum} times"
        )
    if vocab_size is not None:
        frequent = dict(list(frequent.items())[: vocab_size - len(defaults) - len(extra)])
    normalizer = lower if lowercase else None
    return _from_words(frequent, defaults, extra, pre_tokenizer, normalizer, counts=frequent)


def _distinct_pieces(texts: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Texts with their counts. Short ones, such as lines, are counted first; long ones come in pieces."""
    counts: dict[str, int] = {}
    for text in texts:
        if len(text) <= SHORT_TEXT_CHARS:
            counts[text] = counts.get(text, 0) + 1
            if len(counts) == MAX_COUNTED_TEXTS:
                yield from counts.items()
                counts = {}
        else:
            yield from ((piece, 1) for piece in text_pieces(text, PIECE_CHARS))
    yield from counts.items()


def _without_too_many_long_words(words: list[str], counts: Counter[str], long_chars: int) -> tuple[list[str], int]:
    """Drop new long words beyond MAX_LONG_WORDS_CHARS; returns the words that stay, and the characters of long ones."""
    kept: list[str] = []
    for word in words:
        if len(word) > LONG_WORD_CHARS and word not in counts:
            long_chars += len(word)
            if long_chars > MAX_LONG_WORDS_CHARS:
                continue
        kept.append(word)
    return kept, long_chars


def sentence_tokenizer(words: Iterable[str], special_tokens: list[str]) -> Tokenizer:
    """A tokenizer with these words that splits at whitespace; `special_tokens` are UNK, BOS and EOS."""
    return _from_words(words, special_tokens, [], "whitespace", None)


def _from_words(
    words: Iterable[str],
    defaults: list[str],
    extra: list[str],
    pre_tokenizer: str,
    normalizer: rust.normalizers.Normalizer | None,
    counts: dict[str, int] | None = None,
) -> Tokenizer:
    unk, bos, eos = defaults[0], defaults[1], defaults[-1]
    vocab = {token: i for i, token in enumerate([*words, unk])}
    if len(vocab) + len(extra) + 2 > MAX_VOCAB_SIZE:  # `load` must accept what is saved
        raise ConfigError(
            f"{len(vocab):,} words are too many for a vocabulary, which has at most {MAX_VOCAB_SIZE:,} tokens: "
            f"set vocab_size or min_frequency"
        )
    backend = rust.Tokenizer(rust.models.WordLevel(vocab, unk_token=unk))
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = split_pre_tokenizer(WORD_PATTERNS[pre_tokenizer])
    if pre_tokenizer != "whitespace":  # without a decoder, tokens are joined by spaces
        backend.decoder = rust.decoders.Fuse()
    add_special_tokens(backend, defaults, extra)
    return Tokenizer(backend, bos=bos, eos=eos, unk=unk, counts=counts)


def _unused_name(token: str, counts: Counter[str]) -> str:
    """The token, or the first longer name for it that is no word of the text: <unk>, <|unk|>, <||unk||>, …"""
    while token in counts:
        token = f"<|{token[1:-1]}|>"
    return token
