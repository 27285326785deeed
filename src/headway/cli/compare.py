"""headway compare"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from headway.cli.completion import complete_setting
from headway.cli.option_use import AllowsOnly, OnlyFor, check_options_for
from headway.cli.options import Json, check_minimum, check_picture, command, print_json, with_option_groups
from headway.cli.theme_option import with_theme_of_plot

if TYPE_CHECKING:
    from headway.comparison import Comparison, ModelTemplate

MAX_COUNT = 10**15 + 1  # of parameters or tokens: beyond every machine, and still exact as a float
SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}


@dataclass(frozen=True)
class BudgetFlags:
    """The size of each model, and how long it is trained."""

    section: ClassVar = "Budget"

    params: Annotated[
        str | None,
        typer.Option(help="Parameters of each model, such as 300k or 2M; recipes keep their size. Default: 1M."),
    ] = None
    tokens: Annotated[
        str | None,
        typer.Option(help="Text, pairs: tokens to train each model on, such as 5M; repetitions count."),
        OnlyFor(data=("text", "pairs"), models="to train"),
    ] = None
    epochs: Annotated[
        float | None,
        typer.Option(help="All but text: passes over the training split."),
        OnlyFor(data=("pairs", "labelled", "tagged"), models="to train"),
    ] = None
    seconds: Annotated[float | None, typer.Option(help="Seconds to train each model for. Default: 60.")] = None

    @property
    def options(self) -> dict[str, Any]:
        params, tokens = _parse_count(self.params, "--params"), _parse_count(self.tokens, "--tokens")
        return {"params": params, "tokens": tokens, "epochs": self.epochs, "seconds": self.seconds}


@dataclass(frozen=True)
class ScoringFlags:
    """How models are scored."""

    section: ClassVar = "Scoring"

    long_data: Annotated[
        str | None,
        typer.Option(help="Pairs: also score longer sentences, such as dates+24, by length."),
        OnlyFor(data="pairs"),
    ] = None
    limit: Annotated[
        int, typer.Option(help="Pairs: the number of held-out sources to translate."), OnlyFor(data="pairs")
    ] = 1000
    num_beams: Annotated[int, typer.Option(help="Pairs: beams of the search; 1 is greedy."), OnlyFor(data="pairs")] = 1
    prompt: Annotated[
        str | None,
        typer.Option(help="Text: the prompt of the samples. Default: the first held-out words."),
        OnlyFor(data="text"),
    ] = None

    @property
    def options(self) -> dict[str, Any]:
        check_minimum("--limit", self.limit)
        check_minimum("--num-beams", self.num_beams)
        return dict(self.__dict__)


@with_option_groups
@with_theme_of_plot(is_always_drawn=True)
def compare(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="Models by name (--list), recipes, TOML files, runs, or variants such as gpt:model.norm=none. "
            "Default: every model for this kind of data."
        ),
    ] = None,
    *,
    data: Annotated[
        str,
        typer.Option(help="Text, pairs, labelled texts or tagged words: a built-in corpus, a file, a folder, …"),
    ] = "pydocs",
    budget: Annotated[BudgetFlags, OnlyFor(models="to train")],
    context: Annotated[
        int | None,
        typer.Option(
            help="Context of all models, in tokens. Default: 128 for text and tagged words, 256 for labelled texts, "
            "512 for pairs."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Override a setting for all models (train.seed=2, tokenizer.kind=char) or for one "
            "(gpt:model.dropout=0.1); repeatable.",
            autocompletion=complete_setting,
        ),
    ] = None,
    scoring: ScoringFlags,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for runs and results. Default: the next runs/compare.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted comparison in --out. Default: the last one.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Plot file, .png, .svg or .pdf. Default: compare.png in the folder.")
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="List the available models and exit."), AllowsOnly("--json")
    ] = False,
    json: Json = False,
) -> None:
    """Compare several models on the same data at the same budget.

    All models use the same data and tokenizer; neural ones have about --params parameters and are trained for the same
    number of --tokens, --epochs or --seconds. Language models are scored in bits per byte of held-out text.
    Sequence-to-sequence models translate held-out sources and are scored by exact match or BLEU, also by the length of
    the source. Classifiers and taggers are scored by accuracy and F1 on the same held-out examples; a model that starts
    from weights has their size and their tokenizer. Each model is a run in --out, next to compare.json, compare.md and
    compare.png. The table is in the order of the models, by default that of their years, and marks the best.

    \b
    Examples:
      headway compare --list
      headway compare ngram rnn gpt --seconds 1 --params 50k --set tokenizer.vocab_size=300
      headway compare --data my.txt --tokens 5k --params 50k
      headway compare seq2seq --data dates+4 --long-data dates+24 --tokens 10k --params 50k --limit 50
      headway compare bow bilstm --data labels.csv --set data.label=label --epochs 1 --params 50k
      headway compare bow bert --data tags.conll --epochs 1 --params 50k
      headway compare gpt gpt:model.norm=none --seconds 1 --params 50k --set tokenizer.vocab_size=300
      headway compare runs/demo ngram --json
    """
    if show_list:
        _print_models(json)
        return
    check_minimum("--context", context)
    check_picture(plot, "--plot")
    options = {**budget.options, **scoring.options, "context": context, "settings": settings or []}
    _check_options(models or [], data, settings or [])
    out_dir = out or _default_out_dir(resume)

    import headway
    from headway.display import TrainingDisplay, print_status

    if resume and not out_dir.exists():
        print_status(f"note: {out_dir} does not exist, so there is nothing to continue: starting a new comparison")
    with TrainingDisplay() as display:
        comparison = headway.compare(
            models or [],
            data=data,
            out=out_dir,
            resume=resume,
            on_message=display.on_message,
            on_step=display.on_step,
            **options,
        )
    if comparison.interrupted:
        print_status(
            f"interrupted; finished models are kept. Continue with the same command and --out {out_dir} --resume"
        )
        raise typer.Exit(130)
    _report(comparison, out_dir, plot, json)


def _check_options(models: list[str], data: str, settings: list[str]) -> None:
    """Refuse options that are for another kind of data, and a budget where no model is trained."""
    from headway.comparison.budget import data_kind, shared_recipe
    from headway.comparison.selection import Overrides, is_run
    from headway.data.records import KIND_NAMES

    kind = data_kind(shared_recipe(data, Overrides.parse(settings).shared).data)
    check_options_for(f"{data}, which holds {KIND_NAMES[kind]}", data=kind)
    if models and all(map(is_run, models)):
        check_options_for("runs, which are scored as they are", models="trained")


def _default_out_dir(resume: bool) -> Path:
    """The next free runs/compare, or to resume the one that was started last."""
    from headway.comparison.manifest import latest_comparison
    from headway.files import free_name

    if not resume:
        return free_name(Path("runs") / "compare")
    if (latest := latest_comparison(Path("runs"))) is None:
        raise typer.BadParameter(
            "there is no runs/compare to continue: name the folder with --out", param_hint="--resume"
        )
    return latest


def _report(comparison: "Comparison", out_dir: Path, plot_file: Path | None, json: bool) -> None:
    """Write compare.md and the plot, and print the results."""
    from headway.comparison.report import best_result, render_markdown, render_text
    from headway.display import print_status
    from headway.files import write_text

    write_text(out_dir / "compare.md", render_markdown(comparison))
    picture = _plot(comparison, plot_file or out_dir / "compare.png", is_required=plot_file is not None)
    if json:
        print_json({**comparison.to_dict(), "picture": None if picture is None else str(picture)})
        return
    print(render_text(comparison))
    print_status(f"\nin {out_dir}: compare.json, compare.md{'' if picture is None else f'; plot: {picture}'}")
    verb, result = ("generate" if comparison.kind == "text" else "eval"), comparison.results[-1]
    if comparison.kind in ("labelled", "tagged") or result.sees_future:
        result = best_result(comparison) or result
    print_status(f"try:   {command(f'{verb} {shlex.quote(str(result.run))}')}")


def _plot(comparison: "Comparison", file: Path, *, is_required: bool) -> Path | None:
    """Write the plot. Without matplotlib only a plot that was asked for is an error."""
    from headway.comparison.report import plot
    from headway.display import print_status
    from headway.errors import InputError

    try:
        return plot(comparison, file)
    except InputError as error:
        if is_required:
            raise
        print_status(f"no plot: {error}")
        return None


def _print_models(json: bool) -> None:
    from headway.comparison.lineup import LINEUPS
    from headway.comparison.selection import missing_weights
    from headway.data.records import KIND_NAMES

    missing = {kind: missing_weights(kind) for kind in LINEUPS}
    if json:
        print_json({
            kind: {
                name: {
                    "year": template.year,
                    "title": template.title,
                    "init_from": template.init_from,
                    "install": missing[kind].get(name),  # the command, if the weights are not installed
                }
                for name, template in lineup.items()
            }
            for kind, lineup in LINEUPS.items()
        })  # fmt: skip
        return
    for kind, lineup in LINEUPS.items():
        kinds = [other for other in LINEUPS if LINEUPS[other] is lineup]
        if kind != kinds[0]:  # listed already
            continue
        print(f"for {' and '.join(KIND_NAMES[other] for other in kinds)}:")
        for name, template in lineup.items():
            note = _weights_note(template, missing[kind].get(name))
            print(f"  {template.year}  {name:<12} {template.title}{note}")


def _weights_note(template: "ModelTemplate", install_command: str | None) -> str:
    """Whether the weights that a model starts from are installed."""
    if template.init_from is None:
        return ""
    return "; installed" if install_command is None else f"; not installed: {install_command}"


def _parse_count(text: str | None, flag: str) -> int | None:
    """A number as people write it: 300k, 2M, 1.5m, 5_000_000."""
    if text is None:
        return None
    number = r"\d{1,3}(?:[,_]\d{3})+|\d*\.?\d+(?:e\d+)?|\d+\.?"
    match = re.fullmatch(rf"({number})\s*([kmgb]?)", text.strip().lower())
    count = float(re.sub("[,_]", "", match[1])) * SUFFIXES[match[2]] if match else 0.0
    if not 1 <= round(min(count, MAX_COUNT)) < MAX_COUNT:
        raise typer.BadParameter(f"{text:.40} is not a number from 1 to 10^15, such as 300k or 2M", param_hint=flag)
    return round(count)
