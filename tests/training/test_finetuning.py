"""Fine-tuning end to end: a BERT of transformers, trained here, opens there with equal logits and labels; LoRA too."""

import json

import pytest
import torch
import transformers
from torch.testing import assert_close

import headway
from headway.config import load_recipe, recipe_from_table
from headway.errors import DataError
from headway.models import Classifier
from headway.nn.lora import lora_layers
from headway.runs import Run
from headway.training.resume_check import differences
from headway.training.run_evaluation import evaluate_records, evaluate_split, load_evaluation_records
from headway.training.task import make_task
from tests.training.recipes import for_objective, train_until_power_cut

SHORT = {"steps": 6, "save_every": 2, "log_every": 1, "keep_checkpoints": 0, "batch_size": 8, "warmup_steps": 0}
EQUAL = {"rtol": 1e-5, "atol": 1e-5}
AUTO = {
    "classify": transformers.AutoModelForSequenceClassification,
    "tag": transformers.AutoModelForTokenClassification,
    "span": transformers.AutoModelForQuestionAnswering,
    "masked": transformers.AutoModelForMaskedLM,
}
LABELS = {"classify": ["animal", "colour"], "tag": ["B-COL", "O"]}
TEXT = "the red cat which blue fish one two"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A BERT that transformers made, with a tokenizer that knows all words of the recipes."""
    folder = tmp_path_factory.mktemp("bert")
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz.0123456789"]
    vocab += [f"##{character}" for character in "abcdefghijklmnopqrstuvwxyz.0123456789"]
    vocab += ["red", "green", "blue", "cat", "dog", "fish", "the", "which", "colour", "one", "two", "three"]
    (folder / "vocab.txt").write_text("\n".join(vocab) + "\n")
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(1)
    config = transformers.BertConfig(vocab_size=len(vocab), max_position_embeddings=48, initializer_range=0.2, **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def finetune(objective, source, folder, model=(), **train):
    table = for_objective(objective, folder).to_table()
    table["model"] = {"init_from": str(source), **dict(model)}
    table["train"] |= {**SHORT, **train}
    del table["tokenizer"]
    return recipe_from_table(table)


def their_logits(hf_model, batch):
    with torch.no_grad():
        output = hf_model.eval()(**batch)
    if "start_logits" in output:
        return torch.stack((output.start_logits, output.end_logits), 1)
    return output.logits


@pytest.mark.parametrize("objective", AUTO)
@pytest.mark.parametrize("lora_rank", [0, 3])
def test_a_fine_tuned_model_opens_there_with_equal_logits_and_labels(objective, lora_rank, source, tmp_path):
    recipe = finetune(objective, source, tmp_path, {"lora_rank": lora_rank}, lr=1e-2)
    result = headway.train(recipe, out=tmp_path / "run")
    hf_model, info = AUTO[objective].from_pretrained(result.checkpoint, output_loading_info=True)
    assert not info["missing_keys"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(result.checkpoint)
    batch = tokenizer([TEXT, "the dog"], padding=True, return_tensors="pt")
    ids, _ = result.model.tokenizer.build_inputs(result.model.tokenizer.encode(TEXT))
    assert batch["input_ids"][0].tolist() == ids
    mask = batch["attention_mask"].bool()
    with torch.no_grad():
        ours = result.model(batch["input_ids"], mask)
    theirs = their_logits(hf_model, batch)
    if objective == "span":
        ours, theirs, mask = ours.transpose(1, 2), theirs.transpose(1, 2), mask
    assert_close(ours if objective == "classify" else ours[mask], theirs if objective == "classify" else theirs[mask],
                 **EQUAL)  # fmt: skip
    if objective in LABELS:
        assert list(hf_model.config.id2label.values()) == LABELS[objective] == result.model.config.labels
    started = headway.load(source).state_dict()
    trained = getattr(result.model, "encoder").state_dict()  # noqa: B009
    changed = {name for name, tensor in trained.items() if not torch.equal(tensor, started[name])}
    assert ("embedding.weight" in changed) == (not lora_rank)
    assert "blocks.0.attention.qkv.weight" in changed


def test_one_that_transformers_fine_tuned_is_fine_tuned_further(source, tmp_path):
    """With its head, whose labels are in another order there."""
    names = {"id2label": {0: "colour", 1: "animal"}, "label2id": {"colour": 0, "animal": 1}}
    hf_model = transformers.BertForSequenceClassification.from_pretrained(source, **names)
    hf_model.save_pretrained(tmp_path / "theirs")
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(tmp_path / "theirs")
    result = headway.train(finetune("classify", tmp_path / "theirs", tmp_path, lr=0.0), out=tmp_path / "run")
    assert Run(tmp_path / "run").read_log()[0]["new"] == []
    (ours,) = headway.classify(result.model, [TEXT])
    batch = transformers.AutoTokenizer.from_pretrained(source)([TEXT], return_tensors="pt")
    expected = their_logits(hf_model, batch)[0].softmax(-1)
    assert ours.probabilities == pytest.approx({"colour": float(expected[0]), "animal": float(expected[1])}, abs=1e-5)


# ── several labels, two texts ─────────────────────────────────────────────────────────────────────────────────────


def multi_label_recipe(source, folder, **train):
    """Every text names some things, and has their kinds as labels: one, two, or none."""
    kinds = {"red": "colour", "cat": "animal", "two": "number"}
    words = list(kinds)
    rows = [{"text": f"{a} {b}", "kinds": sorted({kinds[a], kinds[b]})} for a in words for b in words]
    rows += [{"text": "the which the", "kinds": []}] * 3
    (folder / "kinds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = str(folder / "kinds.jsonl")
    data = {"path": path, "valid_path": path, "label": "kinds", "label_separator": ";"}
    table = {"model": {"init_from": str(source)}, "data": data}
    settings = {"device": "cpu", "objective": "classify", **SHORT, "batch_size": 12, **train}
    return recipe_from_table({**table, "train": settings, "eval": {"metric": "micro_f1"}})


def test_several_labels_per_text_are_learned_saved_and_open_there(source, tmp_path):
    result = headway.train(multi_label_recipe(source, tmp_path, steps=160, lr=5e-3), out=tmp_path / "run")
    assert result.model.config.labels == ["animal", "colour", "number"]
    assert result.model.config.multi_label
    assert result.score.metrics["micro_f1"] > 0.95
    results = headway.classify(result.model, ["red cat", "two two", "the which the"])
    assert [set(r.labels) for r in results] == [{"colour", "animal"}, {"number"}, set()]
    hf_model = AUTO["classify"].from_pretrained(result.checkpoint)
    assert hf_model.config.problem_type == "multi_label_classification"
    batch = transformers.AutoTokenizer.from_pretrained(result.checkpoint)(["red cat"], return_tensors="pt")
    probabilities = dict(zip(result.model.config.labels, their_logits(hf_model, batch)[0].sigmoid(), strict=True))
    for label, p in results[0].probabilities.items():
        assert p == pytest.approx(float(probabilities[label]), abs=1e-5)
    loaded = headway.load(tmp_path / "run")
    assert type(loaded) is Classifier
    assert loaded.config.multi_label


def pair_recipe(folder, **train):
    """The label is the kind of thing in the second text; the first has as many things of either kind."""
    words = ["red", "blue", "cat", "dog"]
    rows = [(f"{a} one", f"{b} two", "colour" if b in words[:2] else "animal") for a in words for b in words]
    (folder / "pairs.csv").write_text("a,b,label\n" + "".join(f"{x},{y},{label}\n" for x, y, label in rows))
    recipe = for_objective("classify", folder, **{**SHORT, **train})
    path = str(folder / "pairs.csv")
    return recipe.replace(data=recipe.data.replace(path=path, valid_path=path, text="a", text_pair="b"))


def test_two_texts_are_classified_together(tmp_path):
    result = headway.train(pair_recipe(tmp_path, steps=100, batch_size=16, lr=3e-3), out=tmp_path / "run")
    assert result.score.accuracy > 0.95
    pairs = [("cat one", "red two"), ("red one", "cat two")]
    assert [r.label for r in headway.classify(result.model, pairs)] == ["colour", "animal"]
    score = evaluate_split(headway.load(tmp_path / "run"), load_recipe(tmp_path / "run"))
    assert score.nats_per_target == pytest.approx(result.score.nats_per_target, rel=1e-4)


@pytest.mark.parametrize(("family", "has_segments"), [("bert", True), ("bilstm", False), ("bow", False)])
def test_pairs_have_segments_where_the_encoder_has(family, has_segments, tmp_path):
    recipe = pair_recipe(tmp_path)
    if family != "bert":
        config = load_recipe("demo", [f"model.family={family}", "model.context=48"]).model
        recipe = recipe.replace(model=config, preset="")
    dataset = make_task(recipe).dataset
    assert (dataset.segments is not None) == has_segments
    assert dataset.lengths.min() >= 3 + 4  # [CLS], [SEP] twice, two words each


# ── LoRA ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_lora_of_a_classifier_resumes_exactly_with_averaged_weights(source, tmp_path):
    recipe = finetune("classify", source, tmp_path, {"lora_rank": 2, "dropout": 0.1}, ema=0.8, layer_lr_decay=0.7)
    whole = headway.train(recipe, out=tmp_path / "undisturbed")
    train_until_power_cut(recipe, tmp_path / "resumed", 5)
    resumed = headway.train(tmp_path / "resumed", resume=True)
    assert differences(Run(whole.path), Run(resumed.path)) == []
    on_disk = headway.load(whole.path)
    assert not lora_layers(on_disk)
    for a, b, c in zip(whole.model.parameters(), resumed.model.parameters(), on_disk.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


# ── data that does not fit ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def classifier(source, tmp_path_factory):
    """The run of a classifier, and its recipe."""
    folder = tmp_path_factory.mktemp("classifier")
    headway.train(finetune("classify", source, folder, steps=2), out=folder / "run")
    return headway.load(folder / "run"), load_recipe(folder / "run")


def test_an_unknown_label_at_evaluation_is_named_with_the_known_ones(classifier, tmp_path):
    model, recipe = classifier
    (tmp_path / "new.tsv").write_text("text\tlabel\nthe cat\tanimal\nthe red\tcolor\n")
    records = load_evaluation_records(recipe, str(tmp_path / "new.tsv"))
    message = r"^new\.tsv cannot be scored: example 2, 'the red': label 'color' is not one of animal, colour\. Did you"
    with pytest.raises(DataError, match=message):
        evaluate_records(model, recipe, records, "new.tsv")


def test_a_label_of_the_validation_set_alone_is_named(source, tmp_path):
    (tmp_path / "valid.tsv").write_text("text\tlabel\nthe cat\tanimal\nthe mat\tthing\n")
    recipe = finetune("classify", source, tmp_path)
    recipe = recipe.replace(data=recipe.data.replace(valid_path=str(tmp_path / "valid.tsv")))
    with pytest.raises(
        DataError, match=r"the validation set of .* cannot be scored: example 2, 'the mat': label 'thing'"
    ):
        make_task(recipe)


def test_long_texts_are_noted(source, tmp_path):
    recipe = finetune("classify", source, tmp_path, seq_len=4)
    messages = []
    task = make_task(recipe, on_message=messages.append)
    assert task.dataset.lengths.max() == 4
    line = next(line for line in messages if "lose their end" in line)
    assert line.startswith(f"note        {task.dataset.n_truncated} of them are longer than 4 tokens")


def test_labels_of_no_text_are_refused(source, tmp_path):
    recipe = multi_label_recipe(source, tmp_path)
    (tmp_path / "kinds.jsonl").write_text('{"text": "red", "kinds": []}\n{"text": "blue", "kinds": []}\n' * 20)
    with pytest.raises(DataError, match="no example has a label, so there is nothing to learn"):
        make_task(recipe)
