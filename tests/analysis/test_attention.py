"""Captured attention maps equal those of the definition, and capturing changes nothing."""

import pytest
import torch

import headway
from headway.analysis.attention import attention_maps, text_attention
from headway.analysis.attention_inputs import attention_modules
from headway.errors import InputError
from headway.models import MaskedLM
from headway.models.heads import Classifier, SpanReader, Tagger
from headway.nn.attention import dot_product_attention, use_attention
from headway.tokenizers import train as train_tokenizer
from tests.models.variants import GPTS, TRANSFORMERS, gpt, name, transformer


def reference_weights(model, side, forward):
    """The weights of every layer, as the reference attention returns them."""
    captured = []

    def capturing(q, k, v, **options):
        y, weights = dot_product_attention(q, k, v, **options)
        captured.append(weights)
        return y, weights

    use_attention(model, "reference")
    for module in attention_modules(model, side):
        module.attention_fn = capturing
    with torch.no_grad():
        forward()
    use_attention(model, "fast")
    return captured


@pytest.mark.parametrize("config", GPTS, ids=name)
def test_maps_of_a_gpt_equal_the_definition(config):
    model, ids = gpt(**config), [3, 1, 4, 1, 5]
    with torch.no_grad():
        logits = model(torch.tensor([ids]))
    maps = attention_maps(model, ids)
    expected = reference_weights(model, "decoder", lambda: model(torch.tensor([ids])))
    for attention, weights in zip(maps, expected, strict=True):
        torch.testing.assert_close(attention.weights, weights[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(attention.weights.sum(-1), torch.ones(attention.weights.shape[:2]))
        assert attention.weights.triu(1).abs().max() == 0
        assert (attention.weights * ~attention.mask).sum() == 0
        assert not attention.mask.triu(1).any()
    with torch.no_grad():
        assert torch.equal(model(torch.tensor([ids])), logits)


@pytest.mark.parametrize("side", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("config", TRANSFORMERS, ids=name)
def test_maps_of_an_encoder_decoder_equal_the_definition_on_every_side(config, side):
    model, ids, source = transformer(**config), [1, 7, 9], [4, 8, 15, 16]

    def forward():
        return model(torch.tensor([ids]), source=torch.tensor([source]))

    maps = attention_maps(model, ids, source=source, side=side, heads=[2, 0])
    expected = reference_weights(model, side, forward)
    assert len(maps) == len(expected)
    for attention, weights in zip(maps, expected, strict=True):
        torch.testing.assert_close(attention.weights, weights[0][[2, 0]], rtol=1e-4, atol=1e-5)


def test_one_layer_and_head_of_an_encoder():
    model = headway.create("bert-mini", vocab_size=50)
    (attention,) = attention_maps(model, [5, 6, 7], layers=[1], heads=[0])
    assert (attention.side, attention.layer, attention.heads) == ("encoder", 1, [0])
    assert attention.weights.shape == (1, 3, 3)


def test_a_text_gets_maps_and_labels():
    tokenizer = train_tokenizer("char", ["a b"])
    model = headway.create("gpt", vocab_size=tokenizer.vocab_size, d_model=8, n_heads=2, n_layers=2, context=16)
    model.tokenizer = tokenizer
    result = text_attention(model, "a b", heads=[1])
    assert result.rows == result.columns
    assert result.rows[-3:] == ["a", "·", "b"]
    assert [(attention.layer, attention.heads) for attention in result.maps] == [(0, [1]), (1, [1])]
    with pytest.raises(InputError, match="a GPT has no source: pass one text"):
        text_attention(model, "a", "b")
    with pytest.raises(InputError, match="layer 2 does not exist: choose 0 to 1"):
        text_attention(model, "a", layers=[2])


def test_unknown_tokens_are_labelled_by_what_they_stand_for():
    tokenizer = train_tokenizer("char", ["abc"])
    model = headway.create(
        "transformer", vocab_size=tokenizer.vocab_size, d_model=8, n_heads=2, n_layers=1, context=8,
        eos_id=tokenizer.eos_id, bos_id=tokenizer.bos_id,
    )  # fmt: skip
    model.tokenizer = tokenizer
    assert text_attention(model, " aXbü", "cY").columns[:-1] == ["a", "<unk> X", "b", "<unk> ü"]
    assert text_attention(model, "a", "cY").rows[:-1] == ["c", "<unk> Y"]
    with pytest.raises(InputError, match="the text has 9 tokens, and this model reads at most 7: shorten it"):
        text_attention(model, "abcabcabc")


def test_a_model_without_attention_says_so():
    model = headway.create("lstm", vocab_size=20, d_model=8, n_layers=1)
    with pytest.raises(InputError, match="an LSTM has no attention layers: choose a gpt, bert or transformer model"):
        attention_maps(model, [1, 2])


PAIR = ("the cat sat", "on a mat")


def small_bert(tokenizer, **config):
    torch.manual_seed(0)
    sizes = {"vocab_size": tokenizer.vocab_size, "d_model": 8, "n_heads": 2, "n_layers": 2, "context": 24}
    bert = headway.create("bert", device="cpu", **sizes | config)
    bert.tokenizer = tokenizer
    return bert


@pytest.mark.parametrize("head", [None, MaskedLM, Classifier, Tagger, SpanReader])
def test_an_encoder_shows_its_special_tokens_and_marks_cls_with_every_head(head):
    tokenizer = train_tokenizer("wordpiece", [" ".join(PAIR)] * 9, 60)
    bert = small_bert(tokenizer, labels=["a", "b"])
    model = bert if head is None else head(bert)
    result = text_attention(model, PAIR[0])
    assert result.rows == result.columns == ["[CLS]", "the", "cat", "sat", "[SEP]"]
    assert (result.side, result.cls_row) == ("encoder", 0)
    ids = torch.tensor([tokenizer.build_inputs(tokenizer.encode(PAIR[0]))[0]])
    expected = reference_weights(model, "encoder", lambda: model.eval()(ids))
    for attention, weights in zip(result.maps, expected, strict=True):
        torch.testing.assert_close(attention.weights, weights[0], rtol=1e-4, atol=1e-5)


def test_a_pair_of_texts_is_attended_to_with_its_segments():
    tokenizer = train_tokenizer("wordpiece", [" ".join(PAIR)] * 9, 60)
    model = small_bert(tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()  # attention far from uniform, segments far from each other
    result = text_attention(model, *PAIR)
    assert result.rows == ["[CLS]", "the", "cat", "sat", "[SEP]", "on", "a", "mat", "[SEP]"]
    ids, segments = (torch.tensor([row]) for row in tokenizer.build_inputs(*map(tokenizer.encode, PAIR)))
    expected = reference_weights(model, "encoder", lambda: model.eval()(ids, None, segments))
    without = reference_weights(model, "encoder", lambda: model.eval()(ids))
    torch.testing.assert_close(result.maps[-1].weights, expected[-1][0], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(expected[-1], without[-1], atol=1e-3)


def test_an_encoder_of_a_tokenizer_without_cls_marks_nothing():
    tokenizer = train_tokenizer("char", ["abc"])
    result = text_attention(small_bert(tokenizer), "abc")
    assert result.rows == ["<|endoftext|>", "a", "b", "c", "<|endoftext|>"]
    assert result.cls_row is None


def test_a_classifier_without_attention_says_so():
    tokenizer = train_tokenizer("wordpiece", ["the cat"], 30)
    bilstm = headway.create("bilstm", vocab_size=tokenizer.vocab_size, d_model=8, n_layers=1, labels=["a", "b"])
    bilstm.tokenizer = tokenizer
    with pytest.raises(InputError, match="a Classifier has no attention layers"):
        text_attention(Classifier(bilstm), "the cat")
