"""Texts with labels: pairs share the context, labels are one or several, and every wrong label is named."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway import tokenizers
from headway.data.datasets.classification import (
    ClassificationDataset,
    encode_texts,
    multi_label_targets,
    single_label_targets,
    truncated_lengths,
)
from headway.data.records import LabelledText
from headway.data.sources import open_source
from headway.errors import ConfigError, DataError
from headway.training.record_datasets import record_dataset

WORDS = ["cat", "dog", "sat", "mat", "the", "on", "a", "red"]
WORDPIECE = tokenizers.train("wordpiece", [" ".join(WORDS)] * 3, 60)
CLS, SEP = (WORDPIECE.special_ids[token] for token in ("[CLS]", "[SEP]"))
TEXTS = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)


# ── pairs of texts ────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 40))
def test_the_longer_text_loses_tokens_until_both_fit(n_first, n_second, capacity):
    a, b = n_first, n_second
    while a + b > capacity:  # of equals the second
        a, b = (a - 1, b) if a > b else (a, b - 1)
    assert truncated_lengths(n_first, n_second, capacity) == (a, b)


@given(TEXTS, st.one_of(st.none(), TEXTS), st.integers(5, 30))
def test_texts_are_framed_within_the_context(first, second, context):
    """[CLS] a [SEP] b [SEP]; what is left of each text is its start."""
    text = first if second is None else (first, second)
    encoded = encode_texts(WORDPIECE, [text], context)
    (ids,), (segments,), (is_truncated,) = encoded
    a, b = WORDPIECE.encode(first), WORDPIECE.encode(second or "")
    n_special = 2 if second is None else 3
    assert len(ids) == len(segments) == min(context, len(a) + len(b) + n_special)
    assert is_truncated == (len(a) + len(b) + n_special > context)
    assert (ids[0], ids[-1]) == (CLS, SEP)
    end = ids.index(SEP)
    assert ids[1:end] == a[: end - 1]
    assert ids[end + 1 :] == ([] if second is None else [*b[: len(ids) - end - 2], SEP])
    assert segments == [0] * (end + 1) + [1] * (len(ids) - end - 1)


def test_texts_and_pairs_may_be_mixed():
    texts = ["the cat", ("a dog", "the mat"), "a mat", ("on", "the red mat sat")]
    encoded = encode_texts(WORDPIECE, texts, 30)
    for i, text in enumerate(texts):
        single = encode_texts(WORDPIECE, [text], 30)
        assert (encoded.ids[i], encoded.segments[i]) == (single.ids[0], single.segments[0])


def test_a_batch_of_pairs_has_segments_if_the_encoder_does():
    records = [LabelledText("the cat", "a", "a dog sat"), LabelledText("on", "b")]
    batch = ClassificationDataset(records, WORDPIECE, 20, has_segments=True).collate(np.array([1, 0]))
    assert batch.segments.shape == batch.ids.shape
    assert batch.segments[~batch.mask].tolist() == [0] * int((~batch.mask).sum())
    assert set(batch.segments[1].tolist()) == {0, 1}
    assert not batch.segments[0].any()
    assert ClassificationDataset(records, WORDPIECE, 20).collate(np.array([0])).segments is None
    single = ClassificationDataset(records[1:], WORDPIECE, 20, has_segments=True)
    assert single.collate(np.array([0])).segments is None


def test_a_context_too_short_for_a_pair_is_refused():
    with pytest.raises(ConfigError, match="context=4 has no space for text next to 3 special tokens"):
        encode_texts(WORDPIECE, [("cat", "dog")], 4)
    assert encode_texts(WORDPIECE, ["cat"], 4).ids


def test_long_texts_are_counted():
    records = [LabelledText("cat " * n, "a") for n in (1, 3, 9, 20)]
    dataset = ClassificationDataset(records, WORDPIECE, 5)
    assert dataset.n_truncated == 2
    assert dataset.lengths.max() == 5


# ── labels ────────────────────────────────────────────────────────────────────────────────────────────────────────

LABEL_SETS = st.lists(st.lists(st.sampled_from("abcd"), max_size=4, unique=True), min_size=1, max_size=10)


@given(LABEL_SETS)
def test_several_labels_are_ones_and_zeros(label_sets):
    records = [LabelledText("cat", tuple(labels)) for labels in label_sets]
    names = list("abcd")
    targets = multi_label_targets(records, names)
    assert targets.dtype == np.float32
    assert targets.tolist() == [[float(name in labels) for name in names] for labels in label_sets]
    dataset = ClassificationDataset(records, WORDPIECE, 10, names, multi_label=True)
    assert dataset.label_counts.tolist() == [sum(name in labels for labels in label_sets) for name in names]
    batch = dataset.collate(np.arange(len(records)))
    assert torch.equal(batch.labels, torch.from_numpy(targets))
    assert batch.n_targets == len(records)


def test_labels_are_those_of_the_data_sorted():
    records = [LabelledText("cat", ("b", "10")), LabelledText("dog", ()), LabelledText("mat", ("9", "b"))]
    assert ClassificationDataset(records, WORDPIECE, 10, multi_label=True).labels == ["9", "10", "b"]


def test_one_label_per_text_is_counted():
    records = [LabelledText("cat", label) for label in "abacaa"]
    dataset = ClassificationDataset(records, WORDPIECE, 10)
    assert dataset.label_counts.tolist() == [4, 1, 1]
    assert dataset.targets.tolist() == [0, 1, 0, 2, 0, 0]


@pytest.mark.parametrize("labels", [(), ("a", "b")])
def test_a_model_of_one_label_per_text_refuses_others(labels):
    records = [LabelledText("cat", "a"), LabelledText("dog", labels)]
    message = rf"example 2 has {len(labels)} labels, but this model has one label per text: .*data\.label_separator"
    with pytest.raises(DataError, match=message):
        single_label_targets(records, ["a", "b"])


@pytest.mark.parametrize("multi_label", [False, True])
def test_an_unknown_label_is_named_with_its_text_and_the_known_ones(multi_label):
    records = [LabelledText("the cat", ("spam",)), LabelledText("a dog " * 20, ("spma",))]
    message = r"^example 2, 'a dog a dog .*…': label 'spma' is not one of ham, spam\. Did you mean 'spam'\?"
    with pytest.raises(DataError, match=message):
        ClassificationDataset(records, WORDPIECE, 10, ["ham", "spam"], multi_label=multi_label)
    odd = [LabelledText("the cat", ("9",))]
    with pytest.raises(DataError, match=r"'9' is not one of ham, spam\. Correct it, leave the example out, or train"):
        ClassificationDataset(odd, WORDPIECE, 10, ["ham", "spam"], multi_label=multi_label)


def test_a_name_twice_is_refused():
    with pytest.raises(ConfigError, match="a label name occurs twice"):
        ClassificationDataset([LabelledText("cat", "a")], WORDPIECE, 10, ["a", "a"])


def test_no_texts_and_no_labels_are_refused():
    with pytest.raises(DataError, match=r"there are no labelled texts: check data\.path, data\.text and data\.label"):
        ClassificationDataset([], WORDPIECE, 10)
    unlabelled = [LabelledText("cat", ()), LabelledText("dog", ())]
    with pytest.raises(DataError, match=r"no example has a label, so there is nothing to learn: check data\.label"):
        record_dataset("classify", unlabelled, WORDPIECE, 10, multi_label=True)
    one = [LabelledText("cat", ("a",)), LabelledText("dog", ())]
    assert record_dataset("classify", one, WORDPIECE, 10, multi_label=True)[1] == ["a"]  # yes or no is a choice


# ── from files ────────────────────────────────────────────────────────────────────────────────────────────────────

LABELLED = [("the cat", ("a", "b")), ("a dog", ()), ("on the mat", ("c",))]


def records_of(file, **options):
    return [(record.text, record.label, record.text_pair) for record in open_source(str(file), **options).records()]


def test_csv_and_jsonl_give_the_same_sets_of_labels(tmp_path):
    """A list in JSON, a text with separators in either; spaces around a label and repetitions are nothing."""
    (tmp_path / "a.csv").write_text("text,tags\nthe cat,a; b;a\na dog,\non the mat, c ;\n")
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": t, "tags": list(ls)}) + "\n" for t, ls in LABELLED))
    (tmp_path / "c.jsonl").write_text(
        "".join(json.dumps({"text": t, "tags": ";".join(ls)}) + "\n" for t, ls in LABELLED)
    )
    expected = [(text, labels, None) for text, labels in LABELLED]
    for name in ("a.csv", "b.jsonl", "c.jsonl"):
        assert records_of(tmp_path / name, label="tags", label_separator=";") == expected


def test_a_column_of_second_texts(tmp_path):
    (tmp_path / "pairs.csv").write_text("premise,hypothesis,gold\na cat sat,a cat,yes\nno dog,a dog,no\n")
    options = {"text": "premise", "text_pair": "hypothesis", "label": "gold"}
    expected = [("a cat sat", "yes", "a cat"), ("no dog", "no", "a dog")]
    assert records_of(tmp_path / "pairs.csv", **options) == expected
    (tmp_path / "bare.tsv").write_text("yes\ta cat sat\ta cat\nno\tno dog\ta dog\n")
    assert records_of(tmp_path / "bare.tsv", text="2", text_pair="3", label="1") == expected


WRONG = {
    "a list without a separator": (
        {"text": "x", "label": ["a", "b"]}, {}, r"holds a list of labels; .* set label_separator \(data\.label_sep"),
    "a separator inside a label": (
        {"text": "x", "label": ["a;b"]}, {"label_separator": ";"}, "the label 'a;b' is empty, has spaces around it or"),
    "an empty label in a list": (
        {"text": "x", "label": [""]}, {"label_separator": ";"}, "the label '' is empty"),
    "an empty label": ({"text": "x", "label": ""}, {}, "line 1: the label is empty; every text needs one"),
    "no label": ({"text": "x"}, {}, r"there is no column 'label'"),
    "a null label": ({"text": "x", "label": None}, {}, "column 'label' is null"),
    "a label that is an object": ({"text": "x", "label": {"a": 1}}, {}, "neither text nor a number"),
    "no second text": ({"text": "x", "label": "a"}, {"text_pair": "other"}, "there is no column 'other'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rows_are_named_with_the_way_out(name, tmp_path):
    row, options, message = WRONG[name]
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=message):
        records_of(tmp_path / "rows.jsonl", label="label", **options)


@pytest.mark.parametrize("name", ["text_pair", "label_separator"])
def test_settings_of_labels_need_a_label_column(name, tmp_path):
    with pytest.raises(ConfigError, match=f"{name}='x' is for texts with labels: name the label column too"):
        open_source(str(tmp_path), **{name: "x"})
