"""headway translate"""

import json as json_lines
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from headway.cli.beam_trace import MAX_EXPLAINED_TEXTS, describe_search, print_steps, step_json
from headway.cli.option_use import OnlyWith, OnlyWithout
from headway.cli.options import (
    BatchSize,
    BeamFlags,
    Json,
    LoadFlags,
    ModelPath,
    check_minimum,
    check_new_file,
    note_unknown_text,
    print_json,
    print_notes,
    with_option_groups,
)
from headway.cli.progress import CountDisplay
from headway.cli.prompt_files import JSON_LINES, read_texts
from headway.cli.reranking_options import RerankingFlags
from headway.cli.sampler_options import SamplerFlags, parse_order, sampler_settings, with_sampler_options

if TYPE_CHECKING:
    from headway.generation.beam_search import BeamStep
    from headway.generation.translate import Translation


@dataclass(frozen=True)
class FileFlags:
    section: ClassVar = "Files"

    source: Annotated[
        Path | None, typer.Option("-i", "--in", metavar="FILE", help='One text per line, or .jsonl: {"source": …}.')
    ] = None
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Write one line per text; .jsonl: JSON objects."),
    ] = None
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace --out if it exists."),
        OnlyWith("--out", why="has no effect without a file: add --out FILE"),
    ] = False

    @property
    def is_json(self) -> bool:
        return self.out is not None and self.out.suffix.lower() in JSON_LINES


@dataclass(frozen=True)
class LengthFlags:
    max_new_tokens: Annotated[int | None, typer.Option(help="Longest translation. Default: the model's context.")] = (
        None
    )
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut off texts that exceed the context.")] = False


@with_sampler_options
@with_option_groups
def translate(
    model: ModelPath,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts. Default: the lines of stdin.")] = None,
    *,
    num_beams: Annotated[
        int | None, typer.Option(help="Number of beams. Default: 5, or sampling if a sampler is set.")
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="The same as --num-beams 1.")] = False,
    n_best: Annotated[int, typer.Option("-n", "--n-best", help="Translations per text, at most --num-beams.")] = 1,
    length: LengthFlags,
    align: Annotated[bool, typer.Option("--align", help="Show the source of each target word, by attention.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show every step of the search, with its beams.")] = False,
    seed: Annotated[int | None, typer.Option(help="Random seed of the samplers. Default: a new one.")] = None,
    samplers: SamplerFlags = {},  # noqa: B006 (replaced by the flags)
    beams: Annotated[BeamFlags, OnlyWithout("--greedy")],
    reranking: Annotated[RerankingFlags, OnlyWithout("--greedy", why="one beam leaves nothing to rerank")],
    files: FileFlags,
    loading: LoadFlags,
    batch_size: BatchSize = 64,
    json: Json = False,
) -> None:
    """Translate texts with a sequence-to-sequence model.

    Works for any text pairs: languages, dates, spelling correction, summaries. Writes one line per input line; empty
    lines stay empty. Samplers (--temperature 0.7, --top-p 0.9, …) draw at random instead of searching. --reverse-model
    and --lm rerank the beams (noisy channel).

    \b
    Examples:
      headway translate runs/reverse "abc"
      headway translate runs/reverse abc xyz --num-beams 3 --n-best 3
      headway translate runs/reverse "abc" --align --json
      headway translate runs/reverse "abc" --explain --num-beams 2
      headway translate runs/reverse "abc" --temperature 1 --seed 1
      headway translate runs/reverse "abc" --reverse-model runs/reverse --weights channel=0.3 --num-beams 10
    """
    for flag, number in (("--n-best", n_best), ("--batch-size", batch_size)):
        check_minimum(flag, number)
    if greedy and num_beams not in (None, 1):
        raise typer.BadParameter(f"cannot be combined with --num-beams {num_beams}", param_hint="--greedy")
    num_beams = 1 if greedy else num_beams
    _check_files(model, files)
    reranking.check(num_beams)
    if align and files.out is not None and not json and not files.is_json:
        raise typer.BadParameter("a file holds alignments only as JSON: name a .jsonl file", param_hint="--align")
    if explain and files.out is not None and not json and not files.is_json:
        raise typer.BadParameter("a file holds the steps only as JSON: name a .jsonl file", param_hint="--explain")
    records = _read_sources(texts, files.source)
    sources = [record["source"] for record in records]
    if explain and len(sources) > MAX_EXPLAINED_TEXTS:
        raise typer.BadParameter(
            f"{len(sources):,} texts have too many steps to read: give at most {MAX_EXPLAINED_TEXTS}",
            param_hint="--explain",
        )

    import headway
    from headway.generation.source import require_translator
    from headway.generation.translate import DEFAULT_BEAMS

    loaded, tokenizer = require_translator(headway.load(model, **loading.options))
    reranker = reranking.load(loaded, model, num_beams=num_beams, batch_size=batch_size, **loading.options)
    settings = sampler_settings(samplers, tokenizer)
    if samplers["temperature"] is not None:
        settings["temperature"] = samplers["temperature"]
    note_unknown_text(tokenizer, list(map(str.strip, sources)), "text")
    steps: list[BeamStep] = []
    start = time.monotonic()
    translations = _translate(
        loaded,
        sources,
        on_beam_step=steps.append if explain else None,
        num_beams=num_beams,
        n_best=n_best,
        **beams.options,
        max_new_tokens=length.max_new_tokens,
        truncate=length.truncate,
        batch_size=batch_size,
        seed=seed,
        sampler_preset=samplers["sampler_preset"],
        sampler_order=parse_order(samplers["sampler_order"]),
        reranker=reranker,
        **settings,
    )
    seconds = time.monotonic() - start
    results = [{**record, **_to_dict(t)} for record, t in zip(records, translations, strict=True)]
    if align:
        _add_alignments(loaded, results, length.truncate)
    if explain:
        for row, result in enumerate(results):
            result["steps"] = [step_json(step, tokenizer) for step in steps if step.row == row]
    if files.out is not None:
        _write_results(results, files.out, n_best, json or files.is_json)
        if json:
            print_json({"model": model, "out": str(files.out), "n_texts": len(sources), "seconds": seconds})
        else:
            print(f"{len(sources):,} line{'s' * (len(sources) != 1)} in {seconds:.1f} s: {files.out}", file=sys.stderr)
    elif json:
        print_json({"model": model, "translations": results, "seconds": seconds})
    else:
        if explain:
            search = describe_search(DEFAULT_BEAMS if num_beams is None else num_beams, **beams.options)
            for result in results:
                print_steps(result, search)
        _print_results(results, n_best)


# ── input ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_sources(texts: list[str] | None, file: Path | None) -> list[dict[str, Any]]:
    """The texts as {"source": text}, with the other fields that a file of JSON lines has."""
    if texts and file is not None:
        raise typer.BadParameter("cannot be combined with texts on the command line", param_hint="--in")
    if file is not None:
        return read_texts(str(file), "source")
    if texts and texts != ["-"]:
        return [{"source": text} for text in texts]
    if not texts and sys.stdin.isatty():
        raise typer.BadParameter("give a text, --in FILE, or lines on stdin", param_hint="TEXTS")
    return read_texts("-", "source")


def _check_files(model: str, files: FileFlags) -> None:
    """Refuse an output that cannot be written or is the input, and an input in the target language."""
    from headway.generation.noisy_channel import translation_direction

    source, out = files.source, files.out
    if out is not None and source is not None and out.exists() and out.samefile(source):
        raise typer.BadParameter(f"{out} is the input file: name another file", param_hint="--out")
    check_new_file(out, "--out", overwrite=files.overwrite)
    direction = None if source is None else translation_direction(model)
    if source is not None and direction is not None and source.suffix[1:] == direction[1]:
        raise typer.BadParameter(
            f"{source} ends in .{direction[1]}, but this model translates .{direction[0]} to .{direction[1]}. To "
            f"translate it all the same, read it from stdin: < {source}",
            param_hint="--in",
        )


# ── translation ───────────────────────────────────────────────────────────────────────────────────────────────────


def _translate(model: Any, sources: list[str], *, batch_size: int, **options: Any) -> "list[Translation]":
    """All translations in order, with progress."""
    from headway.generation.translate import translations

    by_row: dict[int, Translation] = {}
    with CountDisplay("texts", len(sources)) as display:
        for row, translation in translations(model, sources, batch_size=batch_size, on_pipeline=print_notes, **options):
            by_row[row] = translation
            display.update(len(by_row))
    return [by_row[row] for row in range(len(sources))]


def _to_dict(translation: "Translation") -> dict[str, Any]:
    def fields(t: "Translation") -> dict[str, Any]:
        terms = {} if t.terms is None else {"terms": t.terms._asdict()}
        return {"text": t.text, "score": t.score, "log_prob": t.log_prob, "ended": t.ended, **terms}

    return {**fields(translation), "others": [fields(other) for other in translation.others]}


def _add_alignments(model: Any, results: list[dict[str, Any]], truncate: bool) -> None:
    from headway.generation.alignment import align

    for result in results:
        if result["text"]:
            words = align(model, result["source"], result["text"], truncate=truncate)
            result["alignment"] = [word._asdict() for word in words]


# ── output ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _write_results(results: list[dict[str, Any]], out: Path, n_best: int, json: bool) -> None:
    from headway.files import non_finite_to_null, write_text

    if json:
        lines = [json_lines.dumps(non_finite_to_null(result), ensure_ascii=False) for result in results]
    else:
        lines = [_format_result(result, n_best) for result in results]
    write_text(out, "".join(f"{line}\n" for line in lines))


def _print_results(results: list[dict[str, Any]], n_best: int) -> None:
    for result in results:
        print(_format_result(result, n_best))
    for result in results:
        _print_alignment(result.get("alignment") or [])


def _format_result(result: dict[str, Any], n_best: int) -> str:
    """The translation on one line; with several, one line each of rank, score and text."""
    if n_best == 1:
        return _on_one_line(result["text"])
    lines = []
    for rank, translation in enumerate([result, *result["others"]], 1):
        score = translation["score"] if translation["score"] is not None else translation["log_prob"] or 0.0
        lines.append(f"{rank}\t{score:.4f}\t{_on_one_line(translation['text'])}")
    return "\n".join(lines)


def _on_one_line(text: str) -> str:
    """The text without line breaks of any kind and without tabs, which separate columns."""
    return " ".join("\t".join(text.splitlines()).split("\t"))


def _print_alignment(words: list[dict[str, Any]]) -> None:
    if words:
        print()
        words = [{**word, **{key: word[key].strip() or "␣" for key in ("word", "source")}} for word in words]
        width = max(len(word["word"]) for word in words)
        source_width = max(len(word["source"]) for word in words)
        positions = {(word["source"], word["source_index"]) for word in words}
        is_repeated = len(positions) > len({source for source, _ in positions})  # the word alone is ambiguous
        for word in words:
            position = f"  position {word['source_index'] + 1}" if is_repeated else ""
            print(f"  {word['word']:<{width}}  ← {word['source']:<{source_width}}{position}  ({word['weight']:.0%})")
