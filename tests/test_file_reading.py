"""Files that someone else made are read within limits, and never waited for."""

import contextlib
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import CheckpointError, DataError
from headway.file_reading import check_regular, open_regular, parse_json, read_bytes, read_json, read_utf8, suggest_file


@pytest.mark.parametrize(("make", "kind"), [(os.mkfifo, "a pipe"), (os.mkdir, "a folder")])
def test_what_is_not_a_file_is_refused_at_once(tmp_path, make, kind):
    make(tmp_path / "x")
    for read in (open_regular, check_regular, read_utf8, read_json, lambda path: read_bytes(path, max_bytes=9)):
        with pytest.raises(CheckpointError, match=f"x is {kind}, not a file"):
            read(tmp_path / "x")


def test_a_device_and_a_socket_are_refused(tmp_path):
    with pytest.raises(DataError, match="/dev/zero is a device"):
        check_regular("/dev/zero", error=DataError)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(OSError, match="No such device"):  # a socket cannot be opened at all
            check_regular(tmp_path / "s")
        with pytest.raises(CheckpointError, match="cannot be read: No such device"):
            read_json(tmp_path / "s")


def test_no_handle_stays_open(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    n_open = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(CheckpointError):
            check_regular(tmp_path / "pipe")
    assert len(os.listdir("/proc/self/fd")) == n_open


def test_a_file_over_the_limit_is_refused_with_both_sizes(tmp_path):
    (tmp_path / "x").write_bytes(bytes(1001))
    assert len(read_bytes(tmp_path / "x", max_bytes=1001)) == 1001
    with pytest.raises(CheckpointError, match=r"x has 1,001 bytes; at most 1,000 are read"):
        read_bytes(tmp_path / "x", max_bytes=1000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a": NaN}', "malformed"),
        ('{"a": 1e999}', "out of range"),
        ('{"a": "\\ud800 and more"}', "surrogate"),
        ('{"\\udc00 and more": 1}', "surrogate"),
        ('{"a": "\\ud800"', "truncated"),
        ("", "truncated"),
    ],
)
def test_bad_json_is_a_value_error_that_says_why(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=f"config.json cannot be read: .*{message}"):
        read_json(tmp_path / "config.json")


def test_json_that_is_no_object_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="does not hold a JSON object"):
        read_json(tmp_path / "config.json")


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_give_a_value_error(data):
    with contextlib.suppress(ValueError):
        parse_json(data)


def test_a_mistyped_path_is_answered_with_what_stands_beside_it(tmp_path):
    (tmp_path / "my.txt").touch()
    (tmp_path / ".mx.txt").touch()  # hidden
    (tmp_path / "corpus").mkdir()
    assert suggest_file(tmp_path / "my.tx") == f" Did you mean '{tmp_path / 'my.txt'}'?"
    assert suggest_file(tmp_path / "copus") == f" Did you mean '{tmp_path / 'corpus'}'?"
    assert suggest_file(tmp_path / "my.txt") == ""  # never itself
    assert suggest_file(tmp_path / "elsewhere") == suggest_file(tmp_path / "elsewhere" / "my.tx") == ""
