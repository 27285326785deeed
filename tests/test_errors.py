"""The words of messages: suggestions, numbers with their nouns, and articles."""

import pytest

from headway.errors import count, suggest, with_article


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
    assert suggest("xyz", ["top_p"], otherwise="!") == "!"
