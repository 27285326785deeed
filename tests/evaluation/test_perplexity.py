"""Bits per byte: every byte is charged, and no family or tokenizer has an advantage."""

import math
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import headway
from headway import tokenizers
from headway.errors import ConfigError, DataError, InputError
from headway.evaluation.perplexity import evaluate
from headway.evaluation.validation import NonFiniteLossError
from tests.models.variants import TINY, amplified

TEXT = "the cat sat on the mat, and the dog was not amused. " * 4


def model_for(tokenizer, **config):
    model = amplified(headway.create("gpt", **{**TINY, "n_layers": 1, "vocab_size": tokenizer.vocab_size, **config}))
    model.tokenizer = tokenizer
    return model


def by_hand(model, ids, context):
    """−ln p of every token after the first, window by window, one token at a time."""
    total = 0.0
    for t in range(1, len(ids)):
        start = (t - 1) // context * context
        logits = model(torch.tensor([ids[start:t]]))[0, -1]
        total -= logits.log_softmax(-1)[ids[t]].item()
    return total


@pytest.mark.parametrize("kind", ["bpe", "char"])
@pytest.mark.parametrize("context", [7, 24])
def test_equals_scoring_token_by_token(kind, context):
    tokenizer = tokenizers.train(kind, [TEXT], 280)
    model = model_for(tokenizer)
    score = evaluate(model, TEXT, context=context, batch_size=3)
    ids = tokenizer.encode_stream([TEXT])
    nats = by_hand(model, ids, context)
    assert score.n_tokens == len(ids) - 1
    assert score.n_bytes == len(TEXT)
    assert score.nats_per_token == pytest.approx(nats / (len(ids) - 1), rel=1e-5)
    assert score.bits_per_byte == pytest.approx(nats / math.log(2) / len(TEXT), rel=1e-5)
    assert score.perplexity == pytest.approx(math.exp(nats / (len(ids) - 1)), rel=1e-5)


def test_the_batch_size_does_not_change_the_score():
    model = model_for(tokenizers.train("char", [TEXT]))
    assert evaluate(model, TEXT, batch_size=1).bits_per_byte == pytest.approx(
        evaluate(model, TEXT, batch_size=16).bits_per_byte, rel=1e-6
    )


def test_a_uniform_model_needs_log2_v_bits_per_token():
    tokenizer = tokenizers.train("char", [TEXT])
    model = headway.create("ngram", vocab_size=tokenizer.vocab_size)
    model.tokenizer = tokenizer
    score = evaluate(model, TEXT)
    bits = math.log2(tokenizer.vocab_size)
    assert score.bits_per_byte == pytest.approx(bits * (len(TEXT) + 1) / len(TEXT))  # one more: EOS


def test_without_bos_the_first_token_costs_log2_v_bits():
    tokenizer = tokenizers.train("char", [TEXT])
    tokenizer.special_tokens |= {"bos": None, "eos": None}
    model = model_for(tokenizer)
    score = evaluate(model, "cat", context=24)
    ids = tokenizer.encode("cat")
    nats = math.log(tokenizer.vocab_size) + by_hand(model, ids, 24)
    assert score.n_tokens == 3
    assert score.bits_per_byte == pytest.approx(nats / math.log(2) / 3, rel=1e-5)


def test_bos_is_given_not_predicted():
    tokenizer = tokenizers.train("char", [TEXT])
    tokenizer.backend.add_special_tokens(["<s>"])
    tokenizer.special_tokens["bos"] = "<s>"
    model = model_for(tokenizer)
    score = evaluate(model, ["cat", "dog"], context=24)
    ids = tokenizer.encode_stream(["cat", "dog"])
    assert len(ids) == 10  # <s> c a t EOS <s> d o g EOS
    assert score.n_tokens == 8
    logits = model(torch.tensor([ids[:-1]])).log_softmax(-1)[0]
    nats = -sum(logits[t - 1, ids[t]].item() for t in range(1, 10) if t != 5)
    assert_close(score.nats_per_token * 8, nats, rtol=1e-5, atol=1e-5)


def test_bytes_lost_in_unk_are_charged_8_bits_each():
    """On top of predicting <unk>: an unknown character is never a silent advantage."""
    tokenizer = tokenizers.train("char", [TEXT])
    model = model_for(tokenizer)
    score = evaluate(model, "cat語")
    ids = tokenizer.encode_stream(["cat語"])
    bits = by_hand(model, ids, 24) / math.log(2)
    assert score.lost_bytes == 3
    assert score.n_bytes == 6
    assert score.bits_per_byte == pytest.approx((bits + 24) / 6, rel=1e-5)


def test_bos_spelled_in_the_text_is_charged_like_any_token():
    """The BOS tokens that are given are known by their positions, not by their id."""
    import tokenizers as rust

    backend = rust.Tokenizer(rust.models.WordLevel({"<s>": 0, "a": 1, " ": 2}))
    backend.pre_tokenizer = rust.pre_tokenizers.Split(rust.Regex(" "), behavior="isolated")
    backend.decoder = rust.decoders.Fuse()
    tokenizer = tokenizers.Tokenizer(backend, bos="<s>")
    assert tokenizer.encode("a <s>") == [1, 2, 0]
    assert evaluate(model_for(tokenizer), "a <s>").n_tokens == 3


@pytest.mark.parametrize("wrong", [{"context": -1}, {"context": 0}, {"batch_size": 0}])
def test_sizes_below_1_are_refused(wrong):
    model = model_for(tokenizers.train("char", [TEXT]))
    with pytest.raises(ConfigError, match="must be at least 1"):
        evaluate(model, TEXT, **wrong)


def test_an_encoder_decoder_is_refused():
    model = headway.create("transformer-mini")
    with pytest.raises(InputError, match="Transformer is a sequence-to-sequence model"):
        evaluate(model, TEXT)


def test_a_text_that_is_the_name_of_a_file_is_scored_with_a_warning(tmp_path, monkeypatch, recwarn):
    monkeypatch.chdir(tmp_path)
    model = model_for(tokenizers.train("char", [TEXT, "tales.txt"]))
    expected = evaluate(model, "tales.txt")
    assert not recwarn.list  # no such file
    (tmp_path / "tales.txt").write_text(TEXT)
    with pytest.warns(UserWarning, match=r"scoring the text 'tales.txt' itself; .*: Path\('tales.txt'\)") as warned:
        assert evaluate(model, "tales.txt") == expected
    assert warned[0].filename == __file__  # the warning points at the caller
    evaluate(model, ("tales.txt " * 500).strip())  # too long for a path
    assert not recwarn.list
    with pytest.raises(InputError, match=r"pass Path\('tales.txt'\).read_text\(\)"):
        evaluate(model, Path("tales.txt"))


def test_scoring_restores_training_mode():
    model = model_for(tokenizers.train("char", [TEXT])).train()
    evaluate(model, TEXT)
    assert model.training


def test_an_empty_text_is_refused():
    model = model_for(tokenizers.train("char", [TEXT]))
    with pytest.raises(DataError, match="no text to score"):
        evaluate(model, "")
    model.tokenizer = None
    with pytest.raises(InputError, match="no tokenizer"):
        evaluate(model, TEXT)


def test_a_single_token_without_bos_is_refused():
    """It would be charged ln V whatever the model: a score of the tokenizer alone."""
    tokenizer = tokenizers.train("char", ["ab"])
    tokenizer.special_tokens = dict.fromkeys(tokenizer.special_tokens)
    model = model_for(tokenizer)
    with pytest.raises(DataError, match=r"nothing to predict in a text of 1 byte and 1 token.*give a longer text"):
        evaluate(model, "a")
    assert evaluate(model, "ab").n_tokens == 2


@pytest.mark.parametrize("family", ["gpt", "nplm", "rnn", "lstm"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_no_numbers_have_no_score(family, value):
    tokenizer = tokenizers.train("char", [TEXT])
    sizes = {"n_layers": 1, "n_heads": 2} if family == "gpt" else {}
    model = headway.create(family, vocab_size=tokenizer.vocab_size, d_model=16, **sizes)
    model.tokenizer = tokenizer
    with torch.no_grad():
        for parameter in model.parameters():
            parameter[..., 0] = value
    with pytest.raises(NonFiniteLossError, match=r"the loss is nan nats per target.*the weights hold NaN or infinity"):
        evaluate(model, TEXT)


def test_an_ngram_without_smoothing_scores_unseen_text_as_infinite():
    tokenizer = tokenizers.train("char", [TEXT])
    model = headway.create("ngram", vocab_size=tokenizer.vocab_size, order=2, smoothing="none")
    model.fit(torch.tensor(tokenizer.encode_stream(["the cat"]))).tokenizer = tokenizer
    score = evaluate(model, "tac eht")
    assert (score.nats_per_token, score.bits_per_byte, score.perplexity) == (math.inf, math.inf, math.inf)


def test_an_infinite_loss_of_infinite_weights_is_refused():
    """A neural model that gives a token the probability 0 for this reason is broken, not honest."""
    tokenizer = tokenizers.train("char", [TEXT])
    model = headway.create("nplm", vocab_size=tokenizer.vocab_size)
    model.tokenizer = tokenizer
    with torch.no_grad():
        model.bias[tokenizer.encode("t")[0]] = -math.inf
    with pytest.raises(NonFiniteLossError, match="the loss is infinite, since the weights 'bias' hold NaN or infinity"):
        evaluate(model, TEXT)
