"""headway check"""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import Device, Json, print_json

app = typer.Typer(
    help="Guarantees that you can run yourself.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)


@app.callback()
def _guarantees() -> None:
    """Keeps `resume` a name of its own while there is one check."""


@app.command()
def resume(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe by name, a TOML file, or a run.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: --set train.accumulate=2. Repeatable.")
    ] = None,
    steps: Annotated[int, typer.Option(min=2, help="Steps to train.")] = 36,
    kills: Annotated[int, typer.Option(min=1, help="How often the run is killed, at random steps.")] = 3,
    ranks: Annotated[int, typer.Option(min=1, help="Processes, as torchrun would start them.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Of the random steps. Default: another each time.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Keep both runs in this new folder. Default: they are removed.")
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Check that a run which was killed and resumed is the run that was not.

    Trains twice: once undisturbed, and once killed with SIGKILL at random steps and resumed each time. Then compares
    the weights, the optimiser's memory and the log, bit for bit. Exit code 0 if they are the same, 1 if not.

    A time limit (train.max_seconds) is left out, since a learning rate that follows the clock never repeats itself.

    \b
    Examples:
      headway check resume demo --kills 1 --steps 12 --json
      headway check resume demo --kills 1 --steps 8 --set train.dtype=bfloat16 --set train.accumulate=2
    """
    from headway.cli.display import say
    from headway.config import load_recipe
    from headway.training.checkpoint import Run
    from headway.training.resume_check import check_resume

    overrides = [*(settings or []), *([f"train.device={device}"] if device != "auto" else [])]
    plan = load_recipe(recipe, overrides)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if out is None else Run.check_free(out)
        folder.mkdir(parents=True, exist_ok=True)
        report = check_resume(plan, folder, steps=steps, kills=kills, ranks=ranks, seed=seed, say=say)
    if json:
        print_json(report.to_dict())
    elif report.is_exact:
        print(f"exact: killed after steps {report.kills}, resumed from {report.resumed_from}; every bit is the same")
    else:
        print("NOT exact:\n" + "\n".join(f"  {line}" for line in report.differences))
    raise typer.Exit(0 if report.is_exact else 1)
