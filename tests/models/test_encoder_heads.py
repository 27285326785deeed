"""BERT and its heads between transformers and Headway: equal logits, equal label names, with every part of a file."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import headway
from headway.errors import CheckpointError
from headway.models import BERT, Classifier, MaskedLM, SpanReader, Tagger
from tests.models.variants import amplified

SIZES = {
    "vocab_size": 60, "hidden_size": 24, "intermediate_size": 50, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 16,
}  # fmt: skip
OURS = {"vocab_size": 60, "context": 16, "n_layers": 2, "d_model": 24, "n_heads": 4, "d_ff": 50}
EQUAL = {"rtol": 1e-5, "atol": 1e-5}
TAGS = ["O", "B-PER", "I-PER"]

# Name → the class of transformers, its config, and ours: the class, its labels, and whether a text may have several.
THEIRS = {
    "classifier of one label": ("SequenceClassification", {"num_labels": 1}, Classifier, ["LABEL_0"], False),
    "classifier": ("SequenceClassification", {"labels": ["no", "yes"]}, Classifier, ["no", "yes"], False),
    "classifier with its problem type": (
        "SequenceClassification",
        {"labels": ["a", "b", "c"], "problem_type": "single_label_classification"},
        Classifier,
        ["a", "b", "c"],
        False,
    ),
    "multi-label classifier": (
        "SequenceClassification",
        {"labels": ["a", "b", "c"], "problem_type": "multi_label_classification"},
        Classifier,
        ["a", "b", "c"],
        True,
    ),
    "classifier of digits": ("SequenceClassification", {"labels": list("9210")}, Classifier, list("9210"), False),
    "tagger": ("TokenClassification", {"labels": TAGS}, Tagger, TAGS, False),
    "question answering": ("QuestionAnswering", {}, SpanReader, [], False),
    "masked LM": ("MaskedLM", {}, MaskedLM, [], False),
    "masked LM, not tied": ("MaskedLM", {"tie_word_embeddings": False}, MaskedLM, [], False),
}


def their_model(name):
    kind, settings, *_ = THEIRS[name]
    settings = dict(settings)
    labels = settings.pop("labels", None)
    if labels:
        settings |= {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    config = transformers.BertConfig(**SIZES, **settings)
    return amplified(getattr(transformers, f"BertFor{kind}")(config))


def inputs():
    rng = torch.Generator().manual_seed(3)
    ids, segments = torch.randint(60, (3, 11), generator=rng), torch.randint(2, (3, 11), generator=rng)
    return ids, torch.arange(11) < torch.tensor([11, 4, 7])[:, None], segments


def their_logits(model):
    """Zeros at padding, where neither side promises anything. Those of spans are (B, 2, T), as ours."""
    ids, mask, segments = inputs()
    with torch.no_grad():
        output = model(ids, attention_mask=mask.long(), token_type_ids=segments)
    if "start_logits" in output:
        return without_padding(torch.stack((output.start_logits, output.end_logits), 1))
    return without_padding(output.logits)


def our_logits(model):
    ids, mask, segments = inputs()
    with torch.no_grad():
        return without_padding(model(ids, mask, segments))


def without_padding(logits):
    mask = inputs()[1]
    if logits.shape[-1] == mask.shape[-1]:
        return logits.masked_fill(~mask[:, None], 0.0)
    return logits.masked_fill(~mask[..., None], 0.0) if logits.dim() == 3 else logits


@pytest.mark.parametrize("has_buffers", [False, True])
@pytest.mark.parametrize("name", THEIRS)
def test_theirs_open_here_with_equal_logits_and_label_names(name, has_buffers, tmp_path):
    """Old versions also saved the numbers of the positions, as a buffer."""
    hf_model = their_model(name)
    hf_model.save_pretrained(tmp_path)
    if has_buffers:
        tensors = load_file(tmp_path / "model.safetensors")
        tensors["bert.embeddings.position_ids"] = torch.arange(16)[None]
        save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    model = headway.load(tmp_path)
    _, _, kind, labels, multi_label = THEIRS[name]
    assert type(model) is kind
    assert (model.config.labels, model.config.multi_label) == (labels, multi_label)
    assert_close(our_logits(model), their_logits(hf_model), **EQUAL)


@pytest.mark.parametrize("name", THEIRS)
def test_ours_open_there_with_equal_logits_and_label_names(name, tmp_path):
    kind, settings, head, labels, multi_label = THEIRS[name]
    is_tied = settings.get("tie_word_embeddings", True)
    encoder = headway.create("bert", **OURS, labels=labels, multi_label=multi_label, tie_embeddings=is_tied)
    model = amplified(head(encoder))
    model.save(tmp_path / "ours")
    auto = getattr(transformers, f"AutoModelFor{kind}")
    hf_model, info = auto.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert type(hf_model).__name__ == f"BertFor{kind}"
    assert not info["missing_keys"]
    assert set(info["unexpected_keys"]) <= {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert_close(their_logits(hf_model.eval()), our_logits(model), **EQUAL)
    if labels:
        assert hf_model.config.id2label == dict(enumerate(labels))
        assert hf_model.config.label2id == {label: i for i, label in enumerate(labels)}
    assert (hf_model.config.problem_type == "multi_label_classification") == multi_label
    hf_model.save_pretrained(tmp_path / "back")
    again = headway.load(tmp_path / "back")
    assert (type(again), again.config.labels, again.config.multi_label) == (head, labels, multi_label)
    assert_close(our_logits(again), our_logits(model), **EQUAL)


def test_a_span_head_on_the_encoder_of_a_classifier_opens_there(tmp_path):
    """transformers gives the head as many outputs as there are labels: those of the classifier must not be left."""
    model = amplified(SpanReader(headway.create("bert", **OURS, labels=["a", "b", "c"])))
    model.save(tmp_path)
    assert "id2label" not in json.loads((tmp_path / "config.json").read_text())
    hf_model = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path).eval()
    assert_close(their_logits(hf_model), our_logits(model), **EQUAL)
    assert headway.load(tmp_path).config.labels == []


BARE = {
    "with pooler": lambda config: transformers.BertModel(config),
    "without pooler": lambda config: transformers.BertModel(config, add_pooling_layer=False),
    "of pre-training": lambda config: transformers.BertForPreTraining(config),
}


@pytest.mark.parametrize("name", BARE)
def test_bare_encoders_have_their_hidden_states(name, tmp_path):
    hf_model = amplified(BARE[name](transformers.BertConfig(**SIZES)))
    hf_model.save_pretrained(tmp_path / "theirs")
    model = headway.load(tmp_path / "theirs")
    assert type(model) is BERT
    ids, mask, segments = inputs()
    hf_encoder = getattr(hf_model, "bert", hf_model)
    with torch.no_grad():
        expected = hf_encoder(ids, attention_mask=mask.long(), token_type_ids=segments)
        hidden = model(ids, mask, segments)
    assert_close(hidden[mask], expected.last_hidden_state[mask], **EQUAL)
    if name == "without pooler":
        assert not model.pooler.weight.any()
    else:
        assert_close(model.pool(hidden), expected.pooler_output, **EQUAL)
    model.save(tmp_path / "ours")
    again = transformers.AutoModel.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        hidden_there = again(ids, attention_mask=mask.long(), token_type_ids=segments).last_hidden_state
    assert_close(hidden_there[mask], hidden[mask], **EQUAL)


def test_a_classifier_without_its_pooler_is_refused(tmp_path):
    their_model("classifier").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({k: t for k, t in tensors.items() if "pooler" not in k}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing tensor 'bert\.pooler\.dense\.weight'"):
        headway.load(tmp_path)


@pytest.mark.parametrize("id2label", [{"1": "a", "2": "b"}, ["a", "b"], {"0": "a", "1": 3}])
def test_labels_that_are_not_numbered_from_zero_are_refused(id2label, tmp_path):
    their_model("classifier").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "id2label": id2label}))
    with pytest.raises(CheckpointError, match="label"):
        headway.load(tmp_path)
