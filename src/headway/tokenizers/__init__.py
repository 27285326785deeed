"""Tokenizers: one face (`Tokenizer`), several kinds (`KINDS`), `tokenizer.json` on disk."""

from collections.abc import Callable, Iterable

from headway.errors import ConfigError, DataError, suggest
from headway.tokenizers.base import TextStream, Tokenizer, check_texts, load_tokenizer
from headway.tokenizers.bpe import train_bpe
from headway.tokenizers.char import train_char

__all__ = ["KINDS", "TextStream", "Tokenizer", "load_tokenizer", "train", "train_bpe", "train_char"]

# Kind → training on an iterable of texts; the vocabulary size is a wish that only some kinds have.
KINDS: dict[str, Callable[[list[str], int], Tokenizer]] = {
    "bpe": train_bpe,
    "char": lambda texts, vocab_size: train_char(texts),
}


def train(kind: str, texts: Iterable[str], vocab_size: int = 1024) -> Tokenizer:
    """A new tokenizer of a kind ("bpe", "char"), made for these texts."""
    if kind not in KINDS:
        raise ConfigError(
            f"no tokenizer of kind {kind!r}." + suggest(kind, KINDS, otherwise=f" There are: {', '.join(KINDS)}")
        )
    texts = list(texts)
    check_texts(texts)
    if not any(texts):
        raise DataError("a tokenizer is made from text, and there is none: the training part is empty")
    return KINDS[kind](texts, vocab_size)
