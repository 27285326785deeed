"""The kinds of tokenizer: what each one learns, and what it keeps of a text."""

import random

import pytest
import tokenizers as rust
from hypothesis import given, settings
from hypothesis import strategies as st

from headway import load_tokenizer, tokenizers
from headway.data import load_documents
from headway.errors import ConfigError, DataError, InputError
from headway.tokenizers import KINDS

TEXTS = ["to be or not to be, that is the question:\n", "To be — don't you see? — is to do.\n\n", "naïve 42 😀\n"]


def train(kind, texts, vocab_size, **options):
    return tokenizers.train(kind, texts, None if kind in ("char", "word") else vocab_size, **options)


TRAINED = {kind: train(kind, TEXTS * 3, 300) for kind in KINDS}
LOSSLESS = [kind for kind in KINDS if kind != "wordpiece"]


@pytest.mark.parametrize("kind", LOSSLESS)
def test_lossless_kinds_restore_their_training_text(kind):
    tokenizer = TRAINED[kind]
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.lost_bytes(text) == 0


@pytest.mark.parametrize("kind", KINDS)
@given(st.text(alphabet=sorted(set("".join(TEXTS)))))
@settings(max_examples=100)
def test_offsets_belong_to_the_ids_and_cover_all_but_whitespace(kind, text):
    tokenizer = TRAINED[kind]
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    assert [start for start, _ in offsets] == sorted(start for start, _ in offsets)
    covered = {i for start, end in offsets for i in range(start, end)}
    assert {i for i, c in enumerate(text) if not c.isspace()} <= covered


@pytest.mark.parametrize("kind", KINDS)
@given(st.text(alphabet="<s>/unk[CLS]MASKPADE |endoftx"))
@settings(max_examples=100)
def test_special_tokens_in_a_text_are_ordinary_text(kind, text):
    """Rule 2 of base.py, for every kind: also "<|endoftext|>" and "[MASK]" themselves."""
    tokenizer = TRAINED[kind]
    special = set(tokenizer.special_ids.values()) - {tokenizer.unk_id}
    for spelled in (text, f"a {' '.join(tokenizer.special_ids)} b", *tokenizer.special_ids):
        assert not special & set(tokenizer.encode(spelled))


def test_words_are_counted_and_rare_ones_are_unknown(tmp_path):
    words = tokenizers.train("word", ["a b a c a b\n", "d's x-ray"], min_frequency=2)
    assert words.counts == {" a": 2, " b": 2}
    assert words.vocab_size == 4
    words = tokenizers.train("word", ["the cat the dog the cat"], 5)
    assert list(words.counts.items()) == [(" cat", 2), (" the", 2), (" dog", 1)]
    assert words.encode("the cat") == [words.unk_id, words.token_id(" cat")]
    assert words.lost_bytes("the cat") == 3
    words.save(tmp_path)
    assert load_tokenizer(tmp_path).counts == words.counts


def test_words_are_split_at_punctuation_or_at_spaces_alone():
    text = "don't stop (now) n't <unk>\n"
    trained = {name: tokenizers.train("word", [text], pre_tokenizer=name) for name in ("punctuation", "spaces")}
    words = {name: [tokenizer.token(i) for i in tokenizer.encode(text)] for name, tokenizer in trained.items()}
    assert words["punctuation"] == ["don't", " stop", " (", "now", ")", " n't", " <", "unk", ">", "\n"]
    assert words["spaces"] == ["don't", " stop", " (now)", " n't", " <unk>", "\n"]
    lower = tokenizers.train("word", ["The the"], lowercase=True)
    assert lower.encode(" THE") == lower.encode(" the")


def test_lines_of_tokenized_corpora_have_their_published_token_counts():
    """Penn Treebank and WikiText: one token per word and one per newline; lines start and end with a space."""
    lines = [" no it was n't black monday \n", " but while the <unk> was n't \n"]
    words = tokenizers.train("word", ["".join(lines)], pre_tokenizer="spaces")
    assert len(words.encode("".join(lines))) == sum(len(line.split()) + 1 for line in lines)
    assert words.vocab_size - 2 == len({word for line in lines for word in line.split()}) + 1


def test_a_joint_vocabulary_has_pieces_of_both_languages():
    pairs = [("the house", "das Haus"), ("the cat", "die Katze")] * 5
    joint = tokenizers.train("bpe", [text for pair in pairs for text in pair], 300)
    assert len(joint.encode(" Haus")) < len(" Haus")
    assert len(joint.encode(" house")) < len(" house")


@pytest.mark.parametrize("kind", KINDS)
def test_added_special_tokens_have_their_own_ids(kind, tmp_path):
    tokenizer = train(kind, TEXTS, 300, special_tokens=["<left>", "<right>"])
    assert {"<left>", "<right>"} <= tokenizer.special_ids.keys()
    assert len(set(tokenizer.special_ids.values())) == len(tokenizer.special_ids)
    assert tokenizer.decode([tokenizer.special_ids["<left>"]]) == ""
    assert tokenizer.decode([tokenizer.special_ids["<left>"]], skip_special_tokens=False) == "<left>"
    assert tokenizer.vocab_size <= 300
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path).special_ids == tokenizer.special_ids


@pytest.mark.parametrize(
    ("kind", "options", "error", "message"),
    [
        ("bpe", {"vocab_size": 256}, ConfigError, "vocab_size=256 is below 257: byte-level BPE needs the 256 bytes"),
        (
            "bpe",
            {"vocab_size": 258, "special_tokens": ["<a>", "<b>"]},
            ConfigError,
            "below 259.*and 2 more special tokens",
        ),
        ("bpe", {"special_tokens": ["<a>", "<a>"]}, ConfigError, "special token '<a>' is given twice"),
        ("bpe", {"special_tokens": ["<|endoftext|>"]}, ConfigError, "one that this tokenizer always has"),
        ("wordpiece", {"special_tokens": ["[CLS]"]}, ConfigError, "one that this tokenizer always has"),
        ("unigram", {"special_tokens": [""]}, ConfigError, "special token '' is empty"),
        ("wordpiece", {"vocab_size": 5}, ConfigError, "vocab_size=5 is below 6"),
        ("unigram", {"vocab_size": 4}, ConfigError, "vocab_size=4 is below 5"),
        ("word", {"vocab_size": 2}, ConfigError, "vocab_size=2 leaves no words beside <unk>"),
        ("word", {"pre_tokenizer": "letters"}, ConfigError, "pre_tokenizer='letters' is not one of"),
        ("char", {"min_frequency": 2}, ConfigError, "a char tokenizer has no setting 'min_frequency'"),
        ("words", {}, ConfigError, "Did you mean 'word'"),
        ("bpe", {"min_frequency": -3}, ConfigError, "min_frequency=-3 must be a whole number from 0"),
        ("bpe", {"vocab_size": 10**20}, ConfigError, "vocab_size=1000.* must be a whole number"),
        ("bpe", {"special_tokens": ["a"]}, ConfigError, "special token 'a' is an ordinary token of this text too"),
        ("char", {"special_tokens": ["a"]}, ConfigError, "ordinary token"),
        ("word", {"special_tokens": [" be"]}, ConfigError, "starts or ends with whitespace"),
        ("word", {"special_tokens": ["To"]}, ConfigError, "ordinary token"),
        ("bpe", {"special_tokens": ["a\ud800"]}, InputError, "lone surrogate"),
        ("word", {"min_frequency": 1000}, DataError, "no word occurs min_frequency=1000 times"),
        ("wordpiece", {"vocab_size": 10}, ConfigError, "vocab_size=10 is too small: the characters of this text"),
        ("unigram", {"vocab_size": 10}, ConfigError, "vocab_size=10 is too small: this text has .* characters"),
    ],
)
def test_errors_name_the_setting(kind, options, error, message):
    with pytest.raises(error, match=message):
        tokenizers.train(kind, TEXTS, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_training_without_text_is_an_error(kind):
    with pytest.raises(DataError, match="training split is empty"):
        tokenizers.train(kind, iter(["", ""]))


def test_training_reads_any_iterable_once():
    tokenizer = tokenizers.train("bpe", (text for text in load_documents("pydocs")[:3]), 400)
    assert tokenizer.vocab_size == 400


def test_smaller_units_make_longer_sequences():
    """The trade-off of the lectures: characters make long sequences, words leave unknown ones."""
    documents = load_documents("pydocs")
    training, held_out = documents[:40], "".join(documents[-8:])
    char, word, bpe = (train(kind, training, 1000) for kind in ("char", "word", "bpe"))
    n_chars, n_words, n_pieces = (len(tokenizer.encode(held_out)) for tokenizer in (char, word, bpe))
    assert n_chars > 2 * n_pieces > 2 * n_words
    assert word.vocab_size > bpe.vocab_size > char.vocab_size
    assert word.encode(held_out).count(word.unk_id) > 100
    assert bpe.unk_id is None


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_deterministic(kind):
    """Also for unigram, whose trainer gives rare characters different scores in every run."""
    documents = [*load_documents("pydocs")[:5], "ǅ ∀ ☃ ♞ ⚙ ✂ ❤ ➤ Ω Ж"]
    assert len({train(kind, documents, 500).fingerprint() for _ in range(3)}) == 1


def test_wordpiece_breaks_ties_between_pairs_of_equal_frequency_alike():
    """Random words of eight letters have many such pairs. The trainer alone would give another vocabulary each time."""
    rng = random.Random(0)
    text = " ".join("".join(rng.choices("abcdefgh", k=rng.randint(2, 6))) for _ in range(300))
    vocabularies = [train("wordpiece", [text], 120).backend.get_vocab() for _ in range(4)]
    assert all(vocabulary == vocabularies[0] for vocabulary in vocabularies)
    assert len(vocabularies[0]) == 120


def test_special_tokens_in_the_training_text_are_not_words():
    words = tokenizers.train("word", ["<unk> a <unk>\n<|endoftext|> a"], pre_tokenizer="spaces")
    assert "<unk>" not in words.counts
    assert sorted(words.vocab.values()) == list(range(words.vocab_size))


def test_the_prepended_space_covers_no_character():
    unigram = tokenizers.train("unigram", ["abc cab bca abc abc"] * 20, 14)
    ids, offsets = unigram.encode_with_offsets("zab")
    assert unigram.token(ids[0]) == "▁"
    assert offsets[0] == (0, 0)
    assert unigram.lost_bytes("ab zz") == 2


def test_pieces_that_look_like_byte_fallback_decode_to_themselves():
    unigram = tokenizers.train("unigram", ["q<0x41>w<0x41>e<0x41>r <0x41>t"] * 50, 60)
    assert "<0x41>" in unigram.vocab
    assert unigram.decode(unigram.encode("q<0x41>w")) == "q<0x41>w"


def test_special_tokens_in_the_training_text_are_not_duplicated():
    unigram = tokenizers.train("unigram", ["a<s>b x<s>y <unk> the quick brown fox <s> jumps"] * 20, 60)
    assert [unigram.token(i) for i in range(unigram.vocab_size)].count("<s>") == 1
    assert unigram.bos_id == 1


def test_merges_of_other_programs_that_lead_to_a_special_token_are_ignored():
    backend = rust.Tokenizer(rust.models.BPE(unk_token="<unk>"))
    trainer = rust.trainers.BpeTrainer(vocab_size=60, special_tokens=["<unk>", "<s>"], show_progress=False)
    backend.train_from_iterator(["a <s> b <s>"] * 50, trainer)
    tokenizer = tokenizers.Tokenizer(backend, bos="<s>")
    assert tokenizer.bos_id not in tokenizer.encode("a <s>")


@pytest.mark.parametrize("kind", ["char", "word"])
def test_counts_of_all_line_separators_survive_saving(kind, tmp_path):
    tokenizer = tokenizers.train(kind, ["abc\u2028def\u0085g\x0bh\x0c i\r\nj"])
    tokenizer.save(tmp_path)
    assert load_tokenizer(tmp_path).counts == tokenizer.counts


def test_whitespace_pre_tokenizer_gives_a_word_one_id_everywhere():
    lines = ["to be <unk>  or", "\tnot to\xa0be be </s> "]
    tokenizer = tokenizers.train("word", lines, pre_tokenizer="whitespace")
    special = tokenizer.special_tokens
    # <unk> and </s> are words of the text, so the special tokens have other names
    assert (special["unk"], special["bos"], special["eos"]) == ("<|unk|>", "<s>", "<|/s|>")
    assert tokenizer.decode(tokenizer.encode(lines[0])) == "to be <unk> or"
    ids = tokenizer.encode("be be\tbe")
    assert len(set(ids)) == 1
    assert tokenizer.encode("to\xa0be") != tokenizer.encode("to be")
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    assert tokenizer.encode_stream(["be", ""]) == [bos, ids[0], eos, bos, eos]
    texts = ("to be", " to be", "to\tbe", "to new be", "é to")
    assert [tokenizer.lost_bytes(text) for text in texts] == [0, 1, 1, 3, 2]


def test_whitespace_pre_tokenizer_survives_saving_and_the_fast_encoder(tmp_path):
    tokenizer = tokenizers.train("word", ["a b c <unk>", "b c"], pre_tokenizer="whitespace")
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    texts = ["a  b <unk> x", "", "c\r", "\x0b a"] * 5000
    assert [ids.tolist() for ids in loaded.encode_arrays(texts)[:4]] == [tokenizer.encode(text) for text in texts[:4]]
    assert loaded.drops_whitespace
