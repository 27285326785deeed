"""Causal datasets: every token is a target once, and every batch can be reproduced."""

import threading
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headway
from headway import tokenizers
from headway.data import (
    IGNORE_INDEX,
    BatchLoader,
    CausalDataset,
    MixtureDataset,
    PackedDataset,
    RngKey,
    TokenArray,
    consecutive_windows,
    prefetch,
)
from headway.data.sampler import permute
from headway.errors import ConfigError, DataError

RNG = RngKey(seed=1, epoch=2)


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
def test_windows_do_not_overlap_and_omit_fewer_than_two_windows_of_tokens(n, context, epoch, order):
    dataset = CausalDataset(TokenArray.of(np.arange(n)), context, order=order)
    batch = dataset.collate(np.arange(len(dataset)), RngKey(7, epoch))
    assert torch.equal(batch.inputs + 1, batch.targets)
    targets = batch.targets.flatten().tolist()
    assert len(set(targets)) == len(targets)
    assert n - 1 - len(targets) < 2 * dataset.context
    assert len(dataset) >= 1


def test_random_order_shifts_the_windows_every_epoch():
    dataset = CausalDataset(TokenArray.of(np.arange(1000)), 10)
    starts = {int(dataset.starts(np.array([0]), RngKey(1, epoch))[0]) for epoch in range(50)}
    assert len(starts) > 6
    assert starts <= set(range(10))


@pytest.mark.parametrize("order", ["random", "sequential"])
@pytest.mark.parametrize("epoch", range(4))
def test_streams_continue_where_the_previous_batch_ended(order, epoch):
    dataset = CausalDataset(TokenArray.of(np.arange(111)), 5, order=order, n_streams=4)
    batches = list(BatchLoader(dataset, 4, shuffle=False).epoch(epoch))
    for previous, batch in pairwise(batches):
        assert torch.equal(previous.inputs[:, -1] + 1, batch.inputs[:, 0])
        assert batch.carry.tolist() == [1.0] * 4
    assert batches[0].carry.tolist() == [0.0] * 4
    first_ids = batches[0].inputs[:, 0]
    assert (first_ids - first_ids[0]).tolist() == [0, 25, 50, 75]
    if order == "sequential":
        assert first_ids[0] == 0


def test_streams_start_at_another_offset_every_epoch():
    dataset = CausalDataset(TokenArray.of(np.arange(111)), 5, n_streams=4)
    starts = {int(dataset.starts(np.array([0]), RngKey(1, epoch))[0]) for epoch in range(50)}
    assert starts == set(range(11))


def test_too_little_text_is_refused():
    with pytest.raises(DataError, match=r"too short to learn from \(tokens: 0\)"):
        PackedDataset(TokenArray([]), 8, bos_is_eos=True)
    with pytest.raises(DataError, match=r"too short to learn from \(tokens: 1\)"):
        CausalDataset(TokenArray.of([5]), 4)
    with pytest.raises(ConfigError, match="context=0"):
        CausalDataset(TokenArray.of([5, 6]), 0)


# ── random access ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_batch_at_seed_7_epoch_3_step_12345_is_that_slice_of_the_epochs_permutation():
    dataset = CausalDataset(TokenArray.of(np.arange(12_400 * 8 * 2 + 5) % 50_000), 2)
    loader = BatchLoader(dataset, 8, seed=7)
    assert loader.steps() > 12_345
    batch = loader.at(epoch=3, step=12_345)
    epoch_order = permute(np.arange(len(dataset)), len(dataset), "order", 7, 3)
    expected = dataset.collate(epoch_order[12_345 * 8 : 12_346 * 8], RngKey(7, 3))
    assert torch.equal(batch.inputs, expected.inputs)
    assert torch.equal(batch.inputs, next(loader.iterate(3, 12_345)).inputs)
    for world_size in (2, 4):
        loaders = [BatchLoader(dataset, 8, seed=7, rank=rank, world_size=world_size) for rank in range(world_size)]
        rows = torch.cat([rank_loader.at(3, 12_345).inputs for rank_loader in loaders])
        assert sorted(rows.tolist()) == sorted(batch.inputs.tolist())


def test_iteration_yields_the_batches_of_random_access():
    loader = BatchLoader(CausalDataset(TokenArray.of(np.arange(1003)), 7), 4, seed=7)
    for step, batch in enumerate(loader.epoch(3)):
        assert torch.equal(batch.inputs, loader.at(3, step).inputs)
    assert step + 1 == loader.steps()


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_together_see_every_window_once_per_epoch(world_size):
    dataset = CausalDataset(TokenArray.of(np.arange(1003)), 7)
    starts = []
    for rank in range(world_size):
        for batch in BatchLoader(dataset, 10, seed=7, rank=rank, world_size=world_size).epoch(3):
            starts += batch.inputs[:, 0].tolist()
    assert sorted(starts) == sorted(dataset.starts(np.arange(len(dataset)), RngKey(7, 3)).tolist())


def test_iteration_crosses_epochs_and_starts_at_any_step():
    loader = BatchLoader(CausalDataset(TokenArray.of(np.arange(100)), 5), 4, seed=1)
    steps = loader.steps()
    from_start = [batch.inputs for batch, _ in zip(loader.iterate(), range(2 * steps + 3), strict=False)]
    epoch, step = loader.locate(steps + 2)
    assert (epoch, step) == (1, 2)
    resumed = next(loader.iterate(epoch, step)).inputs
    assert torch.equal(resumed, from_start[steps + 2])


# ── packing ───────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.integers(2, 30), min_size=1, max_size=12), st.integers(1, 16), st.booleans())
@settings(max_examples=80)
def test_packing_predicts_every_token_of_a_document_but_its_first(sizes, context, bos_is_eos):
    ends = np.cumsum(sizes)
    packed = PackedDataset(TokenArray.of(np.arange(ends[-1]), ends), context, bos_is_eos=bos_is_eos)
    batch = packed.collate(np.arange(len(packed)), RNG)
    real = batch.targets != IGNORE_INDEX
    # A shared boundary token is a target of the document it ends.
    first_ids = {0} if bos_is_eos else {0, *ends[:-1].tolist()}
    assert sorted(batch.targets[real].tolist()) == sorted(set(range(ends[-1])) - first_ids)
    assert torch.equal(batch.inputs[real] + 1, batch.targets[real])
    assert torch.equal(real, batch.documents >= 0)
    assert torch.equal(real.sum(1), batch.lengths)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "per-layer", "relative", "rotary", "alibi"])
@pytest.mark.parametrize("rows", [1, 3])
def test_packed_documents_give_the_same_logits_and_gradients_as_separate_ones(positions, rows):
    model = headway.create("gpt-tiny", vocab_size=50, positions=positions, dropout=0.0)
    ids = torch.randint(50, (rows, 12))
    documents = torch.tensor([[0] * 5 + [1] * 4 + [2] * 2 + [-1]]).expand(rows, -1)
    packed = model(ids, documents=documents)
    spans = ((0, 5), (5, 9), (9, 11))
    for start, end in spans:
        separate = model(ids[:, start:end])
        torch.testing.assert_close(packed[:, start:end], separate, rtol=1e-5, atol=1e-5)
    packed[:, :11].sum().backward()
    gradient = model.embedding.weight.grad.clone()
    model.zero_grad()
    sum(model(ids[:, start:end]).sum() for start, end in spans).backward()
    torch.testing.assert_close(gradient, model.embedding.weight.grad, rtol=1e-4, atol=1e-4)


def test_windows_number_the_documents_of_their_tokens():
    tokenizer = tokenizers.train("bpe", ["a b c"], 260)
    documents = tokenizer.encode_documents(["a", "b c", "a b c"])
    tokens = TokenArray.of(list(chain(*documents)), np.cumsum([len(d) for d in documents]))
    batch = CausalDataset(tokens, 6, order="sequential", documents=True).collate(np.array([0]), RNG)
    assert batch.documents.tolist() == [[0, 0, 0, 1, 1, 1]]


# ── mixtures ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_mixture_keeps_its_proportions_and_traverses_each_dataset_in_epochs():
    streams = (TokenArray.of(np.arange(1000, 1081)), TokenArray.of(np.arange(2000, 2401)))
    datasets = [CausalDataset(stream, 4, order="sequential") for stream in streams]
    mixture = MixtureDataset([(datasets[0], 1.0), (datasets[1], 3.0)])
    by_epoch = [mixture.locate(np.arange(len(mixture)), RngKey(5, epoch)) for epoch in range(40)]
    located = [row for columns in by_epoch for row in zip(*map(np.ndarray.tolist, columns), strict=True)]
    single = [int(x[0]) for x in mixture.locate(np.array([77]), RngKey(5, 3))]
    assert single == list(located[3 * len(mixture) + 77])  # any example can be located by itself
    fraction = sum(dataset == 0 for dataset, _, _ in located) / len(located)
    assert fraction == pytest.approx(0.25, abs=0.01)
    for number, dataset in enumerate(datasets):
        examples = [(epoch, index) for located_in, epoch, index in located if located_in == number]
        for start in range(0, len(examples) - len(dataset), len(dataset)):
            one_epoch = examples[start : start + len(dataset)]
            assert sorted(index for _, index in one_epoch) == list(range(len(dataset)))
            assert len({epoch for epoch, _ in one_epoch}) == 1
    batch = BatchLoader(mixture, 64, seed=5, shuffle=False).at(0, 0)
    assert batch.inputs.shape == (64, 4)
    assert {int(x) // 1000 for x in batch.inputs[:, 0]} == {1, 2}


def test_a_rank_may_have_no_rows_of_the_last_batch():
    dataset = CausalDataset(TokenArray.of(np.arange(10)), 3)
    mixture = MixtureDataset([(dataset, 1.0), (dataset, 1.0)])
    loader = BatchLoader(mixture, len(mixture) - 1, shuffle=False, rank=1, world_size=2)
    assert loader.at(0, 1).inputs.shape == (0, 3)


def test_the_ignored_bos_is_never_a_target():
    dataset = CausalDataset(TokenArray.of([1, 5, 6, 2, 1, 7, 2]), 6, ignore_id=1)
    assert dataset.collate(np.array([0]), RNG).targets.tolist() == [[5, 6, 2, IGNORE_INDEX, 7, 2]]


def test_invalid_mixtures_are_refused():
    dataset = CausalDataset(TokenArray.of(np.arange(10)), 4)
    with pytest.raises(ConfigError, match="must be positive"):
        MixtureDataset([(dataset, 0.0)])
    short = CausalDataset(TokenArray.of(np.arange(4)), 4)
    with pytest.raises(DataError, match="leave out the short source"):
        MixtureDataset([(dataset, 1.0), (short, 1.0)])
    with pytest.raises(ConfigError, match="below 1/1000"):
        MixtureDataset([(dataset, 1.0), (dataset, 1e-6)])


# ── prefetching ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_prefetch_yields_the_same_batches():
    loader = BatchLoader(CausalDataset(TokenArray.of(np.arange(500)), 5), 4, seed=1)
    expected = [batch.inputs.tolist() for batch in loader.epoch()]
    assert [batch.inputs.tolist() for batch in prefetch(loader.epoch(), device="cpu")] == expected


def test_prefetch_reraises_errors():
    def broken():
        yield 1
        raise ValueError("no more")

    items = prefetch(broken())
    assert next(items) == 1
    with pytest.raises(ValueError, match="no more"):
        next(items)


def test_prefetch_stops_its_thread_when_closed():
    produced = []

    def endless():
        while True:
            produced.append(1)
            yield len(produced)

    items = prefetch(endless(), depth=3)
    assert next(items) == 1
    items.close()
    assert len(produced) <= 6
    assert not any(thread.name == "headway-prefetch" for thread in threading.enumerate())
    with pytest.raises(ConfigError, match="depth=0"):
        next(prefetch([1], depth=0))
