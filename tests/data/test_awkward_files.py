"""A folder of awkward files: every faulty one is named, with what is wrong and what to do."""

import os
import shlex

import pytest

import headway
from headway.cli import main
from headway.data import open_source
from headway.errors import DataError
from tests.data.awkward_files import FILES, make

TINY = "model.n_layers=1 model.d_model=8 model.n_heads=1 model.context=8 tokenizer.kind=char train.steps=1"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    (tmp_path / "awkward").mkdir()
    return tmp_path / "awkward"


def run(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    try:
        main(shlex.split(command))
        code = 0
    except SystemExit as exit:
        code = int(exit.code or 0)
    return code, *capsys.readouterr()


def check(error: str, folder, expected: dict[str, str]) -> None:
    """Each faulty file has one line, which says what is expected; no good file has one."""
    lines = {line.split()[0].rstrip(",:"): line for line in error.splitlines() if line.startswith(f"  {folder}")}
    assert set(lines) == {str(folder / name) for name in expected}
    for name, message in expected.items():
        assert message in lines[str(folder / name)]


def test_there_are_fifty_of_them():
    assert len(FILES) == 50


def test_data_train_and_eval_name_every_faulty_file(folder, tmp_path, capsys):
    headway.create("gpt-tiny").save(tmp_path / "model")
    headway.tokenizers.train("char", ["abc"]).save(tmp_path / "model")
    expected = make(folder)
    for command in (
        f"data {folder}",
        f"train demo --out runs/x --set data.path={folder} {TINY.replace('model.', '--set model.')}",
        f"eval model {folder}",
    ):
        code, out, err = run(
            command.replace(" tokenizer.", " --set tokenizer.").replace(" train.s", " --set train.s"), capsys
        )
        assert (code, out) == (1, ""), err
        assert "holds files of several formats" in err
        check(err, folder, expected)
        assert f"{folder}/thumbs.db" in err
        assert "DS_Store" not in err


def test_the_text_files_alone_are_checked_too(folder, tmp_path, capsys):
    expected = make(folder, (".txt", ".txt.gz"))
    code, out, err = run(f"data {folder}", capsys)
    assert (code, out) == (1, "")
    check(err, folder, expected)
    with pytest.raises(DataError) as error:
        list(open_source(str(folder)).records())
    check(str(error.value), folder, expected)


def test_the_good_files_of_the_folder_are_read(folder, tmp_path, capsys):
    faulty = make(folder, (".txt", ".txt.gz"))
    for name in faulty:
        (folder / name).unlink()
    (folder / "void.txt").touch()
    code, out, err = run(f"data {folder}", capsys)
    assert code == 0
    assert "documents   10" in out
    assert f"note: files without text: {folder}/void.txt" in err
    assert f"{folder}/thumbs.db; to read them, use a glob" in err
    assert len(os.listdir(folder)) == 10 + 3
