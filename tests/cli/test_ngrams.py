"""The command line with n-grams: lines are sentences, and files of other programs come and go whole."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.running import run

LINES = "the cat sat\nthe dog sat\nthe free software\n"


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("ngrams")
    (place / "my.txt").write_text(LINES)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        command = [sys.executable, "-m", "headway", "train", "ngram", "--out", "run", "--set", "data.path=my.txt"]
        subprocess.run([*command, "--set", "model.order=3"], check=True, capture_output=True)
        yield place


def test_a_text_is_scored_line_by_line_as_it_was_counted(capsys):
    code, out, _ = run("eval run my.txt --json", capsys)
    assert code == 0
    assert json.loads(out)["n_tokens"] == 12  # three words and an end, three times
    run("convert run again", capsys)  # a model without a recipe
    code, again, _ = run("eval again my.txt --json", capsys)
    assert json.loads(again)["perplexity"] == json.loads(out)["perplexity"]
    code, out, _ = run("eval run my.txt --context 1 --json", capsys)
    assert code == 0
    assert json.loads(out)["n_tokens"] == 12


def test_another_kind_of_tokenizer_leaves_the_words_settings_behind(capsys):
    command = "train ngram --set tokenizer.kind=char --set data.format=text --set data.valid_fraction=0.3 --set data.path=my.txt"
    code, _, err = run(f"{command} --out chars", capsys)
    assert code == 0, err
    assert "char" in err


def test_beams_put_a_blank_between_words(capsys):
    code, out, _ = run("generate run 'the free' --num-beams 2 --max-new-tokens 1", capsys)
    assert code == 0
    assert "the free software" in out


def test_a_bias_is_for_the_token_that_is_named(capsys):
    code, out, _ = run("generate run the --logit-bias '</s>=-inf' --max-new-tokens 6 --seed 1 --json", capsys)
    assert code == 0
    found = json.loads(out)
    assert found["texts"][0]["finish"] == "length"  # it could not end
    assert found["stages"][0]["bias"][0][1] is None  # JSON has no infinity
    code, _, err = run("generate run the --logit-bias zebra=1", capsys)
    assert code == 2
    assert "'zebra' is not in the vocabulary" in err


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("convert run out.arpa.bz2", 2, "no folder, nor one of .arpa, .arpa.gz, .counts"),
        ("convert run -", 2, "no folder, nor one of"),
        ("eval words.arpa my.txt", 1, "headway convert words.arpa DIRECTORY"),
        ("train ngram --set data.path=my.txt --set model.smoothing=given --out given", 2, "smoothing='given'"),
    ],
)
def test_what_cannot_be_is_said_and_leaves_nothing(command, code, says, capsys):
    run("convert run words.arpa", capsys)
    found, _, err = run(command, capsys)
    assert (found, says in err) == (code, True), err
    assert not Path("given").exists()


def test_names_of_files_may_be_shouted(capsys):
    assert run("convert run WORDS.ARPA", capsys)[0] == 0
    assert Path("WORDS.ARPA").is_file()
    assert run("convert WORDS.ARPA shouted", capsys)[0] == 0


def test_who_is_told_to_end_leaves_nothing_half_written(folder, tmp_path):
    script = (
        "import sys, time; from headway.cli import main; import headway.models.ngram.arpa as arpa\n"
        "whole = arpa._lines\n"
        "def slow(*given):\n"
        "    for some in whole(*given):\n"
        "        yield some; print('writing', flush=True); time.sleep(60)\n"
        "arpa._lines = slow\n"
        f"main(['convert', '{folder}/run', '{tmp_path}/out.arpa'])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
