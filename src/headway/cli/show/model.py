"""headway show model"""

import sys
from typing import Annotated

import typer

from headway.cli.completion import complete_model
from headway.cli.options import Json, print_json


def model(
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
