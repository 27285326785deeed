"""headway runs"""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import Json, command, print_json
from headway.file_reading import suggest_file
from headway.runs import RUNS_FOLDER


def runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to search, with its subfolders.")] = RUNS_FOLDER,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter", metavar="CONDITION", help='Keep runs such as family=gpt, "score<2" or n_layers=2; repeatable.'
        ),
    ] = None,
    sort: Annotated[str, typer.Option(metavar="COLUMN", help="Sort by a column; score puts the best first.")] = "name",
    reverse: Annotated[bool, typer.Option("--reverse", help="Sort from large to small.")] = False,
    columns: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Columns to show, such as name,score,train.lr,n_layers."),
    ] = None,
    json: Json = False,
) -> None:
    """List the runs in a folder with their settings, status and scores.

    Columns: name, family, parameters, steps, status, tokens, seconds, score, metric and date. Every score of a run
    (perplexity) and every setting (train.lr, or lr) can be shown, sorted and filtered by too. A status is finished,
    running, interrupted (it can be resumed) or failed. A narrow terminal shows fewer columns.

    \b
    Examples:
      headway runs
      headway runs --filter family=gpt --filter "score<9" --sort score
      headway runs --columns name,score,perplexity,train.lr,n_layers
      headway runs runs --filter status=finished --json
    """
    from headway.run_table import COLUMNS, RunTable

    if not folder.is_dir():
        near = f".{hint}" if (hint := suggest_file(folder)) else ""
        raise typer.BadParameter(f"{folder} is not a folder: name one that holds runs{near}", param_hint="DIR")
    table = RunTable(folder)
    n_runs = len(table.runs)
    table.filter(filters or [])
    if sort != "name" or reverse:
        table.sort(sort, reverse=reverse)
    names = [name.strip() for name in columns.split(",")] if columns else COLUMNS
    if json:
        print_json({"folder": str(folder), "runs": [{"path": os.fsencode(run.path).decode(errors="replace"), **row}
                    for run, row in zip(table.runs, table.rows(names), strict=True)]})  # fmt: skip
        return
    if not n_runs:
        print(f"no runs in {folder}; start one: {command('train demo')}", file=sys.stderr)
        return
    if not table.runs:
        print(f"none of {n_runs} runs in {folder} meets the conditions", file=sys.stderr)
        return
    print(table.render(names, width=shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
