"""headway convert"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import Dtype, Json, check_out, print_json

if TYPE_CHECKING:
    from headway.models import Model

ARPA = (".arpa", ".arpa.gz")
NGRAM_FILES = (*ARPA, ".counts")
FILES = (".gz", ".bz2", ".xz", ".zip", ".txt", ".lm", ".bin", ".gguf", ".json", ".safetensors")  # no names of a folder


def convert(
    model: Annotated[
        str,
        typer.Argument(help="A model directory, a run (its best checkpoint), one checkpoint, or n-grams in a file."),
    ],
    out: Annotated[Path, typer.Argument(help="The new model directory; of n-grams also FILE.arpa or FILE.counts.")],
    dtype: Dtype = "auto",
    json: Json = False,
) -> None:
    """Write a model as a directory that transformers opens too, where it knows the architecture.

    Also puts the shares of a checkpoint of many ranks (train.parallel=fsdp) together into one file. N-grams are read
    and written as ARPA files (.arpa, .arpa.gz), which KenLM, SRILM and others share, and as lists of n-grams and
    their counts (.counts).

    \b
    Examples:
      headway convert runs/demo my-model
      headway convert runs/words words.arpa
      headway convert words.arpa my-ngrams
    """
    import headway
    from headway.models.serialization import read_json

    is_file = out.name.lower().endswith(NGRAM_FILES)
    if not is_file and (out.name.lower().endswith(FILES) or str(out) == "-"):
        raise typer.BadParameter(f"{out} is no folder, nor one of {', '.join(NGRAM_FILES)}", param_hint="OUT")
    loaded = _read_ngrams(model) or headway.load(model, dtype=dtype)
    if is_file:
        _write_ngrams(loaded, model, out, json)
        return
    loaded.save(out)
    kind = read_json(out / "config.json")["model_type"]
    if json:
        print_json({"model": model, "out": str(out), "model_type": kind, "n_params": loaded.n_params})
        return
    readers = "for Headway alone" if kind.startswith("headway-") else "for transformers too"
    print(f"{out}: {type(loaded).__name__}, {loaded.n_params:,} parameters, {kind} ({readers})")


def _read_ngrams(name: str) -> "Model | None":
    """A model in a file of another program."""
    from headway.models.ngram.arpa import read_arpa
    from headway.models.ngram.count_files import read_counts

    if not name.lower().endswith(NGRAM_FILES) or Path(name).is_dir():
        return None
    return read_arpa(name) if name.lower().endswith(ARPA) else read_counts(name)


def _write_ngrams(model: "Model", name: str, out: Path, json: bool) -> None:
    from headway.models import NGram
    from headway.models.ngram.arpa import write_arpa
    from headway.models.ngram.count_files import write_counts

    if not isinstance(model, NGram):
        kind = type(model).__name__
        raise typer.BadParameter(f"{name} is a {kind}, and {out.name} is a file of n-grams", param_hint="OUT")
    check_out(out, "OUT")
    renamed = (write_arpa if out.name.lower().endswith(ARPA) else write_counts)(model, out)
    for word, other in renamed.items():
        print(f"note: the word {word} of the text is written {other}, since {word} is special here", file=sys.stderr)
    if json:
        print_json({"model": name, "out": str(out), "n_ngrams": model.n_params, "renamed": renamed})
        return
    print(f"{out}: {model.n_params:,} n-grams of up to {model.config.order} tokens")
