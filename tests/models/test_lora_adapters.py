"""Adapters: saved apart and loaded again they give the same logits, in the layout and by the rule of PEFT.

PEFT's rule is written out here (`peft_merged`): W + (α/r) B A for every module of transformers that the file names.
"""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import headway
from headway import tokenizers
from headway.errors import CheckpointError, ConfigError
from headway.models import Classifier, MaskedLM, SpanReader, Tagger
from headway.models.lora_adapters import load_adapter, save_adapter
from headway.nn.lora import add_lora, lora_layers, merge_lora
from tests.models.variants import amplified

SIZES = {"vocab_size": 41, "context": 16, "n_layers": 2, "n_heads": 4, "d_model": 24, "d_ff": 40, "dropout": 0.0}
GPT2 = {**SIZES, "d_ff": 96}
LLAMA = {"positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "bias": False, "n_kv_heads": 2}
LABELS = ["a", "b", "c"]
IDS = torch.arange(24).view(2, 12)
EQUAL = {"rtol": 0, "atol": 3e-5}  # amplified weights: rounding alone makes up to 1.2e-5, against float64


def bert(**settings):
    return headway.create("bert", **{**SIZES, **settings})


# Name → the model, the class of transformers, and PEFT's word for the task.
MODELS = {
    "gpt": (lambda: headway.create("gpt", **GPT2), transformers.AutoModelForCausalLM, "CAUSAL_LM"),
    "llama": (lambda: headway.create("gpt", **SIZES, **LLAMA), transformers.AutoModelForCausalLM, "CAUSAL_LM"),
    "bert": (lambda: bert(), transformers.AutoModel, "FEATURE_EXTRACTION"),
    "classifier": (
        lambda: Classifier(bert(labels=LABELS)),
        transformers.AutoModelForSequenceClassification,
        "SEQ_CLS",
    ),
    "multi-label": (
        lambda: Classifier(bert(labels=LABELS, multi_label=True)),
        transformers.AutoModelForSequenceClassification,
        "SEQ_CLS",
    ),
    "tagger": (lambda: Tagger(bert(labels=LABELS)), transformers.AutoModelForTokenClassification, "TOKEN_CLS"),
    "span": (lambda: SpanReader(bert()), transformers.AutoModelForQuestionAnswering, "QUESTION_ANS"),
    "masked": (lambda: MaskedLM(bert()), transformers.AutoModelForMaskedLM, None),
    "masked, not tied": (lambda: MaskedLM(bert(tie_embeddings=False)), transformers.AutoModelForMaskedLM, None),
    "rotary bert": (lambda: Tagger(bert(labels=LABELS, positions="rotary")), None, "TOKEN_CLS"),
}
HF_MODELS = [name for name, (_, hf_class, _) in MODELS.items() if hf_class is not None]


def base_and_adapted(name, rank=3, alpha=5.0):
    """A model, and the same one with updates and, as after training, another head."""
    base, model = amplified(MODELS[name][0]()), amplified(MODELS[name][0]())
    torch.manual_seed(7)
    add_lora(model, rank, alpha)
    for layer in lora_layers(model).values():
        torch.nn.init.normal_(layer.lora_a, std=0.3)
        torch.nn.init.normal_(layer.lora_b, std=0.3)
    if hasattr(model, "encoder"):
        for key, parameter in model.named_parameters():
            if not key.startswith("encoder."):
                torch.nn.init.normal_(parameter)
    return base, model


@torch.no_grad()
def logits(model):
    return model(IDS)


@torch.no_grad()
def their_logits(model):
    output = model.eval()(IDS)
    if "start_logits" in output:
        return torch.stack((output.start_logits, output.end_logits), 1)
    return output.logits if "logits" in output else output.last_hidden_state


@torch.no_grad()
def peft_merged(hf_model, folder):
    """What PEFT's `merge_and_unload` does to a model of transformers with the adapter in this folder."""
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = {
        k.removeprefix("base_model.model."): t for k, t in load_file(folder / "adapter_model.safetensors").items()
    }
    scale = config["lora_alpha"] / config["r"]
    for key in [key for key in tensors if key.endswith(".lora_A.weight")]:
        module = key.removesuffix(".lora_A.weight")
        delta = scale * tensors.pop(f"{module}.lora_B.weight") @ tensors.pop(key)
        weight = hf_model.get_parameter(f"{module}.weight")
        weight += delta.T if config["fan_in_fan_out"] else delta
    for key, tensor in tensors.items():  # the modules to save
        hf_model.get_parameter(key).copy_(tensor)
    return hf_model


# ── saved and loaded again ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", MODELS)
def test_an_adapter_saved_apart_and_loaded_again_gives_the_same_logits(name, tmp_path):
    base, model = base_and_adapted(name)
    base.save(tmp_path / "base")
    save_adapter(model, tmp_path / "adapter", base="the base")
    expected = logits(model)
    assert not torch.allclose(logits(base), expected, atol=1e-2)
    apart = load_adapter(base, tmp_path / "adapter")
    assert type(apart) is type(model)
    assert lora_layers(apart).keys() == lora_layers(model).keys()
    assert_close(logits(apart), expected, rtol=0, atol=0)
    merged = headway.load(tmp_path / "base", adapter=tmp_path / "adapter")
    assert not lora_layers(merged)
    assert merged.config == model.config
    assert_close(logits(merged), expected, **EQUAL)
    assert_close(logits(merge_lora(model)), expected, **EQUAL)


@pytest.mark.parametrize("name", ["classifier", "multi-label", "tagger", "span", "masked"])
@pytest.mark.parametrize("base_name", ["bert", "masked", "classifier"])
def test_a_head_is_built_on_the_encoder_of_another_model(name, base_name, tmp_path):
    """The pooler of a classifier is part of its adapter. The tokenizer is that of the base."""
    model = base_and_adapted(name)[1]
    base = base_and_adapted(base_name)[0]
    base.tokenizer = tokenizers.train("char", ["abc"])
    source, target = getattr(base, "encoder", base).state_dict(), model.encoder.state_dict()
    for key in source.keys() & target.keys():
        if "pooler" not in key:
            target[key].copy_(source[key])
    save_adapter(model, tmp_path / "adapter")
    loaded = load_adapter(base, tmp_path / "adapter")
    assert type(loaded) is type(model)
    assert (loaded.config.labels, loaded.config.multi_label) == (model.config.labels, model.config.multi_label)
    assert loaded.has_tokenizer
    loaded.tokenizer = None  # whose texts would start with another token than these ids
    assert_close(logits(loaded.eval()), logits(model), **EQUAL)


def test_an_adapter_is_small_and_not_a_model(tmp_path):
    _, model = base_and_adapted("classifier")
    folder = save_adapter(model, tmp_path / "adapter", base="minilm")
    n_stored = sum(t.numel() for t in load_file(folder / "adapter_model.safetensors").values())
    assert n_stored < 0.5 * model.n_params
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "minilm"
    with pytest.raises(CheckpointError, match=r"holds LoRA updates of a model.*headway\.load\(BASE, adapter="):
        headway.load(folder)


# ── PEFT ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_names_and_shapes_of_a_classifier_are_those_of_peft(tmp_path):
    save_adapter(base_and_adapted("classifier")[1], tmp_path / "adapter")
    block = {
        "attention.self.query": (24, 24),
        "attention.self.key": (24, 24),
        "attention.self.value": (24, 24),
        "attention.output.dense": (24, 24),
        "intermediate.dense": (40, 24),
        "output.dense": (24, 40),
    }
    expected = {
        "base_model.model.classifier.weight": (3, 24),
        "base_model.model.classifier.bias": (3,),
        "base_model.model.bert.pooler.dense.weight": (24, 24),
        "base_model.model.bert.pooler.dense.bias": (24,),
    }
    for i in range(2):
        for name, (n_out, n_in) in block.items():
            prefix = f"base_model.model.bert.encoder.layer.{i}.{name}"
            expected |= {f"{prefix}.lora_A.weight": (3, n_in), f"{prefix}.lora_B.weight": (n_out, 3)}
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == expected
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["target_modules"] == sorted(block)
    assert config["modules_to_save"] == ["classifier", "pooler"]
    assert (config["peft_type"], config["task_type"]) == ("LORA", "SEQ_CLS")
    assert (config["r"], config["lora_alpha"], config["bias"]) == (3, 5.0, "none")


@pytest.mark.parametrize("name", HF_MODELS)
def test_peft_computes_the_same(name, tmp_path):
    base, model = base_and_adapted(name)
    base.save(tmp_path / "base")
    folder = save_adapter(model, tmp_path / "adapter")
    hf_model = MODELS[name][1].from_pretrained(tmp_path / "base")
    assert_close(their_logits(hf_model), logits(base), rtol=1e-5, atol=1e-5)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["task_type"] == MODELS[name][2]
    # PEFT adapts every module whose name ends in one of these, and trains these others as a whole.
    modules = dict(hf_model.named_modules())
    targets = {key for key in modules if any(key.endswith(f".{target}") for target in config["target_modules"])}
    stored = {key.removeprefix("base_model.model.") for key in load_file(folder / "adapter_model.safetensors")}
    assert targets == {key.removesuffix(".lora_A.weight") for key in stored if key.endswith(".lora_A.weight")}
    whole = [key for key in stored if "lora_" not in key]
    for key in whole:
        assert any(name in key.split(".") for name in config["modules_to_save"])
    for target in config["modules_to_save"] or ():
        assert any(key.split(".")[-1] == target for key in modules)
    assert_close(their_logits(peft_merged(hf_model, folder)), logits(model), rtol=1e-4, atol=1e-4)


PEFT_TARGETS = {  # PEFT's own defaults and "all-linear": every module has an A of its own
    "gpt": [["attn.c_attn"], ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"]],
    "llama": [
        ["self_attn.q_proj", "self_attn.v_proj"],
        ["self_attn.k_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"],
    ],
    "classifier": [
        ["attention.self.query", "attention.self.value"],
        ["attention.self.key", "attention.output.dense", "intermediate.dense", "output.dense"],
    ],
    "tagger": [["attention.self.query"]],
    "bert": [["attention.self.query", "attention.self.value"]],
}


def write_peft(folder, hf_model, targets, **config):
    """An adapter with random numbers, as PEFT would write it for these modules."""
    folder.mkdir()
    rng = torch.Generator().manual_seed(5)
    tensors = {}
    for key, module in hf_model.named_modules():
        if any(key.endswith(f".{target}") for target in targets):
            is_conv = type(module).__name__ == "Conv1D"
            n_out, n_in = module.weight.T.shape if is_conv else module.weight.shape
            tensors[f"base_model.model.{key}.lora_A.weight"] = torch.randn(2, n_in, generator=rng)
            tensors[f"base_model.model.{key}.lora_B.weight"] = 0.2 * torch.randn(n_out, 2, generator=rng)
        if key == "classifier" and config.get("modules_to_save"):
            for name, parameter in module.named_parameters():
                tensors[f"base_model.model.{key}.{name}"] = torch.randn(parameter.shape, generator=rng)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    document = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "fan_in_fan_out": False, **config}
    (folder / "adapter_config.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize(("name", "targets"), [(name, t) for name, lists in PEFT_TARGETS.items() for t in lists])
def test_an_adapter_of_peft_opens_here(name, targets, tmp_path):
    base, _ = base_and_adapted(name)
    base.save(tmp_path / "base")
    hf_model = MODELS[name][1].from_pretrained(tmp_path / "base")
    has_head = name in ("classifier", "tagger")
    folder = write_peft(
        tmp_path / "adapter",
        hf_model,
        targets,
        task_type=MODELS[name][2],
        fan_in_fan_out=name == "gpt",
        modules_to_save=["classifier"] if has_head else None,
    )
    expected = their_logits(peft_merged(hf_model, folder))
    apart = load_adapter(headway.load(tmp_path / "base"), folder)
    assert_close(logits(apart), expected, rtol=1e-4, atol=1e-4)
    assert_close(logits(headway.load(tmp_path / "base", adapter=folder)), expected, rtol=1e-4, atol=1e-4)
    if has_head:  # PEFT does not store the names of the labels: they are those of the base
        assert apart.config.labels == LABELS


def test_the_scale_may_be_that_of_rank_stabilised_lora(tmp_path):
    base, _ = base_and_adapted("gpt")
    hf_model = transformers.AutoModelForCausalLM.from_pretrained(base.save(tmp_path / "base"))
    targets, options = ["attn.c_attn"], {"fan_in_fan_out": True}
    plain = write_peft(tmp_path / "plain", hf_model, targets, **options)
    stable = write_peft(tmp_path / "stable", hf_model, targets, **options, use_rslora=True)
    scales = {
        next(iter(lora_layers(load_adapter(headway.load(tmp_path / "base"), folder)).values())).scale
        for folder in (plain, stable)
    }
    assert scales == {6 / 2, 6 / 2**0.5}


# ── what does not fit ─────────────────────────────────────────────────────────────────────────────────────────────


UNSUPPORTED = {
    "another method": ({"peft_type": "LOHA"}, "peft_type='LOHA' is not supported; only 'LORA' is"),
    "ranks by layer": ({"rank_pattern": {"query": 4}}, "rank_pattern is not supported"),
    "an init that changes the base": ({"init_lora_weights": "pissa"}, "init_lora_weights='pissa' changes the base"),
    "no rank": ({"r": 0}, "r=0 and lora_alpha=6 must be positive numbers"),
    "words for numbers": ({"r": "two"}, "r and lora_alpha must be numbers"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_supported_is_refused_by_name(name, tmp_path):
    changes, message = UNSUPPORTED[name]
    base, model = base_and_adapted("gpt")
    folder = save_adapter(model, tmp_path / "adapter")
    config = json.loads((folder / "adapter_config.json").read_text())
    config = {**config, "lora_alpha": 6, **changes}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        load_adapter(base, folder)


EXTRA_TENSORS = ["lora_magnitude_vector", "lora_B.bias", "weight"]  # of DoRA, of lora_bias, of bias="all" and such


@pytest.mark.parametrize("name", EXTRA_TENSORS)
def test_a_tensor_that_would_be_ignored_is_refused(name, tmp_path):
    base, model = base_and_adapted("gpt")
    folder = save_adapter(model, tmp_path / "adapter")
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors[f"base_model.model.transformer.h.0.attn.c_attn.{name}"] = torch.ones(3)
    save_file(tensors, folder / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=rf"has no place for 'transformer\.h\.0\.attn\.c_attn\.{name}'; is this"):
        load_adapter(base, folder)


WRONG_BASES = {
    "a smaller one": lambda: headway.create("gpt", **{**GPT2, "d_model": 12}),
    "fewer layers": lambda: headway.create("gpt", **{**GPT2, "n_layers": 1}),
    "a bert": lambda: bert(),
    "an lstm": lambda: headway.create("lstm", vocab_size=41, d_model=12),
}


@pytest.mark.parametrize("name", WRONG_BASES)
def test_another_base_is_refused(name, tmp_path):
    folder = save_adapter(base_and_adapted("gpt")[1], tmp_path / "adapter")
    with pytest.raises(CheckpointError, match="is this the base model of the adapter"):
        load_adapter(WRONG_BASES[name](), folder)


def test_a_head_for_a_gpt_is_refused(tmp_path):
    folder = save_adapter(base_and_adapted("tagger")[1], tmp_path / "adapter")
    with pytest.raises(CheckpointError, match=r"for a BERT with a head \(TOKEN_CLS\), not for a GPT"):
        load_adapter(base_and_adapted("gpt")[0], folder)


@pytest.mark.parametrize("name", ["tagger", "span"])
def test_a_new_head_must_be_in_the_adapter(name, tmp_path):
    """PEFT stores a head only if it was told to; one of random numbers must not take its place."""
    base, model = base_and_adapted(name)
    folder = save_adapter(model, tmp_path / "adapter")
    tensors = load_file(folder / "adapter_model.safetensors")
    kept = {key: tensor for key, tensor in tensors.items() if "lora_" in key}
    save_file(kept, folder / "adapter_model.safetensors")
    with_head = load_adapter(base, folder)  # that of the base
    assert torch.equal(with_head.output.weight, base_and_adapted(name)[0].output.weight)
    with pytest.raises(CheckpointError, match=r"it holds no .*head"):
        load_adapter(bert(), folder)


def test_a_model_without_updates_has_no_adapter(tmp_path):
    with pytest.raises(ConfigError, match=r"a GPT without LoRA updates has no adapter: save the whole model"):
        save_adapter(base_and_adapted("gpt")[0], tmp_path / "adapter")


def test_only_an_adapter_is_overwritten(tmp_path):
    base, model = base_and_adapted("gpt")
    base.save(tmp_path / "model")
    with pytest.raises(CheckpointError, match="holds something else than an adapter, and overwriting would delete it"):
        save_adapter(model, tmp_path / "model", overwrite=True)
    save_adapter(model, tmp_path / "adapter")
    with pytest.raises(CheckpointError):
        save_adapter(model, tmp_path / "adapter")
    save_adapter(model, tmp_path / "adapter", overwrite=True)


def test_a_folder_without_an_adapter_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"is not an adapter: it has no adapter_config\.json"):
        load_adapter(base_and_adapted("gpt")[0], tmp_path)


def test_updates_are_not_loaded_twice(tmp_path):
    base, model = base_and_adapted("gpt")
    folder = save_adapter(model, tmp_path / "adapter")
    with pytest.raises(ConfigError, match="has LoRA updates already"):
        load_adapter(load_adapter(base, folder), folder)


def damage(folder, name):
    file = folder / "adapter_model.safetensors"
    if name == "no weights":
        file.unlink()
    elif name == "half of the weights":
        file.write_bytes(file.read_bytes()[:400])
    elif name == "a number that is none":
        tensors = load_file(file)
        next(iter(tensors.values()))[0] = float("nan")
        save_file(tensors, file)
    elif name == "an A without its B":
        tensors = load_file(file)
        del tensors[next(key for key in tensors if key.endswith("lora_B.weight"))]
        save_file(tensors, file)
    elif name == "a config that is a list":
        (folder / "adapter_config.json").write_text("[]")
    else:
        save_file(load_file(file), file, {"labels": '[1, "b"]'})


DAMAGED = {
    "no weights": r"adapter_model\.safetensors is missing",
    "half of the weights": r"adapter_model\.safetensors is damaged",
    "a number that is none": "contains NaN or infinity",
    "an A without its B": "has no place for '.*lora_A.weight'",
    "a config that is a list": "does not hold a JSON object",
    "labels that are no names": "its labels are damaged",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_adapter_is_refused(name, tmp_path):
    base, model = base_and_adapted("tagger")
    folder = save_adapter(model, tmp_path / "adapter")
    damage(folder, name)
    with pytest.raises(CheckpointError, match=DAMAGED[name]):
        load_adapter(base, folder)
