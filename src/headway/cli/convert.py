"""headway convert"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.completion import complete_run
from headway.cli.option_use import OnlyFor, OnlyWithout, check_options_for
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
    adapter: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Merge these LoRA updates into the model: an adapter, of Headway or of PEFT."),
        OnlyFor(model="directory"),
        OnlyWithout("--adapter-only"),
    ] = None,
    adapter_only: Annotated[
        bool,
        typer.Option("--adapter-only", help="Write only the LoRA updates and the head of a run, as PEFT does."),
        OnlyFor(model="directory"),
        OnlyWithout("--dtype"),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is a model or a file of n-grams.")] = False,
    json: Json = False,
) -> None:
    """Convert a model to a directory that transformers opens, or n-grams to and from files.

    Merges the shards of an FSDP checkpoint into one file. N-grams are read and written as ARPA files (.arpa, .arpa.gz),
    which KenLM, SRILM and others share, and as lists of n-grams with their counts (.counts). The LoRA updates of a run
    (model.lora_rank) are merged into the model, unless you ask for them alone.

    \b
    Examples:
      headway convert runs/demo my-model
      headway convert runs/words words.arpa
      headway convert words.arpa my-ngrams
      headway convert runs/words words.arpa --force
      headway convert runs/lora my-adapter --adapter-only
      headway convert runs/mine merged --adapter my-adapter
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
    if adapter_only:
        _write_adapter(model, out, json, overwrite=force)
        return
    loaded = headway.load(model, dtype=dtype, adapter=adapter) if ngrams is None else ngrams
    if is_ngram_file:
        _write_ngrams(loaded, model, out, json)
    else:
        _write_directory(loaded, model, out, json, overwrite=force)


def _check_new_directory(folder: Path, force: bool) -> None:
    """Refuse a folder that exists, unless it is empty, or a model and `force` is set."""
    from headway.errors import CheckpointError

    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not _is_model_directory(folder) and not _is_adapter(folder):
        raise CheckpointError(
            f"{folder} exists and is not a model directory, so nothing may replace it: name another folder"
        )
    if not force:
        raise CheckpointError(f"{folder} already exists: name another folder, or add --force to replace this model")


def _is_adapter(folder: Path) -> bool:
    """Whether a folder holds LoRA updates and nothing else."""
    from headway.models.lora_adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS

    return {entry.name for entry in folder.iterdir()} == {ADAPTER_CONFIG, ADAPTER_WEIGHTS}


def _is_model_directory(folder: Path) -> bool:
    """Whether a folder holds a model, and no folder that a model would not have."""
    from headway.errors import HeadwayError
    from headway.file_reading import read_json
    from headway.models.embedding_defaults import POOLING
    from headway.models.serialization import SHARDS

    if any(entry.is_dir() and entry.name not in (SHARDS, POOLING) for entry in folder.iterdir()):
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


def _write_adapter(name: str, out: Path, json: bool, *, overwrite: bool) -> None:
    from headway.config import load_recipe
    from headway.models.lora_adapters import lora_settings, save_adapter
    from headway.nn.lora import n_lora_params
    from headway.runs import Run
    from headway.training.checkpoint import load_with_lora

    model = load_with_lora(name)
    base = load_recipe(name).finetune.init_from if Run.exists(name) else None
    save_adapter(model, out, base=base, overwrite=overwrite)
    rank, _ = lora_settings(model)
    if json:
        print_json({"model": name, "out": str(out), "base": base, "rank": rank, "n_params": n_lora_params(model)})
        return
    print(f"{out}: LoRA updates of rank {rank}, {n_lora_params(model):,} parameters, of {base or 'its base model'}")


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
