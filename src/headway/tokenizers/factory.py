"""The kinds of tokenizer by name, and training one of them."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headway.errors import ConfigError, DataError, suggest
from headway.tokenizers.base import Tokenizer, check_texts
from headway.tokenizers.bpe import train_bpe
from headway.tokenizers.char import train_char
from headway.tokenizers.special_tokens import check_int
from headway.tokenizers.unigram import train_unigram
from headway.tokenizers.word import train_word
from headway.tokenizers.wordpiece import train_wordpiece

DEFAULT_VOCAB_SIZE = 8000  # except for words, which have no limit by default

KINDS: dict[str, Callable[..., Tokenizer]] = {
    "char": train_char,
    "word": train_word,
    "bpe": train_bpe,
    "wordpiece": train_wordpiece,
    "unigram": train_unigram,
}


def train(kind: str, texts: Iterable[str], vocab_size: int | None = None, **options: Any) -> Tokenizer:
    """Train a tokenizer of a kind ("char", "word", "bpe", "wordpiece", "unigram") on texts.

    `texts` may be any iterable, including one larger than memory; it is read once. `options` are those of the kind:
    `min_frequency` (word, bpe, wordpiece), `pre_tokenizer` (word), `lowercase` (word, wordpiece), `special_tokens`
    (all), `progress` (bpe, wordpiece, unigram). For parallel text pass both sides: the vocabulary is joint.
    """
    if kind not in KINDS:
        raise ConfigError(
            f"no tokenizer of kind {kind!r}." + suggest(kind, KINDS, otherwise=f" The kinds are: {', '.join(KINDS)}")
        )
    parameters = inspect.signature(KINDS[kind]).parameters
    if "progress" not in parameters:
        options.pop("progress", None)
    for name in options:
        if name not in parameters:
            names = ", ".join(n for n in parameters if n not in ("texts", "progress"))
            raise ConfigError(f"a {kind} tokenizer has no setting {name!r}; it has: {names}")
    check_int("vocab_size", vocab_size, minimum=1)
    check_int("min_frequency", options.get("min_frequency"))
    if "vocab_size" in parameters:
        options["vocab_size"] = vocab_size if vocab_size is not None or kind == "word" else DEFAULT_VOCAB_SIZE
    return KINDS[kind](_checked(texts), **options)


def _checked(texts: Iterable[str]) -> Iterator[str]:
    """The texts, validated as they are read; raises `DataError` at the end if all were empty."""
    is_empty = True
    for text in texts:
        if not isinstance(text, str) or not text.isascii():  # checked here, too: lines are many and short
            check_texts([text])
        is_empty = is_empty and not text
        yield text
    if is_empty:
        raise DataError("the training split is empty: a tokenizer is trained on text")
