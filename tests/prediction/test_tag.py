"""Every word of a sentence of any length gets a tag, predicted at its first subword."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headway
from headway import tokenizers
from headway.data.tag_schemes import is_valid
from headway.data.words import split_words
from headway.errors import ConfigError, InputError
from headway.models import Tagger
from headway.models.heads import Classifier
from headway.prediction.word_scores import P_OUTSIDE, nearest_window, window_starts, word_log_probs

LABELS = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
TEXT = ["Peter Blackburn and Anna Rossi visit Rome, New York and Paris today. über naïve"] * 5
TOKENIZER = tokenizers.train("wordpiece", TEXT, 80)
WORDS = [word.text for word in split_words(TEXT[0])]


def small_tagger(family="bert", labels=LABELS, tokenizer=TOKENIZER, seed=0, **config):
    torch.manual_seed(seed)
    sizes = {"bert": {"n_layers": 2, "n_heads": 2, "d_model": 16}, "bilstm": {"d_model": 12, "d_hidden": 8}}
    config = {"vocab_size": tokenizer.vocab_size, "context": 32} | sizes.get(family, {}) | config
    encoder = headway.create(family, device="cpu", labels=list(labels), **config)
    encoder.tokenizer = tokenizer
    tagger = Tagger(encoder).eval()
    with torch.no_grad():
        tagger.output.weight.normal_()  # tags that differ from word to word
    return tagger


@pytest.fixture(scope="module")
def token_tagger():
    """Its logits depend on the token alone, so that they are the same in every window."""
    tagger = small_tagger("bow", context=16)
    with torch.no_grad():
        tagger.encoder.bigrams.zero_()
    return tagger


def naive_log_probs(tagger, words):
    """Each word's first subword, in one pass over the whole sentence, word by word."""
    ids, columns = [], []
    start = tagger.tokenizer.build_inputs([-1])[0].index(-1)
    for word in words:
        columns.append(start + len(ids))
        ids += tagger.tokenizer.encode(word)
    with torch.no_grad():
        logits = tagger(torch.tensor([tagger.tokenizer.build_inputs(ids)[0]]))[0]
    return logits.log_softmax(dim=-1)[columns].numpy()


# ── the scores of words ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", ["bert", "bilstm", "bow"])
def test_a_word_is_read_at_its_first_subword_alone_and_in_batches_of_any_order(family):
    tagger = small_tagger(family, context=64)
    rng = np.random.default_rng(1)
    sentences = [list(rng.choice(WORDS, size=n)) for n in (5, 1, 12, 0, 8, 3, 12)]
    for order in (range(7), [4, 0, 6, 2, 5, 1, 3]):
        batched = word_log_probs(tagger, [sentences[i] for i in order], batch_size=3)
        for i, together in zip(order, batched, strict=True):
            assert together.shape == (len(sentences[i]), len(LABELS))
            if sentences[i]:
                [alone] = word_log_probs(tagger, [sentences[i]])
                np.testing.assert_allclose(alone, naive_log_probs(tagger, sentences[i]), atol=1e-5)
                np.testing.assert_allclose(together, alone, atol=1e-5)


@given(st.integers(0, 400), st.integers(1, 60))
def test_windows_cover_every_token_and_each_token_lies_in_its_nearest(n_tokens, width):
    starts = window_starts(n_tokens, width)
    assert starts[0] == 0
    assert all(0 < b - a <= max(1, width // 2) for a, b in pairwise(starts))
    assert starts[-1] + width >= n_tokens
    assert starts[-1] == max(0, n_tokens - width)  # full, if there are enough tokens
    tokens = np.arange(n_tokens)
    for token, window in zip(tokens, nearest_window(tokens, starts, width), strict=True):
        assert starts[window] <= token < starts[window] + width
        margin = min(token - starts[window], starts[window] + width - 1 - token)
        assert margin >= min(token, n_tokens - 1 - token, (width - 2) // 4)  # context on both sides
        distances = [abs(2 * (token - start) - (width - 1)) for start in starts]
        assert window == distances.index(min(distances))


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=120), st.integers(3, 16), st.integers(1, 5))
def test_every_word_of_a_long_sentence_is_read(token_tagger, words, context, batch_size):
    [scores] = word_log_probs(token_tagger, [words], context=context, batch_size=batch_size)
    np.testing.assert_allclose(scores, naive_log_probs(token_tagger, words), atol=1e-5)


def test_a_word_of_a_long_sentence_has_the_scores_of_the_window_whose_middle_is_nearest():
    tagger = small_tagger(context=12)
    words = list(np.random.default_rng(0).choice(WORDS, size=40))
    ids = TOKENIZER.encode(" ".join(words))
    firsts = np.cumsum([0, *(len(TOKENIZER.encode(word)) for word in words)])
    [scores] = word_log_probs(tagger, [words])
    starts = window_starts(len(ids), 10)
    for word in range(40):
        window = min(range(len(starts)), key=lambda i: abs(starts[i] + 4.5 - firsts[word]))
        row = TOKENIZER.build_inputs(ids[starts[window] : starts[window] + 10])[0]
        with torch.no_grad():
            expected = tagger(torch.tensor([row]))[0, 1 + firsts[word] - starts[window]].log_softmax(dim=-1)
        np.testing.assert_allclose(scores[word], expected.numpy(), atol=1e-5)


def test_progress_counts_sentences_and_ends_with_all_of_them():
    tagger, done = small_tagger(context=8), []
    word_log_probs(tagger, [WORDS * 3, WORDS[:2], WORDS], batch_size=2, on_progress=done.append)
    assert done == sorted(done)
    assert done[-1] == 3


# ── texts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_text_is_split_into_words_and_its_entities_are_spans_of_it():
    tagger = small_tagger(seed=3)
    texts = ["Peter Blackburn visits Rome,  New York.", "Anna\tRossi", "", " \n", TEXT[0] * 5]
    for result, text in zip(headway.tag(tagger, texts), texts, strict=True):
        assert result.text == text
        assert result.words == split_words(text)
        assert len(result.tags) == len(result.words) == len(result.probabilities)
        assert is_valid(result.tags, "bio")
        assert all(0 < p <= 1 for p in result.probabilities)
        assert len(result.entities) == sum(tag.startswith("B-") for tag in result.tags)
        for entity in result.entities:
            assert entity.text == text[entity.start : entity.end] == entity.text.strip() != ""
            assert 0 < entity.score <= 1
    assert sum(len(result.entities) for result in headway.tag(tagger, texts)) > 5


def test_an_entity_has_the_mean_probability_of_its_words():
    [result] = headway.tag(small_tagger(seed=3), [TEXT[0]])
    for entity in result.entities:
        inside = [p for word, p in zip(result.words, result.probabilities, strict=True)
                  if entity.start <= word.start < entity.end]  # fmt: skip
        assert entity.score == pytest.approx(np.mean(inside))
        first = next(i for i, word in enumerate(result.words) if word.start == entity.start)
        assert result.tags[first] == f"B-{entity.type}"


def test_given_words_are_kept_and_joined_by_spaces():
    tagger = small_tagger(seed=3)
    words = ["New York", ",", "U.S.", "", "Anna"]
    results = headway.tag(tagger, [words, tuple(words), []])
    assert results[0].text == results[1].text == "New York , U.S.  Anna"
    assert [word.text for word in results[0].words] == words
    for result in results:
        assert all(result.text[word.start : word.end] == word.text for word in result.words)
    assert results[2].to_dict() == {
        "text": "", "words": [], "offsets": [], "tags": [], "probabilities": [], "entities": []
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_unconstrained_tags_are_the_best_of_each_word(seed):
    tagger = small_tagger(seed=seed)
    sentences = [WORDS * 3, WORDS[::-1]]
    results = headway.tag(tagger, sentences, constrained=False)
    for result, scores in zip(results, word_log_probs(tagger, sentences), strict=True):
        assert result.tags == [LABELS[id] for id in scores.argmax(axis=1)]
        assert result.probabilities == pytest.approx(np.exp(scores.max(axis=1)), abs=1e-6)
    assert not all(is_valid(result.tags, "bio") for result in results)
    assert all(is_valid(result.tags, "bio") for result in headway.tag(tagger, sentences))


def test_a_word_without_a_token_is_outside():
    tagger = small_tagger()
    [result] = headway.tag(tagger, [["Rome", "\u200b", "Anna"]])
    assert result.tags[1] == "O"
    assert result.probabilities[1] == pytest.approx(P_OUTSIDE)
    [result] = headway.tag(tagger, [["\u200b"]])
    assert result.tags == ["O"]
    [result] = headway.tag(small_tagger(labels=["B-PER", "I-PER"]), [["\u200b"]])  # there is no O
    assert result.tags == ["B-PER"]


def test_tags_that_mark_no_entities_are_given_as_they_are():
    [result] = headway.tag(small_tagger(labels=["NOUN", "VERB", "O"]), ["Anna visits Rome"])
    assert set(result.tags) <= {"NOUN", "VERB", "O"}
    assert result.entities == []


def test_results_convert_to_plain_values():
    [result] = headway.tag(small_tagger(), ["Anna visits Rome"])
    table = result.to_dict()
    assert table["words"] == ["Anna", "visits", "Rome"]
    assert table["offsets"] == [[0, 4], [5, 11], [12, 16]]
    assert [type(p) for p in table["probabilities"]] == [float] * 3


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────


def test_models_that_do_not_tag_are_refused_with_a_way_out():
    gpt = headway.create("gpt-tiny", device="cpu")
    with pytest.raises(
        InputError, match=r"tag needs an encoder with a tagging head, and this is a GPT: train an encoder"
    ):
        headway.tag(gpt, ["Anna"])
    tagger = small_tagger()
    with pytest.raises(InputError, match=r"this is a BERT without a head: fine-tune it .*train tag --init-from"):
        headway.tag(tagger.encoder, ["Anna"])
    with pytest.raises(InputError, match="this is an encoder with a classification head: use `headway classify`"):
        headway.tag(Classifier(tagger.encoder), ["Anna"])
    with pytest.raises(InputError, match="load"):
        headway.tag("runs/tagger", ["Anna"])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"sentences": "Anna"}, InputError, r"sentences is one string, .* pass a list, \[text\]"),
        ({"context": 2}, ConfigError, "context=2 has no space for text next to 2 special tokens"),
        ({"context": 0}, ConfigError, "context=0 has no space for text next to 2 special tokens"),
        ({"context": 33, "sentences": [WORDS * 9]}, InputError, "33 tokens are longer than the context of 32"),
        ({"batch_size": 0}, InputError, "batch_size=0 is not at least 1"),
    ],
)
def test_arguments_without_a_meaning_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        headway.tag(small_tagger(), **{"sentences": ["Anna visits Rome"], **arguments})
