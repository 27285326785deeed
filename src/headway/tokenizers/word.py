"""Words as tokens, the most frequent first; words too rare are <unk>.

A word carries the space before it, as GPT-2's pieces do, so that decoding needs to guess nothing: "to be" is "to" and
" be". A line end carries the space before it too, which makes the lines of Penn Treebank and WikiText come out with
their published counts of tokens.

With pre_tokenizer="whitespace" a word is the same at the beginning of a text and after a space, blanks are left out, and
a text stands between <s> and </s>: what n-gram models of sentences have always done. Such a text comes back with one space
between words.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import tokenizers as rust

from headway.errors import ConfigError, DataError
from headway.tokenizers.base import Tokenizer
from headway.tokenizers.pre_tokenizers import WORDS, cut_words, splitter
from headway.tokenizers.special_tokens import END, SENTENCE, UNKNOWN, add_special, check_special


def train_word(
    texts: Iterable[str],
    vocab_size: int | None = None,
    *,
    min_frequency: int = 1,
    pre_tokenizer: Literal["punctuation", "spaces", "whitespace"] = "punctuation",
    lowercase: bool = False,
    special_tokens: Iterable[str] = (),
) -> Tokenizer:
    """All words that occur `min_frequency` times or more; with `vocab_size`, the most frequent of them."""
    if pre_tokenizer not in WORDS:
        raise ConfigError(f"pre_tokenizer={pre_tokenizer!r} is not one of {', '.join(map(repr, WORDS))}")
    own = list(SENTENCE if pre_tokenizer == "whitespace" else (UNKNOWN, END))
    extra = check_special(special_tokens, *own)
    if vocab_size is not None and vocab_size <= len(own) + len(extra):
        raise ConfigError(f"vocab_size={vocab_size} leaves no room for a word beside {', '.join([*own, *extra])}")
    lower = rust.normalizers.Lowercase()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(cut_words(lower.normalize_str(text) if lowercase else text, WORDS[pre_tokenizer]))
    if (
        pre_tokenizer == "whitespace"
    ):  # a text that spells one has it as a word, and the special token is named otherwise
        own = [_not_in(counts, token) for token in own]
    for token in own:
        del counts[token]  # a text that spells one does not make it a word
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    kept = dict(item for item in ranked if item[1] >= min_frequency)
    if not kept:
        most = ranked[0][1] if ranked else 0
        raise DataError(f"no word occurs min_frequency={min_frequency} times; the most frequent one does {most} times")
    if vocab_size is not None:
        kept = dict(list(kept.items())[: vocab_size - len(own) - len(extra)])
    return _made_of(kept, own, extra, pre_tokenizer, lower if lowercase else None, counts=kept)


def sentence_words(kept: Iterable[str], own: list[str]) -> Tokenizer:
    """Words that are known already, cut at blanks; `own` are the unknown, begin and end token."""
    return _made_of(kept, own, [], "whitespace", None)


def _made_of(
    kept: Iterable[str],
    own: list[str],
    extra: list[str],
    words: str,
    normalizer: rust.normalizers.Normalizer | None,
    counts: dict[str, int] | None = None,
) -> Tokenizer:
    vocab = {token: i for i, token in enumerate([*kept, own[0]])}
    backend = rust.Tokenizer(rust.models.WordLevel(vocab, unk_token=own[0]))
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = splitter(WORDS[words])
    if words != "whitespace":  # without a decoder, tokens are joined by spaces
        backend.decoder = rust.decoders.Fuse()
    add_special(backend, own, extra)
    return Tokenizer(backend, bos=own[1], eos=own[-1], unk=own[0], counts=counts)


def _not_in(counts: Counter[str], token: str) -> str:
    """The token, or a longer name for it that is no word of the text: <unk>, <|unk|>, <||unk||>, …"""
    while token in counts:
        token = f"<|{token[1:-1]}|>"
    return token
