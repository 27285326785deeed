"""Special tokens: the defaults of each kind of tokenizer, and those that the user adds."""

from collections.abc import Iterable

import tokenizers as rust

from headway.errors import ConfigError
from headway.tokenizers.base import check_texts

END_OF_TEXT, UNK = "<|endoftext|>", "<unk>"
SENTENCE_TOKENS = (UNK, "<s>", "</s>")  # for tokenizers with separate BOS and EOS tokens
MAX_INT = (1 << 31) - 1  # the largest size or count that the tokenizers library takes


def check_int(name: str, value: int | None, minimum: int = 0) -> None:
    """Raise `ConfigError` if a size or count is out of range; None, for the default, passes."""
    if value is not None and not minimum <= value <= MAX_INT:
        raise ConfigError(f"{name}={value} must be a whole number from {minimum} to {MAX_INT}")


def check_special_tokens(tokens: Iterable[str], *defaults: str) -> list[str]:
    """The user's special tokens, checked to differ from each other and from the tokenizer's defaults."""
    checked: list[str] = []
    for token in tokens:
        check_texts([token])
        if not token or token != token.strip():
            raise ConfigError(
                f"special token {token!r} is empty or starts or ends with whitespace; write one such as '<sep>'"
            )
        if token in defaults:
            raise ConfigError(f"special token {token!r} is one that this tokenizer always has; leave it out")
        if token in checked:
            raise ConfigError(f"special token {token!r} is given twice; give it once")
        checked.append(token)
    return checked


def check_vocab_size(backend: rust.Tokenizer, vocab_size: int) -> None:
    """Raise `ConfigError` if the vocabulary came out too large: some trainers keep every character of the text."""
    size = backend.get_vocab_size()
    if size > vocab_size:
        raise ConfigError(
            f"vocab_size={vocab_size} is too small: the characters of this text and the special tokens take {size}"
        )


def add_special_tokens(backend: rust.Tokenizer, defaults: Iterable[str], extra: Iterable[str] = ()) -> None:
    """Add the default special tokens, then the user's; those not in the vocabulary get new ids at its end."""
    tokens = list(defaults)
    for token in extra:
        if backend.token_to_id(token) is not None:
            raise ConfigError(
                f"special token {token!r} is an ordinary token of this text too, which decoding would then drop; "
                f"choose one that the text does not contain, such as '<{token}>'"
            )
        tokens.append(token)
    backend.add_special_tokens([rust.AddedToken(token, special=True, normalized=False) for token in tokens])
