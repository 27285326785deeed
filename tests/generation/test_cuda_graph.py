"""The loop around graphs, with steps that run eagerly; what graphs depend on, and which are kept. Capturing needs a
GPU: tests/sampling/test_gpu.py."""

import gc
import random
import weakref
from types import SimpleNamespace

import pytest
import torch

import headway
from headway.errors import InputError
from headway.generation import cuda_graph, decode_loop
from headway.generation.cuda_graph import MAX_GRAPHS, DecodeGraph, GraphPool, signature_of
from headway.generation.decode_loop import DecodeLoop
from headway.models import fused_rule
from headway.models.fused_decode import TritonDecodeStep
from headway.sampling import Pipeline
from tests.models.test_fused_decode import CHANGES, EXCHANGED
from tests.models.variants import POSITIONS, gpt
from tests.triton_tests import IS_INTERPRETED, needs_triton


def test_the_signature_changes_with_the_place_of_the_weights_and_the_config():
    model = headway.create("gpt-tiny").eval()
    before = signature_of(model)
    with torch.no_grad():
        model.embedding.weight.mul_(2)  # in place: a graph reads the new values
    assert signature_of(model) == before
    model.embedding.weight.data = model.embedding.weight.data.clone()
    moved = signature_of(model)
    assert moved != before
    model.config = model.config.replace(norm_eps=0.1)
    assert signature_of(model) != moved


def test_the_signature_changes_with_the_dtype_at_one_address():
    model = headway.create("gpt-tiny", dtype="bfloat16").eval()
    before, weight = signature_of(model), model.embedding.weight
    weight.data = weight.data.view(torch.float16)
    assert signature_of(model) != before
    weight.data = weight.data.view(torch.bfloat16)
    assert signature_of(model) == before


def pool_of(*graphs):
    pool = GraphPool()
    pool.graphs = {
        (i,): SimpleNamespace(is_idle=is_idle, cache=SimpleNamespace(nbytes=n)) for i, (is_idle, n) in enumerate(graphs)
    }
    return pool


def kept(pool, max_idle_bytes=150):
    pool.trim(max_idle_bytes)
    return [i for (i,) in pool.graphs]


def test_the_least_recently_used_idle_graphs_are_dropped():
    assert kept(pool_of((True, 50), (True, 50))) == [0, 1]
    assert kept(pool_of((True, 100), (True, 50), (True, 100))) == [1, 2]
    assert kept(pool_of((True, 10_000))) == []
    assert kept(pool_of((False, 10_000), (True, 100))) == [0, 1]  # in use, and not counted
    assert kept(pool_of(*[(True, 1)] * (MAX_GRAPHS + 1))) == list(range(1, MAX_GRAPHS + 1))
    assert len(kept(pool_of(*[(False, 1)] * 20))) == 20


# ── the loop, with graphs whose replay is an eager step ───────────────────────────────────────────────────────────


class EagerCopy:
    def __init__(self, tokens, target):
        self.tokens = tokens[:, 0].tolist()

    def wait(self):
        return self.tokens


@pytest.fixture
def eager_graphs(monkeypatch):
    """Graphs run on a CPU; counts the captures."""
    n_captures = [0]

    def capture(graph):
        n_captures[0] += 1
        saved = [tensor.clone() for tensor in graph._updated_tensors()]
        graph._decode_step()
        graph._restore(saved)
        graph.graph = SimpleNamespace(replay=graph._decode_step)

    monkeypatch.setattr(DecodeGraph, "_capture", capture)
    monkeypatch.setattr(cuda_graph, "why_not_fused", lambda model: None)  # so that graphs are kept
    monkeypatch.setattr(cuda_graph, "_trim", lambda model: None)
    for module in (cuda_graph, decode_loop):
        monkeypatch.setattr(module, "TokenCopy", EagerCopy)
    return n_captures


@pytest.fixture
def fused_graphs(eager_graphs, monkeypatch):
    """Their steps are those of the Triton kernels, in Triton's interpreter, for the models that take the fused path."""

    def step(model, cache):
        return TritonDecodeStep(model, cache) if fused_rule.why_not_fused(model) is None else None

    monkeypatch.setattr(fused_rule, "missing_kernels", lambda device: None)
    monkeypatch.setattr(cuda_graph, "triton_decode_step", step)
    return eager_graphs


only_interpreted = pytest.mark.skipif(not IS_INTERPRETED, reason="needs Triton's interpreter")


def generate(model, pipe, prompts, n_new, ends, **options):
    """The tokens of each row, which finishes after `ends[row]`."""
    loop = DecodeLoop(model, prompts, pipe, n_new, seeds=range(len(prompts)), **options)
    tokens = [[] for _ in prompts]
    while loop.active:
        for row, _, token in loop.step():
            tokens[row].append(token)
            if len(tokens[row]) == ends[row]:
                loop.finish(row)
    return tokens


@pytest.mark.parametrize("seed", range(40))
def test_loops_with_graphs_give_the_same_tokens(seed, eager_graphs):
    """Any positions, prompts, ends and samplers; graphs are used again, and the last step may be the compacting one."""
    rng = random.Random(seed)
    model = gpt(n_layers=1, context=16, positions=rng.choice(POSITIONS)).eval()
    pipe = rng.choice([Pipeline().greedy(), Pipeline(temperature=1.0, no_repeat_ngram=2), Pipeline(top_k=5)])
    for _ in range(3):
        n_new = rng.randint(2, 14)
        prompts = [[rng.randrange(41) for _ in range(rng.randint(1, 16 - n_new))] for _ in range(rng.randint(1, 5))]
        prompts += rng.choice([[], prompts[:1]])  # a prompt that is prefilled once
        ends = [rng.choice([n_new, n_new - 1, rng.randint(1, n_new)]) or 1 for _ in prompts]
        expected = generate(model, pipe, prompts, n_new, ends, use_cuda_graph=False)
        for lookahead in (True, False):
            options = {"use_cuda_graph": True, "lookahead": lookahead}
            assert generate(model, pipe, prompts, n_new, ends, **options) == expected


def test_similar_lengths_share_a_graph_whatever_the_positions(eager_graphs):
    for positions in ("rotary", "learned"):
        model, pipe = gpt(n_layers=1, context=100, positions=positions).eval(), Pipeline().greedy()
        eager_graphs[0] = 0
        for n_prompt in range(1, 30):
            generate(model, pipe, [[1] * n_prompt], 9, [9], use_cuda_graph=True, lookahead=True)
        assert eager_graphs[0] == 1


def test_two_loops_at_once_do_not_share_a_graph(eager_graphs):
    model, pipe = gpt(n_layers=1, context=40).eval(), Pipeline().greedy()
    expected = [generate(model, pipe, [prompt], 9, [9], use_cuda_graph=False)[0] for prompt in ([1, 2], [7])]
    loops = [DecodeLoop(model, [prompt], pipe, 9, seeds=[0], use_cuda_graph=True) for prompt in ([1, 2], [7])]
    tokens = [[], []]
    for _ in range(9):
        for i, loop in enumerate(loops):
            tokens[i] += [token for _, _, token in loop.step()]
    assert tokens == expected


@needs_triton
@only_interpreted
@pytest.mark.parametrize("seed", range(2))
def test_a_captured_fused_step_counts_tokens_as_the_plain_one(seed, fused_graphs):
    """Rows of different lengths that end at different times, in a cache that the last token fills."""
    rng = random.Random(seed)
    model = gpt(n_layers=1, context=12, positions=rng.choice(POSITIONS), d_model=8).eval()
    pipe = [Pipeline().greedy(), Pipeline(top_k=5, no_repeat_ngram=2, mirostat_v2_tau=3.0)][seed]
    prompts, ends = [[3, 1, 4, 1, 5], [9], [2, 6]], [7, 3, 6]
    expected = generate(model, pipe, prompts, 7, ends, use_cuda_graph=False)
    for lookahead in (True, False):
        options = {"use_cuda_graph": True, "lookahead": lookahead}
        assert generate(model, pipe, prompts, 7, ends, **options) == expected


@needs_triton
@only_interpreted
@pytest.mark.parametrize(("change", "lookahead"), [("in place", True), ("assigned", True), ("hooked", False)])
def test_a_model_that_changes_between_two_tokens_gets_another_graph(change, lookahead, fused_graphs):
    """With lookahead one more token comes from the model as it was."""
    found = []
    for use_cuda_graph in (True, False):
        torch.manual_seed(0)
        model = headway.create("gpt", **EXCHANGED | {"d_model": 8, "dropout": 0.0}).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        options = {"seeds": [0], "use_cuda_graph": use_cuda_graph, "lookahead": lookahead}
        loop = DecodeLoop(model, [[1, 2, 3]], Pipeline().greedy(), 12, **options)
        tokens = [loop.step() for _ in range(3 if use_cuda_graph or not lookahead else 4)]
        fused_graphs[0] = 0
        CHANGES[change][0](model)
        tokens += [loop.step() for _ in range(6 - len(tokens))]
        found.append(tokens)
        if use_cuda_graph:
            assert fused_graphs[0] == (0 if change == "in place" else 1)
    assert found[0] == found[1]


@pytest.mark.usefixtures("eager_graphs")
@pytest.mark.parametrize("when", ["captured", "compacted", "prefilled"])
def test_a_model_that_leaves_the_device_ends_the_generation_with_a_reason(when, monkeypatch):
    model = gpt(n_layers=1, context=40).eval()
    prompts = [[1, 2], [1, 2]] if when == "prefilled" else [[1, 2], [3]]
    loop = DecodeLoop(model, prompts, Pipeline().greedy(), 9, seeds=[0, 0], use_cuda_graph=True, lookahead=True)
    for _ in range(1 if when == "prefilled" else 3):
        loop.step()
    if when == "compacted":
        loop.finish(1)
    model.embedding.weight.data = model.embedding.weight.data.clone()
    monkeypatch.setattr(type(model), "device", torch.device("meta"))
    with pytest.raises(InputError, match="the model has moved from cpu to meta while it generates"):
        loop.step()


def test_a_change_after_the_last_step_was_launched_needs_no_graph(eager_graphs, monkeypatch):
    model = gpt(n_layers=1, context=40).eval()
    loop = DecodeLoop(model, [[1, 2]], Pipeline().greedy(), 5, seeds=[0], use_cuda_graph=True, lookahead=True)
    tokens = [loop.step() for _ in range(4)]
    model.embedding.weight.data = -model.embedding.weight.data
    monkeypatch.setattr(type(model), "device", torch.device("meta"))
    tokens.append(loop.step())
    assert eager_graphs[0] == 1
    monkeypatch.undo()
    model.embedding.weight.data = -model.embedding.weight.data
    assert [token for ((_, _, token),) in tokens] == generate(model, loop.pipe, [[1, 2]], 5, [5])[0]


@pytest.mark.usefixtures("eager_graphs")
def test_a_model_that_has_generated_can_be_freed():
    model = gpt(n_layers=1, context=40).eval()
    weights = weakref.ref(model.embedding.weight)
    generate(model, Pipeline().greedy(), [[1, 2]], 5, [5], use_cuda_graph=True, lookahead=True)
    assert model in cuda_graph._POOLS
    del model
    gc.collect()
    assert weights() is None
