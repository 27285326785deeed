"""The n-gram against naive counting."""

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
from headway.models.ngram import counts as counts_module
from headway.models.ngram.counts import count_ngrams
from headway.models.ngram.hash_index import HashIndex
from headway.models.ngram.smoothing import discounts
from tests.reference import ngram as reference

NORMALIZED_SMOOTHINGS = ("kneser-ney", "witten-bell", "add-k", "none")


def random_sentences(seed: int, n: int = 40, n_words: int = 12) -> list[list[str]]:
    rng = random.Random(seed)
    words = [f"w{i}" for i in range(n_words)]
    lengths = [rng.randint(0, 7) for _ in range(n)]
    return [
        ["<s>", *(words[min(int(rng.expovariate(0.4)), n_words - 1)] for _ in range(length)), "</s>"]
        for length in lengths
    ]


def to_ids(sentences: list[list[str]]) -> tuple[torch.Tensor, list[str]]:
    vocabulary = ["<unk>", "<s>", "</s>", *sorted({word for words in sentences for word in words} - {"<s>", "</s>"})]
    return torch.tensor([vocabulary.index(word) for words in sentences for word in words]), vocabulary


def fit_ngram(sentences: list[list[str]], order: int, **settings) -> tuple[headway.models.NGram, list[str]]:
    ids, vocabulary = to_ids(sentences)
    model = headway.create("ngram", vocab_size=len(vocabulary), order=order, bos_id=1, eos_id=2, **settings)
    return model.fit(ids), vocabulary


# ── smoothing ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(6))
def test_kneser_ney_matches_the_definition(order, seed):
    sentences = random_sentences(seed, n=(5, 40, 300)[seed % 3])
    model, vocabulary = fit_ngram(sentences, order)
    table = reference.kneser_ney(sentences, order, vocabulary)
    histories = [["<s>"], ["w0"], ["<s>", "w1"], ["w1", "w0", "w2"], ["<unk>", "w1"], ["w0", "w1", "w0", "w3", "w0"]]
    for history in histories:
        logits = model(torch.tensor([[vocabulary.index(word) for word in history]]))[0, -1]
        expected = [reference.probability(table, history, word, order) for word in vocabulary]
        assert_close(logits.exp(), torch.tensor(expected), rtol=1e-5, atol=1e-7)


def test_discounts_are_those_of_chen_and_goodman():
    assert discounts(100, 30, 10, 5) == pytest.approx((0.625, 1.375, 1.75))
    assert discounts(5, 0, 1, 1) == discounts(5, 1, 0, 1) == (0.5, 1.0, 1.5)  # too few n-grams to estimate them
    assert discounts(100, 1, 10, 1) == (0.5, 1.0, 1.5)  # out of range


def continuations(text: list[int], context: tuple[int, ...]) -> Counter:
    """How often each token follows the context."""
    k = len(context)
    return Counter(text[i] for i in range(k, len(text)) if tuple(text[i - k : i]) == context)


def last_tokens(history: list[int], k: int) -> tuple[int, ...]:
    return tuple(history[len(history) - k :])


def witten_bell(text: list[int], V: int, history: list[int], order: int) -> list[float]:
    p = [1 / V] * V
    for k in range(min(order - 1, len(history)) + 1):
        counts = continuations(text, last_tokens(history, k))
        total, distinct = sum(counts.values()), len(counts)
        if total:
            p = [(counts[w] + distinct * p[w]) / (total + distinct) for w in range(V)]
    return p


def maximum_likelihood(text: list[int], V: int, history: list[int], order: int) -> list[float]:
    """After the longest context that has a continuation."""
    for k in range(min(order - 1, len(history)), -1, -1):
        counts = continuations(text, last_tokens(history, k))
        if counts:
            return [counts[w] / counts.total() for w in range(V)]
    raise AssertionError


def add_k(text: list[int], V: int, history: list[int], order: int, k_added: float) -> list[float]:
    counts = continuations(text, last_tokens(history, min(order - 1, len(history))))
    return [(counts[w] + k_added) / (counts.total() + k_added * V) for w in range(V)]


def stupid_backoff(text: list[int], V: int, history: list[int], order: int, word: int) -> float:
    k = min(order - 1, len(history))
    counts = continuations(text, last_tokens(history, k))
    if counts[word]:
        return counts[word] / counts.total()
    return 0.4 * (stupid_backoff(text, V, history[len(history) - k + 1 :], k, word) if k else 1 / V)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_other_smoothings_match_their_definitions(order, seed):
    rng = torch.Generator().manual_seed(seed)
    text = torch.randint(4, (60,), generator=rng)
    history = torch.randint(5, (1, 12), generator=rng)  # tokens 4 and 5 never occur in the text
    probs = {
        name: headway.create("ngram", vocab_size=6, order=order, smoothing=name, k=0.3).fit(text)(history).exp()[0]
        for name in ("witten-bell", "none", "add-k", "stupid-backoff")
    }
    for t in range(12):
        args = text.tolist(), 6, history[0, : t + 1].tolist(), order
        assert_close(probs["witten-bell"][t], torch.tensor(witten_bell(*args)))
        assert_close(probs["none"][t], torch.tensor(maximum_likelihood(*args)))
        assert_close(probs["add-k"][t], torch.tensor(add_k(*args, k_added=0.3)))
        assert_close(probs["stupid-backoff"][t], torch.tensor([stupid_backoff(*args, word=w) for w in range(6)]))


@settings(max_examples=60, deadline=None)
@given(
    text=st.lists(st.integers(0, 7), max_size=60),
    order=st.integers(1, 5),
    smoothing=st.sampled_from(NORMALIZED_SMOOTHINGS),
    has_bos=st.booleans(),
    prune=st.sampled_from([[], [0, 1], [0, 0, 1], [0, 1, 2]]),
    history=st.lists(st.integers(0, 8), min_size=1, max_size=6),
)
def test_probabilities_sum_to_one_after_any_history(text, order, smoothing, has_bos, prune, history):
    ids = {"bos_id": 0, "eos_id": 1} if has_bos else {}
    prune = prune[:order]
    model = headway.create("ngram", vocab_size=9, order=order, smoothing=smoothing, prune=prune, **ids)
    model.fit(torch.tensor(text, dtype=torch.long))
    p = model(torch.tensor([history])).exp()
    assert not p.isnan().any()
    if text and not (smoothing == "none" and set(text) <= {0}):
        assert_close(p.sum(-1), torch.ones(1, len(history)), rtol=1e-5, atol=1e-5)
    if smoothing != "none":
        assert (p[..., 1 if has_bos else 0 :] > 0).all()
    if has_bos:
        assert (p[..., 0] == 0).all()  # BOS is never predicted


def test_an_unfitted_model_is_uniform():
    assert_close(headway.create("ngram", vocab_size=4)(torch.tensor([[2]])).exp(), torch.full((1, 1, 4), 0.25))


# ── counting and pruning ──────────────────────────────────────────────────────────────────────────────────────────


def test_counting_on_disk_equals_counting_in_memory(monkeypatch):
    text = np.random.default_rng(0).integers(0, 9, 4000)
    text[::50] = 0
    in_memory = count_ngrams([[text]], 4, 9, bos_id=0)
    monkeypatch.setattr(counts_module, "CHUNK_TOKENS", 97)
    on_disk = count_ngrams([[text[:1000], text[1000:1003], text[1003:]]], 4, 9, bos_id=0)
    assert isinstance(on_disk.grams[3].keys, np.memmap)
    for a, b in zip(in_memory.grams, on_disk.grams, strict=True):
        for name in ("keys", "count", "suffix", "starts_with_bos", "starts_text"):
            assert np.array_equal(getattr(a, name), getattr(b, name)), name
    assert np.array_equal(in_memory.first_position, on_disk.first_position)


def test_pruning_drops_exactly_the_rare_ngrams():
    sentences = random_sentences(1, n=300)
    full, _ = fit_ngram(sentences, 3)
    pruned, _ = fit_ngram(sentences, 3, prune=[0, 1, 2])
    for k, threshold in ((2, 1), (3, 2)):
        assert (pruned.column("count", k) > threshold).all()
        assert len(pruned.column("count", k)) == (full.column("count", k) > threshold).sum() > 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"smoothing": "kneser"}, "smoothing='kneser' is not one of"),
        ({"prune": [1, 1]}, r"prune=\[1, 1\] must start with 0"),
        ({"prune": [0, 2, 1]}, "never decrease"),
        ({"k": 0}, "k=0 must be above 0"),
        ({"order": 0}, "order=0 must be at least 1"),
    ],
)
def test_invalid_settings_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        headway.create("ngram", vocab_size=5, **overrides)


def test_tokens_outside_the_vocabulary_are_refused():
    with pytest.raises(InputError):
        headway.create("ngram", vocab_size=5).fit(torch.tensor([1, 5]))


def test_orders_above_the_text_length_and_vanishing_probabilities_are_handled():
    assert headway.create("ngram", vocab_size=5, order=9)(torch.zeros(1, 3, dtype=torch.long)).shape == (1, 3, 5)
    headway.create("ngram", vocab_size=5, order=9).fit(torch.tensor([1, 2, 3]))
    model = headway.create("ngram", vocab_size=3, order=12, smoothing="witten-bell")
    model.fit(torch.zeros(100_000, dtype=torch.long))
    assert model(torch.zeros(1, 20, dtype=torch.long)).isfinite().all()  # p underflows float32, ln p does not


# ── lookup ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("smoothing", [*NORMALIZED_SMOOTHINGS, "stupid-backoff"])
def test_log_probability_equals_the_entry_of_the_full_distribution(smoothing):
    model, _ = fit_ngram(random_sentences(3, n=200), 4, smoothing=smoothing)
    ids, _ = to_ids(random_sentences(4, n=50))
    logits = model(ids[None])[0]
    expected = logits[:-1].gather(1, ids[1:, None])[:, 0]
    log_p = torch.from_numpy(model.log_probability(ids))[1:]
    is_predicted = ids[1:] != 1
    assert_close(log_p[is_predicted], expected[is_predicted], rtol=0, atol=0)
    assert (log_p[~is_predicted] == 0).all()


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(0, 2**62), max_size=300), st.lists(st.integers(0, 2**62), max_size=50))
def test_hash_index_finds_every_key_and_no_other(keys, queries):
    sorted_keys = np.array(sorted(keys), dtype=np.int64)
    index = HashIndex(sorted_keys)
    assert index.find(sorted_keys).tolist() == list(range(len(sorted_keys)))
    positions = {key: i for i, key in enumerate(sorted_keys.tolist())}
    assert index.find(np.array(queries, dtype=np.int64)).tolist() == [positions.get(key, -1) for key in queries]


def test_perplexity_is_computed_over_the_full_text():
    """An n-gram has no maximum context, so the text is not cut into windows, which would shorten contexts."""
    tokenizer = headway.tokenizers.train("word", ["a b c d", "a b d"], pre_tokenizer="whitespace")
    model = headway.create(
        "ngram", vocab_size=tokenizer.vocab_size, order=3, bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id
    )
    model.tokenizer = tokenizer
    model.fit(torch.tensor(tokenizer.encode_stream(["a b c d", "a b d"] * 3)))
    texts = ["a b c d"] * 30
    ids = torch.tensor(tokenizer.encode_stream(texts))
    nats = -model.log_probability(ids)[1:]
    expected = nats.sum() / (ids != tokenizer.bos_id).sum().item()
    assert headway.evaluate(model, texts).nats_per_token == pytest.approx(float(expected), rel=1e-6)
    assert headway.evaluate(model, texts, context=3).nats_per_token > float(expected)
    assert math.isfinite(expected)


# ── on disk ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_save_and_load_round_trip(tmp_path):
    model = headway.create("ngram", vocab_size=9, order=3).fit(torch.randint(9, (100,)))
    ids = torch.randint(9, (2, 8))
    loaded = headway.load(model.save(tmp_path / "model"), dtype="bfloat16")  # columns keep their own dtypes
    assert loaded.n_params == model.n_params
    assert_close(loaded(ids), model(ids), rtol=0, atol=0)


def test_columns_that_do_not_fit_the_config_are_refused(tmp_path):
    saved = headway.create("ngram", vocab_size=9, order=3).fit(torch.randint(9, (100,))).save(tmp_path / "model")
    config = (saved / "config.json").read_text()
    for new_line, message in (
        ('"order": 2', "unexpected tensor 'backoff3'"),
        ('"order": 4', "missing tensor 'backoff4'"),
        ('"vocab_size": 4', "contradicts config.json at order 1"),
    ):
        key = new_line.split(":")[0]
        (saved / "config.json").write_text(
            "\n".join(new_line + "," if key in line else line for line in config.splitlines())
        )
        with pytest.raises(CheckpointError, match=message):
            headway.load(saved)
