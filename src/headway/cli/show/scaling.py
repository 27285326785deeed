"""headway show scaling"""

import shutil
from dataclasses import asdict
from typing import Annotated

import typer

from headway.cli.options import Json, check_picture, print_json
from headway.cli.show.common import Out, parse_numbers, picture_path, print_picture, with_theme

DEFAULT_WIDTHS = "4,16,64,256,1024"


@with_theme
def scaling(
    d_head: Annotated[str, typer.Option(help="Widths of queries and keys, separated by commas.")] = DEFAULT_WIDTHS,
    sigma: Annotated[float, typer.Option(help="Standard deviation of each component of q and k.")] = 1.0,
    n_keys: Annotated[int, typer.Option(help="Keys that each query is compared with, at least 2.")] = 8,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the random queries and keys.")] = 0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Show why attention divides its scores by √d.

    The dot product of random q and k of width d has the variance dσ⁴, so its standard deviation grows with √d.
    Without the division one weight nears 1 and the gradient of the softmax, diag(a) − aaᵀ, nears 0.

    \b
    Examples:
      headway show scaling
      headway show scaling --d-head 64,512 --sigma 0.5
      headway show scaling --out scaling.png
    """
    from headway.analysis.dot_product_scaling import plot, render_text, score_scaling

    check_picture(out)
    widths = parse_numbers(d_head, "--d-head", example="4,16,64")
    if any(width != int(width) for width in widths):
        raise typer.BadParameter(f"{d_head!r}: a width is a whole number", param_hint="--d-head")
    rows = score_scaling([int(width) for width in widths], sigma=sigma, n_keys=n_keys, seed=seed)
    if out is not None:
        plot(rows, out)
    if json:
        print_json({"sigma": sigma, "n_keys": n_keys, "rows": [asdict(row) for row in rows],
                    "picture": picture_path(out)})  # fmt: skip
        return
    print(f"scores q · k, components of q and k N(0, {sigma:g}²), {n_keys} keys per query: standard deviation;")
    print("mean largest weight and mean norm of the Jacobian of the softmax, without and with / √d\n")
    print(render_text(rows, width=shutil.get_terminal_size().columns))
    print_picture(out)
