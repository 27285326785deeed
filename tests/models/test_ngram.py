"""The n-gram against counting by hand."""

import math
import random
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import headway
from headway.errors import CheckpointError, ConfigError, InputError
from headway.models.ngram import counts as counting
from headway.models.ngram.model import HashIndex
from headway.models.ngram.smoothing import discounts
from tests.reference import ngram as reference

SMOOTHINGS = ("kneser-ney", "witten-bell", "add-k", "none")  # that promise distributions


def sentences(seed: int, n: int = 40, vocabulary: int = 12) -> list[list[str]]:
    rng = random.Random(seed)
    words = [f"w{i}" for i in range(vocabulary)]
    lengths = [rng.randint(0, 7) for _ in range(n)]
    return [
        ["<s>", *(words[min(int(rng.expovariate(0.4)), vocabulary - 1)] for _ in range(length)), "</s>"]
        for length in lengths
    ]


def as_ids(texts: list[list[str]]) -> tuple[torch.Tensor, list[str]]:
    names = ["<unk>", "<s>", "</s>", *sorted({word for text in texts for word in text} - {"<s>", "</s>"})]
    return torch.tensor([names.index(word) for text in texts for word in text]), names


def counted(texts: list[list[str]], order: int, **settings) -> tuple[headway.models.NGram, list[str]]:
    ids, names = as_ids(texts)
    model = headway.create("ngram", vocab_size=len(names), order=order, bos_id=1, eos_id=2, **settings)
    return model.fit(ids), names


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(6))
def test_kneser_ney_equals_the_definition(order, seed):
    texts = sentences(seed, n=(5, 40, 300)[seed % 3])
    model, names = counted(texts, order)
    table = reference.kneser_ney(texts, order, names)
    histories = [["<s>"], ["w0"], ["<s>", "w1"], ["w1", "w0", "w2"], ["<unk>", "w1"], ["w0", "w1", "w0", "w3", "w0"]]
    for history in histories:
        logits = model(torch.tensor([[names.index(word) for word in history]]))[0, -1]
        expected = [reference.probability(table, history, word, order) for word in names]
        assert_close(logits.exp(), torch.tensor(expected), rtol=1e-5, atol=1e-7)


def test_discounts_are_those_of_chen_and_goodman():
    assert discounts(100, 30, 10, 5) == pytest.approx((0.625, 1.375, 1.75))
    assert discounts(5, 0, 1, 1) == discounts(5, 1, 0, 1) == (0.5, 1.0, 1.5)  # too little to tell
    assert discounts(100, 1, 10, 1) == (0.5, 1.0, 1.5)  # out of range


def witten_bell(text: list[int], V: int, history: list[int], order: int) -> list[float]:
    p = [1 / V] * V
    for k in range(min(order - 1, len(history)) + 1):
        context = tuple(history[len(history) - k :])
        followers = Counter(text[i] for i in range(k, len(text)) if tuple(text[i - k : i]) == context)
        total, distinct = sum(followers.values()), len(followers)
        if total:
            p = [(followers[w] + distinct * p[w]) / (total + distinct) for w in range(V)]
    return p


def relative(text: list[int], V: int, history: list[int], order: int) -> list[float]:
    """Maximum likelihood, after the longest context that was ever gone on from."""
    for k in range(min(order - 1, len(history)), -1, -1):
        context = tuple(history[len(history) - k :])
        followers = Counter(text[i] for i in range(k, len(text)) if tuple(text[i - k : i]) == context)
        if followers:
            return [followers[w] / followers.total() for w in range(V)]
    raise AssertionError


def add_k(text: list[int], V: int, history: list[int], order: int, k_added: float) -> list[float]:
    k = min(order - 1, len(history))
    context = tuple(history[len(history) - k :])
    followers = Counter(text[i] for i in range(k, len(text)) if tuple(text[i - k : i]) == context)
    return [(followers[w] + k_added) / (followers.total() + k_added * V) for w in range(V)]


def stupid(text: list[int], V: int, history: list[int], order: int, word: int) -> float:
    k = min(order - 1, len(history))
    context = tuple(history[len(history) - k :])
    followers = Counter(text[i] for i in range(k, len(text)) if tuple(text[i - k : i]) == context)
    if followers[word]:
        return followers[word] / followers.total()
    return 0.4 * (stupid(text, V, history[len(history) - k + 1 :], k, word) if k else 1 / V)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_other_smoothings_equal_counting_by_hand(order, seed):
    rng = torch.Generator().manual_seed(seed)
    text = torch.randint(4, (60,), generator=rng)
    history = torch.randint(5, (1, 12), generator=rng)  # token 4 never occurs, nor does 5
    found = {
        name: headway.create("ngram", vocab_size=6, order=order, smoothing=name, k=0.3).fit(text)(history).exp()[0]
        for name in ("witten-bell", "none", "add-k", "stupid-backoff")
    }
    for t in range(12):
        given = text.tolist(), 6, history[0, : t + 1].tolist(), order
        assert_close(found["witten-bell"][t], torch.tensor(witten_bell(*given)))
        assert_close(found["none"][t], torch.tensor(relative(*given)))
        assert_close(found["add-k"][t], torch.tensor(add_k(*given, k_added=0.3)))
        assert_close(found["stupid-backoff"][t], torch.tensor([stupid(*given, word=w) for w in range(6)]))


@settings(max_examples=60, deadline=None)
@given(
    text=st.lists(st.integers(0, 7), max_size=60),
    order=st.integers(1, 5),
    smoothing=st.sampled_from(SMOOTHINGS),
    has_begin=st.booleans(),
    prune=st.sampled_from([[], [0, 1], [0, 0, 1], [0, 1, 2]]),
    history=st.lists(st.integers(0, 8), min_size=1, max_size=6),
)
def test_distributions_sum_to_one_whatever_came_before(text, order, smoothing, has_begin, prune, history):
    ids = {"bos_id": 0, "eos_id": 1} if has_begin else {}
    prune = prune[:order]
    model = headway.create("ngram", vocab_size=9, order=order, smoothing=smoothing, prune=prune, **ids)
    model.fit(torch.tensor(text, dtype=torch.long))
    p = model(torch.tensor([history])).exp()
    assert not p.isnan().any()
    if text and not (smoothing == "none" and set(text) <= {0}):
        assert_close(p.sum(-1), torch.ones(1, len(history)), rtol=1e-5, atol=1e-5)
    if smoothing != "none":
        assert (p[..., 1 if has_begin else 0 :] > 0).all()
    if has_begin:
        assert (p[..., 0] == 0).all()  # it is given, never predicted


@pytest.mark.parametrize("smoothing", [*SMOOTHINGS, "stupid-backoff"])
def test_one_token_is_looked_up_as_in_the_whole_distribution(smoothing):
    texts = sentences(3, n=200)
    model, _ = counted(texts, 4, smoothing=smoothing)
    ids, _ = as_ids(sentences(4, n=50))
    logits = model(ids[None])[0]
    expected = logits[:-1].gather(1, ids[1:, None])[:, 0]
    found = torch.from_numpy(model.log_probability(ids))[1:]
    is_asked = ids[1:] != 1
    assert_close(found[is_asked], expected[is_asked], rtol=0, atol=0)
    assert (found[~is_asked] == 0).all()


def test_counting_in_pieces_on_disk_is_counting(monkeypatch):
    text = np.random.default_rng(0).integers(0, 9, 4000)
    text[::50] = 0
    whole = counting.count([[text]], 4, 9, bos_id=0)
    monkeypatch.setattr(counting, "CHUNK", 97)
    pieces = counting.count([[text[:1000], text[1000:1003], text[1003:]]], 4, 9, bos_id=0)
    assert isinstance(pieces.grams[3].keys, np.memmap)
    for a, b in zip(whole.grams, pieces.grams, strict=True):
        for name in ("keys", "count", "suffix", "is_first", "is_edge"):
            assert np.array_equal(getattr(a, name), getattr(b, name)), name
    assert np.array_equal(whole.first_seen, pieces.first_seen)


def test_pruning_drops_what_is_rare_and_nothing_it_is_needed_by():
    texts = sentences(1, n=300)
    whole, _ = counted(texts, 3)
    pruned, _ = counted(texts, 3, prune=[0, 1, 2])
    for k, least in ((2, 1), (3, 2)):
        assert (pruned.column("count", k) > least).all()
        assert len(pruned.column("count", k)) == (whole.column("count", k) > least).sum() > 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"smoothing": "kneser"}, "smoothing='kneser' is not one of"),
        ({"prune": [1, 1]}, r"prune=\[1, 1\] must begin with 0"),
        ({"prune": [0, 2, 1]}, "never fall"),
        ({"k": 0}, "k=0.* must be a positive number"),
        ({"order": 0}, "order=0 must be at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, says):
    with pytest.raises(ConfigError, match=says):
        headway.create("ngram", vocab_size=5, **change)


def test_tokens_outside_the_vocabulary_are_refused():
    with pytest.raises(InputError):
        headway.create("ngram", vocab_size=5).fit(torch.tensor([1, 5]))


def test_orders_longer_than_the_text_and_tokens_rarer_than_float32_can_say():
    assert headway.create("ngram", vocab_size=5, order=9)(torch.zeros(1, 3, dtype=torch.long)).shape == (1, 3, 5)
    headway.create("ngram", vocab_size=5, order=9).fit(torch.tensor([1, 2, 3]))
    model = headway.create("ngram", vocab_size=3, order=12, smoothing="witten-bell")
    model.fit(torch.zeros(100_000, dtype=torch.long))
    assert model(torch.zeros(1, 20, dtype=torch.long)).isfinite().all()


def test_tables_that_do_not_fit_are_refused(tmp_path):
    saved = headway.create("ngram", vocab_size=9, order=3).fit(torch.randint(9, (100,))).save(tmp_path / "model")
    config = (saved / "config.json").read_text()
    for change, message in (
        ('"order": 2', "should not have"),
        ('"order": 4', "lack"),
        ('"vocab_size": 4', "do not fit"),
    ):
        key = change.split(":")[0]
        (saved / "config.json").write_text(
            "\n".join(change + "," if key in line else line for line in config.splitlines())
        )
        with pytest.raises(CheckpointError, match=message):
            headway.load(saved)


def test_before_counting_all_tokens_are_equal():
    assert_close(headway.create("ngram", vocab_size=4)(torch.tensor([[2]])).exp(), torch.full((1, 1, 4), 0.25))


def test_comes_back_from_disk(tmp_path):
    model = headway.create("ngram", vocab_size=9, order=3).fit(torch.randint(9, (100,)))
    ids = torch.randint(9, (2, 8))
    again = headway.load(model.save(tmp_path / "model"), dtype="bfloat16")  # which is for weights, not for tables
    assert again.n_params == model.n_params
    assert_close(again(ids), model(ids), rtol=0, atol=0)


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(0, 2**62), max_size=300), st.lists(st.integers(0, 2**62), max_size=50))
def test_what_is_there_is_found_and_nothing_else(keys, others):
    ordered = np.array(sorted(keys), dtype=np.int64)
    finder = HashIndex(ordered)
    assert finder.find(ordered).tolist() == list(range(len(ordered)))
    places = {key: place for place, key in enumerate(ordered.tolist())}
    assert finder.find(np.array(others, dtype=np.int64)).tolist() == [places.get(key, -1) for key in others]


def test_perplexity_of_a_text_is_of_the_whole_text():
    """Windows cut a context short; a model without a context needs none."""
    tokenizer = headway.tokenizers.train("word", ["a b c d", "a b d"], pre_tokenizer="whitespace")
    model = headway.create(
        "ngram", vocab_size=tokenizer.vocab_size, order=3, bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id
    )
    model.tokenizer = tokenizer
    model.fit(torch.tensor(tokenizer.stream(["a b c d", "a b d"] * 3)))
    texts = ["a b c d"] * 30
    ids = torch.tensor(tokenizer.stream(texts))
    nats = -model.log_probability(ids)[1:]
    expected = nats.sum() / (ids != tokenizer.bos_id).sum().item()
    assert headway.evaluate(model, texts).nats_per_token == pytest.approx(float(expected), rel=1e-6)
    assert headway.evaluate(model, texts, context=3).nats_per_token > float(expected)
    assert math.isfinite(expected)
