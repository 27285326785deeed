"""Tokens as labels of tables and pictures."""

from collections.abc import Sequence

from headway.tokenizers import Tokenizer
from headway.tokenizers.fast_encoding import byte_alphabet

SYMBOLS = str.maketrans({" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"})


def token_labels(tokenizer: Tokenizer, ids: Sequence[int], text: str = "") -> list[str]:
    """Tokens as labels: spaces and line ends made visible, special tokens by name. Unknown tokens of `text`, which the
    ids encode, are told apart by what they stand for: "<unk> ü"."""
    special_tokens = {id: name for name, id in tokenizer.special_ids.items()}
    labels = [special_tokens.get(id) or visible(_decoded(tokenizer, id)) or "∅" for id in ids]
    unknown = iter(tokenizer.unknown_text(text))
    for i, id in enumerate(ids):
        if id == tokenizer.unk_id and (piece := next(unknown, None)):
            labels[i] += f" {visible(piece)}"
    return labels


def token_label(tokenizer: Tokenizer, id: int) -> str:
    """One token as a label."""
    (label,) = token_labels(tokenizer, [id])
    return label


def _decoded(tokenizer: Tokenizer, id: int) -> str:
    r"""The text of a token. Bytes that are only part of a character become their code: \xe2."""
    text = tokenizer.decode([id])
    if "\ufffd" not in text:
        return text
    token, byte_of = tokenizer.token(id), byte_alphabet()
    if not byte_of.keys() >= set(token):
        return text
    return bytes(byte_of[character] for character in token).decode("utf-8", errors="backslashreplace")


def visible(text: str) -> str:
    """The text with a symbol for each space and line end; other characters that print nothing become their code."""
    text = text.translate(SYMBOLS)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
