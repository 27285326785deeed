"""The fused decode step equals `GPT.step`. On a GPU, or anywhere with Triton's interpreter: TRITON_INTERPRET=1."""

import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import headway
from headway.models.fused_decode import TritonDecodeStep
from headway.models.fused_rule import why_not_fused
from headway.nn.feedforward import ACTIVATIONS
from tests.models.test_fused_decode import random_model
from tests.triton_tests import DEVICE, IS_INTERPRETED, needs_triton

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
@pytest.mark.parametrize("n_rows", [1, 3] if IS_INTERPRETED else [1, 2, 20, 70])
def test_fused_linear_is_norm_product_activation_and_residual(n_rows, activation, dtype):
    from headway.nn.kernels.decode_linear import fused_linear
    from headway.nn.kernels.decode_norm import norm_rows

    torch.manual_seed(n_rows)
    for n_out, n_in in ((48, 40), (33, 300 if IS_INTERPRETED else 1100)):
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


@needs_triton
@pytest.mark.parametrize("seed", range(5 if IS_INTERPRETED else 60))
def test_the_fused_step_is_the_plain_step(seed):
    """float32: the same greedy tokens, and logits within 1e-5 of the largest, for rows of different lengths."""
    model, rng = random_model(seed, DEVICE), random.Random(seed)
    assert why_not_fused(model) is None
    n_rows, capacity, n_prompt = rng.choice([1, 2, 4]), rng.choice([80, 200, 300]), rng.choice([1, 60, 70])
    lengths = torch.tensor([rng.randint(1, n_prompt) for _ in range(n_rows)], device=DEVICE)
    ids = torch.randint(50, (n_rows, n_prompt), device=DEVICE)
    with torch.no_grad():
        _, state = model.step(ids, model.start(n_rows, capacity), lengths)
        fused_state = replace(state.copy(), is_uniform=False, bound=capacity - 1)
        step = TritonDecodeStep(model, fused_state)
        for _ in range(3):
            token = torch.randint(50, (n_rows, 1), device=DEVICE)
            expected, state = model.step(token, state)
            logits = step(model, token, fused_state)
            fused_state.length.add_(1)
            assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()
            assert torch.equal(logits.argmax(-1), expected.argmax(-1))
        assert torch.equal(state.length, fused_state.length)


@needs_triton
def test_a_step_after_the_last_slot_stays_inside_the_tables():
    """Warm-up steps, and rows that have finished, may have no slot left."""
    model = headway.create("gpt", vocab_size=9, context=16, n_layers=1, d_model=8, n_heads=2, device=DEVICE).eval()
    cache = replace(model.start(2, 16), bound=15, is_uniform=False)
    cache.length.fill_(16)
    logits = TritonDecodeStep(model, cache)(model, torch.zeros(2, 1, dtype=torch.long, device=DEVICE), cache)
    assert logits.isfinite().all()


@needs_triton
@pytest.mark.parametrize("n_rows", [1, 5, 130])
def test_appending_tokens_updates_what_counts_them(n_rows):
    from headway.nn.kernels.decode_tokens import append_tokens

    torch.manual_seed(n_rows)
    width = 7
    tokens, last_tokens = torch.randint(-1, 99, (n_rows,)), torch.zeros(n_rows, 1, dtype=torch.long)
    lengths, positions = torch.randint(9, (n_rows,)), torch.randint(9, (n_rows,))
    history, history_lengths = torch.randint(99, (n_rows, width)), torch.randint(9, (n_rows, 1))  # some are full
    expected = history.scatter(1, history_lengths.clamp(max=width - 1), tokens[:, None])
    counts = [lengths, history_lengths, positions]
    later = [count + 1 for count in counts]
    tensors = [t.to(DEVICE) for t in (tokens, last_tokens, lengths, history, history_lengths, positions)]
    append_tokens(*tensors)
    _, last_tokens, lengths, history, history_lengths, positions = (t.cpu() for t in tensors)
    assert torch.equal(last_tokens[:, 0], tokens)
    assert torch.equal(history, expected)
    assert all(torch.equal(a, b) for a, b in zip((lengths, history_lengths, positions), later, strict=True))


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embedding_tokens_adds_the_offset_of_their_position(dtype):
    from headway.nn.kernels.decode_tokens import embed_tokens

    torch.manual_seed(0)
    embedding, offsets = torch.randn(9, 24).to(DEVICE, dtype), torch.randn(8, 24).to(DEVICE, dtype)
    ids, lengths = torch.tensor([[3], [-1], [8]], device=DEVICE), torch.tensor([0, 5, 6], device=DEVICE)
    for table, scale, capacity in ((None, 1.0, 6), (offsets, 1.0, 8), (offsets, 3.0, 6)):
        x = scale * embedding[[3, 0, 8]].float()
        if table is not None:
            x += table[[0, 5, min(6, capacity - 1)]].float()
        torch.testing.assert_close(embed_tokens(ids, lengths, embedding, table, scale, capacity), x)
