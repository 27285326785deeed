"""headway lr-find"""

import math
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import Device, Json, print_json, program


def lr_find(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe by name, a TOML file, or a run.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: --set train.batch_size=32. Repeatable.")
    ] = None,
    low: Annotated[float, typer.Option(help="The first learning rate.")] = 1e-6,
    high: Annotated[float, typer.Option(help="The last one, if the loss does not burst before.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Steps of the sweep, one rate each; at least 10.")] = 200,
    out: Annotated[Path | None, typer.Option(help="Also draw the sweep: a .png, .svg or .pdf file.")] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Find a learning rate: raise it step by step until the loss bursts.

    Suggests the rate at which the loss falls fastest, as the peak of a schedule with a warm-up. Nothing is kept of the
    model.

    \b
    Example:
      headway lr-find demo --steps 30 --set train.batch_size=4
    """
    from headway.analysis.curves import Curve, as_text, draw
    from headway.cli.display import TrainingDisplay, say
    from headway.config import load_recipe
    from headway.training.lr_finder import LRTrial, find_lr

    plan = load_recipe(recipe, [*(settings or []), *([f"train.device={device}"] if device != "auto" else [])])

    def show(step: int, trial: LRTrial) -> None:
        if step % max(1, steps // 20) == 0:
            say(f"step {step:>4} of {steps}  lr {trial.lr:.1e}  loss {trial.smooth:.3f}")

    with TrainingDisplay(bar=False) as display:
        sweep = find_lr(plan, low=low, high=high, steps=steps, report=show, say=say, preparing=display.preparing)

    rates, losses = [trial.lr for trial in sweep.trials], [trial.smooth for trial in sweep.trials]
    if out is not None:
        draw([Curve("loss", rates, losses)], out, metric="loss", x="lr")
    if json:
        points = [{"lr": t.lr, "loss": t.loss, "smooth": t.smooth} for t in sweep.trials]
        print_json({"suggestion": sweep.suggestion, "trials": points})
        return
    print(as_text([Curve("loss by log10 of the rate", [math.log10(rate) for rate in rates], losses)]))
    setting = f"train.lr={sweep.suggestion:.2g}"
    print(f"\nsuggested: {setting}   {program()} train {recipe} --set {setting}")
