"""headway show routing"""

from typing import Annotated

import typer

from headway.cli.option_use import OnlyWith
from headway.cli.options import Json, check_picture, print_json
from headway.cli.show.common import Out, picture_path, print_picture, with_theme


@with_theme
def routing(
    n_tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens of the sequence, N.")] = 3,
    width: Annotated[int, typer.Option(min=1, help="Numbers of each token, D.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random weights in the plot."), OnlyWith("--out")] = 5,
    out: Out = None,
    json: Json = False,
) -> None:
    """Compare a dense layer over a whole sequence with self-attention, as two matrices.

    Both multiply all N·D numbers of the sequence by one matrix. The dense layer has one weight for each pair;
    every block of self-attention's matrix is the value projection, times one attention weight.

    \b
    Examples:
      headway show routing
      headway show routing --tokens 100 --width 64 --json
    """
    from headway.analysis.routing import attention_weights, dense_weights, plot, render_text

    check_picture(out)
    if out is not None:
        plot(n_tokens, width, out, seed=seed)
    if json:
        print_json({"n_tokens": n_tokens, "width": width, "dense_weights": dense_weights(n_tokens, width),
                    "attention_weights": attention_weights(width), "picture": picture_path(out)})  # fmt: skip
        return
    print(render_text(n_tokens, width))
    print_picture(out)
