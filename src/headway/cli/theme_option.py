"""--theme: verbs that draw pictures draw them light or dark."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer

from headway.cli.option_use import OnlyWith

THEME_OPTION = typer.Option("--theme", help="Colours of the plot: light or dark.")
VerbFn = Callable[..., None]


def with_theme(verb: VerbFn) -> VerbFn:
    """Give a verb that draws a picture with --out the option --theme, which applies to whatever the verb draws."""
    return _with_theme(verb, "out", OnlyWith("--out"))


def with_theme_of_plot(*, is_always_drawn: bool) -> Callable[[VerbFn], VerbFn]:
    """The same for a verb whose picture is named by --plot; some draw one in any case."""
    rules = () if is_always_drawn else (OnlyWith("--plot"),)
    return lambda verb: _with_theme(verb, "plot", *rules)


def _with_theme(verb: VerbFn, after: str, *rules: OnlyWith) -> VerbFn:
    """The verb with --theme behind the option `after`."""
    signature = inspect.signature(verb)
    annotation = Annotated[Literal["light", "dark"], THEME_OPTION, *rules]

    @functools.wraps(verb)
    def wrapped(*, theme: str = "light", **values: Any) -> None:
        if theme == "light":  # nothing to set up, so that verbs without a picture do not import the plots
            return verb(**values)
        from headway.analysis.plotting import use_theme

        with use_theme(theme):
            return verb(**values)

    option = inspect.Parameter("theme", inspect.Parameter.KEYWORD_ONLY, default="light", annotation=annotation)
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in signature.parameters.values()]
    position = next((i for i, p in enumerate(parameters) if p.name == after), len(parameters) - 1) + 1
    parameters.insert(position, option)
    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {**verb.__annotations__, "theme": annotation}
    return wrapped
