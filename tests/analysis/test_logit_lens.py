"""The logit lens: its last row is the model's output, and every other row is a shallower model's."""

import pytest
import torch

import headway
from headway.analysis.logit_lens import draw, layer_logits, logit_lens, plot, render_text
from headway.analysis.plotting import figure_style, new_figure, use_theme
from headway.errors import InputError
from headway.models import MaskedLM
from headway.tokenizers import train as train_tokenizer
from tests.models.variants import GPTS, TRANSFORMERS, gpt, name, transformer

IDS, SOURCE = [3, 1, 4, 1, 5], [4, 8, 15, 16]


@pytest.mark.parametrize("config", GPTS[::5], ids=name)
def test_the_last_row_of_a_gpt_is_its_output(config):
    model = gpt(**config)
    *_, last = layer_logits(model, IDS)
    with torch.no_grad():
        assert torch.equal(last, model(torch.tensor([IDS]))[0])


@pytest.mark.parametrize("config", TRANSFORMERS[::4], ids=name)
def test_the_last_row_of_a_decoder_is_its_output(config):
    model = transformer(**config)
    rows = list(layer_logits(model, IDS, source=SOURCE))
    assert len(rows) == model.config.n_decoder_layers + 1
    with torch.no_grad():
        assert torch.equal(rows[-1], model(torch.tensor([IDS]), source=torch.tensor([SOURCE]))[0])


@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_a_row_is_the_output_of_the_model_without_the_layers_above(norm_order):
    model = gpt(n_layers=3, norm_order=norm_order, tie_embeddings=False)
    rows = list(layer_logits(model, IDS))
    for n_layers, row in enumerate(rows):
        shallow = gpt(n_layers=n_layers, norm_order=norm_order, tie_embeddings=False)
        kept = {key: value for key, value in model.state_dict().items() if key in shallow.state_dict()}
        shallow.load_state_dict(kept)
        with torch.no_grad():
            torch.testing.assert_close(row, shallow(torch.tensor([IDS]))[0])


def small(family, tokenizer, **config):
    torch.manual_seed(0)
    sizes = {"vocab_size": tokenizer.vocab_size, "d_model": 8, "n_heads": 2, "n_layers": 2, "context": 24}
    model = headway.create(family, device="cpu", **sizes | config)
    model.tokenizer = tokenizer
    return model


@pytest.fixture(scope="module")
def letters():
    tokenizer = train_tokenizer("char", ["abc "])
    return small("gpt", tokenizer)


def test_a_text_gets_the_most_probable_tokens_of_every_layer(letters):
    lens = logit_lens(letters, "a bc", top=2)
    assert lens.layers == ["embedding", "layer 0", "layer 1"]
    assert (lens.tokens, lens.positions) == (["a", "·", "b", "c"], [0, 1, 2, 3])
    ids = letters.tokenizer.encode("a bc")
    for layer, logits in enumerate(layer_logits(letters, ids)):
        for t, p in enumerate(logits.softmax(dim=-1)):
            assert [best.probability for best in lens.top[layer][t]] == pytest.approx(p.topk(2).values.tolist())
    for t, p_output in enumerate(lens.p_output[-1]):
        assert p_output == pytest.approx(lens.top[-1][t][0].probability)


def test_a_masked_lm_predicts_at_its_masks():
    tokenizer = train_tokenizer("wordpiece", ["the cat sat on a mat"] * 9, 60)
    model = MaskedLM(small("bert", tokenizer))
    lens = logit_lens(model, "the [MASK] sat on a [MASK]")
    assert (lens.tokens, lens.positions) == (["[MASK]", "[MASK]"], [2, 6])
    ids = tokenizer.build_inputs(tokenizer.encode_with_masks("the [MASK] sat on a [MASK]"))[0]
    with torch.no_grad():
        p = model.eval()(torch.tensor([ids]))[0, [2, 6]].softmax(dim=-1)
    assert [best[0].probability for best in lens.top[-1]] == pytest.approx(p.max(dim=-1).values.tolist())
    assert "at [MASK] (position 6)" in render_text(lens)
    with pytest.raises(InputError, match=r"the text has no \[MASK\]: write \[MASK\] where the model is to predict"):
        logit_lens(model, "the cat sat")
    with pytest.raises(InputError, match="position 3 does not exist: choose 2, 6"):
        render_text(lens, position=3)


def test_a_translator_predicts_the_target_from_the_source():
    tokenizer = train_tokenizer("char", ["abc"])
    model = small("transformer", tokenizer, bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id)
    lens = logit_lens(model, "abc", "cb")
    assert (lens.tokens, lens.target) == (["start", "c", "b"], "cb")
    assert logit_lens(model, "abc").target is not None
    with pytest.raises(InputError, match="an empty text has no tokens to translate"):
        logit_lens(model, " ")
    with pytest.raises(InputError, match="an encoder-decoder predicts from a source"):
        next(layer_logits(model, [1]))


@pytest.mark.parametrize(
    ("family", "article"), [("ngram", "a 3-gram"), ("lstm", "an LSTM"), ("bert", "a BERT"), ("seq2seq", "a Seq2Seq")]
)
def test_models_without_a_lens_name_those_that_have_one(family, article):
    model = headway.create(family, vocab_size=20, **({"n_layers": 1, "d_model": 24} if family != "ngram" else {}))
    with pytest.raises(InputError, match=f"no logit lens for {article}: .* use a gpt, a transformer, or a bert"):
        logit_lens(model, "a")


def test_wrong_values_are_answered(letters):
    for arguments, message in [
        ({"top": 0}, "top=0 must be at least 1"),
        ({"target": "b"}, "a GPT has no source: pass one text, without a target"),
    ]:
        with pytest.raises(InputError, match=message):
            logit_lens(letters, "a", **arguments)
    with pytest.raises(InputError, match="position 4 does not exist: choose 0 to 1"):
        render_text(logit_lens(letters, "ab"), position=4)
    with pytest.raises(InputError, match="a model without layers"):
        next(layer_logits(small("gpt", letters.tokenizer, n_layers=0), [1, 2]))


def test_the_table_fits_the_width_and_the_picture_frames_what_the_output_predicts(letters, tmp_path):
    lens = logit_lens(letters, "abc " * 6, top=3)
    for width in (40, 60, 120):
        text = render_text(lens, width=width)
        assert max(map(len, text.split("\n\nafter ")[0].splitlines())) <= width
        assert text.count("layer 1") == 2
    with figure_style():
        figure = new_figure(6, 3)
        draw(figure, lens)
        axes = figure.axes[0]
        same = sum(best[0].token == out[0].token for layer in lens.top
                   for best, out in zip(layer[-20:], lens.top[-1][-20:], strict=True))  # fmt: skip
        assert len(axes.patches) == same
        assert "the last 20 of 24" in axes.get_xlabel()
    with use_theme("dark"):
        plot(lens, tmp_path / "lens.png")
