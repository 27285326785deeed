"""Shard files: what is written is read back, and no damage goes unnoticed."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from headway.data.shard_files import MAX_HEADER_BYTES, read_shard, write_cached, write_shard
from headway.errors import DataError


def arrays_of(lengths: list[int], dtype=np.uint16) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(sum(lengths)).integers(0, np.iinfo(dtype).max, sum(lengths), dtype=dtype)
    return {"tokens": ids, "ends": np.cumsum(lengths, dtype=np.int64), "bytes": 3 * np.array(lengths, dtype=np.int64)}


@given(st.lists(st.integers(0, 9), max_size=6), st.sampled_from([np.uint16, np.uint32]))
@settings(max_examples=30)
def test_a_shard_is_read_back_and_safetensors_reads_it_too(tmp_path_factory, lengths, dtype):
    file, arrays = tmp_path_factory.mktemp("shard") / "train-00000.safetensors", arrays_of(lengths, dtype)
    sha256 = write_shard(file, arrays, "documents")
    shard = read_shard(file)
    assert (shard.made_from, shard.sha256) == ("documents", sha256)
    for copy in (shard.arrays, load_file(file)):
        for name, array in arrays.items():
            assert copy[name].dtype == array.dtype
            assert copy[name].tolist() == array.tolist()


@pytest.fixture
def shard(tmp_path):
    file = tmp_path / "train-00000.safetensors"
    write_shard(file, arrays_of([3, 0, 5]), "documents")
    return file


def test_a_change_to_any_byte_is_detected(shard):
    data = shard.read_bytes()
    for i in range(len(data)):
        shard.write_bytes(data[:i] + bytes([data[i] ^ (1 << i % 8)]) + data[i + 1 :])
        with pytest.raises(DataError, match="damaged"):
            read_shard(shard)


def test_a_shard_cut_off_or_continued_anywhere_is_detected(shard):
    data = shard.read_bytes()
    for damaged in [*(data[:size] for size in range(len(data))), data + b"\0", data + data]:
        shard.write_bytes(damaged)
        with pytest.raises(DataError, match="damaged"):
            read_shard(shard)


@pytest.mark.parametrize("size", [0, MAX_HEADER_BYTES + 1, 2**40, 2**64 - 1])
def test_a_header_of_any_length_takes_no_memory(shard, size):
    shard.write_bytes(size.to_bytes(8, "little") + shard.read_bytes()[8:])
    with pytest.raises(DataError, match="does not begin with the header of a shard"):
        read_shard(shard)


def test_documents_that_end_outside_the_tokens_are_refused(shard):
    for ends in ([3, 3, 9], [5, 3, 8], [-1, 3, 8]):
        write_shard(shard, {**arrays_of([3, 0, 5]), "ends": np.array(ends)}, "documents")
        with pytest.raises(DataError, match="do not end where its tokens do"):
            read_shard(shard)


def test_a_pipe_a_folder_or_a_link_is_refused_at_once(shard, tmp_path):
    pipe, folder, link = tmp_path / "pipe", tmp_path / "folder", tmp_path / "link"
    os.mkfifo(pipe)
    folder.mkdir()
    link.symlink_to(shard)
    for path, problem in ((pipe, "is a pipe"), (folder, "is a folder"), (link, "is a link")):
        with pytest.raises(DataError, match=problem):
            read_shard(path)


def test_a_link_is_replaced_and_its_target_is_kept(tmp_path):
    """Something else may lie in the place of a cached file: it is not ours to write to."""
    precious, link, pipe = tmp_path / "thesis.txt", tmp_path / "link", tmp_path / "pipe"
    precious.write_text("my thesis")
    link.symlink_to(precious)
    os.mkfifo(pipe)
    for path in (link, pipe):
        write_cached(path, [b"cached"])
        assert path.read_bytes() == b"cached"
        assert not path.is_symlink()
    assert precious.read_text() == "my thesis"
    assert not list(tmp_path.glob("*.tmp"))
