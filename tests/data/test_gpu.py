"""Batches on their way to a GPU."""

import numpy as np
import pytest
import torch

from headway.data import BatchLoader, CausalDataset, TokenArray, prefetch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_prefetched_batches_arrive_whole_and_in_order():
    batches = BatchLoader(CausalDataset(TokenArray.of(np.arange(100_000)), 64), 32, seed=1)
    here = [batch.inputs for batch in batches.epoch()]
    there = list(prefetch(batches.epoch(), device="cuda"))
    assert all(batch.inputs.device.type == "cuda" for batch in there)
    assert all(torch.equal(a, b.inputs.cpu()) for a, b in zip(here, there, strict=True))
