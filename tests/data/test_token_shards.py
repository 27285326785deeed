"""Token shards: equal to encoding in memory, for any number of workers and after any interruption."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from headway import tokenizers
from headway.data import DataSource, SplitFractions, TokenArray, open_source, prepare, split, token_cache, token_shards
from headway.errors import DataError, InputError

DOCUMENTS = [f"Document {i}: the cat sat on mat {i * i}. " * (1 + i % 7) for i in range(120)]
BPE = tokenizers.train("bpe", DOCUMENTS, 300)


def source(documents=DOCUMENTS) -> DataSource:
    return DataSource("documents", "text", lambda: iter(documents))


def digests(folder: Path) -> dict[str, str]:
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(folder.iterdir())}


@pytest.mark.parametrize("kind", ["bpe", "char", "wordpiece", "unigram"])
def test_concatenated_shards_are_the_token_stream_of_each_split(kind, tmp_path):
    tokenizer = BPE if kind == "bpe" else tokenizers.train(kind, DOCUMENTS, 300 if kind != "char" else None)
    corpus = prepare(source(), tokenizer, SplitFractions(0.2, 0.1), cache=tmp_path, shard_bytes=2000)
    splits = split(DOCUMENTS, 0.2, 0.1)
    assert len(corpus.train.files) > 3
    for name in ("train", "valid", "test"):
        tokens, documents = getattr(corpus, name), getattr(splits, name)
        assert tokens.read(0, len(tokens)).tolist() == tokenizer.encode_stream(documents)
        assert tokens.n_documents == len(documents)
        assert tokens.n_bytes == sum(len(d.encode()) for d in documents)
        ends = np.cumsum([len(d) for d in tokenizer.encode_documents(documents)])
        assert tokens.document_ends.tolist() == ends.tolist()


def test_the_number_of_workers_does_not_change_a_byte(tmp_path):
    folders = [prepare(source(), BPE, cache=tmp_path / str(n), workers=n, shard_bytes=1500).path for n in (1, 2, 5)]
    assert digests(folders[0]) == digests(folders[1]) == digests(folders[2])


def test_an_unchanged_source_is_cached_and_a_changed_one_is_encoded_again(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("All work and no play makes a dull text. " * 40)
    cache = tmp_path / "cache"
    monkeypatch.setattr(token_cache, "TIMESTAMP_SECONDS", -60)  # the file is seconds old: trust its times
    corpus = prepare(str(tmp_path / "a.txt"), BPE, cache=cache)
    monkeypatch.setattr(token_shards, "_encode_shard", None)  # calling it would fail
    monkeypatch.setattr(token_shards, "CorpusScan", None)
    assert prepare(str(tmp_path / "a.txt"), BPE, cache=cache).path == corpus.path
    monkeypatch.undo()
    (tmp_path / "a.txt").write_text("All play and no work makes a dull text. " * 41)
    assert prepare(str(tmp_path / "a.txt"), BPE, cache=cache).path != corpus.path
    other_tokenizer = tokenizers.train("bpe", DOCUMENTS, 290)
    assert prepare(str(tmp_path / "a.txt"), other_tokenizer, cache=cache).path != corpus.path
    assert corpus.path.is_dir()  # older shards are kept


def test_a_copy_of_a_file_has_the_same_shards(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("The same text. " * 40)
    a, b = (prepare(str(tmp_path / name), BPE, cache=tmp_path / "cache") for name in ("a.txt", "b.txt"))
    assert a.path == b.path


def test_safetensors_reads_the_shards(tmp_path):
    corpus = prepare(source(), BPE, cache=tmp_path)
    arrays = load_file(corpus.train.files[0])
    assert arrays["tokens"].dtype == np.uint16
    assert arrays["tokens"].tolist() == corpus.train.shards[0]["tokens"].tolist()


@given(st.data())
@settings(max_examples=50)
def test_reading_across_shards_equals_reading_one_array(data):
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    ids = np.arange(sum(sizes))
    tokens = TokenArray([])
    tokens.ends = np.cumsum(sizes)
    tokens.shards = [{"tokens": ids[end - n : end]} for end, n in zip(tokens.ends, sizes, strict=True)]
    start = data.draw(st.integers(0, len(ids)))
    stop = data.draw(st.integers(start, len(ids)))
    assert tokens.read(start, stop).tolist() == list(range(start, stop))
    with pytest.raises(InputError, match="out of range"):
        tokens.read(0, len(ids) + 1)


def test_a_full_disk_is_reported_and_loses_nothing(tmp_path, monkeypatch):
    older = prepare(source(DOCUMENTS[:30]), BPE, cache=tmp_path)
    older_digests = digests(older.path)
    n_calls = 0
    fsync = os.fsync

    def fail_when_full(handle):
        nonlocal n_calls
        n_calls += 1
        if n_calls > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", fail_when_full)
    with pytest.raises(DataError, match=r"No space left on device.*MB are needed.*HEADWAY_CACHE"):
        prepare(source(), BPE, cache=tmp_path, shard_bytes=1500, workers=2)
    monkeypatch.undo()
    assert digests(older.path) == older_digests
    assert not list(tmp_path.rglob("*.tmp"))
    resumed = prepare(source(), BPE, cache=tmp_path, shard_bytes=1500)
    assert digests(resumed.path) == digests(prepare(source(), BPE, cache=tmp_path / "other", shard_bytes=1500).path)


def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path):
    """Shards cached under a hash of the content always have that content."""
    file = tmp_path / "a.txt"
    file.write_text("aaaa " * 100)

    def change_file(progress):
        if progress.stage == "reading":
            file.write_text("bbbb " * 100)

    with pytest.raises(DataError, match="changed while it was read"):
        prepare(str(file), BPE, cache=tmp_path / "cache", on_progress=change_file)
    file.write_text("aaaa " * 100)
    train = prepare(str(file), BPE, cache=tmp_path / "cache").train
    assert "b" not in BPE.decode(train.read(0, len(train)))


def test_a_changed_file_with_the_old_mtime_and_size_is_read_again(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("aaaa " * 100)
    times = file.stat()
    first = prepare(str(file), BPE, cache=tmp_path / "cache")
    file.write_text("bbbb " * 100)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert prepare(str(file), BPE, cache=tmp_path / "cache").path != first.path


# ── other processes ───────────────────────────────────────────────────────────────────────────────────────────────

SHARD_BYTES = 1500
SCRIPT = f"""
import os, signal, sys
from headway import tokenizers
from headway.data import prepare

source, tokenizer, cache, kill_at = sys.argv[1:]
fsync, n_writes = os.fsync, 0

def kill_before_write(handle):
    global n_writes
    n_writes += 1
    if n_writes == int(kill_at):
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(handle)

os.fsync = kill_before_write
corpus = prepare(source, tokenizers.load_tokenizer(tokenizer), cache=cache, workers=1, shard_bytes={SHARD_BYTES})
print(corpus.path)
assert "torch" not in sys.modules
"""


@pytest.fixture
def command(tmp_path):
    """The command line of a process that prepares `DOCUMENTS` and, if told, kills itself while it writes."""
    (tmp_path / "documents.jsonl").write_text("\n".join(json.dumps({"text": document}) for document in DOCUMENTS))
    BPE.save(tmp_path / "bpe")

    def make(kill_at: int = 0) -> list[str]:
        paths = [str(tmp_path / name) for name in ("documents.jsonl", "bpe", "cache")]
        return [sys.executable, "-c", SCRIPT, *paths, str(kill_at)]

    return make


def test_repeated_sigkill_ends_with_the_same_shards(tmp_path, command):
    """Each process dies with a shard half written; the next one resumes from the finished shards."""
    n_finished = 0
    for kill_at in (5, 5, 4):  # counts the fsyncs of a process: finished shards are not written again
        process = subprocess.run(command(kill_at), capture_output=True)
        assert process.returncode == -signal.SIGKILL
        partial = list((tmp_path / "cache").rglob("*.partial/*.safetensors"))
        assert len(partial) > n_finished
        n_finished = len(partial)
        assert list((tmp_path / "cache").rglob("*.partial/*.tmp"))
    jsonl = str(tmp_path / "documents.jsonl")
    resumed = prepare(jsonl, BPE, cache=tmp_path / "cache", shard_bytes=SHARD_BYTES)
    uninterrupted = prepare(jsonl, BPE, cache=tmp_path / "other", shard_bytes=SHARD_BYTES)
    assert digests(resumed.path) == digests(uninterrupted.path)
    assert not list((tmp_path / "cache").rglob("*.partial"))


def test_two_processes_prepare_once_and_need_no_torch(command):
    processes = [subprocess.Popen(command(), stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate()[0].strip() for process in processes}
    assert len(paths) == 1
    assert all(process.returncode == 0 for process in processes)


# ── sources ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_prepare_takes_a_source_or_its_path(tmp_path):
    path = str(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_text("The same text. " * 40)
    assert prepare(path, BPE, cache=tmp_path).path == prepare(open_source(path), BPE, cache=tmp_path).path


def test_documents_may_have_no_tokens(tmp_path):
    """WordPiece drops control characters and has no EOS token."""
    wordpiece = tokenizers.train("wordpiece", DOCUMENTS, 300)
    documents = ["the cat", *["\x01\x02"] * 30]
    corpus = prepare(source(documents), wordpiece, SplitFractions(0.5, split="tail"), cache=tmp_path)
    assert len(corpus.valid) == 0
    assert len(corpus.train) == len(wordpiece.encode("the cat"))
