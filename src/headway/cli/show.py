"""headway show"""

import math
from collections.abc import Callable
from dataclasses import asdict
from json import loads
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headway.cli.options import Json, check_picture, print_json, say
from headway.runs import Run

app = typer.Typer(help="Pictures.", no_args_is_help=True, rich_markup_mode=None, add_completion=False)


@app.command()
def curves(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, one curve each.")],
    metric: Annotated[
        str,
        typer.Option("-y", "--metric", help="loss, bits_per_byte (held out), lr, grad_norm, mfu, …"),
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
    from headway.analysis.curves import as_text, draw
    from headway.analysis.curves import curves as read_curves

    check_picture(out)
    found = read_curves(runs, metric, x)
    if out is not None:
        draw(found, out, metric=metric, x=x, log=log)
    if json:
        points = {curve.name: {x: curve.x, metric: curve.y} for curve in found}
        print_json({"curves": points, "picture": None if out is None else str(out)})
        return
    print(f"{metric.replace('_', ' ')} by {x}\n")
    print(as_text(found))
    if out is not None:
        print(f"picture: {out}")


@app.command()
def sampling(
    model: Annotated[str | None, typer.Argument(help="A model directory or a run; none: the row of --logits.")] = None,
    prompt: Annotated[str, typer.Argument(help="The text whose next token is looked at.")] = "",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A setting: top_k=20, logit_bias=[[5,-2]], …; may be repeated. All are off at first."
        ),
    ] = None,
    sampler_order: Annotated[
        str | None, typer.Option(help="Your own order: names with commas, such as top_k,temperature.")
    ] = None,
    sampler_preset: Annotated[str, typer.Option(help="Order of the stages: default or temperature_first.")] = "default",
    logits: Annotated[
        str | None, typer.Option(help="Without a model: numbers with commas, -inf: removed. Default: 2,1,1,0,-1,-3.")
    ] = None,
    top: Annotated[int, typer.Option(help="How many tokens to show, at least 1.")] = 12,
    seed: Annotated[int, typer.Option(help="For xtc, which tosses a coin.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also draw a picture: a .png, .svg or .pdf file.")] = None,
    json: Json = False,
) -> None:
    """Show one distribution going through samplers, stage by stage.

    \b
    Examples:
      headway show sampling --set top_k=4 --set temperature=0.5
      headway show sampling runs/demo "The statement" --set top_p=0.9 --set min_p=0.05 --set temperature=1.5
      headway show sampling runs/demo "The" --sampler-order temperature,top_p --set top_p=0.9 --set temperature=1.5
    """
    import torch

    import headway
    from headway.analysis.sampling import as_text, draw, trace_samplers
    from headway.generation.sampling_params import make_pipeline
    from headway.sampling import Pipeline

    check_picture(out)
    given: dict[str, Any] = dict(_setting(text) for text in settings or [])
    spell: Callable[[int], str] = str
    empty: list[list[int]] = [[]]
    names = None if sampler_order is None else [name.strip() for name in sampler_order.split(",")]
    if model is None:
        pipe: Any = Pipeline(preset=None if names else sampler_preset, order=names, **given)
        row, history = torch.tensor([_logits(logits or "2,1,1,0,-1,-3")]), empty
    else:
        if logits is not None:
            raise typer.BadParameter("a model has logits of its own: one of the two", param_hint="--logits")
        loaded: Any = headway.load(model)
        tokenizer = loaded.tokenizer
        history = [tokenizer.prompt(prompt)]
        with torch.inference_mode():
            row = loaded(torch.tensor(history, device=loaded.device))[:, -1, : tokenizer.vocab_size].float().cpu()
        ends = {id for id in (loaded.config.eos_id, tokenizer.eos_id) if id is not None}
        given.setdefault("temperature", 1.0)
        pipe = make_pipeline(tokenizer, ends, sampler_preset, names, **given)
        spell = lambda id: tokenizer.decode([id])  # noqa: E731
    say(pipe)
    shown = trace_samplers(
        row[0], pipe, spell=spell, top=top, history=history, n_prompt=[len(history[0])], state=pipe.start(1, seed)
    )
    if out is not None:
        draw(shown, out)
    if json:
        print_json({**asdict(shown), "settings": pipe.stages, "picture": None if out is None else str(out)})
        return
    print(as_text(shown))
    if out is not None:
        print(f"picture: {out}")


@app.command()
def attention(
    model: Annotated[str, typer.Argument(help="A model directory or a run.")],
    text: Annotated[str, typer.Argument(help="The text; of a require_translator, the source.")],
    target: Annotated[
        str | None, typer.Argument(help="Of a require_translator: the translation to look at. Default: its own.")
    ] = None,
    side: Annotated[
        str | None,
        typer.Option(help="cross (a translation at its source), encoder or decoder (a text at itself)."),
    ] = None,
    layer: Annotated[int | None, typer.Option(help="One layer, from 0. Default: all.")] = None,
    head: Annotated[int | None, typer.Option(help="One head, from 0. Default: all.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also draw a picture: a .png, .svg or .pdf file.")] = None,
    json: Json = False,
) -> None:
    """Show what the tokens of a text look at: a row for each token, over all heads or one.

    In the terminal, the three tokens that each looks at most (the mean of the heads, of the last layer unless one is
    named); in the picture a panel for every layer and head.

    \b
    Examples:
      headway show attention runs/reverse "abcde" --layer 1
      headway show attention runs/reverse "abcde" --side encoder --layer 0 --head 2 --json
      headway show attention runs/demo "The statement is" --layer 0
    """
    import headway
    from headway.analysis.attention import as_text, draw, labels, record
    from headway.generation.source import decoder_start_id, encode_sources, require_translator
    from headway.models.base import Seq2SeqLM

    check_picture(out)
    if target is not None and side == "encoder":
        raise typer.BadParameter("an encoder sees the source alone: leave it out", param_hint="TARGET")
    loaded: Any = headway.load(model)
    tokenizer = loaded.tokenizer
    layers, heads = (None if i is None else [i] for i in (layer, head))
    if isinstance(loaded, Seq2SeqLM):
        require_translator(loaded)
        if target is None:
            target = headway.translate(loaded, text)[0].text
        (source,) = encode_sources(loaded, tokenizer, [text])
        if not source:
            raise typer.BadParameter("an empty text: there is nothing to look at", param_hint="TEXT")
        ids = [decoder_start_id(loaded), *tokenizer.encode(target)]
        maps = record(loaded, ids, source=source, side=side, layers=layers, heads=heads)
        looks = source if maps[0].side == "encoder" else ids
        seen = ids if maps[0].side == "decoder" else source
    else:
        if target is not None:
            raise typer.BadParameter(f"a {type(loaded).__name__} has no source: one text", param_hint="TARGET")
        ids = tokenizer.frame(tokenizer.encode(text))[0] if tokenizer.mask_id is not None else tokenizer.prompt(text)
        maps = record(loaded, ids, side=side, layers=layers, heads=heads)
        looks = seen = ids
    rows, columns = labels(tokenizer, looks), labels(tokenizer, seen)
    if out is not None:
        draw(maps, rows, columns, out)
    if json:
        found = [{"layer": m.layer, "heads": m.heads, "weights": m.weights.tolist()} for m in maps]
        print_json({"side": maps[0].side, "rows": rows, "columns": columns, "maps": found,
                    "picture": None if out is None else str(out)})  # fmt: skip
        return
    shown = maps[-1]
    of = f"head {shown.heads[0]}" if len(shown.heads) == 1 else f"the mean of {len(shown.heads)} heads"
    print(f"{shown.side} attention, layer {shown.layer}, {of}\n")
    print(as_text(shown, rows, columns))
    if out is not None:
        print(f"\npicture: {out}")


@app.command()
def sensitivity(
    models: Annotated[list[str], typer.Argument(help="Model directories or runs, one curve each.")],
    text: Annotated[
        Path | None, typer.Option("-t", "--text", help="A text file. Default: what the first run held out.")
    ] = None,
    distance: Annotated[int, typer.Option(min=1, help="How many tokens to look back.")] = 32,
    places: Annotated[int, typer.Option(min=1, help="At how many places of the text.")] = 16,
    out: Annotated[Path | None, typer.Option(help="Also draw a picture: a .png, .svg or .pdf file.")] = None,
    json: Json = False,
) -> None:
    """Show how far back models feel: the gradient of a prediction by each earlier token, falling with distance.

    \b
    Examples:
      headway show sensitivity runs/demo --distance 16
      headway show sensitivity runs/demo --text my.txt --distance 8 --json
    """
    import headway
    from headway.analysis.input_gradients import as_text, draw, gradient_reach
    from headway.config import load_recipe
    from headway.data import load_documents, read_split

    check_picture(out)
    if text is not None:
        documents = load_documents(str(text))
    elif Run.exists(models[0]):
        documents = list(read_split(load_recipe(Path(models[0])).data, "valid"))
    else:
        raise typer.BadParameter(f"{models[0]} is no run with held-out text: name a file", param_hint="--text")
    found = []
    for name in models:
        loaded: Any = headway.load(name)
        ids = loaded.tokenizer.stream(documents)
        found.append(gradient_reach(loaded, ids, distance=distance, places=places, name=name))
    if out is not None:
        draw(found, out)
    if json:
        print_json({"reach": {one.name: one.values for one in found}, "picture": None if out is None else str(out)})
        return
    print("gradient of a prediction by the token so many steps back, in proportion to the last one's\n")
    print(as_text(found))
    if out is not None:
        print(f"\npicture: {out}")


def _setting(text: str) -> tuple[str, object]:
    """NAME=VALUE; a value is a number, a word, or JSON such as [1, 2]."""
    name, sign, value = text.partition("=")
    if not sign:
        raise typer.BadParameter(f"{text!r}: NAME=VALUE, such as top_k=20", param_hint="--set")
    try:
        return name.strip().replace("-", "_"), loads(value)
    except ValueError:
        return name.strip().replace("-", "_"), value


def _logits(text: str) -> list[float]:
    try:
        found = [float(number) for number in text.split(",")]
    except ValueError:
        found = []
    if not any(math.isfinite(x) for x in found) or any(math.isnan(x) or x == math.inf for x in found):
        raise typer.BadParameter(f"{text!r}: numbers with commas, such as 2,1,0,-inf", param_hint="--logits")
    return found
