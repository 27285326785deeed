"""Nearest tokens equal brute force, planes equal numpy's SVD, queries and keys are the model's own."""

import math

import numpy as np
import pytest
import torch

import headway
from headway.analysis.embedding_plots import plot_nearest, plot_vectors, render_nearest, render_vectors
from headway.analysis.embedding_space import (
    embedding_matrix,
    find_token,
    is_tied,
    map_vectors,
    nearest_tokens,
    project,
    unembedding_matrix,
    word_vectors,
)
from headway.analysis.plotting import figure_style, label_points, new_figure, use_theme
from headway.errors import InputError
from headway.models import Classifier, MaskedLM
from headway.tokenizers import train as train_tokenizer
from tests.models.variants import amplified

TEXT = "the cat sat on a mat and the dog sat on the hill with a hat"
WORDS = ["cat", "dog", "mat", "hat", "hill", "sat"]
SMALL = {"d_model": 8, "n_layers": 1}
FAMILIES = ["nplm", "rnn", "lstm", "seq2seq", "bahdanau", "transformer", "gpt", "bert", "bilstm", "bow"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("word", [TEXT], pre_tokenizer="whitespace")


def small(family, tokenizer, **config):
    sizes = {"vocab_size": tokenizer.vocab_size, "d_model": 8}
    if family in ("gpt", "bert", "transformer"):
        sizes |= {"n_heads": 2, "n_layers": 2, "context": 16, "positions": "rotary"}
    if family in ("bahdanau", "bilstm", "nplm"):
        sizes |= {"d_hidden": 6}
    model = amplified(headway.create(family, device="cpu", **sizes | config))
    model.tokenizer = tokenizer
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_neighbours_equal_brute_force_in_every_family(family, tokenizer):
    model = small(family, tokenizer)
    nearest = nearest_tokens(model, "cat", top=5)
    rows = {id: embedding_matrix(model)[id].tolist() for id in tokenizer.vocab.values()}
    cat = rows.pop(tokenizer.token_id("cat"))

    def dot(x, y):
        return sum(a * b for a, b in zip(x, y, strict=True))

    def cosine(x, y):
        return dot(x, y) / math.sqrt(dot(x, x) * dot(y, y))

    for name, measure in (("cosine", cosine), ("dot", dot)):
        expected = sorted(rows, key=lambda id: -measure(cat, rows[id]))
        for rank, near in enumerate(nearest.by(name)):
            assert near.id == expected[rank]
            assert getattr(near, f"rank_by_{name}") == rank + 1
            assert near.cosine == pytest.approx(cosine(cat, rows[near.id]), abs=1e-5)
            assert near.dot == pytest.approx(dot(cat, rows[near.id]), abs=1e-4)


def test_the_dot_product_prefers_long_vectors_and_the_cosine_does_not(tokenizer):
    model = small("lstm", tokenizer)
    cat, dog, mat = (tokenizer.token_id(word) for word in ("cat", "dog", "mat"))
    with torch.no_grad():
        model.embedding.zero_()
        model.embedding[cat, 0] = 1.0
        model.embedding[dog, :2] = torch.tensor([0.5, 0.1])  # in the same direction
        model.embedding[mat, :2] = torch.tensor([5.0, 9.0])  # elsewhere, and long
    nearest = nearest_tokens(model, "cat", top=1)
    assert [near.token for near in nearest.by_cosine] == ["dog"]
    assert [near.token for near in nearest.by_dot] == ["mat"]
    assert nearest.by_dot[0].rank_by_cosine == 2
    assert nearest.n_common == 0
    assert "nearest to cat: 0 of 1 token in both lists" in render_nearest(nearest)
    assert "rank by cosine" in render_nearest(nearest, "dot")


def test_the_unembedding_is_another_matrix_unless_tied(tokenizer):
    untied, tied = (small("gpt", tokenizer, tie_embeddings=is_tied) for is_tied in (False, True))
    assert (is_tied(untied), is_tied(tied)) == (False, True)
    assert torch.equal(unembedding_matrix(untied), untied.embedding.output)
    assert nearest_tokens(untied, "cat") != nearest_tokens(untied, "cat", unembedding=True)
    bert = small("bert", tokenizer, labels=["a", "b"])
    assert is_tied(MaskedLM(bert))
    with pytest.raises(InputError, match="a Classifier has no unembedding: it predicts no tokens"):
        nearest_tokens(Classifier(bert), "cat", unembedding=True)
    assert torch.equal(embedding_matrix(Classifier(bert)), bert.embedding.weight)


def test_models_without_embeddings_and_unknown_tokens_are_answered(tokenizer):
    ngram = headway.create("ngram", vocab_size=tokenizer.vocab_size)
    with pytest.raises(InputError, match="a 3-gram has no embedding: use a model that has one, such as nplm, lstm"):
        nearest_tokens(ngram, "cat")
    model = small("lstm", tokenizer)
    with pytest.raises(InputError, match=r"'catt' is not a token of this vocabulary\. Did you mean 'cat'\?"):
        nearest_tokens(model, "catt")
    with pytest.raises(InputError, match="'' is not a token"):
        nearest_tokens(model, "")
    with pytest.raises(InputError, match="top=0 must be at least 1"):
        nearest_tokens(model, "cat", top=0)
    assert len(nearest_tokens(model, "cat", top=10**6).by_dot) == len(tokenizer.vocab) - 1


def test_a_token_may_be_typed_with_its_space_without_it_or_as_the_vocabulary_spells_it():
    bpe = train_tokenizer("bpe", [TEXT] * 3, 330)
    assert bpe.token(find_token(bpe, " the")) == "Ġthe"
    assert bpe.token(find_token(bpe, "the")) == "the"
    assert bpe.token(find_token(bpe, "hill")) == "Ġhill"  # "hill" is a token after a space only
    assert bpe.token(find_token(bpe, "Ġthe")) == "Ġthe"
    special = bpe.special_tokens["eos"]
    assert find_token(bpe, special) == bpe.eos_id
    with pytest.raises(InputError, match=r"'thq' is not a token of this vocabulary: it is [23] tokens, "):
        find_token(bpe, "thq")


# ── the plane ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("n", "d"), [(2, 5), (7, 3), (6, 40)])
def test_projections_equal_numpys_svd(seed, n, d):
    vectors = np.random.default_rng(seed).normal(size=(n, d))
    view = project(torch.tensor(vectors))
    centred = vectors - vectors.mean(axis=0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    np.testing.assert_allclose(np.abs(view.coordinates.numpy()), np.abs(u[:, :2] * s[:2]), atol=1e-9)
    np.testing.assert_allclose(view.explained, (s**2 / (s**2).sum())[:2], atol=1e-12)
    flipped = project(torch.tensor(-vectors))  # a mirrored cloud is mirrored, so the signs are not arbitrary
    np.testing.assert_allclose(flipped.coordinates, -view.coordinates, atol=1e-9)


def test_a_linear_map_separates_the_senses_of_a_word():
    words = [[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]  # bank, money, river
    maps = {"finance": [[1.0, 0.0], [0.0, 0.1]], "nature": [[0.1, 0.0], [0.0, 1.0]]}
    before, finance, nature = map_vectors(words, maps)
    assert before.coordinates.tolist() == words
    assert not before.is_projected
    assert finance.coordinates.tolist() == [[1.0, 0.1], [1.0, 0.0], [0.0, 0.1]]

    def distances(view):
        return [float((view.coordinates[0] - view.coordinates[i]).norm()) for i in (1, 2)]

    assert distances(before) == [1.0, 1.0]
    assert distances(finance) == pytest.approx([0.1, 1.0])  # the bank is near the money …
    assert distances(nature) == pytest.approx([1.0, 0.1])  # … or near the river


@pytest.mark.parametrize("n_kv_heads", [2, 1])
def test_queries_and_keys_are_those_of_the_model_at_position_0(tokenizer, n_kv_heads):
    """Rotary positions turn nothing at position 0, so the first layer sees a single word as `word_vectors` does."""
    model = small("gpt", tokenizer, n_kv_heads=n_kv_heads, scale_embeddings=True)
    captured = {}
    attention = model.blocks[0].attention
    original = attention.attention_fn

    def capture(q, k, v, **options):
        captured["q"], captured["k"] = q[0, 1, 0], k[0, -1, 0]
        return original(q, k, v, **options)

    attention.attention_fn = capture
    queries, keys = [], []
    for word in WORDS:
        with torch.no_grad():
            model(torch.tensor([[tokenizer.token_id(word)]]))
        queries.append(captured["q"])
        keys.append(captured["k"])
    result = word_vectors(model, WORDS, head=1)
    assert [view.title for view in result.views] == [
        "embeddings",
        "queries in layer 0, head 1",
        "keys in layer 0, head 1",
    ]
    for view, vectors in zip(result.views[1:], (queries, keys), strict=True):
        torch.testing.assert_close(view.coordinates, project(torch.stack(vectors)).coordinates, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_words_of_every_family_are_in_the_plane(family, tokenizer):
    model = small(family, tokenizer)
    result = word_vectors(model, WORDS)
    assert len(result.views) == (3 if family in ("gpt", "bert", "transformer") else 1)
    assert result.words == WORDS
    assert len(render_vectors(result).splitlines()) == len(result.views) + 2 + len(WORDS)


def test_wrong_words_layers_and_matrices_are_answered(tokenizer):
    gpt, lstm = small("gpt", tokenizer), small("lstm", tokenizer)
    for model, words, options, message in [
        (gpt, ["cat"], {}, "1 word: pass at least two different words"),
        (gpt, ["cat", "cat"], {}, "1 word: pass at least two different words"),
        (gpt, WORDS, {"layer": 2}, "layer 2 does not exist: choose 0 to 1"),
        (gpt, WORDS, {"head": -1}, "head -1 does not exist: choose 0 to 1"),
        (lstm, WORDS, {"layer": 0}, "an LSTM has no attention layers: leave layer and head out"),
        (lstm, ["cat", "kat"], {}, "'kat' is not a token .* Did you mean"),
    ]:
        with pytest.raises(InputError, match=message):
            word_vectors(model, words, **options)
    with pytest.raises(InputError, match=r"the matrix 'm' of shape \(2, 3\) does not map vectors of 2 numbers"):
        map_vectors([[1.0, 0.0], [0.0, 1.0]], {"m": [[1, 2, 3], [4, 5, 6]]})
    with pytest.raises(InputError, match=r"vectors of shape \(1, 2\): expected at least two vectors"):
        project([[1.0, 2.0]])
    with pytest.raises(InputError, match="vectors: expected rows of numbers, all of one length"):
        map_vectors([[1.0], [1.0, 2.0]], {})
    with pytest.raises(InputError, match="infinite or undefined numbers"):
        project([[1.0, 2.0, math.nan], [1.0, 2.0, 3.0]])


def test_a_word_of_several_tokens_is_the_mean_of_their_vectors():
    bpe = train_tokenizer("bpe", [TEXT] * 3, 270)
    model = small("gpt", bpe)
    result = word_vectors(model, ["thehill", "cat"])
    assert result.n_tokens[0] > 1
    same = word_vectors(model, ["the", "the", "cat"])
    assert same.words[-1] in ("cat", "·cat")


# ── pictures ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_labels_of_points_do_not_cover_each_other():
    rng = np.random.default_rng(0)
    points = [(float(x), float(y)) for x, y in rng.normal(size=(14, 2)) * 0.4]
    with figure_style():
        figure = new_figure(5, 5)
        axes = figure.subplots()
        axes.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.5))
        figure.draw_without_rendering()
        label_points(axes, points, [f"word{i}" for i in range(14)])
        figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
        assert len(boxes) == 14
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_pictures_are_written_light_and_dark(tokenizer, tmp_path):
    model = small("gpt", tokenizer)
    plot_nearest([nearest_tokens(model, word, top=4) for word in WORDS[:2]], tmp_path / "near.png", model="tiny")
    result = word_vectors(model, WORDS)
    with use_theme("dark"):
        plot_vectors(result.views, result.words, tmp_path / "words.png", title="tiny", groups=[0, 0, 1, 1, 2, 2])
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("near.png", "words.png"))
