"""Masked rows: whole words, random replacements and pairs of segments. tests/data/test_datasets.py has the rest."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway import tokenizers
from headway.data import IGNORE_INDEX, BatchLoader, MLMDataset, RngKey, TokenArray, mask_tokens
from headway.errors import ConfigError

TEXT = ["The unbelievable walkers walked on, talking unbelievably; naïve talkers listened and walked away."] * 3
WORDPIECE = tokenizers.train("wordpiece", TEXT, 70)
CLS, SEP, UNK = (WORDPIECE.special_ids[token] for token in ("[CLS]", "[SEP]", "[UNK]"))
SPECIAL_IDS = frozenset({0, 1})
CONTINUES = np.array([False, False, False, True, True])  # of five tokens, the last two continue a word


def within_five_deviations(fraction, expected, n):
    return abs(fraction - expected) <= 5 * math.sqrt(expected * (1 - expected) / n)


def words_of(row):
    """The words of a row of ids as lists of columns, by a loop: special tokens stand alone."""
    words, is_open = [], False
    for column, id in enumerate(row):
        if id in SPECIAL_IDS:
            is_open = False
            continue
        if is_open and CONTINUES[id]:
            words[-1].append(column)
        else:
            words.append([column])
        is_open = True
    return words


@st.composite
def token_rows(draw):
    B, T = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    ids = draw(st.lists(st.integers(0, 4), min_size=B * T, max_size=B * T))
    start = draw(st.integers(0, 10**6))
    return np.array(ids).reshape(B, T), start + np.arange(B * T).reshape(B, T)


@given(token_rows(), st.integers(0, 10**6), st.sampled_from([0.05, 0.15, 0.5]))
def test_words_are_masked_whole_or_not_at_all(rows, seed, mask_prob):
    ids, positions = rows
    kwargs = {"mask_id": 9, "vocab_size": 5, "special_ids": SPECIAL_IDS, "mask_prob": mask_prob}
    _, targets = mask_tokens(ids, positions, RngKey(seed, 0), **kwargs, continues_word=CONTINUES)
    is_target = targets != IGNORE_INDEX
    for row, selected in zip(ids, is_target, strict=True):
        words = words_of(row)
        assert all(len(set(selected[word])) == 1 for word in words)
        assert selected.any() == bool(words)
        assert not selected[np.isin(row, list(SPECIAL_IDS))].any()


def test_whole_word_masking_keeps_the_fraction_of_tokens_and_the_three_replacements():
    """Words of 1 to 4 tokens. The fraction varies by words, the replacements by tokens."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 5, size=80_000)
    row = np.concatenate([[2] + [3] * (n - 1) for n in lengths])[: 200 * 900].reshape(200, 900)
    positions = np.arange(row.size).reshape(row.shape)
    continues = np.zeros(1000, dtype=bool)
    continues[3] = True
    masked, targets = mask_tokens(
        row, positions, RngKey(1, 0), mask_id=999, vocab_size=999, special_ids=SPECIAL_IDS, continues_word=continues
    )
    selected = targets != IGNORE_INDEX
    assert within_five_deviations(selected.mean(), 0.15, len(lengths) * lengths.mean() ** 2 / (lengths**2).mean())
    n = selected.sum()
    assert within_five_deviations((masked[selected] == 999).mean(), 0.8, n)
    assert within_five_deviations((masked[selected] == targets[selected]).mean(), 0.1 + 0.1 / 997, n)
    pairs = selected[:, :-1] & selected[:, 1:] & (row[:, 1:] == 3)  # two subwords of one word
    both = (masked[:, :-1][pairs] == 999) & (masked[:, 1:][pairs] == 999)
    assert within_five_deviations(both.mean(), 0.8 * 0.8, pairs.sum() / 3)  # drawn for each subword on its own


def test_random_replacements_are_every_ordinary_token_and_never_a_special_one():
    special_ids, vocab_size = frozenset({0, 4, 11}), 12
    ids = np.full((100, 1000), 2)
    positions = np.arange(ids.size).reshape(ids.shape)
    masked, targets = mask_tokens(
        ids, positions, RngKey(2, 0), mask_id=4, vocab_size=vocab_size, special_ids=special_ids
    )
    replaced = masked[(targets != IGNORE_INDEX) & (masked != 4) & (masked != 2)]
    values, counts = np.unique(replaced, return_counts=True)
    assert values.tolist() == [1, 3, 5, 6, 7, 8, 9, 10]
    for n in counts:
        assert within_five_deviations(n / len(replaced), 1 / 8, len(replaced))


@pytest.mark.parametrize("mask_prob", [0.05, 0.4])
def test_the_probability_is_a_setting(mask_prob):
    stream = WORDPIECE.encode(" ".join(TEXT * 200))
    dataset = MLMDataset(TokenArray.of(stream), 128, WORDPIECE, mask_prob=mask_prob)
    batch = dataset.collate(np.arange(len(dataset)), RngKey(1, 0))
    n_maskable = sum(id != UNK for id in stream)
    assert within_five_deviations(batch.n_targets / n_maskable, mask_prob, 0.9 * n_maskable)


def test_pieces_of_a_word_of_wordpiece_are_masked_together():
    stream = WORDPIECE.encode(" ".join(TEXT * 50))
    dataset = MLMDataset(TokenArray.of(stream), 40, WORDPIECE, whole_words=True)
    batch = dataset.collate(np.arange(len(dataset)), RngKey(1, 3))
    n_pieces = 0
    for ids, targets in zip(batch.ids.tolist(), batch.targets.tolist(), strict=True):
        original = [id if target == IGNORE_INDEX else target for id, target in zip(ids, targets, strict=True)]
        for column in range(2, len(ids)):
            if WORDPIECE.token(original[column]).startswith("##"):
                assert (targets[column] == IGNORE_INDEX) == (targets[column - 1] == IGNORE_INDEX)
                n_pieces += 1
    assert n_pieces > 100


def test_pairs_of_segments_are_framed_and_cut_anywhere():
    stream = WORDPIECE.encode(" ".join(TEXT * 50))
    dataset = MLMDataset(TokenArray.of(stream), 16, WORDPIECE, segment_pairs=True)
    loader = BatchLoader(dataset, 8, seed=3)
    cuts = set()
    for step in range(20):
        batch = loader.at(0, step)
        assert batch.ids.shape == batch.segments.shape == batch.targets.shape == (8, 16)
        original = torch.where(batch.targets == IGNORE_INDEX, batch.ids, batch.targets)
        for ids, segments, targets in zip(original, batch.segments, batch.targets, strict=True):
            n_first = int((segments == 0).sum())
            assert segments.tolist() == [0] * n_first + [1] * (16 - n_first)
            assert (ids == CLS).nonzero().flatten().tolist() == [0]
            assert (ids == SEP).nonzero().flatten().tolist() == [n_first - 1, 15]
            assert (targets[[0, n_first - 1, 15]] == IGNORE_INDEX).all()
            text = [*ids[1 : n_first - 1].tolist(), *ids[n_first:-1].tolist()]
            assert any(stream[i : i + 13] == text for i in range(len(stream)))  # B follows A
            cuts.add(n_first - 2)
    assert cuts == set(range(1, 13))
    single = dataset.collate(loader.sampler.indices(0, 4)[2:3], RngKey(3, 0))
    again = loader.at(0, 4)
    assert torch.equal(again.ids[2], single.ids[0])  # neither masks nor cuts depend on the rest of the batch
    assert torch.equal(again.segments[2], single.segments[0])


def test_pairs_in_a_context_too_short_for_two_texts_are_refused():
    stream = WORDPIECE.encode(TEXT[0])
    with pytest.raises(ConfigError, match="context=4 has no space for text next to 3 special tokens"):
        MLMDataset(TokenArray.of(stream), 4, WORDPIECE, segment_pairs=True)
