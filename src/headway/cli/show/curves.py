"""headway show curves"""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from headway.cli.options import Json, check_picture, print_json
from headway.cli.show.common import Out, picture_path, print_picture, with_theme


@with_theme
def curves(
    runs: Annotated[list[Path], typer.Argument(help="Runs, or folders that hold runs: sweeps, comparisons, runs/.")],
    metric: Annotated[
        str,
        typer.Option(
            "-y", "--metric", help="loss or bits_per_byte, of training and validation; lr, grad_norm, mfu, bleu, …"
        ),
    ] = "loss",
    x: Annotated[
        Literal["step", "seconds", "tokens"], typer.Option("-x", "--x", help="The x axis: step, seconds or tokens.")
    ] = "step",
    out: Out = None,
    log: Annotated[bool, typer.Option("--log", help="Make the y axis logarithmic.")] = False,
    json: Json = False,
) -> None:
    """Show the training curves of one or several runs.

    Training and validation loss are shown together: in a plot the one solid and the other dashed, in the colour of
    their run. Long training curves are smoothed; a plot also has them as logged, thin. --json has the logged values.

    \b
    Examples:
      headway show curves runs/demo
      headway show curves runs --metric bits_per_byte --x seconds
      headway show curves runs/demo -y lr --json
    """
    from headway.analysis.curves import (
        X_LABELS,
        check_log_scale,
        loss_unit,
        named_runs,
        plot,
        read_curves,
        render_text,
        tokenizers_differ,
        y_label,
    )

    check_picture(out)
    runs_by_name = named_runs(runs)
    run_curves = read_curves(runs_by_name, metric, x)
    if log:
        check_log_scale(run_curves)
    unit = loss_unit(runs_by_name)
    if metric == "loss" and tokenizers_differ(runs_by_name):
        hint = "their losses per token do not compare; -y bits_per_byte does"
        print(f"note: the runs have different tokenizers: {hint}", file=sys.stderr)
    if out is not None:
        plot(run_curves, out, metric=metric, x=x, log=log, unit=unit, title=", ".join(map(str, runs)))
    if json:
        points: dict[str, dict[str, dict[str, list[float]]]] = {}
        for curve in run_curves:
            split = "validation" if curve.is_validation else "training"
            points.setdefault(curve.name, {})[split] = {x: curve.x, metric: curve.y}
        print_json({"curves": points, "picture": picture_path(out)})
        return
    print(f"{y_label(metric, unit)} by {X_LABELS[x]}\n")
    print(render_text(run_curves, log=log))
    print_picture(out)
