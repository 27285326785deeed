"""headway show"""

import math
from dataclasses import asdict
from json import loads
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headway.cli.options import Json, check_picture, print_json, print_notes

app = typer.Typer(
    help="Show what happens inside models and runs, as text and as a plot.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

DEFAULT_LOGITS = "2,1,1,0,-1,-3"

Out = Annotated[Path | None, typer.Option(help="Also write a plot: a .png, .svg or .pdf file.")]


@app.command()
def curves(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, one curve each.")],
    metric: Annotated[
        str,
        typer.Option("-y", "--metric", help="What to plot: loss, bits_per_byte (validation), lr, grad_norm, mfu, …"),
    ] = "loss",
    x: Annotated[Literal["step", "seconds"], typer.Option("-x", help="The x axis: step or seconds.")] = "step",
    out: Out = None,
    log: Annotated[bool, typer.Option("--log", help="Make the y axis of the plot logarithmic.")] = False,
    json: Json = False,
) -> None:
    """Show the training curves of one or several runs.

    \b
    Examples:
      headway show curves runs/demo
      headway show curves runs/demo -y lr --json
    """
    from headway.analysis.curves import plot, read_curves, render_text

    check_picture(out)
    run_curves = read_curves(runs, metric, x)
    if out is not None:
        plot(run_curves, out, metric=metric, x=x, log=log)
    if json:
        points = {curve.name: {x: curve.x, metric: curve.y} for curve in run_curves}
        print_json({"curves": points, "picture": _path(out)})
        return
    print(f"{metric.replace('_', ' ')} by {x}\n")
    print(render_text(run_curves))
    _print_plot(out)


@app.command()
def sampling(
    model: Annotated[
        str | None, typer.Argument(help="A model directory or a run. Without one, show the effect on --logits.")
    ] = None,
    prompt: Annotated[str, typer.Argument(help="The text before the token.")] = "",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Turn a sampler on: top_k=20, logit_bias=[[5,-2]], …; repeatable."),
    ] = None,
    sampler_order: Annotated[
        str | None, typer.Option(help="Apply samplers in this order, such as top_k,temperature.")
    ] = None,
    sampler_preset: Annotated[
        str, typer.Option(help="Apply samplers in a named order: default or temperature_first.")
    ] = "default",
    logits: Annotated[
        str | None,
        typer.Option(help=f"Without a model: logits separated by commas; -inf removes. Default: {DEFAULT_LOGITS}."),
    ] = None,
    top: Annotated[int, typer.Option(help="Number of tokens to show, at least 1.")] = 12,
    seed: Annotated[int, typer.Option(help="Seed of samplers that draw at random (xtc).")] = 0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Show the distribution of the next token after each sampler.

    \b
    Examples:
      headway show sampling --set top_k=4 --set temperature=0.5
      headway show sampling runs/demo "The statement" --set top_p=0.9 --set min_p=0.05 --set temperature=1.5
      headway show sampling runs/demo "The" --sampler-order temperature,top_p --set top_p=0.9 --set temperature=1.5
    """
    import torch

    import headway
    from headway.analysis.sampling import plot, render_text, trace_next_token, trace_samplers
    from headway.sampling import Pipeline

    check_picture(out)
    values = dict(_parse_setting(setting) for setting in settings or [])
    order = None if sampler_order is None else [name.strip() for name in sampler_order.split(",")]
    if model is None:
        row = torch.tensor(_parse_logits(logits or DEFAULT_LOGITS))
        pipeline = Pipeline(preset=None if order else sampler_preset, order=order, **values)
        print_notes(pipeline)
        steps = trace_samplers(row, pipeline, top=top, seed=seed)
    else:
        if logits is not None:
            raise typer.BadParameter("a model computes its own logits: choose one of the two", param_hint="--logits")
        values |= {"sampler_preset": sampler_preset, "sampler_order": order}
        steps = trace_next_token(headway.load(model), prompt, top=top, seed=seed, on_warning=print_notes, **values)
    if out is not None:
        plot(steps, out)
    if json:
        print_json({**asdict(steps), "picture": _path(out)})
        return
    print(render_text(steps))
    _print_plot(out)


@app.command()
def attention(
    model: Annotated[str, typer.Argument(help="A model directory or a run.")],
    text: Annotated[str, typer.Argument(help="The text; for a translation model, the source.")],
    target: Annotated[
        str | None, typer.Argument(help="For a translation model: the translation. Default: the model's own.")
    ] = None,
    side: Annotated[
        str | None, typer.Option(help="cross (from target to source), encoder or decoder (self-attention).")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Show one layer, from 0. Default: all.")] = None,
    head: Annotated[int | None, typer.Option(help="Show one head, from 0. Default: all.")] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Show which tokens each token attends to.

    The terminal shows the three tokens with the largest weights, averaged over heads, in the last layer or in --layer.
    The plot has a panel per layer and head.

    \b
    Examples:
      headway show attention runs/reverse "abcde" --layer 1
      headway show attention runs/reverse "abcde" --side encoder --layer 0 --head 2 --json
      headway show attention runs/demo "The statement is" --layer 0
    """
    import headway
    from headway.analysis.attention import plot, render_text, text_attention

    check_picture(out)
    if not text.strip():
        raise typer.BadParameter("an empty text has no tokens to attend to", param_hint="TEXT")
    if target is not None and side == "encoder":
        raise typer.BadParameter("an encoder sees the source alone: leave TARGET out", param_hint="TARGET")
    layers, heads = (None if index is None else [index] for index in (layer, head))
    result = text_attention(headway.load(model), text, target, side=side, layers=layers, heads=heads)
    if out is not None:
        plot(result.maps, result.rows, result.columns, out)
    if json:
        maps = [{"layer": m.layer, "heads": m.heads, "weights": m.weights.tolist()} for m in result.maps]
        print_json({"side": result.maps[0].side, "rows": result.rows, "columns": result.columns, "maps": maps,
                    "picture": _path(out)})  # fmt: skip
        return
    last = result.maps[-1]
    heads_shown = f"head {last.heads[0]}" if len(last.heads) == 1 else f"the mean of {len(last.heads)} heads"
    print(f"{last.side} attention, layer {last.layer}, {heads_shown}\n")
    print(render_text(last, result.rows, result.columns))
    _print_plot(out)


@app.command()
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
        print_json({"reach": {reach.name: reach.values for reach in reaches}, "picture": _path(out)})
        return
    print("gradient norm of a prediction by distance to the input token; 1 is the previous token's\n")
    print(render_text(reaches))
    _print_plot(out)


def _path(file: Path | None) -> str | None:
    return None if file is None else str(file)


def _print_plot(file: Path | None) -> None:
    if file is not None:
        print(f"\nplot: {file}")


def _parse_setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE; the value is a number, a word, or JSON such as [1, 2]."""
    name, sign, value = text.partition("=")
    if not sign:
        raise typer.BadParameter(f"{text!r} is not of the form NAME=VALUE, such as top_k=20", param_hint="--set")
    try:
        return name.strip().replace("-", "_"), loads(value)
    except ValueError:
        return name.strip().replace("-", "_"), value


def _parse_logits(text: str) -> list[float]:
    try:
        logits = [float(number) for number in text.split(",")]
    except ValueError:
        logits = []
    if not any(math.isfinite(x) for x in logits) or any(math.isnan(x) or x == math.inf for x in logits):
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as 2,1,0,-inf", param_hint="--logits")
    return logits
