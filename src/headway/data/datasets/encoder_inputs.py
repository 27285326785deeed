"""What the datasets of encoder tasks share: texts as padded rows of ids, and the ids of label names."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headway.data.padding import RaggedArray
from headway.data.sampler import Indices
from headway.errors import ConfigError, DataError, suggest
from headway.tokenizers import Tokenizer

QUOTED_CHARS = 40  # of an example, in errors
MAX_LISTED_LABELS = 20
MANY_LABELS = 100  # more may be a column of numbers or ids


class PaddedTexts:
    """Base of the datasets: texts as framed rows of ids."""

    def __init__(self, rows: Iterable[Sequence[int]], tokenizer: Tokenizer):
        self.ids, self.tokenizer = RaggedArray(rows), tokenizer
        if not self.ids.lengths.all():
            raise DataError(
                f"example {int(self.ids.lengths.argmin()) + 1} has no tokens: its text is empty, or the tokenizer "
                f"knows none of it; leave it out, or use a tokenizer that adds special tokens, such as wordpiece"
            )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        return self.ids.lengths

    def padded(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Ids and mask, (B, T) each."""
        return self.ids.padded(indices, self.tokenizer.pad_id)


def label_names(observed: Iterable[str], names: Sequence[str] | None) -> list[str]:
    """`names` in their order, or the observed names sorted, with integers in numerical order."""

    def sort_key(name: str) -> tuple[bool, int, str]:
        return not name.isdecimal(), len(name) if name.isdecimal() else 0, name

    ordered = sorted(set(observed), key=sort_key) if names is None else list(names)
    if len(set(ordered)) != len(ordered):
        raise ConfigError(f"a label name occurs twice, list each once: {ordered}")
    return ordered


def label_id(name: str, names: list[str], index: int, text: str) -> int:
    """The id of a label. The error quotes the example, by its number and its first words."""
    try:
        return names.index(name)
    except ValueError:
        start = text if len(text) <= QUOTED_CHARS else f"{text[:QUOTED_CHARS]}…"
        listed = ", ".join(names[:MAX_LISTED_LABELS])
        listed += f" and {len(names) - MAX_LISTED_LABELS:,} more" if len(names) > MAX_LISTED_LABELS else ""
        way_out = " Correct it, leave the example out, or train on such examples too."
        if len(names) > MANY_LABELS:
            way_out += f" With {len(names):,} labels: does the column hold labels, and not numbers or ids?"
        raise DataError(
            f"example {index + 1}, {start!r}: label {name!r} is not one of {listed}.{suggest(name, names)}{way_out}"
        ) from None
