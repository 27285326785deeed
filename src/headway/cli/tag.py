"""headway tag"""

import re
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.colors import highlighted, use_colors
from headway.cli.option_use import OnlyFor, check_options_for
from headway.cli.options import (
    BatchSize,
    Json,
    LoadFlags,
    ModelPath,
    check_minimum,
    note_unknown_text,
    with_option_groups,
)
from headway.cli.prediction_files import Texts, TextTableFlags, merged, output_records
from headway.cli.progress import CountDisplay

if TYPE_CHECKING:
    from headway.prediction.tag import TaggedText


@dataclass(frozen=True)
class TaggedFileFlags(TextTableFlags):
    source: Annotated[
        Path | None,
        typer.Option(
            "-i", "--in", metavar="FILE", help='One text per line; .jsonl: {"text": …}; .csv, .tsv; or words: .conll.'
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Write JSON lines, or words and tags (.conll), here."),
    ] = None

    @property
    def table_suffixes(self) -> tuple[str, ...]:
        return (".tsv",) if self.out is not None and _is_conll(self.out) else ()


@with_option_groups
def tag(
    model: ModelPath,
    texts: Texts = None,
    *,
    unconstrained: Annotated[
        bool,
        typer.Option("--unconstrained", help="Give each word its best tag, even if the sequence is invalid."),
        OnlyFor(tags="with rules"),
    ] = False,
    files: TaggedFileFlags,
    loading: LoadFlags,
    batch_size: BatchSize = 32,
    json: Json = False,
) -> None:
    """Tag the words of texts, such as named entities.

    Texts are split into words at whitespace and around punctuation. A .conll file, one word per line and a blank line
    between sentences, keeps its words; --out FILE.conll writes words and tags in that form.

    \b
    Examples:
      headway tag runs/tagger "Peter Blackburn visits Rome."
      headway tag runs/tagger "Peter Blackburn visits Rome." --json
      headway tag runs/tagger --in news.txt --out news.jsonl
      headway tag runs/tagger --in news.conll --out tagged.conll
    """
    check_minimum("--batch-size", batch_size)
    files.check()
    if files.source is not None and _is_conll(files.source):
        if files.column is not None:
            raise typer.BadParameter(f"{files.source} has a word in its first column", param_hint="--column")
        records = _read_sentences(texts, files.source)
    else:
        records = files.read(texts, model)
    sentences = [record["text"] if "text" in record else record["words"] for record in records]

    import headway
    from headway.data.tag_schemes import scheme_of
    from headway.models import Tagger
    from headway.prediction.heads import require_head

    loaded = require_head(headway.load(model, **loading.options), Tagger, "tag")
    if scheme_of(loaded.config.labels) is None:
        check_options_for(f"{model}, whose tags are neither BIO nor BIOES", tags="without rules")
    start = time.monotonic()
    with CountDisplay("texts", len(records)) as display:
        tagged = headway.tag(
            loaded, sentences, constrained=not unconstrained, batch_size=batch_size, on_progress=display.update
        )
    seconds = time.monotonic() - start
    note_unknown_text(loaded.tokenizer, [result.text for result in tagged], "text")
    results = [merged(record, result.to_dict()) for record, result in zip(records, tagged, strict=True)]
    is_conll = files.out is not None and _is_conll(files.out)
    write = partial(_write_conll, tagged) if is_conll else None
    if not output_records(results, model=model, out=files.out, json=json, seconds=seconds, write=write):
        _print_tagged(tagged, loaded.config.labels)


# ── token-tag files ───────────────────────────────────────────────────────────────────────────────────────────────


def _is_conll(file: Path) -> bool:
    from headway.data.readers import format_of

    return format_of(file) == "conll"


def _read_sentences(texts: list[str] | None, file: Path) -> list[dict[str, Any]]:
    """The sentences of a token-tag file as {"words": […]}. A word is the first cell of its line; tags are ignored."""
    from headway.data.text_files import iter_lines, read_errors
    from headway.errors import DataError

    if texts:
        raise typer.BadParameter("cannot be combined with texts on the command line", param_hint="--in")
    sentences: list[list[str]] = [[]]
    with read_errors(str(file)):
        for line in iter_lines(file):
            if line.strip():
                cells = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))  # as in training
                sentences[-1].append(cells[0])
            else:
                sentences.append([])
    records = [{"words": words} for words in sentences if words and words != ["-DOCSTART-"]]
    if not records:
        raise DataError(f"{file} holds no words: write one word per line, and a blank line between sentences")
    return records


def _write_conll(tagged: "list[TaggedText]", out: Path) -> None:
    """One word per line with its tag, and a blank line after each sentence, all or nothing."""
    from headway.files import write_text

    sentences = [
        "".join(f"{word.text}\t{tag}\n" for word, tag in zip(result.words, result.tags, strict=True))
        for result in tagged
    ]
    write_text(out, "".join(f"{sentence}\n" for sentence in sentences))


# ── output ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _print_tagged(tagged: "list[TaggedText]", labels: list[str]) -> None:
    """Each text with its entities marked: coloured in a terminal, with a legend, and else as [Rome LOC]."""
    from headway.data.tag_schemes import mark_entities

    if not mark_entities(labels):
        for result in tagged:
            print(" ".join(f"{word.text}/{tag}" for word, tag in zip(result.words, result.tags, strict=True)))
        return
    types = sorted({label[2:] for label in labels if len(label) > 1})
    colors = {type: number for number, type in enumerate(types)} if use_colors() else None
    for result in tagged:
        print(_with_entities(result, colors))
    if colors is not None:
        n_found = {type: sum(e.type == type for result in tagged for e in result.entities) for type in types}
        print("\n" + "  ".join(f"{highlighted(f' {type} ', colors[type])} {n_found[type]:,}" for type in types))


def _with_entities(result: "TaggedText", colors: dict[str, int] | None) -> str:
    """The text with its entities in the colours of their types, or in brackets if there are none."""
    parts, end = [], 0
    for entity in result.entities:
        parts.append(result.text[end : entity.start])
        if colors is None:
            parts.append(f"[{entity.text} {entity.type}]")
        else:
            parts.append(highlighted(f" {entity.text} ", colors[entity.type]))
        end = entity.end
    return "".join([*parts, result.text[end:]]).strip()
