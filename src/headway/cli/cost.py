"""headway cost"""

import sys
from typing import Annotated

import typer

from headway.cli.completion import complete_model
from headway.cli.options import Json, check_minimum, print_json


def cost(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODELS",
            help="Families, presets, recipes, model directories or runs.",
            autocompletion=complete_model,
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change the model's config, such as n_layers=2; repeatable."),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Sequences at once.")] = 1,
    seq_len: Annotated[
        int | None, typer.Option("--seq-len", "--seq", help="Tokens of a sequence. Default: the model's context.")
    ] = None,
    source_len: Annotated[
        int | None, typer.Option(help="Encoder-decoders: tokens of the source. Default: --seq-len.")
    ] = None,
    new_tokens: Annotated[int | None, typer.Option(help="Also count the generation of so many tokens.")] = None,
    window: Annotated[int | None, typer.Option(help="Keep this many tokens in the KV cache: a sliding window.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16, float16 or float64. Default: float32; on a GPU bfloat16.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Add time and memory bounds of a device: h200, rtx-4090, m2-ultra, …")
    ] = None,
    num_devices: Annotated[int, typer.Option(help="Devices to train on.")] = 1,
    explain: Annotated[bool, typer.Option("--explain", help="Print every formula with its numbers.")] = False,
    json: Json = False,
) -> None:
    """Count what a model costs: parameters, FLOPs, bytes moved, memory, and how fast a device can be at best.

    Everything follows from the config, so no model is built. Several models are listed side by side. FLOPs are those of
    matrix products; bytes moved are those of each operation by itself.

    \b
    Examples:
      headway cost gpt2 --seq-len 1024
      headway cost transformer --set vocab_size=40000 --explain
      headway cost llama-3-70b --device h200 --batch-size 8 --seq-len 8192
      headway cost gpt2 lstm ngram --seq-len 512 --json
    """
    from headway.cli.model_configs import find_config
    from headway.costs.devices import find_device
    from headway.costs.rendering import render_comparison, render_explanation, render_report
    from headway.costs.report import cost_report

    for flag, number in {
        "--batch-size": batch_size,
        "--seq-len": seq_len,
        "--source-len": source_len,
        "--new-tokens": new_tokens,
        "--window": window,
        "--num-devices": num_devices,
    }.items():
        check_minimum(flag, number)
    spec = None if device is None else find_device(device)
    reports = []
    for model in models:
        named = find_config(model, settings or ())
        if named.note:
            print(f"note: {named.note}", file=sys.stderr)
        reports.append(
            cost_report(
                named.config,
                named.name,
                batch_size=batch_size,
                seq_len=seq_len,
                source_len=source_len,
                new_tokens=new_tokens,
                dtype=dtype,
                device=spec,
                n_devices=num_devices,
                window=window,
            )
        )
    if json:
        print_json({"models": [report.to_dict() for report in reports]})
    elif explain:
        print("\n\n".join(map(render_explanation, reports)))
    elif len(reports) > 1:
        print(render_comparison(reports))
    else:
        print(render_report(reports[0]))
