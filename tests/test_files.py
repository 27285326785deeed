"""Writing in one move: what is there is whole, and stays what it is."""

import os
import threading

from headway.files import write_text


def test_a_link_leads_where_it_led(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_pipe_stays_a_pipe(tmp_path):
    pipe, heard = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "words")
    reader.join(timeout=10)
    assert heard == ["words"]
    assert pipe.is_fifo()
