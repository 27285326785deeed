"""The KV cache: its size, its memory and its limits."""

import pytest
import torch

import headway
from headway.errors import InputError


def make(**config):
    shape = {"vocab_size": 30, "context": 16, "n_layers": 3, "d_model": 24, "n_heads": 4, "dropout": 0.0}
    return headway.create("gpt", **{**shape, **config}).eval()


@pytest.mark.parametrize(("kv_heads", "d_head"), [(4, None), (2, None), (1, 10)])
def test_size_is_the_lectures_formula(kv_heads, d_head):
    """2 · n · d_kv · L numbers per row."""
    model = make(n_kv_heads=kv_heads, d_head=d_head)
    d_kv = kv_heads * (d_head or 6)
    for n in (1, 7, 16):
        assert model.start(batch_size=5, capacity=n).nbytes == 5 * (2 * n * d_kv * 3) * 4
    assert model.start(2).nbytes == 2 * (2 * 16 * d_kv * 3) * 4  # the default capacity is the context
    assert model.to(torch.bfloat16).start(1, 10).nbytes == 2 * 10 * d_kv * 3 * 2


@pytest.mark.parametrize("lengths", [None, torch.tensor([3, 1])])
def test_a_new_token_is_written_in_place(lengths):
    model = make()
    state = model.start(2)
    addresses = state.keys.data_ptr(), state.values.data_ptr()
    _, state = model.step(torch.ones(2, 3, dtype=torch.long), state, lengths=lengths)
    for _ in range(5):
        _, state = model.step(torch.ones(2, 1, dtype=torch.long), state)
        assert (state.keys.data_ptr(), state.values.data_ptr()) == addresses


def test_an_earlier_state_can_be_resumed_in_place_of_the_later_one():
    model, ids = make(), torch.randint(30, (1, 9))
    _, early = model.step(ids[:, :6], model.start(1))
    _, _ = model.step(torch.randint(30, (1, 3)), early)
    logits, _ = model.step(ids[:, 6:], early)
    torch.testing.assert_close(logits, model(ids)[:, 6:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("positions", ["learned", "per-layer", "relative"])
def test_positions_with_a_limit_refuse_a_longer_prompt(positions):
    model = make(positions=positions)
    too_long = torch.zeros(1, 17, dtype=torch.long)
    with pytest.raises(InputError, match=f"17 tokens are longer than the context of 16, where {positions}"):
        model(too_long)
    with pytest.raises(InputError, match="17 tokens are longer than the context of 16"):
        model.step(too_long, model.start(1))
    with pytest.raises(InputError, match="17 tokens are longer than the context"):
        model.start(1, capacity=17)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "alibi"])
def test_positions_without_a_limit_extend(positions):
    model, ids = make(positions=positions), torch.randint(30, (2, 50))
    expected = model(ids)
    state, outputs = model.start(2), []  # the initial capacity is 16, so it grows
    for chunk in ids.split([10, 20, 1, 1, 18], dim=1):
        logits, state = model.step(chunk, state)
        outputs.append(logits)
    torch.testing.assert_close(torch.cat(outputs, 1), expected, rtol=1e-5, atol=1e-5)
    ragged = model.start(2)
    _, ragged = model.step(ids[:, :12], ragged, lengths=torch.tensor([12, 3]))
    logits, _ = model.step(ids[:, 12:32], ragged)
    torch.testing.assert_close(logits[0], expected[0, 12:32], rtol=1e-5, atol=1e-5)


def test_an_explicit_capacity_is_a_limit():
    model = make(positions="rotary")
    state = model.start(1, capacity=4)
    with pytest.raises(InputError, match=r"5 tokens are longer than the context of 4 .* start\(capacity=5\)"):
        model.step(torch.zeros(1, 5, dtype=torch.long), state)


def test_padding_does_not_use_up_capacity():
    """Two steps of 8 with few real tokens fit in a cache for 10."""
    model, ids = make(), torch.randint(30, (2, 10))
    _, state = model.step(ids[:, :8], model.start(2, capacity=10), lengths=torch.tensor([2, 3]))
    chunk = torch.stack([ids[0, 2:10], torch.cat((ids[1, 3:10], ids[1, :1]))])
    logits, state = model.step(chunk, state, lengths=torch.tensor([8, 7]))
    torch.testing.assert_close(logits[0], model(ids)[0, 2:], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits[1, :7], model(ids)[1, 3:], rtol=1e-5, atol=1e-5)
    assert state.length.tolist() == [10, 10]


def test_a_row_of_length_zero_may_be_padded_beyond_the_context():
    for positions in ("learned", "relative", "rotary", "alibi"):
        model = make(context=1, positions=positions)
        _, state = model.step(torch.zeros(1, 3, dtype=torch.long), model.start(1), lengths=[0])
        assert state.length.tolist() == [0]


def test_repr_is_one_line():
    assert repr(make().start(2)) == "KVCache(2 rows of 0 tokens, capacity 16, 18,432 bytes)"


def test_wrong_batch_sizes_and_lengths_are_reported():
    model = make()
    with pytest.raises(InputError, match=r"ids of shape \(3, 2\) for a state of 2 rows"):
        model.step(torch.zeros(3, 2, dtype=torch.long), model.start(2))
    with pytest.raises(InputError, match="expected one per row"):
        model(torch.zeros(3, 2, dtype=torch.long), torch.tensor([1, 2]))
    with pytest.raises(InputError, match="lengths from 0 to 3 for rows of 2"):
        model(torch.zeros(2, 2, dtype=torch.long), torch.tensor([0, 3]))
