"""The fast encoder returns the ids of the `tokenizers` library, or is not used."""

import sys

import pytest
import tiktoken
import tokenizers as rust
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import tokenizers
from headway.data import load_documents
from headway.tokenizers import PATTERNS
from headway.tokenizers.base import FAST_ENCODER_MIN_CHARS
from headway.tokenizers.bpe import byte_level_tokenizer
from headway.tokenizers.fast_encoding import byte_alphabet, fast_encoder
from headway.tokenizers.pre_tokenizers import (
    WORD_PATTERNS,
    group_before_lookahead,
    pieces_at_spaces,
    split_pre_tokenizer,
)

DOCUMENTS = load_documents("pydocs")[:24]
UNSEEN_DOCUMENTS = load_documents("pydocs")[24:32]
ANY_TEXT = st.text() | st.text(alphabet=" \n\t\r'sdLlrevtm.,=-*0123456789aAbBéß漢😀\u0301\u200d\u3000", max_size=60)


def train_backend(pattern: str | None, vocab_size: int) -> rust.Tokenizer:
    backend = byte_level_tokenizer(rust.models.BPE(), None if pattern is None else PATTERNS[pattern])
    alphabet = sorted(rust.pre_tokenizers.ByteLevel.alphabet())
    trainer = rust.trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(DOCUMENTS, trainer)
    return backend


BACKENDS = {name: train_backend(name, 1000) for name in (None, *PATTERNS)}
ENCODERS = {name: fast_encoder(backend) for name, backend in BACKENDS.items()}


def encode_one(encoder, text):
    return encoder([text])[0].tolist()


@pytest.mark.parametrize("name", BACKENDS)
@given(text=ANY_TEXT)
@settings(max_examples=150)
def test_ids_are_equal(name, text):
    assert encode_one(ENCODERS[name], text) == BACKENDS[name].encode(text).ids


@pytest.mark.parametrize("name", BACKENDS)
def test_ids_of_unseen_documents_are_equal(name):
    for text in UNSEEN_DOCUMENTS:
        assert encode_one(ENCODERS[name], text) == BACKENDS[name].encode(text).ids


@given(texts=st.lists(ANY_TEXT | st.sampled_from(["", "\ufdd0", "a\ufdd0"]), max_size=8))
@settings(max_examples=100)
def test_texts_of_one_batch_do_not_affect_each_other(texts):
    for name in (None, "cl100k"):
        encoded = [ids.tolist() for ids in ENCODERS[name](texts)]
        assert encoded == [BACKENDS[name].encode(text).ids for text in texts]


def test_runs_too_long_for_the_regex_engine_of_tiktoken_are_encoded_by_the_library():
    tokenizer = tokenizers.train("bpe", ["to be  or not"], 260)
    text = " " * 1_200_000 + "x"  # tiktoken: "Max stack size exceeded for backtracking"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("name", [*PATTERNS, *WORD_PATTERNS])
@given(st.lists(st.sampled_from(["a", "Zz", " ", "  ", "\n", "'s", "é", "1", "!", "中", "\t", " b"]), max_size=40))
@settings(max_examples=50)
def test_pieces_cut_between_words_have_the_words_of_the_text(name, parts):
    text, splitter = "".join(parts), split_pre_tokenizer((PATTERNS | WORD_PATTERNS)[name])
    pieces = list(pieces_at_spaces(text, 3))
    assert "".join(pieces) == text
    words = [word for word, _ in splitter.pre_tokenize_str(text)]
    assert [word for piece in pieces for word, _ in splitter.pre_tokenize_str(piece)] == words


@pytest.mark.parametrize("kind", ["char", "punctuation", "whitespace"])
def test_long_texts_are_looked_up_in_pieces(kind, monkeypatch):
    monkeypatch.setattr("headway.tokenizers.fast_encoding.PIECE_CHARS", 50)
    text = DOCUMENTS[0][:3000]
    tokenizer = tokenizers.train("char", [text]) if kind == "char" else None
    tokenizer = tokenizer or tokenizers.train("word", [text], pre_tokenizer=kind)
    plain = tokenizer._plain_text_backend.encode(text, add_special_tokens=False).ids
    assert tokenizer._fast_encoder([text])[0].tolist() == plain


@pytest.mark.parametrize("vocab_size", [257, 300, 3000])
def test_long_runs_of_one_character_are_encoded_equally(vocab_size):
    backend = train_backend(None, vocab_size)
    encoder = fast_encoder(backend)
    for text in ["a" * 3000, " " * 3000 + "x", "ab" * 999, "\n" * 700, "é" * 500]:
        assert encode_one(encoder, text) == backend.encode(text).ids


@given(text=ANY_TEXT)
@settings(max_examples=100)
def test_grouping_leaves_the_matches_of_a_pattern_unchanged(text):
    for original, grouped in SPLITTERS.values():
        assert original.pre_tokenize_str(text) == grouped.pre_tokenize_str(text)


SPLITTERS = {
    name: tuple(
        rust.pre_tokenizers.Split(rust.Regex(regex), "isolated") for regex in (pattern, group_before_lookahead(pattern))
    )
    for name, pattern in PATTERNS.items()
}


def test_tiktoken_compiles_the_grouped_patterns():
    ranks = {bytes([i]): i for i in range(256)}
    for pattern in PATTERNS.values():
        tiktoken.Encoding("x", pat_str=group_before_lookahead(pattern), mergeable_ranks=ranks, special_tokens={})


def test_the_fast_encoder_is_built_for_large_batches_only():
    tokenizer = tokenizers.train("bpe", DOCUMENTS, 500)
    ids = [tokenizer.encode(text) for text in DOCUMENTS[:2]]
    assert sum(map(len, DOCUMENTS)) > FAST_ENCODER_MIN_CHARS
    assert "_fast_encoder" not in tokenizer.__dict__
    assert tokenizer.encode_batch(DOCUMENTS)[:2] == ids
    assert tokenizer.__dict__["_fast_encoder"] is not None


def test_without_tiktoken_the_tokenizers_library_encodes(monkeypatch):
    tokenizer = tokenizers.train("bpe", DOCUMENTS, 500)
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    encoded = tokenizer.encode_batch(DOCUMENTS)
    assert tokenizer.__dict__.pop("_fast_encoder") is None
    monkeypatch.undo()
    assert encoded == tokenizer.encode_batch(DOCUMENTS)
    assert tokenizer.__dict__["_fast_encoder"] is not None


def test_texts_with_added_tokens_go_to_the_tokenizers_library():
    backend = train_backend(None, 400)
    backend.add_tokens(["<tool>"])
    encoder = fast_encoder(backend)
    for text in ("call <tool> now", "call <too now"):
        assert encode_one(encoder, text) == backend.encode(text).ids


def byte_vocab(*tokens: str) -> dict[str, int]:
    return {token: i for i, token in enumerate([*byte_alphabet(), *tokens])}


@pytest.mark.parametrize(
    ("reason", "vocab", "merges"),
    [
        ("a token with two derivations", byte_vocab("ab", "bc", "abc"), [("b", "c"), ("a", "b"), ("ab", "c")]),
        ("ids out of order", byte_vocab("ab", "cd"), [("c", "d"), ("a", "b")]),
        ("a token that its bytes do not yield", byte_vocab("bc", "ab", "abc"), [("b", "c"), ("a", "b"), ("ab", "c")]),
    ],
)
def test_merges_that_tiktoken_would_apply_differently_have_no_fast_encoder(reason, vocab, merges):
    backend = byte_level_tokenizer(rust.models.BPE(vocab, merges))
    assert fast_encoder(backend) is None, reason
    tokenizer = tokenizers.Tokenizer(backend)
    text = "abc abcd bcab " * 5000
    assert tokenizer.encode_batch([text])[0] == backend.encode(text).ids


LOOKUP_TOKENIZERS = {"char": tokenizers.train("char", DOCUMENTS)} | {
    name: tokenizers.train("word", DOCUMENTS, pre_tokenizer=name) for name in ("punctuation", "spaces")
}


@pytest.mark.parametrize("name", LOOKUP_TOKENIZERS)
@given(text=ANY_TEXT | st.text(alphabet="ab'’_ \n\r\t\x0b\x0c\x1c\x85\u2028\u00a0é.,-", max_size=60))
@settings(max_examples=200)
def test_lookup_of_characters_and_words_returns_equal_ids(name, text):
    tokenizer = LOOKUP_TOKENIZERS[name]
    ids = tokenizer._plain_text_backend.encode(text, add_special_tokens=False).ids
    assert encode_one(tokenizer._fast_encoder, text) == ids


@pytest.mark.parametrize("name", LOOKUP_TOKENIZERS)
def test_lookup_of_unseen_documents_returns_equal_ids(name):
    tokenizer = LOOKUP_TOKENIZERS[name]
    for text in UNSEEN_DOCUMENTS:
        ids = tokenizer._plain_text_backend.encode(text, add_special_tokens=False).ids
        assert encode_one(tokenizer._fast_encoder, text) == ids


def test_tokenizers_that_do_more_have_no_fast_encoder():
    for kind in ("wordpiece", "unigram"):
        assert tokenizers.train(kind, DOCUMENTS[:2], 500)._fast_encoder is None
    assert tokenizers.train("word", DOCUMENTS[:2], lowercase=True)._fast_encoder is None
    backend = train_backend(None, 300)
    assert fast_encoder(backend) is not None
    backend.pre_tokenizer = rust.pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert fast_encoder(backend) is None
    split = rust.pre_tokenizers.Split(rust.Regex(r"\w+"), "isolated")
    backend.pre_tokenizer = rust.pre_tokenizers.Sequence([split, rust.pre_tokenizers.ByteLevel(False, use_regex=False)])
    assert fast_encoder(backend) is None  # regex engines may disagree on an unknown pattern
    backend = train_backend(None, 300)
    backend.normalizer = rust.normalizers.Lowercase()
    assert fast_encoder(backend) is None


def test_the_byte_alphabet_is_that_of_the_library():
    assert set(byte_alphabet()) == set(rust.pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))
    for char, byte in byte_alphabet().items():
        if byte < 128:
            assert rust.pre_tokenizers.ByteLevel(False).pre_tokenize_str(chr(byte))[0][0] == char
