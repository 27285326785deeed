"""Options that several verbs share."""

import json
from typing import Annotated, Any

import typer

Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto: CUDA where there is one.")]
Dtype = Annotated[str, typer.Option(help="float32 or bfloat16; auto: as stored.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False))
