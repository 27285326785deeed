"""Temporary files: listed before they exist, deleted however the process goes on."""

import os

import pytest

from headway import temporary_files
from headway.files import new_directory, write_chunks
from headway.temporary_files import TemporaryFolder, delete_if_stopped, temporary_path


def test_a_path_is_listed_before_it_exists_and_gone_after(tmp_path, monkeypatch):
    events = []
    monkeypatch.setattr(
        temporary_files, "_listeners", [lambda *event: events.append((*event, os.path.exists(event[0])))]
    )
    with temporary_path(tmp_path / "half") as path:
        path.write_text("half")
    assert events == [(str(tmp_path / "half"), True, False), (str(tmp_path / "half"), False, False)]


def test_remove_all_deletes_what_is_open(tmp_path):
    with temporary_path(tmp_path / "file") as file, temporary_path(tmp_path / "folder") as folder:
        file.touch()
        (folder / "deep").mkdir(parents=True)
        temporary_files.remove_all()
        assert list(tmp_path.iterdir()) == []


def test_a_temporary_folder_lives_with_its_object():
    folder = TemporaryFolder()
    path = folder.path
    assert path.is_dir()
    del folder
    assert not path.exists()


@pytest.mark.parametrize(("error", "is_kept"), [(KeyboardInterrupt, False), (SystemExit, False), (ValueError, True)])
def test_a_folder_of_no_use_goes_if_it_is_stopped(tmp_path, error, is_kept):
    path = tmp_path / "run"
    path.mkdir()
    with pytest.raises(error), delete_if_stopped(path):
        raise error
    assert path.exists() == is_kept


@pytest.mark.parametrize("n_renames", [1, 2])
def test_a_signal_while_a_folder_is_replaced_leaves_the_old_or_the_new_one(tmp_path, monkeypatch, n_renames):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights").write_text("old")
    rename, renamed = type(folder).rename, []

    def rename_and_end(path, target):
        result = rename(path, target)
        renamed.append(path)
        if len(renamed) == n_renames:
            raise SystemExit(143)
        return result

    monkeypatch.setattr(type(folder), "rename", rename_and_end)
    with pytest.raises(SystemExit), new_directory(folder, overwrite=True) as partial:
        (partial / "weights").write_text("new")
    assert (folder / "weights").read_text() == ("old" if n_renames == 1 else "new")
    assert list(tmp_path.iterdir()) == [folder]


def test_an_interrupted_write_leaves_nothing(tmp_path):
    def chunks():
        yield b"half"
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        write_chunks(tmp_path / "file", chunks())
    assert list(tmp_path.iterdir()) == []
