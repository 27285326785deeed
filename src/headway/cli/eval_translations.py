"""`headway eval` of models that translate, and of files of translations."""

import json as json_lines
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from headway.cli.eval_inputs import TextInput
from headway.cli.option_use import AllowsOnly, OnlyFor, OnlyWith
from headway.cli.options import describe_split, note_unknown_text, print_json, read_lines
from headway.cli.progress import CountDisplay

if TYPE_CHECKING:
    from headway.config import Recipe
    from headway.evaluation.metrics import PairedBootstrapResult
    from headway.evaluation.translation import TranslationScore
    from headway.models import Model

MAX_TEXTS_NOTED = 1000  # are searched for characters that are not in the vocabulary
SIGNIFICANCE_LEVEL = 0.05  # of the paired bootstrap
METRIC_LABELS = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "gleu": "GLEU"}  # from 0 to 100
HEAD_OBJECTIVES = ("classify", "tag", "span")


@dataclass(frozen=True)
class TranslationFlags:
    """Options for models that translate; some are also for labels, tags and answers."""

    section: ClassVar = "Tasks"

    references: Annotated[
        list[Path] | None,
        typer.Option("-r", "--references", help="A file of references, line by line; repeatable."),
    ] = None
    hypotheses: Annotated[
        Path | None,
        typer.Option(help="Score this file instead of a model's translations."),
        AllowsOnly(
            "--references", "--sources", "--metric", "--against", "--sentences", "--limit", "--lowercase", "--json"
        ),
    ] = None
    sources: Annotated[
        Path | None,
        typer.Option(help="The texts that the hypotheses rewrite, for GLEU."),
        OnlyWith("--hypotheses", why="is for --hypotheses: a model is scored on TEXT or on its data"),
    ] = None
    metric: Annotated[
        list[str] | None,
        typer.Option(help="A further metric: rouge1, rouge2, rougeL, gleu or your own; repeatable."),
    ] = None
    against: Annotated[
        str | None,
        typer.Option(help="Compare with a second model, run or file, by paired bootstrap."),
        OnlyFor(model=("translation model", *HEAD_OBJECTIVES)),
    ] = None
    sentences: Annotated[Path | None, typer.Option(help="Write the scores of each sentence here, as JSON lines.")] = (
        None
    )
    num_beams: Annotated[int | None, typer.Option(help="Beams; 1 is greedy. Default: 5.")] = None
    length_penalty: Annotated[float | None, typer.Option(help="Above 0 favours long texts; 0: off. Default: 1.")] = None
    limit: Annotated[
        int | None,
        typer.Option(help="Score only the first texts."),
        OnlyFor(model=("translation model", *HEAD_OBJECTIVES)),
    ] = None
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case in BLEU and chrF.")] = False

    def read_references(self) -> list[list[str]]:
        if not self.references:
            raise typer.BadParameter("add the references: --references FILE", param_hint="--references")
        return [read_lines(str(file)) for file in self.references]

    def metric_names(self, selected: str = "loss") -> list[str]:
        """The metrics beside those that are always printed: what --metric names, and what `eval.metric` selects."""
        from headway.errors import suggest
        from headway.evaluation.metrics import METRICS, check_installed, related_metrics

        for name in self.metric or []:
            if name not in METRICS:
                raise typer.BadParameter(
                    f"no metric {name!r} for texts with references."
                    + suggest(name, METRICS, otherwise=f" There are {', '.join(METRICS)}"),
                    param_hint="--metric",
                )
            check_installed(name)
        return related_metrics([*([selected] if selected in METRICS else []), *(self.metric or [])])

    def check_sources(self, names: Sequence[str]) -> None:
        """Raise if a metric needs the sources of --hypotheses, or if none does."""
        from headway.evaluation.metrics import METRICS

        needs_sources = [name for name in names if METRICS[name].takes_sources]
        if needs_sources and self.sources is None:
            raise typer.BadParameter(
                f"--metric {needs_sources[0]} compares with the texts that were rewritten: add --sources FILE",
                param_hint="--sources",
            )
        if self.sources is not None and not needs_sources:
            raise typer.BadParameter("is for --metric gleu: add it, or leave this option out", param_hint="--sources")


def evaluate_files(flags: TranslationFlags, json: bool) -> None:
    """Score a file of translations."""
    from headway.evaluation.translation import evaluate_translations

    references, names = flags.read_references(), flags.metric_names()
    flags.check_sources(names)
    score = evaluate_translations(
        read_lines(str(flags.hypotheses)),
        references,
        against=None if flags.against is None else read_lines(flags.against),
        limit=flags.limit,
        lowercase=flags.lowercase,
        metrics_by_name=names,
        sources=None if flags.sources is None else read_lines(str(flags.sources)),
    )
    _report_translations({"hypotheses": str(flags.hypotheses)}, score, flags, json)


@dataclass(frozen=True)
class TranslationTask:
    """What a translation model is scored on: a split of its run's data, or a text with references."""

    name: str
    recipe: "Recipe | None"
    text_input: TextInput | None
    split: Literal["valid", "test"]
    flags: TranslationFlags

    def evaluate(self, model: "Model", reranker: Any, *, batch_size: int, device: str, dtype: str, json: bool) -> None:
        import headway
        from headway.display import print_status
        from headway.evaluation.translation import evaluate_translator
        from headway.generation.translate import DEFAULT_BEAMS

        flags = self.flags
        names = flags.metric_names("loss" if self.recipe is None else self.recipe.eval.metric)
        sources, references, labels = self._load(model)
        against: Any = None
        if flags.against is not None:
            is_model = Path(flags.against).is_dir()
            against = headway.load(flags.against, device=device, dtype=dtype) if is_model else read_lines(flags.against)
        num_beams = DEFAULT_BEAMS if flags.num_beams is None else flags.num_beams
        sources_scored = sources[: flags.limit]
        note_unknown_text(model.tokenizer, list(map(str.strip, sources_scored[:MAX_TEXTS_NOTED])), "text")
        with CountDisplay("texts", len(sources_scored)) as display:
            score = evaluate_translator(
                model,
                sources,
                references,
                against=against,
                reranker=reranker,
                num_beams=num_beams,
                length_penalty=1.0 if flags.length_penalty is None else flags.length_penalty,
                batch_size=batch_size,
                limit=flags.limit,
                lowercase=flags.lowercase,
                metrics_by_name=names,
                on_message=print_status,
                on_progress=display.update,
            )
        labels = {"model": self.name, "n_params": model.n_params, "num_beams": num_beams, **labels}
        if reranker is not None:
            labels["weights"] = str(reranker.weights)
        _report_translations(labels, score, flags, json)

    def _load(self, model: "Model") -> tuple[list[str], list[list[str]], dict[str, Any]]:
        """Sources, references, and labels of the report: where they come from, and their loss if they are a split."""
        from headway.training.record_datasets import load_pairs
        from headway.training.run_evaluation import evaluate_split

        if self.text_input is not None and (
            self.flags.references or self.text_input.content is not None or self.recipe is None
        ):
            return self.text_input.lines(), self.flags.read_references(), {"text": self.text_input.name}
        if self.text_input is not None:
            assert self.recipe is not None
            return self._load_file(model, self.text_input, self.recipe)
        if self.flags.references:
            raise typer.BadParameter(
                "needs the text that was translated: MODEL TEXT --references FILE", param_hint="--references"
            )
        assert self.recipe is not None
        pairs = load_pairs(self.recipe, self.split)
        loss = evaluate_split(model, self.recipe, self.split).to_dict()
        labels = {"text": describe_split(self.recipe.data, self.split), **loss}
        if self.flags.limit is not None:
            labels["nats_of"] = "the whole split, not only the first --limit texts"
        return [pair.source for pair in pairs], [[pair.target for pair in pairs]], labels

    def _load_file(
        self, model: "Model", file: TextInput, recipe: "Recipe"
    ) -> tuple[list[str], list[list[str]], dict[str, Any]]:
        """The pairs of a file that is read as the run's data was, with their loss."""
        from headway.data.records import Pair
        from headway.training.run_evaluation import evaluate_records, open_as_trained

        if open_as_trained(file.name, recipe).kind == "text":
            raise typer.BadParameter(
                "add the references: --references FILE, or name a file of pairs, such as .tsv",
                param_hint="--references",
            )
        records = file.records(recipe)[: self.flags.limit]
        pairs = [record for record in records if isinstance(record, Pair)]
        labels = {"text": file.name, **evaluate_records(model, recipe, records, file.name).to_dict()}
        return [pair.source for pair in pairs], [[pair.target for pair in pairs]], labels


def _report_translations(
    labels: dict[str, Any], score: "TranslationScore", flags: TranslationFlags, json: bool
) -> None:
    from headway.files import write_text

    if flags.sentences is not None:
        rows = [json_lines.dumps(row, ensure_ascii=False) + "\n" for row in score.sentences()]
        write_text(flags.sentences, "".join(rows))
    if json:
        print_json({**labels, **score.to_dict(), "against": flags.against})
        return
    for name in ("model", "hypotheses", "text", "weights", "nats_per_target"):
        if name in labels:
            value = labels[name]
            print(f"{name.replace('_', ' '):<16}{f'{value:.4f}' if isinstance(value, float) else value}")
    duration = "" if score.seconds is None else f" in {score.seconds:.1f} s"
    print(f"{'sentences':<16}{len(score.hypotheses):,}{duration}")
    print(f"{'exact match':<16}{score.exact_match:.2%}")
    for name, value in score.named_metrics.items():
        print(f"{METRIC_LABELS.get(name, name):<15} {f'{value:.2f}' if name in METRIC_LABELS else f'{value:.4g}'}")
    if score.is_too_short_for_bleu:
        print(f"{'note':<16}BLEU counts up to four words in a row, and no reference has four: use exact match")
    for metric in score.metrics:
        print(f"{metric.name:<16}{metric.summary.partition('= ')[2]}\n{'':<16}{metric.signature}")
    if score.comparison:
        name = labels.get("model") or labels["hypotheses"]
        print_comparison(score.comparison, name, str(flags.against))


def print_comparison(
    results: "Sequence[PairedBootstrapResult]", name: str, against: str, *, percent: bool = False
) -> None:
    """Which of two systems is better, or that the difference may be chance. Scores are from 0 to 100, or with `percent`
    from 0 to 1."""
    scale = 100 if percent else 1
    print(f"{'against':<16}{against}")
    names = (
        (name, against) if name != against else ("the first", "the second")
    )  # one model, with a reranker and without
    for result in results:
        values = zip((result.first, result.second), result.ci_half_widths, strict=True)
        scores = " against ".join(f"{scale * value:.2f} ± {scale * within:.2f}" for value, within in values)
        verdict = "may be chance"
        if result.p < SIGNIFICANCE_LEVEL:
            verdict = f"{names[result.second > result.first]} is better, significantly (p < {SIGNIFICANCE_LEVEL})"
        print(f"{result.name:<16}{scores}: p = {result.p:.3f}, {verdict}")
