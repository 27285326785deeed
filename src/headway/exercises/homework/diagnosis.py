"""Which known mistake gives the student's outputs? If none does, where is the largest difference?

The reference is run with every known mistake, alone and most of them in pairs, until one has the student's outputs.
"""

import contextlib
import re
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from headway.exercises.homework.mistakes import MISTAKES
from headway.exercises.homework.parts import REFERENCE, D, HomeworkPart, Outputs, StudentError
from headway.exercises.homework.reference import plant

ATOL = 1e-4  # float32 rounding is far below it, every known mistake above it (by test)


@dataclass
class Trial:
    """The outputs of a part by case, and what it raised instead."""

    outputs: dict[str, Outputs] = field(default_factory=dict)
    errors: dict[str, StudentError] = field(default_factory=dict)


@dataclass(frozen=True)
class _Difference:
    message: str
    size: float | None = None


def largest_difference(expected: dict[str, Outputs], trial: Trial) -> _Difference | None:
    """Where the outputs differ most from the reference; None if they are equal."""
    largest: _Difference | None = None
    for case, outputs in trial.outputs.items():
        for name, right in expected[case].items():
            value = outputs.get(name)
            if value is None:  # derived from another output, which has the wrong shape
                continue
            if value.shape != right.shape:
                shapes = f"{tuple(value.shape)}, expected {tuple(right.shape)}"
                return _Difference(f"With {case}, {name} has shape {shapes}.")
            if is_close(value, right):
                continue
            gap = (value.double() - right.double()).abs().nan_to_num(torch.inf)
            index = tuple(int(i) for i in torch.unravel_index(gap.argmax(), gap.shape))
            size = float(gap.max())
            if largest is None or size > (largest.size or 0.0):
                entry = f"{name}[{', '.join(map(str, index))}]"
                numbers = f"is {_number(value[index])}, expected {_number(right[index])}"
                n_wrong = int((gap > ATOL).sum())
                message = f"With {case}, {entry} {numbers}; {n_wrong} of {gap.numel()} numbers differ."
                largest = _Difference(message, size)
    if largest is None and trial.errors:
        return _Difference("")
    return largest


def _number(value: Tensor) -> str:
    return str(value.item()) if value.dtype == torch.bool else f"{value.item():.4g}"


def is_close(left: Tensor, right: Tensor, *, equal_nan: bool = False) -> bool:
    same_shape = left.shape == right.shape
    return same_shape and torch.allclose(left.double(), right.double(), rtol=ATOL, atol=ATOL, equal_nan=equal_nan)


def diagnose(part: HomeworkPart, right: Any, trial: Trial, n_most: int = 2) -> tuple[str, ...] | None:
    """The known mistakes with which the reference has the student's outputs: one, or two at once."""
    n_most = 1 if part.symbol == "make_model" else n_most
    for n in range(1, n_most + 1):
        for variant in ((), *((key,) for key in part.variants)):
            candidates = list(combinations(part.mistakes + (part.rare if n == 1 else ()), n))
            outputs = [with_mistakes(part, right, (*mistakes, *variant), trial) for mistakes in candidates]
            # Weights that are masked late may hold anything where nothing should be seen: then the visible ones decide.
            for compared in (None, ("output", "mask", "log-probabilities"), ("visible weights",)):
                for mistakes, wrong in zip(candidates, outputs, strict=True):
                    if has_outputs(trial, wrong, compared):
                        return mistakes
    return None


@torch.no_grad()
def with_mistakes(
    part: HomeworkPart, right: Any, mistakes: tuple[str, ...], trial: Trial | None = None
) -> dict[str, Outputs]:
    """The outputs of the reference with these mistakes. A case is left out where shapes then do not fit.

    With a trial, only its cases are run, and none are returned once one differs from it.
    """
    outputs = {}
    with plant(*mistakes):
        for case in part.cases if trial is None else (*trial.outputs, *trial.errors):
            with contextlib.suppress(RuntimeError):
                outputs[case] = part.cases[case](right)
            if trial is not None and case in trial.outputs and not _agree(trial.outputs[case], outputs.get(case, {})):
                return {}
    return outputs


def _agree(student: Outputs, wrong: Outputs) -> bool:
    """Whether at least one output is the same."""
    return any(name in student and is_close(student[name], value, equal_nan=True) for name, value in wrong.items())


def has_outputs(trial: Trial, wrong: dict[str, Outputs], compared: tuple[str, ...] | None) -> bool:
    """Whether the student's code crashes where the wrong reference does, and has its outputs elsewhere.

    NaN equals NaN, since some mistakes give it; but where there are any, numbers beside them have to agree too.
    """
    if wrong.keys() != trial.outputs.keys():
        return False
    triples = [
        (case, trial.outputs[case].get(name), value)
        for case, outputs in wrong.items()
        for name, value in outputs.items()
        if compared is None or name in compared
    ]
    if not triples:
        return False
    if not all(student is not None and is_close(student, value, equal_nan=True) for _, student, value in triples):
        return False
    with_nan = {case for case, _, value in triples if value.isnan().any()}
    beside = [value for case, _, value in triples if case in with_nan]
    return not with_nan or any((value.isfinite() & (value != 0)).any() for value in beside)


def cases_with_nan(trial: Trial) -> list[str]:
    return [case for case, outputs in trial.outputs.items() if any(value.isnan().any() for value in outputs.values())]


def explain_nan(case: str, outputs: Outputs) -> str:
    """Why the outputs are NaN: nearly always the mask."""
    what = "weights are" if "weights" in outputs and outputs["weights"].isnan().any() else "output is"
    if "mask" not in case or case.startswith("no "):
        return f"With {case}, your {what} NaN: look for 0 / 0, ∞ − ∞ and 0 times ∞."
    cause = "0 times −∞ is NaN, and so is the softmax of a row that is −∞ throughout"
    return (
        f"With {case}, your {what} NaN: {cause}. Use masked_fill(~mask, −∞), which writes −∞ where nothing is visible."
    )


def positions_are_shifted(expected: dict[str, Outputs], trial: Trial) -> bool:
    """Whether the tokens of the last case have the encoding of their neighbour, but for the first or the last one."""
    case = list(expected)[-1]
    right, student = expected[case]["output"], trial.outputs.get(case, {}).get("output")
    if student is None or student.shape != right.shape:
        return False
    encoding = REFERENCE["PositionalEncoding"](D)(torch.zeros_like(right))
    student_encoding = student - right + encoding  # x cancels
    is_late = is_close(student_encoding[:, 1:], encoding[:, :-1])
    return is_late or is_close(student_encoding[:, :-1], encoding[:, 1:])


def explain_crash(part: HomeworkPart, error: StudentError) -> dict[str, Any]:
    """The crash, and the mistake behind it where the sizes tell."""
    sizes = re.search(r"\((\d+)\) must match .* \((\d+)\)", error.result["message"])
    if part.symbol == "PositionalEncoding" and sizes and abs(int(sizes[1]) - int(sizes[2])) == 1:
        mistake = MISTAKES["positions from 1"]
        return {**error.result, "mistakes": (mistake.name,), "message": f"{error.result['message']}\n{mistake.remedy}"}
    return dict(error.result)
