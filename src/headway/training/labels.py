"""The labels of a run's examples: their weights in the loss, and notes on labels that are hard to learn or to score."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headway.errors import ConfigError, count, suggest

FEW_EXAMPLES = 5  # of a label, below which a run is noted
MAX_LABELS_NAMED = 5


def class_weights(
    setting: Literal["balanced"] | Mapping[str, float] | None, labels: Sequence[str], counts: NDArray[np.int64]
) -> list[float] | None:
    """The weight of each label in the training loss, from `train.class_weights`; None if all weigh the same.

    `counts` (C,) are the training targets with each label. "balanced" gives every label the same total weight:
    n / (C · n_c), whose mean over the n targets is 1. Labels that a table leaves out weigh 1.
    """
    if setting is None:
        return None
    if setting == "balanced":
        return (counts.sum() / (len(labels) * np.maximum(counts, 1))).tolist()
    for name in setting:
        if name not in labels:
            raise ConfigError(
                f"train.class_weights: no training example has the label {name!r}; the labels are "
                f"{', '.join(labels[:20])}." + suggest(name, labels),
                setting="train.class_weights",
            )
    return [float(setting.get(label, 1.0)) for label in labels]


def label_notes(labels: Sequence[str], train: NDArray[np.int64], valid: NDArray[np.int64]) -> list[str]:
    """Notes on labels with few training examples, or none for validation. `train` and `valid` count targets (C,)."""
    notes = []
    spellings: dict[str, list[str]] = {}
    for label in labels:
        spellings.setdefault(" ".join(label.split()).casefold(), []).append(label)
    if alike := [", ".join(map(repr, names)) for names in spellings.values() if len(names) > 1]:
        notes.append(f"labels that differ only in spaces or case are counted apart: {_listed(alike)}")
    if rare := [f"{label} ({n})" for label, n in zip(labels, train.tolist(), strict=True) if n < FEW_EXAMPLES]:
        notes.append(
            f"{count(len(rare), 'label')} with fewer than {FEW_EXAMPLES} training examples: {_listed(rare)}; add "
            f"examples, or merge such labels"
        )
    if unseen := [label for label, n in zip(labels, valid.tolist(), strict=True) if not n]:
        notes.append(
            f"{count(len(unseen), 'label')} without a validation example, so the scores say nothing about "
            f"{'it' if len(unseen) == 1 else 'them'}: {_listed(unseen)}; raise data.valid_fraction, or give "
            f"data.valid_path"
        )
    return notes


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MAX_LABELS_NAMED
    return ", ".join(names[:MAX_LABELS_NAMED]) + (f" and {more:,} more" if more > 0 else "")
