"""n-grams on the command line: one sentence per line, and files exchanged with other toolkits."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.running import exit_code, run

LINES = "the cat sat\nthe dog sat\nthe free software\n"


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """The working directory, with a text (my.txt) and a trigram model fitted to it (run)."""
    path = tmp_path_factory.mktemp("ngrams")
    (path / "my.txt").write_text(LINES)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        assert exit_code("train ngram --out run --set data.path=my.txt --set model.order=3") == 0
        yield path


def test_eval_scores_line_by_line_as_training_counted(capsys):
    code, out, _ = run("eval run my.txt --json", capsys)
    assert code == 0
    assert json.loads(out)["n_tokens"] == 12  # three words and EOS, three times
    run("convert run copy", capsys)  # a model directory without a recipe
    code, copy_out, _ = run("eval copy my.txt --json", capsys)
    assert json.loads(copy_out)["perplexity"] == json.loads(out)["perplexity"]
    code, out, _ = run("eval run my.txt --context 1 --json", capsys)
    assert code == 0
    assert json.loads(out)["n_tokens"] == 12


def test_another_tokenizer_kind_drops_the_recipes_word_settings(capsys):
    command = "train ngram --set tokenizer.kind=char --set data.format=text --set data.valid_fraction=0.3 --out chars"
    code, _, err = run(f"{command} --set data.path=my.txt", capsys)
    assert code == 0, err
    assert "char" in err


def test_beam_search_puts_spaces_between_words(capsys):
    code, out, _ = run("generate run 'the free' --num-beams 2 --max-new-tokens 1", capsys)
    assert code == 0
    assert "the free software" in out


def test_logit_bias_names_a_token(capsys):
    code, out, _ = run("generate run the --logit-bias '</s>=-inf' --max-new-tokens 6 --seed 1 --json", capsys)
    assert code == 0
    document = json.loads(out)
    assert document["texts"][0]["finish_reason"] == "length"  # EOS was impossible
    assert document["stages"][0]["bias"][0][1] is None  # JSON has no infinity
    code, _, err = run("generate run the --logit-bias zebra=1", capsys)
    assert code == 2
    assert "'zebra' is not in the vocabulary" in err


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("convert run out.arpa.bz2", 2, "neither a folder nor a file that ends in .arpa, .arpa.gz, .counts"),
        ("convert run -", 2, "neither a folder nor a file"),
        ("eval words.arpa my.txt", 1, "headway convert words.arpa DIRECTORY"),
        ("train ngram --set data.path=my.txt --set model.smoothing=given --out given", 2, "smoothing='given'"),
    ],
)
def test_impossible_commands_fail_and_leave_no_files(command, code, message, capsys):
    run("convert run words.arpa", capsys)
    exit_code, _, err = run(command, capsys)
    assert (exit_code, message in err) == (code, True), err
    assert not Path("given").exists()


def test_file_extensions_are_case_insensitive(capsys):
    assert run("convert run WORDS.ARPA", capsys)[0] == 0
    assert Path("WORDS.ARPA").is_file()
    assert run("convert WORDS.ARPA uppercase", capsys)[0] == 0


def test_sigterm_leaves_no_partial_files(folder, tmp_path):
    script = (
        "import sys, time; from headway.cli import main; import headway.models.ngram.arpa as arpa\n"
        "line_chunks = arpa._line_chunks\n"
        "def slow(*args):\n"
        "    for lines in line_chunks(*args):\n"
        "        yield lines; print('writing', flush=True); time.sleep(60)\n"
        "arpa._line_chunks = slow\n"
        f"main(['convert', '{folder}/run', '{tmp_path}/out.arpa'])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
