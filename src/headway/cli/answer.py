"""headway answer"""

import json as json_files
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from headway.cli.colors import highlighted, use_colors
from headway.cli.option_use import OnlyWithout
from headway.cli.options import (
    BatchSize,
    Json,
    LoadFlags,
    ModelPath,
    check_minimum,
    note_unknown_text,
    print_json,
    read_text,
    with_option_groups,
)
from headway.cli.prediction_files import TextFileFlags, is_json_lines, merged, read_records, write_records
from headway.cli.progress import CountDisplay

if TYPE_CHECKING:
    from headway.prediction.answer import PredictedAnswer

BAR_WIDTH = 20
EXCERPT_CHARS = 400  # of the passage on each side of the answer; the rest of a longer one is left out
NO_ANSWER = "no answer"
MAX_QUESTIONS_NOTED = 1000  # are searched for characters that are not in the vocabulary


@dataclass(frozen=True)
class PassageFlags:
    """The passage that questions on the command line are about."""

    section: ClassVar = "Passage"

    context: Annotated[
        str | None,
        typer.Option("-c", "--context", metavar="TEXT", help="The passage."),
        OnlyWithout("--context-file", "--in"),
    ] = None
    context_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Read the passage from a text file; - is stdin."),
        OnlyWithout("--in", why="has no effect with --in, whose questions have passages of their own"),
    ] = None


@dataclass(frozen=True)
class QuestionFileFlags(TextFileFlags):
    source: Annotated[
        Path | None,
        typer.Option("-i", "--in", metavar="FILE", help='SQuAD (.json), or .jsonl: {"question": …, "context": …}.'),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Write {id: answer} (.json), or an object per line (.jsonl)."),
    ] = None

    def check(self) -> None:
        for file, flag in ((self.source, "--in"), (self.out, "--out")):
            if file is not None and not is_json_lines(file) and not file.name.lower().endswith((".json", ".json.gz")):
                raise typer.BadParameter(f"{file} ends neither in .json nor in .jsonl", param_hint=flag)
        super().check()


@with_option_groups
def answer(
    model: ModelPath,
    questions: Annotated[list[str] | None, typer.Argument(help="Questions. Default: the lines of stdin.")] = None,
    *,
    passage: PassageFlags,
    top: Annotated[int, typer.Option("-k", "--top", help="Answers to show for each question.")] = 1,
    threshold: Annotated[
        float, typer.Option(help="How far no answer must exceed the best span to win; inf: always answer.")
    ] = 0.0,
    max_answer_tokens: Annotated[int, typer.Option(help="Longest answer in tokens.")] = 30,
    window: Annotated[int | None, typer.Option(help="Longest input in tokens. Default: the model's context.")] = None,
    overlap: Annotated[int, typer.Option(help="Tokens that neighbouring windows of a long passage share.")] = 128,
    files: QuestionFileFlags,
    loading: LoadFlags,
    batch_size: BatchSize = 32,
    json: Json = False,
) -> None:
    """Answer questions from a passage: find the span that answers each, or none.

    For a model trained on questions (train.objective=span). A passage of any length is read in overlapping windows.
    --out FILE.json writes what the official script of SQuAD reads.

    \b
    Examples:
      headway answer runs/squad "Who sat on the mat?" --context "The cat sat on the mat."
      headway answer runs/squad "Who sat?" "Where?" --context-file passage.txt
      headway answer runs/squad "Who sat on the mat?" -c "The cat sat on the mat." --top 3 --json
      headway answer runs/squad --in squad.json --out predictions.json
    """
    numbers = {"--top": top, "--max-answer-tokens": max_answer_tokens, "--window": window, "--batch-size": batch_size}
    for flag, number in numbers.items():
        check_minimum(flag, number)
    check_minimum("--overlap", overlap, 0)
    if threshold != threshold:
        raise typer.BadParameter("nan is not a number", param_hint="--threshold")
    files.check()
    is_answers_only = files.out is not None and not is_json_lines(files.out)
    if top > 1 and is_answers_only:
        raise typer.BadParameter(f"{files.out} holds one answer per question: name a .jsonl file", param_hint="--top")
    records = _read_questions(questions, passage, files.source)
    if files.out is not None and is_answers_only:
        _check_ids(records, files.out)
    pairs = [(record["question"], record["context"]) for record in records]

    import headway
    from headway.prediction.answer import answer_all

    loaded = headway.load(model, **loading.options)
    start = time.monotonic()
    with CountDisplay("questions", len(pairs)) as display:
        answers = answer_all(
            loaded,
            pairs,
            top=top,
            threshold=threshold,
            max_answer_tokens=max_answer_tokens,
            window=window,
            overlap=overlap,
            batch_size=batch_size,
            on_progress=display.update,
        )
    seconds = time.monotonic() - start
    note_unknown_text(loaded.tokenizer, [question for question, _ in pairs[:MAX_QUESTIONS_NOTED]], "question")
    results = [_to_dict(record, best) for record, best in zip(records, answers, strict=True)]
    if files.out is not None:
        _write_answers(results, files.out) if is_answers_only else write_records(results, files.out)
        if json:
            print_json({"model": model, "out": str(files.out), "n_questions": len(pairs), "seconds": seconds})
        else:
            noun = "question" if len(pairs) == 1 else "questions"
            print(f"{len(pairs):,} {noun} in {seconds:.1f} s: {files.out}", file=sys.stderr)
    elif json:
        print_json({"model": model, "answers": results, "seconds": seconds})
    else:
        print(_render(pairs, answers, top))


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read_questions(questions: list[str] | None, passage: PassageFlags, file: Path | None) -> list[dict[str, Any]]:
    """Objects with a question, its context and an id."""
    from headway.errors import DataError

    if file is None:
        context = _read_passage(passage, stdin_has_questions=not questions or questions == ["-"])
        return [
            {"id": str(number), **record, "context": context}
            for number, record in enumerate(read_records(questions, None, "question"), 1)
        ]
    if questions:
        raise typer.BadParameter("cannot be combined with questions on the command line", param_hint="--in")
    if not is_json_lines(file):
        return _read_squad(file)
    records = read_records(None, file, "question")
    for record in records:
        if not isinstance(record.get("context"), str):
            raise DataError(f'{file}: the question {record["question"]!r:.60} has no passage: {{"context": "…"}}')
    return [{"id": str(number), **record} for number, record in enumerate(records, 1)]


def _check_ids(records: list[dict[str, Any]], out: Path) -> None:
    """Refuse questions that {id: answer} cannot tell apart, before anything is computed."""
    from headway.errors import DataError

    ids: set[str] = set()
    for record in records:
        if (id := str(record["id"])) in ids:
            raise DataError(f"two questions have the id {id!r:.40}, so {out} cannot hold both: name a .jsonl file")
        ids.add(id)


def _read_squad(file: Path) -> list[dict[str, Any]]:
    from headway.data.records import Question
    from headway.data.sources import open_source
    from headway.errors import DataError

    questions = [record for record in open_source(str(file), format="squad").records() if isinstance(record, Question)]
    if not questions:
        raise DataError(f"{file} holds no questions")
    return [{"id": q.id, "question": q.question, "context": q.context} for q in questions]


def _read_passage(passage: PassageFlags, *, stdin_has_questions: bool) -> str:
    if passage.context is not None:
        return passage.context
    if passage.context_file is None:
        raise typer.BadParameter("give the passage: --context TEXT, --context-file FILE, or --in FILE")
    if passage.context_file == "-" and stdin_has_questions:
        raise typer.BadParameter(
            "stdin cannot hold the questions too: give one as an argument", param_hint="--context-file"
        )
    return read_text(passage.context_file)


def _to_dict(record: dict[str, Any], best: "PredictedAnswer") -> dict[str, Any]:
    """The question's own fields, but for its passage, and the answer."""
    own_fields = {name: value for name, value in record.items() if name != "context"}
    fields = asdict(best)
    for alternative in fields["alternatives"]:
        del alternative["alternatives"]
    return merged(own_fields, fields)


def _write_answers(results: list[dict[str, Any]], out: Path) -> None:
    """{id: answer}, all or nothing."""
    from headway.files import write_text

    answers = {str(result["id"]): result["text"] for result in results}
    write_text(out, json_files.dumps(answers, ensure_ascii=False) + "\n")


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _render(pairs: list[tuple[str, str]], answers: "list[PredictedAnswer]", top: int) -> str:
    """One question: its answers and the passage. Several: a line each or, with `top`, a block each."""
    if len(pairs) == 1:
        [(_, context)], [best] = pairs, answers
        shown = _render_candidates(best)
        return f"{shown}\n\n{_render_passage(context, best)}" if best.text else shown
    if top > 1:
        blocks = (f"{question}\n{_render_candidates(best)}" for (question, _), best in zip(pairs, answers, strict=True))
        return "\n\n".join(blocks)
    from headway.tables import Column, render_table

    columns = [
        Column("question", [question for question, _ in pairs], is_text=True),
        Column("answer", [_name(best) for best in answers], is_text=True),
        Column("probability", [f"{best.probability:.1%}" for best in answers]),
    ]
    return render_table(columns, shutil.get_terminal_size().columns if sys.stdout.isatty() else None)


def _render_candidates(best: "PredictedAnswer") -> str:
    """The answer and its alternatives, each with its probability as a number and as a bar."""
    candidates = [best, *best.alternatives]
    width = max(len(_name(candidate)) for candidate in candidates)
    return "\n".join(
        f"{_name(c):<{width}}  {c.probability:>6.1%}  {'█' * round(BAR_WIDTH * c.probability)}".rstrip()
        for c in candidates
    )


def _name(candidate: "PredictedAnswer") -> str:
    return " ".join(candidate.text.split()) or NO_ANSWER


def _render_passage(context: str, best: "PredictedAnswer") -> str:
    """The passage around the answer, which is highlighted in a terminal and >>marked<< elsewhere."""
    before, after = context[: best.start].lstrip(), context[best.end :].rstrip()
    if len(before) > EXCERPT_CHARS:
        before = "…" + before[-EXCERPT_CHARS:]
    if len(after) > EXCERPT_CHARS:
        after = after[:EXCERPT_CHARS] + "…"
    return before + (highlighted(best.text) if use_colors() else f">>{best.text}<<") + after
