"""headway.check_contract: does a model keep the contract of models/base.py?

    report = headway.check_contract(model)       any object with the methods of a language model
    assert report.passed, report                 in a test of your own

properties.py lists the properties; this file runs them on random inputs and reports what it found.
"""

from collections.abc import Callable, Sequence

import torch

from headway.errors import ConfigError, InputError, suggest, with_article
from headway.evaluation.contract.probe import MIN_ATOL, MIN_LENGTH, NotApplicable, Probe, Violation, kind_of, make_probe
from headway.evaluation.contract.properties import (
    OPTIONAL,
    PROPERTIES,
    ROOTS,
    Property,
    missing_parts,
    missing_state_parts,
)
from headway.evaluation.contract.report import ContractReport, PropertyResult
from headway.models.base import eval_mode

MEMBERS = "members"  # checked first: without its members, a model cannot be checked for anything else
MEMBERS_STATEMENT = "the methods and parameters of the contract are there"
MIN_BATCH_SIZE = 2


def check_contract(
    model: object,
    *,
    only: Sequence[str] | None = None,
    batch_size: int = 4,
    length: int = 12,
    atol: float | None = None,
    seed: int = 0,
    on_check: Callable[[str], None] = lambda name: None,
) -> ContractReport:
    """Check a language model, encoder-decoder or encoder of your own against the contract (docs/contract.md).

    The model need not inherit from anything. Properties are checked on random token ids, in eval mode, by comparing
    log-probabilities computed in two ways. `only` names the properties to check (`PROPERTIES` has them all). `length`
    is cut to `model.config.context`. `atol` is the largest difference allowed, by default 1e-4 or, if that is more,
    eight rounding errors of the largest logit. `on_check` is called with the name of each property before its check.

    >>> check_contract(headway.create("lstm", vocab_size=50, d_model=16)).passed  # doctest: +SKIP
    True
    """
    names = _selected(only)
    _check_sizes(batch_size, length, atol)
    kind, probe, violation = kind_of(model), None, None
    missing = missing_parts(model, kind)
    with torch.no_grad(), eval_mode(model):
        try:
            if "forward" not in missing:
                probe = make_probe(model, batch_size=batch_size, length=length, atol=atol, seed=seed)
                missing += missing_state_parts(probe) if "start" not in missing else []
        except Violation as found:
            violation = found
        results = [_members_result(missing, violation)]
        for name in names:
            if kind in PROPERTIES[name].kinds:
                on_check(name)
                usable = probe if violation is None else None
                results.append(_check_property(name, PROPERTIES[name], usable, missing, results))
            elif only is not None:
                reason = f"not a property of {with_article(kind)}"
                results.append(PropertyResult(name, "skipped", PROPERTIES[name].statement, reason))
    return ContractReport(
        model=getattr(model, "display_name", type(model).__name__),
        kind=kind,
        batch_size=batch_size,
        length=length if probe is None else probe.n_tokens,
        seed=seed,
        atol=(MIN_ATOL if atol is None else atol) if probe is None else probe.atol,
        results=tuple(results),
    )


def _selected(only: Sequence[str] | None) -> list[str]:
    if only is None:
        return list(PROPERTIES)
    for name in only:
        if name not in (MEMBERS, *PROPERTIES):
            names = f" There are: {MEMBERS}, {', '.join(PROPERTIES)}"
            raise ConfigError(f"no property named {name!r}." + suggest(name, PROPERTIES, otherwise=names))
    return [name for name in PROPERTIES if name in only]


def _check_sizes(batch_size: int, length: int, atol: float | None) -> None:
    if batch_size < MIN_BATCH_SIZE:
        raise InputError(f"batch_size={batch_size}: rows are compared with each other; use at least {MIN_BATCH_SIZE}")
    if length < MIN_LENGTH:
        raise InputError(f"length={length}: a prompt and the steps after it need at least {MIN_LENGTH} tokens")
    if atol is not None and not 0 <= atol < float("inf"):
        raise InputError(f"atol={atol}: the largest difference allowed is a number of at least 0")


def _members_result(missing: list[str], violation: Violation | None) -> PropertyResult:
    if required := [name for name in missing if name not in OPTIONAL]:
        message, hint = f"missing: {', '.join(required)}", _members_hint(required)
        return PropertyResult(MEMBERS, "failed", MEMBERS_STATEMENT, message, hint)
    if violation is not None:
        return PropertyResult(MEMBERS, "failed", MEMBERS_STATEMENT, violation.message, violation.hint)
    return PropertyResult(MEMBERS, "passed", MEMBERS_STATEMENT)


def _members_hint(missing: list[str]) -> str:
    if all(name.startswith("state.") for name in missing):
        return "A state has length (B,), nbytes, reorder(rows) and copy(); headway.nn.state.State is its protocol."
    return "Every method and parameter has its name in the contract: see headway.models.base.LanguageModel."


def _check_property(
    name: str, definition: Property, probe: Probe | None, missing: list[str], earlier: list[PropertyResult]
) -> PropertyResult:
    statement = definition.statement
    if lacking := [part for part in definition.needs if part in missing]:
        return PropertyResult(name, "skipped", statement, f"needs {', '.join(lacking)}")
    if probe is None:
        return PropertyResult(name, "skipped", statement, "the model cannot be called; see members")
    try:
        definition.check(probe)
    except NotApplicable as reason:
        return PropertyResult(name, "skipped", statement, str(reason))
    except Violation as violation:
        found = violation
    except Exception as error:
        found = Violation(f"{type(error).__name__}: {error}")
    else:
        return PropertyResult(name, "passed", statement)
    failed = [result.name for result in earlier if result.status == "failed"]
    return PropertyResult(
        name,
        "note" if definition.is_advice else "failed",
        statement,
        found.message,
        found.hint,
        row=found.row,
        position=found.position,
        difference=found.difference,
        may_follow_from=tuple(cause for cause in (*ROOTS, *definition.follows_from) if cause in failed),
    )
