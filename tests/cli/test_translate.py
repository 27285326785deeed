"""headway translate, eval and show attention, as a user meets them."""

import json
import os

import pytest

from headway.cli import main
from tests.cli.running import run

SMALL = """
model.d_model=48 model.n_layers=2 model.d_ff=64 model.dropout=0 model.context=24 tokenizer.kind=char tokenizer.bpe_dropout=0
train.tokens_per_batch=600 train.steps=250 train.lr=3e-3 train.warmup_steps=20 train.ema=0
data.path=train.{en,de} data.valid_path=train.{en,de} eval.metric=exact
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A run that has learned to copy a few words, from two files."""
    folder = tmp_path_factory.mktemp("home")
    words = ["red", "blue", "cat", "dog"]
    lines = [f"{a} {b}" for a in words for b in words] * 30
    (folder / "train.en").write_text("".join(f"{line}\n" for line in lines))
    (folder / "train.de").write_text("".join(f"{line.upper()}\n" for line in lines))
    here = os.getcwd()
    os.chdir(folder)
    try:
        with pytest.raises(SystemExit) as end:
            main(["train", "pairs", "--out", "runs/up", *(word for one in SMALL.split() for word in ("--set", one))])
        assert not end.value.code
    finally:
        os.chdir(here)
    return folder


@pytest.fixture(autouse=True)
def _at_home(home, monkeypatch):
    monkeypatch.chdir(home)


def test_every_line_has_its_line(capsys, home):
    (home / "in.txt").write_text("red cat\n\nblue dog\n")
    code, out, _ = run("translate runs/up --in in.txt", capsys)
    assert (code, out) == (0, "RED CAT\n\nBLUE DOG\n")
    code, out, err = run("translate runs/up --in in.txt --out out.txt --greedy", capsys)
    assert (code, out) == (0, "")
    assert (home / "out.txt").read_text() == "RED CAT\n\nBLUE DOG\n"
    assert "3 lines" in err


def test_texts_on_the_command_line_and_several_answers(capsys):
    code, out, _ = run('translate runs/up "red cat" "dog dog" --n-best 2', capsys)
    assert code == 0
    rows = [line.split("\t") for line in out.splitlines()]
    assert [(rank, text) for rank, _, text in rows[::2]] == [("1", "RED CAT"), ("1", "DOG DOG")]
    assert float(rows[0][1]) > float(rows[1][1])
    document = json.loads(run('translate runs/up "red cat" --align --json', capsys)[1])
    found = document["translations"][0]
    assert found["text"] == "RED CAT"
    assert [word["word"] for word in found["alignment"]] == ["RED", "CAT"]


def test_samplers_are_flags_here_too(capsys):
    command = 'translate runs/up "red cat" --temperature 3 --top-k 5 --seed 1'
    first = run(command, capsys)
    assert first == run(command, capsys)
    assert run('translate runs/up "red cat" --temperature 0', capsys)[1] == "RED CAT\n"
    code, _, err = run('translate runs/up "red cat" --num-beams 2 --top-k 5', capsys)
    assert code == 2
    assert "top_k with beam search" in err


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("translate runs/up --in train.de", 2, "ends in .de, which this model writes; it reads .en"),
        ("translate runs/up --in nowhere.txt", 1, "nowhere.txt cannot be read"),
        ("translate runs/up red --in train.en", 2, "one of the two"),
        (f"translate runs/up {'red' * 10}", 1, "text 1 has 30 tokens, and this model reads at most 23"),
        ("translate runs/up red --early-stopping maybe", 2, "true, false or never"),
        ("translate runs/up red --greedy --num-beams 3", 2, "one of them"),
        ("translate runs/up red --n-best 9", 2, "n_best=9 of num_beams=5"),
        ("translate runs/nowhere red", 1, "no model at runs/nowhere"),
        ("eval --hypotheses train.en", 2, "--references"),
        ("eval --hypotheses in.txt --references train.de", 1, "3 translations and 480 lines of reference 1"),
        ("eval runs/up train.en", 2, "--references"),
        ("eval runs/up in.txt --references train.de", 1, "3 translations and 480 lines of reference 1"),
        ("eval runs/up train.en --references train.de --against in.txt", 1, "3 translations and 480 lines"),
        ("eval runs/up --references train.de", 2, "of which text?"),
        ("eval runs/up --context 8", 2, "this one translates"),
        ("eval runs/up --sentences nowhere/s.jsonl", 2, "there is no folder nowhere to write s.jsonl to"),
        ("translate runs/up red --out nowhere/x.txt", 2, "there is no folder nowhere to write x.txt to"),
        ("translate runs/up red --out runs", 2, "runs is a folder"),
        ("translate runs/up red --align --out x.txt", 2, "--json"),
        ("translate runs/up red --num-beams 3 --temperature 0.7", 2, "temperature=0.7 with beam search"),
        ("translate runs/up red --seed 1", 2, "seed=1 with beam search"),
        ("translate runs/up red --top-k 3 --length-penalty 2", 2, "length_penalty=2.0 is for beam search"),
        ("translate runs/up red --min-new-tokens 5 --max-new-tokens 3", 2, "min_new_tokens=5 is more than the 3"),
        ("show attention runs/up ''", 2, "an empty text"),
        ("eval", 2, "MODEL"),
        ("translate runs/up --in in.txt --out in.txt", 2, "is what is to be translated"),
        ("translate runs/up red --xtc-threshold 0.2", 0, "xtc_threshold is set, but xtc_probability is not"),
        ("eval runs/nowhere", 1, "no model at runs/nowhere"),
        ("eval --hypotheses in.txt --references in.txt --num-beams 2", 2, "says nothing about translations"),
        ("show attention runs/up red --out a.txt", 2, "a.txt is not named .png, .svg or .pdf"),
        ("show attention runs/up red blue --side encoder", 2, "an encoder sees the source alone"),
        ("show attention runs/up red --layer 7", 1, "layer 7: there are 2, counted from 0"),
        ("show attention runs/up red --side sideways", 1, "has no sideways attention; it has: encoder, decoder, cross"),
    ],
)
def test_what_is_wrong_is_said(command, code, says, capsys, home):
    (home / "in.txt").write_text("red cat\n\nblue dog\n")
    found, _, err = run(command, capsys)
    assert (found, says in " ".join(err.split())) == (code, True), err


def test_files_of_other_systems_are_read(capsys, home):
    (home / "marked").write_bytes(b"\xef\xbb\xbfred cat\r\nblue dog")
    assert run("translate runs/up --in marked", capsys)[1] == "RED CAT\nBLUE DOG\n"


def test_a_long_line_is_cut_and_still_aligned(capsys, home):
    (home / "long").write_text("red\n" + "red " * 9 + "\n")
    code, out, err = run("translate runs/up --in long --truncate --align --json", capsys)
    assert code == 0, err
    assert len(json.loads(out)["translations"]) == 2


def test_any_of_several_references_is_right(capsys, home):
    for name, text in (("h", "a\nb\n"), ("r1", "a\nx\n"), ("r2", "y\nb\n")):
        (home / name).write_text(text)
    found = json.loads(run("eval --hypotheses h -r r1 -r r2 --json", capsys)[1])
    assert found["exact_match"] == 1.0
    assert json.loads(run("eval --hypotheses h -r r1 --limit 1 --json", capsys)[1])["n_sentences"] == 1


def test_a_filter_that_is_off_does_not_draw(capsys):
    assert run('translate runs/up "red cat" --top-k 0', capsys)[1] == "RED CAT\n"


def test_what_is_cut_to_be_scored_is_counted(capsys, home):
    (home / "long").write_text("red\n" + "red " * 9 + "\n")
    code, out, err = run("eval runs/up long --references long", capsys)
    assert code == 0
    assert "note: 1 of 2 texts are longer than the model reads, and cut" in err
    assert "BLEU counts up to four words in a row" not in out


def test_a_verdict_says_who_is_better(capsys):
    out = run("eval --hypotheses train.en --references train.de --against train.de", capsys)[1]
    assert "train.de is better, by more than chance" in out
    assert "BLEU counts up to four words in a row" in out


def test_unknown_characters_are_named(capsys):
    code, out, err = run('translate runs/up "red ☃"', capsys)
    assert code == 0
    assert out
    assert "never seen: ☃" in err
    assert "never seen: ☃ (2 of 3 lines have such)" in run("translate runs/up ☃ red ☃", capsys)[2]


def test_a_translator_is_scored(capsys, home):
    document = json.loads(run("eval runs/up --limit 40 --sentences each.jsonl --json", capsys)[1])
    assert document["exact_match"] == 1.0
    assert document["n_sentences"] == 40
    assert "tok:13a" in document["signatures"]["BLEU"]
    each = [json.loads(line) for line in (home / "each.jsonl").read_text().splitlines()]
    assert len(each) == 40
    assert each[0]["chrF2"] == 100.0
    code, out, _ = run("eval runs/up train.en --references train.de --limit 30 --against runs/up", capsys)
    assert code == 0
    assert "may be chance" in out
    code, out, _ = run("eval --hypotheses train.en --references train.de --against train.de --json", capsys)
    rows = json.loads(out)["comparison"]
    assert rows[1]["second"] == pytest.approx(100.0)
    assert rows[1]["p"] < 0.05


def test_attention_is_shown_and_drawn(capsys, home):
    code, out, _ = run('show attention runs/up "red cat" --out a.png', capsys)
    assert code == 0
    assert "cross attention, layer 1, the mean of 4 heads" in out
    assert (home / "a.png").stat().st_size > 5000
    found = json.loads(run('show attention runs/up "red cat" --side encoder --head 1 --json', capsys)[1])
    assert found["side"] == "encoder"
    assert len(found["rows"]) == len(found["columns"]) == 8  # seven letters and the end
    for one in found["maps"]:
        assert one["heads"] == [1]
        assert all(sum(row) == pytest.approx(1.0, abs=1e-4) for row in one["weights"][0])
