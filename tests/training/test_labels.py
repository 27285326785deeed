"""Weights of labels: those of torch's own losses, balanced by hand, and notes on labels that are hard to learn."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

import headway
from headway.data.loader import IGNORE_INDEX
from headway.errors import ConfigError
from headway.training.distributed import DistContext
from headway.training.labels import class_weights, label_notes
from headway.training.objectives import LossModule
from headway.training.task import make_model, make_task
from tests.training.recipes import for_objective

LABELS = ["a", "b", "c"]


# ── the weights of a recipe ───────────────────────────────────────────────────────────────────────────────────────


def test_labels_weigh_the_same_by_default():
    assert class_weights(None, LABELS, np.array([5, 1, 2])) is None


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=8))
def test_balanced_labels_have_the_same_total_weight(counts):
    """The rule of scikit-learn's class_weight="balanced": n / (C · n_c)."""
    n_labels = len(counts)
    weights = class_weights("balanced", [str(i) for i in range(n_labels)], np.array(counts))
    totals = [weight * n for weight, n in zip(weights, counts, strict=True)]
    assert totals == pytest.approx([sum(counts) / n_labels] * n_labels)
    assert sum(totals) / sum(counts) == pytest.approx(1)  # so the learning rate need not change


def test_a_label_without_examples_does_not_divide_by_zero():
    assert np.isfinite(class_weights("balanced", LABELS, np.array([4, 0, 2]))).all()


def test_a_table_gives_weights_by_name_and_one_to_the_rest():
    assert class_weights({"c": 2.5, "a": 0}, LABELS, np.array([5, 1, 2])) == [0.0, 1.0, 2.5]


def test_an_unknown_label_is_named_with_the_known_ones():
    message = r"no training example has the label 'colr'; the labels are color, size\. Did you mean 'color'\?"
    with pytest.raises(ConfigError, match=message) as error:
        class_weights({"colr": 2.0}, ["color", "size"], np.array([5, 1]))
    assert error.value.setting == "train.class_weights"


@pytest.mark.parametrize("weight", [-1.0, float("inf"), float("nan")])
def test_a_weight_is_a_finite_number_from_zero_on(weight):
    with pytest.raises(ConfigError, match="class_weights"):
        headway.load_recipe("demo", [f"train.class_weights={{a={weight}}}"])


# ── the loss ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Logits(nn.Module):
    """A model that gives these logits, whatever it reads."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, *arguments):
        return self.logits


class Batch:
    ids = mask = segments = None

    def __init__(self, **fields):
        self.__dict__.update(fields)


WEIGHTS = [0.5, 3.0, 0.0]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_one_label_per_text_is_torchs_weighted_cross_entropy(weights, smoothing):
    model, labels = Logits(torch.randn(50, 3)), torch.randint(3, (50,))
    nats, n_correct = LossModule(model, "classify", smoothing, class_weights=weights).train()(Batch(labels=labels))
    weight = None if weights is None else torch.tensor(weights)
    expected = F.cross_entropy(model.logits, labels, weight, label_smoothing=smoothing, reduction="sum")
    assert_close(nats, expected)
    assert n_correct == (model.logits.argmax(-1) == labels).sum()
    if weights and not smoothing:
        by_hand = sum(weights[y] * -row.log_softmax(-1)[y] for row, y in zip(model.logits, labels, strict=True))
        assert_close(nats, by_hand)


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_tags_are_weighted_alike_and_words_without_a_tag_do_not_count(weights):
    model, tags = Logits(torch.randn(4, 7, 3)), torch.randint(3, (4, 7))
    tags[torch.rand(4, 7) < 0.4] = IGNORE_INDEX
    nats, _ = LossModule(model, "tag", class_weights=weights).train()(Batch(tags=tags))
    weight = None if weights is None else torch.tensor(weights)
    expected = F.cross_entropy(model.logits.flatten(0, 1), tags.flatten(), weight, reduction="sum")
    assert_close(nats, expected)
    nats.backward()
    assert not model.logits.grad[tags == IGNORE_INDEX].any()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_several_labels_per_text_are_torchs_binary_cross_entropy_with_pos_weight(weights, smoothing):
    model, labels = Logits(torch.randn(50, 3)), torch.randint(2, (50, 3)).float()
    nats, n_correct = LossModule(model, "classify", smoothing, class_weights=weights).train()(Batch(labels=labels))
    pos_weight = None if weights is None else torch.tensor(weights)
    targets = labels * (1 - smoothing) + smoothing / 2
    expected = F.binary_cross_entropy_with_logits(model.logits, targets, pos_weight=pos_weight, reduction="sum")
    assert_close(nats, expected)
    assert n_correct == ((model.logits > 0).float() == labels).all(dim=-1).sum()
    if weights and not smoothing:
        p = model.logits.sigmoid()
        by_hand = -(torch.tensor(weights) * labels * p.log() + (1 - labels) * (1 - p).log()).sum()
        assert_close(nats, by_hand, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("objective", ["classify", "tag"])
def test_evaluation_reports_the_plain_loss(objective):
    model, targets = Logits(torch.randn(6, 5, 3)), torch.randint(3, (6, 5))
    if objective == "classify":
        model, targets = Logits(torch.randn(30, 3)), torch.randint(3, (30,))
    batch = Batch(labels=targets, tags=targets)
    plain, _ = LossModule(model, objective).eval()(batch)
    weighted, _ = LossModule(model, objective, 0.1, class_weights=WEIGHTS).eval()(batch)
    assert torch.equal(plain, weighted)


# ── through the recipe ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("objective", ["classify", "tag"])
def test_a_recipe_weighs_its_labels(objective, tmp_path):
    names = {"classify": ("animal", "colour"), "tag": ("B-COL", "O")}[objective]
    task = make_task(for_objective(objective, tmp_path, class_weights={names[1]: 3.0}))
    assert task.class_weights == [1.0, 3.0]
    balanced = make_task(for_objective(objective, tmp_path, class_weights="balanced"))
    counts = balanced.dataset.label_counts
    assert counts.sum() == (len(task.dataset) if objective == "classify" else 2 * len(task.dataset))
    assert balanced.class_weights == pytest.approx((counts.sum() / (2 * counts)).tolist())
    model, batch = make_model(task, "cpu"), task.loader(DistContext()).at(0, 0)
    nats, _ = LossModule(model, objective, class_weights=task.class_weights).train()(batch)
    targets = batch.labels if objective == "classify" else batch.tags.flatten()
    logits = model(batch.ids, batch.mask).reshape(len(targets), -1)
    assert_close(nats, F.cross_entropy(logits, targets, torch.tensor([1.0, 3.0]), reduction="sum"))
    with pytest.raises(ConfigError, match=r"no training example has the label 'nothing'; the labels are"):
        make_task(for_objective(objective, tmp_path, class_weights={"nothing": 2.0}))


def test_a_weight_decides_what_is_learned(tmp_path):
    """Of texts that say nothing the model learns the odds, 3 to 1, times the weights."""
    rows = "".join(f"x\t{label}\n" for label in ["common"] * 90 + ["rare"] * 30)
    (tmp_path / "odds.tsv").write_text("text\tlabel\n" + rows)
    probabilities = {}
    for name, weights in {"balanced": "balanced", "heavy": {"rare": 9.0}}.items():
        recipe = for_objective("classify", tmp_path, steps=150, lr=1e-2, batch_size=64, class_weights=weights)
        data = recipe.data.replace(path=str(tmp_path / "odds.tsv"), valid_path=str(tmp_path / "odds.tsv"))
        model = headway.train(recipe.replace(data=data), out=tmp_path / name).model
        (result,) = headway.classify(model, ["x"])
        probabilities[name] = result.probabilities["rare"]
    assert probabilities == pytest.approx({"balanced": 0.5, "heavy": 0.75}, abs=0.06)


# ── notes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rare_labels_and_labels_that_cannot_be_scored_are_noted():
    assert label_notes(LABELS, np.array([5, 9, 7]), np.array([1, 1, 1])) == []
    few, unseen = label_notes(LABELS, np.array([4, 9, 1]), np.array([1, 0, 0]))
    assert few.startswith("2 labels with fewer than 5 training examples: a (4), c (1); add")
    assert unseen.startswith("2 labels without a validation example, so the scores say nothing about them: b, c; raise")
    (note,) = label_notes([f"label {i}" for i in range(9)], np.arange(9), np.ones(9, dtype=int))
    assert "5 labels" in note
    (many,) = label_notes([f"label {i}" for i in range(9)], np.full(9, 9), np.zeros(9, dtype=int))
    assert many.partition(": ")[2].startswith("label 0, label 1, label 2, label 3, label 4 and 4 more; raise")


def test_a_run_notes_them(tmp_path):
    recipe = for_objective("classify", tmp_path)
    with open(tmp_path / "labels.tsv", "a") as file:
        file.write("a lonely text\tlonely\n")
    messages = []
    make_task(recipe, on_message=messages.append)
    assert any("fewer than 5 training examples: lonely (1)" in line for line in messages)
    assert any("without a validation example" in line and "about it: lonely" in line for line in messages)
