"""Special tokens: what every kind of tokenizer calls them, and those the user adds."""

from collections.abc import Iterable

import tokenizers as rust

from headway.errors import ConfigError

END, UNKNOWN = "<|endoftext|>", "<unk>"


def check_special(wanted: Iterable[str], *own: str) -> list[str]:
    """The user's special tokens, which must differ from each other and from the tokenizer's own."""
    seen = list(own)
    for token in wanted:
        if not token or token != token.strip():
            raise ConfigError(f"special token {token!r} is empty or has spaces at its ends; write one such as '<sep>'")
        if token in seen:
            whose = "one of the tokenizer's own" if token in own else "given twice"
            raise ConfigError(f"special token {token!r} is {whose}: each is named once; leave it out")
        seen.append(token)
    return seen[len(own) :]


def add_special(backend: rust.Tokenizer, *tokens: str) -> None:
    """Add them in this order, after the vocabulary where they are not in it."""
    backend.add_special_tokens([rust.AddedToken(token, special=True, normalized=False) for token in tokens])
