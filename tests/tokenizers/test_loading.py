"""Tokenizers made elsewhere: opened from any file, with the ids of those who made them."""

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
MADE = {kind: tokenizers.train(kind, DOCUMENTS, None if kind in ("char", "word") else 600) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_trained_here_opens_in_transformers_with_the_same_ids_and_comes_back(kind, tmp_path):
    ours = MADE[kind]
    ours.save(tmp_path / "ours")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    back = load_tokenizer(tmp_path / "theirs")
    for text in TEXTS:
        ids = ours.encode(text)
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids
        assert load_tokenizer(tmp_path / "ours").encode(text) == ids
        assert back.encode(text) == ids
        assert theirs.decode(ids) == ours.decode(ids, special=True)
    assert back.special_ids == ours.special_ids
    assert len(theirs) == ours.vocab_size
    for name in ("bos", "eos", "unk", "pad", "cls", "sep", "mask"):
        assert getattr(theirs, f"{name}_token") == ours.special[name]


def bert_vocab(tmp_path):
    vocab = MADE["wordpiece"].backend.get_vocab()
    tokens = sorted(vocab, key=vocab.get)
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    return tmp_path / "vocab.txt"


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    file = bert_vocab(tmp_path_factory.mktemp("bert"))
    return load_tokenizer(file), transformers.BertTokenizer(str(file))


@given(st.text() | st.sampled_from(TEXTS))
@settings(max_examples=500)
def test_wordpiece_ids_are_those_of_bert(bert, text):
    ours, theirs = bert
    if "[" not in text:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)


def test_bert_frames_as_transformers_does(bert):
    ours, theirs = bert
    first, second = "The statement", "a value of it"
    pair = theirs(first, second)
    ids, segments = ours.frame(ours.encode(first), ours.encode(second))
    assert ids == pair["input_ids"]
    assert segments == pair["token_type_ids"]
    assert ours.frame(ours.encode(first))[0] == theirs.encode(first)


def test_bert_vocabularies_with_capitals_are_cased(tmp_path):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "The", "the"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    assert load_tokenizer(tmp_path).encode("The the") == [5, 6]
    assert load_tokenizer(tmp_path / "vocab.txt", lowercase=True).encode("The the") == [6, 6]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert load_tokenizer(tmp_path).encode("The the") == [6, 6]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """GPT-2's two files, as OpenAI writes them, for a small vocabulary."""
    folder = tmp_path_factory.mktemp("gpt2")
    model = json.loads(MADE["bpe"].backend.to_str())["model"]
    vocab = {**model["vocab"], "<|endoftext|>": len(model["vocab"])}
    (folder / "encoder.json").write_text(json.dumps(vocab))
    merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
    (folder / "vocab.bpe").write_text("#version: 0.2\n" + merges, encoding="utf-8")
    letter = byte_alphabet()
    ranks = {bytes(letter[c] for c in token): id for token, id in model["vocab"].items()}
    return folder, ranks


def test_gpt2_files_give_tiktokens_ids(gpt2):
    folder, ranks = gpt2
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
    theirs = tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 600})
    for path in (folder, folder / "encoder.json", folder / "vocab.bpe"):
        ours = load_tokenizer(path)
        for text in TEXTS:
            assert ours.encode(text) == theirs.encode_ordinary(text) == ours._engine([text])[0].tolist()
            assert ours.decode(ours.encode(text)) == text
        assert ours.eos_id == ours.bos_id == len(ranks)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_tiktoken_files_give_tiktokens_ids(gpt2, pattern, tmp_path):
    _, ranks = gpt2
    lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in sorted(ranks.items(), key=lambda i: i[1]))
    (tmp_path / "x.tiktoken").write_bytes(b"".join(lines))
    ours = load_tokenizer(tmp_path / "x.tiktoken", pattern=pattern)
    theirs = tiktoken.Encoding("x", pat_str=PATTERNS[pattern], mergeable_ranks=ranks, special_tokens={})
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode_ordinary(text) == ours._engine([text])[0].tolist()
    assert ours.eos_id == len(ranks)
    ours.save(tmp_path / "saved")
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert opened(TEXTS[3])["input_ids"] == ours.encode(TEXTS[3])
    with pytest.raises(ConfigError, match=r"no pattern named 'cl100'\. Did you mean 'cl100k'"):
        load_tokenizer(tmp_path / "x.tiktoken", pattern="cl100")


def test_files_that_are_no_tokenizer_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="no tokenizer at"):
        load_tokenizer(tmp_path)
    (tmp_path / "encoder.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"comes in two files: encoder\.json and vocab\.bpe"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.bpe").write_text("#version\na b\n")
    with pytest.raises(CheckpointError, match="do not belong together"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(CheckpointError, match=r"has no line \[UNK\]"):
        load_tokenizer(tmp_path / "vocab.txt")
    (tmp_path / "x.model").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match="no SentencePiece model"):
        load_tokenizer(tmp_path / "x.model")
    (tmp_path / "x.bin").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="no tokenizer: neither JSON"):
        load_tokenizer(tmp_path / "x.bin")
    (tmp_path / "y.tiktoken").write_bytes(b"IQ== 0\nIg== 0\n")
    with pytest.raises(CheckpointError, match="ranks repeat, or a byte has none"):
        load_tokenizer(tmp_path / "y.tiktoken")
