"""Options that several verbs share."""

import json
import os
import shutil
import sys
from typing import Annotated, Any

import typer

Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto: CUDA where there is one.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, float16 or float64; auto: as stored.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def print_json(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False))


def program() -> str:
    """What the user types to run this command: `headway`, or its path where it is not on the PATH."""
    script = sys.argv[0]
    if shutil.which("headway") or not os.path.basename(script).startswith("headway"):
        return "headway"
    return os.path.relpath(script)
