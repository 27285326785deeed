"""headway show sampling"""

import math
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.option_use import OnlyWith, OnlyWithout
from headway.cli.options import Json, check_picture, print_json, print_notes
from headway.cli.sampler_options import parse_setting
from headway.cli.show.common import Out, model_name, parse_numbers, picture_path, print_picture, with_theme

DEFAULT_LOGITS = "2,1,1,0,-1,-3"


@with_theme
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
        str,
        typer.Option(help="Apply samplers in a named order: default or temperature_first."),
        OnlyWithout("--sampler-order"),
    ] = "default",
    logits: Annotated[
        str | None,
        typer.Option(help=f"Without a model: logits separated by commas; -inf removes. Default: {DEFAULT_LOGITS}."),
        OnlyWithout("MODEL", why="a model computes its own logits: choose one of the two"),
    ] = None,
    temperatures: Annotated[
        str | None,
        typer.Option(metavar="T,…", help="Compare temperatures, such as 0.2,1,2, in place of samplers."),
        OnlyWithout("--set", "--sampler-order", "--sampler-preset", why="compares temperatures alone: leave one out"),
    ] = None,
    top: Annotated[int, typer.Option(help="Number of tokens to show, at least 1.")] = 12,
    seed: Annotated[int, typer.Option(help="Seed of samplers that draw at random (xtc)."), OnlyWith("--set")] = 0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Show the distribution of the next token after each sampler.

    With a model, the last column is what `generate` draws from with these settings. Its default temperature is applied
    too: --set temperature=1 turns it off. --temperatures shows the same logits at several temperatures.

    \b
    Examples:
      headway show sampling --set top_k=4 --set temperature=0.5
      headway show sampling --logits 3,1,-1 --temperatures 0.2,0.5,1,2
      headway show sampling runs/demo "The statement" --set top_p=0.9 --set min_p=0.05 --set temperature=1.5
      headway show sampling runs/demo "The" --sampler-order temperature,top_p --set top_p=0.9 --set temperature=1.5
    """
    import torch

    import headway
    from headway.analysis.sampling import plot, render_text, trace_next_token, trace_samplers
    from headway.sampling import Pipeline

    check_picture(out)
    values = dict(parse_setting(setting) for setting in settings or [])
    order = None if sampler_order is None else [name.strip() for name in sampler_order.split(",")]
    if temperatures is not None:
        _show_temperatures(model, prompt, logits, parse_numbers(temperatures, "--temperatures"), top, out, json)
        return
    if model is None:
        row = torch.tensor(_parse_logits(logits or DEFAULT_LOGITS))
        pipeline = Pipeline(preset=None if order else sampler_preset, order=order, **values)
        print_notes(pipeline)
        steps = trace_samplers(row, pipeline, top=top, seed=seed)
    else:
        values |= {"sampler_preset": sampler_preset, "sampler_order": order}
        steps = trace_next_token(headway.load(model), prompt, top=top, seed=seed, on_warning=print_notes, **values)
    if out is not None:
        plot(steps, out, model="" if model is None else model_name(model))
    if json:
        print_json({**asdict(steps), "picture": picture_path(out)})
        return
    print(render_text(steps, width=shutil.get_terminal_size().columns))
    if model is not None and "temperature" in steps.stages and "temperature" not in values:
        default = steps.stage_titles[steps.stages.index("temperature")]
        note = f"note: {default}, the default of generate, is applied; --set temperature=1 turns it off"
        print(note, file=sys.stderr)
    print_picture(out)


def _show_temperatures(
    model: str | None,
    prompt: str,
    logits: str | None,
    temperatures: list[float],
    top: int,
    out: Path | None,
    json: bool,
) -> None:
    """One distribution at several temperatures."""
    import torch

    import headway
    from headway.analysis.sampling import next_token_logits, plot, render_text, trace_temperatures

    if model is None:
        steps = trace_temperatures(torch.tensor(_parse_logits(logits or DEFAULT_LOGITS)), temperatures, top=top)
    else:
        row, _, decode = next_token_logits(headway.load(model), prompt)
        steps = trace_temperatures(row, temperatures, decode=decode, top=top, prompt=prompt)
    if out is not None:
        plot(steps, out, model="" if model is None else model_name(model))
    if json:
        print_json({**asdict(steps), "temperatures": temperatures, "picture": picture_path(out)})
        return
    print(render_text(steps, width=shutil.get_terminal_size().columns, digits=5))
    print_picture(out)


def _parse_logits(text: str) -> list[float]:
    try:
        logits = [float(number) for number in text.split(",")]
    except ValueError:
        logits = []
    if not any(math.isfinite(x) for x in logits) or any(math.isnan(x) or x == math.inf for x in logits):
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as 2,1,0,-inf", param_hint="--logits")
    return logits
