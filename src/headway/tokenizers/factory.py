"""The kinds of tokenizer, and training one by name."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headway.errors import ConfigError, DataError, suggest
from headway.tokenizers.base import Tokenizer, check_texts
from headway.tokenizers.bpe import train_bpe
from headway.tokenizers.char import train_char
from headway.tokenizers.special_tokens import check_size
from headway.tokenizers.unigram import train_unigram
from headway.tokenizers.word import train_word
from headway.tokenizers.wordpiece import train_wordpiece

VOCAB_SIZE = 8000  # where none is asked for; words are as many as there are

KINDS: dict[str, Callable[..., Tokenizer]] = {
    "char": train_char,
    "word": train_word,
    "bpe": train_bpe,
    "wordpiece": train_wordpiece,
    "unigram": train_unigram,
}


def train(kind: str, texts: Iterable[str], vocab_size: int | None = None, **options: Any) -> Tokenizer:
    """A new tokenizer of a kind ("char", "word", "bpe", "wordpiece", "unigram"), made for these texts.

    `texts` may be any iterable, also one that is larger than memory. `options` are those of the kind: `min_frequency`
    (word, bpe, wordpiece), `pre_tokenizer` (word), `lowercase` (word, wordpiece), `special_tokens` (all), `progress` (all that take
    long). For pairs of texts, give both sides: the vocabulary is joint.
    """
    if kind not in KINDS:
        raise ConfigError(
            f"no tokenizer of kind {kind!r}." + suggest(kind, KINDS, otherwise=f" There are: {', '.join(KINDS)}")
        )
    known = inspect.signature(KINDS[kind]).parameters
    for name in options:
        if name not in known:
            has = ", ".join(n for n in known if n not in ("texts", "progress"))
            raise ConfigError(f"a {kind} tokenizer has no setting {name!r}; it has: {has}")
    check_size("vocab_size", vocab_size, least=1)
    check_size("min_frequency", options.get("min_frequency"))
    if "vocab_size" in known:
        options["vocab_size"] = vocab_size if vocab_size is not None or kind == "word" else VOCAB_SIZE
    return KINDS[kind](_some_text(texts), **options)


def _some_text(texts: Iterable[str]) -> Iterator[str]:
    """The texts, checked as they pass; nothing at all is an error."""
    found = False
    for text in texts:
        check_texts([text])
        found = found or bool(text)
        yield text
    if not found:
        raise DataError("a tokenizer is made from text, and there is none: the training part is empty")
