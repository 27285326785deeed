"""headway show"""

import math
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headway.cli.completion import complete_model
from headway.cli.help import CommandApp
from headway.cli.option_use import OnlyWith, OnlyWithout
from headway.cli.options import Json, check_picture, note_unknown_text, print_json, print_notes
from headway.cli.sampler_options import parse_setting

if TYPE_CHECKING:
    from headway.analysis.attention import TextAttention
    from headway.models.base import Model

app = CommandApp(help="Show what happens inside models and runs, as text and as a plot.")

DEFAULT_LOGITS = "2,1,1,0,-1,-3"

Out = Annotated[Path | None, typer.Option(help="Also write a plot: a .png, .svg or .pdf file.")]


@app.command()
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
        print_json({"curves": points, "picture": _path(out)})
        return
    print(f"{y_label(metric, unit)} by {X_LABELS[x]}\n")
    print(render_text(run_curves, log=log))
    _print_plot(out)


@app.command("model")
def show_model(
    name: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A family, preset, recipe, model directory or run.", autocompletion=complete_model
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change the model's config, such as n_layers=2; repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """List the parameters of a model by name and shape, and what is not trained.

    The model is built without its weights, so the largest presets can be shown too. Equal layers are one row.

    \b
    Examples:
      headway show model gpt2
      headway show model transformer --set n_layers=2
      headway show model llama-3-8b --json
    """
    from headway.analysis.model_summary import summarize_model
    from headway.cli.model_configs import find_config

    named = find_config(name, settings or ())
    if named.note:
        print(f"note: {named.note}", file=sys.stderr)
    summary = summarize_model(named.config, named.name)
    print_json(summary.to_dict()) if json else print(summary.render())


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
        str,
        typer.Option(help="Apply samplers in a named order: default or temperature_first."),
        OnlyWithout("--sampler-order"),
    ] = "default",
    logits: Annotated[
        str | None,
        typer.Option(help=f"Without a model: logits separated by commas; -inf removes. Default: {DEFAULT_LOGITS}."),
        OnlyWithout("MODEL", why="a model computes its own logits: choose one of the two"),
    ] = None,
    top: Annotated[int, typer.Option(help="Number of tokens to show, at least 1.")] = 12,
    seed: Annotated[int, typer.Option(help="Seed of samplers that draw at random (xtc)."), OnlyWith("--set")] = 0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Show the distribution of the next token after each sampler.

    With a model, the last column is what `generate` draws from with these settings. Its default temperature is applied
    too: --set temperature=1 turns it off.

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
    values = dict(parse_setting(setting) for setting in settings or [])
    order = None if sampler_order is None else [name.strip() for name in sampler_order.split(",")]
    if model is None:
        row = torch.tensor(_parse_logits(logits or DEFAULT_LOGITS))
        pipeline = Pipeline(preset=None if order else sampler_preset, order=order, **values)
        print_notes(pipeline)
        steps = trace_samplers(row, pipeline, top=top, seed=seed)
    else:
        values |= {"sampler_preset": sampler_preset, "sampler_order": order}
        steps = trace_next_token(headway.load(model), prompt, top=top, seed=seed, on_warning=print_notes, **values)
    if out is not None:
        plot(steps, out, model="" if model is None else _name(model))
    if json:
        print_json({**asdict(steps), "picture": _path(out)})
        return
    print(render_text(steps, width=shutil.get_terminal_size().columns))
    if model is not None and "temperature" in steps.stages and "temperature" not in values:
        default = steps.stage_titles[steps.stages.index("temperature")]
        note = f"note: {default}, the default of generate, is applied; --set temperature=1 turns it off"
        print(note, file=sys.stderr)
    _print_plot(out)


@app.command()
def attention(
    model: Annotated[str, typer.Argument(help="A model directory or a run.")],
    text: Annotated[str, typer.Argument(help="The text; for a translation model, the source.")],
    target: Annotated[
        str | None,
        typer.Argument(
            help="For a translation model: the translation, by default the model's own. For an encoder: a second text."
        ),
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
    The plot has a panel per layer and head; tokens that may not be attended to are hatched. The rows of cross-attention
    are the tokens being written, up to EOS. In encoders such as BERT, the row of [CLS] is marked: it represents the
    text.

    \b
    Examples:
      headway show attention runs/reverse "abcde" --layer 1
      headway show attention runs/reverse "abcde" --side encoder --layer 0 --head 2 --json
      headway show attention runs/demo "The statement is" --layer 0
      headway show attention runs/bert "The cat sat." "It slept." --layer 0
    """
    import headway
    from headway.analysis.attention import text_attention
    from headway.analysis.attention_plots import CLS_MARK, SIDES, plot, render_text
    from headway.models.base import Seq2SeqLM

    check_picture(out)
    if not text.strip():
        raise typer.BadParameter("an empty text has no tokens to attend to", param_hint="TEXT")
    layers, heads = (None if index is None else [index] for index in (layer, head))
    loaded = headway.load(model)
    if target is not None and side == "encoder" and isinstance(loaded, Seq2SeqLM):
        raise typer.BadParameter("this encoder sees the source alone: leave TARGET out", param_hint="TARGET")
    result = text_attention(loaded, text, target, side=side, layers=layers, heads=heads)
    note_unknown_text(loaded.tokenizer, [text.strip(), *([] if target is None else [target])], "text")
    _note_overflow(loaded, result)
    if out is not None:
        plot(result, out, model=_name(model))
        _note_small_panels(result)
    if json:
        maps = [{"layer": m.layer, "heads": m.heads, "weights": m.weights.tolist()} for m in result.maps]
        print_json({"side": result.side, "rows": result.rows, "columns": result.columns, "cls_row": result.cls_row,
                    "maps": maps, "picture": _path(out)})  # fmt: skip
        return
    last = result.maps[-1]
    heads_shown = f"head {last.heads[0]}" if len(last.heads) == 1 else f"the mean of {len(last.heads)} heads"
    print(f"{SIDES[last.side]}, layer {last.layer}, {heads_shown}\n")
    width = shutil.get_terminal_size().columns
    print(render_text(last, result.rows, result.columns, width=width, cls_row=result.cls_row))
    if result.cls_row is not None:
        print(f"\n{CLS_MARK} {result.rows[result.cls_row]}: its hidden state represents the text")
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
    print(render_text(reaches, width=shutil.get_terminal_size().columns))
    _print_plot(out)


def _note_overflow(model: "Model", attention: "TextAttention") -> None:
    from headway.errors import count

    context, n_tokens = model.config.context, max(len(attention.rows), len(attention.columns))
    if context is not None and n_tokens > context:
        past = f"goes {count(n_tokens - context, 'token')} past the training context of {context}"
        print(f"note: the text {past}: its attention may differ from what was learned", file=sys.stderr)


def _note_small_panels(attention: "TextAttention") -> None:
    from headway.analysis.attention_plots import has_small_panels

    if has_small_panels(attention):
        n_panels = len(attention.maps) * len(attention.maps[0].heads)
        hint = "--layer and --head show one of them larger"
        print(f"note: {n_panels} panels of {len(attention.columns)} tokens are small: {hint}", file=sys.stderr)


def _name(model: str) -> str:
    """The name of a model's folder, for titles."""
    return Path(model).resolve().name


def _path(file: Path | None) -> str | None:
    return None if file is None else str(file)


def _print_plot(file: Path | None) -> None:
    if file is not None:
        print(f"\nplot: {file}")


def _parse_logits(text: str) -> list[float]:
    try:
        logits = [float(number) for number in text.split(",")]
    except ValueError:
        logits = []
    if not any(math.isfinite(x) for x in logits) or any(math.isnan(x) or x == math.inf for x in logits):
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as 2,1,0,-inf", param_hint="--logits")
    return logits
