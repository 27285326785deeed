"""headway train"""

import os
import shlex
import time
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.completion import complete_recipe, complete_run
from headway.cli.option_use import AllowsOnly, OnlyWith, OnlyWithout
from headway.cli.options import Device, Json, Settings, command, print_json
from headway.cli.recipe_notes import load_recipe_with_notes
from headway.runs import Run, suggest_run

if TYPE_CHECKING:
    from headway.config import Recipe
    from headway.training import Result

EXAMPLE_WORDS = 8
SECONDS_FOR_FIRST_RANK = 20.0  # to print its message, before another rank gives up on its own


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A shipped recipe by name, a TOML file, or a run to repeat or resume.",
            show_default=False,
            autocompletion=complete_recipe,
        ),
    ] = None,
    settings: Settings = None,
    init_from: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Start from these weights: a model directory, a run, or an installed model such as minilm. The same "
            "as --set model.init_from=MODEL.",
            autocompletion=complete_run,
        ),
        OnlyWithout("--resume", why="is for a new run: a resumed one continues from its own checkpoint"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run. Default: the next free runs/NAME.", show_default=False)
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run RECIPE (or --out) from its last intact checkpoint.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="With --resume: also if scores are reset (another split or metric), or all checkpoints are gone.",
        ),
        OnlyWith("--resume", why="has no effect without --resume: a new run never overwrites anything"),
    ] = False,
    device: Device = "auto",
    dtype: Annotated[
        str, typer.Option(help="float32 or bfloat16; auto takes bfloat16 on CUDA, float32 elsewhere.")
    ] = "auto",
    show_list: Annotated[
        bool, typer.Option("--list", help="List the shipped recipes and exit."), AllowsOnly("--json")
    ] = False,
    print_config: Annotated[
        bool,
        typer.Option("--print-config", help="Print every setting with its value, as TOML, and exit."),
        AllowsOnly("RECIPE", "--set", "--init-from", "--device", "--dtype", "--json"),
    ] = False,
    json: Json = False,
) -> None:
    """Train a model from a recipe, or resume a run.

    The run's folder holds the full recipe, a log and checkpoints. A checkpoint is a model directory, which transformers
    opens too if it knows the architecture. Ctrl-C stops a run and saves the model; --resume continues exactly as if it
    had never stopped. On several GPUs or machines: torchrun -m headway train … --set train.parallel=ddp.

    \b
    Examples:
      headway train --list
      headway train demo --print-config
      headway train demo --set train.steps=20
      headway train demo --set data.path=my.txt --set model.n_layers=6 --out runs/mine
      headway train demo --init-from runs/mine --set data.path=other.txt --set train.steps=20
      headway train runs/mine --resume --set train.steps=40
    """
    if show_list:
        _list_recipes(json)
        return
    if recipe is None:
        raise typer.BadParameter("name a recipe; `headway train --list` prints them", param_hint="RECIPE")
    from headway.config.recipe import toml_value

    if resume:
        _check_resume(recipe, settings or [], out)
    overrides = [*(settings or [])]
    overrides += [f"model.init_from={toml_value(init_from)}"] if init_from is not None else []
    overrides += [f"train.device={device}"] if device != "auto" else []
    overrides += [f"train.dtype={dtype}"] if dtype != "auto" else []
    config = load_recipe_with_notes(recipe, overrides)
    _note_replaced_model(recipe, config, overrides)
    if print_config:
        _print_config(config, json)
        return
    if out == Path():
        raise typer.BadParameter("name a new folder, such as runs/mine", param_hint="--out")

    _check_torchrun(config.train.parallel)

    from headway.training.distributed import rank, restart_count
    from headway.training.train import default_run_dir

    if resume and out is None:
        out = Path(recipe)
    result = _train(config, out or default_run_dir(Path(recipe).stem, resume=restart_count() > 0), resume, force)
    if rank() == 0:  # the other ranks print nothing
        _print_result(result, json)
    raise typer.Exit(130 if result.interrupted else 0)


def _list_recipes(json: bool) -> None:
    import msgspec

    from headway.config import RECIPES, load_recipe

    recipes = {file.stem: load_recipe(file) for file in sorted(RECIPES.glob("*.toml"))}
    if json:
        print_json({
            name: {"description": recipe.description, **msgspec.to_builtins(recipe.result)}
            for name, recipe in recipes.items()
        })  # fmt: skip
        return
    width = max(map(len, recipes))
    for name, recipe in recipes.items():
        print(f"{name:{width}} {recipe.description}")
        for field in ("metric", "target", "ours"):
            if value := getattr(recipe.result, field):
                print(f"{'':{width}}   {field:7} {value}")


def _print_config(recipe: "Recipe", json: bool) -> None:
    import msgspec

    if json:
        print_json(msgspec.to_builtins(recipe))
    else:
        print(recipe.explained(), end="")


def _check_resume(recipe: str, settings: list[str], out: Path | None) -> None:
    """Without --out, the recipe must be a run; with or without, its model and tokenizer stay as they are."""
    if out is None and not Run.exists(recipe):
        parent = next((path for path in Path(recipe).parents if Run.exists(path)), None)
        near = f".{runs}" if (runs := suggest_run(recipe)) else ""
        hint = f"did you mean {parent}?" if parent else f"name the folder of a run, such as runs/mine{near}"
        raise typer.BadParameter(f"{recipe} is not a run to resume; {hint}", param_hint="RECIPE")
    for setting in settings:
        if setting.startswith(("model.", "tokenizer.")):
            raise typer.BadParameter(
                f"{setting}: a resumed run keeps its model and tokenizer; leave it out, or start a new run",
                param_hint="--set",
            )


def _note_replaced_model(recipe: str, config: "Recipe", overrides: list[str]) -> None:
    """Say that another family brings its own sizes: the recipe's model is gone as a whole."""
    from headway.config import load_recipe
    from headway.display import print_status
    from headway.errors import ConfigError

    if not any(setting.partition("=")[0].strip() == "model.family" for setting in overrides):
        return
    try:
        before, family = load_recipe(recipe), config.model.family
    except ConfigError:  # what is wrong with the recipe's model went with it
        return
    if before.model.family != family:
        replaced = before.preset or before.model.family
        print_status(
            f"note        model.family={family} replaces the recipe's model, {replaced}: what you do not set are the "
            f"defaults of {family}"
        )


def _check_torchrun(parallel: str) -> None:
    """Refuse several processes that would each train the same model. The first one says so, and torchrun's summary
    repeats it; the others wait until torchrun ends them, so that they neither repeat the message nor cut it off."""
    n_ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if n_ranks == 1 or parallel != "none":
        return
    if os.environ.get("RANK", "0") != "0":
        time.sleep(SECONDS_FOR_FIRST_RANK)
        raise typer.Exit(2)
    message = (
        f"torchrun started {n_ranks} processes, but with train.parallel=none each would train the same model; add "
        f"--set train.parallel=ddp, or fsdp if one device cannot hold the model"
    )
    if error_file := os.environ.get("TORCHELASTIC_ERROR_FILE"):  # what torchrun's summary shows of a process
        details = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
        Path(error_file).write_text(dumps({"message": details}), encoding="utf-8")
    raise typer.BadParameter(message, param_hint="--set")


def _train(recipe: "Recipe", out: Path, resume: bool, force: bool) -> "Result":
    import headway
    from headway.display import TrainingDisplay

    with TrainingDisplay() as display:
        return headway.train(
            recipe,
            out=out,
            resume=resume,
            force=force,
            on_step=display.on_step,
            on_message=display.on_message,
            on_prepare=display.on_prepare,
        )


def _print_result(result: "Result", json: bool) -> None:
    from headway.display import format_duration, print_status
    from headway.errors import count
    from headway.file_reading import read_json

    if json:
        print_json({
            "run": str(result.path),
            "checkpoint": str(result.checkpoint),
            "steps": result.steps,
            "seconds": result.seconds,
            "train_tokens": result.n_tokens,
            "interrupted": result.interrupted,
            **(result.score.to_dict() if result.score else {}),
        })  # fmt: skip
    else:
        if result.score:
            print(f"valid: {result.score.summary}; {count(result.steps, 'step')} in {format_duration(result.seconds)}")
            if result.best_step not in (None, result.steps):
                print(f"best:  step {result.best_step}, the checkpoint that other commands load")
        model_type = read_json(result.checkpoint / "config.json")["model_type"]
        print(f"saved: {result.checkpoint}" + (" (only Headway opens it)" if model_type.startswith("headway-") else ""))
        print_status(f"try:   {command(_next_command(result))}")
    if result.interrupted:
        print_status(f"interrupted after step {result.steps}; the model is saved.")
        print_status(f"To resume: {command(f'train {shlex.quote(str(result.path))} --resume')}")


def _next_command(result: "Result") -> str:
    """The command that uses what was trained."""
    from headway.models.base import LanguageModel, Seq2SeqLM
    from headway.prediction.heads import HEAD_USES

    run, model = shlex.quote(str(result.path)), result.model
    if isinstance(model, Seq2SeqLM):
        return f"translate {run} {shlex.quote(_example_source(result.path))}"
    if type(model) in HEAD_USES:
        use = HEAD_USES[type(model)]
        return f"{use.verb} {run} {use.example}"
    return f"{'generate' if isinstance(model, LanguageModel) else 'eval'} {run}"


def _example_source(run: Path) -> str:
    """A short text to translate: the first words of the first pair of a run's data."""
    from headway.config import load_recipe
    from headway.data.records import Pair
    from headway.data.splits import sources_of

    source, _ = next(iter(sources_of(load_recipe(run).data).values()))
    pair = next(source.records())
    assert isinstance(pair, Pair)
    return " ".join(pair.source.split()[:EXAMPLE_WORDS])
