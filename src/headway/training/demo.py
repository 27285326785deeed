"""The demo: train a small GPT on the documentation inside Python, and compare it before and after, and with a trigram.

result = run_demo(seconds=20)
print(result.sample_before, result.sample_after)
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headway.config import GPTConfig, NGramConfig, load_recipe
from headway.data.splits import read_split
from headway.data.token_shards import OnPrepare
from headway.devices import parse_device
from headway.errors import ConfigError
from headway.evaluation.perplexity import evaluate
from headway.files import free_name
from headway.generation.generate import generate
from headway.models import GPT, Model, NGram
from headway.models.adapter import language_model
from headway.models.base import LanguageModel
from headway.tokenizers import Tokenizer
from headway.training.progress import OnMessage, OnStep
from headway.training.threads import cpu_threads
from headway.training.train import train

PROMPT = "The "
SAMPLE_TOKENS = 60


@dataclass(frozen=True)
class DemoResult:
    run: Path
    steps: int
    seconds: float
    n_params: int
    sample_before: str
    untrained_bits_per_byte: float  # of the GPT before training, on the validation split
    # What follows is measured at the end, and missing from an interrupted demo.
    sample_after: str = ""
    trigram_bits_per_byte: float = math.nan  # of a trigram fitted to the same tokens
    gpt_bits_per_byte: float = math.nan
    interrupted: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "run": str(self.run)}


def run_demo(
    *,
    out: str | Path | None = None,
    seconds: float | None = None,
    settings: Sequence[str] = (),
    on_step: OnStep = lambda progress: None,
    on_message: OnMessage = lambda line: None,
    on_prepare: OnPrepare = lambda progress: None,
) -> DemoResult:
    """Train the recipe `demo` into `out` (default: the next free `runs/demo`) for at most `seconds`.

    `settings` override the recipe ("train.steps=100"); the callbacks are those of `headway.train`.
    """
    time_limit = [] if seconds is None else [f"train.max_seconds={seconds}"]
    recipe = load_recipe("demo", [*settings, *time_limit])
    if not isinstance(recipe.model, GPTConfig):
        raise ConfigError("the demo trains a GPT; for other families: headway train RECIPE")
    validation_texts = list(read_split(recipe.data, "valid"))
    samples, bits_per_byte = [], []

    def sample_and_score(model: Model) -> None:
        samples.append(_sample(language_model(model)))
        bits_per_byte.append(evaluate(model, validation_texts, quiet=True).bits_per_byte)

    def on_model_ready(model: Model) -> None:
        sample_and_score(model)
        on_message("training    Ctrl-C stops early and saves the model")

    with cpu_threads(recipe.train.threads, parse_device(recipe.train.device), on_message=on_message):
        result = train(
            recipe,
            out=out or free_name(Path("runs") / "demo"),
            on_step=on_step,
            on_message=on_message,
            on_model_ready=on_model_ready,
            on_prepare=on_prepare,
        )
        model = result.model
        assert isinstance(model, GPT)
        demo = DemoResult(
            run=result.path,
            steps=result.steps,
            seconds=result.seconds,
            n_params=model.n_params,
            sample_before=samples[0],
            untrained_bits_per_byte=bits_per_byte[0],
            interrupted=result.interrupted,
        )
        if result.interrupted:
            return demo
        sample_and_score(model)
    trigram = _fit_trigram(model.tokenizer, read_split(recipe.data, "train"))
    trigram_score = evaluate(trigram, validation_texts, context=model.config.context, quiet=True)
    return replace(
        demo,
        sample_after=samples[1],
        trigram_bits_per_byte=trigram_score.bits_per_byte,
        gpt_bits_per_byte=bits_per_byte[1],
    )


def _sample(model: LanguageModel) -> str:
    tokens = generate(model, PROMPT, max_new_tokens=SAMPLE_TOKENS, temperature=0.7, seed=1)
    return PROMPT + "".join(token.text for token in tokens)


def _fit_trigram(tokenizer: Tokenizer, documents: Iterable[str]) -> NGram:
    trigram = NGram(NGramConfig(vocab_size=tokenizer.vocab_size, order=3))
    trigram.tokenizer = tokenizer
    trigram.fit(torch.tensor(tokenizer.encode_stream(documents)))
    return trigram
