"""Translations scored for `headway eval`: of a model, of a file, of two against each other."""

import json as json_lines
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from headway.cli.options import name_of_part, print_json, read_lines

if TYPE_CHECKING:
    from headway.config import Recipe


@dataclass(frozen=True)
class FilesToScore:
    references: list[Path]
    hypotheses: Path | None
    against: str | None
    sentences: Path | None
    lowercase: bool

    @property
    def given(self) -> str | None:
        """The first of these flags that is set."""
        named = (("--references", self.references), ("--against", self.against), ("--sentences", self.sentences))
        return next((name for name, value in named if value), None)

    def read_references(self) -> list[list[str]]:
        return [read_lines(str(file)) for file in self.references]


@dataclass(frozen=True)
class Translating:
    num_beams: int
    length_penalty: float
    batch_size: int
    limit: int | None
    device: str
    dtype: str
    reranker: Any = None  # what reranks

    def of(self, model: Any, sources: Sequence[str]) -> list[str]:
        """Every source must be scored, so one that is too long is cut, and that is said."""
        import headway
        from headway.generation.source import truncated_sources

        if n := len(truncated_sources(model, sources)):
            print(f"note: {n:,} of {len(sources):,} texts are longer than the model reads, and cut", file=sys.stderr)
        found = headway.translate(
            model,
            sources,
            num_beams=self.num_beams,
            length_penalty=self.length_penalty,
            batch_size=self.batch_size,
            truncate=True,
            reranker=self.reranker,
        )
        return [" ".join(translation.text.split("\n")) for translation in found]


def score_files(files: FilesToScore, model: str | None, limit: int | None, *, json: bool) -> None:
    """Translations that are there already."""
    from headway.evaluation.metrics import check_lines

    if model is not None:
        raise typer.BadParameter("a model, or translations that are there: one of the two", param_hint="--hypotheses")
    if not files.references:
        raise typer.BadParameter("what is right? give --references FILE", param_hint="--references")
    found = read_lines(str(files.hypotheses))
    references = files.read_references()
    check_lines(found, references)
    other = None if files.against is None else read_lines(files.against)
    if other is not None:
        check_lines(other, references)
    found, other = found[:limit], None if other is None else other[:limit]
    _report(
        {"hypotheses": str(files.hypotheses)}, found, [some[:limit] for some in references], other, files, json=json
    )


def score_translator(
    model: Any,
    name: str,
    plan: "Recipe | None",
    text: str | None,
    part: Literal["valid", "test"],
    files: FilesToScore,
    how: Translating,
    *,
    json: bool,
) -> None:
    """What a model makes of a part of its run's data, or of a file with references."""
    import headway
    from headway.evaluation.metrics import check_lines
    from headway.training.task import evaluate_split, load_pairs

    facts: dict[str, Any] = {"model": name, "n_params": model.n_params, "num_beams": how.num_beams}
    if how.reranker is not None:
        facts["weights"] = str(how.reranker.weights)
    if text is not None:
        if not files.references:
            raise typer.BadParameter("what is right? give --references FILE", param_hint="--references")
        sources, references = read_lines(text), files.read_references()
        check_lines(sources, references)
        facts["text"] = text
    else:
        if files.references:
            raise typer.BadParameter("of which text? name it: MODEL TEXT --references FILE", param_hint="--references")
        if plan is None:
            raise typer.BadParameter(f"{name} is no run with held-out text: name TEXT and --references")
        pairs = load_pairs(plan, part)
        sources, references = [pair.source for pair in pairs], [[pair.target for pair in pairs]]
        facts |= {"text": name_of_part(plan.data, part), **evaluate_split(model, plan, part).to_dict()}
        if how.limit is not None:
            facts["nats_of"] = "the whole part, not the first --limit of it"
    other = None
    if files.against is not None and not Path(files.against).is_dir():
        other = read_lines(files.against)
        check_lines(other, references)
        other = other[: how.limit]
    sources, references = sources[: how.limit], [some[: how.limit] for some in references]
    started = time.monotonic()
    found = how.of(model, sources)
    facts["seconds"] = time.monotonic() - started
    if files.against is not None and other is None:
        plain = replace(how, reranker=None)  # what is compared with is not reranked: it may be the same model
        other = plain.of(headway.load(files.against, device=how.device, dtype=how.dtype), sources)
    _report(facts, found, references, other, files, json=json)


def _report(
    facts: dict[str, Any],
    found: list[str],
    references: list[list[str]],
    other: list[str] | None,
    files: FilesToScore,
    *,
    json: bool,
) -> None:
    from headway.evaluation.metrics import compare, score, sentence_scores
    from headway.files import write_text

    metrics = score(found, references, lowercase=files.lowercase)
    rights = [set(map(str.strip, some)) for some in zip(*references, strict=True)]
    exact = sum(text.strip() in some for text, some in zip(found, rights, strict=True)) / len(found)
    compared = [] if other is None else compare(found, other, references, lowercase=files.lowercase)
    if files.sentences is not None:
        each = sentence_scores(found, references, lowercase=files.lowercase)
        rows = [
            {"line": i, "translation": text, "references": list(some), **scores}
            for i, (text, some, scores) in enumerate(zip(found, zip(*references, strict=True), each, strict=True), 1)
        ]
        write_text(files.sentences, "".join(json_lines.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    if json:
        print_json({
            **facts,
            "n_sentences": len(found),
            "exact_match": exact,
            **{metric.name: metric.score for metric in metrics},
            "signatures": {metric.name: metric.signature for metric in metrics},
            "against": files.against,
            "comparison": [asdict(row) for row in compared],
        })  # fmt: skip
        return
    for label in ("model", "hypotheses", "text", "weights", "nats_per_target"):
        if label in facts:
            value = facts[label]
            print(f"{label.replace('_', ' '):<16}{f'{value:.4f}' if isinstance(value, float) else value}")
    took = f" in {facts['seconds']:.1f} s" if "seconds" in facts else ""
    print(f"{'sentences':<16}{len(found):,}{took}")
    print(f"{'exact match':<16}{exact:.2%}")
    if all(len(text.split()) < 4 for some in references for text in some):
        print(f"{'note':<16}BLEU counts up to four words in a row, and no line here has four: look at exact match")
    for metric in metrics:
        print(f"{metric.name:<16}{metric.summary.partition('= ')[2]}\n{'':<16}{metric.signature}")
    if compared:
        print(f"{'against':<16}{files.against}")
    for row in compared:
        names = (facts.get("model") or facts.get("hypotheses"), files.against)
        if names[0] == names[1]:  # one model, read with and without a reranker
            names = ("the first", "the second")
        better = f"{names[row.second > row.first]} is better, by more than chance"
        both = zip((row.first, row.second), row.within, strict=True)
        scores = " against ".join(f"{value:.2f} ± {within:.2f}" for value, within in both)
        print(f"{row.name:<16}{scores}: p = {row.p:.3f}, {better if row.p < 0.05 else 'may be chance'}")
