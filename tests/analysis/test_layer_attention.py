"""The steps of one head equal the model's own attention, for every layer and head, and cost one forward pass."""

import math

import pytest
import torch
from torch.testing import assert_close

import headway
from headway.analysis.attention import attention_maps
from headway.analysis.attention_inputs import attention_modules
from headway.analysis.attention_step_plots import draw, plot
from headway.analysis.attention_tables import render_text_steps
from headway.analysis.layer_attention import model_attention_steps, text_attention_steps
from headway.analysis.plotting import figure_style, new_figure
from headway.errors import InputError
from headway.models import MaskedLM
from headway.nn import dot_product_attention
from headway.nn.attention import use_attention
from headway.tokenizers import train as train_tokenizer
from tests.models.variants import POSITIONS, TINY, amplified, gpt, transformer

GPTS = [{"positions": p} for p in POSITIONS] + [
    {"positions": "rotary", "n_kv_heads": 2, "bias": False},
    {"positions": "relative", "n_kv_heads": 1, "norm_order": "post"},
    {"positions": "none", "attention_scale": "none", "norm": "none"},
    {"positions": "rotary", "similarity": "cosine", "attention_mask": "none"},
    {"positions": "learned", "similarity": "cosine", "attention_scale": "none"},
]


def check_every_layer_and_head(model, side, **inputs):
    """Each step against its equation and the weights of the model's layer, in float64: 1e-6 leaves no excuse."""
    model = model.double()
    for layer, module in enumerate(attention_modules(model, side)):
        projection = module.out
        for head in range(module.n_heads):
            steps = model_attention_steps(model, **inputs, side=side, layer=layer, head=head)
            (expected,) = attention_maps(model, **inputs, side=side, layers=[layer], heads=[head])
            own = slice(head * module.d_head, (head + 1) * module.d_head)  # of the outputs of the fast kernel
            assert_close(steps.weights, expected.weights[0].double(), rtol=0, atol=1e-6)
            assert_close(steps.output, steps.concat[:, own], rtol=0, atol=1e-6)
            assert_close(steps.weights.sum(dim=-1), torch.ones(len(steps.Q), dtype=torch.float64))
            assert_close(steps.projected, projection(steps.concat).detach(), rtol=0, atol=1e-6)
            bias = 0 if steps.bias is None else steps.bias
            scaled = steps.Q @ steps.K.T * steps.scale
            assert_close((scaled + bias).masked_fill(~steps.mask, -math.inf), steps.masked)
    return steps


@pytest.mark.parametrize("config", GPTS, ids=str)
def test_every_head_of_a_gpt_with_every_kind_of_positions(config):
    steps = check_every_layer_and_head(gpt(**config), "decoder", ids=[3, 1, 4, 1, 5])
    assert (steps.bias is not None) == (config["positions"] in ("relative", "alibi"))
    is_masked = config.get("attention_mask") != "none"
    assert torch.equal(steps.mask, torch.ones(5, 5).tril().bool() if is_masked else torch.ones(5, 5).bool())
    is_cosine, is_scaled = config.get("similarity") == "cosine", config.get("attention_scale") != "none"
    assert steps.scale == pytest.approx((6**0.5 if is_cosine else 6**-0.5) if is_scaled else 1)
    if is_cosine:
        assert_close(steps.Q.norm(dim=-1), torch.ones(5, dtype=torch.float64))


@pytest.mark.parametrize("positions", ["learned", "alibi"])
def test_every_head_of_an_encoder_with_segments_and_below_a_head(positions):
    bert = amplified(headway.create("bert", **TINY, n_layers=2, positions=positions))
    for model in (bert, MaskedLM(bert)):
        steps = check_every_layer_and_head(model, "encoder", ids=[5, 6, 7, 8], segments=[0, 0, 1, 1])
    assert steps.mask.all()


@pytest.mark.parametrize("side", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("config", [{"positions": "rotary", "n_kv_heads": 2}, {"positions": "relative"}], ids=str)
def test_every_head_of_an_encoder_decoder_on_every_side(config, side):
    model = transformer(**config)
    inputs = {"ids": [1, 7, 9], "source": [4, 8, 15, 16]}
    steps = check_every_layer_and_head(model, side, **inputs)
    assert (steps.memory is not None) == (side == "cross")
    if side == "cross":
        memory = model.encode(torch.tensor([inputs["source"]]))[0].detach()
        assert_close(steps.memory, memory)
        assert steps.weights.shape == (3, 4)


def test_x_is_what_the_projections_are_applied_to():
    model = gpt(positions="learned").double()
    steps = model_attention_steps(model, [3, 1, 4], layer=1, head=2)
    attention = model.blocks[1].attention
    q, k, v = attention.qkv(steps.X).detach().unflatten(-1, (-1, attention.d_head)).split(attention.heads, dim=1)
    for x, part in ((steps.Q, q), (steps.K, k), (steps.V, v)):
        assert_close(x, part[:, 2])


def test_only_the_head_asked_for_is_computed_and_the_model_is_left_as_it_was(monkeypatch):
    model = gpt(positions="rotary")
    shapes = []

    def count(q, k, v, **options):
        shapes.append(tuple(q.shape))
        return dot_product_attention(q, k, v, **options)

    monkeypatch.setattr("headway.analysis.layer_attention.ATTENTIONS_ALIKE", (count,))
    use_attention(model, count)
    model_attention_steps(model, [3, 1, 4], layer=1, head=2)
    assert shapes == [(1, 4, 3, 6)] * 2  # one call per layer, as in any forward pass
    for module in attention_modules(model, "decoder"):
        assert module.attention_fn is count
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def small(family, tokenizer, **config):
    torch.manual_seed(0)
    sizes = {"vocab_size": tokenizer.vocab_size, "d_model": 8, "n_heads": 2, "n_layers": 2, "context": 24}
    model = headway.create(family, **sizes | config)
    model.tokenizer = tokenizer
    return model


def test_a_text_names_rows_and_columns_and_prints_every_step():
    model = small("gpt", train_tokenizer("char", ["abc"]), positions="rotary")
    attention = text_attention_steps(model, "abca", layer=1, head=1)
    assert attention.steps.rows == attention.steps.columns == ("a", "b", "c", "a")
    lines = render_text_steps(attention, width=60).splitlines()
    assert lines[0] == "decoder self-attention, layer 1, head 1 (of 2 × 2, counted from 0)"
    assert max(map(len, lines)) <= 80  # titles are not cut
    text = "\n".join(lines)
    for title in (
        "X  (4 × 8)",
        "Q  (4 × 4)  X · W_Q, rotated by position",
        "Q Kᵀ / √4  (4 × 4)  masked: −∞ in 6 cells",
        "A = softmax  (4 × 4)  weights",
        "concat  (4 × 8)  A V of all 2 heads side by side; this head: columns 4 to 7",
        "concat · W_O  (4 × 8)",
    ):
        assert title in text
    assert str(attention) == render_text_steps(attention)


def test_wide_matrices_and_long_texts_are_cut_in_the_middle():
    model = small("gpt", train_tokenizer("char", ["abc"]), d_model=64)
    lines = render_text_steps(text_attention_steps(model, "abc" * 7), width=50).splitlines()
    start = lines.index(next(line for line in lines if line.startswith("X  (21 × 64)")))
    assert "…" in lines[start + 1]
    assert lines[start + 1].split()[-1] == "63"
    assert lines[start + 16].strip() == "…"
    assert all(len(line) <= 50 for line in lines if line.startswith(" "))


def test_an_encoder_decoder_has_its_written_tokens_as_rows():
    tokenizer = train_tokenizer("char", ["abc"])
    model = small("transformer", tokenizer, eos_id=tokenizer.eos_id, bos_id=tokenizer.bos_id)
    attention = text_attention_steps(model, "abc", "ca", layer=1)
    assert (attention.side, attention.steps.rows) == ("cross", ("c", "a", "<|endoftext|>"))
    assert "memory  (4 × 8)  the encoder's output" in str(attention)
    assert "K  (4 × 4)  memory · W_K\n" in str(attention)
    assert attention.to_dict()["weights"] == attention.steps.weights.tolist()


def test_what_has_no_such_steps_says_so():
    model = gpt()
    masked_late = gpt(attention_mask="after-softmax")
    with pytest.raises(InputError, match="computes attention by mask after softmax"):
        model_attention_steps(masked_late, [1, 2])
    with pytest.raises(InputError, match="layer 2 does not exist: choose 0 to 1"):
        model_attention_steps(model, [1, 2], layer=2)
    with pytest.raises(InputError, match="head -1 does not exist: choose 0 to 3"):
        model_attention_steps(model, [1, 2], head=-1)
    bahdanau = headway.create("bahdanau", vocab_size=9, d_model=8, context=8, d_hidden=8)
    with pytest.raises(InputError, match="a Bahdanau scores by a small network"):
        model_attention_steps(bahdanau, [1, 2], source=[3])
    use_attention(model, lambda q, k, v, **options: (v, None))
    with pytest.raises(InputError, match="these are the steps of dot-product attention"):
        model_attention_steps(model, [1, 2])


def drawn(attention):
    with figure_style():
        figure = new_figure(6, 6)
        draw(figure, attention, model="demo")
    return figure


def test_the_picture_goes_from_scores_by_the_mask_to_weights_with_numbers_in_the_cells(tmp_path):
    model = small("gpt", train_tokenizer("char", ["abc"]))
    attention = text_attention_steps(model, "abc")
    figure = drawn(attention)
    assert [axes.get_title() for axes in figure.axes] == [
        "1. Q Kᵀ / √4", "2. mask: 0 or −∞", "3. scores + mask", "4. softmax of each row",
    ]  # fmt: skip
    cells = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert cells[1] == ["0", "−∞", "−∞", "0", "0", "−∞", "0", "0", "0"]
    assert cells[2][1:3] == ["−∞", "−∞"]
    assert cells[3][:3] == ["1.00", "0", "0"]  # masked: exactly 0
    hatched = [sum(bool(patch.get_hatch()) for patch in axes.patches) for axes in figure.axes]
    assert hatched == [0, 1, 1, 1]
    for suffix in ("png", "svg"):
        assert plot(attention, tmp_path / f"steps.{suffix}").stat().st_size > 0


def test_the_picture_of_a_long_text_has_colour_bars_in_place_of_numbers():
    model = small("gpt", train_tokenizer("char", ["abc"]))
    figure = drawn(text_attention_steps(model, "abc" * 5))
    assert not any(axes.texts for axes in figure.axes)
    labels = [axes.get_ylabel() for axes in figure.axes[4:]]
    assert labels == ["score", "score", "attention weight"]
