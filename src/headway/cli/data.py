"""headway data"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli import options as given
from headway.cli.options import Json, print_json

if TYPE_CHECKING:
    from headway.data.sources import DataSource
    from headway.data.splits import SplitFractions
    from headway.data.statistics import DataSummary
    from headway.tokenizers import Tokenizer

NOUNS = {"text": "documents", "pairs": "pairs", "labelled": "texts", "tagged": "sentences", "questions": "questions"}


def data(
    source: Annotated[
        str,
        typer.Argument(
            help="A file, folder or glob (.txt .jsonl .csv .tsv .parquet .conll .json, also .gz), a built-in corpus "
            "(pydocs, stdlib, copy, reverse, sort, dates, numbers, arithmetic), or hub:owner/name."
        ),
    ],
    target: Annotated[
        str | None, typer.Argument(help="The file that is parallel to SOURCE, line by line.", show_default=False)
    ] = None,
    tokenizer: Annotated[
        str, typer.Option(help="Count in tokens of this one: a file, a folder, or char or word, made for this text.")
    ] = "word",
    format: given.Format = "auto",
    text: given.TextColumn = None,
    pairs: given.PairColumns = None,
    label: given.LabelColumn = None,
    separator: given.Separator = None,
    tag_scheme: given.TagScheme = "bio",
    errors: given.Errors = "strict",
    valid_fraction: Annotated[float, typer.Option(help="Share held out for validation; 0: nothing.")] = 0.1,
    test_fraction: Annotated[float, typer.Option(help="Share held out for testing.")] = 0.0,
    split: Annotated[str, typer.Option(help="hash: by document; tail: the end of the text; auto.")] = "auto",
    samples: Annotated[int, typer.Option(help="Records to show.")] = 3,
    limit: Annotated[int | None, typer.Option(help="Look at so many records only.")] = None,
    prepare: Annotated[
        bool,
        typer.Option("--prepare", help="Write the tokens to the cache, as training does (needs --tokenizer)."),
    ] = False,
    cache: Annotated[Path | None, typer.Option(help="Where prepared tokens go. Default: $HEADWAY_CACHE.")] = None,
    workers: Annotated[int | None, typer.Option(help="Threads that encode. Default: one per core.")] = None,
    json: Json = False,
) -> None:
    """Look at a data source: how much there is, what it is made of, how it is split.

    \b
    Examples:
      headway data pydocs
      headway data dates --test-fraction 0.1 --samples 5
      headway data my.txt --tokenizer char --json
      headway data my.txt --tokenizer my-bpe --prepare
    """
    from headway.data.sources import open_source
    from headway.data.splits import SplitFractions

    for name, value, least in (("--samples", samples, 0), ("--limit", limit, 1), ("--workers", workers, 1)):
        if value is not None and not least <= value < 1 << 62:
            raise typer.BadParameter(f"{value}: at least {least}", param_hint=name)
    if prepare and tokenizer in ("word", "char"):
        way = "make one first (headway tokenizer train) and name its folder"
        raise typer.BadParameter(f"{tokenizer!r} is made anew for each text; {way}", param_hint="--tokenizer")
    if prepare and limit is not None:
        raise typer.BadParameter("tokens are made of all the text; leave it out with --prepare", param_hint="--limit")
    if cache is not None and not prepare:
        raise typer.BadParameter("nothing is written without --prepare", param_hint="--cache")
    shares = SplitFractions(valid_fraction, test_fraction, split)
    opened = open_source(
        source,
        format=format,
        text=text,
        pairs=pairs,
        target_path=target,
        label=label,
        separator=given.unescaped(separator),
        tag_scheme=tag_scheme,
        errors=errors,
    )
    counter = _tokenizer(tokenizer, opened, limit)
    if prepare:
        _prepare(opened, counter, shares, cache, workers, json)
        return
    from headway.cli.display import ReadingDisplay
    from headway.data.statistics import summarize

    with ReadingDisplay("reading", opened.size) as display:
        found = summarize(opened, counter, shares, samples=samples, limit=limit, report=display.add)
    if json:
        from dataclasses import asdict

        print_json({**asdict(found), "tokenizer": tokenizer, "vocab_size": counter.vocab_size})
    else:
        _print(found, opened, tokenizer, counter.vocab_size)


def _tokenizer(name: str, source: "DataSource", limit: int | None) -> "Tokenizer":
    from itertools import islice

    from headway.tokenizers import load_tokenizer, train

    if name in ("char", "word"):
        return train(name, islice(source.texts(), limit and 2 * limit))
    return load_tokenizer(name)


def _prepare(
    source: "DataSource",
    tokenizer: "Tokenizer",
    shares: "SplitFractions",
    cache: Path | None,
    workers: int | None,
    json: bool,
) -> None:
    import time

    from headway.cli.display import ReadingDisplay
    from headway.data.token_shards import prepare

    started = time.monotonic()
    with ReadingDisplay() as display:
        made = prepare(
            source,
            tokenizer,
            shares,
            cache=cache,
            workers=workers,
            report=lambda p: display.show(p.stage, p.done, p.total),
        )
    if json:
        print_json({"path": str(made.path), "seconds": time.monotonic() - started, **made.meta})
        return
    for part in ("train", "valid", "test"):
        tokens = getattr(made, part)
        if len(tokens):
            shards = f"{len(tokens.files)} shard{'s' if len(tokens.files) != 1 else ''}"
            print(f"{part:12}{len(tokens):,} tokens in {tokens.n_documents:,} pieces of text, {shards}")
    print(f"prepared: {made.path} ({time.monotonic() - started:.1f} s)")


def _print(found: "DataSummary", source: "DataSource", tokenizer: str, vocab_size: int) -> None:
    noun = NOUNS[found.kind]
    files = f" in {found.files} file{'s' if found.files != 1 else ''}" if found.files else ", built in"
    print(f"source      {found.source}: {found.kind}{files}")
    print(f"{noun:12}{found.records:,}" + (f" ({found.skipped:,} empty ones left out)" if found.skipped else ""))
    print(f"bytes       {found.bytes:,} ({found.characters:,} characters)")
    each = f"{found.tokens / found.records:,.1f} each, {found.bytes / max(found.tokens, 1):.2f} bytes a token"
    print(f"tokens      {found.tokens:,} ({tokenizer}, {vocab_size:,} kinds; {each})")
    if found.unknown:
        print(f"unknown     {found.unknown:,} tokens")
    longest = found.longest
    print(f"longest     {longest['tokens']:,} tokens, number {longest['number']:,}: {longest['begins']!r}")
    print(f"duplicates  {found.duplicates:,}")
    how = {"hash": "by hash of their content", "tail": "by cutting off the end", "none": "too little to hold any out"}
    print(f"split       {how[found.split_by]}")
    for part, sizes in found.split.items():
        if sizes["records"]:
            count = f"{sizes['records']:,} {noun}, " if found.split_by == "hash" or found.kind != "text" else ""
            print(f"  {part:10}{count}{sizes['bytes']:,} bytes")
    _bars("lengths, in tokens", list(found.lengths.items()))
    _bars("most frequent tokens", [(repr(token)[:24], n) for token, n in found.top_tokens])
    if found.labels:
        _bars("tags" if found.kind == "tagged" else "labels", [(k[:24], n) for k, n in list(found.labels.items())[:20]])
    for i, sample in enumerate(found.samples, start=1):
        print(f"\n── {i} ──\n{_shown(sample)}")


def _bars(title: str, rows: list[tuple[str, int]]) -> None:
    print(f"\n{title}")
    most = max((n for _, n in rows), default=1)
    for name, n in rows:
        print(f"  {name:>24} {n:>12,}  {'█' * round(30 * n / most)}")


def _shown(sample: Any) -> str:
    if isinstance(sample, str):
        return sample
    if "tags" in sample:
        return " ".join(f"{word}/{tag}" for word, tag in zip(sample["words"], sample["tags"], strict=True))
    return "\n".join(f"{name:9} {', '.join(v) if isinstance(v, list) else v}" for name, v in sample.items())
