"""Models are one graph to torch.compile: no break, the same numbers. The backend is eager: tracing is tested."""

import pytest
import torch
from torch.testing import assert_close

from tests.models.variants import POSITIONS, gpt, transformer


@pytest.mark.parametrize("positions", POSITIONS)
def test_gpt_is_one_graph(positions):
    model, ids = gpt(positions=positions, n_kv_heads=2), torch.randint(41, (2, 9))
    torch._dynamo.reset()
    assert_close(torch.compile(model, backend="aot_eager", fullgraph=True)(ids), model(ids))


def test_transformer_is_one_graph():
    model, ids, source = transformer(), torch.randint(41, (2, 9)), torch.randint(41, (2, 5))
    mask = torch.arange(5) < torch.tensor([5, 2])[:, None]
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert_close(compiled(ids, source=source, source_mask=mask), model(ids, source=source, source_mask=mask))
