"""ARPA and count files: what is written is read again, here and by KenLM."""

import math
import random

import numpy as np
import pytest
import torch

import headway
from headway.errors import DataError, InputError
from headway.models.ngram.arpa import read_arpa, write_arpa
from headway.models.ngram.count_files import read_counts, write_counts
from tests.reference import ngram as reference

WORDS = [f"w{i}" for i in range(15)]


def texts(seed: int, n: int = 120) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(WORDS[min(int(rng.expovariate(0.35)), 14)] for _ in range(rng.randint(0, 8))) for _ in range(n)]


def counted(lines: list[str], order: int = 3, **settings):
    tokenizer = headway.tokenizers.train("word", lines, pre_tokenizer="whitespace")
    model = headway.create(
        "ngram",
        vocab_size=tokenizer.vocab_size,
        order=order,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        **settings,
    )
    model.tokenizer = tokenizer
    return model.fit(torch.tensor(tokenizer.stream(lines)))


def log10s(model, text: str) -> list[float]:
    ids = torch.tensor(model.tokenizer.stream([text]))
    return (model.log_probability(ids)[1:] / math.log(10)).tolist()


def entries(file) -> dict[str, list[float]]:
    rows = (line.split("\t") for line in file.read_text().split("\n") if "\t" in line)
    return {gram: [float(p), *map(float, backoff)] for p, gram, *backoff in rows}


@pytest.mark.parametrize("order", [1, 2, 4])
def test_every_entry_is_that_of_the_definition(order, tmp_path):
    lines = texts(0)
    model = counted(lines, order)
    write_arpa(model, tmp_path / "m.arpa")
    sentences = [["<s>", *line.split(), "</s>"] for line in lines]
    table = reference.kneser_ney(sentences, order, ["<unk>", "<s>", "</s>", *{w for s in sentences for w in s[1:-1]}])
    found = entries(tmp_path / "m.arpa")
    assert set(found) == {" ".join(gram) for gram in table}
    for gram, (p, backoff) in table.items():
        expected = [
            0.0 if gram == ("<s>",) else reference.log10(p),
            *([reference.log10(backoff)] if len(gram) < order else []),
        ]
        assert found[" ".join(gram)] == pytest.approx(expected, abs=1e-6), gram


@pytest.mark.parametrize("smoothing", ["kneser-ney", "witten-bell", "none"])
@pytest.mark.parametrize("name", ["m.arpa", "m.arpa.gz"])
def test_comes_back(smoothing, name, tmp_path):
    model = counted(texts(1), 4, smoothing=smoothing)
    write_arpa(model, tmp_path / name)
    again = read_arpa(tmp_path / name)
    for text in [*texts(2, 20), "w0 new w1", ""]:
        assert log10s(again, text) == pytest.approx(log10s(model, text), abs=1e-5)
    assert again.n_params == model.n_params


def test_kenlm_says_the_same(tmp_path):
    kenlm = pytest.importorskip("kenlm")
    model = counted(texts(3, 400), 5)
    write_arpa(model, tmp_path / "m.arpa")
    theirs = kenlm.Model(str(tmp_path / "m.arpa"))
    for text in [*texts(4, 60), "w0 new w1"]:
        scores = [score for score, _, _ in theirs.full_scores(text)]
        assert log10s(model, text) == pytest.approx(scores, abs=1e-4)


def test_a_word_spelled_like_a_special_token_is_named_otherwise(tmp_path):
    model = counted(["a <unk> b", "<unk> a UNK"], 2)
    assert write_arpa(model, tmp_path / "m.arpa") == {"<unk>": "UNK_"}
    found = entries(tmp_path / "m.arpa")
    assert {"<unk>", "UNK", "UNK_", "a UNK_"} <= set(found)


def test_files_of_other_programs_are_read(tmp_path):
    (tmp_path / "m.arpa").write_text(
        "made by hand\n\n\\data\\\nngram 1 = 4\nngram 2=2\n\n\\1-grams:\n"
        "-99 <s> -0.5\n-0.5 </s>\n-0.4 a -0.2\n-0.7 b\n\n"
        "\\2-grams:\n-0.1 <s> a\n-0.3 a b\n\n\\end\\\n"
    )
    model = read_arpa(tmp_path / "m.arpa")
    assert log10s(model, "a b") == pytest.approx([-0.1, -0.3, -0.5], abs=1e-6)
    assert log10s(model, "b a") == pytest.approx([-0.5 - 0.7, -0.4, -0.2 - 0.5], abs=1e-6)
    assert log10s(model, "c")[0] == pytest.approx(-100.5, abs=1e-4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing", "ends in the middle"),
        ("\\data\\\nngram 2=1\n", "does not say how many 1-grams"),
        ("\\data\\\nngram 1=1\n\n\\2-grams:\n", r"where \\1-grams: should be"),
        ("\\data\\\nngram 1=2\n\n\\1-grams:\n-1\ta\n", "ends in the middle"),
        ("\\data\\\nngram 1=1\n\n\\1-grams:\nx\ta\n\n\\end\\\n", "a number that is none"),
        ("\\data\\\nngram 1=1\n\n\\1-grams:\nnan\ta\n\n\\end\\\n", "no n-gram with the logarithm"),
        ("\\data\\\nngram 1=1\n\n\\1-grams:\n-1\ta\tinf\n\n\\end\\\n", "no n-gram with the logarithm"),
        (
            "\\data\\\nngram 1=1\n\n\\1-grams:\n1.5\ta\n\n\\end\\\n",
            "no n-gram with the logarithm of a probability",
        ),
        ("\\data\\\nngram 1=2\n\n\\1-grams:\n-1\ta\n-1\ta\n\n\\end\\\n", "a 1-gram is there twice"),
        (
            "\\data\\\nngram 1=1\nngram 2=1\n\n\\1-grams:\n-1\ta\n\n\\2-grams:\n-1\ta b\n\n\\end\\\n",
            "'b' is in a 2-gram",
        ),
        (
            "\\data\\\nngram 1=1\nngram 2=0\nngram 3=1\n\n\\1-grams:\n-1\ta\n\n\\2-grams:\n\n"
            "\\3-grams:\n-1\ta a a\n\n\\end\\\n",
            "'a a a' is there, but not 'a a'",
        ),
        ("\\data\\\nngram 1=1\n\n\\1-grams:\n-1\ta\n-2\tb\n\n\\end\\\n", "more than was said"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text, says, tmp_path):
    (tmp_path / "m.arpa").write_text(text)
    with pytest.raises(DataError, match=says):
        read_arpa(tmp_path / "m.arpa")


def test_keys_past_four_bytes_are_found_again(tmp_path):
    words = [f"w{i}" for i in range(70_000)]  # 70,000 contexts of 70,000 words: 5e9 is above 2^31
    model = counted([" ".join(words)], 3)
    write_arpa(model, tmp_path / "m.arpa")
    again = read_arpa(tmp_path / "m.arpa")
    text = " ".join(words[69_000:])
    assert log10s(again, text) == pytest.approx(log10s(model, text), abs=1e-6)


def test_spaces_that_are_no_blanks_stay_in_their_words(tmp_path):
    model = counted(["it is 10\N{NO-BREAK SPACE}km away", "walk 5\N{NO-BREAK SPACE}km", "a\N{IDEOGRAPHIC SPACE}b c"], 2)
    write_arpa(model, tmp_path / "m.arpa")
    write_counts(model, tmp_path / "m.counts")
    for again in (read_arpa(tmp_path / "m.arpa"), read_counts(tmp_path / "m.counts")):
        assert again.tokenizer.vocab_size == model.tokenizer.vocab_size
        text = "it is 5\N{NO-BREAK SPACE}km away"
        assert log10s(again, text) == pytest.approx(log10s(model, text), abs=1e-6)


def test_an_unknown_word_may_be_shouted(tmp_path):
    write_arpa(counted(["a <x> b", "a b"], 2), tmp_path / "m.arpa")
    text = (tmp_path / "m.arpa").read_text()
    (tmp_path / "shouted.arpa").write_text(text.replace("<unk>", "<UNK>"))
    told, shouted = read_arpa(tmp_path / "m.arpa"), read_arpa(tmp_path / "shouted.arpa")
    assert log10s(shouted, "a never b") == log10s(told, "a never b")


def test_a_damaged_gzip_file_is_said_to_be(tmp_path):
    (tmp_path / "m.arpa.gz").write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xff\xff\xff\xff")
    with pytest.raises(DataError, match="cannot be read"):
        read_arpa(tmp_path / "m.arpa.gz")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a 99999999999999999999999\n", "is not an n-gram and how often"),
        (b"a\xff 3\n", "is not UTF-8"),
        (b"</s> <s> 3\n", "<s> begins a sentence"),
        (b"</s> a 3\n", "<s> begins a sentence"),
    ],
)
def test_what_is_wrong_with_counts_is_said(content, says, tmp_path):
    (tmp_path / "m.counts").write_bytes(content)
    with pytest.raises(DataError, match=says):
        read_counts(tmp_path / "m.counts")


def test_what_has_no_place_in_a_file_is_refused(tmp_path):
    for smoothing in ("add-k", "stupid-backoff"):
        with pytest.raises(InputError, match=f"which {smoothing} does not"):
            write_arpa(counted(texts(0), smoothing=smoothing), tmp_path / "m.arpa")
    tokenizer = headway.tokenizers.train("char", ["a b"])
    model = headway.create("ngram", vocab_size=tokenizer.vocab_size)
    model.tokenizer = tokenizer
    with pytest.raises(InputError, match="has a blank in it"):
        write_arpa(model, tmp_path / "m.arpa")
    assert not (tmp_path / "m.arpa").exists()
    write_arpa(counted(texts(0)), tmp_path / "m.arpa")
    with pytest.raises(InputError, match="without counts"):
        write_counts(read_arpa(tmp_path / "m.arpa"), tmp_path / "m.counts")


def test_counts_come_back_and_are_smoothed_alike(tmp_path):
    model = counted(texts(5), 3)
    write_counts(model, tmp_path / "m.counts")
    lines = (tmp_path / "m.counts").read_text().splitlines()
    assert any(line.startswith("<s> w0 ") and line.split()[-1].isdecimal() for line in lines)
    again = read_counts(tmp_path / "m.counts")
    for text in texts(6, 20):
        assert log10s(again, text) == pytest.approx(log10s(model, text), abs=2e-3)  # but for whom lmplz comes to last
    assert np.array_equal(np.sort(again.column("count", 3)), np.sort(model.column("count", 3)))


def test_the_longest_ngrams_alone_are_enough(tmp_path):
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
