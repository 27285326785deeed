"""headway data"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.option_use import OnlyWith, OnlyWithout
from headway.cli.options import Json, ReadFlags, check_minimum, print_json, with_option_groups
from headway.errors import count

if TYPE_CHECKING:
    from headway.data.sources import DataSource
    from headway.data.splits import SplitFractions
    from headway.data.statistics import DataSummary
    from headway.tokenizers import Tokenizer

NOUNS = {"text": "documents", "pairs": "pairs", "labelled": "texts", "tagged": "sentences", "questions": "questions"}
SPLIT_BY = {"hash": "by a hash of the content", "tail": "at the end of the text", "none": "too short to hold any out"}
TRAINED_KINDS = ("char", "word")  # tokenizers that are trained on the spot
MAX_RECORDS = 1 << 60  # more than islice could count are all of them
BAR_WIDTH = 30
MAX_LABELS = 20
MAX_NAMED_FILES = 20


@with_option_groups
def data(
    source: Annotated[
        str,
        typer.Argument(
            help="A file, folder or glob (.txt .jsonl .csv .tsv .parquet .conll .json, also .gz), a built-in corpus "
            "(pydocs, stdlib, letters, copy, reverse, sort, dates, numbers, arithmetic), or hub:owner/name."
        ),
    ],
    target: Annotated[
        str | None, typer.Argument(help="The file that is parallel to SOURCE, line by line.", show_default=False)
    ] = None,
    *,
    tokenizer: Annotated[
        str, typer.Option(help="Count tokens with this tokenizer: a file, a folder, or a new one: char or word.")
    ] = "word",
    reading: ReadFlags,
    label: Annotated[
        str | None, typer.Option(help="Column of the label, by name, or by number from 1 without a header.")
    ] = None,
    text_pair: Annotated[
        str | None, typer.Option(help="Column of a second text, as --label."), OnlyWith("--label")
    ] = None,
    label_separator: Annotated[
        str | None, typer.Option(help="Between the labels of a text, if it has several."), OnlyWith("--label")
    ] = None,
    valid_fraction: Annotated[float, typer.Option(help="Fraction held out for validation; 0: none.")] = 0.1,
    test_fraction: Annotated[float, typer.Option(help="Fraction held out for testing; 0: none.")] = 0.0,
    split: Annotated[
        str, typer.Option(help="hash (by document), tail (the end of the text) or auto (by size).")
    ] = "auto",
    samples: Annotated[int, typer.Option(help="Records to show, at least 0."), OnlyWithout("--prepare")] = 3,
    limit: Annotated[int | None, typer.Option(help="Read only the first records.")] = None,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Write the tokens to the cache, as training does; needs --tokenizer.")
    ] = False,
    cache: Annotated[
        Path | None,
        typer.Option(help="Folder for prepared tokens. Default: $HEADWAY_CACHE."),
        OnlyWith("--prepare", why="nothing is written without --prepare: add it"),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Threads that tokenize. Default: one per core."), OnlyWith("--prepare")
    ] = None,
    json: Json = False,
) -> None:
    """Summarise a data source: its size, tokens, lengths, duplicates, splits and samples.

    \b
    Examples:
      headway data pydocs
      headway data dates --test-fraction 0.1 --samples 5
      headway data my.txt --tokenizer char --json
      headway data my.txt --tokenizer my-bpe --prepare
    """
    for flag, value, minimum in (("--samples", samples, 0), ("--limit", limit, 1), ("--workers", workers, 1)):
        check_minimum(flag, value, minimum)
    _check_prepare(prepare, tokenizer, limit)
    from headway.data.builtin import CORPORA
    from headway.data.readers import READERS
    from headway.data.sources import open_source
    from headway.data.splits import SplitFractions
    from headway.entry_points import load_declared

    load_declared("dataset", source, CORPORA)
    load_declared("reader", reading.format, READERS)
    fractions = SplitFractions(valid_fraction, test_fraction, split)
    opened = open_source(
        source,
        target_path=target,
        label=label,
        text_pair=text_pair,
        label_separator=label_separator,
        **reading.options_for(source, target, label),
    )
    limit = None if limit is None else min(limit, MAX_RECORDS)
    loaded = _load_tokenizer(tokenizer, opened, limit)
    if prepare:
        _prepare(opened, loaded, fractions, cache, workers, json)
    else:
        _summarize(opened, tokenizer, loaded, fractions, samples, limit, json)


def _check_prepare(prepare: bool, tokenizer: str, limit: int | None) -> None:
    if prepare and tokenizer in TRAINED_KINDS:
        raise typer.BadParameter(
            f"{tokenizer!r} would be a new tokenizer for each text: train one (headway tokenizer train) and name its "
            f"folder",
            param_hint="--tokenizer",
        )
    if prepare and limit is not None:
        raise typer.BadParameter("--prepare tokenizes the whole text: leave --limit out", param_hint="--limit")


def _load_tokenizer(name: str, source: "DataSource", limit: int | None) -> "Tokenizer":
    from itertools import islice

    from headway.tokenizers import load_tokenizer, train

    if name in TRAINED_KINDS:
        return train(name, islice(source.texts(), limit and 2 * limit))  # a pair has two texts
    return load_tokenizer(name)


# ── prepare ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _prepare(
    source: "DataSource",
    tokenizer: "Tokenizer",
    fractions: "SplitFractions",
    cache: Path | None,
    workers: int | None,
    json: bool,
) -> None:
    import time

    from headway.data.token_shards import prepare
    from headway.display import BytesDisplay, print_status

    def show_note(note: str) -> None:
        display.clear()
        print_status(f"note: {note}")

    start = time.monotonic()
    with BytesDisplay() as display:
        corpus = prepare(
            source,
            tokenizer,
            fractions,
            cache=cache,
            workers=workers,
            on_progress=lambda progress: display.show(progress.stage, progress.done, progress.total),
            on_note=show_note,
        )
    seconds = time.monotonic() - start
    if json:
        print_json({"path": str(corpus.path), "seconds": seconds, **corpus.meta})
        return
    for split in ("train", "valid", "test"):
        tokens = getattr(corpus, split)
        if len(tokens):
            sizes = count(len(tokens), "token"), count(tokens.n_documents, "document")
            print(f"{split:12}{sizes[0]} of {sizes[1]}, in {count(len(tokens.files), 'shard')}")
    print(f"prepared: {corpus.path} ({seconds:.1f} s)")


# ── summary ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _summarize(
    source: "DataSource",
    tokenizer_name: str,
    tokenizer: "Tokenizer",
    fractions: "SplitFractions",
    samples: int,
    limit: int | None,
    json: bool,
) -> None:
    from dataclasses import asdict

    from headway.data.statistics import summarize
    from headway.display import BytesDisplay

    with BytesDisplay("reading", source.size) as display:
        summary = summarize(source, tokenizer, fractions, samples=samples, limit=limit, on_progress=display.add)
    _print_notes(source)
    if json:
        print_json({**asdict(summary), "tokenizer": tokenizer_name, "vocab_size": tokenizer.vocab_size})
    else:
        _print_summary(summary, tokenizer_name, tokenizer.vocab_size)


def _print_notes(source: "DataSource") -> None:
    """Name the files that are empty or not read, on stderr."""
    from headway.data.faulty_files import describe_left_out

    if source.empty_files:
        names = ", ".join(map(str, source.empty_files[:MAX_NAMED_FILES]))
        more = f" and {len(source.empty_files) - MAX_NAMED_FILES:,} more" * (len(source.empty_files) > MAX_NAMED_FILES)
        print(f"note: files without text: {names}{more}; delete them, or add text to them", file=sys.stderr)
    if source.left_out:
        print(f"note: {describe_left_out(source.left_out)}", file=sys.stderr)


def _print_summary(summary: "DataSummary", tokenizer: str, vocab_size: int) -> None:
    noun = NOUNS[summary.kind]
    files = f" in {count(summary.files, 'file')}" if summary.files else ", built in"
    skipped = f" ({summary.skipped:,} empty ones skipped)" if summary.skipped else ""
    print(f"source      {summary.source}: {summary.kind}{files}")
    print(f"{noun:12}{summary.records:,}{skipped}")
    print(f"bytes       {summary.bytes:,} ({count(summary.characters, 'character')})")
    per_record, per_token = summary.tokens / summary.records, summary.bytes / max(summary.tokens, 1)
    averages = f"{per_record:,.1f} per record, {per_token:.2f} bytes per token"
    print(f"tokens      {summary.tokens:,} ({tokenizer}, vocabulary {vocab_size:,}; {averages})")
    if summary.unknown:
        print(f"unknown     {count(summary.unknown, 'token')}")
    longest = summary.longest
    print(f"longest     {count(longest['tokens'], 'token')}, record {longest['number']:,}: {longest['begins']!r}")
    print(f"duplicates  {summary.duplicates:,}")
    print(f"split       {SPLIT_BY[summary.split_by]}")
    for split, sizes in summary.split.items():
        if sizes["records"]:
            is_counted = summary.split_by == "hash" or summary.kind != "text"  # a cut inside a document adds a record
            records = f"{sizes['records']:,} {noun}, " if is_counted else ""
            print(f"  {split:10}{records}{count(sizes['bytes'], 'byte')}")
    _print_bars("lengths, in tokens", list(summary.lengths.items()))
    _print_bars("most frequent tokens", [(repr(token)[:24], n) for token, n in summary.top_tokens])
    if summary.labels:
        labels = [(label[:24], n) for label, n in list(summary.labels.items())[:MAX_LABELS]]
        _print_bars("tags" if summary.kind == "tagged" else "labels", labels)
    for number, sample in enumerate(summary.samples, start=1):
        print(f"\n── {number} ──\n{_format_sample(sample)}")


def _print_bars(title: str, rows: list[tuple[str, int]]) -> None:
    print(f"\n{title}")
    largest = max((n for _, n in rows), default=1)
    for name, n in rows:
        print(f"  {name:>24} {n:>12,}  {'█' * round(BAR_WIDTH * n / largest)}")


def _format_sample(sample: Any) -> str:
    if isinstance(sample, str):
        return sample
    if "tags" in sample:
        return " ".join(f"{word}/{tag}" for word, tag in zip(sample["words"], sample["tags"], strict=True))
    return "\n".join(
        f"{name:9} {', '.join(value) if isinstance(value, list) else value}" for name, value in sample.items()
    )
