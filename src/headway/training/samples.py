"""A sample at each evaluation, to watch a language model learn (eval.sample_tokens). `headway.open_run` reads them."""

from headway.evaluation.perplexity import ValidationText
from headway.generation.complete import complete
from headway.models.base import LanguageModel, Model
from headway.training.task import Task

PROMPT_TOKENS = 8


def write_sample(model: Model, task: Task) -> str:
    """The first tokens of the validation text, continued by the model. The seed is always the same, so that samples
    differ by what the model has learned; empty for a model that is not trained to continue text."""
    if not isinstance(task.validation, ValidationText) or not isinstance(model, LanguageModel):
        return ""
    prompt = task.validation.stream[:PROMPT_TOKENS].tolist()
    (completion,) = complete(model, [prompt], max_new_tokens=task.recipe.eval.sample_tokens, seed=0)
    return task.tokenizer.decode(prompt) + completion.text
