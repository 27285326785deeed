"""The token cache: whatever happens to its files, the tokens are those of the text, and the damage is reported."""

import json
import os
import random
import threading
from pathlib import Path

import numpy as np
import pytest

from headway import tokenizers
from headway.data import DataSource, Pair, SplitFractions, cache_folder, open_prepared, prepare, token_cache
from headway.data.shard_files import write_shard
from headway.data.token_cache import read_checksummed, write_checksummed
from headway.errors import DataError

DOCUMENTS = [f"Document {i}: the cat sat on mat {i * i}. " * (1 + i % 7) for i in range(60)]
BPE = tokenizers.train("bpe", DOCUMENTS, 300)
CHAR = tokenizers.train("char", DOCUMENTS)
FRACTIONS = SplitFractions(0.3)
SPLITS = ("train", "valid", "test")


def source(documents=DOCUMENTS, kind="text") -> DataSource:
    return DataSource("documents", kind, lambda: iter(documents))


def prepared(cache: Path, documents=DOCUMENTS, tokenizer=BPE, **options):
    return prepare(source(documents), tokenizer, FRACTIONS, cache=cache, shard_bytes=2000, workers=1, **options)


def tokens_of(corpus) -> dict[str, list[int]]:
    return {split: getattr(corpus, split).read(0, len(getattr(corpus, split))).tolist() for split in SPLITS}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return tokens_of(prepared(tmp_path_factory.mktemp("expected")))


# ── entries ───────────────────────────────────────────────────────────────────────────────────────────────────────


def flip_a_token(entry: Path) -> None:
    file = entry / "train-00001.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def cut_a_shard(entry: Path) -> None:
    file = entry / "train-00000.safetensors"
    file.write_bytes(file.read_bytes()[:-2])


def exchange(entry: Path, a: str, b: str) -> None:
    (entry / a).rename(entry / "c")
    (entry / b).rename(entry / a)
    (entry / "c").rename(entry / b)


def link_to_a_shard_elsewhere(entry: Path) -> None:
    file = entry / "train-00000.safetensors"
    (entry.parent.parent / "elsewhere").write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(entry.parent.parent / "elsewhere")


def name_a_shard_elsewhere(entry: Path) -> None:
    meta = read_checksummed(entry / "meta.json")
    outside = entry.parent.parent / "elsewhere.safetensors"
    arrays = {"tokens": np.array([1, 2], np.uint16), "ends": np.array([2]), "bytes": np.array([2])}
    meta["shards"]["valid"] = {f"../../{outside.name}": write_shard(outside, arrays, "")}
    meta["tokens"]["valid"] = 2
    write_checksummed(entry / "meta.json", meta)


def edit_meta(entry: Path) -> None:
    file = entry / "meta.json"
    file.write_text(file.read_text().replace('"source": "documents"', '"source": "Documents"'))


def remove_meta_value(entry: Path, name: str) -> None:
    meta = read_checksummed(entry / "meta.json")
    del meta[name]
    write_checksummed(entry / "meta.json", meta)


def put_in_place_of(file: Path, make) -> None:
    file.unlink()
    make(file)


DAMAGES = {
    "a bit of a shard": flip_a_token,
    "a shard cut off": cut_a_shard,
    "a shard missing": lambda entry: (entry / "valid-00000.safetensors").unlink(),
    "shards exchanged in a split": lambda entry: exchange(entry, "train-00000.safetensors", "train-00001.safetensors"),
    "shards exchanged between splits": lambda entry: exchange(
        entry, "train-00000.safetensors", "valid-00000.safetensors"
    ),
    "a link in place of a shard": link_to_a_shard_elsewhere,
    "a shard named outside": name_a_shard_elsewhere,
    "a pipe in place of a shard": lambda entry: put_in_place_of(entry / "train-00000.safetensors", os.mkfifo),
    "a folder in place of a shard": lambda entry: put_in_place_of(entry / "train-00000.safetensors", os.mkdir),
    "no meta.json": lambda entry: (entry / "meta.json").unlink(),
    "a value of meta.json": edit_meta,
    "meta.json without shards": lambda entry: remove_meta_value(entry, "shards"),
    "meta.json without a split": lambda entry: remove_meta_value(entry, "fractions"),
    "meta.json nested deeply": lambda entry: (entry / "meta.json").write_text("[" * 100_000),
    "meta.json a list": lambda entry: (entry / "meta.json").write_text("[]"),
    "a pipe in place of meta.json": lambda entry: put_in_place_of(entry / "meta.json", os.mkfifo),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_entry_is_made_again_with_a_note(damage, tmp_path, expected):
    entry = prepared(tmp_path).path
    damage(entry)
    with pytest.raises(DataError, match="damaged"):
        open_prepared(entry)
    notes = []
    assert tokens_of(prepared(tmp_path, on_note=notes.append)) == expected
    assert len(notes) == 1
    assert "cached tokens of documents are encoded again: " in notes[0]
    assert str(entry) in notes[0] or "elsewhere" in notes[0]
    assert tokens_of(prepared(tmp_path, on_note=notes.append)) == expected
    assert len(notes) == 1  # whole from then on
    assert sorted(path.name for path in (tmp_path / "tokens").iterdir()) == [entry.name, f"{entry.name}.lock"]


def test_random_damage_is_always_repaired(tmp_path, expected):
    entry = prepared(tmp_path).path
    rng = random.Random(0)
    for _ in range(25):
        file = rng.choice(sorted(entry.iterdir()))
        data = bytearray(file.read_bytes())
        start = rng.randrange(len(data))
        data[start : start + rng.choice([1, 8, 10_000])] = rng.randbytes(rng.choice([0, 1, 8, 100]))
        file.write_bytes(data)
        assert tokens_of(prepared(tmp_path)) == expected


@pytest.mark.parametrize(("documents", "tokenizer"), [(DOCUMENTS[:40], BPE), (DOCUMENTS, CHAR)])
def test_the_entry_of_another_text_or_tokenizer_is_foreign(documents, tokenizer, tmp_path, expected):
    entry = prepared(tmp_path).path
    other = prepared(tmp_path, documents, tokenizer).path
    token_cache.remove(entry)
    other.rename(entry)
    notes = []
    assert tokens_of(prepared(tmp_path, on_note=notes.append)) == expected
    assert "belongs to another text" in notes[0]


def test_a_text_that_reads_like_a_pair_has_an_entry_of_its_own(tmp_path):
    pairs = [Pair(f"{i}", "b") for i in range(30)]
    as_pairs = prepare(source(pairs, "pairs"), BPE, FRACTIONS, cache=tmp_path)
    as_text = prepare(source([repr(pair) for pair in pairs]), BPE, FRACTIONS, cache=tmp_path)
    assert as_pairs.path != as_text.path


def test_tokens_in_use_survive_that_their_entry_is_made_again(tmp_path, expected):
    in_use = prepared(tmp_path)
    (in_use.path / "meta.json").write_text("damaged")
    assert tokens_of(prepared(tmp_path)) == expected
    assert tokens_of(in_use) == expected


def test_several_writers_repair_one_entry_together(tmp_path, expected):
    flip_a_token(prepared(tmp_path).path)
    results: list[dict[str, list[int]]] = []
    threads = [threading.Thread(target=lambda: results.append(tokens_of(prepared(tmp_path)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 3


def test_what_a_process_killed_while_removing_an_entry_left_is_removed(tmp_path):
    entry = prepared(tmp_path).path
    (tmp_path / "tokens" / f".{entry.name}.x.old" / entry.name).mkdir(parents=True)
    (entry / "meta.json").unlink()
    prepared(tmp_path)
    assert not list((tmp_path / "tokens").glob(".*"))


# ── incomplete entries ────────────────────────────────────────────────────────────────────────────────────────────


def partial_of(cache: Path, entry: Path) -> Path:
    partial = cache / "tokens" / f"{entry.name}.partial"
    partial.parent.mkdir(parents=True)
    return partial


def test_a_damaged_shard_of_an_incomplete_entry_is_encoded_again(tmp_path, expected):
    entry = prepared(tmp_path / "other").path
    flip_a_token(entry)
    partial = partial_of(tmp_path / "cache", entry)
    entry.rename(partial)
    (partial / "meta.json").unlink()
    assert tokens_of(prepared(tmp_path / "cache")) == expected


@pytest.mark.parametrize(("documents", "tokenizer"), [(DOCUMENTS[:40], BPE), (DOCUMENTS, CHAR)])
def test_shards_of_another_text_or_tokenizer_are_not_resumed_from(documents, tokenizer, tmp_path, expected):
    entry = prepared(tmp_path / "expected").path
    partial = partial_of(tmp_path / "cache", entry)
    prepared(tmp_path / "other", documents, tokenizer).path.rename(partial)
    assert tokens_of(prepared(tmp_path / "cache")) == expected


def test_a_folder_of_yours_linked_into_the_cache_is_left_alone(tmp_path, expected):
    entry = prepared(tmp_path / "expected").path
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tmp").write_text("my thesis")
    partial_of(tmp_path / "cache", entry).symlink_to(tmp_path / "mine")
    assert tokens_of(prepared(tmp_path / "cache")) == expected
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tmp"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("nowhere")])
def test_anything_in_the_place_of_a_shard_or_its_folder_is_replaced(make, tmp_path, expected):
    entry = prepared(tmp_path / "expected").path
    for name in ("train-00000.safetensors", "train-00000.safetensors.x.tmp", "meta.json"):
        partial = partial_of(tmp_path / name, entry)
        partial.mkdir()
        make(partial / name)
        assert tokens_of(prepared(tmp_path / name)) == expected
    for suffix in (".partial", ""):
        place = partial_of(tmp_path / f"folder{suffix}", entry).with_suffix(suffix)
        make(place)
        assert tokens_of(prepared(tmp_path / f"folder{suffix}")) == expected


# ── scans ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def text_file(tmp_path, monkeypatch):
    monkeypatch.setattr(token_cache, "TIMESTAMP_SECONDS", -60)  # the file is seconds old: trust its times
    file = tmp_path / "documents.jsonl"
    file.write_text("\n".join(json.dumps({"text": document}) for document in DOCUMENTS))
    return file


def prepared_file(cache: Path, file: Path, **options):
    return prepare(str(file), BPE, FRACTIONS, cache=cache, shard_bytes=2000, workers=1, **options)


def forge_counts(scan: Path) -> None:
    """Counts that would split by position instead of by hash."""
    document = read_checksummed(scan)
    write_checksummed(scan, {**document, "split_counts": {"train": document["n_records"], "valid": 0, "test": 0}})


SCAN_DAMAGES = {
    "a digit": lambda scan: scan.write_text(scan.read_text().replace('"n_records": 60', '"n_records": 15')),
    "cut off": lambda scan: scan.write_text(scan.read_text()[:50]),
    "nested deeply": lambda scan: scan.write_text("[" * 100_000),
    "another document": lambda scan: scan.write_text("[1]"),
    "negative counts": lambda scan: write_checksummed(scan, {**read_checksummed(scan), "n_units": -5}),
    "counts that do not add up": lambda scan: write_checksummed(scan, {**read_checksummed(scan), "n_records": 15}),
    "no counts": lambda scan: write_checksummed(scan, {"identity": read_checksummed(scan)["identity"]}),
    "a pipe": lambda scan: put_in_place_of(scan, os.mkfifo),
    "a folder": lambda scan: put_in_place_of(scan, os.mkdir),
    "a link": lambda scan: put_in_place_of(scan, lambda path: path.symlink_to("nowhere")),
}


@pytest.mark.parametrize("damage", SCAN_DAMAGES.values(), ids=SCAN_DAMAGES)
@pytest.mark.parametrize("has_tokens", [True, False])
def test_a_damaged_scan_is_made_again_with_a_note(damage, has_tokens, tmp_path, text_file, expected):
    entry = prepared_file(tmp_path, text_file).path
    (scan,) = (tmp_path / "scans").iterdir()
    intact = scan.read_bytes()
    damage(scan)
    if not has_tokens:
        token_cache.remove(entry)
    notes = []
    assert tokens_of(prepared_file(tmp_path, text_file, on_note=notes.append)) == expected
    assert len(notes) == 1
    assert str(scan) in notes[0]
    assert "the text is read again" in notes[0]
    assert scan.read_bytes() == intact
    assert list((tmp_path / "scans").iterdir()) == [scan]


def test_the_scan_of_another_text_is_foreign(tmp_path, text_file, expected):
    prepared_file(tmp_path, text_file)
    (scan,) = (tmp_path / "scans").iterdir()
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(json.dumps({"text": document}) for document in DOCUMENTS[:40]))
    prepared_file(tmp_path, other)
    (other_scan,) = set((tmp_path / "scans").iterdir()) - {scan}
    other_scan.rename(scan)
    notes = []
    assert tokens_of(prepared_file(tmp_path, text_file, on_note=notes.append)) == expected
    assert "belongs to another text" in notes[0]


def test_a_scan_with_other_counts_does_not_change_the_split(tmp_path, text_file, expected):
    """Even with a checksum of its own: the counts are compared while the text is encoded."""
    entry = prepared_file(tmp_path, text_file).path
    (scan,) = (tmp_path / "scans").iterdir()
    forge_counts(scan)
    notes = []
    assert tokens_of(prepared_file(tmp_path, text_file, on_note=notes.append)) == expected
    assert "out of date" in notes[0]
    assert [path for path in (tmp_path / "tokens").iterdir() if path.is_dir()] == [entry]


def test_a_file_rewritten_within_one_tick_of_the_clock_is_read_again(tmp_path, monkeypatch):
    """Such a file keeps its size and times; here its identity is fixed, as if the clock stood still."""
    monkeypatch.setattr(DataSource, "identity", "the same")
    file = tmp_path / "a.txt"
    for text in ("aaaa " * 100, "bbbb " * 100):
        file.write_text(text)
        train = prepare(str(file), BPE, cache=tmp_path / "cache").train
        assert BPE.decode(train.read(0, len(train)))[:5] == text[:5]


# ── the cache folder ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_cache_that_is_a_file_is_named(tmp_path):
    (tmp_path / "cache").write_text("mine")
    with pytest.raises(DataError, match=r"cannot write tokens under .*cache.*Not a directory.*HEADWAY_CACHE"):
        prepared(tmp_path / "cache")
    assert (tmp_path / "cache").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "cache").mkdir(mode=0o500)
    with pytest.raises(DataError, match=r"cannot write tokens under .*cache.*Permission denied.*HEADWAY_CACHE"):
        prepared(tmp_path / "cache")


def test_a_cache_of_an_unknown_user_is_refused(monkeypatch):
    monkeypatch.setenv("HEADWAY_CACHE", "~nobody-has-this-name/cache")
    with pytest.raises(DataError, match="unknown user: set HEADWAY_CACHE"):
        cache_folder()


def test_a_lock_of_another_kind_does_not_hang(tmp_path, expected):
    entry = prepared(tmp_path).path
    lock = entry.with_suffix(".lock")
    token_cache.remove(entry)
    put_in_place_of(lock, os.mkfifo)
    assert tokens_of(prepared(tmp_path)) == expected
    token_cache.remove(entry)
    put_in_place_of(lock, os.mkdir)
    with pytest.raises(DataError, match=rf"cannot write tokens under .*Is a directory \({lock}\)"):
        prepared(tmp_path)


def test_too_many_open_files_are_no_damage(tmp_path, monkeypatch):
    """The entry is whole, and encoding it again would not help."""
    entry = prepared(tmp_path).path
    monkeypatch.setattr(token_cache, "read_shard", lambda file: open_too_many(file))
    notes = []
    with pytest.raises(DataError, match="ulimit -n"):
        prepared(tmp_path, on_note=notes.append)
    monkeypatch.undo()
    assert not notes
    assert open_prepared(entry).meta["source"] == "documents"


def open_too_many(file: Path) -> None:
    import errno

    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(file))
