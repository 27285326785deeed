"""What the sub-commands of `headway show` share: --out, --theme, and how they name what they drew."""

import math
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.theme_option import with_theme

__all__ = ["Out", "model_name", "parse_numbers", "picture_path", "print_picture", "with_theme"]

Out = Annotated[Path | None, typer.Option(help="Also write a plot: a .png, .svg or .pdf file.")]


def parse_numbers(text: str, option: str, *, example: str = "0.5,1", infinite: bool = False) -> list[float]:
    """The numbers of a list separated by commas: finite ones, or with `infinite` also -inf."""
    try:
        numbers = [float(number) for number in text.split(",")]
    except ValueError:
        numbers = [math.nan]
    if any(not math.isfinite(x) and not (infinite and x == -math.inf) for x in numbers):
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as {example}", param_hint=option)
    return numbers


def model_name(model: str) -> str:
    """The name of a model's folder, for titles."""
    return Path(model).resolve().name


def picture_path(file: Path | None) -> str | None:
    """The path of a picture, for JSON."""
    return None if file is None else str(file)


def print_picture(file: Path | None) -> None:
    if file is not None:
        print(f"\nplot: {file}")
