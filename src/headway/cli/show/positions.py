"""headway show positions"""

import sys
from typing import Annotated

import typer

from headway.cli.completion import complete_run
from headway.cli.option_use import OnlyFor, OnlyWith, OnlyWithout, check_options_for
from headway.cli.options import Json, check_picture, print_json
from headway.cli.show.common import Out, model_name, picture_path, print_picture, with_theme

MODEL_DECIDES = "a model has its own width and heads: leave it out, or the model"


@with_theme
def positions(
    model: Annotated[
        str | None,
        typer.Argument(help="A model directory or a run, to show its own positions.", autocompletion=complete_run),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="sinusoidal, learned, per-layer, relative, rotary, alibi or binary. Default: the model's, or "
            "sinusoidal."
        ),
    ] = None,
    length: Annotated[int | None, typer.Option(help="Number of positions. Default: 51.")] = None,
    width: Annotated[
        int | None,
        typer.Option(help="Numbers per position; for rotary and per-layer, the width of a head. Default: 130."),
        OnlyWithout("MODEL", why=MODEL_DECIDES),
        OnlyFor(kind=("sinusoidal", "learned", "per-layer", "rotary")),
    ] = None,
    n_heads: Annotated[
        int | None,
        typer.Option("--heads", help="Number of heads, for relative and alibi. Default: 8."),
        OnlyWithout("MODEL", why=MODEL_DECIDES),
        OnlyFor(kind=("relative", "alibi")),
    ] = None,
    side: Annotated[
        str | None,
        typer.Option(help="encoder or decoder of an encoder-decoder. Default: decoder."),
        OnlyWith("MODEL"),
    ] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Show how a model tells positions apart.

    The text has the frequencies, the first rows of the code, the least distance between two rows and the similarity
    PE·PEᵀ by distance, or the bias by distance and head; the plot has all of it as heat maps and curves. `binary` is
    not for models: it is the code that sines and cosines make smooth. Without a model, the learned kinds show their
    random initial values.

    \b
    Examples:
      headway show positions
      headway show positions --kind rotary --width 64 --out rotary.png
      headway show positions --kind alibi --heads 4 --length 16
      headway show positions runs/demo --json
    """
    import headway
    from headway.analysis.position_plots import plot, render_text, to_dict
    from headway.analysis.positions import check_kind, position_code

    check_picture(out)
    check_kind(kind)
    if model is None:
        check_options_for(f"{kind or 'sinusoidal'} positions", kind=kind or "sinusoidal")
    loaded = None if model is None else headway.load(model)
    code = position_code(kind, length=length, width=width, n_heads=n_heads, model=loaded, side=side)
    if code.origin == "untrained":
        hint = f"name a model with {code.kind} positions to see what it learned"
        print(f"note: these are the random initial values of {code.kind} positions: {hint}", file=sys.stderr)
    if out is not None:
        plot(code, out, model="" if model is None else model_name(model))
    if json:
        print_json({**to_dict(code), "picture": picture_path(out)})
        return
    print(render_text(code))
    print_picture(out)
