"""Quizzes 5, 6, 8, 14 and 15: frequencies, what is optimised, the encoder's output, GPT-3's size, and temperature."""

import math
import re

import torch
from torch import Tensor

from headway.analysis.model_summary import ModelSummary, summarize_model
from headway.config import TransformerConfig, model_config
from headway.costs import parameter_table
from headway.exercises.quiz import (
    MISTAKE_TOLERANCE,
    Choice,
    ChoiceAnswer,
    NumbersAnswer,
    Quiz,
    Solution,
    list_choices,
)
from headway.models import Transformer
from headway.nn.positions import sinusoid
from headway.sampling import SAMPLERS

# ── 5: frequencies ────────────────────────────────────────────────────────────────────────────────────────────────

FREQUENCY_CHOICES = (
    Choice(
        "they rise",
        "rise",
        "ω_i = 1 / 10000^(2i/d): the exponent grows with i, and it stands in the denominator. Compute ω_0 and "
        "the last.",
    ),
    Choice("they fall", "fall", aliases=("decrease", "shrink")),
    Choice(
        "all pairs have the same",
        "same",
        "Then two positions a whole period apart would have the same code. Every pair has a frequency of its own.",
    ),
)


def frequencies(d_model: int) -> Tensor:
    """The frequency of each pair of columns of the sinusoidal encoding: its angle at position 1. (D/2,)"""
    sine, cosine = sinusoid(torch.tensor([1]), d_model)[0].view(-1, 2).T
    return torch.atan2(sine, cosine)


def solve_frequencies() -> Solution:
    omega = frequencies(130)
    steps = omega.diff()
    holds = [bool((steps > 0).all()), bool((steps < 0).all()), bool((steps == 0).all())]
    table = sinusoid(torch.arange(51), 130)
    distance = torch.cdist(table, table).fill_diagonal_(torch.inf).min()
    explanation = (
        f"ω_i = 1 / 10000^(2i/d). For d = 130 they fall from ω_0 = {omega[0]:.3g} over ω_1 = {omega[1]:.3f} to "
        f"ω_64 = {omega[-1]:.2e}: "
        f"periods of {2 * math.pi / omega[0]:.2f} to {2 * math.pi / omega[-1]:,.0f} positions. The first "
        "columns tell neighbours apart, as the last bit of a "
        f"binary number does; the last columns change slowly. No two of 51 positions are closer than {distance:.3f}."
    )  # fmt: skip
    return Solution(ChoiceAnswer(FREQUENCY_CHOICES, frozenset(i for i, h in enumerate(holds) if h)), explanation)


FREQUENCIES = Quiz(
    5,
    "frequencies",
    "sinusoidal positions",
    "E",
    "PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(the same).\n"
    f"How do the frequencies change along the vector, as i grows?\n{list_choices(FREQUENCY_CHOICES)}",
    "a letter",
    solve_frequencies,
)

# ── 6: what is optimised ──────────────────────────────────────────────────────────────────────────────────────────

# What the quiz offers → the names of parameters that it stands for.
OPTIMISED_PATTERNS = (
    r"\binput",
    r"attention\.(qkv|q)\.weight",
    r"attention\.(qkv|kv)\.weight",
    r"softmax",
    r"feed_forward\.(up|down)\.weight",
    r"positions",
    r"embedding\.weight",
    r"mask",
)
_LEARNED = "it is a matrix of parameters, and gradient descent changes it."
OPTIMISED_CHOICES = (
    Choice("the input tokens", "inputs", "The inputs are data: the gradient is taken with respect to parameters."),
    Choice("W_q", "W_q", why=_LEARNED),
    Choice("W_k and W_v", "W_k", why=_LEARNED, aliases=("W_v",)),
    Choice("the softmax", "softmax", "The softmax is a function without parameters."),
    Choice("W_1 and W_2 of the feed-forward network", "W_1", why=_LEARNED, aliases=("W_2", "feed-forward")),
    Choice("sinusoidal positions", "positions", "Sines and cosines are a formula: nothing to learn. (Learned "
                                                "positions are.)"),
    Choice("the embedding table", "embedding", why="its rows are parameters, like the rows of any matrix."),
    Choice("the causal mask", "mask", "The mask is fixed: zeros and −∞."),
)  # fmt: skip


def optimised_summary() -> ModelSummary:
    config = model_config("transformer", {"vocab_size": 1000, "d_model": 64, "n_heads": 2, "n_layers": 2})
    return summarize_model(config)


def solve_optimised() -> Solution:
    summary = optimised_summary()
    names = [row.name for row in summary.learned]
    right = frozenset(i for i, p in enumerate(OPTIMISED_PATTERNS) if any(re.search(p, name) for name in names))
    matrices = [row.name for row in summary.learned if len(row.shape) > 1]
    fixed = "\n".join(f"  {line}" for line in summary.fixed)
    explanation = (
        "Gradient descent changes parameters and nothing else. The matrices of a Transformer in Headway are\n"
        + "\n".join(f"  {name}" for name in matrices)
        + f"\nand beside them there are biases and the gains of norms. Not trained:\n{fixed}\n"
        "W_q, W_k and W_v are stacked in qkv. `headway show model transformer` lists all of them with their shapes."
    )
    return Solution(ChoiceAnswer(OPTIMISED_CHOICES, right, several=True), explanation)


OPTIMISED = Quiz(
    6,
    "optimised",
    "what training changes",
    "E",
    "Which of these does training optimise in a Transformer with sinusoidal positions? (all that apply)\n"
    f"{list_choices(OPTIMISED_CHOICES)}",
    "letters, such as a,c",
    solve_optimised,
)

# ── 8: which encoder layer ────────────────────────────────────────────────────────────────────────────────────────

ENCODER_CHOICES = (
    Choice("decoder layer i reads encoder layer i", "same", "Figure 1 of the paper looks so, but all arrows "
                                                            "start at the top of the encoder."),
    Choice("the first", "first", "The first layer has seen little context: every token has attended once."),
    Choice("all of them, averaged", "all", "Nothing is averaged: there is one memory, the output of the encoder."),
    Choice("the last", "last", aliases=("final", "top")),
)  # fmt: skip
N_QUIZ_LAYERS = 3


@torch.no_grad()
def layers_read() -> list[list[float]]:
    """How far the keys of each decoder layer's cross-attention are from those of each encoder layer's output."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Transformer(TransformerConfig(vocab_size=11, d_model=16, n_heads=2, n_layers=N_QUIZ_LAYERS)).eval()
        source = torch.randint(11, (1, 5))
    outputs: list[Tensor] = []
    hooks = [
        block.register_forward_hook(lambda module, inputs, output: outputs.append(output))
        for block in model.encoder.blocks
    ]
    keys = model.start(source=source).source.keys  # (L, B, G, S, K)
    for hook in hooks:
        hook.remove()
    candidates = [model.encoder.norm(output) for output in outputs]
    return [
        [float((block.cross_attention.project(memory)[0] - keys[i]).abs().max()) for memory in candidates]
        for i, block in enumerate(model.decoder.blocks)
    ]


def solve_encoder_layer() -> Solution:
    distances = layers_read()
    nearest = [min(range(N_QUIZ_LAYERS), key=row.__getitem__) for row in distances]
    is_exact = all(min(row) < 1e-6 for row in distances)
    holds = [
        is_exact and nearest == [*range(N_QUIZ_LAYERS)],
        is_exact and nearest == [0] * N_QUIZ_LAYERS,
        not is_exact,
        is_exact and nearest == [N_QUIZ_LAYERS - 1] * N_QUIZ_LAYERS,
    ]
    rows = "\n".join(
        f"  decoder layer {i + 1}:  " + "  ".join(f"{x:.3f}" for x in row) for i, row in enumerate(distances)
    )
    explanation = (
        "Measured in a random Transformer of three layers on each side: how far the keys of a decoder layer are from "
        "those that encoder layer 1, 2 and 3 would give.\n"
        f"{rows}\n"
        "Every decoder layer reads the last encoder layer. Its keys and values are computed once per source."
    )
    return Solution(ChoiceAnswer(ENCODER_CHOICES, frozenset(i for i, h in enumerate(holds) if h)), explanation)


ENCODER_LAYER = Quiz(
    8,
    "encoder-layer",
    "cross-attention",
    "E",
    f"Which encoder layer's output do the decoder layers attend to?\n{list_choices(ENCODER_CHOICES)}",
    "a letter",
    solve_encoder_layer,
)

# ── 14: GPT-3's size ──────────────────────────────────────────────────────────────────────────────────────────────


def solve_gpt3() -> Solution:
    config = model_config("gpt3-175b").resolved()
    table = parameter_table(config)
    assert table is not None
    d, n_layers = table.sizes["d"], int(getattr(config, "n_layers", 0))
    layers = table.groups()["layers"]
    formula, estimate = table.estimate(layers)
    embedding = sum(table.count(part) for part in table.groups()["embedding"])
    rest = table.total - estimate - embedding
    wrong: list[tuple[tuple[float, ...], str]] = [
        ((estimate // n_layers,), "That is one layer. Multiply by L = 96."),
        ((12 * d * n_layers**2,), "You squared L instead of d: 12 d² L."),
        ((12 * d * n_layers,), "You forgot the square: 12 d² L."),
        ((d * d * n_layers,), "You forgot the 12: 4 d² for attention and 8 d² for the feed-forward network."),
        ((4 * d * d * n_layers,), "You counted attention alone. The feed-forward network has another 8 d² per layer."),
        ((8 * d * d * n_layers,), "You counted the feed-forward network alone. Attention has another 4 d² per layer."),
        ((16 * d * d * n_layers,), "16 d² is a decoder layer with cross-attention. GPT has none: 12 d²."),
        ((175e9,), f"175 billion is the published name: the rounded size of the whole model, {table.total:,}. "
                   "Its layers have fewer. Compute 12 d² L."),
    ]  # fmt: skip
    answer = NumbersAnswer(
        (estimate,),
        tolerance=0.001,
        is_relative=True,
        wrong=wrong,
        also_right=[((table.total,), f"That is the whole model, with embeddings, biases and norms: {table.total:,}.")],
        too_rough=(0.03, "Close. Give 12 d² L to three digits or more."),
        sizes={"d": d, "L": n_layers},
        method="12 · 12288² · 96: per layer 4 d² for W_q, W_k, W_v and W_o and 8 d² for the feed-forward network.",
    )
    explanation = (
        f"Per layer 4 d² in attention and 8 d² in the feed-forward network: {formula} = {estimate:,}. "
        f"The exact number is {table.total:,}: embeddings and positions add {embedding:,}, biases and norms {rest:,}. "
        "`headway cost gpt3-175b` lists them."
    )
    return Solution(answer, explanation)


GPT3_SIZE = Quiz(
    14,
    "gpt3-size",
    "counting parameters",
    "A",
    "A GPT layer of width d has about 12 d² parameters. GPT-3 has d = 12,288 and L = 96 layers.\n"
    "How many parameters do its layers have?",
    "a number, such as 117M, or a formula in d and L",
    solve_gpt3,
)

# ── 15: temperature ───────────────────────────────────────────────────────────────────────────────────────────────

LOGITS, TEMPERATURE = (3.0, 1.0, -1.0), 0.2


def probabilities_at(temperature: float, logits: tuple[float, ...] = LOGITS) -> list[float]:
    """What the sampler `temperature` makes of these logits."""
    row = torch.tensor([logits], dtype=torch.float64)
    return [float(p) for p in SAMPLERS["temperature"](row, temperature=temperature).softmax(-1)[0]]


def solve_temperature() -> Solution:
    p = probabilities_at(TEMPERATURE)
    scaled = [u / TEMPERATURE for u in LOGITS]
    at_one, at_five = probabilities_at(1.0), probabilities_at(1 / TEMPERATURE)
    answer = NumbersAnswer(
        (p[0],),
        digits=5,
        tolerance=2e-5,
        also_right=[(p, "")],
        wrong=[
            *[(given, "That is the softmax without temperature. Divide the logits by 0.2 first.")
              for given in (at_one, at_one[:1])],
            *[(given, "You multiplied the logits by 0.2. Divide: a low temperature sharpens.")
              for given in (at_five, at_five[:1])],
            ((scaled[0],), "That is the scaled logit. Its softmax is still to take."),
            (scaled, "Those are the scaled logits. Now take their softmax."),
            *[(given, "Close, but a softmax never reaches 1: e⁵ / e¹⁵ = e⁻¹⁰ is left for the second token. Give "
                      "five digits.") for given in ((1.0,), (1.0, 0.0, 0.0))],
            ((p[1],), "That is the probability of the second token."),
        ],
        too_rough=(MISTAKE_TOLERANCE, "Close, but not to five digits: e⁵ / e¹⁵ = e⁻¹⁰ is left for the second token. "
                                      "How far from 1 is the first?"),
        method="Divide by the temperature: [15, 5, −5]. Then e^15 / (e^15 + e^5 + e^−5), with five digits.",
    )  # fmt: skip
    explanation = (
        f"[3, 1, −1] / 0.2 = [{', '.join(f'{u:g}' for u in scaled)}]. Softmax: {p[0]:.5f}, {p[1]:.2e}, {p[2]:.2e}. "
        f"At temperature 1 the first token has {at_one[0]:.3f}, at 5 only {at_five[0]:.3f}. As the temperature "
        "goes to 0, "
        "sampling becomes greedy."
    )
    return Solution(answer, explanation)


TEMPERATURE_QUIZ = Quiz(
    15,
    "temperature",
    "sampling with temperature",
    "A",
    "The logits of three tokens are [3, 1, −1]. What is the probability of the first at temperature 0.2?",
    "a number with five digits",
    solve_temperature,
)
