"""Models on disk: here and back, in transformers and back, and what is refused."""

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
from tests.models.variants import GPTS, TRANSFORMERS, gpt, loud, name, transformer

TINY_GPT2 = {"vocab_size": 60, "n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 4}


@pytest.mark.parametrize("config", GPTS, ids=name)
def test_gpt_comes_back_as_it_was(config, tmp_path):
    model, ids = gpt(**config), torch.randint(41, (2, 9))
    again = headway.load(model.save(tmp_path / "model"))
    assert again.config == model.config
    assert_close(again(ids), model(ids), rtol=0, atol=0)


@pytest.mark.parametrize("config", TRANSFORMERS, ids=name)
def test_transformer_comes_back_as_it_was(config, tmp_path):
    model, ids, source = transformer(**config), torch.randint(41, (2, 9)), torch.randint(41, (2, 5))
    again = headway.load(model.save(tmp_path / "model"))
    assert again.config == model.config
    assert_close(again(ids, source=source), model(ids, source=source), rtol=0, atol=0)


# Every GPT config that transformers knows a class for: GPT-2, GPT-1 and Llama shapes, tied and not.
KNOWN = [
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


@pytest.mark.parametrize("config", KNOWN, ids=name)
def test_transformers_opens_it_with_equal_logits_and_its_own_save_opens_here(config, tmp_path):
    model, ids = gpt(**{"feed_forward": "gelu-tanh", **config}), torch.randint(41, (3, 20))
    model.tokenizer = tokenizers.train("char", ["abc"])
    model.save(tmp_path / "ours")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert_close(theirs(ids).logits, model(ids), rtol=1e-4, atol=1e-4)
    assert sum(p.numel() for p in theirs.parameters()) == model.n_params
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "ours").encode("cab") == [2, 0, 1]
    theirs.save_pretrained(tmp_path / "theirs")
    assert_close(headway.load(tmp_path / "theirs")(ids), model(ids), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "made",
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
def test_a_model_saved_by_transformers_opens_here(made, shards, tmp_path):
    """Their default special ids (50256) lie outside this vocabulary, which is tolerated; no tokenizer is there."""
    theirs = made().eval()
    theirs.save_pretrained(tmp_path, **({"max_shard_size": "10KB"} if shards else {}))
    assert (tmp_path / "model.safetensors.index.json").exists() == shards
    model, ids = headway.load(tmp_path), torch.randint(60, (2, 30))
    assert model.tokenizer is None
    assert_close(model(ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)


def test_the_bare_names_of_the_published_gpt2_file_open_too(tmp_path):
    """The released weights have no `transformer.` in front, and carry the causal mask as `h.0.attn.bias`."""
    from safetensors.torch import load_file, save_file

    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**TINY_GPT2)).eval()
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    bare = {key.removeprefix("transformer."): t for key, t in tensors.items() if key != "lm_head.weight"}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 32, 32).tril()
    save_file(bare, tmp_path / "model.safetensors")
    ids = torch.randint(60, (2, 30))
    assert_close(headway.load(tmp_path)(ids), theirs(ids).logits, rtol=1e-4, atol=1e-4)


def test_bert_equals_transformers_both_ways(tmp_path):
    model = loud(headway.create("bert", vocab_size=60, context=32, n_layers=2, d_model=24, n_heads=4))
    ids, segments = torch.randint(60, (2, 12)), torch.randint(2, (2, 12))
    mask = torch.arange(12) < torch.tensor([12, 7])[:, None]
    model.save(tmp_path / "ours")
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "ours").eval()
    out = theirs(ids, attention_mask=mask.long(), token_type_ids=segments)
    hidden = model(ids, mask, segments)
    assert_close(hidden[mask], out.last_hidden_state[mask], rtol=1e-4, atol=1e-4)
    assert_close(model.pool(hidden), out.pooler_output, rtol=1e-4, atol=1e-4)
    theirs.save_pretrained(tmp_path / "theirs")
    again = headway.load(tmp_path / "theirs")
    assert_close(again(ids, mask, segments)[mask], hidden[mask], rtol=1e-4, atol=1e-4)


HEADS = {
    "Classifier": transformers.BertForSequenceClassification,
    "Tagger": transformers.BertForTokenClassification,
    "SpanReader": transformers.BertForQuestionAnswering,
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("labels", [None, ["no", "maybe", "yes"]])
def test_heads_equal_transformers_both_ways(name, labels, tmp_path):
    shape = {
        "vocab_size": 60,
        "hidden_size": 24,
        "intermediate_size": 50,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = transformers.BertConfig(**shape)
    if labels and name != "SpanReader":
        config.id2label, config.label2id = dict(enumerate(labels)), {n: i for i, n in enumerate(labels)}
    theirs = loud(HEADS[name](config)).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    model, ids = headway.load(tmp_path / "theirs"), torch.randint(60, (2, 9))
    assert type(model).__name__ == name
    if name != "SpanReader":
        assert model.config.labels == (labels or ["LABEL_0", "LABEL_1"])

    def logits(found):
        return torch.stack((found.start_logits, found.end_logits), 1) if name == "SpanReader" else found.logits

    assert_close(model(ids), logits(theirs(ids)), rtol=1e-4, atol=1e-4)
    model.save(tmp_path / "ours")
    again = HEADS[name].from_pretrained(tmp_path / "ours").eval()
    assert_close(logits(again(ids)), model(ids), rtol=1e-4, atol=1e-4)
    assert_close(headway.load(tmp_path / "ours")(ids), model(ids))


@pytest.mark.parametrize("head", [MaskedLM, Classifier, Tagger, SpanReader])
def test_heads_on_other_encoders_are_saved_in_our_own_layout(head, tmp_path):
    shape = {"vocab_size": 60, "context": 32, "n_layers": 2, "d_model": 24, "n_heads": 4, "labels": ["a", "b", "c"]}
    model, ids = loud(head(headway.create("bert", **shape, positions="rotary"))), torch.randint(60, (2, 12))
    model.save(tmp_path / "ours")
    loaded = headway.load(tmp_path / "ours")
    assert type(loaded) is head
    assert_close(loaded(ids), model(ids))


def test_a_head_without_names_is_refused():
    with pytest.raises(ConfigError, match=r"BERTConfig\(labels="):
        Classifier(headway.create("bert-mini", device="meta"))


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "relu", "gelu-tanh", "relu2"])
def test_masked_lm_equals_transformers_both_ways(activation, is_tied, tmp_path):
    shape = {"vocab_size": 60, "context": 32, "n_layers": 2, "d_model": 24, "n_heads": 4}
    encoder = headway.create("bert", **shape, feed_forward=activation, tie_embeddings=is_tied)
    model, ids = loud(MaskedLM(encoder)), torch.randint(60, (2, 12))
    model.save(tmp_path / "ours")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "ours").eval()
    assert_close(theirs(ids).logits, model(ids), rtol=1e-4, atol=1e-4)
    theirs.save_pretrained(tmp_path / "theirs")
    again = headway.load(tmp_path / "theirs")
    assert isinstance(again, MaskedLM)
    assert isinstance(again.encoder, BERT)
    assert_close(again(ids), model(ids), rtol=1e-4, atol=1e-4)


def test_a_head_leaves_its_encoder_as_it_was():
    encoder = loud(headway.create("bert-mini", n_layers=1)).bfloat16()
    encoder.tokenizer = tokenizers.train("char", ["abc"])
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    model = MaskedLM(encoder)
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())
    assert model(torch.ones(1, 3, dtype=torch.long)).dtype == torch.bfloat16
    assert model.tokenizer is encoder.tokenizer


def test_norms_saved_under_their_older_names_open(tmp_path):
    from safetensors.torch import load_file, save_file

    model, ids = loud(headway.create("bert-mini", n_layers=1)), torch.randint(1024, (1, 5))
    model.save(tmp_path / "bert")
    file = tmp_path / "bert" / "model.safetensors"
    swap = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    old = {}
    for key, tensor in load_file(file).items():
        for new_name, old_name in swap.items():
            key = key.replace(new_name, old_name)
        old[key] = tensor
    save_file(old, file)
    assert_close(headway.load(tmp_path / "bert")(ids), model(ids))


def test_precision_is_kept_or_chosen(tmp_path):
    gpt().to(torch.bfloat16).save(tmp_path / "half")
    assert headway.load(tmp_path / "half").dtype == torch.bfloat16
    assert headway.load(tmp_path / "half", dtype="float32").dtype == torch.float32


@pytest.fixture
def saved(tmp_path):
    return gpt().save(tmp_path / "model")


def test_nothing_is_overwritten_unasked(saved):
    before = (saved / "model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match="is there already and would be lost"):
        gpt(n_layers=1).save(saved)
    assert (saved / "model.safetensors").read_bytes() == before
    gpt(n_layers=1).save(saved, overwrite=True)
    assert headway.load(saved).config.n_layers == 1
    assert [p.name for p in saved.parent.iterdir()] == ["model"]  # nothing left aside


def test_a_failing_save_leaves_the_old_model_and_no_litter(saved, monkeypatch):
    before = (saved / "model.safetensors").read_bytes()

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headway.models.serialization.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        gpt(n_layers=1).save(saved, overwrite=True)
    assert (saved / "model.safetensors").read_bytes() == before
    assert os.listdir(saved.parent) == ["model"]


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_file_is_named(saved, share):
    file = saved / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        headway.load(saved)


def edit(saved, **changes):
    document = json.loads((saved / "config.json").read_text()) | changes
    (saved / "config.json").write_text(json.dumps({k: v for k, v in document.items() if v is not ...}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type='mamba' is not supported; there are bert, gpt2"),
        ({"n_embd": 28}, "do not agree"),
        ({"n_embd": 25}, "d_model=25 does not split into n_heads=4"),
        ({"n_layer": 3}, r"lack 'transformer\.h\.2\.ln_1\.weight'"),
        ({"n_layer": 1}, r"hold 'transformer\.h\.1\..* that a gpt2 model has not"),
        ({"n_head": ...}, "lacks 'n_head', which a gpt2 model needs"),
        ({"activation_function": "mish"}, "activation_function='mish' is not supported"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True is not supported"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(saved, changes, message):
    edit(saved, feed_forward=..., **{"activation_function": "gelu_new", **changes})
    with pytest.raises(CheckpointError, match=message):
        headway.load(saved)


def test_rescaled_rotary_frequencies_are_refused_not_ignored(tmp_path):
    rotary = {"positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "bias": False}
    saved = gpt(**rotary).save(tmp_path / "llama")
    edit(saved, rope_parameters={"rope_type": "llama3", "factor": 8.0, "rope_theta": 1e4})
    with pytest.raises(CheckpointError, match="rescaled by 'llama3'"):
        headway.load(saved)


def test_parts_of_the_wrong_size_are_refused_even_where_their_sum_is_right(tmp_path):
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


def test_weights_that_are_no_floats_are_refused(saved):
    from safetensors.torch import load_file, save_file

    tensors = load_file(saved / "model.safetensors")
    save_file({name: t.int() for name, t in tensors.items()}, saved / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"is of type torch\.int32; weights are floating"):
        headway.load(saved)


def test_a_file_of_several_precisions_is_used_in_the_widest(saved):
    from safetensors.torch import load_file, save_file

    tensors = load_file(saved / "model.safetensors")
    tensors["transformer.wte.weight"] = tensors["transformer.wte.weight"].bfloat16()
    save_file(tensors, saved / "model.safetensors")
    for dtype in (None, "auto"):
        assert headway.load(saved, dtype=dtype)(torch.ones(1, 3, dtype=torch.long)).dtype == torch.float32


def test_overwriting_takes_models_only_and_puts_the_old_one_back(saved, tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="holds something else than a model"):
        gpt().save(tmp_path / "project", overwrite=True)
    assert (tmp_path / "project" / "thesis.txt").exists()
    before, rename = (saved / "config.json").read_text(), Path.rename

    def failing(self, target):
        if self.name.endswith(".partial"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="Input/output"):
        gpt(n_layers=1).save(saved, overwrite=True)
    assert (saved / "config.json").read_text() == before
    assert sorted(os.listdir(tmp_path)) == ["model", "project"]


@pytest.mark.parametrize("index", ['{"weight_map": []}', '{"weight_map": {"a": 3}}', "{}"])
def test_a_damaged_index_is_named(saved, index):
    (saved / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match="has no weight_map"):
        headway.load(saved)


def test_the_best_checkpoint_of_a_run_is_the_one_with_a_number(tmp_path):
    for step, score in ((1, "NaN"), (2, "2.0"), (3, "3.0"), (4, "[]")):
        folder = gpt(n_layers=step).save(tmp_path / "run" / "checkpoints" / f"step-{step}")
        (folder / "training.json").write_text(f'{{"score": {{"merit": {score}}}}}')
    gpt().save(tmp_path / "run" / "checkpoints" / "step-final")
    assert headway.load(tmp_path / "run").config.n_layers == 2


def test_what_is_no_model_is_said_so(saved, tmp_path):
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


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    model = gpt(vocab_size=41)
    model.tokenizer = tokenizers.train("bpe", ["some text"], 300)
    with pytest.raises(CheckpointError, match=r"the tokenizer has .* the model 41"):
        model.save(tmp_path / "model")  # what could not be loaded is not written
    tokenizer, model.tokenizer = model.tokenizer, None
    saved = model.save(tmp_path / "model")
    tokenizer.save(saved)
    with pytest.raises(CheckpointError, match=r"the tokenizer has .* the model 41"):
        headway.load(saved)


def test_a_tokenizer_in_another_file_is_opened_too(tmp_path):
    """BERT checkpoints often come with `vocab.txt` alone."""
    headway.create("bert", vocab_size=8, n_layers=1, d_model=8, n_heads=2, context=16).save(tmp_path / "model")
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s"]
    (tmp_path / "model" / "vocab.txt").write_text("\n".join(tokens))
    assert headway.load(tmp_path / "model").tokenizer.encode("The cats") == [5, 6, 7]


def test_weights_that_cannot_be_written_are_named(tmp_path, monkeypatch):
    from safetensors import SafetensorError

    from headway.models import serialization as storage

    def full(*arguments):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(storage, "save_file", full)
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be written: .*No space left"):
        headway.create("gpt-tiny", vocab_size=50).save(tmp_path / "model")
    assert not list(tmp_path.iterdir())  # nothing half-written
