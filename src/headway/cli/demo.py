"""headway demo"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import Json, Settings, command, print_json
from headway.cli.recipe_notes import load_recipe_with_notes

if TYPE_CHECKING:
    from headway.training.demo import DemoResult


def demo(
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: the next free runs/demo.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Train for at most this long. Default: 75, from the recipe.")
    ] = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Train a small GPT on the documentation inside Python and show what it learns.

    Takes a little over a minute on two CPU cores. Prints a sample before and after training, bits per byte on held-out
    text next to a trigram fitted to the same tokens, and what to try next.

    \b
    Example:
      headway demo --seconds 20
    """
    from headway.display import TrainingDisplay, print_status
    from headway.training.demo import run_demo

    load_recipe_with_notes("demo", settings or [], ignored=() if seconds is None else ("train.max_seconds",))
    with TrainingDisplay() as display:
        result = run_demo(
            out=out,
            seconds=seconds,
            settings=settings or [],
            on_step=display.on_step,
            on_message=display.on_message,
            on_prepare=display.on_prepare,
        )
    if json:
        print_json(result.to_dict())
    elif not result.interrupted:
        _print_result(result)
    if result.interrupted:
        resume_command = command(f"train {shlex.quote(str(result.run))} --resume")
        print_status(f"interrupted after step {result.steps}; the model is saved.\nTo resume: {resume_command}")
        raise typer.Exit(130)


def _print_result(result: "DemoResult") -> None:
    print(f"\nBefore training, it wrote:\n\n{_quote(result.sample_before)}")
    print(f"\nAfter {result.seconds:.0f} seconds of training, it writes:\n\n{_quote(result.sample_after)}\n")
    print("Bits per byte on held-out text (lower is better):\n")
    scores = {
        "GPT, untrained": result.untrained_bits_per_byte,
        "trigram, fitted to the same tokens": result.trigram_bits_per_byte,
        f"GPT, {result.n_params:,} parameters, trained": result.gpt_bits_per_byte,
    }
    for name, bits in scores.items():
        print(f"    {name:36} {bits:6.3f}  {'█' * round(bits * 5)}")
    print("\nNext:\n")
    descriptions = {
        f'generate {result.run} "The statement"': "continue a prompt of your own",
        f"eval {result.run}": "score the model again",
        "train demo --set data.path=FILE": "train on your own text",
        "train demo --print-config": "print every setting",
    }
    commands = {command(words): description for words, description in descriptions.items()}
    width = max(map(len, commands))
    for line, description in commands.items():
        print(f"    {line:{width}}  {description}")


def _quote(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines() if line.strip())
