"""On a GPU: the same results as on the CPU, and steps that never synchronise."""

import pytest
import torch
from torch.testing import assert_close

from tests.models.variants import POSITIONS, gpt, transformer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(autouse=True)
def _no_tf32():
    """float32 matmuls in float32, not in TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("positions", POSITIONS)
def test_gpu_equals_cpu_step_by_step_and_ragged(positions):
    model, ids = gpt(positions=positions, n_kv_heads=2), torch.randint(41, (3, 14))
    expected = model(ids)
    model.cuda()
    assert_close(model(ids.cuda()).cpu(), expected, rtol=1e-4, atol=1e-4)
    lengths = torch.tensor([8, 3, 5])
    logits, state = model.step(ids[:, :8].cuda(), model.start(3), lengths=lengths.cuda())
    for b, n in enumerate(lengths):
        assert_close(logits[b, :n].cpu(), expected[b, :n], rtol=1e-4, atol=1e-4)
    following = torch.stack([ids[b, n : n + 4] for b, n in enumerate(lengths)])
    logits, _ = model.step(following.cuda(), state)
    for b, n in enumerate(lengths):
        assert_close(logits[b].cpu(), expected[b, n : n + 4], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("is_ragged", [False, True])
def test_a_step_never_synchronises(positions, is_ragged):
    model = gpt(positions=positions).cuda()
    ids, lengths = torch.randint(41, (3, 6), device="cuda"), torch.tensor([6, 2, 3], device="cuda")
    state = model.start(3)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        _, state = model.step(ids, state, lengths=lengths if is_ragged else None)
        for _ in range(3):
            _, state = model.step(ids[:, :1], state, last=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert state.length.tolist() == ([9, 5, 6] if is_ragged else [9, 9, 9])


def test_a_step_can_be_captured_in_a_cuda_graph():
    model, ids = gpt().cuda(), torch.randint(41, (3, 6), device="cuda")
    with torch.no_grad():
        _, state = model.step(ids[:, :5], model.start(3), lengths=torch.tensor([5, 2, 3], device="cuda"))
        expected, _ = model.step(ids[:, 5:], state.copy())
        token = torch.zeros_like(ids[:, 5:])
        model.step(token, state.copy())  # warm up
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits, _ = model.step(token, state)
        token.copy_(ids[:, 5:])
        graph.replay()
    assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_encoder_decoder_on_the_gpu():
    model = transformer()
    ids, source = torch.randint(41, (2, 5)), torch.randint(41, (2, 7))
    mask = torch.arange(7) < torch.tensor([7, 4])[:, None]
    expected = model(ids, source=source, source_mask=mask)
    model.cuda()
    state, outputs = model.start(source=source.cuda(), source_mask=mask.cuda()), []
    for t in range(5):
        logits, state = model.step(ids[:, t : t + 1].cuda(), state)
        outputs.append(logits.cpu())
    assert_close(torch.cat(outputs, 1), expected, rtol=1e-4, atol=1e-4)
