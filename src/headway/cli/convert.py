"""headway convert"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.completion import complete_run
from headway.cli.option_use import OnlyFor, check_options_for
from headway.cli.options import Dtype, Json, check_new_file, print_json

if TYPE_CHECKING:
    from headway.models import Model

ARPA_EXTENSIONS = (".arpa", ".arpa.gz")
NGRAM_EXTENSIONS = (*ARPA_EXTENSIONS, ".counts")
# An output with one of these extensions was meant to be a file, so it is not taken for a new folder.
FILE_EXTENSIONS = (".gz", ".bz2", ".xz", ".zip", ".txt", ".lm", ".bin", ".gguf", ".json", ".safetensors")


def convert(
    model: Annotated[
        str,
        typer.Argument(
            help="A model directory, a run (its best checkpoint), a checkpoint, or a file of n-grams.",
            autocompletion=complete_run,
        ),
    ],
    out: Annotated[Path, typer.Argument(help="The new model directory; for n-grams also FILE.arpa or FILE.counts.")],
    dtype: Annotated[Dtype, OnlyFor(model="directory")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is a model or a file of n-grams.")] = False,
    json: Json = False,
) -> None:
    """Convert a model to a directory that transformers opens, or n-grams to and from files.

    Merges the shards of an FSDP checkpoint into one file. N-grams are read and written as ARPA files (.arpa, .arpa.gz),
    which KenLM, SRILM and others share, and as lists of n-grams with their counts (.counts).

    \b
    Examples:
      headway convert runs/demo my-model
      headway convert runs/words words.arpa
      headway convert words.arpa my-ngrams
      headway convert runs/words words.arpa --force
    """
    import headway

    is_ngram_file = out.name.lower().endswith(NGRAM_EXTENSIONS)
    if not is_ngram_file and (out.name.lower().endswith(FILE_EXTENSIONS) or str(out) == "-"):
        raise typer.BadParameter(
            f"{out} is neither a folder nor a file that ends in {', '.join(NGRAM_EXTENSIONS)}", param_hint="OUT"
        )
    if is_ngram_file:
        check_new_file(out, "OUT", overwrite=force, ways_out="add --force")
    else:
        _check_new_directory(out, force)
    ngrams = _read_ngrams(model)
    if ngrams is not None:
        check_options_for(f"{model}, a file of n-grams", model="file")
    loaded = headway.load(model, dtype=dtype) if ngrams is None else ngrams
    if is_ngram_file:
        _write_ngrams(loaded, model, out, json)
    else:
        _write_directory(loaded, model, out, json, overwrite=force)


def _check_new_directory(folder: Path, force: bool) -> None:
    """Refuse a folder that exists, unless it is empty, or a model and `force` is set."""
    from headway.errors import CheckpointError

    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not _is_model_directory(folder):
        raise CheckpointError(
            f"{folder} exists and is not a model directory, so nothing may replace it: name another folder"
        )
    if not force:
        raise CheckpointError(f"{folder} already exists: name another folder, or add --force to replace this model")


def _is_model_directory(folder: Path) -> bool:
    """Whether a folder holds a model, and no folder that a model would not have."""
    from headway.errors import HeadwayError
    from headway.file_reading import read_json
    from headway.models.serialization import SHARDS

    if any(entry.is_dir() and entry.name != SHARDS for entry in folder.iterdir()):
        return False
    try:
        config = read_json(folder / "config.json")
    except (HeadwayError, OSError):
        return False
    return isinstance(config, dict) and "model_type" in config


def _read_ngrams(name: str) -> "Model | None":
    """The n-grams in a file of another toolkit; None if the path is not such a file."""
    from headway.models.ngram.arpa import read_arpa
    from headway.models.ngram.count_files import read_counts

    if not name.lower().endswith(NGRAM_EXTENSIONS) or Path(name).is_dir():
        return None
    return read_arpa(name) if name.lower().endswith(ARPA_EXTENSIONS) else read_counts(name)


def _write_directory(model: "Model", name: str, out: Path, json: bool, *, overwrite: bool) -> None:
    from headway.file_reading import read_json

    model.save(out, overwrite=overwrite)
    model_type = read_json(out / "config.json")["model_type"]
    if json:
        print_json({"model": name, "out": str(out), "model_type": model_type, "n_params": model.n_params})
        return
    readers = "only Headway opens it" if model_type.startswith("headway-") else "transformers opens it too"
    print(f"{out}: {model.display_name}, {model.n_params:,} parameters, model type {model_type} ({readers})")


def _write_ngrams(model: "Model", name: str, out: Path, json: bool) -> None:
    from headway.display import print_status
    from headway.models import NGram
    from headway.models.base import described
    from headway.models.ngram.arpa import write_arpa
    from headway.models.ngram.count_files import write_counts

    if not isinstance(model, NGram):
        raise typer.BadParameter(
            f"{name} is {described(model)}, and {out.name} is a file of n-grams: name a folder", param_hint="OUT"
        )
    renamed = (write_arpa if out.name.lower().endswith(ARPA_EXTENSIONS) else write_counts)(model, out)
    for word, new_name in renamed.items():
        print_status(f"note: the word {word} is written as {new_name}, because {word} is special in this format")
    if json:
        print_json({"model": name, "out": str(out), "n_ngrams": model.n_params, "renamed": renamed})
        return
    print(f"{out}: {model.n_params:,} n-grams of up to {model.config.order} tokens")
