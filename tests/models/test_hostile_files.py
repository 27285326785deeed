"""Model files that lie or are damaged: refused by name, before memory is taken, and never loaded as another model."""

import json
import os
import warnings

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import headway
from headway import memory
from headway.errors import CheckpointError, ConfigError, DataError, InputError
from headway.models import Tagger
from headway.models.config_json import describe_model
from headway.models.ngram import read_arpa, read_counts
from headway.models.ngram.text_lines import MAX_LINE_CHARACTERS
from headway.models.weight_files import MAX_HEADER_BYTES, read_header, read_shards
from tests.fuzz.tiny_models import MODELS, _split_into_shards, logits_of

SIZES = {"vocab_size": 41, "context": 16, "n_layers": 2, "n_heads": 2, "d_model": 8}


@pytest.fixture
def own(tmp_path):
    """A model in Headway's own layout."""
    return headway.create("gpt", **SIZES, positions="alibi").save(tmp_path / "own")


@pytest.fixture
def llama(tmp_path):
    options = {"positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "bias": False}
    return headway.create("gpt", **SIZES, **options).save(tmp_path / "llama")


def edit_config(folder, **changes):
    """Change keys of config.json; `...` removes one."""
    document = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in document.items() if v is not ...}))


def edit_tensors(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


# ── nothing in config.json is ignored ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_eps": ...}, r"lacks the key 'norm_eps', which Headway always writes: .* add 'norm_eps': 1e-05"),
        ({"headway_version": ...}, "lacks the key 'headway_version'"),
        ({"norm_epss": 1e-5}, "has the key 'norm_epss', which GPTConfig lacks. Did you mean 'norm_eps'"),
        ({"sliding_window": 128}, "has the key 'sliding_window'"),
        ({"architectures": ["Mamba"]}, r"architectures=\['Mamba'\] is not one of GPT"),
        ({"architectures": ["Tagger"]}, r"architectures=\['Tagger'\] is not one of GPT"),
        ({"architectures": ["GPT", "GPT"]}, "is not a list with the name of one class"),
        ({"architectures": "\ud800"}, "cannot be read"),
        ({"family": "rnn"}, "family='rnn' contradicts model_type='headway-gpt'"),
        ({"dtype": "int3"}, "dtype='int3' is not one of float32"),
        ({"model_type": 3}, "has no model_type"),
        ({"n_layers": True}, "n_layers=True is not a whole number"),
        ({"n_heads": -2}, "n_heads=-2 must be at least 1"),
        ({"d_model": 10**30}, "d_model="),
        ({"bias": "yes"}, "bias='yes' is not one of true, false"),
    ],
)
def test_every_key_of_a_headway_config_counts(own, changes, message):
    edit_config(own, **changes)
    with pytest.raises(CheckpointError, match=message):
        headway.load(own)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sliding_window": 128}, "sliding_window=128 is not supported"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0 is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "'partial_rotary_factor'"),
        ({"rope_theta": 5e5}, "two values of rope_theta"),
        ({"architectures": ["LlamaForSequenceClassification"]}, r"is not one of LlamaForCausalLM"),
        ({"hidden_act": ["silu"]}, "hidden_act"),
    ],
)
def test_a_transformers_key_that_changes_the_computation_is_refused(llama, changes, message):
    edit_config(llama, **changes)
    with pytest.raises(CheckpointError, match=message):
        headway.load(llama)


def test_a_transformers_key_that_nobody_knows_is_warned_of(llama):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        headway.load(llama)  # all that Headway writes is known
        edit_config(llama, use_cache=True, sliding_window=None, _name_or_path="x")
        headway.load(llama)  # harmless keys, and values that change nothing
    edit_config(llama, mystery_scale=3.0)
    with pytest.warns(UserWarning, match="mystery_scale"):
        headway.load(llama)


@pytest.mark.parametrize("id2label", [{"0": "a", "2": "b"}, {"x": "a"}, ["a", "b"], {"0": 3, "1": 4}])
def test_labels_are_numbered_from_0(tmp_path, id2label):
    saved = MODELS["tagger"]().save(tmp_path / "model")
    edit_config(saved, id2label=id2label)
    with pytest.raises(CheckpointError, match=r"id2label|labels"):
        headway.load(saved)


def test_transformers_configs_hold_no_unknown_key():
    """What transformers itself writes by default loads without a warning."""
    import transformers as hf

    for kind in (hf.GPT2Config, hf.OpenAIGPTConfig, hf.LlamaConfig, hf.BertConfig, hf.MarianConfig, hf.PegasusConfig):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            describe_model(json.loads(kind().to_json_string(use_diff=False)), "config.json")


# ── size before memory ────────────────────────────────────────────────────────────────────────────────────────────


def test_sizes_are_compared_with_the_weights_before_anything_is_built(tmp_path, monkeypatch):
    saved = headway.create("ngram", vocab_size=20, order=2).save(tmp_path / "ngram")
    monkeypatch.setattr("headway.models.ngram.model.NGram.__init__", lambda *args: pytest.fail("built"))
    edit_config(saved, vocab_size=10**9)
    with pytest.raises(CheckpointError, match=r"vocab_size=1,000,000,000, but the weights hold \d+ numbers"):
        headway.load(saved)


def test_more_layers_than_tensors_are_refused_before_they_are_built(own):
    edit_config(own, n_layers=900)
    with pytest.raises(CheckpointError, match="n_layers=900, but the weights hold 27 tensors"):
        headway.load(own)
    edit_config(own, n_layers=100_000)
    with pytest.raises(CheckpointError, match="n_layers=100000 must be at most 1,000"):
        headway.load(own)


@pytest.mark.parametrize(
    "sizes", [{"d_ff": 10**9}, {"vocab_size": 2**31 - 1}, {"d_model": 2**30, "d_ff": 2**31 - 1}, {"context": 10**9}]
)
def test_a_model_larger_than_the_memory_is_refused(sizes, monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**9)
    with pytest.raises(ConfigError, match=r"takes [\d,.]+ GB, and 1\.0 GB are free|too large"):
        headway.create("gpt", **{**SIZES, **sizes})


def test_an_ngram_larger_than_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**9)
    with pytest.raises(ConfigError, match=r"an n-gram of 1,000,000,000 tokens takes 48\.0 GB"):
        headway.create("ngram", vocab_size=10**9)


def test_a_cache_larger_than_the_memory_is_refused(monkeypatch):
    model = headway.create("gpt", **{**SIZES, "context": 10**9}, positions="alibi")
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**9)
    with pytest.raises(InputError, match=r"a KV cache of 1 × 1,000,000,000 positions takes .* a smaller capacity"):
        model.start()
    model.start(capacity=10)


def test_heads_that_do_not_divide_a_huge_width_are_refused_at_once():
    with pytest.raises(ConfigError, match=r"d_model=2147483646 .* n_heads of 1, 2, 3, 6, 7, 9, 11, 14, …"):
        headway.create("gpt", **{**SIZES, "d_model": 2**31 - 2, "n_heads": 4})


# ── safetensors files ─────────────────────────────────────────────────────────────────────────────────────────────


def header(document, data=b"", length=None):
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the header is cut off"),
        (header({}, length=10**15), "the header is cut off"),
        (header(b" " * (MAX_HEADER_BYTES + 1)), "at most 8,388,608 are read"),
        (header([]), "not a JSON object"),
        (header(b"[" * 10_000), "nested too deeply"),
        (header({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}), "'a' does not lie in the file"),
        (header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"0000"), "Expected `int` >= 0"),
        (header({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, b"0000"), "Expected `int`"),
        (header({"a": {"dtype": "PICKLE", "shape": [1], "data_offsets": [0, 4]}}, b"0000"), "unknown type 'PICKLE'"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, content, message):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_header(tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json"])
def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(own, name):
    (own / name).unlink(missing_ok=True)
    os.mkfifo(own / name)
    if name == "model.safetensors.index.json":  # not a file: there is no index, and nothing to wait for
        headway.load(own)
        return
    with pytest.raises(CheckpointError, match=r"is a pipe|is not a model"):
        headway.load(own)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_numbers_are_refused_by_name(own, value):
    edit_tensors(own, lambda tensors: tensors["blocks.1.norm1.weight"].view(-1).__setitem__(3, value))
    with pytest.raises(CheckpointError, match=r"'blocks\.1\.norm1\.weight' contains NaN or infinity"):
        headway.load(own)


def test_an_index_lists_files_beside_it_and_each_tensor_once(own):
    tensors = load_file(own / "model.safetensors")
    index = own / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "../own/model.safetensors")}))
    with pytest.raises(CheckpointError, match=r"lists '\.\./own/model\.safetensors', which is not the name of a file"):
        headway.load(own)
    (own / "again.safetensors").write_bytes((own / "model.safetensors").read_bytes())
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "again.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"which another file of .* holds too"):
        headway.load(own)


def test_links_that_leave_the_folder_are_followed(own, tmp_path):
    """As in the cache of Hugging Face, where every file is a link."""
    (own / "model.safetensors").rename(tmp_path / "blob")
    (own / "model.safetensors").symlink_to(tmp_path / "blob")
    assert headway.load(own).n_params


# ── shards of several ranks ───────────────────────────────────────────────────────────────────────────────────────


def test_shards_are_assembled_and_checked(tmp_path):
    model = headway.create("rnn", vocab_size=41, d_model=6).eval()
    saved = _split_into_shards(model, tmp_path / "model")
    assert torch.equal(logits_of(headway.load(saved)), logits_of(model))
    first, second = sorted((saved / "shards").iterdir())
    whole = model.state_dict()
    with pytest.raises(CheckpointError, match=r"missing tensor .* or its parts do not make the whole"):
        read_shards(saved / "shards", {name: torch.empty(2**40, device="meta") for name in whole})
    with pytest.raises(CheckpointError, match="does not lie in the tensor"):
        read_shards(saved / "shards", {name: tensor.flatten()[None] for name, tensor in whole.items()})
    (saved / "shards" / ".metadata").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")  # a pickle: never opened
    headway.load(saved)
    original = second.read_bytes()
    second.write_bytes(first.read_bytes())  # the same rows twice: as many numbers as expected, and none for the rest
    with pytest.raises(CheckpointError, match=r"missing tensor|NaN"):
        headway.load(saved)
    second.write_bytes(original.replace(b"saved_offsets", b"saved_offsetz"))
    with pytest.raises(CheckpointError):
        headway.load(saved)
    second.unlink()
    os.mkfifo(second)
    with pytest.raises(CheckpointError, match="is a pipe"):
        headway.load(saved)


# ── n-grams ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("column", "index", "value", "message"),
    [
        ("log_p2", 3, 0.7, "a probability is above 1 or not a number"),
        ("log_p1", 0, float("nan"), "a probability is above 1 or not a number"),
        ("log_p2", slice(None), -0.01, "the probabilities after a context sum to more than 1"),
        ("backoff1", 2, float("nan"), "a backoff weight is infinite or not a number"),
        ("backoff1", 2, float("inf"), "a backoff weight is infinite or not a number"),
        ("count2", 1, -4, "a count is negative"),
        ("token2", 1, 9, "a token outside the vocabulary"),
        ("token2", slice(None), 1, "not sorted by their last token"),
        ("token1", 0, 1, "not sorted by their last token"),
        ("start2", 2, 10_000, "not sorted by context"),
        ("start2", -1, 7, "the columns have different lengths"),
    ],
)
def test_ngram_columns_that_mean_nothing_are_refused(tmp_path, column, index, value, message):
    ids = torch.randint(9, (200,), generator=torch.Generator().manual_seed(0))
    saved = headway.create("ngram", vocab_size=9, order=2).fit(ids).save(tmp_path / "model")
    edit_tensors(saved, lambda tensors: tensors[column].__setitem__(index, value))
    with pytest.raises(CheckpointError, match=message):
        headway.load(saved)


def test_a_backoff_weight_that_lifts_a_probability_above_1_is_refused(tmp_path):
    ids = torch.randint(9, (40,), generator=torch.Generator().manual_seed(0))
    saved = headway.create("ngram", vocab_size=9, order=2).fit(ids).save(tmp_path / "model")
    edit_tensors(saved, lambda tensors: tensors["backoff1"].fill_(30.0))
    model = headway.load(saved)
    with pytest.raises(CheckpointError, match="a probability above 1"):
        model(ids[None])
    with pytest.raises(CheckpointError, match="a probability above 1"):
        model.log_probability(np.arange(9).repeat(9))


def test_bos_must_have_no_probability(tmp_path):
    saved = headway.create("ngram", vocab_size=9, order=2, bos_id=3).save(tmp_path / "model")
    edit_config(saved, bos_id=4)
    with pytest.raises(CheckpointError, match="bos_id=4 has a probability"):
        headway.load(saved)


ARPA = "\\data\\\nngram 1={n}\n\n\\1-grams:\n{p}\ta\n-0.5\t<s>\n-0.5\t</s>\n\n\\end\\\n"


@pytest.mark.parametrize("p", ["0.3", "nan", "inf", "1e999"])
def test_arpa_files_with_impossible_probabilities_are_refused(tmp_path, p):
    (tmp_path / "model.arpa").write_text(ARPA.format(n=3, p=p))
    with pytest.raises(DataError, match="is not an n-gram with the log10 of a probability"):
        read_arpa(tmp_path / "model.arpa")


@pytest.mark.parametrize("n", ["900000000000", "9" * 5000])
def test_the_counts_of_an_arpa_header_take_no_memory(tmp_path, n):
    (tmp_path / "model.arpa").write_text(ARPA.format(n=n, p=-0.5))
    with pytest.raises(DataError, match=r"expected 'ngram 1=COUNT'|the file ends|is not a 1-gram|invalid number"):
        read_arpa(tmp_path / "model.arpa")


@pytest.mark.parametrize("read", [read_arpa, read_counts])
def test_ngram_files_are_regular_and_have_short_lines(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is a pipe"):
        read(tmp_path / "pipe")
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(3 * 10**9)
    with pytest.raises(DataError, match=f"has a line of {MAX_LINE_CHARACTERS:,} characters"):
        read(tmp_path / "sparse")


def test_count_files_with_endless_ngrams_are_refused(tmp_path):
    (tmp_path / "model.counts").write_text("a " * 5000 + "1\n")
    with pytest.raises(DataError, match="an n-gram of 5,000 words; at most 1,000"):
        read_counts(tmp_path / "model.counts")


# ── precision ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", ["seq2seq", "bahdanau", "bilstm"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_recurrent_encoders_are_created_in_every_precision(family, dtype):
    model = headway.create(family, vocab_size=20, d_model=8, dtype=dtype)
    assert str(model.dtype) == f"torch.{dtype}"
    weight = next(p for name, p in model.named_parameters() if name.endswith("weight_h"))[
        : weight_width(model)
    ].double()
    torch.testing.assert_close(weight @ weight.T, torch.eye(len(weight), dtype=torch.float64), rtol=0, atol=0.05)


def weight_width(model):
    return next(p for name, p in model.named_parameters() if name.endswith("weight_h")).shape[1]


def test_a_head_of_another_family_is_refused(tmp_path):
    encoder = headway.create("bilstm", vocab_size=20, d_model=6, d_hidden=5, labels=["a", "b"])
    saved = Tagger(encoder).save(tmp_path / "model")
    assert isinstance(headway.load(saved), Tagger)
    edit_config(saved, architectures=["MaskedLM"])
    with pytest.raises(CheckpointError, match=r"is not one of BiLSTM, Classifier, Tagger, SpanReader"):
        headway.load(saved)
