"""headway models"""

import shutil
import sys
from typing import Annotated, Any

import typer

from headway.cli.options import Json, print_json

COLUMNS = ("name", "year", "family", "layers", "width", "heads", "parameters", "printed", "tokens", "source")


def models(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORD", help="Keep models whose name or family has one of these words."),
    ] = None,
    json: Json = False,
) -> None:
    """List every preset with its size, and published models that cannot be built, with the reason.

    Parameters are counted from the config; "printed" is the paper's number. Presets without a year are small ones for
    a laptop. `headway cost NAME` counts what a model costs, `headway show model NAME` lists its layers.

    \b
    Examples:
      headway models
      headway models llama gpt3
      headway models bert --json
    """
    from headway.errors import InputError, suggest

    rows = _rows()
    if words:
        kept = [row for row in rows if any(word.lower() in f"{row['name']} {row['family']}" for word in words)]
        if not kept:
            names = [str(row["name"]) for row in rows]
            raise InputError(f"no model has {' or '.join(words)} in its name or family.{suggest(words[0], names)}")
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
                "width": resolved.d_model,
                "heads": resolved.n_heads,
                "parameters": count_parameters(config),
                "printed": published.printed if published else "",
                "tokens": published and published.tokens,
                "source": published.source if published else "",
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
                "width": model.d_model,
                "heads": model.n_heads,
                "parameters": None,
                "printed": model.published.printed,
                "tokens": model.published.tokens,
                "source": model.published.source,
                "reason": model.reason,
            }
        )
    return sorted(rows, key=lambda row: row["year"] or 9999)


def _print_table(rows: list[dict[str, Any]]) -> None:
    from headway.tables import Column, render_table

    buildable = [row for row in rows if row["reason"] is None]
    others = [row for row in rows if row["reason"] is not None]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    ranks = {"source": 3, "printed": 2, "tokens": 1}
    if buildable:
        columns = [
            Column(
                name,
                [_cell(row[name]) for row in buildable],
                is_text=name in ("name", "family", "source"),
                rank=ranks.get(name, 0),
            )
            for name in COLUMNS
        ]
        print(render_table(columns, width))
    if others:
        print(("\n" if buildable else "") + "published, without a preset:")
        for row in others:
            tokens = f", {_cell(row['tokens'])} tokens" if row["tokens"] else ""
            print(
                f"  {row['name']:15} {row['year']}  {row['printed']} parameters, {row['layers']} layers, "
                f"{row['width']:,} wide, {row['heads']} heads{tokens}: needs {row['reason']}"
            )


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):  # tokens
        return f"{value / 1e12:.1f}T" if value >= 1e12 else f"{value / 1e9:.0f}B"
    return f"{value:,}" if isinstance(value, int) and value > 9999 else str(value)
