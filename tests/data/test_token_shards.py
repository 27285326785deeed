"""Prepared tokens: the same as encoding by hand, from any number of workers, and whatever happens half-way."""

import errno
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from headway import tokenizers
from headway.data import DataSource, SplitFractions, TokenArray, open_source, prepare, split
from headway.data import token_shards as shards
from headway.errors import DataError, InputError

DOCUMENTS = [f"Document {i}: the cat sat on mat {i * i}. " * (1 + i % 7) for i in range(120)]
BPE = tokenizers.train("bpe", DOCUMENTS, 300)


def source(documents=DOCUMENTS) -> DataSource:
    return DataSource("documents", "text", lambda: iter(documents))


def contents(folder: Path) -> dict[str, str]:
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(folder.iterdir())}


@pytest.mark.parametrize("kind", ["bpe", "char", "wordpiece", "unigram"])
def test_shards_hold_the_stream_of_each_part(kind, tmp_path):
    """Begin and end of text as everywhere: joined, the shards are what `stream` gives."""
    tokenizer = BPE if kind == "bpe" else tokenizers.train(kind, DOCUMENTS, 300 if kind != "char" else None)
    made = prepare(source(), tokenizer, SplitFractions(0.2, 0.1), cache=tmp_path, shard=2000)
    parts = split(DOCUMENTS, 0.2, 0.1)
    assert len(made.train.files) > 3
    for name in ("train", "valid", "test"):
        tokens, documents = getattr(made, name), getattr(parts, name)
        assert tokens.read(0, len(tokens)).tolist() == tokenizer.stream(documents)
        assert tokens.n_documents == len(documents)
        assert tokens.n_bytes == sum(len(d.encode()) for d in documents)
        ends = np.cumsum([len(d) for d in tokenizer.framed_arrays(documents)])
        assert tokens.document_ends.tolist() == ends.tolist()


def test_workers_do_not_change_a_byte(tmp_path):
    folders = [prepare(source(), BPE, cache=tmp_path / str(n), workers=n, shard=1500).path for n in (1, 2, 5)]
    assert contents(folders[0]) == contents(folders[1]) == contents(folders[2])


def test_what_is_prepared_is_found_again_and_what_changed_is_made_anew(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("All work and no play makes a dull text. " * 40)
    cache = tmp_path / "cache"
    made = prepare(str(tmp_path / "a.txt"), BPE, cache=cache)
    monkeypatch.setattr(shards, "_encode_shard", None)  # would fail if asked to do anything
    monkeypatch.setattr(shards, "Scan", None)
    assert prepare(str(tmp_path / "a.txt"), BPE, cache=cache).path == made.path
    monkeypatch.undo()
    (tmp_path / "a.txt").write_text("All play and no work makes a dull text. " * 41)
    assert prepare(str(tmp_path / "a.txt"), BPE, cache=cache).path != made.path
    other = tokenizers.train("bpe", DOCUMENTS, 290)
    assert prepare(str(tmp_path / "a.txt"), other, cache=cache).path != made.path
    assert made.path.is_dir()  # and what was there stays


def test_a_copy_of_the_file_is_the_same_content(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("The same text. " * 40)
    a, b = (prepare(str(tmp_path / name), BPE, cache=tmp_path / "cache") for name in ("a.txt", "b.txt"))
    assert a.path == b.path


def test_safetensors_reads_them_too(tmp_path):
    made = prepare(source(), BPE, cache=tmp_path)
    arrays = load_file(made.train.files[0])
    assert arrays["tokens"].dtype == np.uint16
    assert arrays["tokens"].tolist() == made.train.shards[0]["tokens"].tolist()


@given(st.data())
@settings(max_examples=50)
def test_reading_across_shards_is_reading_one_row(data):
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    row = np.arange(sum(sizes))
    tokens = TokenArray([])
    cuts = np.cumsum(sizes)
    tokens.shards = [{"tokens": row[end - n : end]} for end, n in zip(cuts, sizes, strict=True)]
    tokens.ends = cuts
    start = data.draw(st.integers(0, len(row)))
    stop = data.draw(st.integers(start, len(row)))
    assert tokens.read(start, stop).tolist() == list(range(start, stop))
    with pytest.raises(InputError, match="not all there"):
        tokens.read(0, len(row) + 1)


def test_a_full_disk_is_named_and_nothing_is_lost(tmp_path, monkeypatch):
    before = prepare(source(DOCUMENTS[:30]), BPE, cache=tmp_path)
    kept = contents(before.path)
    calls = 0
    write = os.fsync

    def full(handle):
        nonlocal calls
        calls += 1
        if calls > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"No space left on device.*MB are needed.*HEADWAY_CACHE"):
        prepare(source(), BPE, cache=tmp_path, shard=1500, workers=2)
    monkeypatch.undo()
    assert contents(before.path) == kept
    assert not list(tmp_path.rglob("*.tmp"))
    made = prepare(source(), BPE, cache=tmp_path, shard=1500)  # and once there is room, it goes on
    assert contents(made.path) == contents(prepare(source(), BPE, cache=tmp_path / "other", shard=1500).path)


def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path):
    """What is kept under a hash of the content has that content."""
    file = tmp_path / "a.txt"
    file.write_text("aaaa " * 100)

    def meddle(progress):
        if progress.stage == "reading":
            file.write_text("bbbb " * 100)

    with pytest.raises(DataError, match="changed while it was read"):
        prepare(str(file), BPE, cache=tmp_path / "cache", report=meddle)
    file.write_text("aaaa " * 100)
    made = prepare(str(file), BPE, cache=tmp_path / "cache")
    assert "b" not in BPE.decode(made.train.read(0, len(made.train)))


def test_a_file_with_the_old_time_and_size_is_read_again(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("aaaa " * 100)
    times = file.stat()
    first = prepare(str(file), BPE, cache=tmp_path / "cache")
    file.write_text("bbbb " * 100)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert prepare(str(file), BPE, cache=tmp_path / "cache").path != first.path


def test_shards_of_another_text_in_the_way_are_not_taken(tmp_path):
    whole = prepare(source(), BPE, cache=tmp_path / "whole", shard=1500).path
    aside = tmp_path / "cache" / "tokens" / f"{whole.name}.partial"
    aside.mkdir(parents=True)
    other = prepare(source(DOCUMENTS[60:]), BPE, cache=tmp_path / "other", shard=1500)
    (aside / "train-00000.safetensors").write_bytes(other.train.files[0].read_bytes())
    assert contents(prepare(source(), BPE, cache=tmp_path / "cache", shard=1500).path) == contents(whole)


def test_a_folder_without_its_description_is_made_anew(tmp_path):
    made = prepare(source(), BPE, cache=tmp_path)
    (made.path / "meta.json").unlink()
    assert prepare(source(), BPE, cache=tmp_path).train.n_documents == made.train.n_documents


def test_a_damaged_folder_is_named(tmp_path):
    made = prepare(source(), BPE, cache=tmp_path)
    made.train.files[0].unlink()
    with pytest.raises(DataError, match="remove it to have it made anew"):
        prepare(source(), BPE, cache=tmp_path)


SCRIPT = """
import sys
from headway import tokenizers
from headway.data import open_source, prepare
tokenizer = tokenizers.load_tokenizer(sys.argv[2])
print(prepare(open_source(sys.argv[1]), tokenizer, cache=sys.argv[3], shard=100_000).path)
"""


def test_killed_again_and_again_it_ends_with_the_same_shards(tmp_path):
    rng = random.Random(1)
    words = ["cat", "dog", "tree", "house", "über", "x1", "\n", "very", "long-winded"]
    lines = [json.dumps({"text": " ".join(rng.choices(words, k=60))}) for _ in range(20_000)]
    (tmp_path / "big.jsonl").write_text("\n".join(lines))
    BPE.save(tmp_path / "bpe")

    def command(cache: str) -> list[str]:
        return [sys.executable, "-c", SCRIPT, str(tmp_path / "big.jsonl"), str(tmp_path / "bpe"), str(tmp_path / cache)]

    started = time.monotonic()
    whole = subprocess.run(command("whole"), capture_output=True, text=True, check=True).stdout.strip()
    seconds = time.monotonic() - started
    for _ in range(6):
        process = subprocess.Popen(command("killed"), stdout=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.3, 1.0) * seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = subprocess.run(command("killed"), capture_output=True, text=True, check=True).stdout.strip()
    assert contents(Path(done)) == contents(Path(whole))
    assert not list((tmp_path / "killed").rglob("*.partial"))


def test_two_at_once_make_it_once(tmp_path):
    BPE.save(tmp_path / "bpe")
    (tmp_path / "a.txt").write_text("".join(DOCUMENTS))
    arguments = [sys.executable, "-c", SCRIPT, str(tmp_path / "a.txt"), str(tmp_path / "bpe"), str(tmp_path / "cache")]
    both = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate()[0].strip() for process in both}
    assert len(paths) == 1
    assert all(process.returncode == 0 for process in both)


def test_preparing_needs_no_torch(tmp_path):
    (tmp_path / "a.txt").write_text("".join(DOCUMENTS))
    BPE.save(tmp_path / "bpe")
    check = SCRIPT + "\nassert 'torch' not in sys.modules\n"
    arguments = [sys.executable, "-c", check, str(tmp_path / "a.txt"), str(tmp_path / "bpe"), str(tmp_path / "cache")]
    subprocess.run(arguments, check=True)


def test_an_opened_source_or_its_name(tmp_path):
    a = prepare("dates", BPE, cache=tmp_path)
    assert prepare(open_source("dates"), BPE, cache=tmp_path).path == a.path


def test_a_text_without_tokens_is_no_trouble(tmp_path):
    """WordPiece drops control characters, and has no token for the end of a text."""
    wordpiece = tokenizers.train("wordpiece", DOCUMENTS, 300)
    documents = ["the cat", *["\x01\x02"] * 30]
    made = prepare(
        DataSource("odd", "text", lambda: iter(documents)), wordpiece, SplitFractions(0.5, split="tail"), cache=tmp_path
    )
    assert len(made.valid) == 0
    assert len(made.train) == len(wordpiece.encode("the cat"))
