"""Hostile and damaged tokenizer files: one clear error, within seconds, before any text is encoded."""

import base64
import copy
import json
import os
import re

import pytest
import tokenizers as rust

from headway import load_tokenizer, tokenizers
from headway.errors import CheckpointError, ConfigError, InputError
from headway.tokenizers import Tokenizer, file_limits
from headway.tokenizers.native_errors import native_errors

TEXTS = ["to be or not to be, that is the question\n"] * 3
BPE = json.loads(tokenizers.train("bpe", TEXTS, 300).backend.to_str())
UNIGRAM = json.loads(tokenizers.train("unigram", TEXTS, 40).backend.to_str())
BYTE_LEVEL = BPE["pre_tokenizer"]


def replace(text, content):
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def sequence(key, components):
    return {"type": "Sequence", key: components}


def write(folder, document):
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder


def changed(**sections):
    return copy.deepcopy(BPE) | sections


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def charsmap(trie_bytes, data):
    encoded = base64.b64encode(trie_bytes.to_bytes(4, "little") + data).decode()
    return {"type": "Precompiled", "precompiled_charsmap": encoded}


HOSTILE = {
    "normalizer: replacements that multiply": (
        changed(normalizer=sequence("normalizers", [replace("a", "aaaa")] * 4)),
        "its normalizer and pre_tokenizer can make a text 512 times as long; at most 64 is allowed",
    ),
    "normalizer: bytes of bytes of bytes": (
        changed(normalizer=sequence("normalizers", [{"type": "ByteLevel"}] * 40)),
        "times as long",
    ),
    "normalizer: a long replacement": (
        changed(normalizer=replace("a" * 100, "b" * 300)),
        "inserts 300 characters at a time",
    ),
    "normalizer: a long prefix": (changed(normalizer={"type": "Prepend", "prepend": "b" * 10**6}), "inserts 1,000,000"),
    "normalizer: too many": (changed(normalizer=sequence("normalizers", [{"type": "NFC"}] * 65)), "has 66 components"),
    "normalizer: an empty pattern": (changed(normalizer=replace("", "a")), "is neither a regular expression nor"),
    "normalizer: no type": (changed(normalizer={"pattern": {"String": "a"}, "content": "b"}), "has no type"),
    "normalizer: no charsmap": (changed(normalizer={"type": "Precompiled"}), "has no readable charsmap"),
    "normalizer: a charsmap cut off": (changed(normalizer=charsmap(4000, bytes(8))), "is cut off"),
    "normalizer: a charsmap that multiplies": (
        changed(normalizer=charsmap(4, b"0000" + b"x" * 300)),
        "inserts 300 bytes",
    ),
    "normalizer: two charsmaps": (
        changed(normalizer=sequence("normalizers", [charsmap(4, bytes(8))] * 2)),
        "more than one Precompiled",
    ),
    "pre_tokenizer: exponential": (changed(pre_tokenizer=split("(a+)+$")), "repeats a part that itself has no fixed"),
    "pre_tokenizer: length 0": (changed(pre_tokenizer={"type": "FixedLength", "length": 0}), "pieces of length 0"),
    "pre_tokenizer: bytes of bytes": (
        changed(pre_tokenizer=sequence("pretokenizers", [BYTE_LEVEL] * 10)),
        "1,024 times as long",
    ),
    "decoder: replacements that multiply": (
        changed(decoder=sequence("decoders", [replace("a", "a" * 100)] * 3)),
        "its decoder can make a text 1,000,000 times as long",
    ),
    "model: a huge id": (
        changed(model=BPE["model"] | {"vocab": BPE["model"]["vocab"] | {"x": 2**31}}),
        "id 2147483648",
    ),
    "model: a negative id": (
        changed(model=BPE["model"] | {"vocab": BPE["model"]["vocab"] | {"x": -1}}),
        "id -1 is not",
    ),
    "model: an id twice": (changed(model=BPE["model"] | {"vocab": BPE["model"]["vocab"] | {"xx": 7}}), "have the id 7"),
    "model: none": (changed(model=None), "no model with a type"),
    "model: a merge of nothing": (changed(model=BPE["model"] | {"merges": [["xx", "yy"]]}), "out of vocabulary"),
    "model: long WordPiece words": (
        changed(model={"type": "WordPiece", "vocab": {"[UNK]": 0}, "max_input_chars_per_word": 10**9}),
        "max_input_chars_per_word is 1000000000; at most 200",
    ),
    "model: long pieces": (
        copy.deepcopy(UNIGRAM) | {"model": UNIGRAM["model"] | {"vocab": [["a" * 129, -1.0]]}},
        "longer than 128 characters",
    ),
    "model: no score": (copy.deepcopy(UNIGRAM) | {"model": UNIGRAM["model"] | {"vocab": [["a", None]]}}, "not a piece"),
    "model: no unk piece": (
        copy.deepcopy(UNIGRAM) | {"model": UNIGRAM["model"] | {"unk_id": 10**9}},
        "UnkIdNotInVocabulary",
    ),
    "added token: empty": (changed(added_tokens=[BPE["added_tokens"][0] | {"content": ""}]), "has no content or no id"),
    "added token: huge id": (changed(added_tokens=[BPE["added_tokens"][0] | {"id": 2**40}]), "token id 1099511627776"),
    "added token: another id": (
        changed(added_tokens=[BPE["added_tokens"][0] | {"id": 999}]),
        r"its added token '<\|endoftext\|>' has the id 999, but the vocabulary before it leads to",
    ),
    "added tokens: no list": (changed(added_tokens=5), "not a list"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tokenizers_are_refused_by_name(name, tmp_path):
    document, reason = HOSTILE[name]
    with pytest.raises(CheckpointError, match=reason) as caught:
        load_tokenizer(write(tmp_path, document))
    assert str(tmp_path / "tokenizer.json") in str(caught.value)


def test_limits_leave_room_for_the_pipelines_of_published_tokenizers(tmp_path):
    """ALBERT's normalizer, Llama 2's, CLIP's: each a chain of components that change text."""
    regex = {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}
    names = [{"type": name} for name in ("NFKD", "StripAccents", "Lowercase")]
    for normalizers in (
        [replace("``", '"'), replace("''", '"'), *names, regex],
        [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")],
        [{"type": "NFC"}, regex, {"type": "Lowercase"}],
    ):
        load_tokenizer(write(tmp_path, changed(normalizer=sequence("normalizers", normalizers))))


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json", "tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"model": ' + "[" * 100_000, "nested too deeply"),
        ('{"bos_token": "\\ud800 and text after it"}', "surrogate"),
        ('{"model": NaN}', "invalid"),
        ('{"model": {', "truncated"),
        ("[]", "does not hold a JSON object|expected JSON"),
    ],
)
def test_json_that_is_no_document_is_refused(name, text, reason, tmp_path):
    if name == "vocab.json":
        (tmp_path / "merges.txt").write_text("a b\n")
    else:
        write(tmp_path, BPE)
    (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError, match=f"{re.escape(name)}.*({reason})"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "vocab.txt", "tokenizer.model", "x.tiktoken", "tokenizer_config.json"]
)
def test_a_pipe_or_a_device_is_refused_and_never_waited_for(name, tmp_path):
    if name == "tokenizer_config.json":
        write(tmp_path, BPE)
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match=f"{re.escape(name)} is a pipe, not a file"):
        load_tokenizer(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=f"{re.escape(name)} is a device, not a file"):
        load_tokenizer(tmp_path)


def test_files_over_the_size_limit_are_refused(tmp_path, monkeypatch):
    for module in ("loading", "sentencepiece"):
        monkeypatch.setattr(f"headway.tokenizers.{module}.MAX_TOKENIZER_BYTES", 100)
    for name, head in (("tokenizer.json", "{"), ("vocab.txt", "[UNK]"), ("x.tiktoken", "IQ== 0\n"), ("x.model", "\n")):
        (tmp_path / name).write_text(head + " " * 100)
        with pytest.raises(CheckpointError, match=r"bytes; at most 100 are read"):
            load_tokenizer(tmp_path / name)


def test_other_formats_refuse_ids_out_of_range_and_bytes_that_are_no_text(tmp_path):
    (tmp_path / "merges.txt").write_text("a b\n")
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2**31}))
    with pytest.raises(CheckpointError, match="token id 2147483648 is not a whole number from 0 to 4194303"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2}))
    (tmp_path / "merges.txt").write_bytes(b"a \xff\n")
    with pytest.raises(CheckpointError, match=r"merges\.txt is damaged or not UTF-8"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"[UNK]\n\xff\n")
    with pytest.raises(CheckpointError, match=r"vocab\.txt is damaged or not UTF-8"):
        load_tokenizer(tmp_path / "vocab.txt")
    lines = [base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256)]
    for line, reason in (
        (b"YWE= 4194304\n", "token id 4194304 is not a whole number"),
        (b"YWE= -5\n", "line 257 is not a token and its rank"),
        (base64.b64encode(b"a" * 8000) + b" 256\n", "finding its merges would take 64,000,256 steps"),
    ):
        (tmp_path / "x.tiktoken").write_bytes(b"".join([*lines, line]))
        with pytest.raises(CheckpointError, match=reason):
            load_tokenizer(tmp_path / "x.tiktoken")


def test_counts_that_are_no_counts_are_refused(tmp_path):
    tokenizers.train("char", TEXTS).save(tmp_path)
    for line in ('"a"\t-1', '"a"\tx', "[" * 10_000 + "\t1", "1\t1", "a", '"a"\t' + "9" * 5000):
        (tmp_path / "counts.tsv").write_text(line + "\n")
        with pytest.raises(CheckpointError, match=r"counts\.tsv is not a table of tokens and counts"):
            load_tokenizer(tmp_path)


def test_an_empty_sequence_does_nothing(tmp_path):
    tokenizer = load_tokenizer(write(tmp_path, changed(pre_tokenizer=sequence("pretokenizers", []))))
    assert tokenizer._fast_encoder is None
    assert tokenizer.decode(tokenizer.encode("tobe")) == "tobe"


def test_dropout_in_a_file_is_off(tmp_path):
    """`transformers` and `tokenizers` would give random ids, in evaluation too."""
    tokenizer = load_tokenizer(write(tmp_path, changed(model=BPE["model"] | {"dropout": 0.5})))
    expected = load_tokenizer(write(tmp_path, BPE)).encode(TEXTS[0])
    assert all(tokenizer.encode(TEXTS[0]) == expected for _ in range(20))
    assert tokenizer.backend.model.dropout is None


def test_a_panic_in_rust_is_an_error_of_headway():
    splitter = rust.pre_tokenizers.Split(rust.Regex("(a+)+$"), "isolated")
    with pytest.raises(InputError, match=r"^splitting failed: a regular expression.*steps"), native_errors("splitting"):
        splitter.pre_tokenize_str("a" * 40 + "b")
    with pytest.raises(KeyError), native_errors("reading"):
        raise KeyError("an error of Python code passes")


def test_a_text_that_defeats_a_regular_expression_is_an_error_of_headway():
    backend = rust.Tokenizer.from_str(json.dumps(changed(pre_tokenizer=split("(a+)+$"))))
    with pytest.raises(InputError, match="encoding this text failed: a regular expression of this tokenizer"):
        Tokenizer(backend).encode("a" * 40 + "b")


def test_unigram_without_unk_refuses_text_it_cannot_spell(tmp_path):
    document = copy.deepcopy(UNIGRAM) | {"added_tokens": []}
    document["model"] |= {"unk_id": None, "vocab": [["a", -1.0], ["▁", -1.0]]}
    tokenizer = load_tokenizer(write(tmp_path, document))
    assert tokenizer.decode(tokenizer.encode("a a")) == "a a"
    with pytest.raises(InputError, match="encoding this text failed"):
        tokenizer.encode("b")


@pytest.mark.parametrize("id", [-1, 2**32, 2**70])
def test_ids_that_are_no_ids_are_refused(id):
    with pytest.raises(InputError, match=f"{id} is not a token id"):
        tokenizers.train("char", TEXTS).decode([0, id])


def test_a_text_too_long_for_one_piece_is_refused(monkeypatch):
    monkeypatch.setattr("headway.tokenizers.base.MAX_TEXT_CHARS", 100)
    tokenizer = tokenizers.train("unigram", TEXTS, 40)
    tokenizer.encode("a" * 100)
    with pytest.raises(InputError, match="a text of 101 characters is too long for this tokenizer"):
        tokenizer.encode("a" * 101)


def test_more_words_than_a_file_may_have_are_refused_when_trained(monkeypatch):
    monkeypatch.setattr("headway.tokenizers.word.MAX_VOCAB_SIZE", 10)
    with pytest.raises(ConfigError, match="11 words are too many for a vocabulary, which has at most 10 tokens"):
        tokenizers.train("word", ["a b c d e f g h i j"])
    tokenizers.train("word", ["a b c d e f g h i j"], 8)


def test_the_limits_are_those_of_the_documentation():
    names = [name for name in vars(file_limits) if name.startswith("MAX_")]
    assert names == [
        "MAX_TOKENIZER_BYTES",
        "MAX_VOCAB_SIZE",
        "MAX_COMPONENTS",
        "MAX_REPLACEMENT_CHARS",
        "MAX_GROWTH",
        "MAX_WORD_CHARS",
        "MAX_PIECE_CHARS",
    ]
