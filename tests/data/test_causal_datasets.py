"""Windows, packing and mixing: every token a target once, and batches that can be made again."""

from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headway
from headway import tokenizers
from headway.data import (
    IGNORE,
    BatchLoader,
    CausalDataset,
    MixtureDataset,
    PackedDataset,
    RngKey,
    TokenArray,
    consecutive_windows,
    prefetch,
)
from headway.errors import ConfigError, DataError

DRAW = RngKey(seed=1, epoch=2)


@given(st.integers(2, 60), st.integers(1, 12), st.integers(1, 5))
def test_consecutive_windows_predict_every_token_once(n, context, batch_size):
    stream = torch.arange(100, 100 + n)
    targets, inputs = [], []
    for x, y, lengths in consecutive_windows(stream, context, batch_size):
        assert x.shape == y.shape
        assert x.shape[1] <= context
        for row in range(len(lengths)):
            inputs += x[row, : lengths[row]].tolist()
            targets += y[row, : lengths[row]].tolist()
    assert targets == stream[1:].tolist()
    assert inputs == stream[:-1].tolist()


@given(st.integers(2, 300), st.integers(1, 40), st.integers(0, 9), st.sampled_from(["random", "sequential"]))
def test_windows_do_not_overlap_and_leave_out_less_than_two_of_them(n, context, epoch, order):
    windows = CausalDataset(TokenArray.of(np.arange(n)), context, order=order)
    batch = windows.collate(np.arange(len(windows)), RngKey(7, epoch))
    assert torch.equal(batch.inputs + 1, batch.targets)
    targets = batch.targets.flatten().tolist()
    assert len(set(targets)) == len(targets)
    assert n - 1 - len(targets) < 2 * windows.context
    assert len(windows) >= 1


def test_epochs_cut_windows_elsewhere():
    windows = CausalDataset(TokenArray.of(np.arange(1000)), 10)
    starts = {int(windows.starts(np.array([0]), RngKey(1, epoch))[0]) for epoch in range(50)}
    assert len(starts) > 6
    assert starts <= set(range(10))


@pytest.mark.parametrize("order", ["random", "sequential"])
@pytest.mark.parametrize("epoch", range(4))
def test_lanes_go_on_where_they_ended(order, epoch):
    windows = CausalDataset(TokenArray.of(np.arange(111)), 5, order=order, lanes=4)
    batches = BatchLoader(windows, 4, shuffle=False)
    rows = list(batches.epoch(epoch))
    for before, after in pairwise(rows):
        assert torch.equal(before.inputs[:, -1] + 1, after.inputs[:, 0])
        assert after.carry.tolist() == [1.0] * 4
    assert rows[0].carry.tolist() == [0.0] * 4
    first = rows[0].inputs[:, 0]
    assert (first - first[0]).tolist() == [0, 25, 50, 75]
    if order == "sequential":
        assert first[0] == 0


def test_lanes_begin_elsewhere_in_every_epoch():
    windows = CausalDataset(TokenArray.of(np.arange(111)), 5, lanes=4)
    firsts = {int(windows.starts(np.array([0]), RngKey(1, epoch))[0]) for epoch in range(50)}
    assert firsts == set(range(11))


def test_too_little_text_is_an_error():
    with pytest.raises(DataError, match="0 tokens are too few"):
        PackedDataset(TokenArray([]), 8, shares_boundary=True)
    with pytest.raises(DataError, match="1 tokens are too few"):
        CausalDataset(TokenArray.of([5]), 4)
    with pytest.raises(ConfigError, match="context=0"):
        CausalDataset(TokenArray.of([5, 6]), 0)


# ── places ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_batch_at_seed_7_epoch_3_step_12345_is_the_one_that_iterating_reaches():
    windows = CausalDataset(TokenArray.of(np.arange(12_400 * 8 * 2 + 5) % 50_000), 2)
    batches = BatchLoader(windows, 8, seed=7)
    assert batches.steps() > 12_345
    direct = batches.at(epoch=3, step=12_345)
    for step, batch in enumerate(batches.epoch(3)):
        if step == 12_345:
            assert torch.equal(batch.inputs, direct.inputs)
            break
    for world in (2, 4):
        shares = [BatchLoader(windows, 8, seed=7, rank=r, world=world).at(3, 12_345).inputs for r in range(world)]
        assert sorted(torch.cat(shares).tolist()) == sorted(direct.inputs.tolist())


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_see_every_window_once_an_epoch(world):
    windows = CausalDataset(TokenArray.of(np.arange(1003)), 7)
    seen = []
    for rank in range(world):
        for batch in BatchLoader(windows, 10, seed=7, rank=rank, world=world).epoch(3):
            seen += batch.inputs[:, 0].tolist()
    assert sorted(seen) == sorted(windows.starts(np.arange(len(windows)), RngKey(7, 3)).tolist())


def test_iterating_goes_on_into_the_next_epoch_from_any_place():
    batches = BatchLoader(CausalDataset(TokenArray.of(np.arange(100)), 5), 4, seed=1)
    steps = batches.steps()
    from_start = [b.inputs for b, _ in zip(batches.iterate(), range(2 * steps + 3), strict=False)]
    epoch, step = batches.place(steps + 2)
    assert (epoch, step) == (1, 2)
    resumed = next(batches.iterate(epoch, step)).inputs
    assert torch.equal(resumed, from_start[steps + 2])


# ── packing ───────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.integers(2, 30), min_size=1, max_size=12), st.integers(1, 16), st.booleans())
@settings(max_examples=80)
def test_packing_predicts_every_token_of_a_document_but_its_first(sizes, context, shares):
    ends = np.cumsum(sizes)
    packed = PackedDataset(TokenArray.of(np.arange(ends[-1]), ends), context, shares_boundary=shares)
    batch = packed.collate(np.arange(len(packed)), DRAW)
    real = batch.targets != IGNORE
    first = {0} if shares else {0, *ends[:-1].tolist()}  # a shared boundary is predicted by the document it ends
    assert sorted(batch.targets[real].tolist()) == sorted(set(range(ends[-1])) - first)
    assert torch.equal(batch.inputs[real] + 1, batch.targets[real])
    assert torch.equal(real, batch.documents >= 0)
    assert torch.equal(real.sum(1), batch.lengths)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "per-layer", "relative", "rotary", "alibi"])
@pytest.mark.parametrize("rows", [1, 3])
def test_documents_in_one_row_are_as_if_each_were_alone(positions, rows):
    """Equal to the model's own precision, gradients included."""
    model = headway.create("gpt-tiny", vocab_size=50, positions=positions, dropout=0.0)
    ids = torch.randint(50, (rows, 12))
    documents = torch.tensor([[0] * 5 + [1] * 4 + [2] * 2 + [-1]]).expand(rows, -1)
    together = model(ids, documents=documents)
    for begin, end in ((0, 5), (5, 9), (9, 11)):
        alone = model(ids[:, begin:end])
        torch.testing.assert_close(together[:, begin:end], alone, rtol=1e-5, atol=1e-5)
    together[:, :11].sum().backward()
    gradient = model.embedding.weight.grad.clone()
    model.zero_grad()
    sum(model(ids[:, b:e]).sum() for b, e in ((0, 5), (5, 9), (9, 11))).backward()
    torch.testing.assert_close(gradient, model.embedding.weight.grad, rtol=1e-4, atol=1e-4)


def test_windows_can_say_which_document_a_token_is_of():
    tokenizer = tokenizers.train("bpe", ["a b c"], 260)
    documents = tokenizer.framed_arrays(["a", "b c", "a b c"])
    tokens = TokenArray.of(list(chain(*documents)), np.cumsum([len(d) for d in documents]))
    batch = CausalDataset(tokens, 6, order="sequential", documents=True).collate(np.array([0]), DRAW)
    assert batch.documents.tolist() == [[0, 0, 0, 1, 1, 1]]


# ── mixing ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_mix_keeps_its_proportions_and_sees_every_example_in_turn():
    streams = (TokenArray.of(np.arange(1000, 1081)), TokenArray.of(np.arange(2000, 2401)))
    parts = [CausalDataset(stream, 4, order="sequential") for stream in streams]
    mix = MixtureDataset([(parts[0], 1.0), (parts[1], 3.0)])
    every = [mix.locate(np.arange(len(mix)), RngKey(5, epoch)) for epoch in range(40)]
    where = [row for found in every for row in zip(*map(np.ndarray.tolist, found), strict=True)]
    alone = [int(x[0]) for x in mix.locate(np.array([77]), RngKey(5, 3))]
    assert alone == list(where[3 * len(mix) + 77])  # any place can be asked for alone
    share = sum(part == 0 for part, _, _ in where) / len(where)
    assert share == pytest.approx(0.25, abs=0.01)
    for number, examples in enumerate(parts):
        seen = [(epoch, index) for part, epoch, index in where if part == number]
        for start in range(0, len(seen) - len(examples), len(examples)):
            epoch = seen[start : start + len(examples)]
            assert sorted(index for _, index in epoch) == list(range(len(examples)))
            assert len({e for e, _ in epoch}) == 1
    batch = BatchLoader(mix, 64, seed=5, shuffle=False).at(0, 0)
    assert batch.inputs.shape == (64, 4)
    assert {int(x) // 1000 for x in batch.inputs[:, 0]} == {1, 2}


def test_a_rank_may_have_no_row_of_the_last_batch():
    part = CausalDataset(TokenArray.of(np.arange(10)), 3)
    mix = MixtureDataset([(part, 1.0), (part, 1.0)])
    last = BatchLoader(mix, len(mix) - 1, shuffle=False, rank=1, world=2)
    assert last.at(0, 1).inputs.shape == (0, 3)


def test_what_begins_every_document_is_given_not_predicted():
    windows = CausalDataset(TokenArray.of([1, 5, 6, 2, 1, 7, 2]), 6, given=1)
    assert windows.collate(np.array([0]), DRAW).targets.tolist() == [[5, 6, 2, IGNORE, 7, 2]]


def test_weights_that_make_no_sense_are_named():
    part = CausalDataset(TokenArray.of(np.arange(10)), 4)
    with pytest.raises(ConfigError, match="must be positive"):
        MixtureDataset([(part, 0.0)])
    short = CausalDataset(TokenArray.of(np.arange(4)), 4)
    with pytest.raises(DataError, match="shorter than the context"):
        MixtureDataset([(part, 1.0), (short, 1.0)])
    with pytest.raises(ConfigError, match="below 1/1000"):
        MixtureDataset([(part, 1.0), (part, 1e-6)])


# ── prefetching ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_prefetching_changes_nothing_but_the_thread():
    batches = BatchLoader(CausalDataset(TokenArray.of(np.arange(500)), 5), 4, seed=1)
    plain = [b.inputs.tolist() for b in batches.epoch()]
    assert [b.inputs.tolist() for b in prefetch(batches.epoch(), device="cpu")] == plain


def test_prefetching_passes_errors_on_and_stops_when_left():
    import threading

    def broken():
        yield 1
        raise ValueError("no more")

    items = prefetch(broken())
    assert next(items) == 1
    with pytest.raises(ValueError, match="no more"):
        next(items)
    made = []

    def endless():
        while True:
            made.append(1)
            yield len(made)

    left = prefetch(endless(), depth=3)
    assert next(left) == 1
    left.close()
    assert len(made) <= 6
    assert not any(t.name == "headway-prefetch" for t in threading.enumerate())
    with pytest.raises(ConfigError, match="depth=0"):
        next(prefetch([1], depth=0))
