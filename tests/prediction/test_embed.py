"""Embeddings equal those of transformers and of a naive reference, alone and in batches; similar texts rank first."""

import json
import math
import shutil
import warnings

import numpy as np
import pytest
import torch
import transformers
from torch.testing import assert_close

import headway
from headway import tokenizers
from headway.errors import CheckpointError, InputError
from headway.installed_files import INSTALLED_MODELS
from headway.models import MaskedLM
from headway.models.embedding_defaults import EmbeddingDefaults
from headway.models.heads import Classifier
from headway.prediction.embed import embedding_settings, most_similar

TEXTS = [
    "The cat sat on the mat.",
    "dog",
    "",
    "The dog walks, and walked; walking talks. The cat sat on the mat and on the dog.",
    "A cat?",
    "the the the",
]
TOKENIZER = tokenizers.train("wordpiece", TEXTS * 3, 70)
SIZES = {"vocab_size": TOKENIZER.vocab_size, "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "max_position_embeddings": 40}  # fmt: skip
EQUAL = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(scope="module")
def hf_bert():
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**SIZES)).eval()
    with torch.no_grad():  # weights of such a size that texts differ
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


@pytest.fixture(scope="module")
def bert_folder(hf_bert, tmp_path_factory):
    """A BERT directory of transformers, with a tokenizer."""
    folder = tmp_path_factory.mktemp("bert")
    hf_bert.save_pretrained(folder)
    TOKENIZER.save(folder)
    return folder


@pytest.fixture(scope="module")
def bert(bert_folder):
    return headway.load(bert_folder, device="cpu")


def naive_embedding(hf_bert, text, pooling):
    """One text alone, without padding; the mean by a loop over its tokens."""
    ids = torch.tensor([TOKENIZER.build_inputs(TOKENIZER.encode(text))[0]])
    with torch.no_grad():
        output = hf_bert(input_ids=ids)
    if pooling == "pooler":
        return output.pooler_output[0]
    tokens = list(output.last_hidden_state[0])
    return tokens[0] if pooling == "cls" else sum(tokens) / len(tokens)


def sentence_transformer(bert_folder, folder, **pooling):
    """A copy of the directory with the files of sentence-transformers."""
    shutil.copytree(bert_folder, folder)
    steps = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{step}"}
        for i, (step, path) in enumerate(steps.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 24, **pooling}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12, "do_lower_case": False}))
    return folder


# ── equal to transformers ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler"])
def test_embeddings_are_those_of_transformers_alone_and_in_batches_of_any_order(bert, hf_bert, pooling, normalize):
    expected = torch.stack([naive_embedding(hf_bert, text, pooling) for text in TEXTS])
    if normalize:
        expected = torch.stack([vector / math.sqrt(sum(x * x for x in vector.tolist())) for vector in expected])
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 0, 4, 2], [2], [3]):
        for batch_size in (1, 2, 4, 32):
            options = {"pooling": pooling, "normalize": normalize, "batch_size": batch_size}
            vectors = headway.embed(bert, [TEXTS[i] for i in order], **options)
            assert_close(vectors, expected[order], **EQUAL)
            assert (vectors.dtype, vectors.device.type) == (torch.float32, "cpu")


def test_padding_never_changes_an_embedding(bert):
    vectors = headway.embed(bert, ["cat", "cat " * 20, "cat"])
    assert_close(vectors[0], vectors[2], rtol=0, atol=0)
    assert_close(vectors[0], headway.embed(bert, ["cat"])[0], **EQUAL)


def test_a_head_does_not_change_the_embeddings(bert_folder):
    bert = headway.load(bert_folder, device="cpu")
    expected = headway.embed(bert, TEXTS)
    assert_close(headway.embed(MaskedLM(bert), TEXTS), expected, rtol=0, atol=0)
    labelled = headway.create("bert", device="cpu", n_layers=1, n_heads=2, d_model=16, vocab_size=80, labels=["a", "b"])
    labelled.tokenizer = TOKENIZER
    assert_close(headway.embed(Classifier(labelled), TEXTS), headway.embed(labelled, TEXTS), rtol=0, atol=0)


@pytest.mark.parametrize("family", ["bilstm", "bow"])
@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler"])
def test_other_encoders_have_embeddings_too(family, pooling):
    torch.manual_seed(0)
    config = {"bilstm": {"d_hidden": 8, "pooling": "mean"}, "bow": {"n_buckets": 50}}[family]
    encoder = headway.create(family, device="cpu", vocab_size=80, d_model=12, **config)
    encoder.tokenizer = TOKENIZER
    vectors = headway.embed(encoder, TEXTS, pooling=pooling, batch_size=2)
    assert vectors.shape == (len(TEXTS), encoder.width)
    for text, vector in zip(TEXTS, vectors, strict=True):
        assert_close(headway.embed(encoder, [text], pooling=pooling)[0], vector, **EQUAL)


def test_no_texts_have_no_embeddings(bert):
    assert headway.embed(bert, []).shape == (0, 24)


def test_the_model_is_left_as_it_was(bert):
    bert.train()
    try:
        weights = {name: tensor.clone() for name, tensor in bert.state_dict().items()}
        first, second = headway.embed(bert, TEXTS), headway.embed(bert, TEXTS)
        assert bert.training
        assert_close(first, second, rtol=0, atol=0)  # without dropout
        assert all(torch.equal(tensor, weights[name]) for name, tensor in bert.state_dict().items())
        assert not first.requires_grad
    finally:
        bert.eval()


def test_progress_counts_texts(bert):
    done = []
    headway.embed(bert, TEXTS, batch_size=4, on_progress=done.append)
    assert done == [4, 6]


# ── long texts ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_long_text_is_cut_off_and_that_is_said(bert, hf_bert):
    long = "cat " * 100
    messages = []
    vectors = headway.embed(bert, [long, "cat"], on_message=messages.append)
    assert messages == ["1 of 2 texts exceeds 40 tokens, which is as much as this model reads: the rest is cut off"]
    assert_close(vectors[0], naive_embedding(hf_bert, "cat " * 38, "mean"), **EQUAL)
    with pytest.warns(UserWarning, match="2 of 2 texts exceed 40 tokens"):
        headway.embed(bert, [long, long])
    with warnings.catch_warnings(action="error"):
        headway.embed(bert, ["cat " * 38])  # exactly as many


# ── what the directory says ───────────────────────────────────────────────────────────────────────────────────────


def test_defaults_are_those_of_the_directory_and_survive_saving(bert_folder, hf_bert, tmp_path):
    folder = sentence_transformer(bert_folder, tmp_path / "st", pooling_mode_cls_token=True)
    model = headway.load(folder, device="cpu")
    assert embedding_settings(model) == EmbeddingDefaults("cls", True, 12)
    for loaded in (model, headway.load(model.save(tmp_path / "again"), device="cpu")):
        with pytest.warns(UserWarning, match="exceeds 12 tokens"):
            vectors = headway.embed(loaded, TEXTS)
        assert vectors.norm(dim=1).tolist() == pytest.approx([1.0] * 6)
        expected = naive_embedding(hf_bert, TEXTS[1], "cls")
        assert_close(vectors[1], expected / expected.norm(), **EQUAL)
        assert_close(headway.embed(loaded, ["dog"], normalize=False)[0], expected, **EQUAL)
        assert_close(
            headway.embed(loaded, ["dog"], pooling="mean", normalize=False)[0],
            naive_embedding(hf_bert, "dog", "mean"),
            **EQUAL,
        )
    assert embedding_settings(headway.load(bert_folder, device="cpu")) == EmbeddingDefaults("mean", False, None)


def test_saving_twice_replaces_the_files_of_the_directory(bert_folder, tmp_path):
    folder = sentence_transformer(bert_folder, tmp_path / "st", pooling_mode_mean_tokens=True)
    model = headway.load(folder, device="cpu")
    model.save(tmp_path / "st", overwrite=True)
    assert embedding_settings(headway.load(tmp_path / "st", device="cpu")) == EmbeddingDefaults("mean", True, 12)


def test_poolings_that_headway_does_not_have_are_named(bert_folder, tmp_path):
    switches = {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}
    model = headway.load(sentence_transformer(bert_folder, tmp_path / "st", **switches), device="cpu")
    with pytest.raises(InputError, match=r"need max\+mean pooling \(modules.json\), which .* name the pooling, mean"):
        headway.embed(model, ["dog"])
    assert headway.embed(model, ["dog"], pooling="mean").shape == (1, 24)


def test_a_step_that_headway_does_not_have_is_named(bert_folder, tmp_path):
    folder = sentence_transformer(bert_folder, tmp_path / "st", pooling_mode_mean_tokens=True)
    modules = json.loads((folder / "modules.json").read_text())
    modules.insert(2, {"path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match=r"the embeddings of this model need Dense \(modules.json\)"):
        headway.embed(headway.load(folder, device="cpu"), ["dog"])


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ("[{", "damaged"),
        ("{}", None),  # no steps
        ('[{"type": "x.Pooling"}]', "damaged: expected a list of modules, each with a type and a folder"),
        ('[{"type": "x.Pooling", "path": "../other"}]', "damaged"),
        ('[{"type": "x.Pooling", "path": "/"}]', "damaged"),
        ('[{"type": "x.Pooling", "path": "/etc"}]', "damaged"),
        ('[{"type": "x.Pooling", "path": ".."}]', "damaged"),
        ('[{"type": "x.Pooling", "path": 3}]', "damaged"),
        ('[{"type": 3, "path": ""}]', "damaged"),
        ('[{"type": "x.Pooling", "path": "missing"}]', "missing"),
    ],
)
def test_damaged_files_are_named_and_nothing_outside_the_directory_is_opened(bert_folder, tmp_path, modules, message):
    folder = shutil.copytree(bert_folder, tmp_path / "st")
    (folder / "modules.json").write_text(modules)
    if message is None:
        assert embedding_settings(headway.load(folder, device="cpu")) == EmbeddingDefaults()
        return
    with pytest.raises(CheckpointError, match=message):
        headway.load(folder, device="cpu")


@pytest.mark.parametrize("length", [0, -1, "12", 1.5, True])
def test_a_wrong_length_is_named(bert_folder, tmp_path, length):
    folder = sentence_transformer(bert_folder, tmp_path / "st", pooling_mode_mean_tokens=True)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
    with pytest.raises(CheckpointError, match=f"max_seq_length={length!r} is not a number of tokens"):
        headway.load(folder, device="cpu")


# ── similar texts ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_most_similar_rows_have_the_largest_cosines():
    rng = np.random.default_rng(0)
    vectors, query = rng.normal(size=(30, 5)) * rng.uniform(0.1, 9, size=(30, 1)), rng.normal(size=5)

    def cosine(row):
        return float(row @ query / np.linalg.norm(row) / np.linalg.norm(query))

    expected = sorted(range(30), key=lambda number: -cosine(vectors[number]))
    found = most_similar(torch.tensor(query), torch.tensor(vectors), 10)
    assert [neighbour.number for neighbour in found] == expected[:10]
    assert [neighbour.similarity for neighbour in found] == pytest.approx([cosine(vectors[i]) for i in expected[:10]])
    assert len(most_similar(torch.tensor(query), torch.tensor(vectors), 99)) == 30


def test_equal_rows_keep_their_order_and_a_row_of_zeros_is_similar_to_none():
    vectors = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [-1.0, 0.0]])
    found = most_similar(torch.tensor([3.0, 0.0]), vectors, 4)
    assert [tuple(neighbour) for neighbour in found] == [(1, 1.0), (2, 1.0), (0, 0.0), (3, -1.0)]


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────


def test_models_that_embed_nothing_are_refused_with_a_way_out():
    gpt = headway.create("gpt-tiny", device="cpu")
    with pytest.raises(InputError, match=r"embed needs an encoder \(a bert or bilstm, .*\), and this is a GPT: use"):
        headway.embed(gpt, ["cat"])
    with pytest.raises(InputError, match="load"):
        headway.embed("minilm", ["cat"])


def test_a_missing_pooler_is_named(hf_bert, tmp_path):
    transformers.BertModel(transformers.BertConfig(**SIZES), add_pooling_layer=False).save_pretrained(tmp_path)
    TOKENIZER.save(tmp_path)
    model = headway.load(tmp_path, device="cpu")
    with pytest.raises(InputError, match=r"this model has no pooler: .* use pooling='mean' or 'cls'"):
        headway.embed(model, ["cat"], pooling="pooler")
    assert headway.embed(model, ["cat"]).shape == (1, 24)


def test_arguments_without_a_meaning_are_refused(bert):
    with pytest.raises(InputError, match=r"texts is one string, .* pass a list, \[text\]"):
        headway.embed(bert, "cat")
    with pytest.raises(
        InputError, match=r"no pooling named 'maen'; choose from mean, cls, pooler\. Did you mean 'mean'"
    ):
        headway.embed(bert, ["cat"], pooling="maen")
    for batch_size in (0, -1):
        with pytest.raises(InputError, match=f"batch_size={batch_size} is not at least 1"):
            headway.embed(bert, ["cat"], batch_size=batch_size)


def test_a_text_without_tokens_has_no_embedding():
    bare = tokenizers.train("char", ["the cat"])
    bare.special_tokens = dict.fromkeys(bare.special_tokens)
    encoder = headway.create("bilstm", device="cpu", vocab_size=bare.vocab_size, d_model=4, d_hidden=4)
    encoder.tokenizer = bare
    with pytest.raises(InputError, match="text 2, '', has no tokens, so it has no embedding: leave it out"):
        headway.embed(encoder, ["cat", ""])


# ── the real MiniLM ───────────────────────────────────────────────────────────────────────────────────────────────

MINILM = INSTALLED_MODELS["minilm"]
SENTENCES = [
    "A cat sat on the mat.",
    "",
    "Eine Katze saß auf der Matte. 日本語 🎉 naïve café",
    "The quick brown fox jumps over the lazy dog. " * 12,
    "kitten",
]


@pytest.mark.skipif(MINILM.find() is None, reason=f"MiniLM is not installed: {MINILM.install_command}")
def test_minilm_has_the_hidden_states_and_sentence_embeddings_of_transformers():
    """The reference pads with transformers' own tokenizer, and is that of the model card of all-MiniLM-L6-v2."""
    folder = MINILM.find()
    model, hf_model = headway.load("minilm", device="cpu"), transformers.AutoModel.from_pretrained(folder).eval()
    hf_inputs = transformers.AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    mask = hf_inputs["attention_mask"]
    with torch.no_grad():
        expected = hf_model(**hf_inputs).last_hidden_state
        hidden = model(hf_inputs["input_ids"], mask.bool())
    assert_close(hidden[mask.bool()], expected[mask.bool()], rtol=0, atol=1e-5)
    means = (expected * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
    for vectors in (
        headway.embed(model, SENTENCES),
        headway.embed(model, SENTENCES, batch_size=2),
        torch.cat([headway.embed(model, [text]) for text in SENTENCES]),
    ):
        cosines = torch.nn.functional.cosine_similarity(vectors.double(), means.double())
        assert cosines.min() > 0.99999
        assert vectors.norm(dim=1).tolist() == pytest.approx([1.0] * len(SENTENCES), abs=1e-5)
    ranked = most_similar(headway.embed(model, ["A kitten is on a rug."])[0], headway.embed(model, SENTENCES), 2)
    assert {neighbour.number for neighbour in ranked} == {0, 4}
