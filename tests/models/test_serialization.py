"""Models on disk: round trips here and through transformers, and errors for damaged or mismatched files."""

import json
import os
from pathlib import Path

import pytest
import torch
import transformers
from torch.testing import assert_close

import headway
from headway import tokenizers
from headway.errors import CheckpointError, ConfigError
from headway.models import BERT, Classifier, MaskedLM, SpanReader, Tagger
from tests.models.variants import GPTS, TRANSFORMERS, amplified, gpt, name, transformer

TINY_GPT2 = {"vocab_size": 60, "n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 4}


@pytest.mark.parametrize("config", GPTS, ids=name)
def test_gpt_save_and_load_round_trip(config, tmp_path):
    model, ids = gpt(**config), torch.randint(41, (2, 9))
    loaded = headway.load(model.save(tmp_path / "model"))
    assert loaded.config == model.config
    assert_close(loaded(ids), model(ids), rtol=0, atol=0)


@pytest.mark.parametrize("config", TRANSFORMERS, ids=name)
def test_transformer_save_and_load_round_trip(config, tmp_path):
    model, ids, source = transformer(**config), torch.randint(41, (2, 9)), torch.randint(41, (2, 5))
    loaded = headway.load(model.save(tmp_path / "model"))
    assert loaded.config == model.config
    assert_close(loaded(ids, source=source), model(ids, source=source), rtol=0, atol=0)


# GPT configs that transformers has a class for: GPT-2, GPT-1 and Llama shapes, with tied and untied embeddings.
HF_GPTS = [
    {},
    {"tie_embeddings": False},
    {"feed_forward": "relu", "d_ff": 96, "norm_eps": 1e-3},
    {"feed_forward": "gelu"},
    {"feed_forward": "relu2"},
    {"norm_order": "post", "d_ff": 96},
    {"positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "bias": False, "n_kv_heads": 2},
    {"positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "tie_embeddings": False, "rope_theta": 50.0},
    {"positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "bias": False, "d_head": 10, "norm_eps": 1e-2},
]


@pytest.mark.parametrize("config", HF_GPTS, ids=name)
def test_gpt_round_trip_through_transformers_keeps_the_logits(config, tmp_path):
    model, ids = gpt(**{"feed_forward": "gelu-tanh", **config}), torch.randint(41, (3, 20))
    model.tokenizer = tokenizers.train("char", ["abc"])
    model.save(tmp_path / "headway")
    hf_model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "headway").eval()
    assert_close(hf_model(ids).logits, model(ids), rtol=1e-4, atol=1e-4)
    assert sum(p.numel() for p in hf_model.parameters()) == model.n_params
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "headway").encode("cab") == [2, 0, 1]
    hf_model.save_pretrained(tmp_path / "hf")
    assert_close(headway.load(tmp_path / "hf")(ids), model(ids), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "make_hf_model",
    [
        lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**TINY_GPT2)),
        lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(**TINY_GPT2, n_inner=50, activation_function="relu", tie_word_embeddings=False)
        ),
        lambda: transformers.OpenAIGPTLMHeadModel(transformers.OpenAIGPTConfig(**TINY_GPT2)),
        lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=60,
                hidden_size=24,
                intermediate_size=50,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
            )
        ),
    ],
    ids=["gpt2", "gpt2-relu-untied", "openai-gpt", "llama"],
)
@pytest.mark.parametrize("shards", [False, True])
def test_models_saved_by_transformers_load(make_hf_model, shards, tmp_path):
    """Default special ids (50256) outside the vocabulary are tolerated, and so is a missing tokenizer."""
    hf_model = make_hf_model().eval()
    hf_model.save_pretrained(tmp_path, **({"max_shard_size": "10KB"} if shards else {}))
    assert (tmp_path / "model.safetensors.index.json").exists() == shards
    model, ids = headway.load(tmp_path), torch.randint(60, (2, 30))
    assert not model.has_tokenizer
    assert_close(model(ids), hf_model(ids).logits, rtol=1e-4, atol=1e-4)


def test_the_published_gpt2_file_without_prefix_loads(tmp_path):
    """The released weights have no `transformer.` prefix, and include the causal mask as `h.0.attn.bias`."""
    from safetensors.torch import load_file, save_file

    hf_model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**TINY_GPT2)).eval()
    hf_model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    unprefixed = {key.removeprefix("transformer."): t for key, t in tensors.items() if key != "lm_head.weight"}
    unprefixed["h.0.attn.bias"] = torch.ones(1, 1, 32, 32).tril()
    save_file(unprefixed, tmp_path / "model.safetensors")
    ids = torch.randint(60, (2, 30))
    assert_close(headway.load(tmp_path)(ids), hf_model(ids).logits, rtol=1e-4, atol=1e-4)


def test_bert_round_trip_through_transformers_keeps_the_hidden_states(tmp_path):
    model = amplified(headway.create("bert", vocab_size=60, context=32, n_layers=2, d_model=24, n_heads=4))
    ids, segments = torch.randint(60, (2, 12)), torch.randint(2, (2, 12))
    mask = torch.arange(12) < torch.tensor([12, 7])[:, None]
    model.save(tmp_path / "headway")
    hf_model = transformers.AutoModel.from_pretrained(tmp_path / "headway").eval()
    hf_output = hf_model(ids, attention_mask=mask.long(), token_type_ids=segments)
    hidden = model(ids, mask, segments)
    assert_close(hidden[mask], hf_output.last_hidden_state[mask], rtol=1e-4, atol=1e-4)
    assert_close(model.pool(hidden), hf_output.pooler_output, rtol=1e-4, atol=1e-4)
    hf_model.save_pretrained(tmp_path / "hf")
    loaded = headway.load(tmp_path / "hf")
    assert_close(loaded(ids, mask, segments)[mask], hidden[mask], rtol=1e-4, atol=1e-4)


HF_HEADS = {
    "Classifier": transformers.BertForSequenceClassification,
    "Tagger": transformers.BertForTokenClassification,
    "SpanReader": transformers.BertForQuestionAnswering,
}


@pytest.mark.parametrize("head", HF_HEADS)
@pytest.mark.parametrize("labels", [None, ["no", "maybe", "yes"]])
def test_head_round_trip_through_transformers_keeps_the_logits(head, labels, tmp_path):
    shape = {
        "vocab_size": 60,
        "hidden_size": 24,
        "intermediate_size": 50,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = transformers.BertConfig(**shape)
    if labels and head != "SpanReader":
        config.id2label, config.label2id = dict(enumerate(labels)), {n: i for i, n in enumerate(labels)}
    hf_model = amplified(HF_HEADS[head](config)).eval()
    hf_model.save_pretrained(tmp_path / "hf")
    model, ids = headway.load(tmp_path / "hf"), torch.randint(60, (2, 9))
    assert type(model).__name__ == head
    if head != "SpanReader":
        assert model.config.labels == (labels or ["LABEL_0", "LABEL_1"])

    def logits(output):
        return torch.stack((output.start_logits, output.end_logits), 1) if head == "SpanReader" else output.logits

    assert_close(model(ids), logits(hf_model(ids)), rtol=1e-4, atol=1e-4)
    model.save(tmp_path / "headway")
    reloaded = HF_HEADS[head].from_pretrained(tmp_path / "headway").eval()
    assert_close(logits(reloaded(ids)), model(ids), rtol=1e-4, atol=1e-4)
    assert_close(headway.load(tmp_path / "headway")(ids), model(ids))


@pytest.mark.parametrize("head", [MaskedLM, Classifier, Tagger, SpanReader])
def test_heads_on_encoders_transformers_lacks_use_headways_layout(head, tmp_path):
    shape = {"vocab_size": 60, "context": 32, "n_layers": 2, "d_model": 24, "n_heads": 4, "labels": ["a", "b", "c"]}
    model, ids = (
        amplified(head(headway.create("bert", **shape, positions="rotary"))),
        torch.randint(60, (2, 12)),
    )
    model.save(tmp_path / "model")
    loaded = headway.load(tmp_path / "model")
    assert type(loaded) is head
    assert_close(loaded(ids), model(ids))


def test_a_classifier_without_labels_is_refused():
    with pytest.raises(ConfigError, match=r"BERTConfig\(labels="):
        Classifier(headway.create("bert-mini", device="meta"))


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "relu", "gelu-tanh", "relu2"])
def test_masked_lm_round_trip_through_transformers_keeps_the_logits(activation, is_tied, tmp_path):
    shape = {"vocab_size": 60, "context": 32, "n_layers": 2, "d_model": 24, "n_heads": 4}
    encoder = headway.create("bert", **shape, feed_forward=activation, tie_embeddings=is_tied)
    model, ids = amplified(MaskedLM(encoder)), torch.randint(60, (2, 12))
    model.save(tmp_path / "headway")
    hf_model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "headway").eval()
    assert_close(hf_model(ids).logits, model(ids), rtol=1e-4, atol=1e-4)
    hf_model.save_pretrained(tmp_path / "hf")
    loaded = headway.load(tmp_path / "hf")
    assert isinstance(loaded, MaskedLM)
    assert isinstance(loaded.encoder, BERT)
    assert_close(loaded(ids), model(ids), rtol=1e-4, atol=1e-4)


def test_adding_a_head_leaves_the_encoder_unchanged():
    encoder = amplified(headway.create("bert-mini", n_layers=1)).bfloat16()
    encoder.tokenizer = tokenizers.train("char", ["abc"])
    original = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    model = MaskedLM(encoder)
    assert all(torch.equal(tensor, original[name]) for name, tensor in encoder.state_dict().items())
    assert model(torch.ones(1, 3, dtype=torch.long)).dtype == torch.bfloat16
    assert model.tokenizer is encoder.tokenizer


def test_norms_named_gamma_and_beta_load(tmp_path):
    from safetensors.torch import load_file, save_file

    model, ids = amplified(headway.create("bert-mini", n_layers=1)), torch.randint(1024, (1, 5))
    model.save(tmp_path / "bert")
    file = tmp_path / "bert" / "model.safetensors"
    old_names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    old_tensors = {}
    for key, tensor in load_file(file).items():
        for new_name, old_name in old_names.items():
            key = key.replace(new_name, old_name)
        old_tensors[key] = tensor
    save_file(old_tensors, file)
    assert_close(headway.load(tmp_path / "bert")(ids), model(ids))


def test_loading_keeps_the_dtype_unless_told_otherwise(tmp_path):
    gpt().to(torch.bfloat16).save(tmp_path / "half")
    assert headway.load(tmp_path / "half").dtype == torch.bfloat16
    assert headway.load(tmp_path / "half", dtype="float32").dtype == torch.float32


@pytest.fixture
def saved(tmp_path):
    return gpt().save(tmp_path / "model")


def test_save_overwrites_only_on_request(saved):
    original = (saved / "model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match="exists and is not overwritten"):
        gpt(n_layers=1).save(saved)
    assert (saved / "model.safetensors").read_bytes() == original
    gpt(n_layers=1).save(saved, overwrite=True)
    assert headway.load(saved).config.n_layers == 1
    assert [p.name for p in saved.parent.iterdir()] == ["model"]  # no temporary files


def test_a_failed_save_keeps_the_old_model_and_leaves_no_files(saved, monkeypatch):
    original = (saved / "model.safetensors").read_bytes()

    def disk_full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headway.models.serialization.save_file", disk_full)
    with pytest.raises(OSError, match="No space left"):
        gpt(n_layers=1).save(saved, overwrite=True)
    assert (saved / "model.safetensors").read_bytes() == original
    assert os.listdir(saved.parent) == ["model"]


@pytest.mark.parametrize("fraction", [0.0, 0.001, 0.5, 0.999])
def test_the_error_names_a_truncated_file(saved, fraction):
    file = saved / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * fraction)])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        headway.load(saved)


def edit_config(saved, **changes):
    """Change fields of config.json; `...` removes one."""
    document = json.loads((saved / "config.json").read_text()) | changes
    (saved / "config.json").write_text(json.dumps({k: v for k, v in document.items() if v is not ...}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type='mamba' is not supported; there are bert, gpt2"),
        ({"n_embd": 28}, "do not agree"),
        ({"n_embd": 25}, "d_model=25 does not split into n_heads=4"),
        ({"n_layer": 3}, r"missing tensor 'transformer\.h\.2\.ln_1\.weight'"),
        ({"n_layer": 1}, r"unexpected tensor 'transformer\.h\.1\..* a gpt2 model with this config\.json lacks it"),
        ({"n_head": ...}, "lacks 'n_head', which a gpt2 model needs"),
        ({"activation_function": "mish"}, "activation_function='mish' is not supported"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True is not supported"),
    ],
)
def test_a_config_that_does_not_fit_the_weights_is_refused(saved, changes, message):
    edit_config(saved, feed_forward=..., **{"activation_function": "gelu_new", **changes})
    with pytest.raises(CheckpointError, match=message):
        headway.load(saved)


def test_rescaled_rotary_frequencies_are_refused(tmp_path):
    rotary = {"positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "bias": False}
    saved = gpt(**rotary).save(tmp_path / "llama")
    edit_config(saved, rope_parameters={"rope_type": "llama3", "factor": 8.0, "rope_theta": 1e4})
    with pytest.raises(CheckpointError, match="rescaled by 'llama3'"):
        headway.load(saved)


def test_fused_parts_of_wrong_shapes_are_refused_even_if_their_sum_is_right(tmp_path):
    from safetensors.torch import load_file, save_file

    saved = gpt(positions="rotary", norm="rms", feed_forward="swiglu", bias=False, n_kv_heads=2).save(
        tmp_path / "llama"
    )
    tensors = load_file(saved / "model.safetensors")
    q, k = (f"model.layers.0.self_attn.{x}_proj.weight" for x in "qk")
    tensors[q], tensors[k] = torch.cat((tensors[q], tensors[k][:4])), tensors[k][4:].clone()
    save_file(tensors, saved / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"q_proj.weight' has shape \(28, 24\) where config.json asks for \(24, 24\)"
    ):
        headway.load(saved)


def test_integer_weights_are_refused(saved):
    from safetensors.torch import load_file, save_file

    tensors = load_file(saved / "model.safetensors")
    save_file({name: t.int() for name, t in tensors.items()}, saved / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"is of type torch\.int32; weights are floating"):
        headway.load(saved)


def test_a_file_of_mixed_dtypes_loads_in_the_widest(saved):
    from safetensors.torch import load_file, save_file

    tensors = load_file(saved / "model.safetensors")
    tensors["transformer.wte.weight"] = tensors["transformer.wte.weight"].bfloat16()
    save_file(tensors, saved / "model.safetensors")
    for dtype in (None, "auto"):
        assert headway.load(saved, dtype=dtype)(torch.ones(1, 3, dtype=torch.long)).dtype == torch.float32


def test_overwriting_refuses_other_folders_and_restores_the_model_on_failure(saved, tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="holds something else than a model"):
        gpt().save(tmp_path / "project", overwrite=True)
    assert (tmp_path / "project" / "thesis.txt").exists()
    original, rename = (saved / "config.json").read_text(), Path.rename

    def failing_rename(self, target):
        if self.name.endswith(".partial"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing_rename)
    with pytest.raises(OSError, match="Input/output"):
        gpt(n_layers=1).save(saved, overwrite=True)
    assert (saved / "config.json").read_text() == original
    assert sorted(os.listdir(tmp_path)) == ["model", "project"]


@pytest.mark.parametrize("index", ['{"weight_map": []}', '{"weight_map": {"a": 3}}', "{}"])
def test_the_error_names_a_damaged_shard_index(saved, index):
    (saved / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match="has no weight_map"):
        headway.load(saved)


def test_the_best_checkpoint_ignores_invalid_scores_and_names(tmp_path):
    for step, score in ((1, "NaN"), (2, "2.0"), (3, "3.0"), (4, "[]")):
        folder = gpt(n_layers=step).save(tmp_path / "run" / "checkpoints" / f"step-{step}")
        (folder / "training.json").write_text(f'{{"score": {{"selection_loss": {score}}}}}')
    gpt().save(tmp_path / "run" / "checkpoints" / "step-final")
    assert headway.load(tmp_path / "run").config.n_layers == 2


def test_paths_without_a_model_are_refused_with_a_reason(saved, tmp_path):
    (saved / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        headway.load(saved)
    with pytest.raises(CheckpointError, match="no model at"):
        headway.load(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="gpt2 is a preset, without weights"):
        headway.load("gpt2")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"neither config\.json nor checkpoints"):
        headway.load(tmp_path / "empty")


def test_pickled_weights_are_never_opened(saved):
    (saved / "model.safetensors").rename(saved / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is pickled code, which Headway never opens"):
        headway.load(saved)


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path):
    model = gpt(vocab_size=41)
    model.tokenizer = tokenizers.train("bpe", ["some text"], 300)
    with pytest.raises(CheckpointError, match=r"the tokenizer has .* the model 41"):
        model.save(tmp_path / "model")  # it could not be loaded again
    tokenizer, model.tokenizer = model.tokenizer, None
    saved = model.save(tmp_path / "model")
    tokenizer.save(saved)
    with pytest.raises(CheckpointError, match=r"the tokenizer has .* the model 41"):
        headway.load(saved)


def test_a_tokenizer_in_vocab_txt_loads(tmp_path):
    """BERT checkpoints often have `vocab.txt` only."""
    headway.create("bert", vocab_size=8, n_layers=1, d_model=8, n_heads=2, context=16).save(tmp_path / "model")
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s"]
    (tmp_path / "model" / "vocab.txt").write_text("\n".join(tokens))
    assert headway.load(tmp_path / "model").tokenizer.encode("The cats") == [5, 6, 7]


def test_the_error_names_weights_that_cannot_be_written(tmp_path, monkeypatch):
    from safetensors import SafetensorError

    from headway.models import serialization

    def disk_full(*args):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(serialization, "save_file", disk_full)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be written: .*No space left"):
        headway.create("gpt-tiny", vocab_size=50).save(tmp_path / "model")
    assert not list(tmp_path.iterdir())  # no partial files


def test_a_config_with_an_old_setting_name_is_refused(tmp_path):
    headway.create("seq2seq", vocab_size=11, n_layers=1, d_model=8, reverse_source=False).save(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(file.read_text().replace("reverse_source", "reverse"))
    with pytest.raises(CheckpointError, match="has the setting 'reverse', whose name is 'reverse_source' now"):
        headway.load(tmp_path / "model")


def test_saving_over_a_folder_that_another_process_replaces_is_no_crash(tmp_path, monkeypatch):
    """Between looking and listing, the folder is renamed away: as if it had never been there."""
    model, path = headway.create("gpt-tiny"), tmp_path / "model"
    model.save(path)
    real_listdir = os.listdir

    def vanishing(folder):
        if Path(folder) == path and path.exists():
            path.rename(tmp_path / "elsewhere")
        return real_listdir(folder)

    monkeypatch.setattr(os, "listdir", vanishing)
    model.save(path, overwrite=True)
    assert headway.load(path).n_params == model.n_params
