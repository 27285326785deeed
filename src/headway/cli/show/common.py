"""What the sub-commands of `headway show` share: --out, --theme, and how they name what they drew."""

import functools
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headway.cli.option_use import OnlyWith

Out = Annotated[Path | None, typer.Option(help="Also write a plot: a .png, .svg or .pdf file.")]
ThemeName = Annotated[
    Literal["light", "dark"], typer.Option("--theme", help="Colours of the plot: light or dark."), OnlyWith("--out")
]


def with_theme(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb that draws pictures the option --theme, which applies to whatever the verb draws."""
    signature = inspect.signature(verb)

    @functools.wraps(verb)
    def wrapped(*, theme: str = "light", **values: Any) -> None:
        if theme == "light":  # nothing to set up, so that verbs without a picture do not import the plots
            return verb(**values)
        from headway.analysis.plotting import use_theme

        with use_theme(theme):
            return verb(**values)

    option = inspect.Parameter("theme", inspect.Parameter.KEYWORD_ONLY, default="light", annotation=ThemeName)
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in signature.parameters.values()]
    position = next((i for i, p in enumerate(parameters) if p.name == "out"), len(parameters) - 1) + 1
    parameters.insert(position, option)
    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {**verb.__annotations__, "theme": ThemeName}
    return wrapped


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
