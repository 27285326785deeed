"""The `Tokenizer` interface: text survives encoding and decoding, and transformers opens the files."""

import copy
import json
import pickle

import pytest
import tokenizers as rust
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import headway
from headway import tokenizers
from headway.errors import CheckpointError, ConfigError, DataError, InputError

TEXTS = [
    "To be, or not to be, that is the question:\n\tWhether 'tis nobler…",
    "naïve café 42 — ünïcödé",
    "x = [1, 2]\r\n",
] * 3
BPE = tokenizers.train("bpe", TEXTS, 300)
CHAR = tokenizers.train("char", TEXTS)
ALPHABET = sorted(set("".join(TEXTS)))
ANY_TEXT = (
    st.text() | st.text(alphabet="<|endoftx>unk \n") | st.sampled_from(["<|endoftext|>", "<unk>", "a<|endoftext|>b"])
)


@given(ANY_TEXT)
@settings(max_examples=500)
def test_bpe_restores_any_text(text):
    assert BPE.decode(BPE.encode(text)) == text


@given(st.text(alphabet=ALPHABET))
@settings(max_examples=200)
def test_char_restores_text_of_its_alphabet(text):
    assert CHAR.decode(CHAR.encode(text)) == text
    assert len(CHAR.encode(text)) == len(text)
    assert CHAR.lost_bytes(text) == 0


def test_special_tokens_in_a_text_are_ordinary_text():
    for tokenizer in (BPE, CHAR):
        assert tokenizer.eos_id not in tokenizer.encode("<|endoftext|>")


def test_lost_bytes_counts_unknown_characters_in_utf8():
    assert CHAR.encode("語") == [CHAR.unk_id]
    assert CHAR.lost_bytes("be語o語Ж") == 3 + 3 + 2
    assert BPE.lost_bytes("be語o語Ж") == 0


def test_vocab_and_ids():
    assert BPE.vocab_size == len(BPE.vocab) == 300
    assert BPE.bos_id == BPE.eos_id == 299  # last, as in GPT-2
    assert CHAR.vocab_size == len(ALPHABET) + 2
    assert [CHAR.token(i) for i in range(3)] == ALPHABET[:3]
    assert CHAR.token_id(ALPHABET[2]) == 2
    with pytest.raises(InputError, match="no token has id 300: the ids of this vocabulary are 0 to 299"):
        BPE.token(300)


def test_documents_share_the_token_that_is_both_bos_and_eos():
    end = BPE.eos_id
    stream = [end, *BPE.encode("a"), end, *BPE.encode("b"), end]
    assert BPE.encode_stream(["a", "b"]) == stream
    assert BPE.encode_stream_with_bos_positions(["a", "b"]) == (stream, [0])


def test_an_empty_prompt_is_bos_or_an_error():
    assert BPE.encode_prompt("") == [BPE.bos_id]
    assert BPE.encode_prompt("to") == BPE.encode("to")
    without_bos = tokenizers.Tokenizer(BPE.backend)
    with pytest.raises(InputError, match="an empty prompt needs a BOS token"):
        without_bos.encode_prompt("")


@pytest.mark.parametrize("tokenizer", [BPE, CHAR], ids=["bpe", "char"])
def test_transformers_opens_a_saved_tokenizer_with_the_same_ids(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = headway.load_tokenizer(tmp_path)
    for text in [*TEXTS[:3], "to be\n\n  be ", ""]:
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode(text) == tokenizer.encode(text)
        assert theirs.decode(ours.encode(text)) == ours.decode(ours.encode(text))
    assert theirs.eos_token_id == ours.eos_id == tokenizer.eos_id
    assert ours.special_tokens == tokenizer.special_tokens
    resaved = tmp_path / "resaved"
    ours.save(resaved)
    assert json.loads((resaved / "tokenizer.json").read_text()) == json.loads((tmp_path / "tokenizer.json").read_text())


def test_copies_encode_like_the_original():
    for copied in (copy.deepcopy(BPE), pickle.loads(pickle.dumps(BPE))):
        assert copied.encode("<|endoftext|>") == BPE.encode("<|endoftext|>")


def test_truncation_and_padding_in_a_file_are_ignored(tmp_path):
    BPE.save(tmp_path)
    backend = rust.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert headway.load_tokenizer(tmp_path).encode(TEXTS[0]) == BPE.encode(TEXTS[0])


def test_unk_is_found_without_the_config_file(tmp_path):
    CHAR.save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert headway.load_tokenizer(tmp_path).lost_bytes("be語o") == 3


def test_lost_bytes_refuses_a_tokenizer_that_changes_or_silently_drops_text():
    silent = rust.Tokenizer(rust.models.BPE({"a": 0, "b": 1}, []))  # unknown characters leave no token
    silent.decoder = rust.decoders.Fuse()
    lower = rust.Tokenizer(rust.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    lower.normalizer = rust.normalizers.Lowercase()
    lower.pre_tokenizer = rust.pre_tokenizers.Split(rust.Regex("."), behavior="isolated")
    lower.decoder = rust.decoders.Fuse()
    for backend in (silent, lower):
        assert tokenizers.Tokenizer(backend).lost_bytes("ab") == 0
        with pytest.raises(InputError, match="changes the text it encodes"):
            tokenizers.Tokenizer(backend).lost_bytes("a語B" * 5 + "b")


def test_lost_bytes_refuses_lower_case_words_without_spaces():
    """Whitespace is charged byte by byte, but a capital that became small has no price."""
    tokenizer = tokenizers.train("word", ["to be or not"], pre_tokenizer="whitespace", lowercase=True)
    assert tokenizer.lost_bytes("to  be?") == 5  # two spaces, and <unk> for "be?"
    with pytest.raises(InputError, match="changes the text it encodes"):
        tokenizer.lost_bytes("To be")
    tokenizer.backend.decoder = rust.decoders.Fuse()  # which puts no spaces between words
    with pytest.raises(InputError, match="changes the text it encodes"):
        tokenizer.lost_bytes("to be")


def test_lost_bytes_refuses_a_tokenizer_that_doubles_text():
    """Both tokens of "aa" cover the one "a" of the text: counting it twice would pay for bytes lost elsewhere."""
    backend = rust.Tokenizer(rust.models.WordLevel({"a": 0, "b": 1}, unk_token="b"))
    backend.normalizer = rust.normalizers.Replace(rust.Regex("a+"), "aa")
    backend.pre_tokenizer = rust.pre_tokenizers.Split(rust.Regex("."), behavior="isolated")
    backend.decoder = rust.decoders.Fuse()
    assert tokenizers.Tokenizer(backend).lost_bytes("aabaa") == 0
    with pytest.raises(InputError, match="changes the text it encodes"):
        tokenizers.Tokenizer(backend).lost_bytes("aaba")


def test_lost_bytes_counts_an_unk_that_is_not_marked_special():
    backend = rust.Tokenizer(rust.models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    backend.pre_tokenizer = rust.pre_tokenizers.Split(rust.Regex("."), behavior="isolated")
    backend.decoder = rust.decoders.Fuse()
    assert tokenizers.Tokenizer(backend, unk="?").lost_bytes("a語a") == 3


@pytest.mark.parametrize("value", ["ab\ud800", b"bytes", 5])
def test_values_that_are_not_text_are_refused(value):
    with pytest.raises(InputError, match=r"lone surrogate|expected text"):
        BPE.encode(value)
    with pytest.raises(InputError, match=r"lone surrogate|expected text"):
        tokenizers.train("char", [value])


def test_errors_name_the_value_and_the_rule(tmp_path):
    with pytest.raises(ConfigError, match="vocab_size=100 is below 257"):
        tokenizers.train("bpe", TEXTS, 100)
    with pytest.raises(ConfigError, match="Did you mean 'char'"):
        tokenizers.train("chars", TEXTS)
    with pytest.raises(DataError, match="training split is empty"):
        tokenizers.train("bpe", ["", ""])
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read: Input data was truncated"):
        headway.load_tokenizer(tmp_path)
    with pytest.raises(CheckpointError, match="no tokenizer at"):
        headway.load_tokenizer(tmp_path / "nowhere")


def test_unknown_text_is_what_the_vocabulary_lacks():
    texts = ["to be or not to be"]
    assert headway.tokenizers.train("char", texts).unknown_text("to bee☃, ☃") == ["☃", ",", "☃"]
    assert headway.tokenizers.train("word", texts).unknown_text("to see or be") == ["see"]
    assert headway.tokenizers.train("bpe", texts, 260).unknown_text("☃") == []  # bytes know every character
    no_unk = rust.Tokenizer(rust.models.BPE({"t": 0, "o": 1}, []))
    assert tokenizers.Tokenizer(no_unk).unknown_text("to ☃t") == ["☃"]
