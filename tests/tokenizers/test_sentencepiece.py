"""SentencePiece models give the ids of the `sentencepiece` library, with and without it."""

import copy
import pickle
import sys
from functools import cache

import pytest
import sentencepiece
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.data import load_documents
from headway.errors import CheckpointError
from headway.tokenizers import load_tokenizer

SETTINGS = {
    "unigram": {"model_type": "unigram"},  # NFKC, a space put before the text, spaces tidied
    "unigram-bytes": {
        "model_type": "unigram",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "add_dummy_prefix": False,
    },
    "unigram-folded": {"model_type": "unigram", "normalization_rule_name": "nfkc_cf"},
    "unigram-across-spaces": {"model_type": "unigram", "split_by_whitespace": False},
    "bpe": {"model_type": "bpe"},
    "bpe-control": {"model_type": "bpe", "control_symbols": ["@"], "remove_extra_whitespaces": False},
    "bpe-spaces": {"model_type": "bpe", "user_defined_symbols": ["  "], "remove_extra_whitespaces": False},
    "bpe-like-llama": {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
        "split_digits": True,
        "user_defined_symbols": ["<sep>"],
    },
}
ANY = (
    st.text()
    | st.text(alphabet=" =-*.a▁\n\t", max_size=80)
    | st.text(alphabet="ＡａéÉﬁⅧ①がか\u3099\u0301\u0302\u200d　x <s>/un k", max_size=30)
)


@pytest.fixture(scope="module", params=SETTINGS)
def both(request, tmp_path_factory):
    """A model as we read it, without the library's help, and the library."""
    folder = tmp_path_factory.mktemp("spm")
    (folder / "text.txt").write_text("\n".join(load_documents("pydocs")[:30]), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"),
        model_prefix=str(folder / "m"),
        vocab_size=900,
        minloglevel=2,
        num_threads=1,
        **SETTINGS[request.param],
    )
    ours = load_tokenizer(folder / "m.model")
    assert ours.reader.library is not None
    ours.reader.library = None
    return ours, sentencepiece.SentencePieceProcessor(model_file=str(folder / "m.model")), folder


@cache
def load_once(folder):
    return load_tokenizer(folder / "m.model")


@given(text=ANY)
@settings(max_examples=400)
def test_ids_are_those_of_the_library(both, text):
    ours, theirs, _ = both
    if "<sep>" in text:
        return
    assert ours.encode(text) == theirs.encode(text)


def test_ids_are_those_of_the_library_for_whole_documents(both):
    """Long texts add up many scores, whose rounding decides between equals."""
    ours, theirs, _ = both
    for text in load_documents("pydocs")[20:60]:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(theirs.encode(text), special=True).count("⁇") == 0


@given(text=ANY)
@settings(max_examples=150)
def test_offsets_belong_to_the_ids_and_lie_in_order(both, text):
    """With the library and without it."""
    ours, theirs, folder = both
    encoded = ours.encode_with_offsets(text)
    assert encoded.ids == ours.encode(text)
    assert load_once(folder).encode_with_offsets(text).ids == theirs.encode(text)
    assert all(0 <= start <= end <= len(text) for start, end in encoded.offsets)
    assert [start for start, _ in encoded.offsets] == sorted(start for start, _ in encoded.offsets)


def test_offsets_point_at_the_words(both):
    ours, _, _ = both
    text = "The value of the statement"
    encoded = ours.encode_with_offsets(text)
    assert "".join(text[a:b] for a, b in encoded.offsets).replace(" ", "") == text.replace(" ", "")


def test_decoding_is_that_of_the_library(both):
    ours, theirs, _ = both
    for text in ("The value of x", " two  spaces ", "line\nend", "naïve"):
        ids = theirs.encode(text)
        if theirs.unk_id() not in ids:
            assert ours.decode(ids) == theirs.decode(ids)


def test_a_saved_model_is_read_the_same_and_opens_in_transformers(both, tmp_path):
    ours, theirs, _ = both
    ours.save(tmp_path)
    again = load_tokenizer(tmp_path)
    text = "x ==== " + load_documents("pydocs")[3]
    assert again.encode(text) == theirs.encode(text)
    assert again.special_tokens == ours.special_tokens
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path)
    plain = "The value of the statement is an object"
    assert opened(plain, add_special_tokens=False)["input_ids"] == theirs.encode(plain)


def test_a_copy_reads_as_its_original_does(both):
    ours, _, _ = both
    for again in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert again.encode("The value ==== é") == ours.encode("The value ==== é")


def test_what_only_the_library_cuts_is_left_to_it_or_refused(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("\n".join(load_documents("pydocs")[:10]), encoding="utf-8")
    for name, options in (
        ("suffix", {"treat_whitespace_as_suffix": True}),
        ("lines", {"user_defined_symbols": ["\n"]}),
    ):
        sentencepiece.SentencePieceTrainer.train(
            input=str(tmp_path / "text.txt"),
            model_prefix=str(tmp_path / name),
            vocab_size=400,
            minloglevel=2,
            **options,
        )
        file = tmp_path / f"{name}.model"
        theirs = sentencepiece.SentencePieceProcessor(model_file=str(file))
        text = "The value\nof a statement"
        assert load_tokenizer(file).encode(text) == theirs.encode(text)
        assert load_tokenizer(file).encode_with_offsets(text).ids == theirs.encode(text)
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "sentencepiece", None)
            with pytest.raises(CheckpointError, match=r"pip install 'headway\[sentencepiece\]'"):
                load_tokenizer(file)


def test_user_defined_pieces_are_kept_whole(both):
    ours, theirs, _ = both
    text = "a<sep>b <sep>"
    assert ours.encode(text) == theirs.encode(text)


def test_a_damaged_model_is_named(both, tmp_path):
    _, _, folder = both
    data = (folder / "m.model").read_bytes()
    (tmp_path / "cut.model").write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match=r"cut\.model is damaged or no SentencePiece model"):
        load_tokenizer(tmp_path / "cut.model")


@given(text=ANY)
@settings(max_examples=200)
def test_normalisation_is_that_of_the_library(both, text):
    ours, _, folder = both
    charsmap = ours.reader.charsmap
    if charsmap is None:
        return
    rules = {"add_dummy_prefix": False, "remove_extra_whitespaces": False, "escape_whitespaces": False}
    theirs = sentencepiece.SentencePieceNormalizer(model_file=str(folder / "m.model"), **rules)
    assert charsmap(text) == theirs.normalize(text)
    changed, origins = charsmap.with_origins(text)
    assert changed == charsmap(text)
    assert len(origins) == len(changed)


def test_accents_after_a_rewritten_character_are_kept(both):
    """What the `tokenizers` library loses, and why its table is read here."""
    charsmap = both[0].reader.charsmap
    if charsmap is not None:
        assert charsmap("\uff3f\u0611") == "_\u0611"
