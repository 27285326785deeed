"""Tokens as labels of tables and pictures."""

from collections.abc import Sequence

from headway.tokenizers import Tokenizer

SYMBOLS = str.maketrans({" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"})


def token_labels(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Tokens as labels: spaces and line ends made visible, special tokens by name."""
    special_tokens = {id: name for name, id in tokenizer.special_ids.items()}
    return [special_tokens.get(id) or visible(tokenizer.decode([id])) or "∅" for id in ids]


def visible(text: str) -> str:
    """The text with a symbol for each space and line end; other characters that print nothing become their code."""
    text = text.translate(SYMBOLS)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
