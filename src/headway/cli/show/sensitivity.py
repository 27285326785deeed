"""headway show sensitivity"""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import Json, check_picture, print_json
from headway.cli.show.common import Out, picture_path, print_picture, with_theme


@with_theme
def sensitivity(
    models: Annotated[list[str], typer.Argument(help="Model directories or runs, one curve each.")],
    text: Annotated[
        Path | None, typer.Option("-t", "--text", help="A text file. Default: the validation split of the first run.")
    ] = None,
    distance: Annotated[int, typer.Option(min=1, help="Largest distance, in tokens.")] = 32,
    n_positions: Annotated[int, typer.Option(min=1, help="Positions of the text to average over.")] = 16,
    out: Out = None,
    json: Json = False,
) -> None:
    """Show how far back predictions depend on the input: gradient norms by distance.

    \b
    Examples:
      headway show sensitivity runs/demo --distance 16
      headway show sensitivity runs/demo --text my.txt --distance 8 --json
    """
    from headway.analysis.input_gradients import compare_reach, plot, render_text

    check_picture(out)
    reaches = compare_reach(models, text=text, distance=distance, n_positions=n_positions)
    if out is not None:
        plot(reaches, out)
    if json:
        print_json({"reach": {reach.name: reach.values for reach in reaches}, "picture": picture_path(out)})
        return
    print("gradient norm of a prediction by distance to the input token; 1 is the previous token's\n")
    print(render_text(reaches, width=shutil.get_terminal_size().columns))
    print_picture(out)
