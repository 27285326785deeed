"""headway train"""

import signal
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import Device, Json, print_json, program
from headway.runs import Run

# model types that write text
GENERATIVE = (
    "gpt2",
    "openai-gpt",
    "llama",
    *(f"headway-{family}" for family in ("gpt", "ngram", "nplm", "rnn", "lstm")),
)


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(help="A shipped recipe by name, a TOML file, or a run to repeat or resume.", show_default=False),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: --set train.steps=100. Repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder. Default: the next free runs/NAME.", show_default=False)
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run RECIPE (or --out) from its last whole checkpoint.")
    ] = False,
    device: Device = "auto",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16; auto: bfloat16 on CUDA, else float32.")] = "auto",
    show_list: Annotated[bool, typer.Option("--list", help="List the shipped recipes and exit.")] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print every setting and its value, as TOML, and exit.")
    ] = False,
    json: Json = False,
) -> None:
    """Train a model on a text, as a recipe says.

    The run's folder gets the whole recipe, a log, and the model: a directory that transformers opens too, where it
    knows the architecture. Ctrl-C ends a run early and keeps what it has learned; --resume goes on with it, exactly as
    if it had never stopped. On several GPUs or machines: torchrun -m headway train … --set train.parallel=ddp.

    \b
    Examples:
      headway train demo --print-config
      headway train demo --set train.steps=20
      headway train demo --set data.path=my.txt --set model.n_layers=6 --out runs/mine
      headway train runs/mine --resume --set train.steps=40
    """
    import msgspec

    from headway.config import RECIPES, load_recipe

    if show_list:
        recipes = {file.stem: load_recipe(file) for file in sorted(RECIPES.glob("*.toml"))}
        if json:
            results = {name: msgspec.to_builtins(plan.result) for name, plan in recipes.items()}
            print_json({name: {"description": plan.description, **results[name]} for name, plan in recipes.items()})
            return
        for name, plan in recipes.items():
            print(f"{name:18} {plan.description}")
            for what in ("target", "ours"):
                if text := getattr(plan.result, what):
                    print(f"{'':18}   {what:7} {text}")
        return
    if recipe is None:
        raise typer.BadParameter("which recipe? `headway train --list` shows them", param_hint="RECIPE")
    if resume and out is None and not Run.exists(recipe):
        inside = next((p for p in Path(recipe).parents if Run.exists(p)), None)
        hint = f"; did you mean {inside}?" if inside else "; name a run's folder, such as runs/mine"
        raise typer.BadParameter(f"{recipe} is no run to go on with{hint}", param_hint="RECIPE")
    for setting in (settings or []) if resume else ():
        if setting.startswith(("model.", "tokenizer.")):
            raise typer.BadParameter(f"{setting}: a run that goes on keeps its model and tokenizer", param_hint="--set")
    overrides = [*(settings or [])]
    overrides += [f"train.device={device}"] if device != "auto" else []
    overrides += [f"train.dtype={dtype}"] if dtype != "auto" else []
    plan = load_recipe(recipe, overrides)
    if print_config:
        print_json(msgspec.to_builtins(plan)) if json else print(plan.explained(), end="")
        return
    if out is not None and out == Path():
        raise typer.BadParameter("name a new folder, such as runs/mine", param_hint="--out")

    if resume and out is None:
        out = Path(recipe)

    from headway.cli.display import TrainingDisplay, clock, say
    from headway.models.serialization import read_json
    from headway.training.distributed import rank, restart_count
    from headway.training.train import default_run_dir
    from headway.training.train import train as run_training

    place = out or default_run_dir(Path(recipe).stem, again=restart_count() > 0)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C; while training, both wait for the step
    try:
        with TrainingDisplay() as display:
            result = run_training(
                plan, out=place, resume=resume, report=display.report, say=display.say, preparing=display.preparing
            )
    except KeyboardInterrupt:
        say("interrupted outside of training: whatever is in the run's folder is as it was")
        raise typer.Exit(130) from None
    if rank():  # the first speaks for all
        raise typer.Exit(130 if result.interrupted else 0)
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
            print(f"held out: {result.score.summary}; {result.steps} steps in {clock(result.seconds)}")
            if result.best_step not in (None, result.steps):
                print(f"best:  step {result.best_step}, which `load` and `eval` take")
        kind = read_json(result.checkpoint / "config.json")["model_type"]
        print(
            f"saved: {result.checkpoint}" + ("" if not kind.startswith("headway-") else f" ({kind}: for Headway alone)")
        )
        if kind in GENERATIVE:
            print(f"try:   {program()} generate {result.path}")
    if result.interrupted:
        again = f"to go on: {program()} train {result.path} --resume"
        say(f"interrupted after step {result.steps}; what was learned so far is saved. {again}")
        raise typer.Exit(130)
