"""Writing and deleting are atomic: a reader sees all of a file or folder, or nothing; symlinks and pipes stay what they
are."""

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest

from headway import files
from headway.errors import CheckpointError, DiskError
from headway.files import (
    append_line,
    new_directory,
    read_directory,
    remove_directory,
    verify_checksums,
    write_checksums,
    write_text,
)


def test_writing_through_a_symlink_keeps_it(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_writing_to_a_pipe_keeps_it(tmp_path):
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "words")
    reader.join(timeout=10)
    assert received == ["words"]
    assert pipe.is_fifo()


# ── folders ───────────────────────────────────────────────────────────────────────────────────────────────────────


def write_folder(folder, content, **options):
    with new_directory(folder, **options) as partial:
        (partial / "a").write_text(content)
        (partial / "b").write_text(content)


def read_folder(folder):
    return (folder / "a").read_text() + (folder / "b").read_text()


def test_a_folder_that_is_read_is_not_deleted(tmp_path):
    folder = tmp_path / "folder"
    write_folder(folder, "x")
    during = []

    def read(path):
        during.append(remove_directory(path))
        return read_folder(path)

    assert read_directory(lambda: folder, read) == "xx"
    assert during == [False]
    assert remove_directory(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_renamed_before_it_is_emptied(tmp_path, monkeypatch):
    folder, seen = tmp_path / "folder", []
    write_folder(folder, "x")
    original = shutil.rmtree

    def rmtree(path, **options):
        seen.append((folder.exists(), Path(path).name.startswith(".folder."), Path(path).name.endswith(".removed")))
        original(path, **options)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    remove_directory(folder)
    assert seen == [(False, True, True)]


def test_a_folder_replaced_while_it_is_read_is_read_again(tmp_path):
    """The first reader sees `a` of the old folder and `b` of the new one."""
    folder, results = tmp_path / "folder", []
    write_folder(folder, "x")

    def read(path):
        a = (path / "a").read_text()
        if not results:
            write_folder(folder, "y", overwrite=True)
        results.append(a + (path / "b").read_text())
        return results[-1]

    assert read_directory(lambda: folder, read) == "yy"
    assert results == ["xy", "yy"]


def test_an_error_counts_only_if_the_folder_is_still_the_same(tmp_path):
    folder = tmp_path / "folder"
    write_folder(folder, "x")
    n_calls = 0

    def read(path):
        nonlocal n_calls
        n_calls += 1
        if n_calls == 1:
            write_folder(folder, "y", overwrite=True)
        if n_calls < 3:
            raise CheckpointError("damaged")

    with pytest.raises(CheckpointError, match="damaged"):
        read_directory(lambda: folder, read)
    assert n_calls == 2


def test_a_folder_that_never_stays_the_same_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_READS", 3)
    write_folder(tmp_path / "folder", "x")
    with pytest.raises(CheckpointError, match="was replaced 3 times while it was read"):
        read_directory(lambda: tmp_path / "folder", lambda path: write_folder(path, "y", overwrite=True))


# ── lines ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path, monkeypatch):
    file = tmp_path / "log"
    append_line(file, "one")
    original, n_calls = os.write, 0

    def write(handle, data):
        nonlocal n_calls
        n_calls += 1
        if n_calls == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(handle, data[:2])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(DiskError, match=rf"{file} cannot be written: No space left on device; make space"):
        append_line(file, "two")
    monkeypatch.undo()
    assert file.read_text() == "one\n"
    append_line(file, "three")
    assert file.read_text() == "one\nthree\n"


def test_a_line_after_half_a_line_is_a_line_of_its_own(tmp_path):
    (tmp_path / "log").write_text('one\n{"ha')
    append_line(tmp_path / "log", "two")
    assert (tmp_path / "log").read_text().splitlines() == ["one", '{"ha', "two"]


# ── checksums ─────────────────────────────────────────────────────────────────────────────────────────────────────


def signed(sums):
    return files._document(sums)


HOSTILE_CHECKSUMS = {
    "outside": signed({"../secret": [6, "0" * 64]}),
    "absolute": signed({"/etc/passwd": [6, "0" * 64]}),
    "list": signed(["a"]),
    "text": signed("a"),
    "short": signed({"a": [1]}),
    "no digest": signed({"a": [1, 2]}),
    "no size": signed({"a": ["1", "0" * 64]}),
    "NUL": signed({"a\0": [1, "0" * 64]}),
    "empty name": signed({"": [1, "0" * 64]}),
    "nested": "[" * 100_000,
    "no object": "[1]",
    "huge": " " * (files.MAX_CHECKSUMS_BYTES + 1),
    "not UTF-8": "\udcff",
}


@pytest.mark.parametrize("name", HOSTILE_CHECKSUMS)
def test_hostile_checksums_are_refused(name, tmp_path):
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_text("a")
    (folder / "checksums.json").write_bytes(HOSTILE_CHECKSUMS[name].encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError, match=r"checksums\.json (is damaged|has 1,048,577 bytes)"):
        verify_checksums(folder)


def test_a_pipe_in_a_checkpoint_is_not_waited_for(tmp_path):
    (tmp_path / "a").write_text("a")
    write_checksums(tmp_path)
    (tmp_path / "a").unlink()
    os.mkfifo(tmp_path / "a")
    with pytest.raises(CheckpointError, match="a is a pipe"):
        verify_checksums(tmp_path)
