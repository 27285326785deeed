"""ARPA and count files: round trips here, and the same scores in KenLM."""

import math
import random

import numpy as np
import pytest
import torch

import headway
from headway.errors import DataError, InputError
from headway.models.ngram import read_arpa, read_counts, write_arpa, write_counts
from tests.reference import ngram as reference

WORDS = [f"w{i}" for i in range(15)]


def random_texts(seed: int, n: int = 120) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(WORDS[min(int(rng.expovariate(0.35)), 14)] for _ in range(rng.randint(0, 8))) for _ in range(n)]


def fit_ngram(texts: list[str], order: int = 3, **settings):
    tokenizer = headway.tokenizers.train("word", texts, pre_tokenizer="whitespace")
    model = headway.create(
        "ngram",
        vocab_size=tokenizer.vocab_size,
        order=order,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        **settings,
    )
    model.tokenizer = tokenizer
    return model.fit(torch.tensor(tokenizer.encode_stream(texts)))


def log10_scores(model, text: str) -> list[float]:
    """log10 p of each word and the EOS."""
    ids = torch.tensor(model.tokenizer.encode_stream([text]))
    return (model.log_probability(ids)[1:] / math.log(10)).tolist()


def arpa_entries(file) -> dict[str, list[float]]:
    rows = (line.split("\t") for line in file.read_text().split("\n") if "\t" in line)
    return {gram: [float(p), *map(float, backoff)] for p, gram, *backoff in rows}


# ── ARPA ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("order", [1, 2, 4])
def test_every_arpa_entry_matches_the_definition(order, tmp_path):
    texts = random_texts(0)
    model = fit_ngram(texts, order)
    write_arpa(model, tmp_path / "m.arpa")
    sentences = [["<s>", *text.split(), "</s>"] for text in texts]
    table = reference.kneser_ney(sentences, order, ["<unk>", "<s>", "</s>", *{w for s in sentences for w in s[1:-1]}])
    entries = arpa_entries(tmp_path / "m.arpa")
    assert set(entries) == {" ".join(gram) for gram in table}
    for gram, (p, backoff) in table.items():
        expected = [
            0.0 if gram == ("<s>",) else reference.log10(p),
            *([reference.log10(backoff)] if len(gram) < order else []),
        ]
        assert entries[" ".join(gram)] == pytest.approx(expected, abs=1e-6), gram


@pytest.mark.parametrize("smoothing", ["kneser-ney", "witten-bell", "none"])
@pytest.mark.parametrize("name", ["m.arpa", "m.arpa.gz"])
def test_arpa_round_trip(smoothing, name, tmp_path):
    model = fit_ngram(random_texts(1), 4, smoothing=smoothing)
    write_arpa(model, tmp_path / name)
    loaded = read_arpa(tmp_path / name)
    for text in [*random_texts(2, 20), "w0 new w1", ""]:
        assert log10_scores(loaded, text) == pytest.approx(log10_scores(model, text), abs=1e-5)
    assert loaded.n_params == model.n_params


def test_kenlm_reads_our_files_with_equal_scores(tmp_path):
    kenlm = pytest.importorskip("kenlm")
    model = fit_ngram(random_texts(3, 400), 5)
    write_arpa(model, tmp_path / "m.arpa")
    kenlm_model = kenlm.Model(str(tmp_path / "m.arpa"))
    for text in [*random_texts(4, 60), "w0 new w1"]:
        kenlm_scores = [score for score, _, _ in kenlm_model.full_scores(text)]
        assert log10_scores(model, text) == pytest.approx(kenlm_scores, abs=1e-4)


def test_a_word_spelled_like_a_special_token_is_renamed(tmp_path):
    model = fit_ngram(["a <unk> b", "<unk> a UNK"], 2)
    assert write_arpa(model, tmp_path / "m.arpa") == {"<unk>": "UNK_"}
    entries = arpa_entries(tmp_path / "m.arpa")
    assert {"<unk>", "UNK", "UNK_", "a UNK_"} <= set(entries)


def test_files_of_other_programs_can_be_read(tmp_path):
    """With a comment, spaces in place of tabs, missing backoff weights and no <unk>."""
    (tmp_path / "m.arpa").write_text(
        "made by hand\n\n\\data\\\nngram 1 = 4\nngram 2=2\n\n\\1-grams:\n"
        "-99 <s> -0.5\n-0.5 </s>\n-0.4 a -0.2\n-0.7 b\n\n"
        "\\2-grams:\n-0.1 <s> a\n-0.3 a b\n\n\\end\\\n"
    )
    model = read_arpa(tmp_path / "m.arpa")
    assert log10_scores(model, "a b") == pytest.approx([-0.1, -0.3, -0.5], abs=1e-6)
    assert log10_scores(model, "b a") == pytest.approx([-0.5 - 0.7, -0.4, -0.2 - 0.5], abs=1e-6)
    assert log10_scores(model, "c")[0] == pytest.approx(-100.5, abs=1e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", r"the file ends before \\end"),
        ("\\data\\\nngram 2=1\n", "expected 'ngram 1=COUNT', got 'ngram 2=1'"),
        ("\\data\\\nngram 1=1\n\n\\2-grams:\n", r"expected \\1-grams:, got"),
        ("\\data\\\nngram 1=2\n\n\\1-grams:\n-1\ta\n", r"the file ends before \\end"),
        ("\\data\\\nngram 1=1\n\n\\1-grams:\nx\ta\n\n\\end\\\n", "a 1-gram has an invalid number"),
        ("\\data\\\nngram 1=1\n\n\\1-grams:\nnan\ta\n\n\\end\\\n", "not an n-gram with the log10"),
        ("\\data\\\nngram 1=1\n\n\\1-grams:\n-1\ta\tinf\n\n\\end\\\n", "not an n-gram with the log10"),
        (
            "\\data\\\nngram 1=1\n\n\\1-grams:\n1.5\ta\n\n\\end\\\n",
            "not an n-gram with the log10 of a probability",
        ),
        ("\\data\\\nngram 1=2\n\n\\1-grams:\n-1\ta\n-1\ta\n\n\\end\\\n", "a 1-gram is listed twice"),
        (
            "\\data\\\nngram 1=1\nngram 2=1\n\n\\1-grams:\n-1\ta\n\n\\2-grams:\n-1\ta b\n\n\\end\\\n",
            "'b' occurs in a 2-gram but is not among the 1-grams",
        ),
        (
            "\\data\\\nngram 1=1\nngram 2=0\nngram 3=1\n\n\\1-grams:\n-1\ta\n\n\\2-grams:\n\n"
            "\\3-grams:\n-1\ta a a\n\n\\end\\\n",
            "'a a a' is listed, but not its prefix 'a a'",
        ),
        ("\\data\\\nngram 1=1\n\n\\1-grams:\n-1\ta\n-2\tb\n\n\\end\\\n", "more n-grams than the header says"),
    ],
)
def test_malformed_arpa_files_are_refused_with_a_reason(text, message, tmp_path):
    (tmp_path / "m.arpa").write_text(text)
    with pytest.raises(DataError, match=message):
        read_arpa(tmp_path / "m.arpa")


def test_keys_above_32_bits_round_trip(tmp_path):
    words = [f"w{i}" for i in range(70_000)]  # 70,000 contexts of 70,000 words: 5e9 is above 2^31
    model = fit_ngram([" ".join(words)], 3)
    write_arpa(model, tmp_path / "m.arpa")
    loaded = read_arpa(tmp_path / "m.arpa")
    text = " ".join(words[69_000:])
    assert log10_scores(loaded, text) == pytest.approx(log10_scores(model, text), abs=1e-6)


def test_unicode_spaces_stay_inside_words(tmp_path):
    model = fit_ngram(
        ["it is 10\N{NO-BREAK SPACE}km away", "walk 5\N{NO-BREAK SPACE}km", "a\N{IDEOGRAPHIC SPACE}b c"], 2
    )
    write_arpa(model, tmp_path / "m.arpa")
    write_counts(model, tmp_path / "m.counts")
    for loaded in (read_arpa(tmp_path / "m.arpa"), read_counts(tmp_path / "m.counts")):
        assert loaded.tokenizer.vocab_size == model.tokenizer.vocab_size
        text = "it is 5\N{NO-BREAK SPACE}km away"
        assert log10_scores(loaded, text) == pytest.approx(log10_scores(model, text), abs=1e-6)


def test_the_unknown_word_may_be_uppercase(tmp_path):
    write_arpa(fit_ngram(["a <x> b", "a b"], 2), tmp_path / "m.arpa")
    text = (tmp_path / "m.arpa").read_text()
    (tmp_path / "upper.arpa").write_text(text.replace("<unk>", "<UNK>"))
    lower, upper = read_arpa(tmp_path / "m.arpa"), read_arpa(tmp_path / "upper.arpa")
    assert log10_scores(upper, "a never b") == log10_scores(lower, "a never b")


def test_a_damaged_gzip_file_is_refused(tmp_path):
    (tmp_path / "m.arpa.gz").write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xff\xff\xff\xff")
    with pytest.raises(DataError, match="cannot be read"):
        read_arpa(tmp_path / "m.arpa.gz")


# ── count files ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_counts_round_trip_to_the_same_model(tmp_path):
    model = fit_ngram(random_texts(5), 3)
    write_counts(model, tmp_path / "m.counts")
    lines = (tmp_path / "m.counts").read_text().splitlines()
    assert any(line.startswith("<s> w0 ") and line.split()[-1].isdecimal() for line in lines)
    loaded = read_counts(tmp_path / "m.counts")
    for text in random_texts(6, 20):  # nearly equal: the file does not say which n-gram lmplz visits last
        assert log10_scores(loaded, text) == pytest.approx(log10_scores(model, text), abs=2e-3)
    assert np.array_equal(np.sort(loaded.column("count", 3)), np.sort(model.column("count", 3)))


def test_shorter_ngrams_are_derived_from_the_longest(tmp_path):
    (tmp_path / "web.counts").write_text(
        "serve as the index 223\nserve as the indication 72\nserve as the inspector 66\n"
    )
    model = read_counts(tmp_path / "web.counts", smoothing="none")
    ids = model.tokenizer.encode("serve as the")
    p = model(torch.tensor([ids]))[0, -1].exp()
    assert p[model.tokenizer.token_id("index")] == pytest.approx(223 / 361)
    (tmp_path / "bad.counts").write_text("serve as the index\n")
    with pytest.raises(DataError, match="line 1"):
        read_counts(tmp_path / "bad.counts")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a 99999999999999999999999\n", "is not an n-gram followed by its count"),
        (b"a\xff 3\n", "is not UTF-8"),
        (b"</s> <s> 3\n", "<s> may only start an n-gram"),
        (b"</s> a 3\n", "</s> may only end one"),
    ],
)
def test_malformed_count_files_are_refused_with_a_reason(content, message, tmp_path):
    (tmp_path / "m.counts").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_counts(tmp_path / "m.counts")


def test_models_a_file_format_cannot_express_are_refused(tmp_path):
    for smoothing in ("add-k", "stupid-backoff"):
        with pytest.raises(InputError, match=f"and {smoothing} has none"):
            write_arpa(fit_ngram(random_texts(0), smoothing=smoothing), tmp_path / "m.arpa")
    tokenizer = headway.tokenizers.train("char", ["a b"])
    model = headway.create("ngram", vocab_size=tokenizer.vocab_size)
    model.tokenizer = tokenizer
    with pytest.raises(InputError, match="contains a blank"):
        write_arpa(model, tmp_path / "m.arpa")
    assert not (tmp_path / "m.arpa").exists()
    write_arpa(fit_ngram(random_texts(0)), tmp_path / "m.arpa")
    with pytest.raises(InputError, match="probabilities but no counts"):
        write_counts(read_arpa(tmp_path / "m.arpa"), tmp_path / "m.counts")
