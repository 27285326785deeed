"""Text in, the same text out; and files that transformers opens."""

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
from headway.tokenizers import TextStream

TEXT = [
    "To be, or not to be, that is the question:\n\tWhether 'tis nobler…",
    "naïve café 42 — ünïcödé",
    "x = [1, 2]\r\n",
] * 3
BPE = tokenizers.train("bpe", TEXT, 300)
CHAR = tokenizers.train("char", TEXT)
ANY_TEXT = (
    st.text() | st.text(alphabet="<|endoftx>unk \n") | st.sampled_from(["<|endoftext|>", "<unk>", "a<|endoftext|>b"])
)


@given(ANY_TEXT)
@settings(max_examples=1000)
def test_bpe_gives_any_text_back(text):
    assert BPE.decode(BPE.encode(text)) == text


@given(st.text(alphabet=sorted(set("".join(TEXT)))))
@settings(max_examples=500)
def test_characters_give_their_own_alphabet_back(text):
    assert CHAR.decode(CHAR.encode(text)) == text
    assert len(CHAR.encode(text)) == len(text)
    assert CHAR.lost_bytes(text) == 0


@given(ANY_TEXT)
@settings(max_examples=300)
def test_text_comes_out_of_a_stream_whole(text):
    """Pieces join to the text, and no piece holds half a character."""
    stream = TextStream(BPE)
    pieces = [stream.push(id) for id in BPE.encode(text)] + [stream.flush()]
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_a_text_that_spells_a_special_token_is_text():
    for tokenizer in (BPE, CHAR):
        assert tokenizer.eos_id not in tokenizer.encode("<|endoftext|>")


def test_unknown_characters_are_counted_in_bytes():
    assert CHAR.encode("語") == [CHAR.unk_id]
    assert CHAR.lost_bytes("be語o語Ж") == 3 + 3 + 2
    assert BPE.lost_bytes("be語o語Ж") == 0


def test_sizes():
    assert BPE.vocab_size == 300
    assert BPE.bos_id == BPE.eos_id == 299  # last, as in GPT-2
    assert CHAR.vocab_size == len(set("".join(TEXT))) + 2
    assert [CHAR.decode([i]) for i in range(3)] == sorted(set("".join(TEXT)))[:3]


def test_documents_share_the_token_between_them():
    end = BPE.eos_id
    assert BPE.stream(["a", "b"]) == [end, *BPE.encode("a"), end, *BPE.encode("b"), end]


def test_an_empty_prompt_is_the_begin_token_or_an_error():
    assert BPE.prompt("") == [BPE.bos_id]
    assert BPE.prompt("to") == BPE.encode("to")
    bare = tokenizers.Tokenizer(BPE.backend)
    with pytest.raises(InputError, match="begin token"):
        bare.prompt("")


@pytest.mark.parametrize("tokenizer", [BPE, CHAR], ids=["bpe", "char"])
def test_transformers_opens_what_is_saved_and_gives_the_same_ids(tokenizer, tmp_path):
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = headway.load_tokenizer(tmp_path)
    for text in [*TEXT, "to be\n\n  be ", ""]:
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode(text) == tokenizer.encode(text)
        assert theirs.decode(ours.encode(text)) == ours.decode(ours.encode(text))
    assert theirs.eos_token_id == ours.eos_id == tokenizer.eos_id
    assert ours.special_tokens == tokenizer.special_tokens
    again = tmp_path / "again"
    again.mkdir()
    ours.save(again)
    assert json.loads((again / "tokenizer.json").read_text()) == json.loads((tmp_path / "tokenizer.json").read_text())


def test_a_copy_reads_text_as_its_original_does():
    for again in (copy.deepcopy(BPE), pickle.loads(pickle.dumps(BPE))):
        assert again.encode("<|endoftext|>") == BPE.encode("<|endoftext|>")


def test_a_file_that_asks_for_truncation_and_padding_is_not_obeyed(tmp_path):
    BPE.save(tmp_path)
    backend = rust.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert headway.load_tokenizer(tmp_path).encode(TEXT[0]) == BPE.encode(TEXT[0])


def test_unknown_characters_are_found_without_the_config_file(tmp_path):
    CHAR.save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert headway.load_tokenizer(tmp_path).lost_bytes("be語o") == 3


def test_a_tokenizer_that_changes_or_silently_drops_text_is_refused_a_number():
    silent = rust.Tokenizer(rust.models.BPE({"a": 0, "b": 1}, []))  # what it does not know leaves no trace
    silent.decoder = rust.decoders.Fuse()
    lower = rust.Tokenizer(rust.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    lower.normalizer = rust.normalizers.Lowercase()
    lower.pre_tokenizer = rust.pre_tokenizers.Split(rust.Regex("."), behavior="isolated")
    lower.decoder = rust.decoders.Fuse()
    for backend in (silent, lower):
        assert tokenizers.Tokenizer(backend).lost_bytes("ab") == 0
        with pytest.raises(InputError, match="changes the text it encodes"):
            tokenizers.Tokenizer(backend).lost_bytes("a語B" * 5 + "b")


@pytest.mark.parametrize("bad", ["ab\ud800", b"bytes", 5])
def test_what_is_no_text_is_named(bad):
    with pytest.raises(InputError, match=r"no Unicode character|not text"):
        BPE.encode(bad)
    with pytest.raises(InputError, match=r"no Unicode character|not text"):
        tokenizers.train("char", [bad])


def test_errors_say_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="vocab_size=100 is below 257"):
        tokenizers.train("bpe", TEXT, 100)
    with pytest.raises(ConfigError, match="Did you mean 'char'"):
        tokenizers.train("chars", TEXT)
    with pytest.raises(DataError, match="there is none"):
        tokenizers.train("bpe", ["", ""])
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is damaged"):
        headway.load_tokenizer(tmp_path)
    with pytest.raises(CheckpointError, match="no tokenizer at"):
        headway.load_tokenizer(tmp_path / "nowhere")
