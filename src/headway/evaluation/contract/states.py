"""States are independent: of the model, of their copies, and row by row.

States are compared by stepping them in turn. Two caches that share memory give right logits as long as each is stepped
alone, because a step overwrites what the other one wrote.
"""

from typing import Any

import torch
from torch import Tensor

from headway.evaluation.contract.probe import Probe, Violation


def _prefix(p: Probe) -> Tensor:
    return p.ids[:, : p.n_tokens - 2]


def _continued(p: Probe, state: Any, following: Tensor) -> Tensor:
    return p.steps(following.split(1, dim=1), state)[0]


def _interleaved(p: Probe, states: list[Any], following: list[Tensor]) -> list[Tensor]:
    """Step several states in turn, one token at a time: if they share memory, one overwrites the other's tokens."""
    outputs: list[list[Tensor]] = [[] for _ in states]
    for t in range(following[0].shape[1]):
        for i, tokens in enumerate(following):
            scores, states[i] = p.step(tokens[:, t : t + 1], states[i])
            outputs[i].append(scores)
    return [torch.cat(scores, dim=1) for scores in outputs]


def _prefilled(p: Probe) -> Any:
    return p.step(_prefix(p), p.start())[1]


def check_isolation(p: Probe) -> None:
    hint = (
        "Usual cause: the model keeps the state in an attribute (self.cache, self.hidden). Take it and return it, so "
        "that a model can serve several texts at once."
    )
    first, second = p.ids[:, -2:], p.other(p.ids[:, -2:])
    expected = [_continued(p, _prefilled(p), tokens) for tokens in (first, second)]
    actual = _interleaved(p, [_prefilled(p), _prefilled(p)], [first, second])
    for a, e in zip(actual, expected, strict=True):
        what = "two states stepped in turn disturb each other: the logits differ"
        p.compare(a, e, what, hint, first_position=p.n_tokens - 2)
    state = _prefilled(p)
    p.forward(p.other(p.ids))
    what = "a call of forward between two steps changes the logits"
    p.compare(_continued(p, state, first), expected[0], what, hint, first_position=p.n_tokens - 2)


def check_copy(p: Probe) -> None:
    first, second = p.ids[:, -2:], p.other(p.ids[:, -2:])
    expected = [_continued(p, _prefilled(p), tokens) for tokens in (first, second)]
    state = _prefilled(p)
    actual = _interleaved(p, [state, p.copy(state)], [first, second])
    for a, e, stepped in zip(actual, expected, ("original", "copy"), strict=True):
        other = "copy" if stepped == "original" else "original"
        p.compare(
            a,
            e,
            f"after state.copy(), steps of the {other} change the logits of the {stepped}",
            "The copy shares memory with the original: `copy` returns self, or a new object with the same tensors or "
            "lists. Clone every tensor in it, `length` too.",
            first_position=p.n_tokens - 2,
        )


def check_reorder(p: Probe) -> None:
    in_place = (
        "`reorder` works in place or shares memory: return a new state. Beam search branches from one state several "
        "times."
    )
    for rows in ([p.batch_size - 1, 0, 0, 1, 0], [1], [*reversed(p.rows)]):
        following = torch.stack([p.other(p.ids[row, -2:] + i) for i, row in enumerate(rows)])  # repeated rows diverge
        expected = _continued(p, p.step(_prefix(p)[rows], p.start(rows=rows))[1], following)
        state = _prefilled(p)
        reordered = p.reorder(state, rows)
        if torch.as_tensor(state.length).shape != p.lengths.shape:
            raise Violation(f"state.reorder({rows}) changes the state it is called on", in_place)
        p.compare(
            _continued(p, reordered, following),
            expected,
            f"the logits after state.reorder({rows}) differ from those of these rows from the start",
            "Row i of the result is row rows[i] of every tensor of the state, `length` and the source's tensors "
            "included, in memory of its own: x.index_select(batch_dimension, rows), not expand().",
            first_position=p.n_tokens - 2,
        )
        p.compare(
            _continued(p, state, p.ids[:, -2:]),
            _continued(p, _prefilled(p), p.ids[:, -2:]),
            f"after state.reorder({rows}), the original state gives other logits",
            in_place,
            first_position=p.n_tokens - 2,
        )
