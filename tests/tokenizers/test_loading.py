"""Tokenizers of other programs: every file format opens, with the ids of the program that wrote it."""

import base64
import json

import pytest
import tiktoken
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import load_tokenizer, tokenizers
from headway.data import load_documents
from headway.errors import CheckpointError, ConfigError
from headway.tokenizers import KINDS, PATTERNS
from headway.tokenizers.fast_encoding import byte_alphabet

DOCUMENTS = load_documents("pydocs")[:10]
TEXTS = [
    *DOCUMENTS[:3],
    "Mixed text, code: def f(x):\n    return  x+1\n\n\n\tpass   \n",
    "👩‍👩‍👧‍👦 emoji 🎉🏽 and flags 🇫🇷",
    "日本語のテキスト 中文 한국어 ไทย العربية",
    "  leading and trailing   ",
    "\r\n\r\n  x \t\t y\u00a0\u3000z",
    "don't I'LL we'Re 'S naïve café ﬁ Ⅷ ½ 1234567",
    "",
    " ",
    "\u0301a\u200b\ufeff",
]
TRAINED = {kind: tokenizers.train(kind, DOCUMENTS, None if kind in ("char", "word") else 600) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_tokenizer_goes_through_transformers_and_back(kind, tmp_path):
    ours = TRAINED[kind]
    ours.save(tmp_path / "ours")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    loaded, returned = load_tokenizer(tmp_path / "ours"), load_tokenizer(tmp_path / "theirs")
    for text in TEXTS:
        ids = ours.encode(text)
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids
        assert loaded.encode(text) == ids
        assert returned.encode(text) == ids
        assert theirs.decode(ids) == ours.decode(ids, skip_special_tokens=False)
    assert returned.special_ids == ours.special_ids
    assert len(theirs) == ours.vocab_size
    for name, token in ours.special_tokens.items():
        assert getattr(theirs, f"{name}_token") == token


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """Our tokenizer and transformers' from one vocab.txt."""
    vocab = TRAINED["wordpiece"].vocab
    file = tmp_path_factory.mktemp("bert") / "vocab.txt"
    file.write_text("".join(f"{token}\n" for token in sorted(vocab, key=vocab.get)), encoding="utf-8")
    return load_tokenizer(file), transformers.BertTokenizer(str(file))


@given(st.text() | st.sampled_from(TEXTS))
@settings(max_examples=200)
def test_wordpiece_ids_are_those_of_bert(bert, text):
    ours, theirs = bert
    if "[" not in text:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)


def test_inputs_and_segments_are_those_of_bert(bert):
    ours, theirs = bert
    first, second = "The statement", "a value of it"
    pair = theirs(first, second)
    ids, segments = ours.build_inputs(ours.encode(first), ours.encode(second))
    assert ids == pair["input_ids"]
    assert segments == pair["token_type_ids"]
    assert ours.build_inputs(ours.encode(first))[0] == theirs.encode(first)


def test_a_saved_tokenizer_gives_the_segments_of_a_pair_in_transformers(bert, tmp_path):
    """Without them, both texts would be in segment 0, and a classifier of pairs would score them differently."""
    ours, _ = bert
    ids, segments = ours.build_inputs(ours.encode("The statement"), ours.encode("a value"))
    ours.save(tmp_path / "two", has_segments=True)
    pair = transformers.AutoTokenizer.from_pretrained(tmp_path / "two")("The statement", "a value")
    assert (pair["input_ids"], pair["token_type_ids"]) == (ids, segments)
    ours.save(tmp_path / "one", has_segments=False)
    pair = transformers.AutoTokenizer.from_pretrained(tmp_path / "one")("The statement", "a value")
    assert list(pair) == ["input_ids", "attention_mask"]
    ours.save(tmp_path / "no encoder")
    assert "model_input_names" not in json.loads((tmp_path / "no encoder" / "tokenizer_config.json").read_text())


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize(
    "setting", [{}, {"strip_accents": False}, {"strip_accents": True}, {"tokenize_chinese_chars": False}]
)
def test_the_settings_beside_a_bert_vocabulary_are_those_of_transformers(lowercase, setting, tmp_path):
    words = ["schön", "schon", "Schön", "na", "naive", "naïve", "##ive", "北", "京", "##京", "city"]
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]), encoding="utf-8"
    )
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": lowercase, **setting}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = load_tokenizer(tmp_path)
    theirs = transformers.BertTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=lowercase, **setting)
    text = "Schön schön naïve naive 北京 city"
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)


def test_a_bert_vocabulary_with_capitals_is_cased(tmp_path):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "The", "the"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    assert load_tokenizer(tmp_path).encode("The the") == [5, 6]
    assert load_tokenizer(tmp_path / "vocab.txt", lowercase=True).encode("The the") == [6, 6]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert load_tokenizer(tmp_path).encode("The the") == [6, 6]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """GPT-2's two files, in OpenAI's format, for a small vocabulary; and its ranks for tiktoken."""
    folder = tmp_path_factory.mktemp("gpt2")
    model = json.loads(TRAINED["bpe"].backend.to_str())["model"]
    vocab = {**model["vocab"], "<|endoftext|>": len(model["vocab"])}
    (folder / "encoder.json").write_text(json.dumps(vocab))
    merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
    (folder / "vocab.bpe").write_text("#version: 0.2\n" + merges, encoding="utf-8")
    byte_of = byte_alphabet()
    ranks = {bytes(byte_of[c] for c in token): id for token, id in model["vocab"].items()}
    return folder, ranks


def test_gpt2_files_give_the_ids_of_tiktoken(gpt2):
    folder, ranks = gpt2
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
    theirs = tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 600})
    for path in (folder, folder / "encoder.json", folder / "vocab.bpe"):
        ours = load_tokenizer(path)
        for text in TEXTS:
            assert ours.encode(text) == theirs.encode_ordinary(text) == ours._fast_encoder([text])[0].tolist()
            assert ours.decode(ours.encode(text)) == text
        assert ours.eos_id == ours.bos_id == len(ranks)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_tiktoken_files_give_the_ids_of_tiktoken(gpt2, pattern, tmp_path):
    _, ranks = gpt2
    lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in sorted(ranks.items(), key=lambda i: i[1]))
    (tmp_path / "x.tiktoken").write_bytes(b"".join(lines))
    ours = load_tokenizer(tmp_path / "x.tiktoken", pattern=pattern)
    theirs = tiktoken.Encoding("x", pat_str=PATTERNS[pattern], mergeable_ranks=ranks, special_tokens={})
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode_ordinary(text) == ours._fast_encoder([text])[0].tolist()
    assert ours.eos_id == len(ranks)
    ours.save(tmp_path / "saved")
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert opened(TEXTS[3])["input_ids"] == ours.encode(TEXTS[3])
    with pytest.raises(ConfigError, match=r"no pattern named 'cl100'\. Did you mean 'cl100k'"):
        load_tokenizer(tmp_path / "x.tiktoken", pattern="cl100")


def test_errors_name_the_file(tmp_path):
    with pytest.raises(CheckpointError, match="no tokenizer at"):
        load_tokenizer(tmp_path)
    (tmp_path / "encoder.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"encoder\.json and vocab\.bpe must be in the same folder"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.bpe").write_text("#version\na b\n")
    with pytest.raises(CheckpointError, match="do not belong together"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(CheckpointError, match=r"has no line \[UNK\]"):
        load_tokenizer(tmp_path / "vocab.txt")
    (tmp_path / "x.model").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match="not a SentencePiece model"):
        load_tokenizer(tmp_path / "x.model")
    (tmp_path / "x.bin").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="not a tokenizer: expected JSON"):
        load_tokenizer(tmp_path / "x.bin")
    (tmp_path / "y.tiktoken").write_bytes(b"IQ== 0\nIg== 0\n")
    with pytest.raises(CheckpointError, match="ranks repeat, or a byte has none"):
        load_tokenizer(tmp_path / "y.tiktoken")
