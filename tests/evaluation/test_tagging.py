"""Entity scores: those of seqeval, on valid and invalid tags of every scheme, and a report of a tagger."""

import random
import warnings

import numpy as np
import pytest
import torch

import headway
from headway import tokenizers
from headway.data.records import TaggedSentence
from headway.data.tag_schemes import is_valid, to_bioes
from headway.errors import InputError
from headway.evaluation.tagging import TaggingReport, tagging_report
from headway.models import Tagger

TYPES = ("PER", "LOC", "MISC-2")
BIO = ["O", *(f"{prefix}-{type}" for prefix in "BI" for type in TYPES)]
BIOES = ["O", *(f"{prefix}-{type}" for prefix in "BIES" for type in TYPES)]


def report_of(truth, predicted, labels=BIOES):
    return TaggingReport(labels, [tags.split() for tags in truth], [tags.split() for tags in predicted])


# ── seqeval ───────────────────────────────────────────────────────────────────────────────────────────────────────


def random_tags(rng, scheme, n_words):
    """A sentence of entities and outside words in a scheme; "any" draws every tag by itself, so most are invalid."""
    if scheme == "any":
        return rng.choices(rng.choice([BIO, BIOES]), k=n_words)
    tags = []
    while len(tags) < n_words:
        type, length = rng.choice((*TYPES, "O", "O")), rng.randint(1, 3)
        tags += ["O"] * length if type == "O" else [f"B-{type}", *[f"I-{type}"] * (length - 1)]
    if scheme == "iob1":
        return [tag.replace("B-", "I-") if rng.random() < 0.8 else tag for tag in tags[:n_words]]
    return tags[:n_words] if scheme == "bio" else to_bioes(tags[:n_words])


def with_errors(rng, tags):
    """The tags with some of them changed, at random or in their prefix or type only."""
    changed = []
    for tag in tags:
        other = rng.choice(BIOES)
        kinds = [tag, other, other[0] + tag[1:] if tag != "O" != other else "O", tag[0] + other[1:]]
        is_tag = [kind for kind in kinds if kind in BIOES]
        changed.append(rng.choice(is_tag) if rng.random() < 0.4 else tag)
    return changed


def test_1000_random_tag_sequences_have_the_scores_of_seqeval():
    """250 data sets of 4 sentences each, seqeval's default mode: micro, macro and per type."""
    metrics = pytest.importorskip("seqeval.metrics", reason="seqeval is not installed (extra metrics)")
    rng = random.Random(0)
    n_valid = n_invalid = n_found = 0
    for number in range(250):
        scheme = ("bio", "bioes", "iob1", "any")[number % 4]
        truth = [random_tags(rng, scheme, rng.randint(0 if number % 9 == 0 else 1, 12)) for _ in range(4)]
        predicted = [with_errors(rng, tags) for tags in truth]
        report = TaggingReport(BIOES, truth, predicted)
        with warnings.catch_warnings(action="ignore"):  # seqeval warns where a score is 0 / 0
            expected = metrics.classification_report(truth, predicted, output_dict=True, zero_division=0)
        scores = {type: counts.scores for type, counts in report.counts_by_type.items()}
        scores |= {"micro avg": report.counts.scores, "macro avg": report.macro_scores}
        assert scores.keys() == expected.keys() - {"weighted avg"}
        for name, values in scores.items():
            theirs = [expected[name][key] for key in ("precision", "recall", "f1-score")]
            assert list(values.values()) == pytest.approx(theirs, abs=1e-12)
        assert all(counts.n_true == expected[type]["support"] for type, counts in report.counts_by_type.items())
        assert report.metrics["f1"] == scores["micro avg"]["f1"]
        if sum(map(len, truth)):
            assert report.accuracy == pytest.approx(metrics.accuracy_score(truth, predicted))
        n_valid += sum(is_valid(tags, "bio") for tags in predicted)
        n_invalid += sum(not is_valid(tags, "bio") for tags in predicted)
        n_found += report.counts.n_correct
    assert min(n_valid, n_invalid, n_found) > 100  # all cases occur


# ── scores by hand ────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_entity_is_found_only_with_its_type_and_both_ends():
    truth = ["B-PER I-PER O B-LOC"]
    scores = {"precision": 0.5, "recall": 0.5, "f1": 0.5}
    assert report_of(truth, ["B-PER I-PER O B-PER"]).counts.scores == scores  # another type
    assert report_of(truth, ["B-PER O O B-LOC"]).counts.scores == scores  # another end
    assert report_of(truth, ["O B-PER O B-LOC"]).counts.scores == scores  # another start
    assert report_of(truth, truth).counts.scores == dict.fromkeys(scores, 1.0)
    assert report_of(truth, ["B-PER E-PER O S-LOC"]).f1 == 1.0  # the same entities in another scheme


def test_micro_averages_count_entities_and_macro_averages_count_types():
    report = report_of(["B-PER B-PER B-PER B-LOC"], ["B-PER B-PER B-PER O"])
    assert report.counts == (3, 3, 4)
    assert report.f1 == pytest.approx(6 / 7)
    assert report.macro_scores == {"precision": 0.5, "recall": 0.5, "f1": 0.5}
    assert report.to_dict()["macro_f1"] == 0.5
    assert report.to_dict()["types"]["LOC"] == {
        "precision": 0.0, "recall": 0.0, "f1": 0.0, "n_correct": 0, "n_predicted": 0, "n_true": 1
    }  # fmt: skip


def test_a_type_that_was_only_predicted_counts_too():
    report = report_of(["B-PER O"], ["B-PER B-LOC"])
    assert list(report.counts_by_type) == ["LOC", "PER"]
    assert report.macro_scores["f1"] == 0.5
    assert report.counts.scores == {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3)}


def test_data_without_entities_scores_zero_and_does_not_fail():
    report = report_of(["O O", ""], ["O O", ""])
    assert report.metrics == {"f1": 0.0, "accuracy": 1.0}
    assert report.macro_scores == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert "micro average" in report.render()


def test_entities_do_not_continue_in_the_next_sentence():
    report = report_of(["B-PER", "I-PER"], ["B-PER", "I-PER"])
    assert report.counts == (2, 2, 2)


def test_sums_over_sentences_give_the_scores_of_any_resample():
    rng = random.Random(1)
    truth = [random_tags(rng, "bio", rng.randint(1, 9)) for _ in range(30)]
    predicted = [with_errors(rng, tags) for tags in truth]
    report = TaggingReport(BIOES, truth, predicted)
    assert report.statistic(report.statistics.sum(axis=0)) == pytest.approx(report.f1)
    rows = np.random.default_rng(0).integers(0, 30, size=(5, 30))
    expected = [TaggingReport(BIOES, [truth[i] for i in row], [predicted[i] for i in row]).f1 for row in rows]
    assert report.statistic(report.statistics[rows].sum(axis=1)) == pytest.approx(expected)


def test_tags_that_mark_no_entities_are_scored_by_accuracy():
    report = report_of(["NN VB", "NN"], ["NN NN", "NN"], labels=["NN", "VB"])
    assert report.metrics == {"accuracy": pytest.approx(2 / 3)}
    assert report.statistic(report.statistics.sum(axis=0)) == pytest.approx(2 / 3)
    assert report.to_dict() == {"accuracy": pytest.approx(2 / 3), "n_sentences": 2, "n_words": 3}
    assert "66.67% of 3 words" in report.render()


# ── a tagger ──────────────────────────────────────────────────────────────────────────────────────────────────────

WORDS = ("Peter", "Blackburn", "visits", "Rome", ".")
TAGS = ("B-PER", "I-PER", "O", "B-LOC", "O")
LABELS = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
TOKENIZER = tokenizers.train("wordpiece", ["Peter Blackburn visits Rome ."] * 3, 60)


def small_tagger(seed=0, labels=LABELS, **config):
    torch.manual_seed(seed)
    sizes = {"vocab_size": TOKENIZER.vocab_size, "context": 16, "n_layers": 1, "n_heads": 2, "d_model": 16}
    bert = headway.create("bert", device="cpu", labels=labels, **sizes | config)
    bert.tokenizer = TOKENIZER
    tagger = Tagger(bert)
    with torch.no_grad():
        tagger.output.weight.normal_()
    return tagger


def test_a_report_scores_every_word_also_those_beyond_the_context():
    long = TaggedSentence(WORDS * 10, TAGS * 10)
    for tagger in (small_tagger(), small_tagger(context=7)):
        report = tagging_report(tagger, [long, TaggedSentence(WORDS, TAGS)], batch_size=2)
        assert report.n_words == 55
        results = headway.tag(tagger, [long.words, WORDS])
        assert [list(tags) for tags in report.predicted] == [result.tags for result in results]
        unconstrained = headway.tag(tagger, [long.words, WORDS], constrained=False)
        assert [list(tags) for tags in report.argmax] == [result.tags for result in unconstrained]


def test_a_report_says_what_the_constraints_changed():
    tagger = small_tagger(seed=2)
    sentences = [TaggedSentence(WORDS[i:], TAGS[i:]) for i in range(4)] + [TaggedSentence(WORDS[::-1], TAGS[::-1])]
    report = tagging_report(tagger, sentences)
    n_invalid = sum(not is_valid(tags, "bio") for tags in report.argmax)
    assert 0 < n_invalid == report.n_invalid == report.to_dict()["n_invalid"]
    assert report.argmax_f1 == TaggingReport(LABELS, report.truth, report.argmax).f1
    assert f"breaks the rules of BIO in {n_invalid} of 5 sentences" in report.render()
    assert all(is_valid(tags, "bio") for tags in report.predicted)


def test_tags_without_rules_have_no_second_score():
    tagger = small_tagger(labels=["NN", "VB"])
    report = tagging_report(tagger, [TaggedSentence(WORDS, ("NN",) * 5)])
    assert report.argmax_f1 is None
    assert "argmax_f1" not in report.to_dict()


def test_only_taggers_have_a_report():
    with pytest.raises(InputError, match="tag needs an encoder with a tagging head"):
        tagging_report(headway.create("gpt-tiny", device="cpu"), [TaggedSentence(WORDS, TAGS)])
