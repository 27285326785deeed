"""Batches for encoders and encoder-decoders: what is hidden, padded, tagged and pointed at."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import tokenizers
from headway.data import (
    IGNORE,
    Answer,
    BatchLoader,
    ClassificationDataset,
    Labelled,
    MLMDataset,
    Pair,
    Question,
    RngKey,
    Seq2SeqDataset,
    SpanDataset,
    Tagged,
    TaggingDataset,
    TokenArray,
    TokenBudgetBatchSampler,
    mask_tokens,
)
from headway.errors import ConfigError, DataError

TEXT = ["The cat sat on the mat in Paris, and Jean-Luc looked at it for a long while. über naïve 1987."] * 5
KINDS = {
    kind: tokenizers.train(kind, TEXT, 300 if kind != "char" else None) for kind in tokenizers.KINDS if kind != "word"
}
KINDS["word"] = tokenizers.train("word", TEXT)
WORDPIECE, BPE = KINDS["wordpiece"], KINDS["bpe"]


# ── masked ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_of_fifteen_percent_eighty_become_the_mask_ten_another_ten_stay():
    """Devlin et al. 2019, §3.1; tolerances are five standard deviations of 200,000 draws."""
    ids = np.full((200, 1000), 7)
    places = np.arange(ids.size).reshape(ids.shape)
    hidden, targets = mask_tokens(ids, places, RngKey(1, 0), mask_id=3, vocab_size=1000)
    chosen = targets != IGNORE
    assert chosen.mean() == pytest.approx(0.15, abs=0.004)
    assert (targets[chosen] == 7).all()
    assert (hidden[~chosen] == 7).all()
    assert (hidden[chosen] == 3).mean() == pytest.approx(0.80, abs=0.012)
    assert (hidden[chosen] == 7).mean() == pytest.approx(0.10, abs=0.009)
    others = hidden[chosen][(hidden[chosen] != 3) & (hidden[chosen] != 7)]
    assert len(others) / chosen.sum() == pytest.approx(0.10, abs=0.009)
    assert others.min() < 20
    assert others.max() > 980


def test_masked_batches_are_framed_and_can_be_made_again():
    stream = WORDPIECE.encode(" ".join(TEXT))
    examples = MLMDataset(TokenArray.of(stream), 16, WORDPIECE)
    batches = BatchLoader(examples, 2, seed=3)
    batch = batches.at(1, 2)
    cls, sep = WORDPIECE.special_ids["[CLS]"], WORDPIECE.special_ids["[SEP]"]
    assert (batch.ids[:, 0] == cls).all()
    assert (batch.ids[:, -1] == sep).all()
    assert (batch.targets[:, [0, -1]] == IGNORE).all()
    assert batch.mask.all()
    assert torch.equal(batch.ids, batches.at(1, 2).ids)
    assert not torch.equal(batches.at(2, 2).ids, batch.ids)
    whole = examples.collate(np.arange(len(examples)), RngKey(3, 1))
    alone = examples.collate(np.array([5]), RngKey(3, 1))
    assert torch.equal(whole.ids[5], alone.ids[0])  # what is hidden does not depend on the batch
    with pytest.raises(ConfigError, match="no mask token"):
        MLMDataset(TokenArray.of(stream), 16, BPE)


# ── pairs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pairs_are_shifted_and_padded():
    pairs = [Pair("The cat", "sat on"), Pair("a", "the mat in Paris"), Pair("it", "x")]
    examples = Seq2SeqDataset(pairs, BPE)
    batch = examples.collate(np.arange(3))
    end = BPE.eos_id
    for i, pair in enumerate(pairs):
        source, target = BPE.encode(pair.source), BPE.encode(pair.target)
        assert batch.source[i][batch.source_mask[i]].tolist() == [*source, end]
        assert batch.inputs[i][batch.target_mask[i]].tolist() == [BPE.bos_id, *target]
        assert batch.targets[i][batch.target_mask[i]].tolist() == [*target, end]
        assert (batch.targets[i][~batch.target_mask[i]] == IGNORE).all()
    assert examples.lengths.tolist() == [[len(BPE.encode(p.source)) + 1, len(BPE.encode(p.target)) + 1] for p in pairs]


def test_pair_batches_keep_the_budget():
    rng = np.random.default_rng(1)
    pairs = [Pair("cat " * rng.integers(1, 12), "mat " * rng.integers(1, 12)) for _ in range(200)]
    examples = Seq2SeqDataset(pairs, BPE)
    batches = BatchLoader(examples, order=TokenBudgetBatchSampler(examples.lengths, 300, seed=1))
    rows = 0
    for batch in batches.epoch(4):
        assert batch.source.numel() + batch.inputs.numel() <= 300
        rows += len(batch)
    assert rows == 200


def test_long_pairs_are_left_out_or_cut():
    pairs = [Pair("cat " * 50, "mat"), Pair("cat", "mat")]
    assert len(Seq2SeqDataset(pairs, BPE, context=20)) == 1
    assert Seq2SeqDataset(pairs, BPE, context=20).n_long == 1
    cut = Seq2SeqDataset(pairs, BPE, context=20, truncate=True)
    assert cut.lengths.max() == 20
    with pytest.raises(DataError, match="all 1 are longer than context=20"):
        Seq2SeqDataset(pairs[:1], BPE, context=20)
    with pytest.raises(ConfigError, match="begin and an end token"):
        Seq2SeqDataset(pairs, WORDPIECE)


# ── labels and tags ───────────────────────────────────────────────────────────────────────────────────────────────


def test_labels_are_numbered_in_order():
    records = [Labelled("The cat", "10"), Labelled("the mat " * 30, "9"), Labelled("it", "10")]
    examples = ClassificationDataset(records, WORDPIECE, context=12)
    assert examples.labels == ["9", "10"]
    batch = examples.collate(np.array([1, 0]))
    assert batch.labels.tolist() == [0, 1]
    assert batch.ids.shape == (2, 12)
    assert batch.mask.sum(1).tolist() == [12, examples.lengths[0]]
    assert ClassificationDataset(records, WORDPIECE, 12, labels=["10", "9"]).numbers.tolist() == [0, 1, 0]
    with pytest.raises(DataError, match="'9' is not one of 10"):
        ClassificationDataset(records, WORDPIECE, 12, labels=["10"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_tag_stands_at_the_first_piece_of_its_word(kind):
    tokenizer = KINDS[kind]
    words = ("The", "cat", "sat", "in", "Paris", ",", "naïve", "Jean-Luc")
    tags = ("O", "O", "O", "O", "B-LOC", "O", "O", "B-PER")
    examples = TaggingDataset([Tagged(words, tags), Tagged(("it",), ("O",))], tokenizer, context=64)
    batch = examples.collate(np.arange(2))
    found = batch.tags[0][batch.tags[0] != IGNORE]
    assert [examples.tags[i] for i in found] == list(tags)
    assert (batch.tags[1] != IGNORE).sum() == 1
    text = " ".join(words)
    lead = tokenizer.frame([-1])[0].index(-1)
    offsets = tokenizer.encode_with_offsets(text).offsets
    paris = int((batch.tags[0] == examples.tags.index("B-LOC")).nonzero())
    assert text[slice(*offsets[paris - lead])].strip()[0] == "P"


def test_long_sentences_are_cut():
    examples = TaggingDataset([Tagged(("cat",) * 50, ("O",) * 50)], WORDPIECE, context=10)
    batch = examples.collate(np.array([0]))
    assert batch.ids.shape == batch.tags.shape == (1, 10)
    assert (batch.tags != IGNORE).sum() <= 8


# ── spans ─────────────────────────────────────────────────────────────────────────────────────────────────────────

CONTEXT = "The cat sat on the mat in Paris, and Jean-Luc looked at it for a long while."


@pytest.mark.parametrize("kind", KINDS)
@given(st.integers(0, 12), st.integers(1, 3))
@settings(max_examples=15)
def test_an_answer_is_read_back_from_where_it_points(kind, first, n):
    words = CONTEXT.split()
    answer = " ".join(words[first : first + n]).rstrip(".,")
    place = len(" ".join([*words[:first], ""]))
    question = Question("q", "Where?", CONTEXT, (Answer(answer, place),))
    examples = SpanDataset([question], KINDS[kind], context=200)
    batch = examples.collate(np.array([0]))
    assert examples.text(0, int(batch.starts[0]), int(batch.ends[0])).startswith(answer)
    assert examples.text(0, 0, 0) == ""


def test_long_contexts_become_rows_that_overlap():
    question = Question("q", "Who?", CONTEXT * 6, (Answer("Jean-Luc", CONTEXT.index("Jean")),))
    examples = SpanDataset([question, Question("r", "Why?", CONTEXT, ())], WORDPIECE, context=40, overlap=12)
    assert len(examples) > 4
    batch = examples.collate(np.arange(len(examples)))
    assert batch.ids.shape[1] <= 40
    found = [examples.text(i, int(s), int(e)) for i, (s, e) in enumerate(zip(batch.starts, batch.ends, strict=True))]
    assert "jean-luc" in [text.lower() for text in found]
    assert found[-1] == ""  # the context does not say
    assert set(batch.segments.unique().tolist()) == {0, 1}
    assert len(SpanDataset([question], WORDPIECE, context=60)) < 12  # the overlap is never more than half a row
    spaced = Question("q", "Who?", CONTEXT, (Answer(" Jean-Luc ", CONTEXT.index(" Jean")),))
    row = SpanDataset([spaced], WORDPIECE, context=60)
    assert row.text(0, *row.spans[0].tolist()) == "Jean-Luc"
    tokens = len(WORDPIECE.encode(CONTEXT * 6))
    covered = set()
    for number, _, offsets in examples.places:
        covered |= {offset for offset in offsets if number == 0}
    assert len(covered) == tokens
