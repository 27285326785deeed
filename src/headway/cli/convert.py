"""headway convert"""

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import Dtype, Json, print_json


def convert(
    model: Annotated[str, typer.Argument(help="A model directory, a run (its best checkpoint), or one checkpoint.")],
    out: Annotated[Path, typer.Argument(help="The new model directory.")],
    dtype: Dtype = "auto",
    json: Json = False,
) -> None:
    """Write a model as a directory that transformers opens too, where it knows the architecture.

    Also puts the shares of a checkpoint of many ranks (train.parallel=fsdp) together into one file.

    \b
    Example:
      headway convert runs/demo my-model
    """
    import headway
    from headway.models.storage import read_json

    loaded = headway.load(model, dtype=dtype)
    loaded.save(out)
    kind = read_json(out / "config.json")["model_type"]
    if json:
        print_json({"model": model, "out": str(out), "model_type": kind, "n_params": loaded.n_params})
        return
    readers = "for Headway alone" if kind.startswith("headway-") else "for transformers too"
    print(f"{out}: {type(loaded).__name__}, {loaded.n_params:,} parameters, {kind} ({readers})")
