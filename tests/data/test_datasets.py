"""Datasets for encoders and encoder-decoders: masked tokens, pairs, labels, tags and answer spans."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import tokenizers
from headway.data import (
    IGNORE_INDEX,
    Answer,
    BatchLoader,
    ClassificationDataset,
    LabelledText,
    MLMDataset,
    Pair,
    Question,
    RngKey,
    Seq2SeqDataset,
    SpanDataset,
    TaggedSentence,
    TaggingDataset,
    TokenArray,
    TokenBudgetBatchSampler,
    mask_tokens,
)
from headway.data.sampler import uniforms
from headway.errors import ConfigError, DataError
from headway.evaluation.tasks import ValidationExamples
from headway.training.record_datasets import record_dataset

TEXT = ["The cat sat on the mat in Paris, and Jean-Luc looked at it for a long while. über naïve 1987."] * 5
KINDS = {
    kind: tokenizers.train(kind, TEXT, 300 if kind != "char" else None) for kind in tokenizers.KINDS if kind != "word"
}
KINDS["word"] = tokenizers.train("word", TEXT)
WORDPIECE, BPE = KINDS["wordpiece"], KINDS["bpe"]


# ── masked language modelling ─────────────────────────────────────────────────────────────────────────────────────


def test_of_15_percent_80_become_the_mask_10_a_random_token_10_stay():
    """Devlin et al. 2019, §3.1; tolerances are five standard deviations of 200,000 draws."""
    ids = np.full((200, 1000), 7)
    positions = np.arange(ids.size).reshape(ids.shape)
    masked, targets = mask_tokens(ids, positions, RngKey(1, 0), mask_id=3, vocab_size=1000)
    selected = targets != IGNORE_INDEX
    assert selected.mean() == pytest.approx(0.15, abs=0.004)
    assert (targets[selected] == 7).all()
    assert (masked[~selected] == 7).all()
    assert (masked[selected] == 3).mean() == pytest.approx(0.80, abs=0.012)
    assert (masked[selected] == 7).mean() == pytest.approx(0.10, abs=0.009)
    random_ids = masked[selected][(masked[selected] != 3) & (masked[selected] != 7)]
    assert len(random_ids) / selected.sum() == pytest.approx(0.10, abs=0.009)
    assert random_ids.min() < 20
    assert random_ids.max() > 980


SPECIAL_IDS = frozenset({0, 1})


@st.composite
def token_rows(draw):
    """Short rows, of which many are selected no token by chance, with special tokens among them."""
    B, T = draw(st.integers(1, 8)), draw(st.integers(1, 12))
    ids = draw(st.lists(st.integers(0, 4), min_size=B * T, max_size=B * T))
    start = draw(st.integers(0, 10**6))
    return np.array(ids).reshape(B, T), start + np.arange(B * T).reshape(B, T)


@given(token_rows(), st.integers(0, 10**6), st.integers(0, 50))
def test_every_row_with_a_maskable_token_has_a_target_and_special_tokens_never_are(rows, seed, epoch):
    ids, positions = rows
    kwargs = {"mask_id": 9, "vocab_size": 5, "special_ids": SPECIAL_IDS}
    masked, targets = mask_tokens(ids, positions, RngKey(seed, epoch), **kwargs)
    is_special = np.isin(ids, list(SPECIAL_IDS))
    is_target = targets != IGNORE_INDEX
    assert (is_target.any(axis=1) == ~is_special.all(axis=1)).all()
    assert not is_target[is_special].any()
    assert (masked[~is_target] == ids[~is_target]).all()
    again = mask_tokens(ids, positions, RngKey(seed, epoch), **kwargs)
    assert (again[0] == masked).all()
    assert (again[1] == targets).all()


@given(token_rows(), st.integers(0, 10**6), st.integers(0, 50))
def test_rows_with_a_token_below_15_percent_have_exactly_those_targets_and_others_their_smallest(rows, seed, epoch):
    ids, positions = rows
    _, targets = mask_tokens(ids, positions, RngKey(seed, epoch), mask_id=9, vocab_size=5, special_ids=SPECIAL_IDS)
    u = np.where(np.isin(ids, list(SPECIAL_IDS)), np.inf, uniforms("mask", seed, epoch, counters=positions))
    for row_targets, row_ids, numbers in zip(targets, ids, u, strict=True):
        if (numbers < 0.15).any():
            expected = np.where(numbers < 0.15, row_ids, IGNORE_INDEX)
        else:
            is_smallest = np.isfinite(numbers) & (np.arange(len(numbers)) == numbers.argmin())
            expected = np.where(is_smallest, row_ids, IGNORE_INDEX)
        assert row_targets.tolist() == expected.tolist()


@pytest.mark.parametrize("width", [1, 2, 3])
def test_targets_of_tiny_rows_are_replaced_like_all_others(width):
    """80 %, 10 %, 10 % within five standard deviations, although most rows have a target only by exception."""
    ids = np.full((20_000, width), 7)
    positions = np.arange(ids.size).reshape(ids.shape)
    masked, targets = mask_tokens(ids, positions, RngKey(3, 2), mask_id=3, vocab_size=1000)
    selected = masked[targets != IGNORE_INDEX]
    assert ((targets != IGNORE_INDEX).sum(axis=1) >= 1).all()
    for fraction, expected in (((selected == 3).mean(), 0.8), ((selected == 7).mean(), 0.1)):
        assert fraction == pytest.approx(expected, abs=5 * math.sqrt(expected * (1 - expected) / len(selected)) + 1e-4)


@pytest.mark.parametrize("n_rows", [1, 50])
def test_long_rows_keep_the_fraction_of_15_percent(n_rows):
    """Within five standard deviations."""
    ids = np.full((n_rows, 2000), 7)
    _, targets = mask_tokens(ids, np.arange(ids.size).reshape(ids.shape), RngKey(5, 1), mask_id=3, vocab_size=10)
    deviation = math.sqrt(0.15 * 0.85 / ids.size)
    assert (targets != IGNORE_INDEX).mean() == pytest.approx(0.15, abs=5 * deviation)


def test_a_short_text_without_a_selected_token_is_scored_all_the_same():
    """It scored a perplexity of 1.0: the mean of no loss. A uniform guess has the vocabulary's size as perplexity."""
    ids = WORDPIECE.encode("the cat sat on")
    log_v = math.log(WORDPIECE.vocab_size)
    for seed in range(20):
        loader = BatchLoader(MLMDataset(TokenArray.of(ids), 16, WORDPIECE), 4, seed=seed, shuffle=False)
        score = ValidationExamples(loader).score(lambda batch: (torch.tensor(batch.n_targets * log_v), None))
        assert score.n_targets >= 1
        assert score.perplexity == pytest.approx(WORDPIECE.vocab_size, rel=1e-4)


def test_a_text_in_which_nothing_can_be_masked_is_refused():
    unknown = WORDPIECE.special_ids["[UNK]"]
    with pytest.raises(DataError, match="nothing can be masked: all 40 tokens are special tokens"):
        MLMDataset(TokenArray.of([unknown] * 40), 16, WORDPIECE)
    with pytest.raises(DataError, match=r"too short to learn from \(tokens: 0\)"):
        MLMDataset(TokenArray.of([]), 16, WORDPIECE)
    cat = WORDPIECE.encode("cat")[0]
    dataset = MLMDataset(TokenArray.of([unknown] * 3 + [cat] + [unknown] * 3), 16, WORDPIECE)
    for epoch in range(10):
        assert dataset.collate(np.arange(len(dataset)), RngKey(1, epoch)).n_targets == 1


def test_masked_batches_are_framed_and_reproducible():
    stream = WORDPIECE.encode(" ".join(TEXT))
    dataset = MLMDataset(TokenArray.of(stream), 16, WORDPIECE)
    loader = BatchLoader(dataset, 2, seed=3)
    batch = loader.at(1, 2)
    cls, sep = WORDPIECE.special_ids["[CLS]"], WORDPIECE.special_ids["[SEP]"]
    assert (batch.ids[:, 0] == cls).all()
    assert (batch.ids[:, -1] == sep).all()
    assert (batch.targets[:, [0, -1]] == IGNORE_INDEX).all()
    assert batch.mask.all()
    assert torch.equal(batch.ids, loader.at(1, 2).ids)
    assert not torch.equal(loader.at(2, 2).ids, batch.ids)
    all_rows = dataset.collate(np.arange(len(dataset)), RngKey(3, 1))
    single = dataset.collate(np.array([5]), RngKey(3, 1))
    assert torch.equal(all_rows.ids[5], single.ids[0])  # masking does not depend on the rest of the batch
    with pytest.raises(ConfigError, match="no mask token"):
        MLMDataset(TokenArray.of(stream), 16, BPE)


# ── pairs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pairs_are_shifted_and_padded():
    pairs = [Pair("The cat", "sat on"), Pair("a", "the mat in Paris"), Pair("it", "x")]
    dataset = Seq2SeqDataset(pairs, BPE)
    batch = dataset.collate(np.arange(3))
    for i, pair in enumerate(pairs):
        source, target = BPE.encode(pair.source), BPE.encode(pair.target)
        assert batch.source[i][batch.source_mask[i]].tolist() == [*source, BPE.eos_id]
        assert batch.inputs[i][batch.target_mask[i]].tolist() == [BPE.bos_id, *target]
        assert batch.targets[i][batch.target_mask[i]].tolist() == [*target, BPE.eos_id]
        assert (batch.targets[i][~batch.target_mask[i]] == IGNORE_INDEX).all()
    assert dataset.lengths.tolist() == [[len(BPE.encode(p.source)) + 1, len(BPE.encode(p.target)) + 1] for p in pairs]


def test_batches_of_pairs_stay_within_the_token_budget():
    rng = np.random.default_rng(1)
    pairs = [Pair("cat " * rng.integers(1, 12), "mat " * rng.integers(1, 12)) for _ in range(200)]
    dataset = Seq2SeqDataset(pairs, BPE)
    loader = BatchLoader(dataset, sampler=TokenBudgetBatchSampler(dataset.lengths, 300, seed=1))
    n_rows = 0
    for batch in loader.epoch(4):
        assert batch.source.numel() + batch.inputs.numel() <= 300
        n_rows += len(batch)
    assert n_rows == 200


def test_long_pairs_are_dropped_or_truncated():
    pairs = [Pair("cat " * 50, "mat"), Pair("cat", "mat")]
    assert len(Seq2SeqDataset(pairs, BPE, context=20)) == 1
    assert Seq2SeqDataset(pairs, BPE, context=20).n_long == 1
    truncated = Seq2SeqDataset(pairs, BPE, context=20, truncate=True)
    assert truncated.lengths.max() == 20
    with pytest.raises(DataError, match="all 1 are longer than context=20"):
        Seq2SeqDataset(pairs[:1], BPE, context=20)
    with pytest.raises(ConfigError, match="needs a BOS and an EOS token"):
        Seq2SeqDataset(pairs, WORDPIECE)


# ── labels and tags ───────────────────────────────────────────────────────────────────────────────────────────────


def test_labels_are_numbered_in_order():
    records = [LabelledText("The cat", "10"), LabelledText("the mat " * 30, "9"), LabelledText("it", "10")]
    dataset = ClassificationDataset(records, WORDPIECE, context=12)
    assert dataset.labels == ["9", "10"]
    batch = dataset.collate(np.array([1, 0]))
    assert batch.labels.tolist() == [0, 1]
    assert batch.ids.shape == (2, 12)
    assert batch.mask.sum(1).tolist() == [12, dataset.lengths[0]]
    assert ClassificationDataset(records, WORDPIECE, 12, labels=["10", "9"]).targets.tolist() == [0, 1, 0]
    with pytest.raises(DataError, match=r"^example 2, 'the mat the mat .*…': label '9' is not one of 10\."):
        ClassificationDataset(records, WORDPIECE, 12, labels=["10"])


def test_an_example_without_tokens_is_refused():
    """Attention over nothing is not a number, and a row of padding has no label to learn."""
    bare = tokenizers.train("char", ["the cat"])
    bare.special_tokens = dict.fromkeys(bare.special_tokens)
    records = [LabelledText("the cat", "a"), LabelledText("", "b")]
    with pytest.raises(DataError, match=r"example 2 has no tokens: its text is empty, .*; leave it out"):
        ClassificationDataset(records, bare, context=12)
    assert ClassificationDataset(records, WORDPIECE, context=12).lengths[1] == 2  # [CLS] [SEP]


def test_sentences_without_a_tag_to_predict_are_refused():
    with pytest.raises(DataError, match="no word of 2 sentences has a token, so there is no tag to predict"):
        TaggingDataset([TaggedSentence((), ()), TaggedSentence(("\u200b",), ("O",))], WORDPIECE, context=12)


@pytest.mark.parametrize("objective", ["classify", "tag"])
def test_a_single_label_is_refused(objective):
    """Every prediction would be right, and the loss 0."""
    records = [LabelledText("it", "a")] if objective == "classify" else [TaggedSentence(("it",), ("a",))]
    with pytest.raises(DataError, match="'a' is the only label, so every prediction is right and the loss is 0"):
        record_dataset(objective, records, WORDPIECE, 12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tag_is_at_the_first_subword_of_its_word(kind):
    tokenizer = KINDS[kind]
    words = ("The", "cat", "sat", "in", "Paris", ",", "naïve", "Jean-Luc")
    tags = ("O", "O", "O", "O", "B-LOC", "O", "O", "B-PER")
    dataset = TaggingDataset([TaggedSentence(words, tags), TaggedSentence(("it",), ("O",))], tokenizer, context=64)
    batch = dataset.collate(np.arange(2))
    tag_ids = batch.tags[0][batch.tags[0] != IGNORE_INDEX]
    assert [dataset.tags[i] for i in tag_ids] == list(tags)
    assert (batch.tags[1] != IGNORE_INDEX).sum() == 1
    text = " ".join(words)
    n_leading = tokenizer.build_inputs([-1])[0].index(-1)
    offsets = tokenizer.encode_with_offsets(text).offsets
    paris = int((batch.tags[0] == dataset.tags.index("B-LOC")).nonzero())
    assert text[slice(*offsets[paris - n_leading])].strip()[0] == "P"


def test_long_sentences_are_truncated():
    dataset = TaggingDataset([TaggedSentence(("cat",) * 50, ("O",) * 50)], WORDPIECE, context=10)
    batch = dataset.collate(np.array([0]))
    assert batch.ids.shape == batch.tags.shape == (1, 10)
    assert (batch.tags != IGNORE_INDEX).sum() <= 8


# ── answer spans ──────────────────────────────────────────────────────────────────────────────────────────────────

CONTEXT = "The cat sat on the mat in Paris, and Jean-Luc looked at it for a long while."


@pytest.mark.parametrize("kind", KINDS)
@given(st.integers(0, 12), st.integers(1, 3))
@settings(max_examples=15)
def test_the_span_of_an_answer_decodes_to_its_text(kind, first, n):
    words = CONTEXT.split()
    answer = " ".join(words[first : first + n]).rstrip(".,")
    start = len(" ".join([*words[:first], ""]))
    question = Question("q", "Where?", CONTEXT, (Answer(answer, start),))
    dataset = SpanDataset([question], KINDS[kind], context=200)
    batch = dataset.collate(np.array([0]))
    assert dataset.text(0, int(batch.starts[0]), int(batch.ends[0])).startswith(answer)
    assert dataset.text(0, 0, 0) == ""


def test_long_contexts_become_overlapping_rows():
    question = Question("q", "Who?", CONTEXT * 6, (Answer("Jean-Luc", CONTEXT.index("Jean")),))
    dataset = SpanDataset([question, Question("r", "Why?", CONTEXT, ())], WORDPIECE, context=40, overlap=12)
    assert len(dataset) > 4
    batch = dataset.collate(np.arange(len(dataset)))
    assert batch.ids.shape[1] <= 40
    texts = [dataset.text(i, int(s), int(e)) for i, (s, e) in enumerate(zip(batch.starts, batch.ends, strict=True))]
    assert "jean-luc" in [text.lower() for text in texts]
    assert texts[-1] == ""  # unanswerable
    assert set(batch.segments.unique().tolist()) == {0, 1}
    n_tokens = len(WORDPIECE.encode(CONTEXT * 6))
    rows = [(columns, first) for number, columns, first in dataset.row_origins if number == 0]
    covered = {first + i for columns, first in rows for i in range(columns.stop - columns.start)}
    assert covered == set(range(n_tokens))


def test_rows_overlap_by_at_most_half():
    question = Question("q", "Who?", CONTEXT * 6, ())
    assert len(SpanDataset([question], WORDPIECE, context=60)) < 12


def test_spaces_around_an_answer_are_ignored():
    question = Question("q", "Who?", CONTEXT, (Answer(" Jean-Luc ", CONTEXT.index(" Jean")),))
    dataset = SpanDataset([question], WORDPIECE, context=60)
    assert dataset.text(0, *dataset.spans[0].tolist()) == "Jean-Luc"
