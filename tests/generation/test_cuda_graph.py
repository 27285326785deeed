"""What graphs depend on, and which are kept. Capturing needs a GPU: tests/sampling/test_gpu.py."""

from types import SimpleNamespace

import pytest
import torch

import headway
from headway.generation.cuda_graph import MAX_GRAPHS, GraphPool, signature_of
from headway.nn import use_attention


def exchange_weights(model):
    model.embedding.weight.data = model.embedding.weight.data.clone()


@pytest.mark.parametrize(
    "change",
    [
        exchange_weights,
        lambda model: use_attention(model, "reference"),
        lambda model: model.train(),
        lambda model: model.blocks[0].attention.register_forward_hook(lambda *args: None),
    ],
    ids=["weights", "attention", "training mode", "hook"],
)
def test_a_change_that_a_graph_would_miss_changes_the_signature(change):
    model = headway.create("gpt-tiny").eval()
    before = signature_of(model)
    with torch.no_grad():
        model.embedding.weight.mul_(2)  # in place: a graph reads the new values
    assert signature_of(model) == before
    change(model)
    assert signature_of(model) != before


def pool_of(*graphs):
    pool = GraphPool()
    pool.graphs = {
        (i,): SimpleNamespace(is_idle=is_idle, cache=SimpleNamespace(nbytes=n)) for i, (is_idle, n) in enumerate(graphs)
    }
    return pool


def kept(pool, weight_bytes=1000):
    pool._make_space(weight_bytes)
    return [i for (i,) in pool.graphs]


def test_the_least_recently_used_idle_graphs_are_dropped():
    assert kept(pool_of((True, 50), (True, 50))) == [0, 1]  # 100 bytes of 150
    assert kept(pool_of((True, 100), (True, 50), (True, 100))) == [1, 2]
    assert kept(pool_of((True, 10_000))) == []
    assert kept(pool_of((False, 10_000), (True, 100))) == [0, 1]  # in use, and not counted
    assert kept(pool_of(*[(True, 1)] * MAX_GRAPHS)) == list(range(1, MAX_GRAPHS))  # one more is coming
    assert len(kept(pool_of(*[(False, 1)] * 20))) == 20
