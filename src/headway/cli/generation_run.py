"""Run `headway generate`: print texts as they come, or write them to a file."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from headway.cli.generation_options import OutputFlags, StopFlags
from headway.cli.generation_output import (
    hypotheses_json,
    print_explained,
    print_hypotheses,
    print_texts,
    print_texts_json,
    text_json,
    token_json,
)
from headway.cli.options import print_json, print_notes
from headway.cli.progress import CountDisplay
from headway.cli.prompt_files import JsonLinesFile, output_line
from headway.cli.sampler_options import SamplerFlags, parse_order, sampler_settings

if TYPE_CHECKING:
    from headway.generation.beam_search import Hypothesis
    from headway.generation.generate import Token

BATCHES_PER_WRITE = 8  # a file is extended after so many batches, in which prompts are sorted by length


@dataclass(frozen=True)
class Sampling:
    """Sampled texts: one row per text, n rows per prompt."""

    model: Any
    name: str
    prompts: list[str]
    prompt_ids: list[list[int]]
    n_per_prompt: int
    seed: int  # of the first row
    samplers: SamplerFlags
    stopping: StopFlags
    output: OutputFlags
    batch_size: int

    @property
    def is_greedy(self) -> bool:
        return self.samplers["temperature"] == 0

    @property
    def draws(self) -> bool:
        """Whether a filter also draws at random (xtc)."""
        return self.samplers["xtc_probability"] is not None

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `headway.generate` beside the pipeline."""
        return {**self.stopping.options, "logprobs": self.output.logprobs, "explain": self.output.explain}

    @cached_property
    def pipe(self) -> Any:
        """The sampler pipeline. Its notes are printed when it is made."""
        from headway.generation.sampling_params import eos_token_ids, make_pipeline

        pipe = make_pipeline(
            self.model.tokenizer,
            eos_token_ids(self.model, self.stopping.stop_token_ids or []),
            self.samplers["sampler_preset"] or "default",
            parse_order(self.samplers["sampler_order"]),
            temperature=self.samplers["temperature"],
            **sampler_settings(self.samplers, self.model.tokenizer),
        )
        print_notes(pipe)
        return pipe

    @property
    def prompts_per_write(self) -> int:
        return max(1, BATCHES_PER_WRITE * self.batch_size // self.n_per_prompt)

    def texts(self, start: int, end: int) -> list[list[dict[str, Any]]]:
        """The texts of the prompts from `start` to `end`, as JSON."""
        n, details = self.n_per_prompt, self.output.logprobs is not None or self.output.explain
        rows = self._collect(start * n, end * n)
        seeds = range(self.seed + start * n, self.seed + end * n)
        texts = [text_json(row, self.model.tokenizer, s, details=details) for row, s in zip(rows, seeds, strict=True)]
        return [texts[i : i + n] for i in range(0, len(texts), n)]

    def _collect(self, start: int, end: int) -> "list[list[Token]]":
        """The tokens of the rows from `start` to `end`."""
        rows: list[list[Token]] = [[] for _ in range(start, end)]
        for token in self._tokens(start, end):
            rows[token.row].append(token)
        return rows

    def _tokens(self, start: int, end: int) -> "Iterator[Token]":
        import headway

        options = {**self.options, "seed": self.seed + start, "batch_size": self.batch_size}
        return headway.generate(self.model, self.prompt_ids[start:end], pipeline=self.pipe, **options)

    def run(self, *, json: bool) -> None:
        tokenizer, details, start = self.model.tokenizer, self.output, time.monotonic()
        if json and not details.stream:
            rows = self._collect(0, len(self.prompts))
            options, seconds = {**self.options, "seed": self.seed}, time.monotonic() - start
            print_texts_json(rows, tokenizer, self.name, self.prompts, self.seed, self.pipe, options, seconds)
            return
        tokens = self._tokens(0, len(self.prompts))
        if json:
            for token in tokens:
                row = {"prompt": token.row // self.n_per_prompt, **token_json(token, tokenizer)}
                print_json({**row, "seed": self.seed + token.row})
                sys.stdout.flush()
        elif details.explain or details.logprobs is not None:
            print_explained(tokens, tokenizer, self.prompts, self.pipe)
        elif len(self.prompts) == 1:
            self._print_stream(tokens)
        else:
            print_texts(tokens, self.prompts, details.stream)

    def _print_stream(self, tokens: Any) -> None:
        """Print one text as it is generated."""
        print(self.prompts[0], end="", flush=True)
        for token in tokens:
            print(token.text, end="", flush=True)
        print()
        if self.stopping.max_new_tokens is None and token.finish_reason == "length":
            print("(stopped at the default length; --max-new-tokens sets another)", file=sys.stderr)


@dataclass(frozen=True)
class Search:
    """Texts found by beam search or contrastive search."""

    model: Any
    name: str
    prompts: list[str]
    prompt_ids: list[list[int]]
    search_options: dict[str, Any]
    stopping: StopFlags
    settings: dict[str, Any]
    batch_size: int

    @property
    def prompts_per_write(self) -> int:
        return self.batch_size

    def texts(self, start: int, end: int) -> list[list[dict[str, Any]]]:
        """The texts of the prompts from `start` to `end`, as JSON."""
        return [hypotheses_json(row) for row in self._hypotheses(self.prompt_ids[start:end])]

    def run(self, *, json: bool) -> None:
        start = time.monotonic()
        results = self._hypotheses(self.prompt_ids)
        print_hypotheses(results, self.prompts, self.name, self.search_options, time.monotonic() - start, json=json)

    def _hypotheses(self, prompt_ids: list[list[int]]) -> "list[list[tuple[str, Hypothesis]]]":
        from headway.generation.generate import search

        return search(
            self.model,
            prompt_ids,
            max_new_tokens=self.stopping.max_new_tokens,
            stop_token_ids=self.stopping.stop_token_ids or [],
            on_pipeline=self._note_once,
            **self.search_options,
            **self.settings,
        )

    @cached_property
    def _note_once(self) -> Callable[[Any], None]:
        """Print the notes of the first pipeline only: those of later batches are the same."""
        is_first = iter([True])
        return lambda pipe: print_notes(pipe) if next(is_first, False) else None


def write_texts(
    generation: Sampling | Search,
    records: list[dict[str, Any]],
    settings: dict[str, Any],
    out: Path,
    n_finished: int,
    *,
    json: bool,
) -> None:
    """Write one JSON object per prompt, after those that an earlier call finished."""
    start, chunk = time.monotonic(), generation.prompts_per_write
    # A chunk that was half written is generated again from its start, so that every batch holds the same prompts.
    try:
        with JsonLinesFile(out, append=n_finished > 0) as file, CountDisplay("prompts", len(records)) as display:
            for first in range(n_finished // chunk * chunk, len(records), chunk):
                texts = generation.texts(first, min(first + chunk, len(records)))
                for i, row in enumerate(texts, first):
                    if i >= n_finished:
                        file.write(output_line(records[i], settings, row))
                display.update(first + len(texts))
    except KeyboardInterrupt:
        print(
            f"interrupted; finished prompts are in {out}. To continue: the same command with --resume", file=sys.stderr
        )
        raise typer.Exit(130) from None
    seconds = time.monotonic() - start
    n_new = len(records) - n_finished
    if json:
        print_json(
            {"model": generation.name, "out": str(out), "n_prompts": len(records), "n_new": n_new, "seconds": seconds}
        )
    else:
        print(f"{n_new:,} prompt{'s' * (n_new != 1)} in {seconds:.1f} s: {out}", file=sys.stderr)
