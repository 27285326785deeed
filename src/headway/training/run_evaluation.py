"""Evaluate the model of a run on a held-out split of the run's own data, or on another text read in the same way.

model, recipe = headway.load("runs/demo"), headway.load_recipe("runs/demo")
score = evaluate_split(model, recipe, "valid")
"""

from typing import Literal

import torch

from headway.config import Recipe
from headway.data.builtin import corpus
from headway.data.splits import load_documents, read_split
from headway.errors import DataError, InputError
from headway.evaluation.perplexity import evaluate
from headway.evaluation.validation import EvalResult
from headway.models import Model
from headway.models.base import tokenizer_of
from headway.training.objectives import LossModule
from headway.training.record_datasets import RECORD_KINDS, load_records, record_validation_set
from headway.training.task import resolve_objective
from headway.training.text_datasets import context_of, mlm_validation_set


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
    objective, tokenizer = resolve_objective(recipe), tokenizer_of(model)
    if objective == "causal":
        return evaluate(model, _documents(recipe, split), context=context or recipe.eval.context, batch_size=batch_size)
    if tokenizer is None:
        raise InputError(
            "this model has no tokenizer, so it cannot score text: set model.tokenizer = headway.load_tokenizer(PATH)"
        )
    if objective == "masked":
        validation = mlm_validation_set(_documents(recipe, split), tokenizer, recipe)
    else:
        records = load_records(recipe, split, RECORD_KINDS[objective])
        labels = getattr(model.config, "labels", None) or None
        validation = record_validation_set(records, objective, tokenizer, recipe, context_of(recipe), labels)
    loss_module = LossModule(model, objective).eval()
    with torch.no_grad():
        return validation.score(lambda batch: loss_module(batch.to(model.device)))


def _documents(recipe: Recipe, split: Literal["valid", "test"]) -> list[str]:
    documents = list(read_split(recipe.data, split))
    if not documents:
        raise DataError(f"{recipe.data.path} has no {split} split: set data.{split}_fraction when training")
    return documents


def load_evaluation_text(model: Model, path: str, recipe: Recipe | None = None) -> list[str]:
    """The documents at a path, read as the model was trained: line by line if `is_read_by_line`."""
    if corpus(path) is not None:
        return load_documents(path)
    return load_documents(path, format="lines" if is_read_by_line(model, recipe) else "auto")


def split_evaluation_text(model: Model, text: str, recipe: Recipe | None = None) -> list[str]:
    """The documents of a text that is not in a file: its lines if `is_read_by_line`, else the text as one."""
    return text.splitlines() if is_read_by_line(model, recipe) else [text]


def is_read_by_line(model: Model, recipe: Recipe | None = None) -> bool:
    """Whether each line is a document of its own: the recipe of the run says so. Without a recipe, a tokenizer that
    drops whitespace tells that sentences were lines."""
    if recipe is None:
        return model.has_tokenizer and model.tokenizer.drops_whitespace
    return recipe.data.format == "lines"
