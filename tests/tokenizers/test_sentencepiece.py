"""SentencePiece models behind the `Tokenizer` interface: ids, offsets and decoding are the library's own."""

import copy
import pickle
import sys

import pytest
import sentencepiece
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import headway
from headway.data import load_documents
from headway.errors import CheckpointError, ConfigError, InputError
from headway.generation.text_stream import TextStream
from headway.tokenizers import load_tokenizer
from headway.tokenizers.bpe_dropout import BPEDropout

DOCUMENTS = load_documents("pydocs")
OPTIONS = {
    "unigram": {"model_type": "unigram", "vocab_size": 300},  # NFKC, dummy prefix, extra spaces removed
    "unigram-suffix": {"model_type": "unigram", "vocab_size": 300, "treat_whitespace_as_suffix": True},
    "bpe": {"model_type": "bpe", "vocab_size": 500, "user_defined_symbols": ["\n"], "pad_id": 3},
    "bpe-control": {"model_type": "bpe", "vocab_size": 500, "control_symbols": ["@", "<sep>"]},
    "bpe-like-llama": {
        "model_type": "bpe",
        "vocab_size": 600,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
        "split_digits": True,
        "user_defined_symbols": ["<sep>", "  "],
    },
    "char": {"model_type": "char", "vocab_size": 60},
    "word": {"model_type": "word", "vocab_size": 200},
}
TEXTS = ["The value of x", " two  spaces ", "line\nend", "naïve Ａé ====", "a<sep>b <s>語</s>", "", DOCUMENTS[20]]
ANY_TEXT = (
    st.text()
    | st.text(alphabet=" =-*.a▁\n\t", max_size=80)
    | st.text(alphabet="ＡａéÉﬁⅧ①がか\u3099\u0301\u0302\u200d　x <s>/un k", max_size=30)
)


def train_model(folder, **options):
    """Train a small model; return our tokenizer, the library's processor and the file."""
    (folder / "text.txt").write_text("\n".join(DOCUMENTS[:6]), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"), model_prefix=str(folder / "m"), minloglevel=2, num_threads=1, **options
    )
    file = folder / "m.model"
    return load_tokenizer(file), sentencepiece.SentencePieceProcessor(model_file=str(file)), file


@pytest.fixture(scope="module", params=OPTIONS)
def model(request, tmp_path_factory):
    return train_model(tmp_path_factory.mktemp("spm"), **OPTIONS[request.param])


def test_ids_and_text_are_those_of_the_library(model):
    ours, theirs, _ = model
    assert ours.encode_batch(TEXTS) == [theirs.encode(text) for text in TEXTS]
    for text in TEXTS:
        ids = [i for i in theirs.encode(text) if i != theirs.unk_id()]
        assert ours.decode(ids) == theirs.decode(ids)
    assert [ours.token(i) for i in range(ours.vocab_size)] == [theirs.id_to_piece(i) for i in range(len(theirs))]
    assert all(ours.token_id(token) == id for token, id in ours.vocab.items())
    assert ours.token_id("no such piece") is None


def test_special_tokens_are_unknown_and_control_symbols(model):
    ours, theirs, _ = model
    assert (ours.unk_id, ours.bos_id, ours.eos_id) == (theirs.unk_id(), theirs.bos_id(), theirs.eos_id())
    assert ours.special_tokens["pad"] == ("<pad>" if theirs.pad_id() >= 0 else None)
    special = [i for i in range(len(theirs)) if theirs.is_control(i) or theirs.is_unknown(i)]
    assert list(ours.special_ids.values()) == special
    assert ours.encode_stream(["x"]) == [theirs.bos_id(), *theirs.encode("x"), theirs.eos_id()]


@given(text=ANY_TEXT)
@settings(max_examples=60)
def test_offsets_belong_to_the_ids_and_are_ordered(model, text):
    ours, theirs, _ = model
    if theirs.is_control(theirs.piece_to_id("@")):
        text = text.replace("@", "")
    ids, offsets = ours.encode_with_offsets(text)
    assert ids == theirs.encode(text)
    assert all(0 <= start <= end <= len(text) for start, end in offsets)
    assert [start for start, _ in offsets] == sorted(start for start, _ in offsets)


def test_offsets_are_in_characters(model):
    text = "The naïve 語 value"
    offsets = model[0].encode_with_offsets(text).offsets
    assert "".join(text[start:end] for start, end in offsets).replace(" ", "") == text.replace(" ", "")


def test_unknown_characters_at_the_start_are_counted_as_lost(tmp_path):
    ours, _, _ = train_model(tmp_path, **OPTIONS["bpe"])
    assert ours.decode(ours.encode("語 value")) == " value"
    assert ours.lost_bytes("語 value") == 3


def test_decoding_drops_special_tokens_or_spells_them_out(model):
    ours, _, _ = model
    ids = [ours.bos_id, *ours.encode("The value"), ours.unk_id, ours.eos_id]
    end = " " if ours.decode(ours.encode("The value")).endswith(" ") else ""  # spaces are suffixes of words
    assert ours.decode(ids) == f"The value{end}"
    assert ours.decode(ids, skip_special_tokens=False) == f"<s>The value{end}<unk></s>"
    with pytest.raises(InputError, match=f"is not in this vocabulary of 0 to {ours.vocab_size - 1}"):
        ours.decode([ours.vocab_size])
    with pytest.raises(InputError, match=f"no token has id {ours.vocab_size}"):
        ours.token(ours.vocab_size)


def test_a_saved_tokenizer_loads_here_and_in_transformers_with_the_same_ids(model, tmp_path):
    ours, theirs, file = model
    ours.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"tokenizer.model", "tokenizer_config.json"}
    assert (tmp_path / "tokenizer.model").read_bytes() == file.read_bytes()
    loaded = load_tokenizer(tmp_path)
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("The value of the statement is an object", "x ====  1 2é", DOCUMENTS[30]):
        assert loaded.encode(text) == theirs.encode(text)
        assert opened(text, add_special_tokens=False)["input_ids"] == theirs.encode(text)
    assert loaded.special_tokens == ours.special_tokens
    assert loaded.fingerprint() == ours.fingerprint()
    for name, token in ours.special_tokens.items():
        assert getattr(opened, f"{name}_token") == token


def test_copies_encode_like_the_original(model):
    ours, _, _ = model
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert copied.encode("The value ==== é") == ours.encode("The value ==== é")
        assert copied.fingerprint() == ours.fingerprint()


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return train_model(tmp_path_factory.mktemp("llama"), **OPTIONS["bpe-like-llama"])


@given(text=st.text(max_size=40))
@settings(max_examples=60)
def test_byte_fallback_loses_nothing_and_streams_whole_characters(llama, text):
    ours, _, _ = llama
    text = text.replace("▁", " ")  # which decodes to a space
    ids = ours.encode(text)
    assert ours.decode(ids) == text
    assert ours.lost_bytes(text) == 0
    stream = TextStream(ours)
    assert "".join([*(stream.push(id) for id in ids), stream.flush()]) == text


def test_a_model_directory_keeps_the_tokenizer(llama, tmp_path):
    ours, theirs, _ = llama
    model = headway.create("gpt", vocab_size=ours.vocab_size, n_layers=1, n_heads=1, d_model=8, context=16)
    model.tokenizer = ours
    model.save(tmp_path / "model")
    assert headway.load(tmp_path / "model").tokenizer.encode("The  value é") == theirs.encode("The  value é")


def test_directories_with_an_approximate_tokenizer_json_read_the_model_file(llama, tmp_path):
    ours, theirs, _ = llama
    ours.save(tmp_path)
    headway.tokenizers.train("char", ["abc"]).save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"headway_reads": "tokenizer.model"}')
    assert load_tokenizer(tmp_path).encode("The value") == theirs.encode("The value")


def test_offsets_of_a_one_character_control_symbol_are_refused(tmp_path):
    ours, theirs, _ = train_model(tmp_path, **OPTIONS["bpe-control"])
    assert ours.encode("a@b") == theirs.encode("a@b")
    with pytest.raises(InputError, match="no offsets for this text: the text contains the control symbol '@'"):
        ours.encode_with_offsets("a@b")


def test_bpe_dropout_refuses_sentencepiece(llama):
    with pytest.raises(ConfigError, match="needs a byte-level BPE tokenizer, and this one is SentencePiece"):
        BPEDropout(llama[0], 0.1)


def test_damaged_models_are_named(llama, tmp_path):
    data = llama[2].read_bytes()
    for content in (data[: len(data) // 2], b"", b"\xff\xfe"):
        (tmp_path / "cut.model").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"cut\.model is damaged or not a SentencePiece model"):
            load_tokenizer(tmp_path / "cut.model")


def test_without_the_library_the_error_names_the_extra(llama, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(CheckpointError, match=r"m\.model: .* pip install .*\[sentencepiece\]'"):
        load_tokenizer(llama[2])
