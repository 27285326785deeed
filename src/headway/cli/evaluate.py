"""headway eval"""

import json as json_lines
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from headway.cli.completion import complete_run
from headway.cli.option_use import AllowsOnly, OnlyFor, check_options_for
from headway.cli.options import (
    BatchSize,
    Json,
    LoadFlags,
    check_minimum,
    check_output_file,
    describe_split,
    note_unknown_text,
    print_json,
    read_lines,
    with_option_groups,
)
from headway.cli.progress import CountDisplay
from headway.cli.reranking_options import RerankingFlags
from headway.runs import Run

if TYPE_CHECKING:
    from headway.config import Recipe
    from headway.data.records import Record
    from headway.evaluation.perplexity import LMScore
    from headway.evaluation.translation import TranslationScore
    from headway.evaluation.validation import EvalResult
    from headway.models import Model

MAX_TEXTS_NOTED = 1000  # are searched for characters that are not in the vocabulary
SIGNIFICANCE_LEVEL = 0.05  # of the paired bootstrap


@dataclass(frozen=True)
class TranslationFlags:
    """Options for models that translate."""

    section: ClassVar = "Translations"

    references: Annotated[
        list[Path] | None,
        typer.Option("-r", "--references", help="A file of references, line by line; repeatable."),
    ] = None
    hypotheses: Annotated[
        Path | None,
        typer.Option(help="Score this file instead of a model's translations."),
        AllowsOnly("--references", "--against", "--sentences", "--limit", "--lowercase", "--json"),
    ] = None
    against: Annotated[
        str | None,
        typer.Option(help="Compare with a second model, run or file, by paired bootstrap."),
    ] = None
    sentences: Annotated[Path | None, typer.Option(help="Write the scores of each sentence here, as JSON lines.")] = (
        None
    )
    num_beams: Annotated[int | None, typer.Option(help="Beams; 1 is greedy. Default: 5.")] = None
    length_penalty: Annotated[float | None, typer.Option(help="Above 0 favours long texts; 0: off. Default: 1.")] = None
    limit: Annotated[int | None, typer.Option(help="Score only the first texts.")] = None
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case in BLEU and chrF.")] = False

    def read_references(self) -> list[list[str]]:
        if not self.references:
            raise typer.BadParameter("add the references: --references FILE", param_hint="--references")
        return [read_lines(str(file)) for file in self.references]


@with_option_groups
def evaluate(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A model directory or a run such as runs/demo; not with --hypotheses.", autocompletion=complete_run
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Argument(
            help="Text, or data as the run was trained on: a file, folder, glob or built-in corpus; - reads stdin. "
            "Default: the run's validation split."
        ),
    ] = None,
    *,
    literal_text: Annotated[str | None, typer.Option("--text", help="Score this text itself.")] = None,
    split: Annotated[
        Literal["valid", "test"],
        typer.Option(help="The held-out split of the run's own data."),
        OnlyFor(text="the run's own"),
    ] = "valid",
    context: Annotated[
        int | None,
        typer.Option(help="Tokens per window. Default: that of the run, or the model's."),
        OnlyFor(model="language model"),
    ] = None,
    translation: Annotated[TranslationFlags, OnlyFor(model="translation model")],
    reranking: Annotated[RerankingFlags, OnlyFor(model="translation model")],
    loading: LoadFlags,
    batch_size: Annotated[BatchSize, OnlyFor(model=("language model", "translation model"))] = 16,
    json: Json = False,
) -> None:
    """Score a model on held-out text.

    Language models are scored in bits per byte, which compare across tokenizers and families, over consecutive windows
    without overlap. Models that translate are scored by BLEU and chrF (sacreBLEU, cased, with signatures) on pairs, or
    on TEXT with --references; models with another objective (labels, tags, …) on data of that kind. A file is read as
    the data of the run was: with the same columns, separator and tag scheme.

    \b
    Examples:
      headway eval runs/demo
      headway eval runs/demo my.txt --json
      headway eval runs/demo --text "The cat sat on the mat."
      headway eval runs/reverse --limit 100
      headway eval runs/reverse letters.tsv --limit 20
      headway eval --hypotheses mine.de --references right.de --against yours.de
    """
    for flag, number in (("--context", context), ("--batch-size", batch_size), ("--limit", translation.limit)):
        check_minimum(flag, number)
    check_output_file(translation.sentences, "--sentences")
    reranking.check(translation.num_beams)
    if text is not None and literal_text is not None:
        raise typer.BadParameter("cannot be combined with TEXT: score one of the two", param_hint="--text")
    has_text = text is not None or literal_text is not None
    if has_text:
        check_options_for(f"{'TEXT' if literal_text is None else '--text'}, which is no split of a run", text="given")
    if translation.hypotheses is not None:
        _evaluate_files(translation, json)
        return
    if model is None:
        raise typer.BadParameter("name a model or run, or --hypotheses FILE --references FILE", param_hint="MODEL")
    import headway
    from headway.config import load_recipe
    from headway.models import find_model
    from headway.models.base import Seq2SeqLM
    from headway.training.task import resolve_objective

    recipe = load_recipe(Path(model)) if Run.exists(model) else None
    find_model(model)  # its error says what is wrong with the path
    if not has_text and recipe is None and not translation.references:
        raise typer.BadParameter(f"{model} is not a run, so it has no held-out text: name a text", param_hint="TEXT")
    text_input = _read_text_input(text, literal_text)
    loaded = headway.load(model, **loading.options)
    if isinstance(loaded, Seq2SeqLM):
        check_options_for(f"{model}, which translates", model="translation model")
        task = _TranslationTask(model, recipe, text_input, split, translation)
        if reranking.tune == "valid" and not has_text and split == "valid":
            raise typer.BadParameter(
                "tunes the weights on the data they are scored on: use --split test, or tune on other pairs",
                param_hint="--tune",
            )
        reranker = reranking.load(
            loaded, model, num_beams=translation.num_beams, batch_size=batch_size, **loading.options
        )
        task.evaluate(loaded, reranker, batch_size=batch_size, **loading.options, json=json)
        return
    objective = "causal" if recipe is None else resolve_objective(recipe)
    if objective == "causal":
        check_options_for(f"{model}, which does not translate", model="language model")
    else:
        check_options_for(f"{model}, whose objective is {objective}", model=objective)
    _evaluate_model(loaded, model, recipe, text_input, split, context, batch_size, json)


@dataclass(frozen=True)
class TextInput:
    """A text on the command line: the path of a source, or the text itself."""

    name: str
    content: str | None = None

    @property
    def hint(self) -> str:
        """What the user gave it by."""
        return "--text" if self.name == "--text" else "TEXT"

    def documents(self, model: "Model", recipe: "Recipe | None") -> list[str]:
        from headway.training.run_evaluation import load_evaluation_text, split_evaluation_text

        if self.content is None:
            return load_evaluation_text(model, self.name, recipe)
        return split_evaluation_text(model, self.content, recipe)

    def records(self, recipe: "Recipe") -> "list[Record]":
        """The records of a file, of the kind that the run trains on."""
        from headway.training.run_evaluation import load_evaluation_records

        assert self.content is None
        return load_evaluation_records(recipe, self.name)

    def lines(self) -> list[str]:
        return read_lines(self.name) if self.content is None else self.content.splitlines()


def _read_text_input(path: str | None, content: str | None) -> TextInput | None:
    from headway.data.text_files import decode_text

    if path == "-":
        content = decode_text(sys.stdin.buffer.read(), "stdin")
        if content.lstrip().startswith("{") and "\n" in content:
            print("note: stdin is scored as plain text; to read JSON lines, name a file .jsonl", file=sys.stderr)
        return TextInput("stdin", content)
    if content is not None:
        return TextInput("--text", content)
    return None if path is None else TextInput(path)


# ── language models and other tasks ───────────────────────────────────────────────────────────────────────────────


def _evaluate_model(
    loaded: "Model",
    name: str,
    recipe: "Recipe | None",
    text_input: TextInput | None,
    split: Literal["valid", "test"],
    context: int | None,
    batch_size: int,
    json: bool,
) -> None:
    from headway.evaluation.perplexity import LMScore
    from headway.training.run_evaluation import evaluate_split, is_read_by_line

    if text_input is not None:
        source = text_input.name
        score = _score_text_input(loaded, recipe, text_input, context, batch_size)
    else:
        assert recipe is not None
        source = describe_split(recipe.data, split)
        score = evaluate_split(loaded, recipe, split, context=context, batch_size=batch_size)
    if json:
        print_json({"model": name, "text": source, "n_params": loaded.n_params, **score.to_dict()})
        return
    print(f"model           {name}: {loaded.display_name}, {loaded.n_params:,} parameters")
    if isinstance(score, LMScore):
        is_whole = context is None and getattr(loaded.config, "context", None) is None
        unit = "line" if is_read_by_line(loaded, recipe) else "document"
        _print_lm_score(score, source, f"none: each {unit} is read whole" if is_whole else None)
    else:
        print(f"data            {source}")
        print(f"score           {score.summary}")


def _score_text_input(
    loaded: "Model", recipe: "Recipe | None", text_input: TextInput, context: int | None, batch_size: int
) -> "EvalResult":
    """The score of a model on a text or file of the user."""
    from headway.evaluation.perplexity import LMScore
    from headway.models.heads import Head
    from headway.training.run_evaluation import evaluate_documents, evaluate_records

    if isinstance(loaded, Head):
        if recipe is None or text_input.content is not None:
            raise typer.BadParameter(_how_to_score(loaded), param_hint=text_input.hint)
        return evaluate_records(loaded, recipe, text_input.records(recipe), text_input.name)
    documents = text_input.documents(loaded, recipe)
    score = evaluate_documents(loaded, recipe, documents, context=context, batch_size=batch_size)
    if isinstance(score, LMScore) and score.lost_bytes:
        note_unknown_text(loaded.tokenizer, documents[:MAX_TEXTS_NOTED], "text")
    return score


def _how_to_score(model: "Model") -> str:
    """What to give instead of a plain text, for a model that does not predict text."""
    data, file = {"Classifier": ("labelled data", "FILE.csv"), "Tagger": ("tagged words", "FILE.conll")}.get(
        model.display_name, ("questions with answers", "FILE.json")
    )
    predict = "; to predict, see docs/howto/classify.md" if model.display_name == "Classifier" else ""
    return f"a {model.display_name} is scored on {data}: headway eval RUN [{file}]{predict}"


def _print_lm_score(score: "LMScore", source: str, windows: str | None) -> None:
    from headway.errors import count

    print(f"text            {source}: {count(score.n_bytes, 'byte')}, {count(score.n_tokens, 'token')}")
    print(f"windows         {windows or f'{score.context} tokens, consecutive, no overlap'}")
    print(f"bits per byte   {score.bits_per_byte:.4f}")
    print(f"nats per token  {score.nats_per_token:.4f}   (perplexity {score.perplexity:,.2f})")
    if score.lost_bytes:
        lost = count(score.lost_bytes, "byte")
        print(f"unknown         {lost} lost in <unk> or between words, charged at 8 bits each")


# ── translations ──────────────────────────────────────────────────────────────────────────────────────────────────


def _evaluate_files(flags: TranslationFlags, json: bool) -> None:
    """Score a file of translations."""
    from headway.evaluation.translation import evaluate_translations

    references = flags.read_references()
    score = evaluate_translations(
        read_lines(str(flags.hypotheses)),
        references,
        against=None if flags.against is None else read_lines(flags.against),
        limit=flags.limit,
        lowercase=flags.lowercase,
    )
    _report_translations({"hypotheses": str(flags.hypotheses)}, score, flags, json)


@dataclass(frozen=True)
class _TranslationTask:
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
                metrics_by_name=self._own_metrics(),
                on_message=print_status,
                on_progress=display.update,
            )
        labels = {"model": self.name, "n_params": model.n_params, "num_beams": num_beams, **labels}
        if reranker is not None:
            labels["weights"] = str(reranker.weights)
        _report_translations(labels, score, flags, json)

    def _own_metrics(self) -> list[str]:
        """The metric that selects the run's checkpoints, if it is not among those that are always printed."""
        from headway.evaluation.metrics import METRICS

        name = "loss" if self.recipe is None else self.recipe.eval.metric
        return [name] if name in METRICS and name not in ("bleu", "exact_match") else []

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
        print(f"{name:<15} {value:.4g}")
    if score.is_too_short_for_bleu:
        print(f"{'note':<16}BLEU counts up to four words in a row, and no reference has four: use exact match")
    for metric in score.metrics:
        print(f"{metric.name:<16}{metric.summary.partition('= ')[2]}\n{'':<16}{metric.signature}")
    if score.comparison:
        name = labels.get("model") or labels["hypotheses"]
        _print_comparison(score, name, str(flags.against))


def _print_comparison(score: "TranslationScore", name: str, against: str) -> None:
    """Which of two systems is better, or that the difference may be chance."""
    print(f"{'against':<16}{against}")
    names = (
        (name, against) if name != against else ("the first", "the second")
    )  # one model, with a reranker and without
    for result in score.comparison:
        values = zip((result.first, result.second), result.ci_half_widths, strict=True)
        scores = " against ".join(f"{value:.2f} ± {within:.2f}" for value, within in values)
        verdict = "may be chance"
        if result.p < SIGNIFICANCE_LEVEL:
            verdict = f"{names[result.second > result.first]} is better, significantly (p < {SIGNIFICANCE_LEVEL})"
        print(f"{result.name:<16}{scores}: p = {result.p:.3f}, {verdict}")
