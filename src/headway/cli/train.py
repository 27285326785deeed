"""headway train"""

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import Device, Json, print_json, program


def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A shipped recipe by name, or a TOML file.", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: --set train.steps=100. Repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder. Default: the next free runs/NAME.", show_default=False)
    ] = None,
    device: Device = "auto",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16; auto: bfloat16 on CUDA, else float32.")] = "auto",
    show_list: Annotated[bool, typer.Option("--list", help="List the shipped recipes and exit.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Print every setting and its value, as TOML, and exit.")] = False,
    json: Json = False,
) -> None:
    """Train a model on a text, as a recipe says.

    The run's folder gets the whole recipe, a log, and the model: a directory that transformers opens too, where it
    knows the architecture. Ctrl-C ends a run early and keeps what it has learned.

    \b
    Examples:
      headway train demo --show
      headway train demo --set train.steps=20
      headway train demo --set data.path=my.txt --set model.n_layers=6 --out runs/mine
    """
    import msgspec

    from headway.config import RECIPES, load_recipe

    if show_list:
        recipes = {file.stem: load_recipe(file).description for file in sorted(RECIPES.glob("*.toml"))}
        print_json(recipes) if json else print("\n".join(f"{name:16} {text}" for name, text in recipes.items()))
        return
    if recipe is None:
        raise typer.BadParameter("which recipe? `headway train --list` shows them", param_hint="RECIPE")
    overrides = [*(settings or [])]
    overrides += [f"train.device={device}"] if device != "auto" else []
    overrides += [f"train.dtype={dtype}"] if dtype != "auto" else []
    plan = load_recipe(recipe, overrides)
    if show:
        print_json(msgspec.to_builtins(plan)) if json else print(plan.to_toml(), end="")
        return
    if out is not None and out == Path():
        raise typer.BadParameter("name a new folder, such as runs/mine", param_hint="--out")

    from headway.cli.display import TrainingDisplay, clock, say
    from headway.files import free_name
    from headway.models.storage import read_json
    from headway.training import train as run_training

    place = out or free_name(Path("runs") / Path(recipe).stem)
    with TrainingDisplay() as display:
        result = run_training(plan, out=place, report=display.report, say=say, preparing=display.preparing)
    if json:
        print_json(
            {
                "run": str(result.path),
                "checkpoint": str(result.checkpoint),
                "steps": result.steps,
                "seconds": result.seconds,
                "train_tokens": result.n_tokens,
                "interrupted": result.interrupted,
                **(result.score.to_dict() if result.score else {}),
            }
        )
    else:
        if result.score:
            print(
                f"held-out text: {result.score.bits_per_byte:.4f} bits per byte, "
                f"{result.score.nats_per_token:.4f} nats per token; {result.steps} steps in {clock(result.seconds)}"
            )
        kind = read_json(result.checkpoint / "config.json")["model_type"]
        print(
            f"saved: {result.checkpoint}" + ("" if not kind.startswith("headway-") else f" ({kind}: for Headway alone)")
        )
        print(f"try:   {program()} generate {result.path}")
    if result.interrupted:
        say(f"interrupted after step {result.steps}; what was learned so far is saved")
        raise typer.Exit(130)
