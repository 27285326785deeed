"""Noisy-channel reranking: log-probabilities equal those of the models, token by token, and set the order of beams."""

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
from tests.models.variants import amplified

LETTERS = train_tokenizer("char", ["abcdefghijklmnopqrstuvwxyz "])
WORDS = train_tokenizer("word", ["the cat sat on the mat a dog"])
TEXTS = ["the cat sat", "a", "on the mat sat the cat", "zz top"]


def build(family, tokenizer=LETTERS, **config):
    """A small model with large random weights; an n-gram is fitted to TEXTS."""
    ids = {"vocab_size": tokenizer.vocab_size, "bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id}
    model = headway.create(family, **{**ids, **config})
    if family == "ngram":
        model.fit(torch.tensor([t for text in TEXTS for t in [ids["bos_id"], *tokenizer.encode(text), ids["eos_id"]]]))
    else:
        amplified(model)
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
    """Σ ln p of all tokens but the first: one text, no padding."""
    with torch.no_grad():
        log_p = model(torch.tensor([ids[:-1]]), **source)[0].double().log_softmax(-1)
    return sum(float(log_p[t, token]) for t, token in enumerate(ids[1:]))


@pytest.mark.parametrize("family", TRANSLATORS)
def test_pair_log_probs_sum_those_of_the_tokens(family):
    model = build(family, **TRANSLATORS[family])
    targets = TEXTS[::-1]
    values = pair_log_probs(model, TEXTS, targets)
    for source, target, value in zip(TEXTS, targets, values, strict=True):
        ids = [LETTERS.bos_id, *LETTERS.encode(target), LETTERS.eos_id]
        source_ids = torch.tensor([[*LETTERS.encode(source), LETTERS.eos_id]])
        assert value == pytest.approx(naive(model, ids, source=source_ids), abs=1e-4)
    assert pair_log_probs(model, ["", "a"], ["a", "a"])[0] == -math.inf


@pytest.mark.parametrize("family", LANGUAGE_MODELS)
@pytest.mark.parametrize("tokenizer", [LETTERS, WORDS], ids=["letters", "words"])
def test_text_log_probs_sum_those_of_the_tokens(family, tokenizer):
    model = build(family, tokenizer, **LANGUAGE_MODELS[family])
    for text, value in zip(TEXTS, text_log_probs(model, TEXTS), strict=True):
        ids = [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]
        assert value == pytest.approx(naive(model, ids), abs=1e-4)


def test_a_text_longer_than_the_context_is_scored_in_windows():
    model = build("gpt", **{**LANGUAGE_MODELS["gpt"], "context": 8})
    text = "the cat sat on the mat"
    ids = [LETTERS.bos_id, *LETTERS.encode(text), LETTERS.eos_id]
    expected = sum(naive(model, ids[start : start + 9]) for start in range(0, len(ids) - 1, 8))
    assert text_log_probs(model, [text, "a"])[0] == pytest.approx(expected, abs=1e-4)


def test_an_empty_text_has_the_probability_of_eos():
    model = build("lstm", **LANGUAGE_MODELS["lstm"])
    assert text_log_probs(model, [""])[0] == pytest.approx(naive(model, [LETTERS.bos_id, LETTERS.eos_id]), abs=1e-5)
    assert text_log_probs(model, []) == []


def test_beams_are_sorted_by_the_rerankers_score():
    model, reverse = build("transformer", **TRANSLATORS["transformer"]), build("bahdanau", **TRANSLATORS["bahdanau"])
    lm = build("ngram", **LANGUAGE_MODELS["ngram"])
    weights = ChannelWeights(0.7, 0.4, 0.2, 0.1)
    reranker = NoisyChannelReranker(reverse, lm, weights)
    beams = translate(model, TEXTS, num_beams=6, n_best=6, max_new_tokens=8)
    reranked = translate(model, TEXTS, num_beams=6, n_best=6, max_new_tokens=8, reranker=reranker)
    for text, best_beam, best in zip(TEXTS, beams, reranked, strict=True):
        n = len(LETTERS.encode(text)) + 1
        scores = {}
        for t in (best_beam, *best_beam.others):
            terms = (
                weights.direct * t.log_prob / len(t.tokens),
                weights.channel * pair_log_probs(reverse, [t.text], [text])[0] / n,
                weights.lm * text_log_probs(lm, [t.text])[0] / n,
                weights.length * len(t.tokens) / n,
            )
            scores[tuple(t.tokens)] = sum(terms)
        ranked = [best, *best.others]
        assert [t.score for t in ranked] == pytest.approx(sorted(scores.values(), reverse=True), abs=1e-4)
        assert all(t.score == pytest.approx(scores[tuple(t.tokens)], abs=1e-4) for t in ranked)
    one_best = translate(model, TEXTS, num_beams=6, max_new_tokens=8, reranker=reranker)
    assert [t.tokens for t in one_best] == [t.tokens for t in reranked]


def test_weights_of_0_leave_the_order_of_beams():
    model, lm = build("transformer", **TRANSLATORS["transformer"]), build("gpt", **LANGUAGE_MODELS["gpt"])
    plain = translate(model, [*TEXTS, ""], num_beams=4, n_best=4, max_new_tokens=8)
    reranker = NoisyChannelReranker(None, lm, ChannelWeights(1.0, 0.0, 0.0, 0.0))
    same = translate(model, [*TEXTS, ""], num_beams=4, n_best=4, max_new_tokens=8, reranker=reranker)
    assert [[o.tokens for o in (t, *t.others)] for t in same] == [[o.tokens for o in (t, *t.others)] for t in plain]


def test_tuning_never_lowers_the_metric_on_its_own_data():
    model, reverse = build("transformer", **TRANSLATORS["transformer"]), build("seq2seq", **TRANSLATORS["seq2seq"])
    pairs = [Pair(text, text) for text in TEXTS]
    tuned = tune_reranker(model, NoisyChannelReranker(reverse), pairs, metrics.bleu, num_beams=5)
    assert tuned.after >= tuned.before
    assert tuned.weights.lm == 0


def test_wrong_requests_are_refused():
    model = build("transformer", **TRANSLATORS["transformer"])
    with pytest.raises(ConfigError, match="give at least one"):
        NoisyChannelReranker()
    with pytest.raises(ConfigError, match="draw at random"):
        translate(model, "a", temperature=1.0, reranker=NoisyChannelReranker(model))
    with pytest.raises(InputError, match="has no source"):
        pair_log_probs(build("gpt", **LANGUAGE_MODELS["gpt"]), ["a"], ["b"])
