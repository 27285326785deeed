"""headway sweep"""

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.option_use import OnlyFor, OnlyWith, check_options_for
from headway.cli.options import (
    Device,
    Json,
    Settings,
    check_minimum,
    check_picture,
    command,
    print_json,
)
from headway.cli.theme_option import with_theme_of_plot

if TYPE_CHECKING:
    from headway.sweeps import SweepResult


OF_A_RECIPE = OnlyFor(recipe="recipe")  # a sweep that is continued has its own


@with_theme_of_plot(is_always_drawn=True)
def sweep(
    recipe: Annotated[
        str, typer.Argument(help="A shipped recipe by name, a TOML file, a run, or a sweep to --resume.")
    ],
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=A,B,…", help="A setting and the values to try, train.lr=1e-3,3e-3; repeatable."),
        OF_A_RECIPE,
    ] = None,
    settings: Annotated[Settings, OF_A_RECIPE] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="NAME=A..B[:log]",
            help="Random search: train.lr=1e-4..1e-2:log; repeatable.",
            rich_help_panel="Search",
        ),
        OF_A_RECIPE,
    ] = None,
    random: Annotated[
        int | None,
        typer.Option(metavar="N", rich_help_panel="Search", help="Draw N random points instead of the whole grid."),
        OF_A_RECIPE,
    ] = None,
    seed: Annotated[
        int, typer.Option(rich_help_panel="Search", help="Seed of the random points."), OnlyWith("--random")
    ] = 0,
    halving: Annotated[
        bool,
        typer.Option("--halving", rich_help_panel="Search", help="Successive halving: stop runs that fall behind."),
        OF_A_RECIPE,
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Folder of the runs. Default: the next free runs/sweep."),
        OF_A_RECIPE,
    ] = None,
    jobs: Annotated[int, typer.Option(metavar="N", help="Train N runs at a time, each in its own process.")] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a sweep: finished runs stay, values may be added.")
    ] = False,
    device: Annotated[Device, OF_A_RECIPE] = "auto",
    plot: Annotated[
        Path | None, typer.Option(help="Plot file, .png, .svg or .pdf. Default: sweep.png in the folder.")
    ] = None,
    json: Json = False,
) -> None:
    """Train a recipe with many settings and compare the runs.

    Every combination of the grid's values is an ordinary run in --out, named by its settings. The table at the end is
    sorted by validation score; a run that fails is listed with its reason and does not stop the others. The exit code
    is 1 only if every run failed. After Ctrl-C, or a crash, --resume continues exactly: it skips finished runs and
    takes unfinished ones up from their last checkpoint. Random search and successive halving need Optuna, the extra
    `search`.

    \b
    Examples:
      headway sweep demo --grid train.lr=1e-3,3e-3 --grid model.n_layers=1,2 --out runs/lr
      headway sweep runs/lr --resume
      headway sweep demo --range train.lr=1e-4..1e-2:log --random 3 --set train.steps=100
      headway sweep demo --grid train.lr=1e-4,1e-3,1e-2 --halving --json
    """
    check_minimum("--jobs", jobs)
    check_minimum("--random", random)
    check_picture(plot, "--plot")
    from headway.display import TrainingDisplay, print_status
    from headway.sweeps.manifest import is_sweep
    from headway.sweeps.points import parse_grid, parse_ranges
    from headway.sweeps.sweep import sweep as run_sweep

    if is_sweep(recipe):
        check_options_for(f"{recipe}, a sweep with its own settings", recipe="sweep")
    overrides = [*(settings or []), *([f"train.device={device}"] if device != "auto" else [])]
    try:
        with TrainingDisplay(bar=jobs == 1) as display:
            result = run_sweep(
                recipe,
                grid=parse_grid(grid or []),
                ranges=parse_ranges(ranges or []),
                settings=overrides,
                random=random or 0,
                halving=halving,
                seed=seed,
                out=out,
                jobs=jobs,
                resume=resume,
                on_step=display.on_step,
                on_message=display.on_message,
                on_prepare=display.on_prepare,
            )
    except KeyboardInterrupt as interrupt:
        print_status(f"{str(interrupt) or 'interrupted'}\nfinished runs are kept; continue with --resume")
        raise typer.Exit(130) from None
    _report(result, plot, json)
    if result.interrupted:
        resume_command = command(f"sweep {shlex.quote(str(result.path))} --resume")
        print_status(f"interrupted; continue with: {resume_command}")
        raise typer.Exit(130)
    if all(point.status == "failed" for point in result.points):
        raise typer.Exit(1)


def _report(result: "SweepResult", plot_file: Path | None, json: bool) -> None:
    """Write the plot, and print the table."""
    from headway.display import print_status
    from headway.sweeps.report import render_text

    picture = None
    if not result.interrupted:
        picture = _plot(result, plot_file or result.path / "sweep.png", is_required=plot_file is not None)
    if json:
        print_json({**result.to_dict(), "picture": None if picture is None else str(picture)})
        return
    print(render_text(result, width=shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
    print_status(f"\nin {result.path}: the runs" + ("" if picture is None else f"; plot: {picture}"))
    if result.points[0].metric:
        print_status(f"try:   {command(f'show curves {shlex.quote(str(result.path))}')}")


def _plot(result: "SweepResult", file: Path, *, is_required: bool) -> Path | None:
    """Write the plot, once a run has a score. Without matplotlib only a plot that was asked for is an error."""
    from headway.display import print_status
    from headway.errors import InputError
    from headway.sweeps.report import plot

    if not any(point.metric for point in result.points):
        return None
    try:
        return plot(result, file)
    except InputError as error:
        if is_required:
            raise
        print_status(f"no plot: {error}")
        return None
