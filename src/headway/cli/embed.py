"""headway embed"""

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.option_use import OnlyWith, OnlyWithout
from headway.cli.options import (
    BatchSize,
    Json,
    LoadFlags,
    ModelPath,
    check_minimum,
    note_unknown_text,
    print_json,
    with_option_groups,
)
from headway.cli.prediction_files import Texts, TextTableFlags, is_json_lines, merged, write_records
from headway.cli.progress import CountDisplay

if TYPE_CHECKING:
    from torch import Tensor

    from headway.models.base import Model

SHOWN_NUMBERS = 6  # of an embedding, in a terminal
SHOWN_CHARS = 40  # of a text
BAR_WIDTH = 20


@dataclass(frozen=True)
class EmbeddingFileFlags(TextTableFlags):
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Write an array (.npy) or JSON lines (.jsonl) here."),
        OnlyWithout("--similar", why="holds embeddings, and --similar prints a ranking: use --json and a pipe"),
    ] = None

    def check(self) -> None:
        super().check()
        if self.out is not None and self.out.suffix.lower() != ".npy" and not is_json_lines(self.out):
            raise typer.BadParameter(f"{self.out} ends neither in .npy nor in .jsonl", param_hint="--out")


@with_option_groups
def embed(
    model: ModelPath,
    texts: Texts = None,
    *,
    pooling: Annotated[
        str | None, typer.Option(help="mean, cls or pooler. Default: the model's own, else mean.")
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize", help="Scale vectors to length 1. Default: the model's own, else no."
        ),
        OnlyWithout("--similar", why="does not change a cosine: leave it out with --similar"),
    ] = None,
    similar: Annotated[
        str | None, typer.Option("--similar", metavar="QUERY", help="Rank the texts by similarity to this one.")
    ] = None,
    top: Annotated[
        int, typer.Option("-k", "--top", help="Texts to list, the most similar first."), OnlyWith("--similar")
    ] = 10,
    files: EmbeddingFileFlags,
    loading: LoadFlags,
    batch_size: BatchSize = 32,
    json: Json = False,
) -> None:
    """Embed texts: one vector per text, near those of similar texts.

    Takes any encoder, with or without a head: a bert, a bilstm, or an installed model such as minilm. Row i of an array
    belongs to text i of the input, also if that is a blank line; NumPy opens it with numpy.load.

    \b
    Examples:
      headway embed runs/labels "The cat sat." "The dog sat."
      headway embed runs/labels --in my.txt --out vectors.npy
      headway embed runs/labels --similar "A cat" --in my.txt --top 3
      headway embed runs/labels "The cat sat." --pooling cls --normalize --json
    """
    for flag, number in (("--top", top), ("--batch-size", batch_size)):
        check_minimum(flag, number)
    if similar is not None and not similar.strip():
        raise typer.BadParameter("is blank: give a text to compare with", param_hint="--similar")
    files.check()
    records = files.read(texts, model, keep_blank=True)

    import headway
    from headway.prediction.embed import embedding_settings

    loaded = headway.load(model, **loading.options)
    settings = embedding_settings(loaded, pooling=pooling, normalize=normalize)
    lines = [record["text"] for record in records]
    note_unknown_text(loaded.tokenizer, lines, "text")
    start = time.monotonic()
    vectors = _embed(loaded, lines, settings.pooling, settings.normalize, batch_size)
    summary = {
        "model": model,
        "pooling": settings.pooling,
        "normalize": settings.normalize,
        "dimension": vectors.shape[1],
        "seconds": time.monotonic() - start,
    }
    if similar is not None:
        [query] = _embed(loaded, [similar], settings.pooling, settings.normalize, batch_size)
        ranking = _ranking(query, vectors, records, top)
        print_json({**summary, "query": similar, "texts": ranking}) if json else _print_ranking(ranking)
    elif files.out is not None:
        _write(files.out, records, vectors)
        n_texts, seconds = len(lines), summary["seconds"]
        if json:
            print_json({**summary, "out": str(files.out), "n_texts": n_texts})
        else:
            print(f"{n_texts:,} × {vectors.shape[1]} numbers in {seconds:.1f} s: {files.out}", file=sys.stderr)
    elif json:
        print_json({**summary, "texts": _with_embeddings(records, vectors)})
    else:
        _print_vectors(lines, vectors)


def _embed(model: "Model", texts: Sequence[str], pooling: str, normalize: bool, batch_size: int) -> "Tensor":
    import headway

    with CountDisplay("texts", len(texts)) as display:
        return headway.embed(
            model,
            texts,
            pooling=pooling,
            normalize=normalize,
            batch_size=batch_size,
            on_progress=display.update,
            on_message=lambda line: print(f"note: {line}", file=sys.stderr),
        )


# ── output ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _with_embeddings(records: Sequence[dict[str, Any]], vectors: "Tensor") -> list[dict[str, Any]]:
    return [merged(record, {"embedding": row.tolist()}) for record, row in zip(records, vectors, strict=True)]


def _write(out: Path, records: Sequence[dict[str, Any]], vectors: "Tensor") -> None:
    if is_json_lines(out):
        write_records(_with_embeddings(records, vectors), out)
        return
    from headway.files import write_chunks

    array = vectors.numpy()
    write_chunks(out, [_npy_header(array), array.tobytes()])


def _npy_header(array: Any) -> bytes:
    """What precedes the numbers in a .npy file: their type and the shape. Nothing is pickled."""
    import io

    from numpy.lib import format as npy

    header = io.BytesIO()
    npy.write_array_header_1_0(header, npy.header_data_from_array_1_0(array))
    return header.getvalue()


def _print_vectors(texts: Sequence[str], vectors: "Tensor") -> None:
    """The first numbers of each embedding, one line per text."""
    width = min(SHOWN_CHARS, max(map(len, texts)))
    n_more = vectors.shape[1] - SHOWN_NUMBERS
    for text, row in zip(texts, vectors.tolist(), strict=True):
        numbers = " ".join(f"{number:7.4f}" for number in row[:SHOWN_NUMBERS])
        print(f"{_shortened(text, SHOWN_CHARS):{width}}  {numbers}{' …' * (n_more > 0)}")
    if n_more > 0:
        print(f"and {n_more} more numbers per text: --out FILE.npy writes all, --json prints all", file=sys.stderr)


def _ranking(query: "Tensor", vectors: "Tensor", records: Sequence[dict[str, Any]], top: int) -> list[dict[str, Any]]:
    """The records most similar to the query, with their number in the input, from 1, and their similarity; blank ones
    are left out."""
    from headway.prediction.embed import most_similar

    kept = [number for number, record in enumerate(records) if record["text"].strip()]
    neighbours = most_similar(query, vectors[kept], top)
    return [
        merged(records[kept[number]], {"number": kept[number] + 1, "similarity": similarity})
        for number, similarity in neighbours
    ]


def _print_ranking(ranking: Sequence[dict[str, Any]]) -> None:
    """A similarity, a bar and a text per line, the most similar first."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for result in ranking:
        bar = "█" * round(BAR_WIDTH * max(0.0, result["similarity"]))
        start = f"{result['similarity']:6.3f}  {bar:{BAR_WIDTH}}  "
        print(start + _shortened(result["text"], max(SHOWN_CHARS, width - len(start))))


def _shortened(text: str, n_chars: int) -> str:
    """A text in one line of at most `n_chars` characters."""
    text = " ".join(text.split())
    return text if len(text) <= n_chars else f"{text[: n_chars - 1]}…"
