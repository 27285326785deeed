"""headway show"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from headway.cli.options import Json, print_json

app = typer.Typer(help="Pictures.", no_args_is_help=True, rich_markup_mode=None, add_completion=False)


@app.callback()
def _pictures() -> None:
    """Keeps `curves` a name of its own while there is one picture."""


@app.command()
def curves(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, one curve each.")],
    quantity: Annotated[
        str,
        typer.Option("-y", "--quantity", help="loss, bits_per_byte (held out), lr, grad_norm, mfu, …"),
    ] = "loss",
    x: Annotated[Literal["step", "seconds"], typer.Option("-x", help="Along steps or seconds.")] = "step",
    out: Annotated[Path | None, typer.Option(help="Also draw a picture: a .png, .svg or .pdf file.")] = None,
    log: Annotated[bool, typer.Option("--log", help="A logarithmic axis in the picture.")] = False,
    json: Json = False,
) -> None:
    """Show how one or several runs went, in the terminal and as a picture.

    \b
    Examples:
      headway show curves runs/demo
      headway show curves runs/demo -y lr --json
    """
    from headway.trace.curves import as_text, draw
    from headway.trace.curves import curves as read_curves

    found = read_curves(runs, quantity, x)
    if out is not None:
        draw(found, out, quantity=quantity, x=x, log=log)
    if json:
        points = {curve.name: {x: curve.x, quantity: curve.y} for curve in found}
        print_json({"curves": points, "picture": None if out is None else str(out)})
        return
    print(f"{quantity.replace('_', ' ')} by {x}\n")
    print(as_text(found))
    if out is not None:
        print(f"picture: {out}")
