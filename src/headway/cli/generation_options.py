"""Options of `headway generate` beside those of the samplers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from headway.cli.option_use import AllowsOnly, OnlyWith, OnlyWithout
from headway.cli.options import BeamFlags, Json, check_new_file, unescaped
from headway.cli.prompt_files import JSON_LINES

DEFAULT_CONTRASTIVE_K = 4
ONLY_SAMPLING = OnlyWithout(
    "--num-beams",
    "--contrastive-alpha",
    why="does not apply to a search, which draws nothing at random and ends at EOS or --stop-token-id: leave it out",
)
ONLY_BEAMS = OnlyWith("--num-beams", why="is an option of beam search: add --num-beams")
_TO_A_FILE = OnlyWith("--out", why="has no effect without a file: add --out FILE.jsonl")


@dataclass(frozen=True)
class StopFlags:
    """When a text ends."""

    max_new_tokens: Annotated[
        int | None,
        typer.Option(help="Default: what is left of the context, at most 256."),
    ] = None
    stop: Annotated[
        list[str] | None, typer.Option(help=r"End before this text (\n: newline); repeatable."), ONLY_SAMPLING
    ] = None
    stop_token_ids: Annotated[
        list[int] | None, typer.Option("--stop-token-id", help="End at this token, as at EOS; repeatable.")
    ] = None
    include_stop: Annotated[
        bool,
        typer.Option("--include-stop", help="Keep the stop string in the text."),
        ONLY_SAMPLING,
        OnlyWith("--stop"),
    ] = False

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `headway.generate`."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "stop": [unescaped(text) for text in self.stop or []],
            "stop_token_ids": self.stop_token_ids or [],
            "include_stop": self.include_stop,
        }


@dataclass(frozen=True)
class SearchFlags:
    """Search instead of sampling."""

    section: ClassVar = "Search"

    num_beams: Annotated[int | None, typer.Option(help="Beam search with this many beams.")] = None
    n_best: Annotated[int | None, typer.Option(help="Beams: texts per prompt. Default: 1."), ONLY_BEAMS] = None
    contrastive_alpha: Annotated[
        float | None,
        typer.Option(help="Contrastive search: penalty, 0 to 1. Usual: 0.6."),
        OnlyWithout("--num-beams", why="cannot be combined with --num-beams: choose one search"),
    ] = None
    contrastive_k: Annotated[
        int | None,
        typer.Option(help=f"Contrastive search: candidates. Default: {DEFAULT_CONTRASTIVE_K}."),
        OnlyWith("--contrastive-alpha", why="is an option of contrastive search: add --contrastive-alpha"),
    ] = None

    def options(self, beams: BeamFlags) -> dict[str, Any]:
        """Keyword arguments of `headway.generation.generate.search`; empty if no search was asked for."""
        if self.num_beams is not None:
            n_best = {} if self.n_best is None else {"n_best": self.n_best}
            return {"num_beams": self.num_beams, **n_best, **beams.options}
        if self.contrastive_alpha is not None:
            k = DEFAULT_CONTRASTIVE_K if self.contrastive_k is None else self.contrastive_k
            return {"alpha": self.contrastive_alpha, "k": k}
        return {}


@dataclass(frozen=True)
class PromptFileFlags:
    """Many prompts, from a file and to a file."""

    section: ClassVar = "Files"

    source: Annotated[
        str | None,
        typer.Option("-i", "--in", "--prompts", metavar="FILE", help='One prompt per line, or .jsonl: {"prompt": …}.'),
    ] = None
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE.jsonl", help="Write one JSON object per prompt.")
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --out if it exists."), _TO_A_FILE] = False
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue --out with the prompts it lacks."),
        _TO_A_FILE,
        OnlyWithout("--overwrite", why="cannot be combined with --overwrite: choose one"),
    ] = False

    def check(self, prompt: str) -> None:
        if prompt and self.source is not None:
            raise typer.BadParameter("cannot be combined with a prompt", param_hint="--in")
        if self.out is None:
            return
        if self.out.suffix.lower() not in JSON_LINES:
            raise typer.BadParameter(
                f"{self.out} does not end in .jsonl: it will hold one JSON object per prompt", param_hint="--out"
            )
        files = [file for file in (self.out, Path(self.source or "-")) if file.exists()]
        if len(files) == 2 and files[0].samefile(files[1]):
            raise typer.BadParameter(f"{self.out} holds the prompts: name another file", param_hint="--out")
        keep = self.overwrite or self.resume
        check_new_file(self.out, "--out", overwrite=keep, ways_out="add --resume (continue it) or --overwrite")


@dataclass(frozen=True)
class OutputFlags:
    """What to show, and how."""

    section: ClassVar = "Output"

    json: Json = False
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Print texts, or with --json tokens, as they come."),
        ONLY_SAMPLING,
        OnlyWithout("--out", why="prints to the terminal, --out writes a file: leave one out"),
    ] = False
    logprobs: Annotated[
        int | None, typer.Option(help="Show ln p of each token and of the N most likely."), ONLY_SAMPLING
    ] = None
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what each sampler did to each token."), ONLY_SAMPLING
    ] = False
    list_all: Annotated[
        bool, typer.Option("--list-samplers", hidden=True, help="List all samplers and exit."), AllowsOnly("--json")
    ] = False
