"""Words on the command line that no careful user types: one clear line, an exit code, and nothing written."""

import os
import subprocess
import sys

import pytest

from headway.cli import main
from tests.cli.running import run


@pytest.fixture(autouse=True)
def _in_workspace(workspace, monkeypatch):
    monkeypatch.chdir(workspace)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("compare ngram --data my.txt --tokens 1e309", "1e309 is not a number from 1 to 10^15"),
        ("compare ngram --data my.txt --params 1e18", "1e18 is not a number from 1 to 10^15"),
        ("compare ngram --data my.txt --seconds nan", "seconds=nan is not a budget"),
        ("compare ngram --data my.txt --seconds inf", "seconds=inf is not a budget"),
        ("lr-find demo --steps 99999999999999999999", "steps=99999999999999999999 is too many"),
        ("lr-find demo --low nan", "low=nan"),
        ("train demo --set train.steps=99999999999999999999", "train.steps=99999999999999999999"),
        ("train demo --set train.lr=1e999", "train.lr=inf must be a finite number"),
        ("train demo --set train.seq_len=0", "train.seq_len=0 must be at least 1"),
        ("train demo --set model.bos_id=3", "the model takes the tokenizer's BOS token"),
        ("train ~nouser/x.toml", "no recipe '~nouser/x.toml'"),
        ("generate runs/demo The --temperature nan", "temperature=nan"),
        ("eval runs/demo ~nouser/x.txt", "~nouser/x.txt"),
        ("data my.txt --valid-fraction nan", "valid_fraction=nan"),
        ("generate ''", "is not a model"),
        ("train demo --out ''", "name a new folder"),
    ],
)
def test_hostile_values_are_named(command, message, capsys):
    before = sorted(os.walk("."))
    code, out, err = run(command, capsys)
    assert code in (1, 2)
    assert out == ""
    assert message in " ".join(err.split())
    assert sorted(os.walk(".")) == before


@pytest.mark.parametrize(
    ("word", "message"), [("a\0b", "a zero byte"), ("a\udcffb", r"a\udcffb; type it, or rename the file, in UTF-8")]
)
def test_words_that_are_no_text_are_refused(word, message, capsys):
    for words in (["generate", "runs/demo", word], ["data", word], ["train", "demo", "--set", f"data.path={word}"]):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 2
        assert message in capsys.readouterr().err


def test_bytes_that_are_not_utf8_are_refused_as_a_process_gets_them():
    done = subprocess.run([sys.executable, "-m", "headway", "data", b"a\xff"], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"word 2 of the command line is not UTF-8" in done.stderr


def test_a_megabyte_on_the_command_line_gets_one_short_error(capsys):
    for words in (["generate", "x" * 2**20], ["train", "demo", "--set", "x" * 2**20], ["data", "x" * 2**20]):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code in (1, 2)
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("error", [MemoryError(), RecursionError("x"), OSError(36, "File name too long", "xxx")])
def test_errors_of_the_system_are_one_line(error, monkeypatch, capsys):
    def fail(*_args, **_options):
        raise error

    monkeypatch.setattr("headway.load", fail)
    code, _, err = run("generate runs/demo The", capsys)
    assert code == 1
    assert err.startswith("Error: ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("name", ["x" * 300, "loop", "my.txt/x", "runs"])
@pytest.mark.parametrize("verb", ["generate", "eval", "train", "data", "convert {} out", "tokenizer encode {} a"])
def test_paths_that_cannot_be_opened_are_one_error(verb, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "my.txt").write_text("abc")
    (tmp_path / "runs").mkdir()
    code, out, err = run(verb.format(name) if "{}" in verb else f"{verb} {name}", capsys)
    assert code in (1, 2), out
    assert "Error: " in err
    assert "Traceback" not in err


# ── convert onto something that exists ────────────────────────────────────────────────────────────────────────────


def test_convert_replaces_a_model_only_if_forced(tmp_path, capsys):
    target = tmp_path / "model"
    assert run(f"convert runs/demo {target}", capsys)[0] == 0
    (target / "mark").touch()
    code, _, err = run(f"convert runs/mine {target}", capsys)
    assert code == 1
    assert "already exists: name another folder, or add --force" in err
    assert (target / "mark").exists()
    assert run(f"convert runs/mine {target} --force", capsys)[0] == 0
    assert not (target / "mark").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]  # no half-deleted folder


def test_convert_replaces_a_file_of_n_grams_only_if_forced(tmp_path, capsys):
    target = tmp_path / "words.arpa"
    target.write_text("mine")
    code, _, err = run(f"convert runs/words {target}", capsys)
    assert (code, target.read_text()) == (1, "mine")
    assert "already exists: name another file, or add --force" in err
    assert run(f"convert runs/words {target} --force", capsys)[0] == 0
    assert target.read_text().startswith("\\data\\")


@pytest.mark.parametrize("made", ["recipe.toml", "config.json", "sub/file", "model.safetensors"])
def test_convert_never_replaces_what_is_not_a_model(made, tmp_path, capsys):
    target = tmp_path / "precious"
    file = target / made
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    for flag in ("", "--force"):
        code, _, err = run(f"convert runs/demo {target} {flag}", capsys)
        assert code == 1
        assert "is not a model directory, so nothing may replace it" in err
    assert file.read_text() == "{}"


def test_a_classifier_says_what_it_is_for(tmp_path, capsys):
    import headway
    from headway.models import Classifier

    encoder = headway.create("bert", vocab_size=30, n_layers=1, n_heads=2, d_model=8, labels=["a", "b"])
    Classifier(encoder).save(tmp_path / "model")
    code, _, err = run(f"generate {tmp_path}/model abc", capsys)
    assert code == 1
    assert "labels texts (`headway classify` uses it)" in err
    assert "start" not in err
