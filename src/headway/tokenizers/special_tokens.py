"""Special tokens: what every kind of tokenizer calls them, and those the user adds."""

from collections.abc import Iterable

import tokenizers as rust

from headway.errors import ConfigError
from headway.tokenizers.base import check_texts

END, UNKNOWN = "<|endoftext|>", "<unk>"
SENTENCE = (UNKNOWN, "<s>", "</s>")  # where sentences have a beginning and an end of their own


LARGEST = 1 << 31  # of sizes and counts, for the library beneath


def check_size(name: str, value: int | None, least: int = 0) -> None:
    if value is not None and not least <= value < LARGEST:
        raise ConfigError(f"{name}={value} must be a whole number from {least} to {LARGEST - 1}")


def check_special(wanted: Iterable[str], *own: str) -> list[str]:
    """The user's special tokens, which must differ from each other and from the tokenizer's own."""
    seen = list(own)
    for token in wanted:
        check_texts([token])
        if not token or token != token.strip():
            raise ConfigError(f"special token {token!r} is empty or has spaces at its ends; write one such as '<sep>'")
        if token in seen:
            whose = "one of the tokenizer's own" if token in own else "given twice"
            raise ConfigError(f"special token {token!r} is {whose}: each is named once; leave it out")
        seen.append(token)
    return seen[len(own) :]


def check_room(backend: rust.Tokenizer, vocab_size: int) -> None:
    """Some trainers keep every character of the text, however small the vocabulary was to be."""
    size = backend.get_vocab_size()
    if size > vocab_size:
        raise ConfigError(
            f"vocab_size={vocab_size} is below the {size} that the characters of this text and the special tokens take"
        )


def add_special(backend: rust.Tokenizer, own: Iterable[str], extra: Iterable[str] = ()) -> None:
    """Add a tokenizer's own and the user's, in this order, after the vocabulary where they are not in it."""
    tokens = list(own)
    for token in extra:
        if backend.token_to_id(token) is not None:
            raise ConfigError(
                f"special token {token!r} is an ordinary token of this text too, and would vanish from it when "
                f"decoded; choose one that the text does not have, such as '<{token}>'"
            )
        tokens.append(token)
    backend.add_special_tokens([rust.AddedToken(token, special=True, normalized=False) for token in tokens])
