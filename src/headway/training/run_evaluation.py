"""Evaluate the model of a run on a held-out split of the run's own data, or on other data read in the same way.

model, recipe = headway.load("runs/demo"), headway.load_recipe("runs/demo")
score = evaluate_split(model, recipe, "valid")
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec
import torch

from headway.config import DataConfig, Recipe, TrainConfig, build
from headway.config.recipe_loading import apply_setting
from headway.data.builtin import corpus
from headway.data.loader import BatchLoader
from headway.data.readers import READER_KINDS, format_of
from headway.data.records import KIND_NAMES, Record
from headway.data.sources import DataSource, find_files, open_source
from headway.data.splits import load_documents, read_split
from headway.data.tag_schemes import scheme_of
from headway.errors import ConfigError, DataError, InputError
from headway.evaluation.perplexity import evaluate
from headway.evaluation.reports import make_report
from headway.evaluation.tasks import TaskReport, TaskScore, ValidationExamples
from headway.evaluation.validation import EvalResult, ValidationSet, check_infinite_loss
from headway.models import MaskedLM, Model
from headway.models.base import tokenizer_of
from headway.models.heads import Classifier, Head, Tagger
from headway.prediction.heads import HEAD_USES
from headway.tokenizers import Tokenizer
from headway.training.objectives import LossModule
from headway.training.record_datasets import (
    RECORD_KINDS,
    dataset_options,
    example_length,
    load_records,
    record_dataset,
    report_options,
)
from headway.training.task import resolve_objective
from headway.training.text_datasets import masked_text, mlm_validation_set

READING_SETTINGS = ("format", "text", "text_pair", "label", "label_separator", "tag_scheme", "errors")
TABLES = ("jsonl", "csv", "tsv", "parquet")
FILES_OF_A_KIND = {  # what to give `headway eval`, by the kind of records that the model was trained on
    "pairs": "a table with the columns of the run's data (.tsv, .csv, .jsonl), or two files as 'new.{en,de}'",
    "labelled": "a table with the columns of the run's data (.csv, .tsv, .jsonl)",
    "tagged": "a token-tag file that ends in .conll or as the run's data does",
    "questions": "a SQuAD file that ends in .json",
}


def evaluate_split(
    model: Model,
    recipe: Recipe,
    split: Literal["valid", "test"] = "valid",
    *,
    context: int | None = None,
    batch_size: int = 16,
) -> EvalResult:
    """Score a model on a held-out split of a recipe's data: as an `LMScore` for language models, a `TaskScore` else.

    `context` (default: that of the recipe's [eval] table) and `batch_size` are those of `headway.evaluate`. Other
    objectives take both from the recipe.
    """
    if (kind := record_kind(recipe)) is not None:
        return evaluate_records(model, recipe, load_records(recipe, split, kind), f"{recipe.data.path}, {split} split")
    documents = list(read_split(recipe.data, split))
    if not documents:
        raise DataError(f"{recipe.data.path} has no {split} split: set data.{split}_fraction when training")
    context = context or recipe.eval.context
    return evaluate_documents(model, recipe, documents, context=context, batch_size=batch_size)


def record_kind(recipe: Recipe) -> str | None:
    """The kind of records that a recipe trains on, such as "labelled"; None if it trains on running text."""
    return RECORD_KINDS.get(resolve_objective(recipe))


def evaluate_records(
    model: Model,
    recipe: Recipe,
    records: list[Record],
    name: str,
    *,
    on_batch: Callable[[], None] = lambda: None,
) -> EvalResult:
    """Score a model on records of the kind that it was trained on. `name` says in errors where they come from."""
    objective, tokenizer = resolve_objective(recipe), _require_tokenizer(model)
    labels = getattr(model.config, "labels", None) or None
    try:
        context = example_length(recipe, objective)
        options = dataset_options(recipe, objective)
        dataset, _ = record_dataset(objective, records, tokenizer, context, labels, **options)
    except DataError as error:
        raise DataError(f"{name} cannot be scored: {error}") from None
    loader = BatchLoader(dataset, recipe.eval.batch_size, shuffle=False)
    score = _score(model, objective, ValidationExamples(loader))
    report = report_on(model, recipe, records, on_batch=on_batch)
    if report is None or not isinstance(score, TaskScore):
        return score
    return replace(score, metrics=report.metrics, report=report)


def report_on(
    model: Model, recipe: Recipe, records: Sequence[Record], *, on_batch: Callable[[], None] = lambda: None
) -> TaskReport | None:
    """A model's predictions for records, compared with the truth; None if its objective has no such report. `on_batch`
    is called after each batch, and may raise."""
    objective = resolve_objective(recipe)
    return make_report(
        objective,
        model,
        records,
        context=example_length(recipe, objective),
        batch_size=recipe.eval.batch_size,
        check_stop=on_batch,
        **report_options(recipe, objective),
    )


def evaluate_documents(
    model: Model, recipe: Recipe | None, documents: list[str], *, context: int | None, batch_size: int
) -> EvalResult:
    """Score a model on running text: a masked LM on masked tokens, other models on the next token.

    A masked LM without a recipe is scored with 15 % of the tokens masked, drawn by a fixed seed.
    """
    if isinstance(model, MaskedLM):
        tokenizer = _require_tokenizer(model)
        if recipe is not None:
            return _score(model, "masked", mlm_validation_set(documents, tokenizer, recipe))
        return _score(
            model, "masked", masked_text(documents, tokenizer, context or model.config.context, batch_size=batch_size)
        )
    return evaluate(model, documents, context=context, batch_size=batch_size)


def _score(model: Model, objective: str, validation: ValidationSet) -> EvalResult:
    loss_module = LossModule(model, objective).eval()
    with torch.no_grad():
        score = validation.score(lambda batch: loss_module(batch.to(model.device)))
    check_infinite_loss(score.selection_loss, model)
    return score


def _require_tokenizer(model: Model) -> Tokenizer:
    if (tokenizer := tokenizer_of(model)) is None:
        raise InputError(
            "this model has no tokenizer, so it cannot score text: set model.tokenizer = headway.load_tokenizer(PATH)"
        )
    return tokenizer


# ── other data than the run's own ─────────────────────────────────────────────────────────────────────────────────


def default_recipe(model: Head) -> Recipe:
    """How to score a model directory, which has no recipe: texts and labels are the columns `text` and `label`, tags
    follow the scheme of the model's tags."""
    data: dict[str, Any] = {}
    if isinstance(model, Classifier):
        data = {"label": "label", "label_separator": ";" if model.config.multi_label else None}
    if isinstance(model, Tagger):
        data = {"tag_scheme": scheme_of(model.config.labels) or "any"}
    objective = HEAD_USES[type(model)].objective
    return Recipe(model=model.config, data=DataConfig(**data), train=TrainConfig(objective=objective))


def with_data_settings(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe with settings of its [data] table, such as "data.label=stars"."""
    table = {"data": {key: value for key, value in msgspec.to_builtins(recipe.data).items() if value is not None}}
    for setting in settings:
        key = setting.partition("=")[0].strip()
        if key.partition(".")[0] != "data" or key.removeprefix("data.") not in READING_SETTINGS:
            names = ", ".join(f"data.{name}" for name in READING_SETTINGS)
            raise ConfigError(f"{setting!r} is not about reading data: choose from {names}")
        apply_setting(table, setting)
    return recipe.replace(data=build(DataConfig, table["data"], where="data"))


def load_evaluation_records(recipe: Recipe, path: str) -> list[Record]:
    """The records at a path, which must be of the kind that the recipe trains on."""
    kind, source = record_kind(recipe), open_as_trained(path, recipe)
    if source.kind != kind:
        raise DataError(
            f"{path} holds {KIND_NAMES[source.kind]}, but this model is scored on {KIND_NAMES[str(kind)]}: give "
            f"{FILES_OF_A_KIND[str(kind)]}"
        )
    return list(source.records())


def load_evaluation_text(model: Model, path: str, recipe: Recipe | None = None) -> list[str]:
    """The documents at a path, read as the model was trained."""
    if recipe is not None:
        return list(open_as_trained(path, recipe).documents())
    is_lines = corpus(path) is None and is_read_by_line(model)
    return load_documents(path, format="lines" if is_lines else "auto")


def open_as_trained(path: str, recipe: Recipe) -> DataSource:
    """Open data with the [data] options of a recipe, as far as they apply to the format at hand."""
    data = recipe.data
    if corpus(path) is not None:
        return open_source(path)
    if "{" in path:  # parallel files
        return open_source(path, errors=data.errors)
    format = _format_as_trained(path, data)
    options: dict[str, Any] = {"errors": data.errors}
    is_registered = format in READER_KINDS
    if format in TABLES or is_registered:
        options |= {"text": data.text, "label": data.label, "pairs": data.pairs}
        options |= {"text_pair": data.text_pair, "label_separator": data.label_separator}
    if format == "text" or is_registered:
        options["separator"] = data.separator
    if format == "conll" or is_registered:
        options["tag_scheme"] = data.tag_scheme
    if format in TABLES and not is_registered:
        options |= _default_columns(record_kind(recipe), data)
    # "auto" also checks that the files of a folder have one format.
    return open_source(path, format=format if format == data.format else "auto", **options)


def _format_as_trained(path: str, data: DataConfig) -> str:
    """The recipe's own format if the path ends as the recipe's data does, else the format of the ending."""
    format = format_of(find_files(path)[0])
    own_paths = [*(data.mix or [data.path]), *filter(None, (data.valid_path, data.test_path))]
    return data.format if data.format != "auto" and format in map(format_of, own_paths) else format


def _default_columns(kind: str | None, data: DataConfig) -> dict[str, str]:
    """Columns for a recipe whose own data has none, such as a built-in task or parallel files."""
    if kind == "pairs" and data.pairs is None:
        return {"pairs": "1,2"}
    return {"label": "label"} if kind == "labelled" and data.label is None else {}


def split_evaluation_text(model: Model, text: str, recipe: Recipe | None = None) -> list[str]:
    """The documents of a text that is not in a file: its lines if `is_read_by_line`, else the text as one."""
    return text.splitlines() if is_read_by_line(model, recipe) else [text]


def is_read_by_line(model: Model, recipe: Recipe | None = None) -> bool:
    """Whether each line is a document of its own: the recipe of the run says so. Without a recipe, a tokenizer that
    drops whitespace tells that sentences were lines."""
    if recipe is None:
        return model.has_tokenizer and model.tokenizer.drops_whitespace
    return recipe.data.format == "lines"
