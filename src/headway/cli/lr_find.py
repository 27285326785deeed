"""headway lr-find"""

import math
import shlex
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import (
    Device,
    Json,
    RecipeName,
    Settings,
    check_picture,
    command,
    print_json,
    repeat_settings,
)
from headway.cli.recipe_notes import load_recipe_with_notes
from headway.cli.theme_option import with_theme

# A sweep sets the learning rate of every step itself, and neither saves nor evaluates.
IGNORED = (
    "train.lr", "train.muon_lr", "train.min_lr", "train.schedule", "train.warmup_steps", "train.decay_fraction",
    "train.decay_from", "train.decay_every", "train.decay_factor", "train.steps", "train.max_seconds", "train.ema",
    "train.average_checkpoints", "train.save_every", "train.keep_checkpoints", "train.log_every", "train.loggers",
    "eval",
)  # fmt: skip
PROGRESS_LINES = 20  # on stderr, over the whole sweep


@with_theme
def lr_find(
    recipe: RecipeName,
    settings: Settings = None,
    low: Annotated[float, typer.Option(help="Learning rate of the first step.")] = 1e-6,
    high: Annotated[float, typer.Option(help="Learning rate of the last step, unless the loss diverges first.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Steps of the sweep, at least 10.")] = 200,
    out: Annotated[Path | None, typer.Option(help="Also write a plot: a .png, .svg or .pdf file.")] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Find a learning rate by raising it at every step until the loss diverges.

    Suggests the rate at which the loss falls fastest, as the peak of a schedule with warm-up. The model is discarded.

    \b
    Example:
      headway lr-find demo --steps 30 --set train.batch_size=4
    """
    from headway.analysis.curves import Curve, render_text
    from headway.analysis.lr_sweep_plot import plot
    from headway.display import TrainingDisplay, print_status
    from headway.training.lr_finder import LRTrial, find_lr

    check_picture(out)
    overrides = [*(settings or []), *([f"train.device={device}"] if device != "auto" else [])]

    def print_trial(step: int, trial: LRTrial) -> None:
        if step % max(1, steps // PROGRESS_LINES) == 0:
            print_status(f"step {step:>4} of {steps}  lr {trial.lr:.1e}  loss {trial.smooth:.3f}")

    with TrainingDisplay(bar=False) as display:
        sweep = find_lr(
            load_recipe_with_notes(recipe, overrides, ignored=IGNORED),
            low=low,
            high=high,
            steps=steps,
            on_step=print_trial,
            on_message=print_status,
            on_prepare=display.on_prepare,
        )

    rates, losses = [trial.lr for trial in sweep.trials], [trial.smooth for trial in sweep.trials]
    if out is not None:
        plot(
            rates,
            [trial.loss for trial in sweep.trials],
            losses,
            out,
            suggestion=sweep.suggestion,
            diverged_at=sweep.diverged_at,
            title=f"Learning-rate sweep of {recipe}, {len(rates)} steps",
        )
    if json:
        trials = [{"lr": trial.lr, "loss": trial.loss, "smooth": trial.smooth} for trial in sweep.trials]
        print_json({"suggestion": sweep.suggestion, "diverged_at": sweep.diverged_at, "trials": trials,
                    "picture": None if out is None else str(out)})  # fmt: skip
        return
    print(render_text([Curve("loss by log10 of the learning rate", [math.log10(rate) for rate in rates], losses)]))
    if sweep.diverged_at is not None:
        print(f"\nthe loss diverged at a rate of {sweep.diverged_at:.2g}, which ended the sweep")
    if out is not None:
        print(f"\nplot: {out}")
    setting = f"train.lr={sweep.suggestion:.2g}"
    repeated_options = repeat_settings(settings, without="train.lr") + (
        f" --device {device}" if device != "auto" else ""
    )
    print(f"\nsuggested: {setting}\n{command(f'train {shlex.quote(recipe)}{repeated_options} --set {setting}')}")
