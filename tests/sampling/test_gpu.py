"""Samplers on a GPU: the same results, no waiting for the device, and steps that can be captured."""

import itertools
import random

import pytest
import torch

from headway.errors import InputError
from headway.generation.decode_loop import DecodeLoop
from headway.generation.reference import decode, pipeline_chooser
from headway.sampling import SAMPLERS, Pipeline, filters
from headway.sampling.ranking import ranked
from tests.models.variants import gpt
from tests.sampling import cases

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
NAMES = [n for n in SAMPLERS if not n.startswith("mirostat")]


@pytest.mark.parametrize("seed", range(6))
def test_pipelines_give_what_they_give_on_the_cpu(seed):
    """Small rows, and rows long enough for the kernel, whose float32 sums may differ within 1e-5 of a threshold."""
    rng = random.Random(seed)
    for V in (6, 60, 300, 20_000):
        for _ in range(6):
            names = rng.sample(NAMES, 3) + rng.choice([[], ["mirostat_v1"], ["mirostat_v2"]])
            pipe = Pipeline([cases.settings(rng, name, V) for name in names])
            logits = torch.tensor([cases.row(rng, V) for _ in range(3)])
            around = {"history": [cases.history(rng, V) for _ in range(3)], "uniforms": [0.2, 0.5, 0.7], "mu": 3.0}
            here, there = pipe.apply(logits, **around), pipe.apply(logits.cuda(), **around).cpu()
            differ = (here.isfinite() != there.isfinite()).sum(dim=-1)
            assert differ.max() <= (2 if V == 20_000 else 0), pipe
            both = here.isfinite() & there.isfinite()
            torch.testing.assert_close(here[both], there[both], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("levels", [None, 5])
def test_the_kernels_find_what_sorting_finds(levels):
    """Without sorting and in float32, so a sum within rounding of what is wanted may end some tokens earlier or later,
    which in a flat tail are several."""
    rng = torch.Generator().manual_seed(0)
    row = (
        torch.randn(20, 30_000, generator=rng)
        if levels is None
        else torch.randint(levels, (20, 30_000), generator=rng).float()
    )
    row[3, 100:] = -torch.inf
    for k in (1, 40, 5000, 29_999):
        column = torch.full((20, 1), k)
        assert torch.equal(filters.top_k(row.cuda(), column.cuda(), 1).cpu(), filters.top_k(row, column, 1))
    assert torch.equal(ranked(row.cuda(), 50).cpu(), ranked(row, 50))
    for stage, p, least in itertools.product((filters.top_p, filters.typical), (1e-6, 0.3, 0.7, 0.999), (1, 100)):
        for scale in (1.0, 3.0):
            column = torch.full((1, 1), p, dtype=torch.float64)
            found = stage(scale * row.cuda(), column.cuda(), least).cpu().isfinite()
            expected = stage(scale * row, column, least).isfinite()
            differ = found != expected
            mass = (differ * (scale * row).softmax(dim=-1)).sum(dim=-1)
            assert ((differ.sum(dim=-1) <= 2) | (mass < 3e-6)).all(), (stage, p, least, scale)


def test_a_row_with_nan_is_not_passed_over():
    row = torch.randn(3, 20_000, device="cuda")
    row[1, 7] = torch.nan
    for settings in ({"top_k": 5}, {"top_p": 0.9}, {"typical": 0.9}, {"top_k": 5000, "top_p": 0.5}):
        token, _ = Pipeline(preset="default", **settings).draw(row)
        assert (token >= 0).tolist() == [True, False, True], settings


FULL = {
    "repetition_penalty": 1.1, "frequency_penalty": 0.1, "dry_multiplier": 0.5, "no_repeat_ngram": 3, "top_k": 50,
    "top_p": 0.95, "min_p": 0.02, "typical": 0.9, "xtc_probability": 0.5, "temperature": 0.8,
}  # fmt: skip


@pytest.mark.parametrize("settings", [FULL, {"top_p": 0.9, "typical": 0.9}, {"mirostat_v2_tau": 3.0}])
def test_a_draw_never_waits_for_the_device(settings):
    pipe = Pipeline(preset="default", **settings)
    logits = torch.randn(8, 20_000, device="cuda")
    history = (torch.randint(20_000, (8, 64), device="cuda"), torch.full((8,), 64, device="cuda"))
    n_prompt = torch.full((8,), 3, device="cuda")
    state = pipe.start(8, 0, "cuda")
    expected, _ = pipe.draw(logits, history=history, n_prompt=n_prompt, state=state)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found, _ = pipe.draw(logits, history=history, n_prompt=n_prompt, state=state)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found, expected)


def test_a_row_without_a_choice_is_marked():
    logits = torch.randn(3, 500, device="cuda")
    logits[1] = torch.nan
    ids, _ = Pipeline([{"stage": "top_k", "k": 5}]).draw(logits)
    assert ids[1] == -1
    assert (ids[[0, 2]] >= 0).all()


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 1.2}, FULL, {"mirostat_v2_tau": 2.5}])
def test_the_captured_loop_writes_what_the_reference_writes(settings):
    model = gpt(n_layers=2, context=64).cuda()
    prompts, seeds = [[1, 2, 3], [7], [5, 5, 5, 5, 9], [1, 2, 3]], [4, 5, 6, 7]
    pipe = Pipeline(preset="default", **settings)
    rows = torch.stack(list(decode(model, prompts, pipeline_chooser(pipe, prompts, seeds), 20)), dim=1).tolist()
    for graph in (True, False):
        loop, found = DecodeLoop(model, prompts, pipe, 20, seeds=seeds, graph=graph), {i: [] for i in range(4)}
        for n in range(20):
            for row, _, token in loop.step():
                found[row].append(token)
                if n == 4 + 4 * row:
                    loop.end(row)
        assert found == {i: rows[i][: 5 + 4 * i] for i in range(4)}


def test_nan_ends_the_captured_loop_with_the_rows_name():
    model = gpt(n_layers=1).cuda()
    loop = DecodeLoop(model, [[1], [2]], Pipeline(), 9, seeds=[0, 1])
    loop.step()
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(InputError, match="row 0 of the logits has NaN"):
        loop.step()
