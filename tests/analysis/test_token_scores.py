"""A text, token by token: the sum of ln p is the score of `evaluate`, and ranks and expectations are the model's."""

import math

import numpy as np
import pytest
import torch

import headway
from headway import tokenizers
from headway.analysis.plotting import figure_style, new_figure
from headway.analysis.token_score_plot import MAX_PLOTTED, draw, plot
from headway.analysis.token_scores import format_log_p, render_text
from headway.data.datasets.seq2seq import Seq2SeqDataset
from headway.data.records import Pair
from headway.errors import ConfigError, DataError, InputError
from headway.training.objectives import LossModule
from tests.generation.small_models import CHARS, TEXTS, char_gpt, char_model
from tests.models.variants import TINY, amplified

TEXT = "the cats sat on a mat and a dog"
FAMILIES = {
    "ngram": {"order": 3},
    "nplm": {"order": 3, "d_model": 8, "d_hidden": 8},
    "rnn": {"d_model": 8, "d_hidden": 8},
    "lstm": {"d_model": 8, "d_hidden": 8},
    "gpt": {"d_model": 24, "n_heads": 4, "n_layers": 1, "context": 16},
}
SHAPE = {"vocab_size": CHARS.vocab_size, "bos_id": CHARS.bos_id, "eos_id": CHARS.eos_id, "context": 24}


def translator(family="transformer"):
    shape = {**TINY, "n_layers": 1} if family == "transformer" else {"d_model": 12, "dropout": 0.0}
    model = amplified(headway.create(family, **{**shape, **SHAPE}))
    model.tokenizer = CHARS
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("context", [None, 5])
def test_the_sum_is_the_score_of_evaluate(family, context):
    model = char_model(family, **FAMILIES[family])
    result, expected = headway.score(model, TEXT, context=context), headway.evaluate(model, TEXT, context=context)
    assert -result.log_prob == pytest.approx(expected.nats_per_token * expected.n_tokens, abs=1e-6)
    assert result.bits_per_byte == pytest.approx(expected.bits_per_byte, abs=1e-9)
    assert len(result.tokens) == expected.n_tokens == len(TEXT) + 1  # EOS is predicted, BOS is given
    assert sum(token.log_prob for token in result.tokens) == pytest.approx(result.log_prob, abs=1e-9)
    assert result.tokens[-1].token == "<|endoftext|>"
    assert {token.window for token in result.tokens} == set(range(1, math.ceil((len(TEXT) + 1) / result.context) + 1))


def test_p_rank_and_expectations_are_those_of_the_logits():
    model, text = char_gpt(), "a cat"
    result = headway.score(model, text, top=4)
    ids = CHARS.encode_stream([text])
    with torch.no_grad():
        p = model(torch.tensor([ids[:-1]]))[0].double().softmax(dim=-1)  # (T, V)
    assert [token.id for token in result.tokens] == ids[1:]
    for token, id, row in zip(result.tokens, ids[1:], p, strict=True):
        assert token.p == pytest.approx(row[id].item(), rel=1e-5)
        order = row.argsort(descending=True, stable=True).tolist()
        assert token.rank == 1 + order.index(id)
        assert [expected.id for expected in token.expected] == order[:4]
        assert [expected.p for expected in token.expected] == pytest.approx(row[order[:4]].tolist(), rel=1e-5)
    assert result.p == pytest.approx(math.prod(token.p for token in result.tokens))


def test_lost_bytes_are_charged_in_bits_per_byte_and_told():
    model = char_gpt()
    result, expected = headway.score(model, "the Ünit"), headway.evaluate(model, "the Ünit")
    assert result.lost_bytes == expected.lost_bytes == 3  # Ü has two bytes, and n is in no text
    assert result.bits_per_byte == pytest.approx(expected.bits_per_byte, abs=1e-9)
    assert "<unk> Ü" in [token.token for token in result.tokens]
    assert "3 bytes lost in <unk> or between words: 24 bits more" in render_text(result)


def test_without_bos_the_first_token_is_charged_as_uniform():
    tokenizer = tokenizers.train("char", TEXTS)
    tokenizer.special_tokens["bos"] = tokenizer.special_tokens["eos"] = None
    model = char_gpt()
    model.tokenizer = tokenizer
    result, expected = headway.score(model, "a cat"), headway.evaluate(model, "a cat")
    first = result.tokens[0]
    assert (first.token, first.rank, first.expected) == ("a", None, [])
    assert first.log_prob == -math.log(tokenizer.vocab_size)
    assert -result.log_prob == pytest.approx(expected.nats_per_token * expected.n_tokens, abs=1e-6)
    assert "nothing predicts the first token" in render_text(result)


def test_documents_are_scored_as_one_stream():
    model = char_model("gpt", **FAMILIES["gpt"])
    result, expected = headway.score(model, TEXTS), headway.evaluate(model, TEXTS)
    assert len(result.tokens) == expected.n_tokens
    assert -result.log_prob == pytest.approx(expected.nats_per_token * expected.n_tokens, abs=1e-6)


@pytest.mark.parametrize("family", ["transformer", "bahdanau", "seq2seq"])
def test_a_translation_is_scored_by_teacher_forcing(family):
    model = translator(family)
    result = headway.score(model, "the cat", target="a dog")
    batch = Seq2SeqDataset([Pair("the cat", "a dog")], CHARS).collate(np.array([0]))
    with torch.no_grad():
        nats, _ = LossModule(model, "pairs").eval()(batch)
    assert -result.log_prob == pytest.approx(float(nats), abs=1e-6)
    assert [token.id for token in result.tokens] == [*CHARS.encode("a dog"), CHARS.eos_id]
    assert result.bits_per_byte is None


def test_a_translator_scores_its_own_translation_by_default():
    model = translator()
    result, own = headway.score(model, "the cat"), headway.translate(model, "the cat")[0]
    assert [token.id for token in result.tokens] == own.tokens
    assert result.log_prob == pytest.approx(own.log_prob, abs=1e-4)  # the search computes step by step, in float64


def test_what_cannot_be_scored_is_refused_with_a_way_out():
    gpt = char_gpt()
    with pytest.raises(DataError, match="it is empty"):
        headway.score(gpt, "")
    with pytest.raises(InputError, match="has no source, so it scores one text: leave target out"):
        headway.score(gpt, "a", target="b")
    with pytest.raises(ConfigError, match="top=-1 must be at least 0"):
        headway.score(gpt, "a", top=-1)
    with pytest.raises(InputError, match="an empty source"):
        headway.score(translator(), " ")
    with pytest.raises(InputError, match="26 tokens with EOS, and this model writes at most 24: shorten it"):
        headway.score(translator(), "a", target="a" * 25)
    with pytest.raises(ConfigError, match="context=3 is for language models"):
        headway.score(translator(), "a", context=3)
    bert = headway.create("bert", **{**TINY, "n_layers": 1, "vocab_size": CHARS.vocab_size})
    bert.tokenizer = CHARS
    with pytest.raises(InputError, match="does not continue text: use a language model such as gpt"):
        headway.score(bert, "a cat")


def test_a_product_that_underflows_is_written_from_the_sum():
    result = headway.score(char_gpt(context=512), "a cat " * 60)
    assert result.p == 0.0
    shown = render_text(result)
    assert f"= {format_log_p(result.log_prob)}\n" in shown
    assert "underflows to 0 in floating point: use the sum" in shown
    assert format_log_p(-2000.0) == "2.58e-869"  # e^-2000 = 10^-868.589
    assert format_log_p(math.log(0.25)) == "0.25"
    assert format_log_p(-math.inf) == "0"
    short = headway.score(char_gpt(), "a cat")
    assert "underflows" not in render_text(short)


def test_the_picture_has_a_labelled_bar_per_token(tmp_path):
    result = headway.score(char_gpt(context=256), "a cat sat " * 10)
    with figure_style():
        figure = new_figure(10, 7)
        draw(figure, result, model="tiny")
        figure.draw_without_rendering()
    assert sum(len(axes.patches) for axes in figure.axes) == MAX_PLOTTED
    first = figure.axes[0]
    assert [bar.get_height() for bar in first.patches] == pytest.approx([token.bits for token in result.tokens[:30]])
    assert [label.get_text() for label in first.get_xticklabels()][:3] == ["a", "·", "c"]
    assert first.get_ylabel() == "surprisal (bits)"
    assert figure.get_suptitle().endswith("The first 90 of 101 tokens")
    assert plot(result, tmp_path / "score.svg").stat().st_size > 0
