"""Complete prompts: `generate` without the stream, one `Completion` per text."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.errors import count
from headway.generation.generate import DEFAULT_BATCH_ROWS, RowRequest, Token, require_tokenizer, start_generation
from headway.generation.sampling_params import PerPrompt, given
from headway.generation.text_stream import FinishReason
from headway.generation.unknown_settings import refuse_unknown_settings
from headway.models.base import AnyLanguageModel
from headway.sampling import PerRowPipeline, Pipeline

REPR_CHARACTERS = 30  # of a text


@dataclass(frozen=True, repr=False)
class Completion:
    """One continuation of a prompt."""

    prompt: str
    text: str  # without the prompt and EOS, and without the stop string unless `include_stop`
    tokens: list[int]  # EOS included
    token_texts: list[str]  # what each token added to the text; joined, they are the text
    logprobs: list[float]  # ln p of each token under the model itself, before any sampler
    finish_reason: FinishReason  # "stop" (EOS or a stop string) or "length"
    index: int  # of the prompt
    sample: int  # of the prompt's samples, from 0
    seed: int  # repeats this text
    prompt_tokens: list[int]
    stop: str | None = None  # the stop string that ended it

    @property
    def logprob(self) -> float:
        """ln p of the whole continuation."""
        return sum(self.logprobs)

    def __repr__(self) -> str:
        is_long = len(self.text) > REPR_CHARACTERS
        text = f"{self.text[:REPR_CHARACTERS].rstrip()} …" if is_long else self.text
        return f"Completion({text!r}, {count(len(self.tokens), 'token')}, {self.finish_reason})"


def complete(
    model: AnyLanguageModel,
    prompts: str | Sequence[str | Sequence[int]],
    *,
    n: int = 1,
    max_new_tokens: int | None = None,
    temperature: PerPrompt[float] | None = None,
    top_k: PerPrompt[int] | None = None,
    top_p: PerPrompt[float] | None = None,
    min_p: PerPrompt[float] | None = None,
    typical: PerPrompt[float] | None = None,
    repetition_penalty: PerPrompt[float] | None = None,
    frequency_penalty: PerPrompt[float] | None = None,
    presence_penalty: PerPrompt[float] | None = None,
    dry_multiplier: PerPrompt[float] | None = None,
    no_repeat_ngram: PerPrompt[int] | None = None,
    min_new_tokens: PerPrompt[int] | None = None,
    logit_bias: PerPrompt[Mapping[int, float]] | None = None,
    seed: PerPrompt[int] | None = None,
    do_sample: bool = True,
    stop: Iterable[str] = (),
    stop_token_ids: Iterable[int] = (),
    include_stop: bool = False,
    pipeline: Pipeline | PerRowPipeline | None = None,
    sampler_preset: str = "default",
    sampler_order: Sequence[str] | None = None,
    batch_size: int = DEFAULT_BATCH_ROWS,
    **samplers: Any,
) -> list[Completion]:
    """Continue one prompt or several with any language model, `n` times each.

        for completion in headway.complete(model, ["The statement", "A list"], n=2, top_p=0.9, seed=1):
            print(completion.text, completion.finish_reason, completion.logprob)

    The completions come in the order of the prompts, the samples of a prompt one after the other. All arguments but
    `n` are those of `headway.generate`, which streams: prompts, samplers, seeds and length are explained there.
    Sample j of prompt i draws from `seed + i · n + j`, or from `seed[i] + j`, so a text does not depend on the rest of
    the call: with `seed=completion.seed` and its prompt alone it comes again.
    """
    refuse_unknown_settings(complete, samplers)
    settings = given(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical=typical,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        dry_multiplier=dry_multiplier,
        no_repeat_ngram=no_repeat_ngram,
        min_new_tokens=min_new_tokens,
        logit_bias=logit_bias,
        **samplers,
    )
    rows, tokens = start_generation(
        model,
        prompts,
        n=n,
        max_new_tokens=max_new_tokens,
        settings=settings,
        seed=seed,
        do_sample=do_sample,
        stop=stop,
        stop_token_ids=stop_token_ids,
        include_stop=include_stop,
        logprobs=0,
        explain=False,
        pipeline=pipeline,
        sampler_preset=sampler_preset,
        sampler_order=sampler_order,
        batch_size=batch_size,
    )
    _, tokenizer = require_tokenizer(model)
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    texts = [text if isinstance(text, str) else tokenizer.decode(text) for text in texts]
    tokens_of_row: list[list[Token]] = [[] for _ in rows]
    for token in tokens:
        tokens_of_row[token.row].append(token)
    return [_completion(texts[i // n], row, tokens_of_row[i], index=i // n, sample=i % n) for i, row in enumerate(rows)]


def _completion(prompt: str, row: RowRequest, tokens: list[Token], *, index: int, sample: int) -> Completion:
    token_texts = [token.text for token in tokens]
    finish_reason = tokens[-1].finish_reason
    assert finish_reason is not None  # the stream sets it on a row's last token
    return Completion(
        prompt=prompt,
        text="".join(token_texts),
        tokens=[token.id for token in tokens],
        token_texts=token_texts,
        logprobs=[token.logprob for token in tokens if token.logprob is not None],
        finish_reason=finish_reason,
        index=index,
        sample=sample,
        seed=row.seed,
        prompt_tokens=row.prompt,
        stop=tokens[-1].stop,
    )
