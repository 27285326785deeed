"""Check a student's Transformer part by part, and say what is wrong and how.

Each part is built twice, from the student's file and from the reference, with the same weights and the parts below it
from the reference. If the outputs differ, the reference is run with every known mistake, alone and most of them in
pairs, until one has the student's outputs: that is the diagnosis. If none has, the report names the largest difference.
"""

import contextlib
import copy
from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from headway.errors import DataError, InputError, count
from headway.exercises.homework.diagnosis import (
    Trial,
    cases_with_nan,
    diagnose,
    explain_crash,
    explain_nan,
    is_close,
    largest_difference,
    positions_are_shifted,
    with_mistakes,
)
from headway.exercises.homework.mistakes import MISTAKES
from headway.exercises.homework.parts import (
    PARTS,
    REFERENCE,
    D,
    H,
    HomeworkPart,
    K,
    Outputs,
    StudentError,
)
from headway.exercises.homework.report import HomeworkReport, PartResult
from headway.exercises.homework.student_code import Timer, guarded, imported_file, patched

PART_SECONDS = 10.0  # of the student's code in one part; a right one takes milliseconds
LATE_SECONDS = 2.0  # the same, once a part has not ended
SHARED_HEADS = "shared head weights"


def check_homework(file: str | Path) -> HomeworkReport:
    """Import a student's file, which runs it, and compare every part with the reference.

    report = check_homework("homework.py")
    report.passed, report.mistakes, report["attention"].message
    """
    file = Path(file)
    if file.suffix != ".py":
        raise InputError(f"{file} is not a Python file: name one that ends in .py, such as homework.py")
    if not file.is_file():
        raise DataError(f"no file {file}: copy examples/homework/homework.py and fill in the blanks")
    results: list[PartResult] = []
    seconds = PART_SECONDS
    with imported_file(file) as module:
        for part in PARTS:
            below = part.below
            if part.symbol == "make_model":  # the student's own parts where they are right
                below = tuple(result.symbol for result in results if result.status != "right")
            result = _check_part(part, module, file, below, seconds)
            if "TimeoutError" in result.message:
                seconds = min(seconds, LATE_SECONDS)
            if part.symbol == "make_model" and below and result.status == "right":
                others = f"With the reference in place of {', '.join(below)}."
                result = replace(result, message=others)
            results.append(result)
    return HomeworkReport(str(file), tuple(results))


# ── one part ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_part(
    part: HomeworkPart, module: ModuleType, file: Path, below: tuple[str, ...], seconds: float
) -> PartResult:
    def result(status: Any, **fields: Any) -> PartResult:
        return PartResult(part.name, part.symbol, status, part.statement, **fields)

    if not callable(getattr(module, part.symbol, None)):
        hint = "keep the names of examples/homework/homework.py"
        return result("missing", message=f"{file.name} defines no {part.symbol}: {hint}")
    right = _build_reference(part)
    timer = Timer(seconds)
    try:
        with patched(module, below) as names, torch.no_grad():
            with guarded(file, timer):
                student = part.build(names)
            is_by_order = _load_weights(part, right, student)
            trial = _try_student(part, student, file, timer)
            expected = with_mistakes(part, right, ())
            _check_outputs(part, trial)
            faults = _unify_masks(expected, trial) if part.symbol == "causal_mask" else []
            difference = largest_difference(expected, trial)
            order = _right_order(part, student, expected, file, timer) if is_by_order and difference else []
    except StudentError as error:
        return result(**error.result)
    if difference is None:
        return result("wrong", message="\n".join(faults)) if faults else result("right")
    if order:
        message = f"It is right if W^Q, W^K, W^V and W^O are {', '.join(order)}, but you create them in another order."
        rule = "Weights are matched by order when names differ: keep the names of homework.py."
        return result("wrong", message=f"{message} {rule}", difference=difference.size)
    mistake_keys, lines = diagnose(part, right, trial), []
    if mistake_keys is None and not trial.errors and (nan_cases := cases_with_nan(trial)):
        lines = [explain_nan(nan_cases[0], trial.outputs[nan_cases[0]])]
        finite_trial = Trial({case: outputs for case, outputs in trial.outputs.items() if case not in nan_cases})
        mistake_keys = (
            diagnose(part, right, finite_trial, n_most=1) if largest_difference(expected, finite_trial) else None
        )
    if mistake_keys is not None or lines:
        lines = [*_describe_mistakes(mistake_keys), *lines, *faults]
        return result("wrong", mistakes=_names(mistake_keys), message="\n".join(lines), difference=difference.size)
    if part.symbol == "MultiHeadAttention" and _heads_are_equal(part, module, student, file, timer):
        message = "All heads get the same queries, keys or values: they share weights. Give each its own columns."
        return result("wrong", mistakes=(SHARED_HEADS,), message=message, difference=difference.size)
    if part.symbol == "PositionalEncoding" and positions_are_shifted(expected, trial):
        mistake = MISTAKES["positions from 1"]
        message = f"Tokens get the encoding of their neighbour. {mistake.remedy}"
        return result("wrong", mistakes=(mistake.name,), message=message, difference=difference.size)
    if trial.errors:
        crash = explain_crash(part, next(iter(trial.errors.values())))
        trial_without_crashes = Trial(trial.outputs)
        if "mistakes" not in crash and largest_difference(expected, trial_without_crashes):
            mistake_keys = diagnose(part, right, trial_without_crashes, n_most=1)
            crash |= {
                "mistakes": _names(mistake_keys),
                "message": "\n".join([crash["message"], *_describe_mistakes(mistake_keys)]),
            }
        return result(**crash)
    lines = [difference.message, *([_explain_order(part, student)] if is_by_order else []), *faults]
    return result("wrong", message="\n".join(lines), difference=difference.size)


def _names(mistake_keys: tuple[str, ...] | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(MISTAKES[key].name for key in mistake_keys or ()))


def _describe_mistakes(mistake_keys: tuple[str, ...] | None) -> list[str]:
    mistakes = [MISTAKES[key] for key in mistake_keys or ()]
    return [f"{m.finding[0].upper()}{m.finding[1:]}. {m.remedy}" for m in mistakes]


@cache
@torch.no_grad()
def _build_reference(part: HomeworkPart) -> Any:
    """The part with random weights: gains and biases too, which are 1 and 0 in a new module and would hide mistakes."""
    right = part.build(REFERENCE)
    if isinstance(right, nn.Module):
        right.eval()
        generator = torch.Generator().manual_seed(0)
        for name, parameter in right.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_gain = "norm" in name and name.endswith("weight")
            is_matrix = parameter.dim() >= 2
            parameter.copy_(noise * 1.5 * parameter.shape[-1] ** -0.5 if is_matrix else 0.3 * noise + float(is_gain))
    return right


def _try_student(part: HomeworkPart, student: Any, file: Path, timer: Timer) -> Trial:
    trial = Trial()
    for case, run in part.cases.items():
        try:
            with guarded(file, timer):
                trial.outputs[case] = run(student)
        except StudentError as error:
            if error.result["status"] == "not done yet" or timer.is_over:
                raise
            trial.errors[case] = error
    return trial


def _check_outputs(part: HomeworkPart, trial: Trial) -> None:
    """Refuse results that cannot be compared: None, other types."""
    for outputs in trial.outputs.values():
        for name, value in outputs.items():
            if value is None:
                raise StudentError(status="not done yet", message=f"{part.symbol} returns None")
            if not isinstance(value, Tensor):
                message = f"{name} is a {type(value).__name__}, not a tensor"
                raise StudentError(status="wrong", message=message)
        if part.symbol == "attention" and "weights" not in outputs:
            raise StudentError(status="wrong", message="Return two tensors: the output and the weights.")
        if part.symbol == "causal_mask" and not outputs["mask"].isfinite().all():
            message = "The mask holds −∞: it is True where a position may be attended to, and False elsewhere."
            raise StudentError(status="wrong", message=message)


def _unify_masks(expected: dict[str, Outputs], trial: Trial) -> list[str]:
    """Make masks boolean, with an axis for the batch, so that they can be compared; say where they were not."""
    faults: dict[str, str] = {}
    for case, outputs in trial.outputs.items():
        mask, right = outputs["mask"], expected[case]["mask"]
        if mask.shape == right.shape[1:]:
            shapes = f"{tuple(mask.shape)}, expected {tuple(right.shape)}"
            faults.setdefault("shape", f"With {case} it returns shape {shapes}: the first axis is that of the batch.")
            mask = mask[None]
        if mask.dtype != torch.bool:
            kind = str(mask.dtype).removeprefix("torch.")
            faults.setdefault("dtype", f"It returns {kind}, expected bool: True where a position may be attended to.")
        outputs["mask"] = mask != 0
    return list(faults.values())


# ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _load_weights(part: HomeworkPart, right: Any, student: Any) -> bool:
    """Give the student's part the weights of the reference: by name, or in order if the names differ (then True)."""
    if not isinstance(right, nn.Module):
        return False
    if not isinstance(student, nn.Module):
        message = f"{part.symbol} makes a {type(student).__name__}, not an nn.Module"
        raise StudentError(status="wrong", message=message)
    student.eval()
    _check_shared(part, student)
    ours, theirs = dict(right.named_parameters()), dict(student.named_parameters())
    if part.symbol == "MultiHeadAttention":
        _check_heads(theirs)
    is_by_name = {name: p.shape for name, p in ours.items()} == {name: p.shape for name, p in theirs.items()}
    if is_by_name:
        pairs = [(ours[name], theirs[name]) for name in ours]
    elif [p.shape for p in ours.values()] == [p.shape for p in theirs.values()]:
        pairs = list(zip(ours.values(), theirs.values(), strict=True))
    else:
        raise StudentError(status="wrong", message=_describe_parameters(ours, theirs))
    with torch.no_grad():
        for source, target in pairs:
            target.copy_(source)
    return not is_by_name


def _explain_order(part: HomeworkPart, student: nn.Module) -> str:
    ours = next(name for name, _ in _build_reference(part).named_parameters())
    theirs = next(name for name, _ in student.named_parameters())
    matched = f"weights are matched by order when names differ ({ours} with {theirs} first)"
    return f"Or its parameters are in another order: {matched}. Keep the names of homework.py."


def _right_order(
    part: HomeworkPart, student: nn.Module, expected: dict[str, Outputs], file: Path, timer: Timer
) -> list[str]:
    """The order of the four projections in which multi-head attention is right, if the names do not tell it.

    Empty if there is none. The weights are left as they were.
    """
    modules = {name: module for name, module in student.named_modules() if isinstance(module, nn.Linear)}
    names = list(modules)
    is_in_order = all(letter in name.lower() or name[-1].isdigit() for letter, name in zip("qkv", names, strict=False))
    if part.symbol != "MultiHeadAttention" or len(names) != 4 or is_in_order:
        return []
    states = [copy.deepcopy(module.state_dict()) for module in modules.values()]
    orders = list(permutations(names))
    try:
        for order in orders[1:]:
            for name, state in zip(order, states, strict=True):
                modules[name].load_state_dict(state)
            if largest_difference(expected, _try_student(part, student, file, timer)) is None:
                return list(order)
    finally:
        for module, state in zip(modules.values(), states, strict=True):
            module.load_state_dict(state)
    return []


def _check_shared(part: HomeworkPart, student: nn.Module) -> None:
    """Refuse two parameters that are one tensor: none are shared in this model."""
    names: dict[int, list[str]] = {}
    for name, parameter in student.named_parameters(remove_duplicate=False):
        names.setdefault(parameter.data_ptr(), []).append(name)
    shared = next((group for group in names.values() if len(group) > 1), None)
    if shared is None:
        return
    tensors = f"{shared[0]} and {shared[1]} are one tensor"
    if part.symbol == "clones":
        copies = "The copies are one module, so the projections of all heads, and all layers, share their weights"
        message, mistake = f"{copies}: {tensors}. Copy the module n times: copy.deepcopy(module).", SHARED_HEADS
    elif part.symbol == "MultiHeadAttention":
        message, mistake = f"The heads share weights between W^Q, W^K, W^V and W^O: {tensors}.", SHARED_HEADS
    else:
        message, mistake = f"{tensors}. Each needs weights of its own.", "shared weights"
    raise StudentError(status="wrong", mistakes=(mistake,), message=message)


def _check_heads(parameters: dict[str, nn.Parameter]) -> None:
    """Refuse projections that are too small to differ between heads, or that begin equal in all of them."""
    matrices = {name: p for name, p in parameters.items() if p.dim() >= 2}
    remedy = f"W^Q, W^K and W^V have d_model × d_model entries each: {count(K, 'column')} of its own for every head."
    small = [name for name, p in matrices.items() if K in p.shape]
    if small and sum(p.numel() for p in matrices.values()) < 4 * D * D:
        shape = tuple(matrices[small[0]].shape)
        message = f"All heads share {small[0]} of shape {shape}. {remedy}"
        raise StudentError(status="wrong", mistakes=(SHARED_HEADS,), message=message)
    is_joint = any(p.numel() >= 3 * D * D for p in matrices.values())  # W^Q, W^K and W^V in one
    if len(matrices) < 3 and not small and not is_joint:
        message = f"There are {len(matrices)} matrices, so the heads' projections share weights. {remedy}"
        raise StudentError(status="wrong", mistakes=(SHARED_HEADS,), message=message)
    for name, matrix in list(matrices.items())[:3]:
        if matrix.shape == (D, D):
            heads = matrix.detach().view(H, K, D)
            if torch.equal(heads, heads[:1].expand_as(heads)):
                message = f"All heads have the same weights in {name} from the start. {remedy}"
                raise StudentError(status="wrong", mistakes=(SHARED_HEADS,), message=message)


def _heads_are_equal(part: HomeworkPart, module: ModuleType, student: Any, file: Path, timer: Timer) -> bool:
    """Whether all heads of the student attend with the same queries, keys or values, whatever these are."""
    calls: list[tuple[Tensor, ...]] = []

    def recorded(*tensors: Any, **options: Any) -> Any:
        calls.append(tensors[:3])
        return REFERENCE["attention"](*tensors, **options)

    with patched(module, part.below), contextlib.suppress(StudentError), torch.no_grad():
        vars(module)["attention"] = recorded
        with guarded(file, timer):
            next(iter(part.cases.values()))(student)
    heads = [x for call in calls for x in call if isinstance(x, Tensor) and x.dim() == 4 and x.shape[1] == H]
    differences = [x - x[:, :, :1] for x in heads]  # between positions: biases cancel
    return any(is_close(x, x[:, :1].expand_as(x)) for x in differences)


def _describe_parameters(ours: dict[str, nn.Parameter], theirs: dict[str, nn.Parameter]) -> str:
    lines = ["Its parameters are not those of examples/homework/homework.py; keep __init__ as it is there."]
    for title, names, parameters in (
        ("Missing", [name for name in ours if name not in theirs], ours),
        ("Not expected", [name for name in theirs if name not in ours], theirs),
        ("Of another shape", [n for n in ours if n in theirs and ours[n].shape != theirs[n].shape], theirs),
    ):
        if names:
            listed = ", ".join(f"{name} {tuple(parameters[name].shape)}" for name in names[:4])
            lines.append(f"{title}: {listed}{', …' if len(names) > 4 else ''}.")
    return "\n".join(lines)
