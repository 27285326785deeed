"""Two processes write the same run, cache entry or model directory at the same time: one wins, and nothing is mixed."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import headway
from headway.data.token_shards import prepare
from headway.tokenizers import Tokenizer, load_tokenizer
from tests.fuzz import tiny_runs, warm_processes
from tests.fuzz.harness import Area
from tests.training.recipes import TEXT

LOST = 1  # exit code of a HeadwayError


def prepare_tokens(text: Path, tokenizer_folder: Path, cache: Path) -> None:
    prepare(str(text), load_tokenizer(tokenizer_folder), cache=cache, shard_bytes=200, workers=2)


def save_model(fill: float, path: Path) -> None:
    model = headway.create("gpt-tiny", vocab_size=50, context=16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(fill)
    for _ in range(3):
        model.save(path, overwrite=True)


class Writers(Area):
    name, full_count, ci_count = "writers", 80, 2
    max_seconds = 60.0

    def prepare(self) -> None:
        warm_processes.warm_up()
        self.recipe = tiny_runs.recipes(self.folder)["dropout"]
        self.undisturbed = self.folder / "undisturbed"
        self.output = self.folder / "output"
        warm_processes.finished(
            tiny_runs.train, self.recipe, self.undisturbed, self.folder / "cache", output=self.output
        )
        self.tokenizer_folder = self.undisturbed / "checkpoints" / "step-6"
        self.tokenizer: Tokenizer = load_tokenizer(self.tokenizer_folder)
        self.text = self.folder / "text.txt"

    def case(self, rng: random.Random) -> str:
        scratch = self.folder / "case"
        scratch.mkdir()
        try:
            return rng.choice([self._train, self._prepare, self._save])(scratch, rng)
        finally:
            shutil.rmtree(scratch)

    def _train(self, scratch: Path, rng: random.Random) -> str:
        """One of the two trains; the other is told so, or finds the run complete."""
        arguments = (self.recipe, scratch / "run", scratch / "cache")
        codes = self._run_both(tiny_runs.train, arguments, arguments, scratch, rng)
        assert sorted(codes)[0] == 0, f"exit codes {codes}"
        assert sorted(codes)[1] in (0, LOST), f"exit codes {codes}"
        tiny_runs.check_same(self.undisturbed, scratch / "run")
        return "one run"

    def _prepare(self, scratch: Path, rng: random.Random) -> str:
        arguments = (self.text, self.tokenizer_folder, scratch / "cache")
        codes = self._run_both(prepare_tokens, arguments, arguments, scratch, rng)
        assert codes == [0, 0], f"exit codes {codes}"
        corpus = prepare(str(self.text), self.tokenizer, cache=scratch / "cache", shard_bytes=200)
        ids = [int(i) for split in (corpus.train, corpus.test, corpus.valid) for i in split.read(0, len(split))]
        assert self.tokenizer.decode(ids) == TEXT, "the cached tokens are not the text"
        tiny_runs.check_clean(scratch / "cache")
        return "one cache entry"

    def _save(self, scratch: Path, rng: random.Random) -> str:
        codes = self._run_both(save_model, (1.0, scratch / "model"), (2.0, scratch / "model"), scratch, rng)
        assert set(codes) <= {0, LOST}, f"exit codes {codes}"
        values = {p.flatten()[0].item() for p in headway.load(scratch / "model").parameters()}
        assert values in ({1.0}, {2.0}), f"weights of both: {values}"
        tiny_runs.check_clean(scratch)
        return "one model"

    def _run_both(
        self,
        function: Callable[..., None],
        arguments: tuple[Any, ...],
        more_arguments: tuple[Any, ...],
        scratch: Path,
        rng: random.Random,
    ) -> list[int]:
        """Start two processes at nearly the same moment; returns their exit codes."""
        outputs = [scratch / "output-1", scratch / "output-2"]
        first = warm_processes.start(function, *arguments, output=outputs[0])
        first.join(rng.random() * 0.3)
        second = warm_processes.start(function, *more_arguments, output=outputs[1])
        for process in (first, second):
            process.join()
        codes = [first.exitcode or 0, second.exitcode or 0]
        for output, code in zip(outputs, codes, strict=True):
            text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
            assert code in (0, LOST), f"exit code {code}: {text[-2000:]}"
            output.unlink(missing_ok=True)
        return codes
