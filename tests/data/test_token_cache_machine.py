"""The token cache as a state machine: after any history, `prepare` returns what a fresh encoding gives."""

import json
import os
import random
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from headway import tokenizers
from headway.data import SplitFractions, open_prepared, prepare, split, token_cache, token_shards

WORDS = [f"word{i} " * (1 + i % 5) for i in range(30)]
TEXTS = [WORDS, WORDS[::-1], [word.upper() for word in WORDS], WORDS[:5]]
TOKENIZERS = [tokenizers.train("char", [*TEXTS[0], *TEXTS[2]]), tokenizers.train("bpe", WORDS, 280)]
FRACTIONS = [SplitFractions(0.2), SplitFractions(0.3, 0.2, "tail")]
N_FILES = N_CACHES = 2


class Killed(BaseException):
    """In place of SIGKILL: nothing catches it."""


SETUP = {
    "file": st.integers(0, N_FILES - 1),
    "tokenizer": st.sampled_from(TOKENIZERS),
    "fractions": st.sampled_from(FRACTIONS),
    "cache": st.integers(0, N_CACHES - 1),
}
RNGS = st.integers(0, 2**32).map(random.Random)  # spreads choices evenly, where st.randoms prefers the first


class TokenCacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.n_written = 0
        self.prepared: dict[tuple, tuple] = {}  # every setup that an entry was made from
        self.texts = [[""]] * N_FILES
        # Every version of a file gets a time of its own, so that scans may be cached at once.
        self.patch = mock.patch.object(token_cache, "TIMESTAMP_SECONDS", -60)
        self.patch.start()

    def teardown(self) -> None:
        try:
            for setup in self.prepared.values():
                self.prepared_tokens_equal_a_fresh_encoding(*setup)
        finally:
            self.patch.stop()
            shutil.rmtree(self.folder)

    # ── sources ──

    @initialize()
    def write_and_prepare(self) -> None:
        """With entries that differ in the text, in the tokenizer and in the split alone."""
        for file in range(N_FILES):
            self.write(file, TEXTS[file])
        for setup in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)):
            file, tokenizer, fractions = setup
            self.prepared_tokens_equal_a_fresh_encoding(file, TOKENIZERS[tokenizer], FRACTIONS[fractions], cache=0)

    @rule(file=st.integers(0, N_FILES - 1), text=st.sampled_from(TEXTS))
    def write(self, file: int, text: list[str]) -> None:
        self.n_written += 1
        path = self.path_of(file)
        path.write_text("".join(json.dumps({"text": document}) + "\n" for document in text))
        os.utime(path, (self.n_written, self.n_written))
        self.texts[file] = text

    def path_of(self, file: int) -> Path:
        return self.folder / f"{file}.jsonl"

    # ── preparing ──

    def open(self, file, tokenizer, fractions, cache):
        cache = self.folder / f"cache{cache}"
        return prepare(str(self.path_of(file)), tokenizer, fractions, cache=cache, workers=1, shard_bytes=100)

    @rule(**SETUP)
    def prepared_tokens_equal_a_fresh_encoding(self, file, tokenizer, fractions, cache):
        self.prepared[file, id(tokenizer), fractions, cache] = file, tokenizer, fractions, cache
        corpus = self.open(file, tokenizer, fractions, cache)
        splits = split(self.texts[file], fractions.valid_fraction, fractions.test_fraction, fractions.split)
        for opened in (corpus, open_prepared(corpus.path)):
            for name in ("train", "valid", "test"):
                tokens = getattr(opened, name)
                assert tokens.read(0, len(tokens)).tolist() == tokenizer.encode_stream(getattr(splits, name))

    @rule(**SETUP, n_writes=st.integers(0, 6))
    def a_writer_is_killed(self, file, tokenizer, fractions, cache, n_writes):
        """Before its next write, or before it gives the complete entry its name."""
        write_shard = token_shards.write_shard

        def write_or_die(*arguments):
            nonlocal n_writes
            if n_writes == 0:
                raise Killed
            n_writes -= 1
            return write_shard(*arguments)

        with (
            mock.patch.object(token_shards, "write_shard", write_or_die),
            mock.patch.object(token_shards, "seal_entry", side_effect=Killed),
            suppress(Killed),  # an entry that is there is just opened
        ):
            self.open(file, tokenizer, fractions, cache)

    # ── damage ──

    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("cache*/*/**/*") if path.is_file() and path.suffix != ".lock")

    def entries(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("cache*/tokens/*") if path.is_dir())

    @precondition(lambda self: self.files())
    @rule(rng=RNGS)
    def flip_a_bit(self, rng):
        file = rng.choice(self.files())
        data = bytearray(file.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.unlink()  # tokens that are mapped keep their pages
        file.write_bytes(data)

    @precondition(lambda self: self.files())
    @rule(rng=RNGS)
    def delete_a_file(self, rng):
        rng.choice(self.files()).unlink()

    @precondition(lambda self: self.files())
    @rule(rng=RNGS, equal=st.sampled_from(["name", "parent", "suffix"]))
    def exchange_two_files(self, rng, equal):
        """Shards of two entries, shards of one entry, or any."""
        file = rng.choice(self.files())
        others = [path for path in self.files() if path != file and getattr(path, equal) == getattr(file, equal)]
        if others:
            self.exchange(file, rng.choice(others))

    @precondition(lambda self: len(self.entries()) > 1)
    @rule(rng=RNGS)
    def exchange_two_entries(self, rng):
        self.exchange(*rng.sample(self.entries(), 2))

    @precondition(lambda self: self.entries())
    @rule(rng=RNGS)
    def make_an_entry_incomplete(self, rng):
        entry = rng.choice(self.entries())
        if not entry.with_suffix(".partial").exists():
            entry.rename(entry.with_suffix(".partial"))

    def exchange(self, a: Path, b: Path) -> None:
        a.rename(self.folder / "c")
        b.rename(a)
        (self.folder / "c").rename(b)


TestTokenCache = TokenCacheMachine.TestCase
TestTokenCache.settings = settings(max_examples=10, stateful_step_count=10, deadline=None, derandomize=True)
