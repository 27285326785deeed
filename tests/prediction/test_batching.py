"""An encoder runs over texts of any length: each once, in batches of similar length, with the padding masked."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headway
from headway.errors import InputError
from headway.prediction.batching import EncoderInput, run_encoder


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    return headway.create("bert", device="cpu", vocab_size=50, n_layers=1, n_heads=2, d_model=8, context=40)


ROWS = st.lists(st.lists(st.integers(1, 49), min_size=1, max_size=12), max_size=15)


@given(ROWS, st.integers(1, 20))
def test_every_input_is_run_once_with_its_own_ids_the_longest_first(bert, rows, batch_size):
    batches = []

    def forward(ids, mask, segments):
        assert segments is None
        batches.append((ids, mask))
        return ids

    results = list(run_encoder(bert, [EncoderInput(row) for row in rows], forward, batch_size=batch_size))
    assert sorted(number for number, _ in results) == list(range(len(rows)))
    for number, ids in results:
        assert ids[: len(rows[number])].tolist() == rows[number]
    lengths = [len(rows[number]) for number, _ in results]
    assert lengths == sorted(lengths, reverse=True)
    assert [len(ids) for ids, _ in batches[:-1]] == [batch_size] * (len(batches) - 1)
    for ids, mask in batches:
        is_real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
        assert (ids != 0).equal(is_real)  # padding is 0, and no real token here is
        assert mask is None or not mask.all()  # no mask where nothing is padded
        assert is_real[:, 0].all()
        assert is_real[0].all()  # no wider than the longest row


@given(ROWS, st.integers(1, 8))
def test_a_batch_gives_what_its_rows_give_alone(bert, rows, batch_size):
    inputs = [EncoderInput(row, [i % 2 for i in range(len(row))] if len(row) % 3 else None) for row in rows]
    for number, hidden in run_encoder(bert, inputs, bert, batch_size=batch_size):
        ids, segments = inputs[number]
        with torch.no_grad():
            alone = bert(torch.tensor([ids]), None, None if segments is None else torch.tensor([segments]))[0]
        torch.testing.assert_close(hidden[: len(ids)], alone, rtol=1e-5, atol=1e-5)


def test_segments_are_passed_only_where_an_input_has_some():
    model = headway.create("bow", device="cpu", vocab_size=9, d_model=4, n_buckets=5)
    inputs = [EncoderInput([1, 2, 3]), EncoderInput([4, 5], [0, 1]), EncoderInput([6])]
    seen = []

    def forward(ids, mask, segments):
        seen.append(None if segments is None else segments.tolist())
        return ids

    list(run_encoder(model, inputs, forward, batch_size=2))
    assert seen == [[[0, 0, 0], [0, 1, 0]], None]


def test_the_model_is_in_eval_mode_without_gradients_only_while_a_batch_runs(bert):
    bert.train()

    def forward(ids, mask, segments):
        assert not bert.training
        assert not torch.is_grad_enabled()
        return ids

    results = run_encoder(bert, [EncoderInput([1]), EncoderInput([2, 3])], forward, batch_size=1)
    next(results)
    assert torch.is_grad_enabled()  # the caller's code is not affected
    list(results)
    assert bert.training
    next(unfinished := run_encoder(bert, [EncoderInput([1]), EncoderInput([2])], forward, batch_size=1))
    unfinished.close()
    assert bert.training
    bert.eval()


def test_a_model_is_restored_after_an_error(bert):
    functions = {name: dict(module.__dict__) for name, module in bert.named_modules()}

    def forward(ids, mask, segments):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        list(run_encoder(bert, [EncoderInput([1])], forward))
    for name, module in bert.named_modules():
        assert module.__dict__.keys() == functions[name].keys()
        assert all(module.__dict__[key] is value for key, value in functions[name].items() if callable(value))


def test_progress_is_the_number_of_inputs_done(bert):
    done = []
    inputs = [EncoderInput([1] * n) for n in (3, 1, 2, 5, 4)]
    list(run_encoder(bert, inputs, bert, batch_size=2, on_progress=done.append))
    assert done == [2, 4, 5]
    assert list(run_encoder(bert, [], bert, on_progress=done.append)) == []


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_has_at_least_one_text(bert, batch_size):
    with pytest.raises(InputError, match=f"batch_size={batch_size} is not at least 1"):
        list(run_encoder(bert, [EncoderInput([1])], bert, batch_size=batch_size))
