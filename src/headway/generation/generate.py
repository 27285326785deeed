"""Generate text: prompts in, tokens with their text out, streamed as they are sampled.

This file wraps the decode loop (decode_loop.py; reference.py is its specification) with samplers, incremental
detokenization and the ways a text ends: an EOS token, a stop string, or its length (text_stream.py).
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from headway.errors import ConfigError, InputError
from headway.generation.beam_search import Hypothesis, beam_search
from headway.generation.contrastive import contrastive_search
from headway.generation.decode_loop import DecodeLoop
from headway.generation.inputs import check_row_count, prompt_lists
from headway.generation.limits import resolve_max_new_tokens
from headway.generation.sampling_params import PerPrompt, check_token_ids, eos_token_ids, given, make_pipeline
from headway.generation.text_stream import FinishReason, StopAwareText, StopConditions, TextStream, detokenize
from headway.generation.unknown_settings import refuse_unknown_settings
from headway.models.adapter import language_model
from headway.models.base import AnyLanguageModel, LanguageModel, Seq2SeqLM, eval_mode, tokenizer_of
from headway.nn.state import State
from headway.sampling import ORDER_PRESETS, History, PerRowPipeline, Pipeline, check_stop_strings
from headway.sampling.parameters import to_python
from headway.tokenizers import Tokenizer

DEFAULT_BATCH_ROWS = 32  # rows generated at a time


class SamplerTrace(NamedTuple):
    """What one sampler did to the distribution a token was drawn from."""

    sampler: str  # its name; the first is "model"
    n_alive: int  # tokens that can still be drawn
    n_removed: int  # tokens this sampler removed …
    removed: list[tuple[int, float]]  # … and the most likely of them, with their probabilities before it
    p: float  # the probability of the drawn token after this sampler
    best: list[tuple[int, float]]  # the most likely tokens after it


class Token(NamedTuple):
    """One generated token. `text` is what became certain with it: a character may take several tokens, and text that
    could become a stop string is held back."""

    row: int  # index of its prompt
    id: int
    text: str
    finish_reason: FinishReason | None = None  # on a row's last token: "stop" (EOS or a stop string) or "length"
    logprob: float | None = None  # with `logprobs`: ln p under the model itself, before any sampler
    top: Sequence[tuple[int, float]] = ()  # with `logprobs`: the most likely tokens and their ln p
    stop: str | None = None  # the stop string that ended the row
    sampler_trace: Sequence[SamplerTrace] = ()  # with `explain`


def generate(
    model: AnyLanguageModel,
    prompts: str | Sequence[str | Sequence[int]],
    *,
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
    logprobs: int | None = None,
    explain: bool = False,
    pipeline: Pipeline | PerRowPipeline | None = None,
    sampler_preset: str = "default",
    sampler_order: Sequence[str] | None = None,
    batch_size: int = DEFAULT_BATCH_ROWS,
    **samplers: Any,
) -> Iterator[Token]:
    """Continue one prompt or several with any language model, yielding tokens as they are sampled.

        for token in headway.generate(model, "Once upon a time", top_p=0.9, seed=1):
            print(token.text, end="", flush=True)

    Tokens of different prompts come interleaved: `token.row` is the index of the prompt, and `token.finish_reason` is
    set on the last token of a row. Wrong arguments raise at the call, before any token is sampled. `headway.complete`
    takes the same arguments and returns whole texts.

    **Prompts.** A text, or a list of texts or of token ids (`encode_prompts`). "" starts from the BOS token.

    **Samplers.** Set any of them by name: the common ones are in the signature, the others (`xtc_probability=0.5`, …)
    and your own also work; `headway generate --help-samplers` prints all. They run in the order of `sampler_preset`,
    or in your own `sampler_order`; or pass a whole `pipeline`. The temperature is 0.8 (`DEFAULT_TEMPERATURE`) unless
    you set it. Temperature 0 or `do_sample=False` is greedy decoding: bias, constraints and penalties, then the most
    likely token. A setting is one value for all prompts or a list with one value per prompt.

    **Seeds.** Row i draws from `seed + i`, or from `seed[i]`. So a text depends on its own seed and never on the rest
    of the batch. Without a `seed` every call draws a new one.

    **Length.** A row ends at EOS, at one of `stop_token_ids`, before the first of the `stop` strings (after it with
    `include_stop`), or after `max_new_tokens`. By default these are what is left of the training context, at most 256.

    **Inspection.** `logprobs=k` adds the ln p of each token and the k most likely ones (`token.logprob`, `token.top`);
    `explain=True` adds what every sampler did (`token.sampler_trace`).

    `batch_size` is the number of rows generated at a time; it changes speed and memory, not the texts.
    """
    refuse_unknown_settings(generate, samplers)
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
    _, tokens = start_generation(
        model,
        prompts,
        max_new_tokens=max_new_tokens,
        settings=settings,
        seed=seed,
        do_sample=do_sample,
        stop=stop,
        stop_token_ids=stop_token_ids,
        include_stop=include_stop,
        logprobs=logprobs,
        explain=explain,
        pipeline=pipeline,
        sampler_preset=sampler_preset,
        sampler_order=sampler_order,
        batch_size=batch_size,
    )
    return tokens


def start_generation(
    model: AnyLanguageModel,
    prompts: str | Sequence[str | Sequence[int]],
    *,
    n: int = 1,
    max_new_tokens: int | None,
    settings: Mapping[str, Any],
    seed: PerPrompt[int] | None,
    do_sample: bool,
    stop: Iterable[str],
    stop_token_ids: Iterable[int],
    include_stop: bool,
    logprobs: int | None,
    explain: bool,
    pipeline: Pipeline | PerRowPipeline | None,
    sampler_preset: str,
    sampler_order: Sequence[str] | None,
    batch_size: int,
) -> tuple[list["RowRequest"], Iterator[Token]]:
    """Check all arguments; return the rows, `n` per prompt in the order of the prompts, and the stream of tokens."""
    model, tokenizer = require_tokenizer(model)
    prompt_ids = encode_prompts(model, prompts)
    for name, value in (("batch_size", batch_size), ("n", n)):
        if value < 1:
            raise ConfigError(f"{name}={value} must be at least 1")
    if logprobs is not None and not 0 <= logprobs <= tokenizer.vocab_size:
        raise ConfigError(f"logprobs={logprobs} must be from 0 to the size of the vocabulary, {tokenizer.vocab_size}")
    eos_ids = eos_token_ids(model, stop_token_ids)
    if pipeline is None:
        pipe = make_pipeline(tokenizer, eos_ids, sampler_preset, sampler_order, do_sample=do_sample, **settings)
    elif settings or sampler_order is not None:
        raise ConfigError("both a pipeline and sampler settings were given: put the settings into the pipeline")
    else:
        pipe = pipeline if do_sample else pipeline.greedy()
    check_row_count(pipe, len(prompt_ids), "prompt")
    request = GenerationRequest(
        model=model,
        tokenizer=tokenizer,
        eos_ids=eos_ids,
        stop_strings=check_stop_strings(stop),
        include_stop=include_stop,
        logprobs=logprobs,
        explain=explain,
    )
    prompt_of_row = [i for i in range(len(prompt_ids)) for _ in range(n)]
    seeds = _row_seeds(seed, len(prompt_ids), n)
    limits = [resolve_max_new_tokens(model, len(ids), max_new_tokens) for ids in prompt_ids]
    rows = [RowRequest(prompt_ids[i], limits[i], row_seed) for i, row_seed in zip(prompt_of_row, seeds, strict=True)]
    return rows, _generate_batches(request, rows, pipe if n == 1 else pipe.select(prompt_of_row), batch_size)


def encode_prompts(model: AnyLanguageModel, prompts: str | Sequence[str | Sequence[int]]) -> list[list[int]]:
    """The token ids that `generate` and `search` continue. Both accept the result in place of the texts, so you can
    look at the lengths of prompts (limits.py) without encoding them twice."""
    _, tokenizer = require_tokenizer(model)
    rows = [prompts] if isinstance(prompts, str) else list(prompts)
    if not rows:
        raise InputError("no prompt to continue: give at least one; it may be empty")
    encoded = []
    for row in rows:
        if isinstance(row, str):
            encoded.append(tokenizer.encode_prompt(row))
        else:
            (ids,) = prompt_lists(row)
            check_token_ids(ids, tokenizer.vocab_size)
            encoded.append(ids)
    return encoded


def require_tokenizer(model: AnyLanguageModel) -> tuple[LanguageModel, Tokenizer]:
    """The model, if it is a language model, and its tokenizer."""
    model = language_model(model)
    tokenizer = tokenizer_of(model)
    if tokenizer is None:
        raise InputError(
            "this model has no tokenizer, so it only takes token ids: use headway.generation.reference.decode or "
            "headway.generation.beam_search.beam_search"
        )
    return model, tokenizer


def _row_seeds(seed: PerPrompt[int] | None, n_prompts: int, n: int) -> list[int]:
    """One seed per row, `n` rows per prompt, from one number, one number per prompt, or nothing."""
    base = secrets.randbits(32) if seed is None else to_python(seed)
    seeds = [base + i * n for i in range(n_prompts)] if isinstance(base, int) else [int(value) for value in base]
    if len(seeds) != n_prompts:
        raise ConfigError(f"{len(seeds)} seeds for {n_prompts} prompts: give one number, or one per prompt")
    return [first + j for first in seeds for j in range(n)]


# ── tokens of a batch ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class GenerationRequest:
    """What all rows of a call share."""

    model: LanguageModel | Seq2SeqLM
    tokenizer: Tokenizer
    eos_ids: frozenset[int]
    stop_strings: Sequence[str] = ()
    include_stop: bool = False
    logprobs: int | None = None
    explain: bool = False


class RowRequest(NamedTuple):
    """What each row has of its own."""

    prompt: list[int]
    max_new_tokens: int
    seed: int


def _generate_batches(
    request: GenerationRequest, rows: list[RowRequest], pipe: Pipeline | PerRowPipeline, batch_size: int
) -> Iterator[Token]:
    """One batch after another; if there are several, rows of similar length share a batch to keep padding low."""
    order = list(range(len(rows)))
    if len(rows) > batch_size:
        order.sort(key=lambda i: len(rows[i].prompt))
    with eval_mode(request.model):
        for start in range(0, len(order), batch_size):
            indices = order[start : start + batch_size]
            for token in stream_tokens(request, [rows[i] for i in indices], pipe.select(indices)):
                yield token._replace(row=indices[token.row])


def stream_tokens(
    request: GenerationRequest,
    rows: Sequence[RowRequest],
    pipe: Pipeline | PerRowPipeline,
    state: State | None = None,
) -> Iterator[Token]:
    """Generate all rows in one batch. `state` is that of an encoder-decoder which has encoded their sources."""
    limits = [row.max_new_tokens for row in rows]
    loop = DecodeLoop(
        request.model,
        [row.prompt for row in rows],
        pipe,
        max(limits),
        seeds=[row.seed for row in rows],
        vocab_size=request.tokenizer.vocab_size,
        state=state,
        use_cuda_graph=False if request.explain else None,
        compact_at_once=len(set(limits)) > 1,
        lookahead=request.logprobs is None,
    )
    texts = [_new_text(request, row, _min_new_tokens(pipe, i)) for i, row in enumerate(rows)]
    while loop.active:
        for row, slot, id in loop.step():
            update = texts[row].push(id)
            logprob, top = _logprobs(loop.logits[slot], id, request.logprobs)
            steps = _explain(loop, slot, id) if request.explain else ()
            if update.finish_reason:
                loop.finish(row)
            yield Token(row, id, update.text, update.finish_reason, logprob, top, update.stop, steps)


def _new_text(request: GenerationRequest, row: RowRequest, min_new_tokens: int) -> StopAwareText:
    conditions = StopConditions(
        row.max_new_tokens, request.eos_ids, request.stop_strings, request.include_stop, min_new_tokens
    )
    return StopAwareText(TextStream(request.tokenizer, row.prompt[-1]), conditions)


def _min_new_tokens(pipe: Pipeline | PerRowPipeline, row: int) -> int:
    """The row's `min_new_tokens`, which also applies to stop strings."""
    row_pipe = pipe.select([row])
    calls = [call for call in getattr(row_pipe, "samplers", []) if call.name == "min_new_tokens" and not call.is_off]
    return calls[0].row(0)["min_new"] if calls else 0


# ── what is reported about a token ────────────────────────────────────────────────────────────────────────────────


def _logprobs(logits: Tensor, id: int, n_top: int | None) -> tuple[float | None, Sequence[tuple[int, float]]]:
    """ln p of the token, and the `n_top` most likely tokens with theirs, if they were requested."""
    if n_top is None:
        return None, ()
    log_p = logits.double().log_softmax(dim=-1)
    best = log_p.topk(n_top)
    return log_p[id].item(), list(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def _explain(loop: DecodeLoop, slot: int, id: int) -> list[SamplerTrace]:
    """The distribution after each sampler, computed again with the history and state from before the draw."""
    index = torch.tensor([slot], device=loop.device)
    history = loop.history.reorder(index)
    history = History(history.ids, history.lengths - 1, history.n_prompt)
    pipe = loop.pipe.select([slot])
    assert isinstance(pipe, Pipeline)
    sampler_state = loop.previous_sampler_state.reorder(index)
    traces: list[SamplerTrace] = []
    previous_logits = None
    for name, rows in pipe.explain(loop.logits[index], history=history, state=sampler_state):
        traces.append(_trace_sampler(name, rows[0], id, previous_logits))
        previous_logits = rows[0]
    return traces


def _trace_sampler(name: str, logits: Tensor, id: int, previous_logits: Tensor | None, n_best: int = 5) -> SamplerTrace:
    """Compare the logits (V,) after a sampler with those before it."""
    p, is_alive = logits.double().softmax(dim=-1), logits.isfinite()
    n_removed, removed = 0, torch.zeros_like(p)
    if previous_logits is not None:
        n_removed = int((previous_logits.isfinite() & ~is_alive).sum())
        removed = previous_logits.double().softmax(dim=-1).masked_fill(is_alive, 0.0)
    return SamplerTrace(
        sampler=name,
        n_alive=int(is_alive.sum()),
        n_removed=n_removed,
        removed=_most_likely(removed, min(n_best, n_removed)),
        p=p[id].item(),
        best=_most_likely(p, n_best),
    )


def _most_likely(p: Tensor, n: int) -> list[tuple[int, float]]:
    best = p.topk(min(n, len(p)))
    return [(id, value) for id, value in zip(best.indices.tolist(), best.values.tolist(), strict=True) if value > 0]


# ── search ────────────────────────────────────────────────────────────────────────────────────────────────────────


def search(
    model: AnyLanguageModel,
    prompts: str | Sequence[str | Sequence[int]],
    *,
    max_new_tokens: int | None = None,
    num_beams: int | None = None,
    n_best: int | None = None,
    length_penalty: float | None = None,
    length_norm: str | None = None,
    early_stopping: bool | Literal["never"] | None = None,
    alpha: float | None = None,
    k: int | None = None,
    stop_token_ids: Sequence[int] = (),
    repetition_penalty: PerPrompt[float] | None = None,
    no_repeat_ngram: PerPrompt[int] | None = None,
    min_new_tokens: PerPrompt[int] | None = None,
    logit_bias: PerPrompt[Mapping[int, float]] | None = None,
    on_pipeline: Callable[[Pipeline | PerRowPipeline], None] = lambda pipe: None,
    **samplers: Any,
) -> list[list[tuple[str, Hypothesis]]]:
    """Continue prompts by beam search (`num_beams`) or contrastive search (`alpha`): their texts, best first.

        [[(text, hypothesis)]] = search(model, "Once upon", num_beams=4)

    `n_best`, `length_penalty`, `length_norm` and `early_stopping` are options of `beam_search`, `k` of
    `contrastive_search`. Bias, constraints and penalties apply to both, by the names that `generate` has for them.
    `on_pipeline` is called with the sampler pipeline, whose `.notes` and `.warnings` may be shown to the user.
    """
    refuse_unknown_settings(search, samplers)
    model, tokenizer = require_tokenizer(model)
    prompt_ids = encode_prompts(model, prompts)
    if (num_beams is None) == (alpha is None):
        raise ConfigError("search by num_beams=… (beam search) or by alpha=… (contrastive search): give one of them")
    beam_options = given(
        n_best=n_best, length_penalty=length_penalty, length_norm=length_norm, early_stopping=early_stopping
    )
    contrastive_options = given(k=k)
    for name, value in (contrastive_options if alpha is None else beam_options).items():
        search_name = "contrastive search (alpha=…)" if alpha is None else "beam search (num_beams=…)"
        raise ConfigError(f"{name}={value!r} is an option of {search_name}: leave it out")
    eos_ids = eos_token_ids(model, stop_token_ids)
    settings = given(
        repetition_penalty=repetition_penalty,
        no_repeat_ngram=no_repeat_ngram,
        min_new_tokens=min_new_tokens,
        logit_bias=logit_bias,
        **samplers,
    )
    sampler_order = [name for name in ORDER_PRESETS["default"] if name != "temperature"]
    pipeline = make_pipeline(tokenizer, eos_ids, sampler_order=sampler_order, **settings)
    on_pipeline(pipeline)
    options: dict[str, Any] = {
        "max_new_tokens": resolve_max_new_tokens(model, max(map(len, prompt_ids)), max_new_tokens),
        "eos_ids": sorted(eos_ids),
        "pipeline": pipeline,
        "vocab_size": tokenizer.vocab_size,
    }
    if num_beams is not None:
        hypotheses = beam_search(model, prompt_ids, num_beams=num_beams, **beam_options, **options)
    else:
        contrastive_options["alpha"] = alpha
        hypotheses = [[h] for h in contrastive_search(model, prompt_ids, **contrastive_options, **options)]
    return [
        [(detokenize(tokenizer, h.tokens_without_eos, previous_id=prompt[-1]), h) for h in row]
        for prompt, row in zip(prompt_ids, hypotheses, strict=True)
    ]
