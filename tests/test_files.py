"""Atomic writes keep symlinks and pipes what they are."""

import os
import threading

from headway.files import write_text


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
