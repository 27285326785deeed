"""Moving batches to a GPU."""

import numpy as np
import pytest
import torch

from headway.data import BatchLoader, CausalDataset, TokenArray, prefetch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_prefetched_batches_arrive_intact_and_in_order():
    loader = BatchLoader(CausalDataset(TokenArray.of(np.arange(100_000)), 64), 32, seed=1)
    expected = [batch.inputs for batch in loader.epoch()]
    batches = list(prefetch(loader.epoch(), device="cuda"))
    assert all(batch.inputs.device.type == "cuda" for batch in batches)
    assert all(torch.equal(inputs, batch.inputs.cpu()) for inputs, batch in zip(expected, batches, strict=True))
