"""headway show masks"""

import shutil
from typing import Annotated

import typer

from headway.cli.option_use import OnlyFor, OnlyWithout, check_options_for
from headway.cli.options import Json, check_picture, print_json
from headway.cli.show.common import Out, picture_path, print_picture, with_theme


@with_theme
def masks(
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", help="causal, padding, cross, document or sliding; repeatable. Default: all five."),
    ] = None,
    size: Annotated[int, typer.Option(help="Tokens of the examples, 1 to 40.")] = 5,
    window: Annotated[
        int,
        typer.Option(help="Tokens that the sliding mask leaves visible, at least 1."),
        OnlyFor(mask="sliding"),
    ] = 3,
    numbers: Annotated[
        bool, typer.Option("--numbers", help="Print 0 and −∞, as added to the scores."), OnlyWithout("--json")
    ] = False,
    out: Out = None,
    json: Json = False,
) -> None:
    """Show the attention masks: what each token may attend to, and why.

    ■ may be attended to, · may not. The plot has 0 and −∞ in its cells; masked cells are hatched.

    \b
    Examples:
      headway show masks
      headway show masks --kind causal --size 4 --numbers
      headway show masks --kind sliding --size 8 --window 2 --out masks.png
    """
    from headway.analysis.mask_gallery import example_masks, plot, render_text

    check_picture(out)
    if kinds and "sliding" not in kinds:
        check_options_for(f"a {kinds[0]} mask, which has no window", mask="other")
    examples = example_masks(kinds, size=size, window=window)
    if out is not None:
        plot(examples, out)
    if json:
        described = [
            {"kind": example.kind, "purpose": example.purpose, "code": example.code, "rows": example.rows,
             "columns": example.columns, "mask": example.mask.tolist()}
            for example in examples
        ]  # fmt: skip
        print_json({"masks": described, "picture": picture_path(out)})
        return
    print(render_text(examples, as_numbers=numbers, width=shutil.get_terminal_size().columns))
    print_picture(out)
