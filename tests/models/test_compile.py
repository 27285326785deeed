"""torch.compile captures each model as one graph with equal results. The backend is eager: only tracing is tested."""

import pytest
import torch
from torch.testing import assert_close

from tests.models.variants import gpt, transformer


# One encoding for each way a position enters: in the embedding, through q and k, as a bias.
@pytest.mark.parametrize("positions", ["learned", "rotary", "relative"])
def test_gpt_is_one_graph(positions):
    model, ids = gpt(positions=positions, n_kv_heads=2, n_layers=1), torch.randint(41, (2, 9))
    torch._dynamo.reset()
    assert_close(torch.compile(model, backend="aot_eager", fullgraph=True)(ids), model(ids))


def test_transformer_is_one_graph():
    model, ids, source = transformer(n_layers=1), torch.randint(41, (2, 9)), torch.randint(41, (2, 5))
    mask = torch.arange(5) < torch.tensor([5, 2])[:, None]
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert_close(compiled(ids, source=source, source_mask=mask), model(ids, source=source, source_mask=mask))
