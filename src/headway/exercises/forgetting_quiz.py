"""Quiz 13: an RNN that forgets. Choose its output layer, and see where it fails.

    h_t = σ(W_hh h_{t−1} + W_hx x_t + b_h)      W_hh = ½ I, W_hx = I, b_h = 0, h_0 = 0;  x_t is a pair of bits
    y_t = sign(W_yh h_t + b_y)                  should be +1 once both positions have seen a 1, and −1 before

The trace of a 1, the difference between having seen it and not, shrinks to ½ σ′ ≤ ⅛ of itself with every step.
"""

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor, nn

from headway.exercises.quiz import Quiz, RuleAnswer, Solution, Verdict
from headway.nn.recurrent import Recurrent

PAIRS = ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0))
MAX_LENGTH = 5  # 4⁵ = 1,024 sequences
EXAMPLE = (1.0, 1.0, -1.36)  # as good as any: the next sequences of two that fail are those that must


def hidden_states(x: Tensor, start: Tensor | None = None) -> Tensor:
    """The states after each pair of bits: x (B, T, 2) → (B, T, 2)."""
    states, _ = _cell(x.dtype).steps(x, (torch.zeros_like(x[:, 0]) if start is None else start,))
    return states


@torch.no_grad()
def _cell(dtype: torch.dtype) -> Recurrent:
    """h = σ(½ h + x): W_hh = ½ I, W_hx = I, b_h = 0."""
    cell = Recurrent("sigmoid", 2, 2).to(dtype).requires_grad_(False)
    nn.init.eye_(cell.weight_x)
    cell.weight_h.copy_(torch.eye(2) / 2)
    nn.init.zeros_(cell.bias_x)
    nn.init.zeros_(cell.bias_h)
    return cell


def sequences(length: int) -> Tensor:
    """All sequences of pairs of bits of this length: (4^length, length, 2)."""
    return torch.tensor(list(product(PAIRS, repeat=length)), dtype=torch.float64)


def both_seen(x: Tensor) -> Tensor:
    """Whether each position has seen a 1 by the end: (B, T, 2) → (B,)."""
    return (x.amax(dim=1) > 0).all(dim=-1)


def trace_of_a_one(n_steps: int, *, settled: bool = True) -> list[float]:
    """How much larger h is if the position saw a 1, after 0, 1, 2, … more steps without one.

    `settled`: the 1 comes after many zeros, when h has reached its fixed point; else it is the first input.
    """
    zeros = torch.zeros(1, 60 if settled else 1, 2, dtype=torch.float64)
    start = hidden_states(zeros)[:, -1] if settled else torch.zeros(1, 2, dtype=torch.float64)
    without = torch.zeros(1, n_steps, 2, dtype=torch.float64)
    with_one = without.clone()
    with_one[:, 0, 0] = 1.0
    difference = hidden_states(with_one, start) - hidden_states(without, start)
    return [float(x) for x in difference[0, :, 0]]


def score(weights: Sequence[float], states: Tensor) -> Tensor:
    """W_yh h + b_y for states (…, 2)."""
    return states @ torch.tensor(weights[:2], dtype=states.dtype) + weights[2]


def first_failure(weights: Sequence[float]) -> tuple[Tensor, Tensor] | None:
    """The shortest sequence (T, 2) that the output layer gets wrong, and its states; None if there is none."""
    for length in range(1, MAX_LENGTH + 1):
        x = sequences(length)
        states = hidden_states(x)
        wrong = (score(weights, states[:, -1]) > 0) != both_seen(x)
        if wrong.any():
            index = int(wrong.nonzero()[0, 0])
            return x[index], states[index]
    return None


def fraction_right(weights: Sequence[float], length: int) -> float:
    x = sequences(length)
    return float(((score(weights, hidden_states(x)[:, -1]) > 0) == both_seen(x)).double().mean())


def judge(weights: Sequence[float]) -> Verdict:
    """Right if it answers every first pair; then the shortest sequence that it gets wrong shows what it forgets."""
    failure = first_failure(weights)
    if failure is None:
        return Verdict(True, f"It is right for all sequences of up to {MAX_LENGTH} pairs.")
    x, states = failure
    lines = [
        f"  {fraction_right(weights, n):6.1%} of the {4**n:>5,} sequences of {n} are right"
        for n in range(1, MAX_LENGTH + 1)
    ]
    trace = _describe_failure(weights, x, states)
    if len(x) > 1:
        return Verdict(True, "\n".join(["It is right for every first pair.", *trace, *lines]))
    first = {pair: float(h.sum()) for pair, h in zip(PAIRS, hidden_states(sequences(1))[:, -1], strict=True)}
    hint = (
        f"With W_yh = [1, 1] the sum h₁ + h₂ is {first[0.0, 0.0]:.3f} after (0,0), {first[1.0, 0.0]:.3f} after "
        "(1,0) or (0,1), and "
        f"{first[1.0, 1.0]:.3f} after (1,1): −b_y must lie between the last two."
    )
    return Verdict(False, "\n".join([*trace, hint]))


def _describe_failure(weights: Sequence[float], x: Tensor, states: Tensor) -> list[str]:
    pairs = " ".join(f"({int(a)},{int(b)})" for a, b in x)
    values = score(weights, states)
    is_seen = bool(both_seen(x[None])[0])
    verdict = "both have seen a 1, it says no" if is_seen else "one has not seen a 1, it says yes"
    rows = [
        f"  ({int(a)},{int(b)})  h = {h[0]:.3f}, {h[1]:.3f}  W_yh h + b_y = {float(value):+.3f}"
        for (a, b), h, value in zip(x.tolist(), states.tolist(), values, strict=True)
    ]
    return [f"It first fails on {pairs}: {verdict}.", *rows]


def solve_forgetting() -> Solution:
    settled, fresh = trace_of_a_one(4), trace_of_a_one(4, settled=False)
    x = torch.tensor([[(1, 1), (0, 0)], [(1, 0), (1, 0)], [(0, 1), (0, 1)]], dtype=torch.float64)
    states = hidden_states(x)
    earlier, repeated, at_once = float(states[0, 1, 0]), float(states[1:, 1].mean()), float(states[0, 0, 0])
    example = judge(EXAMPLE)
    explanation = (
        f"For example W_yh = [1, 1] and b_y = {EXAMPLE[2]:g}:\n{example.feedback}\n\n"
        "No choice gets all sequences of two right. On the diagonal h₁ = h₂ the score is a straight line, and "
        "it would have "
        "to change its sign twice:\n"
        f"  {earlier:.3f}  +   after (1,1) (0,0): both have seen a 1\n"
        f"  {repeated:.3f}  −   the mean of (1,0) (1,0) and (0,1) (0,1): in each, one has not\n"
        f"  {at_once:.3f}  +   after (1,1)\n\n"
        "The trace of a 1, h with it minus h without, shrinks to about an eighth with every step without one: to "
        "½ σ′ of itself, and σ′ is at most ¼.\n"
        f"  after 0, 1, 2, 3 steps: {_trace(settled)}   if h had settled before\n"
        f"                          {_trace(fresh)}   if the 1 is the first input\n"
        f"Each is about {settled[1] / settled[0]:.3f} of the one before: gates (LSTM, GRU) exist to keep it."
    )  # fmt: skip
    return Solution(RuleAnswer(3, judge, EXAMPLE), explanation)


def _trace(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.3f}" if value > 0.01 else f"{value:.4f}" for value in values)


FORGETTING = Quiz(
    13,
    "forgetting",
    "an RNN that forgets",
    "C",
    "h_t = σ(½ h_{t−1} + x_t) with pairs of bits x_t and h_0 = 0. Choose W_yh (two numbers) and b_y so that "
    "y_t = sign(W_yh h_t + b_y) is +1 if both positions have ever seen a 1, and −1 if not. Right is a choice that "
    "answers every first pair; then see where it fails.",
    "three numbers: W_yh and b_y",
    solve_forgetting,
)
