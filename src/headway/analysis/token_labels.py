"""Tokens as labels of tables and pictures."""

from collections.abc import Sequence

from headway.tokenizers import Tokenizer

SYMBOLS = str.maketrans({" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"})


def token_labels(tokenizer: Tokenizer, ids: Sequence[int], text: str = "") -> list[str]:
    """Tokens as labels: spaces and line ends made visible, special tokens by name. Unknown tokens of `text`, which the
    ids encode, are told apart by what they stand for: "<unk> ü"."""
    special_tokens = {id: name for name, id in tokenizer.special_ids.items()}
    labels = [special_tokens.get(id) or visible(tokenizer.decode([id])) or "∅" for id in ids]
    unknown = iter(tokenizer.unknown_text(text))
    for i, id in enumerate(ids):
        if id == tokenizer.unk_id and (piece := next(unknown, None)):
            labels[i] += f" {visible(piece)}"
    return labels


def visible(text: str) -> str:
    """The text with a symbol for each space and line end; other characters that print nothing become their code."""
    text = text.translate(SYMBOLS)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
