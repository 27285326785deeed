"""The samplers' Triton kernels equal their definitions. On a GPU, or anywhere with Triton's interpreter."""

import contextlib

import pytest
import torch

from headway.sampling import filters
from tests.triton_tests import DEVICE, IS_INTERPRETED, needs_triton

pytestmark = needs_triton


@pytest.fixture(autouse=True)
def _no_gpu_to_select(monkeypatch):
    if IS_INTERPRETED:
        monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())


def awkward_rows(n_columns):
    """Ties, both zeros, NaN of both signs, infinities, and rows without a token."""
    rows = torch.randn(9, n_columns)
    rows[1] = 0.5
    rows[2], rows[2, -1] = -0.0, 0.0
    rows[3, n_columns // 2] = torch.nan
    rows[4, -1] = torch.tensor(-1, dtype=torch.int32).view(torch.float32)  # NaN with its sign bit set
    rows[5, 0] = torch.inf
    rows[6] = -torch.inf
    rows[7], rows[7, -1] = -torch.inf, -1e30
    rows[8] = -rows[8].abs() * 1e30
    return rows


@pytest.mark.parametrize("n_columns", [1, 50, 5000])
def test_the_best_column_is_the_first_of_the_largest_and_minus_one_without_any(n_columns):
    from headway.sampling.kernels import best_column

    rows = awkward_rows(n_columns)
    expected = torch.where(rows.amax(dim=-1).isfinite(), rows.argmax(dim=-1), -1)
    padded = torch.cat([rows, torch.full((9, 3), 1e31)], dim=1)  # logits past the vocabulary
    for values in (rows.to(DEVICE), padded.to(DEVICE)[:, :n_columns]):
        assert torch.equal(best_column(values).cpu(), expected)


@pytest.mark.parametrize("width", [1, 64])
def test_block_max_is_the_maximum_of_each_block(width):
    from headway.sampling.kernels import block_max

    rows = torch.randn(3, 500)
    n_blocks = 500 // width
    expected = rows[:, : n_blocks * width].unflatten(1, (n_blocks, width)).amax(dim=-1)
    assert torch.equal(block_max(rows.to(DEVICE), width).cpu(), expected)


@pytest.mark.parametrize(("by", "need"), [("count", 7.0), ("mass", 0.6), ("typical", 0.6)])
def test_a_prefix_is_what_sorting_keeps(by, need):
    from headway.sampling.kernels import prefix

    rows = 2 * torch.randn(2, 600)
    sampler = {"count": filters.top_k, "mass": filters.top_p, "typical": filters.typical}[by]
    column = torch.full((1, 1), need, dtype=torch.float64)
    expected = sampler(rows, column.long() if by == "count" else column, 1)
    assert torch.equal(prefix(rows.to(DEVICE), column.to(DEVICE), 1, by).cpu(), expected)
