"""The properties of the model contract (models/base.py): `PROPERTIES`, and the members a model needs.

Each check compares two ways to compute the same scores that differ in one respect, so that a defect violates the
property named after it. Where that is impossible, `follows_from` names the properties to repair first: a model whose
rows depend on each other, for example, cannot pass the check of `reorder`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.evaluation.contract.forward import (
    check_batch,
    check_deterministic,
    check_inputs,
    check_leak,
    check_sensitivity,
    check_shape,
    check_source,
)
from headway.evaluation.contract.padding import check_padding, check_padding_ids
from headway.evaluation.contract.probe import ModelKind, Probe, accepts, forward_function
from headway.evaluation.contract.states import check_copy, check_isolation, check_reorder
from headway.evaluation.contract.steps import check_capacity, check_last, check_length, check_nbytes, check_step
from headway.evaluation.contract.weights import check_gradients, check_save


@dataclass(frozen=True)
class Property:
    """One property of the contract."""

    statement: str
    check: Callable[[Probe], None]
    needs: tuple[str, ...] = ()  # parts without which it cannot be checked, as in `missing_parts`
    follows_from: tuple[str, ...] = ()  # properties whose violation may violate this one too
    kinds: tuple[ModelKind, ...] = ("language model", "encoder-decoder")
    is_advice: bool = False  # a violation is a note, not a failure


ALL: tuple[ModelKind, ...] = ("language model", "encoder-decoder", "encoder")
STEPS = ("start", "step")
LENGTHS = ("forward(lengths=)", "forward(mask=)")
ROOTS = ("shape", "deterministic")  # a violation of these may violate every other property

# In the order in which they are checked: causes before consequences.
PROPERTIES: dict[str, Property] = {
    "shape": Property("logits are finite numbers (B, T, V)", check_shape, kinds=ALL),
    "deterministic": Property("in eval mode, the same input gives the same output", check_deterministic, kinds=ALL),
    "inputs": Property(
        "ids, lengths and sources are not modified", check_inputs, (*LENGTHS, *STEPS, "step(lengths=)"), kinds=ALL
    ),
    "leak": Property("a future token never changes a past logit", check_leak),
    "batch": Property("a batch gives the same as its rows one by one", check_batch, kinds=ALL),
    "source": Property(
        "padding of a source and the sources of other rows change nothing",
        check_source,
        ("forward(source=)", "forward(source_mask=)"),
        ("batch",),
        kinds=("encoder-decoder",),
    ),
    "length": Property(
        "state.length counts the real tokens of each row",
        check_length,
        (*STEPS, "step(lengths=)", "state.length", "state.copy", "state.reorder"),
    ),
    "nbytes": Property("state.nbytes is a number of bytes", check_nbytes, (*STEPS, "state.nbytes")),
    "isolation": Property("the model holds no state: several can be stepped in turn", check_isolation, STEPS),
    "padding": Property(
        "padding changes nothing, in forward and in step",
        check_padding,
        (*LENGTHS, *STEPS, "step(lengths=)"),
        ("leak", "batch", "source", "length", "isolation"),
        kinds=ALL,
    ),
    "step": Property(
        "step by step gives the same as forward",
        check_step,
        STEPS,
        ("leak", "length", "isolation", "padding"),
    ),
    "last": Property(
        "step(last=True) gives each row's last real logits",
        check_last,
        (*STEPS, "step(lengths=)", "step(last=)"),
        ("isolation",),
    ),
    "copy": Property(
        "state.copy() is independent of the original",
        check_copy,
        (*STEPS, "state.copy"),
        ("length", "isolation"),
    ),
    "reorder": Property(
        "state.reorder(rows) selects, repeats and drops rows",
        check_reorder,
        (*STEPS, "state.reorder"),
        ("batch", "source", "length", "isolation"),
    ),
    "capacity": Property(
        "a state holds `capacity` tokens, and never gives wrong logits beyond",
        check_capacity,
        (*STEPS, "start(capacity=)"),
        ("leak", "length", "isolation", "step"),
    ),
    "save": Property("a saved model loads with the same logits", check_save, kinds=ALL),
    "padding-ids": Property(
        "padding may hold ids outside the vocabulary",
        check_padding_ids,
        LENGTHS,
        ("padding",),
        kinds=ALL,
        is_advice=True,
    ),
    "gradients": Property("gradients reach every parameter", check_gradients, STEPS, kinds=ALL, is_advice=True),
    "sensitivity": Property("the logits depend on the tokens", check_sensitivity, kinds=ALL, is_advice=True),
}

OPTIONAL = ("step(last=)",)  # `models.language_model` fills it in
STATE_MEMBERS = ("length", "nbytes", "reorder", "copy")


def missing_parts(model: Any, kind: ModelKind) -> list[str]:
    """The methods and parameters of the contract that a model lacks, such as "start" or "step(last=)"."""
    functions = {"forward": forward_function(model)}
    parameters = {"forward": ["mask"] if kind == "encoder" else ["lengths"]}
    if kind == "encoder-decoder":
        parameters["forward"] += ["source", "source_mask"]
    if kind != "encoder":
        functions |= {name: getattr(model, name, None) for name in ("start", "step")}
        start = ["source", "source_mask"] if kind == "encoder-decoder" else ["batch_size"]
        parameters |= {"start": [*start, "capacity"], "step": ["lengths", "last"]}
    missing = []
    for name, function in functions.items():
        if not callable(function):
            missing.append(name)
        else:
            missing += [f"{name}({p}=)" for p in parameters[name] if not accepts(function, p)]
    return missing


def missing_state_parts(probe: Probe) -> list[str]:
    """The members of the contract that the state of a model lacks, such as "state.copy"."""
    if probe.kind == "encoder":
        return []
    state = probe.start()
    return [f"state.{name}" for name in STATE_MEMBERS if not hasattr(state, name)]
