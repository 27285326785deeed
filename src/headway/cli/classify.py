"""headway classify"""

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.option_use import OnlyFor, OnlyWith, check_options_for
from headway.cli.options import (
    BatchSize,
    Json,
    LoadFlags,
    ModelPath,
    check_minimum,
    note_unknown_text,
    with_option_groups,
)
from headway.cli.prediction_files import (
    Texts,
    TextTableFlags,
    merged,
    output_records,
    renamed_field,
    training_columns,
)
from headway.cli.progress import CountDisplay

if TYPE_CHECKING:
    from headway.prediction.classify import Classification

BAR_WIDTH = 30  # characters of a probability of 1
SHOWN_LABELS = 10  # of a single text
TEXTS = ("text", "text_pair")
SHOWN_CHARS = 300  # of a single text
MAX_TEXTS_NOTED = 1000  # are searched for characters that are not in the vocabulary


@dataclass(frozen=True)
class ClassifiedFileFlags(TextTableFlags):
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Write one JSON object per text, or a .csv, here."),
    ] = None
    pair_column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Column or field of the second text, for a model of pairs. Default: that of the run's data if the "
            "file has it, else text_pair.",
        ),
        OnlyWith("--in"),
    ] = None

    @property
    def table_suffixes(self) -> tuple[str, ...]:
        return (".csv",)


@with_option_groups
def classify(
    model: ModelPath,
    texts: Texts = None,
    *,
    text_pair: Annotated[
        str | None, typer.Option(help="A second text, for a model that was trained on pairs of texts.")
    ] = None,
    top: Annotated[
        int | None, typer.Option("-k", "--top", help=f"Labels to show. Default: {SHOWN_LABELS} for one text, else 1.")
    ] = None,
    threshold: Annotated[
        float,
        typer.Option(help="Minimum probability of a label, in multi-label models."),
        OnlyFor(model="multi-label"),
    ] = 0.5,
    files: ClassifiedFileFlags,
    loading: LoadFlags,
    batch_size: BatchSize = 32,
    json: Json = False,
) -> None:
    """Classify texts: print the most probable label, and the probability of each.

    For a model trained on texts with labels (train.objective=classify). A file may hold one text per line, JSON lines
    with a "text" (and a "text_pair"), or be a .csv or .tsv with a header. Columns default to those the run was trained
    on. A column "label" of the file is kept as input_label.

    \b
    Examples:
      headway classify runs/labels "The cat sat on the mat."
      headway classify runs/labels "The cat sat." "A dog barks." --json
      headway classify runs/labels --in texts.txt --out labels.jsonl
      headway classify runs/labels --in reviews.csv --out labels.csv
    """
    for flag, number in (("--top", top), ("--batch-size", batch_size)):
        check_minimum(flag, number)
    if not 0 < threshold < 1:
        raise typer.BadParameter(f"{threshold} is not between 0 and 1", param_hint="--threshold")
    files.check()
    records = _read_texts(model, texts, text_pair, files)
    inputs = [(record["text"], record["text_pair"]) if "text_pair" in record else record["text"] for record in records]

    import headway
    from headway.models import Classifier
    from headway.prediction.heads import require_head

    loaded = require_head(headway.load(model, **loading.options), Classifier, "classify")
    if not (is_multi_label := loaded.config.multi_label):
        check_options_for(f"{model}, which gives one label per text", model="one label")
    start = time.monotonic()
    with CountDisplay("texts", len(records)) as display:
        found = headway.classify(loaded, inputs, batch_size=batch_size, threshold=threshold, on_progress=display.update)
    seconds = time.monotonic() - start
    _note_truncated(found, loaded.config.context)
    note_unknown_text(loaded.tokenizer, [record["text"] for record in records[:MAX_TEXTS_NOTED]], "text")
    results = [_to_dict(*pair, is_multi_label) for pair in zip(records, found, strict=True)]
    if output_records(results, model=model, out=files.out, json=json, seconds=seconds):
        return
    if len(records) == 1 or top is not None:
        n_shown = SHOWN_LABELS if top is None else top
        print("\n\n".join(_render(*pair, n_shown, is_multi_label) for pair in zip(records, found, strict=True)))
    else:
        print(_render_table(records, found, is_multi_label))


def _read_texts(
    model: str, texts: list[str] | None, text_pair: str | None, files: ClassifiedFileFlags
) -> list[dict[str, Any]]:
    """The texts, with a "text_pair" each if the model was trained on pairs."""
    from headway.errors import DataError, InputError

    text_column, trained_pair = training_columns(model)
    records, pair_column = files.read(texts, model), files.pair_column or trained_pair
    if pair_column is not None and files.has_columns:
        column = files.text_column(model)
        if files.pair_column == column:
            raise typer.BadParameter(f"{column!r} is the column of the first text", param_hint="--pair-column")
        field = "input_text" if pair_column == "text" else pair_column  # a column "text" beside that of the first text
        if files.pair_column is not None and not any(field in record for record in records):
            raise typer.BadParameter(f"{files.source} has no column {pair_column!r}", param_hint="--pair-column")
        records = [renamed_field(r, field, "text_pair") if field in r else r for r in records]
    for number, record in enumerate(records, 1):
        if not record["text"].strip():
            raise DataError(f"text {number} is empty: give some text")
        if not isinstance(record.get("text_pair", ""), str):
            raise DataError(f'text {number}: "text_pair" is {record["text_pair"]!r:.40}, not a text')
    if text_pair is not None:
        if len(records) > 1 or "text_pair" in records[0]:
            raise typer.BadParameter(
                'belongs to one text: for several, use --in FILE.jsonl with {"text": …, "text_pair": …}',
                param_hint="--text-pair",
            )
        records = [{**records[0], "text_pair": text_pair}]
    single = [number for number, record in enumerate(records, 1) if "text_pair" not in record]
    if trained_pair is not None and single:
        raise InputError(
            f"{model} was trained on pairs of texts ({text_column or 'text'} and {trained_pair}), and text {single[0]} "
            f"has no second one: give --text-pair TEXT, or --in FILE with a column {trained_pair} or --pair-column NAME"
        )
    if text_column is not None and trained_pair is None and any("text_pair" in record for record in records):
        print(f"note: {model} was trained on single texts, not on pairs", file=sys.stderr)
    return records


def _note_truncated(found: "Sequence[Classification]", context: int) -> None:
    from headway.errors import count

    if n_truncated := sum(result.is_truncated for result in found):
        print(
            f"note: {n_truncated:,} of {count(len(found), 'text')} exceed{'s' * (n_truncated == 1)} {context} tokens, "
            f"the context of this model: the rest is not read",
            file=sys.stderr,
        )


def _to_dict(record: dict[str, Any], found: "Classification", is_multi_label: bool) -> dict[str, Any]:
    """The text's own fields and its labels."""
    labels: dict[str, Any] = {"label": found.label, "probability": found.probability}
    result = {"labels": list(found.labels)} if is_multi_label else labels
    truncated = {"is_truncated": True} if found.is_truncated else {}
    return merged(record, {**result, "probabilities": dict(found.probabilities), **truncated})


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _render(record: dict[str, Any], found: "Classification", n_shown: int, is_multi_label: bool) -> str:
    """The text, and its most probable labels with their probabilities as bars. In multi-label models, a mark for those
    it has."""
    shown = list(found.probabilities.items())[:n_shown]
    width = max(len(label) for label, _ in shown)
    lines = [" / ".join(_clipped(" ".join(record[name].split())) for name in TEXTS if name in record)]
    for label, p in shown:
        mark = " " if not is_multi_label else "✓" if label in found.labels else " "
        lines.append(f"{mark} {label:<{width}} {p:>7.1%}  {'█' * round(BAR_WIDTH * p)}".rstrip())
    if n_more := len(found.probabilities) - len(shown):
        lines.append(f"  and {n_more:,} less probable: --top {len(found.probabilities)} shows all")
    return "\n".join(lines)


def _clipped(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def _render_table(records: Sequence[dict[str, Any]], found: "Sequence[Classification]", is_multi_label: bool) -> str:
    """One line per text: its label and the probability, or in multi-label models its labels."""
    from headway.tables import Column, render_table

    texts = Column("text", [" ".join(record["text"].split()) for record in records], is_text=True)
    if is_multi_label:
        columns = [Column("labels", [", ".join(result.labels) or "none" for result in found], is_text=True), texts]
    else:
        columns = [
            Column("label", [result.label for result in found], is_text=True),
            Column("probability", [f"{result.probability:.1%}" for result in found]),
            texts,
        ]
    return render_table(columns, shutil.get_terminal_size().columns if sys.stdout.isatty() else None)
