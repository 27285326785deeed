"""headway cost"""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.completion import complete_model
from headway.cli.option_use import OnlyWith, OnlyWithout
from headway.cli.options import Json, check_minimum, check_picture, print_json
from headway.cli.theme_option import with_theme_of_plot

if TYPE_CHECKING:
    from headway.costs.report import CostReport
    from headway.costs.roofline import Rates


@with_theme_of_plot(is_always_drawn=False)
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
    batch_size: Annotated[int, typer.Option(help="Sequences per batch.")] = 1,
    seq_len: Annotated[
        int | None, typer.Option("--seq-len", "--seq", help="Sequence length in tokens. Default: the model's context.")
    ] = None,
    source_len: Annotated[
        int | None, typer.Option(help="Encoder-decoders: tokens of the source. Default: --seq-len.")
    ] = None,
    new_tokens: Annotated[
        int | None,
        typer.Option(help="Also count FLOPs to generate N tokens, with and without a KV cache."),
        OnlyWithout("--measure", "--growth"),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(help="Keep this many tokens in the KV cache: a sliding window."),
        OnlyWithout("--measure", "--growth"),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16, float16 or float64. Default: the 16-bit dtype of the device, else float32."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Add time and memory bounds of a device: h200, rtx-4090, m2-ultra, …"),
        OnlyWithout("--measure", why="names a device of the table, and --measure uses this machine: leave one out"),
    ] = None,
    num_devices: Annotated[int, typer.Option(help="Devices to train on."), OnlyWith("--device")] = 1,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Print every formula with its numbers."),
        OnlyWithout("--json", "--measure", "--growth"),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE", help="Draw the roofline and cost against length: a .png, .svg or .pdf file."
        ),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Run the model here, and print measured beside predicted times.")
    ] = False,
    growth: Annotated[
        bool,
        typer.Option("--growth", help="Time a GPT by sequence length: with and without KV cache, and against an LSTM."),
        OnlyWithout("--measure", "--device"),
    ] = False,
    json: Json = False,
) -> None:
    """Count what a model costs: parameters, FLOPs, bytes moved, memory, and how fast a device can be at best.

    Counts follow from the config: no model is built, except with --measure and --growth. Several models are listed side
    by side. FLOPs are those of matrix products; bytes are those of each operation as a separate, unfused kernel.

    \b
    Examples:
      headway cost gpt2 --seq-len 1024
      headway cost transformer --set vocab_size=40000 --explain
      headway cost llama-3-70b --device h200 --batch-size 8 --seq-len 8192
      headway cost gpt2 lstm ngram --seq-len 512 --json
      headway cost gpt-tiny --measure --seq-len 32
      headway cost gpt-tiny --growth --seq-len 64 --plot growth.png
    """
    check_picture(plot, "--plot")
    from headway.cli.model_configs import find_config
    from headway.config import GPTConfig, TransformerConfig
    from headway.costs.devices import find_device
    from headway.costs.operations import can_decode, has_source
    from headway.costs.report import cost_report
    from headway.errors import ConfigError

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
    if dtype is None and (measure or growth):
        from headway.devices import parse_device

        dtype = "bfloat16" if parse_device("auto").type == "cuda" else "float32"
    reports = []
    for model in models:
        try:
            named = find_config(model, settings or ())
        except ConfigError as error:
            if len(models) == 1:
                raise
            raise ConfigError(f"{model}: {error}", setting=error.setting) from None
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
    if source_len is not None and not any(has_source(report.config) for report in reports):
        raise typer.BadParameter("has no effect: none of these models reads a source", param_hint="--source-len")
    if new_tokens is not None and not any(can_decode(report.config) for report in reports):
        raise typer.BadParameter("has no effect: none of these models generates text", param_hint="--new-tokens")
    if window is not None and not any(isinstance(report.config, GPTConfig | TransformerConfig) for report in reports):
        raise typer.BadParameter("has no effect: none of these models has a KV cache", param_hint="--window")
    if growth:
        _print_growth(_only(reports, "--growth"), plot, json)
    elif measure:
        _print_measurements(reports, plot, json)
    else:
        _print_reports(reports, plot, json=json, explain=explain)


def _print_reports(reports: "list[CostReport]", plot: Path | None, *, json: bool, explain: bool) -> None:
    from headway.costs.rendering import render_comparison, render_explanation, render_report

    if plot is not None:
        report = _only(reports, "--plot")
        if report.rates is None:
            raise typer.BadParameter("needs the rates of a device: add --device NAME or --measure", param_hint="--plot")
        _plot(report, report.rates, plot)
    if json:
        print_json({"models": [report.to_dict() for report in reports]})
    elif explain:
        print("\n\n".join(map(render_explanation, reports)))
    elif len(reports) > 1:
        print(render_comparison(reports))
    else:
        print(render_report(reports[0]))
    _print_plot_path(plot, json)


def _print_measurements(reports: "list[CostReport]", plot: Path | None, json: bool) -> None:
    from dataclasses import replace

    from headway.analysis.cost_measurement import check_measurable, measure_costs
    from headway.config import GPTConfig
    from headway.devices import parse_device
    from headway.training.memory_measurement import measure_memory

    if plot is not None:
        _only(reports, "--plot")
    device = parse_device("auto")
    for report in reports:
        check_measurable(report, device)
    measurements = []
    for report in reports:
        on_progress = partial(_print_progress, report.name)
        # First: later, the process has memory to spare.
        if isinstance(report.config, GPTConfig):
            on_progress("memory of a KV cache and of training steps")
        memory = measure_memory(report, device)
        if not memory:
            on_progress("memory is not measured: that takes a GPT, on Linux or a GPU")
        measurements.append(replace(measure_costs(report, device=device, on_progress=on_progress), memory=memory))
    if plot is not None:
        _plot(measurements[0].report, measurements[0].rates, plot)
    if json:
        print_json({"device": str(device), "models": [measurement.to_dict() for measurement in measurements]})
    else:
        print("\n\n".join(measurement.render() for measurement in measurements))
    _print_plot_path(plot, json)


def _print_growth(report: "CostReport", plot: Path | None, json: bool) -> None:
    from headway.analysis.cost_growth import measure_growth
    from headway.devices import parse_device

    growth = measure_growth(report, device=parse_device("auto"), on_progress=partial(_print_progress, report.name))
    if plot is not None:
        from headway.analysis.cost_plots import plot_growth

        plot_growth(growth, plot)
    print_json(growth.to_dict()) if json else print(growth.render())
    _print_plot_path(plot, json)


def _plot(report: "CostReport", rates: "Rates", file: Path) -> None:
    from headway.analysis.cost_plots import plot_costs

    plot_costs(report, rates, file)


def _only(reports: "list[CostReport]", flag: str) -> "CostReport":
    if len(reports) > 1:
        raise typer.BadParameter(f"takes one model, and there are {len(reports)}", param_hint=flag)
    return reports[0]


def _print_progress(name: str, line: str) -> None:
    print(f"{name}: {line}", file=sys.stderr)


def _print_plot_path(file: Path | None, json: bool) -> None:
    if file is not None and not json:
        print(f"\nplot: {file}")
