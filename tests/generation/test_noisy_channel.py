"""Texts scored by every family, and beams reranked: equal to the models' own probabilities, token by token."""

import math

import pytest
import torch

import headway
from headway.data.records import Pair
from headway.errors import ConfigError, InputError
from headway.evaluation import metrics
from headway.generation.noisy_channel import ChannelWeights, NoisyChannelReranker, pair_log_probs, text_log_probs
from headway.generation.translate import translate, tune_reranker
from headway.tokenizers import train as train_tokenizer
from tests.models.variants import loud

LETTERS = train_tokenizer("char", ["abcdefghijklmnopqrstuvwxyz "])
WORDS = train_tokenizer("word", ["the cat sat on the mat a dog"])
TEXTS = ["the cat sat", "a", "on the mat sat the cat", "zz top"]
SIZES = {"vocab_size": LETTERS.vocab_size, "bos_id": LETTERS.bos_id, "eos_id": LETTERS.eos_id}


def made(family, tokenizer=LETTERS, **config):
    ids = {"vocab_size": tokenizer.vocab_size, "bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id}
    model = headway.create(family, **{**ids, **config})
    if family == "ngram":
        model.fit(torch.tensor([t for text in TEXTS for t in [ids["bos_id"], *tokenizer.encode(text), ids["eos_id"]]]))
    else:
        loud(model)
    model.tokenizer = tokenizer
    return model.eval()


TRANSLATORS = {
    "transformer": {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 24, "context": 32},
    "bahdanau": {"d_model": 12, "d_hidden": 10, "context": 32},
    "seq2seq": {"d_model": 12, "n_layers": 2, "context": 32},
}
LANGUAGE_MODELS = {
    "gpt": {"d_model": 16, "n_heads": 2, "n_layers": 1, "context": 32},
    "lstm": {"d_model": 12},
    "nplm": {"d_model": 8, "d_hidden": 9},
    "ngram": {"order": 3},
}


def naive(model, ids, **source):
    """Σ ln p of all but the first, one text, no padding."""
    with torch.no_grad():
        log_p = model(torch.tensor([ids[:-1]]), **source)[0].double().log_softmax(-1)
    return sum(float(log_p[t, token]) for t, token in enumerate(ids[1:]))


@pytest.mark.parametrize("family", TRANSLATORS)
def test_pairs_have_the_probability_that_the_model_gives_their_tokens(family):
    model = made(family, **TRANSLATORS[family])
    targets = TEXTS[::-1]
    found = pair_log_probs(model, TEXTS, targets)
    for source, target, value in zip(TEXTS, targets, found, strict=True):
        ids = [LETTERS.bos_id, *LETTERS.encode(target), LETTERS.eos_id]
        read = torch.tensor([[*LETTERS.encode(source), LETTERS.eos_id]])
        assert value == pytest.approx(naive(model, ids, source=read), abs=1e-4)
    assert pair_log_probs(model, ["", "a"], ["a", "a"])[0] == -math.inf


@pytest.mark.parametrize("family", LANGUAGE_MODELS)
@pytest.mark.parametrize("tokenizer", [LETTERS, WORDS], ids=["letters", "words"])
def test_texts_have_the_probability_that_the_model_gives_their_tokens(family, tokenizer):
    model = made(family, tokenizer, **LANGUAGE_MODELS[family])
    for text, value in zip(TEXTS, text_log_probs(model, TEXTS), strict=True):
        ids = [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]
        assert value == pytest.approx(naive(model, ids), abs=1e-4)


def test_a_text_longer_than_the_context_is_paid_for_in_windows():
    model = made("gpt", **{**LANGUAGE_MODELS["gpt"], "context": 8})
    text = "the cat sat on the mat"
    ids = [LETTERS.bos_id, *LETTERS.encode(text), LETTERS.eos_id]
    wanted = sum(naive(model, ids[at : at + 9]) for at in range(0, len(ids) - 1, 8))
    assert text_log_probs(model, [text, "a"])[0] == pytest.approx(wanted, abs=1e-4)


def test_empty_texts_have_the_probability_of_an_end_alone():
    model = made("lstm", **LANGUAGE_MODELS["lstm"])
    assert text_log_probs(model, [""])[0] == pytest.approx(naive(model, [LETTERS.bos_id, LETTERS.eos_id]), abs=1e-5)
    assert text_log_probs(model, []) == []


def test_beams_are_in_the_order_of_the_channels_score():
    model, back = made("transformer", **TRANSLATORS["transformer"]), made("bahdanau", **TRANSLATORS["bahdanau"])
    lm = made("ngram", **LANGUAGE_MODELS["ngram"])
    weights = ChannelWeights(0.7, 0.4, 0.2, 0.1)
    beams = translate(model, TEXTS, num_beams=6, n_best=6, max_new_tokens=8)
    found = translate(
        model, TEXTS, num_beams=6, n_best=6, max_new_tokens=8, reranker=NoisyChannelReranker(back, lm, weights)
    )
    for text, before, after in zip(TEXTS, beams, found, strict=True):
        candidates, n = [before, *before.others], len(LETTERS.encode(text)) + 1
        scores = {}
        for t in candidates:
            terms = (
                weights.direct * t.log_prob / len(t.tokens),
                weights.channel * pair_log_probs(back, [t.text], [text])[0] / n,
                weights.lm * text_log_probs(lm, [t.text])[0] / n,
                weights.length * len(t.tokens) / n,
            )
            scores[tuple(t.tokens)] = sum(terms)
        ranked = [after, *after.others]
        assert [t.score for t in ranked] == pytest.approx(sorted(scores.values(), reverse=True), abs=1e-4)
        assert all(t.score == pytest.approx(scores[tuple(t.tokens)], abs=1e-4) for t in ranked)
    one = translate(model, TEXTS, num_beams=6, max_new_tokens=8, reranker=NoisyChannelReranker(back, lm, weights))
    assert [t.tokens for t in one] == [t.tokens for t in found]


def test_without_a_say_the_channel_leaves_beams_as_they_are():
    model, lm = made("transformer", **TRANSLATORS["transformer"]), made("gpt", **LANGUAGE_MODELS["gpt"])
    plain = translate(model, [*TEXTS, ""], num_beams=4, n_best=4, max_new_tokens=8)
    silent = NoisyChannelReranker(None, lm, ChannelWeights(1.0, 0.0, 0.0, 0.0))
    same = translate(model, [*TEXTS, ""], num_beams=4, n_best=4, max_new_tokens=8, reranker=silent)
    assert [[o.tokens for o in (t, *t.others)] for t in same] == [[o.tokens for o in (t, *t.others)] for t in plain]


def test_tuned_weights_do_at_least_as_well_where_they_were_tuned():
    model, back = made("transformer", **TRANSLATORS["transformer"]), made("seq2seq", **TRANSLATORS["seq2seq"])
    pairs = [Pair(text, text) for text in TEXTS]
    found = tune_reranker(model, NoisyChannelReranker(back), pairs, metrics.bleu, num_beams=5)
    assert found.after >= found.before
    assert found.weights.lm == 0


def test_what_cannot_be_is_refused():
    model = made("transformer", **TRANSLATORS["transformer"])
    with pytest.raises(ConfigError, match="give one"):
        NoisyChannelReranker()
    with pytest.raises(ConfigError, match="draws at random"):
        translate(model, "a", temperature=1.0, reranker=NoisyChannelReranker(model))
    with pytest.raises(InputError, match="has no source"):
        pair_log_probs(made("gpt", **LANGUAGE_MODELS["gpt"]), ["a"], ["b"])
