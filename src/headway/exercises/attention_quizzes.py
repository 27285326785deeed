"""Quizzes 1 to 4 and 7: attention weights, the axis of the softmax, the causal mask, order, and why to mask."""

import math

import torch
from torch import Tensor

from headway.config import model_config
from headway.costs import count_pass
from headway.exercises.quiz import Choice, ChoiceAnswer, NumbersAnswer, Quiz, Solution, list_choices
from headway.nn import AttentionContext, SelfAttention, dot_product_attention, masks
from headway.nn.positions import sinusoid

# ── 1: scaled scores ──────────────────────────────────────────────────────────────────────────────────────────────

SCORES, D_KEY = (112.0, 96.0), 64


def attention_weights(scores: tuple[float, ...], d_key: int) -> list[float]:
    """The weights that `dot_product_attention` gives to keys with these dot products q·k."""
    q, k = torch.zeros(1, 1, 1, d_key), torch.zeros(1, 1, len(scores), d_key)
    q[..., 0], k[0, 0, :, 0] = 1.0, torch.tensor(scores)
    _, weights = dot_product_attention(q.double(), k.double(), k.double())
    return [float(weight) for weight in weights.flatten()]


def _softmax(scores: list[float]) -> list[float]:
    return [float(p) for p in torch.tensor(scores, dtype=torch.float64).softmax(-1)]


def solve_scaled_scores() -> Solution:
    weights = attention_weights(SCORES, D_KEY)
    scaled = [score / math.sqrt(D_KEY) for score in SCORES]
    total = sum(SCORES)
    wrong = [
        (weights[::-1], "The order is that of the scores: the larger score gets the larger weight."),
        (_softmax(list(SCORES)), "You forgot the division by √d_k: softmax of 112 and 96 saturates. Divide by "
                                 "√64 = 8."),
        (_softmax([s / D_KEY for s in SCORES]), "You divided by d_k = 64 instead of √d_k = 8."),
        (scaled, "These are the scaled scores. Now take their softmax: e^14 / (e^14 + e^12)."),
        ([s / total for s in SCORES], "You divided by the sum of the scores. The softmax divides e^score by the "
                                      "sum of e^score."),
    ]  # fmt: skip
    method = "Divide both scores by √d_k = 8, then take the softmax: e^x / (e^x + e^y)."
    answer = NumbersAnswer(tuple(weights), wrong=wrong, method=method)
    explanation = (
        f"√{D_KEY} = {math.sqrt(D_KEY):g}, so the scores become {scaled[0]:g} and {scaled[1]:g}. Their softmax is\n"
        f"  e^{scaled[0]:g} / (e^{scaled[0]:g} + e^{scaled[1]:g}) = {weights[0]:.4f}   and   {weights[1]:.4f},\n"
        f"so the output is {weights[0]:.2f} v₁ + {weights[1]:.2f} v₂. Only the difference of the scores matters: "
        f"1 / (1 + e^−{scaled[0] - scaled[1]:g}) = {1 / (1 + math.exp(scaled[1] - scaled[0])):.4f}. "
        f"Without the scale the weights would be {_softmax(list(SCORES))[0]:.7f} and {_softmax(list(SCORES))[1]:.1e}."
    )
    return Solution(answer, explanation)


SCALED_SCORES = Quiz(
    1,
    "scaled-scores",
    "scaled dot-product attention",
    "E",
    "A query has the dot products 112 and 96 with two keys, and d_k = 64.\n"
    "What are the attention weights of the two values?",
    "two numbers, such as 0.5,0.5",
    solve_scaled_scores,
)

# ── 2: the axis of the softmax ────────────────────────────────────────────────────────────────────────────────────

SOFTMAX_CHOICES = (
    Choice("over each row: the keys of one query", "rows"),
    Choice(
        "over each column: the queries of one key",
        "columns",
        "Softmax over columns makes the weights that one key gets from all queries sum to 1. But the output of a query "
        "is a mean of values: its own weights, a row, must sum to 1.",
    ),
    Choice(
        "over all entries of the matrix",
        "all",
        "Then the weights of one query would sum to less than 1, and shrink as the text grows.",
    ),
)


def solve_softmax_axis() -> Solution:
    q, k, v = _random_qkv()
    _, weights = dot_product_attention(q, k, v)
    rows, columns = weights[0, 0].sum(dim=1), weights[0, 0].sum(dim=0)
    sums_to_one = [_is_one(rows), _is_one(columns), _is_one(weights.sum())]
    answer = ChoiceAnswer(SOFTMAX_CHOICES, frozenset(i for i, holds in enumerate(sums_to_one) if holds))
    explanation = (
        "Row t of S holds the scores of query t with every key. Four random tokens, weights as Headway computes them:\n"
        f"{_matrix(weights[0, 0])}\n"
        f"  sums of the rows:     {_numbers(rows)}\n"
        f"  sums of the columns:  {_numbers(columns)}\n"
        "Each row sums to 1, so each output is a weighted mean of the values."
    )
    return Solution(answer, explanation)


def _random_qkv() -> tuple[Tensor, ...]:
    """Queries, keys and values of four tokens, the same ones always."""
    return torch.randn(3, 1, 1, 4, 8, generator=torch.Generator().manual_seed(0)).unbind()


def _is_one(x: Tensor) -> bool:
    return bool(torch.allclose(x, torch.ones_like(x)))


def _numbers(x: Tensor) -> str:
    return "  ".join(f"{float(value):.2f}" for value in x)


def _matrix(x: Tensor) -> str:
    return "\n".join(f"  {_numbers(row)}" for row in x)


SOFTMAX_AXIS = Quiz(
    2,
    "softmax-axis",
    "attention as matrices",
    "C",
    "S = Q Kᵀ / √d_k is a 4 × 4 matrix for four tokens, A = softmax(S) and X' = A V.\n"
    f"Over what does the softmax run?\n{list_choices(SOFTMAX_CHOICES)}",
    "a letter",
    solve_softmax_axis,
)

# ── 3: the causal mask ────────────────────────────────────────────────────────────────────────────────────────────

N_MASKED = 4
MASK_RULES = (  # where each of the three matrices is 0 and not −∞
    lambda t, s: s >= t,
    lambda t, s: s <= t,
    lambda t, s: s < t,
)
MASK_CHOICES = (
    Choice(
        "the first matrix",
        "first",
        "It lets token t attend to itself and to what follows: the future, not the past. Row 1 should see "
        "column 1 only.",
    ),
    Choice(
        "the second matrix",
        "second",
        "It lets token t attend to 1 … t, itself and what came before.",
        aliases=("lower",),
    ),
    Choice(
        "the third matrix",
        "third",
        "It hides each token from itself, and row 1 is −∞ throughout: a softmax of that is 0/0. The diagonal is "
        "visible.",
    ),
)


def _mask_rows(rule_index: int) -> list[str]:
    rule = MASK_RULES[rule_index]
    return [" ".join(" 0" if rule(t, s) else "−∞" for s in range(N_MASKED)) for t in range(N_MASKED)]


def _three_matrices() -> str:
    rows = zip(*(_mask_rows(i) for i in range(3)), strict=True)
    return "\n".join("  " + "      ".join(row) for row in rows)


def solve_causal_mask() -> Solution:
    visible = masks.causal(N_MASKED)
    right = frozenset(
        i
        for i, rule in enumerate(MASK_RULES)
        if all(bool(visible[t, s]) == rule(t, s) for t in range(N_MASKED) for s in range(N_MASKED))
    )
    weights = torch.zeros(N_MASKED, N_MASKED).masked_fill(~visible, -torch.inf).softmax(-1)
    explanation = (
        "The mask is added to the scores before the softmax: + 0 changes nothing, and e^−∞ = 0. Token t may attend to "
        "tokens 1 … t: zeros on and below the diagonal, −∞ above. With equal scores the weights are then\n"
        f"{_matrix(weights)}\n"
        "Multiplying scores by ones and zeros would not do: a score of 0 is not hidden, it gets e⁰ = 1."
    )
    return Solution(ChoiceAnswer(MASK_CHOICES, right), explanation)


CAUSAL_MASK = Quiz(
    3,
    "causal-mask",
    "masked attention",
    "C",
    "Which matrix, added to the scores S (rows: queries, columns: keys), makes attention causal?\n\n"
    f"{_three_matrices()}\n{list_choices(MASK_CHOICES)}",
    "a letter",
    solve_causal_mask,
)

# ── 4: order ──────────────────────────────────────────────────────────────────────────────────────────────────────

TOKENS = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 2.0), (0.0, 0.0, 1.0))
WEIGHTS = (0.1, 0.2, 0.6, 0.1)
SWAP = (0, 2, 1, 3)  # x₂ and x₃ exchanged
ENTRIES_EXCHANGED = "You exchanged two entries of x₄'. The tokens change places, not the entries of each token."


def weighted_sum(weights: list[float], values: Tensor) -> list[float]:
    """Attention with exactly these weights: the score of each key is the logarithm of its weight. values (S, D)."""
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    k = torch.tensor(weights, dtype=torch.float64).log()[None, None, :, None]
    y, _ = dot_product_attention(q, k, values.double()[None, None])
    return [float(x) for x in y.flatten()]


def solve_swap() -> Solution:
    x, weights = torch.tensor(TOKENS), list(WEIGHTS)
    swapped_weights, swapped_x = [weights[i] for i in SWAP], x[list(SWAP)]
    before, after = weighted_sum(weights, x), weighted_sum(swapped_weights, swapped_x)
    stayed, exchanged = weighted_sum(weights, swapped_x), [before[i] for i in SWAP if i < len(before)]
    positions = sinusoid(torch.arange(len(x)), x.shape[1])
    with_positions = [
        weighted_sum(weights, x + positions),
        weighted_sum(swapped_weights, swapped_x + positions),
    ]
    wrong = [
        ((*before, *stayed), "You kept the weights in their places. A weight comes from the scores of two "
                             "tokens, so it "
                             "travels with its token: after the swap the weights are 0.1, 0.6, 0.2, 0.1."),
        ((*before, *[float(s) for s in swapped_x.sum(0)]), "The second is the sum without the weights."),
        (tuple(stayed), "You kept the weights in their places: after the swap they are 0.1, 0.6, 0.2, 0.1."),
        ((*before, *exchanged), ENTRIES_EXCHANGED),
        (exchanged, ENTRIES_EXCHANGED),
    ]  # fmt: skip
    both_right = [(tuple(before), "The same before and after.")] if before == after else []
    answer = NumbersAnswer(
        (*before, *after),
        digits=1,
        wrong=wrong,
        also_right=both_right,
        method="Multiply each x_j by its weight and add: 0.1 x₁ + 0.2 x₂ + 0.6 x₃ + 0.1 x₄. Then move the weights with "
        "their tokens.",
    )
    explanation = (
        f"x₄' = 0.1 x₁ + 0.2 x₂ + 0.6 x₃ + 0.1 x₄ = [{_vector(before)}]. After the swap the terms come in "
        "another order, "
        f"and the sum is [{_vector(after)}] again: attention sees a set, not a sequence. (Had the weights stayed in "
        f"their places, it would be [{_vector(stayed)}].) With sinusoidal positions added to the tokens, and the same "
        f"weights, x₄' is [{_vector(with_positions[0], 3)}] before and [{_vector(with_positions[1], 3)}] after: "
        "now the "
        "order matters."
    )
    return Solution(answer, explanation)


def _vector(numbers: list[float], digits: int = 1) -> str:
    return ", ".join(f"{number:.{digits}f}" for number in numbers)


SWAPPED_TOKENS = Quiz(
    4,
    "swap",
    "attention does not see order",
    "C",
    "x₁ = [1,0,0], x₂ = [0,1,0], x₃ = [0,0,2], x₄ = [0,0,1], W_v is the identity, and x₄ attends to them with weights "
    "0.1, 0.2, 0.6, 0.1. What is x₄'? Then x₂ and x₃ change places. What is x₄' now?",
    "six numbers: x₄' before and after",
    solve_swap,
)

# ── 7: why mask ───────────────────────────────────────────────────────────────────────────────────────────────────

WHY_CHOICES = (
    Choice(
        "to make the weights of each row sum to 1",
        "sum",
        "The softmax does that, with or without a mask.",
    ),
    Choice(
        "to save half of the operations",
        "faster",
        "The definition computes all n² scores and then hides half of them. (Some kernels skip them; that is a bonus.)",
    ),
    Choice("to make each prediction use only past and present tokens", "past", aliases=("only past", "future")),
    Choice(
        "to hide tokens at random, as dropout does",
        "random",
        "The causal mask is the same in every step, for every text.",
    ),
)


def future_influence(*, causal: bool) -> float:
    """The largest change of the outputs of tokens 1 … 5 when token 6 changes, in a random attention layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer, x = SelfAttention(16, 2), torch.randn(1, 6, 16)
    changed = x.clone()
    changed[0, -1] += 1.0
    with torch.no_grad():
        difference = layer(changed, AttentionContext(causal=causal)) - layer(x, AttentionContext(causal=causal))
    return float(difference[0, :-1].abs().max())


def solve_why_mask() -> Solution:
    leak, masked_leak = future_influence(causal=False), future_influence(causal=True)
    q, k, v = _random_qkv()
    plain, masked = (dot_product_attention(q, k, v, causal=causal)[1].sum(-1) for causal in (False, True))
    n_scores = {name: _score_flops(name) for name in ("gpt-tiny", "bert-tiny")}
    holds = [
        _is_one(masked) and not _is_one(plain),
        n_scores["gpt-tiny"] < n_scores["bert-tiny"],
        masked_leak == 0 < leak,
        not torch.equal(masks.causal(6), masks.causal(6)),
    ]
    explanation = (
        "Measured in a random attention layer: when the last of six tokens changes, the outputs of the five before it "
        f"change by up to {leak:.2f} without the mask and by {masked_leak:.0f} with it. Training predicts every "
        "next token at once, "
        "so without the mask each position would see the token it is to predict. A bidirectional model, such as BERT, "
        "has no causal mask, computes as many scores, and its rows sum to 1 too."
    )  # fmt: skip
    return Solution(ChoiceAnswer(WHY_CHOICES, frozenset(i for i, h in enumerate(holds) if h)), explanation)


def _score_flops(preset: str) -> int:
    """FLOPs of the scores of one layer of width 128 on 64 tokens."""
    config = model_config(preset, {"d_model": 128, "n_heads": 2, "n_layers": 1})
    forward = count_pass(config, seq_len=64)
    assert forward is not None
    return next(forward.flops(operation) for operation in forward.operations if operation.name == "scores")


WHY_MASK = Quiz(
    7,
    "why-mask",
    "masked attention",
    "E",
    f"Why does a decoder mask its scores?\n{list_choices(WHY_CHOICES)}",
    "a letter",
    solve_why_mask,
)
