"""Quality against diversity: the numbers are those of the texts, and a seed repeats them."""

import math

import pytest
import torch

import headway
from headway import tokenizers
from headway.analysis.plotting import figure_style, new_figure
from headway.analysis.tradeoff import DEFAULT_TEMPERATURES, draw, measure_tradeoff, plot, render_text
from headway.errors import ConfigError, InputError
from headway.evaluation.diversity import distinct, self_bleu
from tests.generation.small_models import CHARS, char_gpt, char_model

TEXT = "the cat sat on the mat and the dog sat on the cat . a mat and a dog sat . " * 4
WORDS = tokenizers.train("bpe", [TEXT], 300)


def word_model():
    model = headway.create("ngram", vocab_size=WORDS.vocab_size, order=2, bos_id=WORDS.bos_id, eos_id=WORDS.eos_id)
    model.fit(torch.tensor(WORDS.encode_stream([TEXT])))
    model.tokenizer = WORDS
    return model


@pytest.fixture(scope="module")
def tradeoff():
    settings = {"temperature": [0.2, 1.5], "top_p": [0.5]}
    return measure_tradeoff(word_model(), "the cat", settings, n=6, max_new_tokens=12, seed=3)


def test_each_point_measures_its_texts_under_the_model_itself(tradeoff):
    assert [point.name for point in tradeoff.points] == ["temperature=0.2", "temperature=1.5", "top_p=0.5"]
    assert (tradeoff.unit, tradeoff.judge) == ("nats per token", None)
    for point, settings in zip(tradeoff.points, [{"temperature": 0.2}, {"temperature": 1.5},
                                                 {"temperature": 1.0, "top_p": 0.5}], strict=True):  # fmt: skip
        texts = headway.complete(word_model(), "the cat", n=6, max_new_tokens=12, seed=3, **settings)
        log_probs = [log_prob for text in texts for log_prob in text.logprobs]
        assert point.texts == [text.text for text in texts]
        assert point.quality == pytest.approx(-sum(log_probs) / len(log_probs))
        assert point.n_tokens == len(log_probs)
        assert point.distinct_2 == distinct(point.texts, 2)
        assert point.self_bleu == self_bleu(point.texts)


def test_a_low_temperature_is_likelier_and_less_diverse(tradeoff):
    cold, hot, _ = tradeoff.points
    assert cold.quality < hot.quality
    assert cold.distinct_2 < hot.distinct_2
    assert cold.self_bleu > hot.self_bleu


def test_a_seed_repeats_the_numbers(tradeoff):
    settings = {"temperature": [0.2, 1.5], "top_p": [0.5]}
    again = measure_tradeoff(word_model(), "the cat", settings, n=6, max_new_tokens=12, seed=3)
    other = measure_tradeoff(word_model(), "the cat", settings, n=6, max_new_tokens=12, seed=30)
    assert again == tradeoff
    assert other != tradeoff


def test_the_model_as_its_own_judge_gives_its_own_quality():
    for model in (word_model(), char_gpt(context=8)):
        own = measure_tradeoff(model, "the", n=2, max_new_tokens=4, seed=1)
        judged = measure_tradeoff(model, "the", n=2, max_new_tokens=4, seed=1, judge=model, judge_name="itself")
        assert [point.value for point in own.points] == list(DEFAULT_TEMPERATURES)
        assert judged.unit == "nats per token"
        assert [p.quality for p in judged.points] == pytest.approx([p.quality for p in own.points], rel=1e-5)


def test_a_judge_with_another_tokenizer_is_measured_in_bits_per_byte():
    judge = char_model("gpt", d_model=8, n_heads=2, n_layers=1, context=128)
    result = measure_tradeoff(word_model(), "the cat", {"top_k": [3]}, n=3, max_new_tokens=6, judge=judge)
    (point,) = result.points
    assert result.unit == "bits per byte"
    bits = 0.0
    for text in point.texts:
        whole, prompt = headway.score(judge, "the cat" + text), headway.score(judge, "the cat")
        n_given = len("the cat")
        assert [t.id for t in whole.tokens[:n_given]] == [t.id for t in prompt.tokens[:n_given]]
        bits += sum(token.bits for token in whole.tokens[n_given:-1]) + 8 * CHARS.lost_bytes(text)  # without EOS
    assert point.quality == pytest.approx(bits / sum(len(text.encode()) for text in point.texts), rel=1e-5)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ConfigError, match="n=1: diversity compares texts, so sample at least 2"):
        measure_tradeoff(word_model(), "the", n=1)
    with pytest.raises(ConfigError, match="top_p has no values to compare"):
        measure_tradeoff(word_model(), "the", {"top_p": []})
    with pytest.raises(ConfigError, match="top_p=2"):
        measure_tradeoff(word_model(), "the", {"top_p": [2.0]})
    bert = headway.create("bert", vocab_size=CHARS.vocab_size, d_model=8, n_heads=2, n_layers=1)
    with pytest.raises(InputError, match="does not continue text"):
        measure_tradeoff(word_model(), "the", judge=bert)


def test_the_table_and_the_picture_name_every_setting(tradeoff, tmp_path):
    shown = render_text(tradeoff).splitlines()
    assert [line.split()[0] for line in shown] == ["setting", "temperature=0.2", "temperature=1.5", "top_p=0.5"]
    with figure_style():
        figure = new_figure(8, 4.2)
        draw(figure, tradeoff, model="tiny")
        figure.draw_without_rendering()
    assert figure.get_suptitle() == "tiny: quality against diversity after “the cat”"
    left = figure.axes[0]
    assert [text.get_text() for text in left.texts] == ["0.2", "1.5", "0.5"]
    assert [len(line.get_xdata()) for line in left.lines] == [2, 1]
    assert left.lines[0].get_ydata() == pytest.approx([point.quality for point in tradeoff.points[:2]])
    assert left.yaxis_inverted()  # up is more likely
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["temperature", "top_p"]
    assert plot(tradeoff, tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    assert math.isfinite(tradeoff.to_dict()["points"][0]["quality"])
