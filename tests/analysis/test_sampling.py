"""A distribution is followed through samplers, stage by stage."""

import math

import pytest
import torch

import headway
from headway.analysis.plotting import figure_style, new_figure
from headway.analysis.sampling import draw, plot, render_text, trace_next_token, trace_samplers, trace_temperatures
from headway.errors import ConfigError
from headway.generation.sampling_params import DEFAULT_TEMPERATURE
from headway.sampling import Pipeline
from headway.tokenizers import train as train_tokenizer

LOGITS = torch.tensor([2.0, 1.0, 1.0, 0.0, -1.0, -3.0])


def test_each_stage_has_the_distribution_after_it(tmp_path):
    steps = trace_samplers(LOGITS, Pipeline(top_k=2, temperature=0.5), top=3)
    assert steps.stages[0] == "model"
    assert steps.n_alive[0] == 6
    assert steps.p[0] == pytest.approx(LOGITS.softmax(dim=-1)[steps.ids].tolist())
    assert steps.n_alive[-1] == sum(p > 0 for p in steps.p[-1])
    assert sum(steps.p[-1]) == pytest.approx(1.0)
    assert "·" in render_text(steps)
    assert plot(steps, tmp_path / "sampling.png").read_bytes().startswith(b"\x89PNG")


def test_the_next_token_of_a_model_is_traced_with_its_tokens():
    tokenizer = train_tokenizer("char", ["abc"])
    model = headway.create("gpt", vocab_size=tokenizer.vocab_size, d_model=8, n_heads=2, n_layers=1, context=16)
    model.tokenizer = tokenizer
    pipelines = []
    steps = trace_next_token(model, "ab", top_k=2, top=100, on_warning=pipelines.append)
    assert set("abc") <= set(steps.tokens)
    assert steps.n_alive[-1] == 2
    assert steps.settings == pipelines[0].stages
    with torch.no_grad():  # dropout is off, although the model was in training mode
        logits = model.eval()(torch.tensor([tokenizer.encode_prompt("ab")]))[0, -1]
    assert steps.p[0] == pytest.approx(logits.double().softmax(dim=-1)[steps.ids].tolist(), abs=1e-6)
    cooled = (logits.double() / DEFAULT_TEMPERATURE).softmax(dim=-1)  # what generate draws from without settings
    default = trace_next_token(model, "ab", top=100)
    assert default.p[-1] == pytest.approx(cooled[default.ids].tolist(), abs=1e-6)
    assert "<|endoftext|>" in steps.tokens  # a special token, which decodes to nothing, has its name


def test_the_picture_names_prompt_stages_and_removed_tokens():
    steps = trace_samplers(LOGITS, Pipeline(top_k=2, temperature=0.5), prompt="Once", decode="t{}".format)
    with figure_style():
        figure = new_figure(8, 4)
        draw(figure, steps, model="demo")
        figure.draw_without_rendering()
    assert figure.get_suptitle() == "demo: next token after “Once”, sampler by sampler"
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["model\n6 tokens left", "top_k=2\n2 tokens left", "temperature=0.5\n2 tokens left"]
    assert [axes.get_xlabel() for axes in figure.axes] == ["probability"] * 3
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [f"'t{i}'" for i in steps.ids]
    assert [len(axes.lines[0].get_xdata()) for axes in figure.axes] == [0, 4, 4]  # crosses on removed tokens
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["model", "after the sampler", "removed"]


def test_a_wide_table_continues_below():
    steps = trace_samplers(LOGITS, Pipeline(top_k=5, top_p=0.99, min_p=0.01, typical=0.99, temperature=0.5))
    wide, narrow = render_text(steps, width=200), render_text(steps, width=50)
    assert max(map(len, narrow.splitlines())) <= 50 < max(map(len, wide.splitlines()))
    for stage in steps.stages:
        assert narrow.count(stage) == wide.count(stage) == 1


def test_at_least_one_token_is_shown():
    with pytest.raises(ConfigError, match="top=0: show at least 1 token"):
        trace_samplers(LOGITS, Pipeline(top_k=2), top=0)


def test_temperatures_side_by_side_have_the_lecture_s_numbers():
    """u = [3, 1, −1] at τ = 0.2 is [15, 5, −5], whose softmax is 1/(1 + e^−10 + e^−20) = 0.99995 for the first."""
    steps = trace_temperatures(torch.tensor([3.0, 1.0, -1.0]), [0.2, 1, 0])
    assert steps.stages == ["model", "T=0.2", "T=1", "T=0"]
    assert steps.tokens == ["3", "1", "-1"]
    assert steps.p[1][0] == pytest.approx(1 / (1 + math.exp(-10) + math.exp(-20)), abs=1e-9)
    assert steps.p[0] == steps.p[2]
    assert steps.p[3] == [1.0, 0.0, 0.0]
    assert "0.99995" in render_text(steps, digits=5)
    with figure_style():
        figure = new_figure(8, 4)
        draw(figure, steps)
    assert [axes.get_title().splitlines()[0] for axes in figure.axes] == ["T=0.2", "T=1", "T=0"]
    assert figure.get_suptitle() == "The given logits, by temperature"
    with pytest.raises(ConfigError, match="temperature=-1 must be at least 0; 0 is greedy"):
        trace_temperatures(LOGITS, [-1])
