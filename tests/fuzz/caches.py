"""Damaged token caches: whatever lies in the cache folder, the tokens are those of the text, or an error says why not.

A case copies an intact cache with entries of several texts, tokenizers and splits, damages it in one to three ways, and
prepares one of the texts again. The tokens must be the undisturbed ones, the entry intact afterwards, a rebuilt entry
reported, and the user's own files untouched, though links in the cache lead to them.
"""

import json
import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from headway import tokenizers
from headway.data import SplitFractions, open_prepared, prepare, token_cache, token_shards
from headway.data.token_cache import read_checksummed, write_checksummed
from headway.data.token_shards import PreparedCorpus
from headway.errors import DataError
from headway.tokenizers import Tokenizer
from tests.fuzz.harness import Area
from tests.fuzz.mutations import mutate_bytes, mutate_json, mutate_json_text, remove, replace_file

SHARD_BYTES = 1000
MAX_FILE_BYTES = 10**6  # of files to change: an earlier mutation may have put a sparse file of gigabytes there
SPLITS = ("train", "valid", "test")
THESIS = "my thesis"


@dataclass(frozen=True)
class Setup:
    """What one entry of the cache is made from."""

    file: Path
    tokenizer: Tokenizer
    fractions: SplitFractions


class Killed(BaseException):
    """In place of SIGKILL: nothing catches it."""


class Caches(Area):
    name = "caches"
    full_count = 2_400
    ci_count = 20

    def prepare(self) -> None:
        texts = [[f"Document {i}, the {word} one. " * (1 + i % 4) for i in range(30)] for word in ("first", "other")]
        for number, documents in enumerate(texts):
            lines = (json.dumps({"text": document}) + "\n" for document in documents)
            (self.folder / f"{number}.jsonl").write_text("".join(lines))
        bpe, char = tokenizers.train("bpe", texts[0], 280), tokenizers.train("char", [*texts[0], *texts[1]])
        first, other = self.folder / "0.jsonl", self.folder / "1.jsonl"
        self.setups = [
            Setup(first, bpe, SplitFractions(0.3)),
            Setup(first, char, SplitFractions(0.3)),
            Setup(first, bpe, SplitFractions(0.2, 0.2, "tail")),
            Setup(other, bpe, SplitFractions(0.3)),
        ]
        self.intact, self.cache = self.folder / "intact", self.folder / "cache"
        self.expected = [tokens_of(self.open(setup, self.intact)) for setup in self.setups]
        self.keys = [self.open(setup, self.intact).path.name for setup in self.setups]

    def open(self, setup: Setup, cache: Path, on_note: Callable[[str], None] = lambda note: None) -> PreparedCorpus:
        with mock.patch.object(token_cache, "TIMESTAMP_SECONDS", -60):  # the files are seconds old: trust their times
            return prepare(
                str(setup.file),
                setup.tokenizer,
                setup.fractions,
                cache=cache,
                workers=1,
                shard_bytes=SHARD_BYTES,
                on_note=on_note,
            )

    def case(self, rng: random.Random) -> str:
        number, other = rng.sample(range(len(self.setups)), 2)
        left_out = [f"{key}*" for i, key in enumerate(self.keys) if i not in (number, other)]
        shutil.copytree(self.intact, self.cache, ignore=shutil.ignore_patterns(*left_out))
        mine = self.folder / "mine"
        mine.mkdir()
        (mine / "thesis.tmp").write_text(THESIS)
        try:
            entry = self.cache / "tokens" / self.keys[number]
            for _ in range(rng.choice([1, 1, 2, 3])):
                with suppress(OSError):  # the damage before may be in the way
                    self.damage(rng, entry, mine)
            if rng.random() < 0.2:
                self.open_and_die(rng, self.setups[number])
            outcome = self.check(number, entry)
        finally:
            make_accessible(self.cache)
            kept = [(path.name, path.is_file() and path.read_text()) for path in mine.iterdir()]
            remove(mine)
            remove(self.cache)
            if kept != [("thesis.tmp", THESIS)]:
                self.fail(f"the cache wrote to a folder that is not its own: {kept}")
        return outcome

    def check(self, number: int, entry: Path) -> str:
        before = os.lstat(entry).st_ino if os.path.lexists(entry) else None
        notes: list[str] = []
        corpus = self.open(self.setups[number], self.cache, notes.append)
        if tokens_of(corpus) != self.expected[number]:
            self.fail(f"other tokens; notes: {notes}")
        if corpus.path != entry:
            self.fail(f"the entry is {corpus.path.name}, not {entry.name}")
        is_new = before != os.lstat(entry).st_ino
        if is_new and before is not None and not notes:
            self.fail("the entry was made again in silence")
        if tokens_of(open_prepared(entry)) != self.expected[number]:
            self.fail("the entry on disk has other tokens")
        again: list[str] = []
        if tokens_of(self.open(self.setups[number], self.cache, again.append)) != self.expected[number] or again:
            self.fail(f"not whole after it was prepared: {again}")
        if is_new and any(path.name != f"{entry.name}.lock" for path in entry.parent.glob(f"*{entry.name}?*")):
            self.fail(f"left over: {sorted(path.name for path in entry.parent.iterdir())}")
        return "made again" if is_new else "read again" if notes else "intact"

    def open_and_die(self, rng: random.Random, setup: Setup) -> None:
        """Prepare, and stop at a random write."""
        n_left = rng.randrange(8)

        def die(*arguments: Any) -> str:
            nonlocal n_left
            n_left -= 1
            if n_left < 0:
                raise Killed
            return write_shard(*arguments)

        write_shard = token_shards.write_shard
        with mock.patch.object(token_shards, "write_shard", die), suppress(Killed, DataError):
            self.open(setup, self.cache)

    def damage(self, rng: random.Random, entry: Path, mine: Path) -> None:
        tokens = entry.parent
        partial = entry.with_suffix(".partial")
        files = [path for path in sorted(self.cache.rglob("*")) if path.is_file() and not path.is_symlink()]
        files = [path for path in files if path.stat().st_size < MAX_FILE_BYTES]
        own = [path for path in files if path.parent in (entry, partial)] * 2
        own += [path for path in files if path.parent.name == "scans"]
        file = rng.choice(own or files or [entry])
        places = [file, file, entry, partial, entry.with_suffix(".lock"), tokens, file.parent]
        match rng.randrange(11):
            case 0 if file.suffix == ".json":
                with suppress(ValueError, RecursionError):  # damaged already
                    file.write_text(mutate_json_text(json.loads(file.read_bytes()), rng))
            case 1 if file.suffix == ".json":  # with a correct checksum
                seal_mutated(file, rng)
            case 2:
                place = rng.choice(places)
                place.parent.mkdir(exist_ok=True)
                replace_file(place, rng)
            case 3:
                place = rng.choice(places[:4])
                remove(place)
                place.parent.mkdir(exist_ok=True)
                place.symlink_to(rng.choice([mine, mine / "thesis.tmp", self.intact / "tokens" / self.keys[0]]))
            case 4 if len(files) > 1:
                exchange(file, rng.choice([other for other in files if other != file]))
            case 5 if len(files) > 1:
                shutil.copyfile(rng.choice([other for other in files if other != file]), file)
            case 6:
                other = tokens / rng.choice([key for key in self.keys if key != entry.name])
                if other.is_dir() and os.path.lexists(entry):
                    exchange(other, entry)
            case 7:  # as if a writer had been killed
                whole = tokens / rng.choice([entry.name, entry.name, *self.keys])
                if whole.is_dir() and not os.path.lexists(partial):
                    whole.rename(partial)
            case 8:
                folder = rng.choice([entry, tokens, self.cache / "scans"])
                if folder.is_dir() and not folder.is_symlink():
                    name = rng.choice([f".{entry.name}.x.old", "x.tmp", "train-00099.safetensors", "train-00000.x.tmp"])
                    (folder / name).mkdir(exist_ok=True)
                    (folder / name / "file").touch()
            case 9 if os.geteuid() and not file.is_symlink():  # root reads and writes everything
                rng.choice([file, file.parent]).chmod(rng.choice([0, 0o400, 0o500]))
            case _ if file in files:
                file.write_bytes(mutate_bytes(file.read_bytes(), rng))


def seal_mutated(file: Path, rng: random.Random) -> None:
    try:
        document = mutate_json(read_checksummed(file), rng)
    except (DataError, OSError):
        return
    if isinstance(document, dict):
        write_checksummed(file, document)


def make_accessible(folder: Path) -> None:
    for parent, _, _ in os.walk(folder):  # top down: a folder is listed after its parent was made accessible
        for child in [Path(parent), *Path(parent).iterdir()]:
            if child.is_dir() and not child.is_symlink():
                child.chmod(0o700)


def exchange(a: Path, b: Path) -> None:
    c = a.with_name("exchanged")
    a.rename(c)
    b.rename(a)
    c.rename(b)


def tokens_of(corpus: PreparedCorpus) -> list[list[int]]:
    splits = [getattr(corpus, split) for split in SPLITS]
    return [[*split.read(0, len(split)).tolist(), -1, *split.document_ends.tolist()] for split in splits]
