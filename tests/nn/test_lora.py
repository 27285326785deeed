"""LoRA: the update equals its definition, merging changes nothing, and only the update is trained."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import headway
from headway.errors import ConfigError
from headway.models import BERT, Classifier
from headway.nn.kernels.cpu_linear import CPUKernels, onednn_linear
from headway.nn.linear import Linear, use_linear
from headway.nn.lora import (
    LoRALinear,
    add_lora,
    lora_layers,
    lora_merged,
    merge_lora,
    merged_state_dict,
    n_lora_params,
)

SIZES = {"vocab_size": 41, "context": 16, "n_layers": 2, "n_heads": 4, "d_model": 32, "dropout": 0.0}
SWIGLU = {"positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "bias": False, "n_kv_heads": 2}
IDS = torch.arange(24).view(2, 12)
MERGING = {"rtol": 0, "atol": 1e-5}  # the rounding of one sum in place of two


def classifier():
    return Classifier(headway.create("bert", **SIZES, labels=["no", "yes"]))


MODELS = {
    "gpt": lambda: headway.create("gpt", **SIZES),
    "llama": lambda: headway.create("gpt", **SIZES, **SWIGLU),
    "bert": lambda: headway.create("bert", **SIZES),
    "classifier": classifier,
}


def adapted(name, rank=3, alpha=5.0):
    """A model in eval mode whose updates are not zero."""
    torch.manual_seed(1)
    model = add_lora(MODELS[name]().eval(), rank, alpha)
    for layer in lora_layers(model).values():
        torch.nn.init.normal_(layer.lora_b, std=0.1)
    return model


def test_the_layer_computes_its_definition():
    torch.manual_seed(1)
    layer, x = Linear(6, [4, 4]), torch.randn(2, 5, 6)
    a, b = torch.randn(2, 6), torch.randn(8, 2)
    expected = x @ layer.weight.T + layer.bias + 0.7 * (x @ a.T) @ b.T
    assert_close(LoRALinear(layer, a, b, 0.7)(x), expected)


@pytest.mark.parametrize("name", MODELS)
def test_a_new_update_changes_nothing(name):
    torch.manual_seed(1)
    model = MODELS[name]().eval()
    before = model(IDS)
    assert_close(add_lora(model, 3, 5.0)(IDS), before, rtol=0, atol=0)


@pytest.mark.parametrize("name", MODELS)
def test_every_matrix_of_the_blocks_is_adapted(name):
    n_matrices = sum(isinstance(module, Linear) for module in MODELS[name]().modules())
    assert len(lora_layers(adapted(name))) == n_matrices == 8


@pytest.mark.parametrize("name", MODELS)
def test_merged_and_unmerged_logits_are_equal(name, tmp_path):
    model = adapted(name)
    unmerged = model(IDS)
    with torch.no_grad():
        for layer in lora_layers(model).values():
            layer.lora_b.neg_()
        assert not torch.allclose(model(IDS), unmerged, **MERGING)  # the updates matter
        for layer in lora_layers(model).values():
            layer.lora_b.neg_()
    with lora_merged(model):
        assert_close(model(IDS), unmerged, **MERGING)
    assert_close(model(IDS), unmerged, rtol=0, atol=0)
    saved = headway.load(model.save(tmp_path / "model"))
    assert_close(saved(IDS), unmerged, **MERGING)
    state = merged_state_dict(model)
    merge_lora(model)
    assert not lora_layers(model)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert_close(model(IDS), unmerged, **MERGING)
    assert state.keys() == model.state_dict().keys() == MODELS[name]().state_dict().keys()
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[key])


def test_decoding_step_by_step_equals_forward():
    model = adapted("gpt")
    expected, state, logits = model(IDS), model.start(2), []
    for t in range(IDS.shape[1]):
        step_logits, state = model.step(IDS[:, t : t + 1], state)
        logits.append(step_logits)
    assert_close(torch.cat(logits, 1), expected, rtol=0, atol=1e-5)


def test_the_product_can_be_exchanged(monkeypatch):
    model, calls = adapted("gpt"), []
    expected = model(IDS)

    def counted(x, weight, bias=None):
        calls.append(weight.shape)
        return F.linear(x, weight, bias)

    assert_close(use_linear(model, counted)(IDS), expected, rtol=0, atol=0)
    assert len(calls) == 8 + 1  # the matrices of the blocks and the unembedding
    with torch.no_grad(), CPUKernels(model):
        assert_close(model(IDS), expected, rtol=0, atol=1e-5)


@pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this PyTorch has no oneDNN")
def test_a_frozen_matrix_gets_no_gradient_from_the_training_kernel(monkeypatch):
    monkeypatch.setattr("headway.nn.kernels.cpu_linear.MIN_WEIGHTS", 1)
    plain = adapted("gpt")
    plain(IDS).square().sum().backward()
    exchanged = use_linear(adapted("gpt"), onednn_linear)
    exchanged(IDS).square().sum().backward()
    for (name, a), (_, b) in zip(plain.named_parameters(), exchanged.named_parameters(), strict=True):
        assert (b.grad is None) == (not name.endswith(("lora_a", "lora_b")))
        if b.grad is not None:
            assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3)


def test_only_the_updates_have_gradients():
    model = adapted("gpt")
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert len(trained) == 16
    assert all(name.endswith(("lora_a", "lora_b")) for name in trained)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == n_lora_params(model)
    # r (in + out) for qkv, out, up and down of two layers
    assert n_lora_params(model) == 2 * 3 * ((32 + 96) + (32 + 32) + (32 + 128) + (128 + 32))


def test_updates_are_not_added_twice():
    with pytest.raises(ConfigError, match=r"has LoRA updates already: merge them first, merge_lora\(model\)"):
        add_lora(adapted("gpt"), 2, 2.0)


def test_a_bare_encoder_is_adapted_as_a_whole():
    model = adapted("bert")
    assert isinstance(model, BERT)
    assert model.pooler.weight.requires_grad is False


def test_a_model_without_blocks_is_refused_and_stays_trainable():
    model = headway.create("lstm", vocab_size=9, d_model=6)
    with pytest.raises(ConfigError, match="an RNN without Transformer blocks has no matrices for LoRA: train it"):
        add_lora(model, 2, 2.0)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_matrix_in_half_precision_is_rounded_once(dtype):
    """Products of small numbers are lost, if each of them is rounded."""
    torch.manual_seed(1)
    layer, a, b = Linear(64, [64]).to(dtype), torch.randn(8, 64).to(dtype), (0.01 * torch.randn(64, 8)).to(dtype)
    merged = LoRALinear(layer, a, b, 0.5).merged_weight()
    exact = layer.weight.double() + 0.5 * b.double() @ a.double()
    assert merged.dtype == dtype
    assert_close(merged, exact.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=0)


def test_a_matrix_in_double_precision_keeps_it():
    layer, a, b = Linear(6, [4]).double(), torch.randn(2, 6).double(), torch.randn(4, 2).double()
    assert_close(LoRALinear(layer, a, b, 0.7).merged_weight(), layer.weight + 0.7 * (b @ a), rtol=1e-12, atol=1e-12)
