"""Properties of `step` and of what its state says about itself: `length`, `nbytes`, `capacity`."""

from typing import Any

import torch
from torch import Tensor

from headway.evaluation.contract.probe import Probe, Violation


def check_step(p: Probe) -> None:
    """One prefill, two chunks, token by token: which of them fail points to the cause."""
    half = p.n_tokens // 2
    ways = {"in one step": [p.n_tokens], "in two steps": [half, p.n_tokens - half], "token by token": [1] * p.n_tokens}
    expected = p.forward(p.ids)
    violations: dict[str, Violation] = {}
    for way, sizes in ways.items():
        try:
            scores, _ = p.steps(p.ids.split(sizes, dim=1), p.start())
            p.compare(scores, expected, f"decoding {way} differs from forward", "")
        except Violation as violation:
            violations[way] = violation
    if violations:
        first = next(iter(violations.values()))
        equal = [way for way in ways if way not in violations]
        message = first.message + (f"; equal: {', '.join(equal)}" if equal else "")
        hint = _step_hint(*(way in violations for way in ways))
        raise Violation(message, hint, row=first.row, position=first.position, difference=first.difference)


def _step_hint(fails_in_one: bool, fails_in_two: bool, fails_by_token: bool) -> str:
    if fails_in_one and fails_by_token:
        return "`step` and `forward` compute different things: compare them part by part, first for one token."
    if fails_in_one:
        return "Inside one step a token must not see later ones: apply the causal mask in `step` too."
    if fails_by_token:
        return (
            "The state does not carry over what the next step needs. Usual causes: keys and values that are not "
            "appended, a hidden state that is not returned, or positions that restart at 0 instead of state.length."
        )
    return (
        "A second step of several tokens needs a causal mask that starts at state.length: query t sees all earlier "
        "tokens and the first t + 1 new ones."
    )


def check_last(p: Probe) -> None:
    for lengths, name in ((None, "without lengths"), (p.lengths, f"with lengths {p.lengths.tolist()}")):
        every, _ = p.step(p.ids, p.start(), lengths)
        last, _ = p.step(p.ids, p.start(), lengths, last=True)
        n = torch.full_like(p.lengths, p.n_tokens) if lengths is None else lengths
        p.compare(
            last,
            every.gather(1, (n - 1)[:, None, None].expand(-1, 1, every.shape[-1])),
            f"step(last=True) {name} differs from the logits of each row's last real token",
            "last=True returns (B, 1, V), taken at position lengths − 1 of each row, not at the last column.",
        )


def check_length(p: Probe) -> None:
    state, expected = p.start(), torch.zeros_like(p.lengths)
    _compare_length(state, expected, "start()")
    half = p.n_tokens // 2
    rest = p.n_tokens - half - 1
    lengths = p.lengths.clamp(max=rest)
    for ids, n, call in (
        (p.ids[:, :half], None, f"a step of {half} tokens"),
        (p.ids[:, :1], None, "another step of 1 token"),
        (p.ids[:, :rest], lengths, f"another step with lengths {lengths.tolist()}"),
    ):
        _, state = p.step(ids, state, n)
        expected = expected + (ids.shape[1] if n is None else n)
        _compare_length(state, expected, call)
    _compare_length(p.copy(state), expected, "copy()")
    _compare_length(p.reorder(state, [1, 0, 0]), expected[[1, 0, 0]], "reorder([1, 0, 0])")


def _compare_length(state: Any, expected: Tensor, call: str) -> None:
    length = state.length
    if not isinstance(length, Tensor) or length.is_floating_point() or length.shape != expected.shape:
        kind = f"a {length.dtype} tensor of shape {tuple(length.shape)}" if isinstance(length, Tensor) else repr(length)
        raise Violation(
            f"state.length is {kind} after {call}", f"It must be an integer tensor of shape (B,) = ({len(expected)},)."
        )
    if length.tolist() != expected.tolist():
        row = next(i for i, (a, b) in enumerate(zip(length.tolist(), expected.tolist(), strict=True)) if a != b)
        raise Violation(
            f"state.length is {length.tolist()} after {call}, not {expected.tolist()}",
            "It counts the real tokens each row has consumed: add `lengths` in each step (the number of new tokens if "
            "None), and select its rows in `reorder`.",
            row=row,
        )


def check_nbytes(p: Probe) -> None:
    for state, when in ((p.start(), "start()"), (p.step(p.ids, p.start())[1], "a step")):
        if not isinstance(state.nbytes, int) or state.nbytes < 0:
            raise Violation(
                f"state.nbytes is {state.nbytes!r} after {when}",
                "It is a property, an int of at least 0: the memory of the state, such as sum(t.nbytes for t in …).",
            )


def check_capacity(p: Probe) -> None:
    tokens = p.ids.split([p.n_tokens - 1, 1], dim=1)
    expected, _ = p.steps(tokens, p.start())
    hint = (
        "`capacity` is the number of tokens the state must hold; a step beyond it raises an error, or enlarges the "
        "state. A state of fixed size may ignore it."
    )
    actual, _ = p.steps(tokens, p.start(capacity=p.n_tokens))
    p.compare(actual, expected, f"start(capacity={p.n_tokens}) changes the logits", hint)
    small = p.n_tokens // 2
    scores, state = p.step(p.ids[:, :small], p.start(capacity=small))
    outputs = [scores]
    try:
        for t in range(small, p.n_tokens):
            scores, state = p.step(p.ids[:, t : t + 1], state)
            outputs.append(scores)
    except Violation:
        pass  # a refusal: what was computed before it must be right
    actual = torch.cat(outputs, dim=1)
    p.compare(
        actual,
        expected[:, : actual.shape[1]],
        f"start(capacity={small}) gives wrong logits instead of an error after {small} tokens: they differ",
        hint,
    )
