"""Padding token sequences into a batch."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.nn.padding import pad_ids


@given(st.lists(st.lists(st.integers(0, 2**40), max_size=5), max_size=4))
def test_rows_come_back_and_padding_is_zero(rows):
    ids, lengths = pad_ids(rows)
    assert ids.dtype == lengths.dtype == torch.int64
    assert ids.shape == (len(rows), max(map(len, rows), default=0))
    assert lengths.tolist() == [len(row) for row in rows]
    for b, row in enumerate(rows):
        assert ids[b].tolist() == row + [0] * (ids.shape[1] - len(row))


def test_ids_go_to_the_device_and_lengths_stay_on_the_cpu():
    ids, lengths = pad_ids([[1, 2], [3]], device="meta")
    assert ids.device.type == "meta"
    assert lengths.device.type == "cpu"
