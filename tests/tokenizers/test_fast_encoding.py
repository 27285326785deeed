"""The fast engine gives the ids of the slow one, or is not used."""

import sys
from functools import cache

import pytest
import tiktoken
import tokenizers as rust
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import tokenizers
from headway.data import load_documents
from headway.tokenizers import PATTERNS
from headway.tokenizers.base import BULK
from headway.tokenizers.bpe import byte_level
from headway.tokenizers.fast_encoding import byte_alphabet, engine
from headway.tokenizers.pre_tokenizers import grouped

DOCUMENTS = load_documents("pydocs")[:24]
ANY = st.text() | st.text(alphabet=" \n\t\r'sdLlrevtm.,=-*0123456789aAbBéß漢😀\u0301\u200d\u3000", max_size=60)


def trained(pattern: str | None, vocab_size: int) -> rust.Tokenizer:
    backend = byte_level(rust.models.BPE(), None if pattern is None else PATTERNS[pattern])
    alphabet = sorted(rust.pre_tokenizers.ByteLevel.alphabet())
    trainer = rust.trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(DOCUMENTS, trainer)
    return backend


BACKENDS = {name: trained(name, 1500) for name in (None, *PATTERNS)}


def single(encode):
    """An engine for one text at a time."""
    return None if encode is None else lambda text: encode([text])[0].tolist()


ENGINES = {name: single(engine(backend)) for name, backend in BACKENDS.items()}


@pytest.mark.parametrize("name", BACKENDS)
@given(text=ANY)
@settings(max_examples=400)
def test_the_engine_gives_the_same_ids(name, text):
    assert ENGINES[name](text) == BACKENDS[name].encode(text).ids


@pytest.mark.parametrize("name", BACKENDS)
def test_the_engine_gives_the_same_ids_for_whole_documents(name):
    for text in load_documents("pydocs")[24:40]:
        assert ENGINES[name](text) == BACKENDS[name].encode(text).ids


@given(texts=st.lists(ANY | st.sampled_from(["", "\ufdd0", "a\ufdd0"]), max_size=8))
@settings(max_examples=200)
def test_texts_encoded_in_one_call_do_not_touch(texts):
    for name in (None, "cl100k"):
        found = engine_of(name)(texts)
        assert [ids.tolist() for ids in found] == [BACKENDS[name].encode(text).ids for text in texts]


@cache
def engine_of(name):
    return engine(BACKENDS[name])


@pytest.mark.parametrize("vocab_size", [257, 300, 700, 5000])
def test_whatever_the_size_of_the_vocabulary(vocab_size):
    backend = trained(None, vocab_size)
    fast = single(engine(backend))
    for text in [*DOCUMENTS[:3], "a" * 3000, " " * 3000 + "x", "ab" * 999, "\n" * 700, "é" * 500]:
        assert fast(text) == backend.encode(text).ids


@given(text=ANY)
@settings(max_examples=300)
def test_grouping_a_pattern_does_not_change_it(text):
    ranks = {bytes([i]): i for i in range(256)}
    for pattern in PATTERNS.values():
        one = rust.pre_tokenizers.Split(rust.Regex(pattern), "isolated")
        other = rust.pre_tokenizers.Split(rust.Regex(grouped(pattern)), "isolated")
        assert one.pre_tokenize_str(text) == other.pre_tokenize_str(text)
        assert tiktoken.Encoding("x", pat_str=grouped(pattern), mergeable_ranks=ranks, special_tokens={})


def test_corpora_go_through_the_engine_and_single_texts_do_not():
    tokenizer = tokenizers.train("bpe", DOCUMENTS, 700)
    slow = [tokenizer.encode(text) for text in DOCUMENTS[:2]]
    assert sum(map(len, DOCUMENTS)) > BULK
    assert "_engine" not in tokenizer.__dict__
    assert tokenizer.encode_batch(DOCUMENTS)[:2] == slow
    assert tokenizer.__dict__["_engine"] is not None


def test_without_tiktoken_the_slow_one_does_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    tokenizer = tokenizers.train("bpe", DOCUMENTS, 700)
    found = tokenizer.encode_batch(DOCUMENTS)
    assert tokenizer.__dict__["_engine"] is None
    monkeypatch.undo()
    assert found == tokenizers.train("bpe", DOCUMENTS, 700).encode_batch(DOCUMENTS)


def test_words_that_are_kept_whole_are_left_to_the_slow_one():
    backend = trained(None, 600)
    backend.add_tokens(["<tool>"])
    fast = single(engine(backend))
    for text in ("call <tool> now", "call <too now"):
        assert fast(text) == backend.encode(text).ids


def byte_vocab(*more: str) -> dict[str, int]:
    return {token: i for i, token in enumerate([*byte_alphabet(), *more])}


@pytest.mark.parametrize(
    ("why", "vocab", "merges"),
    [
        ("a token with two histories", byte_vocab("ab", "bc", "abc"), [("b", "c"), ("a", "b"), ("ab", "c")]),
        ("ids out of order", byte_vocab("ab", "cd"), [("c", "d"), ("a", "b")]),
        ("a token its own bytes never reach", byte_vocab("bc", "ab", "abc"), [("b", "c"), ("a", "b"), ("ab", "c")]),
    ],
)
def test_merges_that_tiktoken_would_read_otherwise_are_refused(why, vocab, merges):
    backend = byte_level(rust.models.BPE(vocab, merges))
    assert engine(backend) is None, why
    tokenizer = tokenizers.Tokenizer(backend)
    text = "abc abcd bcab " * 5000
    assert tokenizer.encode_batch([text])[0] == backend.encode(text).ids


@pytest.mark.parametrize("kind", ["char", "punctuation", "spaces"])
@given(text=ANY | st.text(alphabet="ab'’_ \n\r\t\x0b\x0c\x1c\x85\u2028\u00a0é.,-", max_size=60))
@settings(max_examples=400)
def test_characters_and_words_are_looked_up_with_the_same_ids(kind, text):
    tokenizer = LOOKED_UP[kind]
    assert single(tokenizer._engine)(text) == tokenizer._text_backend.encode(text, add_special_tokens=False).ids


LOOKED_UP = {"char": tokenizers.train("char", DOCUMENTS)}
LOOKED_UP |= {words: tokenizers.train("word", DOCUMENTS, pre_tokenizer=words) for words in ("punctuation", "spaces")}


def test_words_of_whole_documents_are_the_same():
    for tokenizer in LOOKED_UP.values():
        for text in load_documents("pydocs")[24:40]:
            assert single(tokenizer._engine)(text) == tokenizer._text_backend.encode(text, add_special_tokens=False).ids


def test_other_kinds_have_no_engine():
    for kind in ("wordpiece", "unigram"):
        assert tokenizers.train(kind, DOCUMENTS[:2])._engine is None
    assert tokenizers.train("word", DOCUMENTS[:2], lowercase=True)._engine is None
    odd = trained(None, 400)
    odd.normalizer = rust.normalizers.Lowercase()
    assert engine(odd) is None
    odd = trained(None, 400)
    odd.pre_tokenizer = rust.pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert engine(odd) is None
    cut = rust.pre_tokenizers.Split(rust.Regex(r"\w+"), "isolated")
    odd.pre_tokenizer = rust.pre_tokenizers.Sequence([cut, rust.pre_tokenizers.ByteLevel(False, use_regex=False)])
    assert engine(odd) is None  # a pattern that is not known to mean the same everywhere


def test_the_byte_alphabet_is_that_of_the_library():
    assert set(byte_alphabet()) == set(rust.pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))
    for char, byte in byte_alphabet().items():
        if byte < 128:
            assert rust.pre_tokenizers.ByteLevel(False).pre_tokenize_str(chr(byte))[0][0] == char
