"""Datasets of records: pairs, labelled texts, tagged words and questions, one kind per objective."""

from collections.abc import Iterator
from typing import Any, Literal

from headway.config import Recipe
from headway.data.datasets.classification import ClassificationDataset
from headway.data.datasets.seq2seq import Seq2SeqDataset
from headway.data.datasets.spans import SpanDataset
from headway.data.datasets.tagging import TaggingDataset
from headway.data.loader import BatchLoader
from headway.data.records import KIND_NAMES, Pair, Record
from headway.data.splits import SplitName, sources_of, split_fractions, split_records, split_source
from headway.errors import ConfigError, DataError
from headway.evaluation.tasks import ValidationExamples
from headway.tokenizers import Tokenizer
from headway.training.text_datasets import context_of

RECORD_KINDS = {"pairs": "pairs", "classify": "labelled", "tag": "tagged", "span": "questions"}  # by objective
HOW_TO_READ = {  # settings that make a source yield records of a kind
    "pairs": "name the columns with data.pairs=SOURCE,TARGET or the other file with data.target_path",
    "labelled": "name the columns with data.text and data.label, by name or by number from 1",
    "tagged": "give a token-tag file, and set data.format=conll if its name does not end in .conll",
    "questions": "give a SQuAD JSON file, and set data.format=squad if its name does not say so",
}


def example_length(recipe: Recipe, objective: str) -> int:
    """Longest example, or side of a pair, in tokens: train.seq_len or the model's context."""
    context, seq_len = context_of(recipe), recipe.train.seq_len
    if objective == "pairs" or seq_len is None:
        return context
    if seq_len > context:
        raise ConfigError(
            f"train.seq_len={seq_len} exceeds model.context={context}: set it to {context} or less, or leave it out",
            setting="train.seq_len",
        )
    return seq_len


def iter_records(recipe: Recipe, split: SplitName, kind: str) -> Iterator[Record]:
    """The records of one split of a recipe's data, which must be of this kind."""
    source = split_source(recipe.data, split)
    if source is not None:
        sources, fractions = [source], None
    else:
        sources = [source for source, _ in sources_of(recipe.data).values()]
        fractions = split_fractions(recipe.data)
    for source in sources:
        if source.kind != kind:
            raise DataError(
                f"{source.name} holds {KIND_NAMES[source.kind]}, but this objective trains on {KIND_NAMES[kind]}: "
                f"{HOW_TO_READ[kind]}; see docs/data.md"
            )
        yield from source.records() if fractions is None else split_records(source, fractions, split)


def load_records(recipe: Recipe, split: Literal["valid", "test"], kind: str) -> list[Record]:
    """The records of a held-out split, which must not be empty."""
    records = list(iter_records(recipe, split, kind))
    if not records:
        raise DataError(f"{recipe.data.path} has no {split} split: set data.{split}_fraction when training")
    return records


def iter_pairs(recipe: Recipe, split: SplitName) -> Iterator[Pair]:
    """The pairs of one split of a recipe's data."""
    return (record for record in iter_records(recipe, split, "pairs") if isinstance(record, Pair))


def load_pairs(recipe: Recipe, split: Literal["valid", "test"]) -> list[Pair]:
    """The pairs of a held-out split, which must not be empty."""
    return [record for record in load_records(recipe, split, "pairs") if isinstance(record, Pair)]


def dataset_options(recipe: Recipe, objective: str) -> dict[str, Any]:
    """Options of an objective's dataset beside the context: keyword arguments of `record_dataset`."""
    if objective == "classify":
        n_segments = getattr(recipe.model, "n_segments", 0)
        return {"multi_label": recipe.data.label_separator is not None, "has_segments": n_segments > 1}
    return report_options(recipe, objective)


def report_options(recipe: Recipe, objective: str) -> dict[str, Any]:
    """Options of an objective's report beside the context: keyword arguments of `make_report`."""
    return {"overlap": recipe.data.window_overlap} if objective == "span" else {}


def record_dataset(
    objective: str,
    records: list[Any],
    tokenizer: Tokenizer,
    context: int,
    labels: list[str] | None = None,
    bpe_dropout: float = 0.0,
    **options: Any,
) -> tuple[Any, list[str] | None]:
    """The dataset of an objective, and its label names if it has labels. Pass the labels of training for validation,
    and the `dataset_options` of the recipe."""
    match objective:
        case "pairs":
            return Seq2SeqDataset(records, tokenizer, context=context, dropout=bpe_dropout), None
        case "classify":
            texts = ClassificationDataset(records, tokenizer, context, labels, **options)
            return texts, _checked_labels(texts.labels, min_labels=1 if options.get("multi_label") else 2)
        case "tag":
            words = TaggingDataset(records, tokenizer, context, labels)
            return words, _checked_labels(words.tags)
        case _:
            return SpanDataset(records, tokenizer, context, **options), None


def _checked_labels(labels: list[str], min_labels: int = 2) -> list[str]:
    if not labels:
        raise DataError("no example has a label, so there is nothing to learn: check data.label")
    if len(labels) < min_labels:
        raise DataError(
            f"{labels[0]!r} is the only label, so every prediction is right and the loss is 0: give examples of two "
            f"labels or more"
        )
    return labels


def record_validation_set(
    records: list[Record],
    objective: str,
    tokenizer: Tokenizer,
    recipe: Recipe,
    context: int,
    labels: list[str] | None,
) -> ValidationExamples:
    try:
        dataset, _ = record_dataset(
            objective, records, tokenizer, context, labels, **dataset_options(recipe, objective)
        )
    except DataError as error:
        raise DataError(f"the validation set of {recipe.data.path} cannot be scored: {error}") from None
    return ValidationExamples(BatchLoader(dataset, recipe.eval.batch_size, shuffle=False))
