"""The words of messages: suggestions, numbers with their nouns, and articles."""

import pytest

from headway.errors import alternatives, count, index_error, nearest, suggest, with_article


@pytest.mark.parametrize(("n", "text"), [(0, "0 bytes"), (1, "1 byte"), (2, "2 bytes"), (2048, "2,048 bytes")])
def test_a_number_decides_the_plural(n, text):
    assert count(n, "byte") == text


NAMES = {
    "a": ["GPT", "BERT", "Transformer", "Seq2Seq", "MaskedLM", "SpanReader", "GRU", "5-gram", "gpt", "bilstm"],
    "an": ["RNN", "LSTM", "NPLM", "NGram", "n-gram", "8-gram", "Elman network", "rnn", "lstm", "ngram"],
}


@pytest.mark.parametrize(("article", "name"), [(article, name) for article in NAMES for name in NAMES[article]])
def test_the_article_follows_the_sound(article, name):
    assert with_article(name) == f"{article} {name}"


def test_a_suggestion_ignores_case():
    assert suggest("Top-P", ["top_p", "min_p"]) == " Did you mean 'top_p'?"
    assert suggest("GPT2", ["gpt", "gpt2", "gpt2-xl"]) == " Did you mean 'gpt2'?"
    assert suggest("xyz", ["top_p"], otherwise="!") == "!"


@pytest.mark.parametrize(
    ("wrong", "names", "expected"),
    [
        ("lstn", ["rnn", "lstm", "bilstm"], ["lstm"]),
        ("top_pp", ["top_k", "top_p", "min_p"], ["top_p"]),  # much nearer than the next
        ("llama", ["bloom", "llama-7b", "llama-65b", "llama-33b"], ["llama-7b", "llama-65b", "llama-33b"]),
        ("gpt2-small", ["gpt3-small", "gpt2", "gpt2-medium"], ["gpt3-small", "gpt2"]),  # the name it extends
        ("mini", ["min_p", "mirostat", "nothing"], ["min_p"]),
        ("dates-x", ["", "date", "dates"], ["dates"]),
        ("frobnicate", ["gpt", "bert"], []),
        ("anything", [], []),
    ],
)
def test_the_nearest_names_come_first_and_few(wrong, names, expected):
    assert nearest(wrong, names) == expected


@pytest.mark.parametrize(
    ("index", "n", "answer"),
    [
        (99, 12, "layer 99 does not exist: choose 0 to 11. Did you mean 11 (the last)?"),
        (-1, 12, "layer -1 does not exist: choose 0 to 11. Did you mean 0 (the first) or 11 (the last)?"),
        (1, 1, "layer 1 does not exist: the only one is layer 0"),
    ],
)
def test_a_wrong_layer_or_head_is_answered_with_the_range_and_the_nearest(index, n, answer):
    assert str(index_error("layer", index, n)) == answer


def test_alternatives_are_joined_by_or():
    assert alternatives(["a"]) == "a"
    assert alternatives(["a", "b"]) == "a or b"
    assert alternatives(["a", "b", "c"]) == "a, b or c"
