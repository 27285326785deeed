"""The fused decode step equals `GPT.step`. On a GPU, or anywhere with Triton's interpreter: TRITON_INTERPRET=1."""

import importlib.util
import os
import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import headway
from headway.models import fused_decode
from headway.models.fused_decode import FusedDecodeStep, why_not_fused
from headway.nn import use_attention
from headway.nn.ablations import mask_after_softmax
from headway.nn.feedforward import ACTIVATIONS
from headway.nn.linear import use_linear
from headway.nn.positions import Positions, Rotary

EXCHANGED = {"vocab_size": 9, "context": 16, "n_layers": 2, "d_model": 64, "n_heads": 2, "positions": "rotary"}
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or not (IS_INTERPRETED or torch.cuda.is_available()),
    reason="needs Triton, and a GPU or TRITON_INTERPRET=1",
)
DTYPES = [torch.float32] if IS_INTERPRETED else [torch.float32, torch.bfloat16]  # the interpreter has no bfloat16 dot
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def random_norm(kind, width):
    if kind == "none":
        return nn.Identity()
    norm = nn.RMSNorm(width, eps=1e-5) if kind == "rms" else nn.LayerNorm(width, bias=kind == "layer")
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["none", "gated", *ACTIVATIONS])
@pytest.mark.parametrize("n_rows", [1, 2, 20, 70])
def test_fused_linear_is_norm_product_activation_and_residual(n_rows, activation, dtype):
    from headway.nn.kernels.decode_linear import fused_linear
    from headway.nn.kernels.decode_norm import norm_rows

    torch.manual_seed(n_rows)
    for n_out, n_in in ((48, 40), (33, 1100)):
        for kind in ("none", "layer", "layer without bias", "rms"):
            is_gated = activation == "gated"
            weight = torch.randn(n_out * (1 + is_gated), n_in) / n_in**0.5
            weight, bias = (t.to(DEVICE, dtype) for t in (weight, torch.randn(len(weight))))
            x, residual = torch.randn(n_rows, n_in, device=DEVICE), torch.randn(n_rows, n_out, device=DEVICE)
            norm = random_norm(kind, n_in).to(DEVICE)
            with torch.no_grad():
                y = F.linear(norm(x).double(), weight.double(), bias.double())
                if is_gated:
                    gate, up = y.chunk(2, dim=-1)
                    y = F.silu(gate) * up
                elif activation != "none":
                    y = ACTIVATIONS[activation](y)
                y = y + residual
                x, norm = (x, norm) if n_rows == 1 else (norm_rows(x, norm, dtype), None)
                name = "none" if is_gated else activation
                options = {"activation": name, "gated": is_gated, "residual": residual, "dtype": torch.float32}
                fused = fused_linear(x, weight, bias, norm=norm, **options)
            assert (fused - y).norm() <= TOLERANCE[dtype] * y.norm(), (n_out, n_in, kind)


def random_model(seed):
    """A GPT of random parts and sizes."""
    rng = random.Random(seed)
    n_kv_heads, shared = rng.choice([1, 2]), rng.choice([1, 1, 2, 3])
    config = {
        "positions": rng.choice(["sinusoidal", "learned", "per-layer", "relative", "rotary", "alibi", "none"]),
        "norm": rng.choice(["layer", "rms", "none"]),
        "feed_forward": rng.choice(["relu", "gelu", "gelu-tanh", "swiglu", "relu2"]),
        "bias": rng.random() < 0.5,
        "tie_embeddings": rng.random() < 0.5,
        "scale_embeddings": rng.random() < 0.3,
        "n_heads": n_kv_heads * shared,
        "n_kv_heads": n_kv_heads,
        "d_head": rng.choice([2, 6, 8, 16]),
        "d_model": rng.choice([8, 24, 40]),
        "d_ff": rng.choice([12, 40]),
        "n_layers": rng.choice([1, 2]),
    }
    torch.manual_seed(seed)
    model = headway.create("gpt", vocab_size=50, context=300, device=DEVICE, **config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


@needs_triton
@pytest.mark.parametrize("seed", range(14 if IS_INTERPRETED else 60))
def test_the_fused_step_is_the_plain_step(seed):
    """float32: the same greedy tokens, and logits within 1e-5 of the largest, for rows of different lengths."""
    model, rng = random_model(seed), random.Random(seed)
    assert why_not_fused(model) is None
    n_rows, capacity, n_prompt = rng.choice([1, 2, 4]), rng.choice([80, 200, 300]), rng.choice([1, 60, 70])
    lengths = torch.tensor([rng.randint(1, n_prompt) for _ in range(n_rows)], device=DEVICE)
    ids = torch.randint(50, (n_rows, n_prompt), device=DEVICE)
    with torch.no_grad():
        _, state = model.step(ids, model.start(n_rows, capacity), lengths)
        fused_state = replace(state.copy(), is_uniform=False, bound=capacity - 1)
        step = FusedDecodeStep(model, fused_state)
        for _ in range(3):
            token = torch.randint(50, (n_rows, 1), device=DEVICE)
            expected, state = model.step(token, state)
            logits, fused_state = step(model, token, fused_state)
            assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()
            assert torch.equal(logits.argmax(-1), expected.argmax(-1))
        assert torch.equal(state.length, fused_state.length)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, None),
        ({"positions": "rotary", "norm": "rms", "feed_forward": "swiglu", "n_kv_heads": 1}, None),
        ({"norm_order": "post"}, "norm_order='post'"),
        ({"residual": "none"}, "residual='none'"),
        ({"similarity": "cosine"}, "similarity='cosine'"),
        ({"attention_scale": "none"}, "attention_scale='none'"),
        ({"attention_mask": "after-softmax"}, "attention_mask='after-softmax'"),
        ({"d_head": 3}, "d_head=3 is odd"),
    ],
)
def test_the_rule_for_the_fused_path_names_what_does_not_fit(settings, reason, monkeypatch):
    monkeypatch.setattr(fused_decode, "has_triton", lambda: True)
    found = why_not_fused(headway.create("gpt-tiny", **settings).eval())
    assert found is None if reason is None else reason in found


def test_a_model_whose_parts_were_exchanged_takes_the_plain_path(monkeypatch):
    monkeypatch.setattr(fused_decode, "has_triton", lambda: True)
    assert why_not_fused(headway.create("lstm", vocab_size=9, d_model=8)) == "RNN is not a GPT"
    assert "float64" in why_not_fused(headway.create("gpt-tiny", dtype="float64"))
    assert why_not_fused(headway.create("gpt-tiny").train()) == "it is in training mode"
    assert why_not_fused(use_attention(headway.create("gpt-tiny").eval(), "reference")) is None
    exchanged = use_attention(headway.create("gpt-tiny").eval(), mask_after_softmax)
    assert why_not_fused(exchanged) == "its attention function has been exchanged"
    exchanged = use_linear(headway.create("gpt-tiny").eval(), lambda x, weight, bias: F.linear(x, weight, bias))
    assert why_not_fused(exchanged) == "a matrix product has been exchanged"
    monkeypatch.setattr(fused_decode, "has_triton", lambda: False)
    assert "Triton" in why_not_fused(headway.create("gpt-tiny").eval())


class OtherPositions(Rotary):
    pass


def exchange(model, path, value):
    """Set a part or an attribute: exchange(model, "blocks.0.norm1", …)."""
    *owners, name = path.split(".")
    owner = model.get_submodule(".".join(owners))
    setattr(owner, name, value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("blocks.0.feed_forward.activation", torch.tanh),
        ("blocks.0.feed_forward", nn.Identity()),
        ("blocks.0.norm1", nn.LayerNorm(64, elementwise_affine=False)),
        ("blocks.0.norm1.eps", 0.1),
        ("blocks.0.norm_first", False),
        ("blocks.0.residual", False),
        ("blocks.0.forward", lambda x, ctx, cache=None: x),
        ("blocks.0.attention.scale", "none"),
        ("blocks.0.attention.similarity", "cosine"),
        ("blocks.0.dropout", nn.Dropout().train()),
        ("positions", OtherPositions(32, 10_000.0)),
        ("positions", Rotary(32, 500.0)),
        ("positions", Positions()),
        ("embedding.scale", 2.0),
        ("step", lambda ids, state: None),
        ("blocks.0.attention.qkv.weight", nn.Parameter(torch.ones(64, 192).t())),
        ("blocks.0.attention.qkv.weight", nn.Parameter(torch.ones(192, 64, dtype=torch.bfloat16))),
        ("blocks.0.attention.qkv.linear_fn", torch.add),
        ("blocks.0.attention.attention_fn", mask_after_softmax),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_model_with_one_exchanged_part_takes_the_plain_path(path, value, monkeypatch):
    monkeypatch.setattr(fused_decode, "has_triton", lambda: True)
    model = headway.create("gpt", **EXCHANGED).eval()
    assert why_not_fused(model) is None
    exchange(model, path, value)
    assert why_not_fused(model) is not None


def test_hooks_and_autocast_take_the_plain_path(monkeypatch):
    monkeypatch.setattr(fused_decode, "has_triton", lambda: True)
    model = headway.create("gpt", **EXCHANGED).eval()
    with torch.autocast("cpu", torch.bfloat16):
        assert why_not_fused(model) == "autocast is on"
    model.blocks[0].attention.register_forward_hook(lambda module, args, output: None)
    assert why_not_fused(model) == "it has hooks"


@needs_triton
def test_a_step_after_the_last_slot_stays_inside_the_tables():
    """Warm-up steps, and rows that have finished, may have no slot left."""
    model = headway.create("gpt", vocab_size=9, context=16, n_layers=1, d_model=8, n_heads=2, device=DEVICE).eval()
    cache = replace(model.start(2, 16), bound=15, is_uniform=False)
    cache.length.fill_(16)
    logits, _ = FusedDecodeStep(model, cache)(model, torch.zeros(2, 1, dtype=torch.long, device=DEVICE), cache)
    assert logits.isfinite().all()
