"""Masks equal their definitions, entry by entry."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.nn import masks


@given(st.integers(1, 6), st.integers(0, 6), st.integers(1, 8))
def test_causal_and_sliding_window(n_queries, n_cached, window):
    n_keys = n_queries + n_cached
    causal, sliding = masks.causal(n_queries, n_keys), masks.sliding_window(n_queries, n_keys, window=window)
    for t in range(n_queries):
        for s in range(n_keys):
            query = t + n_cached
            assert causal[t, s] == (s <= query)
            assert sliding[t, s] == (query - window < s <= query)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_padding(lengths):
    mask = masks.padding(torch.tensor(lengths), 5)
    assert mask.sum(1).tolist() == lengths
    assert mask.int().diff(dim=1).max() <= 0  # real tokens first


def test_documents_do_not_attend_to_each_other():
    mask = masks.document(torch.tensor([[0, 0, 1], [4, 5, 4]])).int().tolist()
    assert mask == [[[1, 1, 0], [1, 1, 0], [0, 0, 1]], [[1, 0, 1], [0, 1, 0], [1, 0, 1]]]
