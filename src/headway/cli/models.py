"""headway models"""

import shutil
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from headway.cli.options import Json, print_json

COLUMNS = ("name", "year", "family", "layers", "d_model", "heads", "parameters", "paper", "tokens", "reference")


def models(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORD", help="Keep models whose name or family has one of these words."),
    ] = None,
    json: Json = False,
) -> None:
    """List every preset with its size, and published models that Headway cannot build.

    "parameters" are counted from the config, without a head; "paper" is what the paper prints, which is rounded or
    counts other parts. Presets without a year are small ones for a laptop. `headway cost NAME` counts what a model
    costs, `headway show model NAME` lists its parameters.

    \b
    Examples:
      headway models
      headway models llama gpt3
      headway models bert --json
    """
    from headway.config import FAMILIES
    from headway.errors import InputError, suggest

    rows = _rows()
    if words:
        kept = [row for row in rows if any(word.lower() in f"{row['name']} {row['family']}" for word in words)]
        if not kept:
            if words[0] in FAMILIES:
                hint = f" {words[0]} is a family: `headway cost {words[0]}`"
            else:
                hint = suggest(words[0], [str(row["name"]) for row in rows])
            raise InputError(f"no preset has {' or '.join(words)} in its name or family.{hint}")
        rows = kept
    if json:
        print_json({"models": rows})
    else:
        _print_table(rows)


def _rows() -> list[dict[str, Any]]:
    from headway.config.presets import PRESETS
    from headway.config.published import NOT_BUILDABLE, PUBLISHED
    from headway.costs import count_parameters

    rows: list[dict[str, Any]] = []
    for name, config in PRESETS.items():
        resolved: Any = config.resolved()
        published = PUBLISHED.get(name)
        is_encoder_decoder = config.family == "transformer"
        rows.append(
            {
                "name": name,
                "year": published and published.year,
                "family": config.family,
                "layers": f"{resolved.n_encoder_layers}+{resolved.n_decoder_layers}"
                if is_encoder_decoder
                else str(resolved.n_layers),
                "d_model": resolved.d_model,
                "heads": resolved.n_heads,
                "parameters": count_parameters(config),
                "paper": published.printed if published else "",
                "tokens": published and published.tokens,
                "reference": published.source if published else "",
                "reason": None,
            }
        )
    for name, model in NOT_BUILDABLE.items():
        rows.append(
            {
                "name": name,
                "year": model.published.year,
                "family": "",
                "layers": model.n_layers,
                "d_model": model.d_model,
                "heads": model.n_heads,
                "parameters": None,
                "paper": model.published.printed,
                "tokens": model.published.tokens,
                "reference": model.published.source,
                "reason": model.reason,
            }
        )
    return sorted(rows, key=lambda row: row["year"] or 9999)


def _print_table(rows: list[dict[str, Any]]) -> None:
    buildable = [row for row in rows if row["reason"] is None]
    others = [row for row in rows if row["reason"] is not None]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if buildable:
        print(_table(buildable, COLUMNS, width))
    if others:
        print(("\n" if buildable else "") + "Published models that Headway cannot build, and the features it lacks:\n")
        print(_table(others, ("name", "year", "layers", "d_model", "heads", "paper", "tokens", "reason"), width))


def _table(rows: list[dict[str, Any]], names: Sequence[str], width: int | None) -> str:
    from headway.tables import Column, render_table

    ranks = {"reference": 3, "paper": 2, "tokens": 1}  # left out first where the terminal is narrow
    texts = ("name", "family", "reference", "reason")
    columns = [
        Column(name, [_cell(row[name]) for row in rows], is_text=name in texts, rank=ranks.get(name, 0))
        for name in names
    ]
    return render_table(columns, width)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):  # tokens
        return f"{value / 1e12:.1f}T" if value >= 1e12 else f"{value / 1e9:.0f}B"
    return f"{value:,}" if isinstance(value, int) and value > 9999 else str(value)
