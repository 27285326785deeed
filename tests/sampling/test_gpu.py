"""Samplers on a GPU: the same results as on the CPU, no synchronisation, and steps that CUDA graphs can capture."""

import itertools
import random

import pytest
import torch
import torch.nn.functional as F

from headway.errors import InputError
from headway.generation.cuda_graph import _POOLS, MAX_GRAPHS
from headway.generation.decode_loop import DecodeLoop
from headway.generation.reference import decode, pipeline_chooser
from headway.nn.linear import use_linear
from headway.sampling import SAMPLERS, Pipeline, filters
from headway.sampling.ranking import ranked
from tests.models.variants import gpt
from tests.sampling import cases

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
NAMES = [name for name in SAMPLERS if not name.startswith("mirostat")]


@pytest.mark.parametrize("seed", range(6))
def test_pipelines_give_the_same_result_on_cpu_and_gpu(seed):
    """Short rows, and rows long enough for the kernels, whose float32 sums may differ within 1e-5 of a threshold."""
    rng = random.Random(seed)
    for V in (6, 60, 300, 20_000):
        for _ in range(6):
            names = rng.sample(NAMES, 3) + rng.choice([[], ["mirostat_v1"], ["mirostat_v2"]])
            pipe = Pipeline([cases.stage(rng, name, V) for name in names])
            logits = torch.tensor([cases.row(rng, V) for _ in range(3)])
            context = {"history": [cases.history(rng, V) for _ in range(3)], "uniforms": [0.2, 0.5, 0.7], "mu": 3.0}
            cpu, gpu = pipe.apply(logits, **context), pipe.apply(logits.cuda(), **context).cpu()
            n_different = (cpu.isfinite() != gpu.isfinite()).sum(dim=-1)
            assert n_different.max() <= (2 if V == 20_000 else 0), pipe
            both = cpu.isfinite() & gpu.isfinite()
            torch.testing.assert_close(cpu[both], gpu[both], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("levels", [None, 5])
def test_kernels_keep_what_sorting_keeps(levels):
    """The kernels sum in float32, so that the prefix may end a few tokens earlier or later where the sum is within
    rounding of the threshold; in a flat tail these are several."""
    rng = torch.Generator().manual_seed(0)
    shape = (20, 30_000)
    rows = torch.randn(shape, generator=rng) if levels is None else torch.randint(levels, shape, generator=rng).float()
    rows[3, 100:] = -torch.inf
    for k in (1, 40, 5000, 29_999):
        column = torch.full((20, 1), k)
        assert torch.equal(filters.top_k(rows.cuda(), column.cuda(), 1).cpu(), filters.top_k(rows, column, 1))
    assert torch.equal(ranked(rows.cuda(), 50).cpu(), ranked(rows, 50))
    for sampler, p, min_keep in itertools.product((filters.top_p, filters.typical), (1e-6, 0.3, 0.7, 0.999), (1, 100)):
        for scale in (1.0, 3.0):
            column = torch.full((1, 1), p, dtype=torch.float64)
            kept = sampler(scale * rows.cuda(), column.cuda(), min_keep).cpu().isfinite()
            expected = sampler(scale * rows, column, min_keep).isfinite()
            is_different = kept != expected
            mass = (is_different * (scale * rows).softmax(dim=-1)).sum(dim=-1)
            assert ((is_different.sum(dim=-1) <= 2) | (mass < 3e-6)).all(), (sampler, p, min_keep, scale)


def test_filters_keep_nan_so_that_the_draw_detects_it():
    rows = torch.randn(3, 20_000, device="cuda")
    rows[1, 7] = torch.nan
    for settings in ({"top_k": 5}, {"top_p": 0.9}, {"typical": 0.9}, {"top_k": 5000, "top_p": 0.5}):
        token, _ = Pipeline(preset="default", **settings).draw(rows)
        assert (token >= 0).tolist() == [True, False, True], settings


ALL_KINDS = {
    "repetition_penalty": 1.1, "frequency_penalty": 0.1, "dry_multiplier": 0.5, "no_repeat_ngram": 3, "top_k": 50,
    "top_p": 0.95, "min_p": 0.02, "typical": 0.9, "xtc_probability": 0.5, "temperature": 0.8,
}  # fmt: skip


@pytest.mark.parametrize("settings", [ALL_KINDS, {"top_p": 0.9, "typical": 0.9}, {"mirostat_v2_tau": 3.0}])
def test_a_draw_never_synchronises(settings):
    pipe = Pipeline(preset="default", **settings)
    logits = torch.randn(8, 20_000, device="cuda")
    history = (torch.randint(20_000, (8, 64), device="cuda"), torch.full((8,), 64, device="cuda"))
    n_prompt = torch.full((8,), 3, device="cuda")
    state = pipe.start(8, 0, "cuda")
    expected, _ = pipe.draw(logits, history=history, n_prompt=n_prompt, state=state)
    torch.cuda.set_sync_debug_mode("error")
    try:
        tokens, _ = pipe.draw(logits, history=history, n_prompt=n_prompt, state=state)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(tokens, expected)


def test_a_row_of_nan_draws_minus_one():
    logits = torch.randn(3, 500, device="cuda")
    logits[1] = torch.nan
    ids, _ = Pipeline([{"stage": "top_k", "k": 5}]).draw(logits)
    assert ids[1] == -1
    assert (ids[[0, 2]] >= 0).all()


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 1.2}, ALL_KINDS, {"mirostat_v2_tau": 2.5}])
def test_the_captured_loop_generates_what_the_reference_generates(settings):
    model = gpt(n_layers=2, context=64).cuda()
    prompts, seeds = [[1, 2, 3], [7], [5, 5, 5, 5, 9], [1, 2, 3]], [4, 5, 6, 7]
    pipe = Pipeline(preset="default", **settings)
    rows = torch.stack(list(decode(model, prompts, pipeline_chooser(pipe, prompts, seeds), 20)), dim=1).tolist()
    # Twice with a graph that is captured, then twice with the same one.
    for graph, lookahead in ((True, False), (True, True), (True, True), (True, False), (False, False)):
        loop = DecodeLoop(model, prompts, pipe, 20, seeds=seeds, use_cuda_graph=graph, lookahead=lookahead)
        generated = {i: [] for i in range(4)}
        for n in range(20):
            for row, _, token in loop.step():
                generated[row].append(token)
                if n == 4 + 4 * row:
                    loop.finish(row)
        assert generated == {i: rows[i][: 5 + 4 * i] for i in range(4)}


def test_graphs_are_reused_until_weights_move_or_parts_are_replaced():
    model, pipe = gpt(n_layers=2, context=64).cuda(), Pipeline().greedy()

    def generate():
        loop = DecodeLoop(model, [[1, 2, 3], [4, 5, 6]], pipe, 20, seeds=[0, 0], lookahead=True)
        return [[token for _, _, token in loop.step()] for _ in range(20)], loop._graph

    tokens, graph = generate()
    again, same = generate()
    assert again == tokens
    assert same is graph
    with torch.no_grad():
        model.embedding.weight.neg_()  # in place: the graph reads the new values
    changed, same = generate()
    assert same is graph
    assert changed != tokens
    use_linear(model, lambda x, weight, bias: F.linear(x, weight, bias))  # takes the plain path
    plain, plain_graph = generate()
    assert plain == changed
    assert generate()[1] is not plain_graph
    use_linear(model, F.linear)
    model.embedding.weight.data = model.embedding.weight.data.clone()
    new = generate()[1]
    assert new is not same
    assert generate()[0] == changed


def test_the_graphs_that_are_kept_are_bounded():
    model = gpt(n_layers=1, context=64).cuda()
    for n_rows in range(1, MAX_GRAPHS + 5):
        loop = DecodeLoop(model, [[1]] * n_rows, Pipeline().greedy(), 9, seeds=range(n_rows))
        for _ in range(3):
            loop.step()
        del loop
    assert 1 <= len(_POOLS[model].graphs) <= MAX_GRAPHS


def test_nan_in_the_captured_loop_raises_and_names_the_row():
    model = gpt(n_layers=1).cuda()
    loop = DecodeLoop(model, [[1], [2]], Pipeline(), 9, seeds=[0, 1])
    loop.step()
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(InputError, match="row 0 of the logits has NaN"):
        loop.step()
