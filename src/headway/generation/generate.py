"""Generate text: prompts in, tokens with their text out, streamed as they are sampled.

This file wraps the decode loop (decode_loop.py; reference.py is its specification) with samplers, incremental
detokenization and the ways a text ends: an EOS token, a stop string, or its length (text_stream.py).
"""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.errors import ConfigError, InputError
from headway.generation.beam_search import Hypothesis, beam_search
from headway.generation.contrastive import contrastive_search
from headway.generation.decode_loop import DecodeLoop
from headway.generation.inputs import check_row_count, prompt_lists
from headway.generation.limits import resolve_max_new_tokens
from headway.generation.sampling_params import check_token_ids, eos_token_ids, make_pipeline
from headway.generation.text_stream import StopAwareText, StopConditions, TextStream, detokenize
from headway.models.base import LanguageModel, Model, Seq2SeqLM, eval_mode, language_model
from headway.nn.state import State
from headway.sampling import ORDER_PRESETS, History, PerRowPipeline, Pipeline, check_stop_strings
from headway.sampling.parameters import to_python
from headway.tokenizers import Tokenizer

DEFAULT_BATCH_ROWS = 32  # rows generated at a time
BEAM_SEARCH_OPTIONS = ("n_best", "length_penalty", "length_norm", "early_stopping")
CONTRASTIVE_OPTIONS = ("k",)


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
    finish_reason: str | None = None  # on a row's last token: "stop" (EOS or a stop string) or "length"
    logprob: float | None = None  # ln p under the model itself, before any sampler
    top: list[tuple[int, float]] | None = None  # the most likely tokens and their ln p
    stop: str | None = None  # the stop string that ended the row
    sampler_trace: list[SamplerTrace] | None = None  # with `explain`


def generate(
    model: Model | LanguageModel,
    prompts: str | Sequence[str | Sequence[int]],
    *,
    max_new_tokens: int | None = None,
    temperature: float | Sequence[float] | None = None,
    seed: int | Sequence[int] | None = None,
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
    **settings: Any,
) -> Iterator[Token]:
    """Continue one prompt or several with any language model, yielding tokens as they are sampled.

        for token in headway.generate(model, "Once upon a time", top_p=0.9, seed=1):
            print(token.text, end="", flush=True)

    Tokens of different prompts come interleaved: `token.row` is the index of the prompt, and `token.finish_reason` is
    set on the last token of a row. Wrong arguments raise at the call, before any token is sampled.

    **Prompts.** A text, or a list of texts or of token ids (`encode_prompts`). "" starts from the BOS token.

    **Samplers.** Set any of them by name: `temperature=0.7`, `top_k=40`, `min_p=0.05`, `dry_multiplier=0.8`, …; the
    command `headway generate --list-samplers` prints all. They run in the order of `sampler_preset`, or in your own
    `sampler_order`; or pass a whole `pipeline`. The temperature is 0.8 (`DEFAULT_TEMPERATURE`) unless you set
    it. Temperature 0 or `do_sample=False` is greedy decoding: bias, constraints and penalties, then the most
    likely token. A setting is one value for all prompts or a list with one value per prompt.

    **Seeds.** Row i draws from `seed + i`, or from `seed[i]`. So a text depends on its own seed and never on the rest
    of the batch. Without a `seed` every call draws a new one.

    **Length.** A row ends at EOS, at one of `stop_token_ids`, before the first of the `stop` strings (after it with
    `include_stop`), or after `max_new_tokens`. By default these are what is left of the training context, at most 256.

    **Inspection.** `logprobs=k` adds the ln p of each token and the k most likely ones (`token.logprob`, `token.top`);
    `explain=True` adds what every sampler did (`token.sampler_trace`).

    `batch_size` is the number of rows generated at a time; it changes speed and memory, not the texts.
    """
    model, tokenizer = _require_tokenizer(model)
    prompt_ids = encode_prompts(model, prompts)
    if batch_size < 1:
        raise ConfigError(f"batch_size={batch_size} must be at least 1")
    if logprobs is not None and not 0 <= logprobs <= tokenizer.vocab_size:
        raise ConfigError(f"logprobs={logprobs} must be from 0 to the size of the vocabulary, {tokenizer.vocab_size}")
    eos_ids = eos_token_ids(model, stop_token_ids)
    if pipeline is None:
        pipe = make_pipeline(
            tokenizer, eos_ids, sampler_preset, sampler_order, temperature=temperature, do_sample=do_sample, **settings
        )
    elif settings or temperature is not None or sampler_order is not None:
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
    rows = [
        RowRequest(ids, resolve_max_new_tokens(model, len(ids), max_new_tokens), row_seed)
        for ids, row_seed in zip(prompt_ids, _row_seeds(seed, len(prompt_ids)), strict=True)
    ]
    return _generate_batches(request, rows, pipe, batch_size)


def encode_prompts(model: Model | LanguageModel, prompts: str | Sequence[str | Sequence[int]]) -> list[list[int]]:
    """The token ids that `generate` and `search` continue. Both accept the result in place of the texts, so you can
    look at the lengths of prompts (limits.py) without encoding them twice."""
    _, tokenizer = _require_tokenizer(model)
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


def _require_tokenizer(model: Model | LanguageModel) -> tuple[LanguageModel, Tokenizer]:
    """The model, if it is a language model, and its tokenizer."""
    model = language_model(model)
    if model.tokenizer is None:
        raise InputError(
            "this model has no tokenizer, so it only takes token ids: use headway.generation.reference.decode or "
            "headway.generation.beam_search.beam_search"
        )
    return model, model.tokenizer


def _row_seeds(seed: int | Sequence[int] | None, n_rows: int) -> list[int]:
    """One seed per row, from one number, a list or nothing."""
    base = secrets.randbits(32) if seed is None else to_python(seed)
    seeds = [base + i for i in range(n_rows)] if isinstance(base, int) else [int(value) for value in base]
    if len(seeds) != n_rows:
        raise ConfigError(f"{len(seeds)} seeds for {n_rows} prompts: give one number, or one per prompt")
    return seeds


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
    )
    texts = [_new_text(request, row, _min_new_tokens(pipe, i)) for i, row in enumerate(rows)]
    while loop.active:
        for row, slot, id in loop.step():
            update = texts[row].push(id)
            logprob, top = _logprobs(loop.logits[slot], id, request.logprobs)
            steps = _explain(loop, slot, id) if request.explain else None
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


def _logprobs(logits: Tensor, id: int, n_top: int | None) -> tuple[float | None, list[tuple[int, float]] | None]:
    """ln p of the token, and the `n_top` most likely tokens with theirs; None if they were not requested."""
    if n_top is None:
        return None, None
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
    model: Model | LanguageModel,
    prompts: str | Sequence[str | Sequence[int]],
    *,
    max_new_tokens: int | None = None,
    num_beams: int | None = None,
    alpha: float | None = None,
    stop_token_ids: Sequence[int] = (),
    **options: Any,
) -> list[list[tuple[str, Hypothesis]]]:
    """Continue prompts by beam search (`num_beams`) or contrastive search (`alpha`): their texts, best first.

        [[(text, hypothesis)]] = search(model, "Once upon", num_beams=4)

    Other options are those of `beam_search` or `contrastive_search`, and constraints and penalties by their flat names
    (`no_repeat_ngram=3`).
    """
    model, tokenizer = _require_tokenizer(model)
    prompt_ids = encode_prompts(model, prompts)
    if (num_beams is None) == (alpha is None):
        raise ConfigError("search by num_beams=… (beam search) or by alpha=… (contrastive search): give one of them")
    eos_ids = eos_token_ids(model, stop_token_ids)
    search_options = BEAM_SEARCH_OPTIONS if alpha is None else CONTRASTIVE_OPTIONS
    settings = {name: options.pop(name) for name in list(options) if name not in search_options}
    sampler_order = [name for name in ORDER_PRESETS["default"] if name != "temperature"]
    options |= {
        "max_new_tokens": resolve_max_new_tokens(model, max(map(len, prompt_ids)), max_new_tokens),
        "eos_ids": sorted(eos_ids),
        "pipeline": make_pipeline(tokenizer, eos_ids, sampler_order=sampler_order, **settings),
        "vocab_size": tokenizer.vocab_size,
    }
    if alpha is None:
        assert num_beams is not None
        hypotheses = beam_search(model, prompt_ids, num_beams=num_beams, **options)
    else:
        hypotheses = [[h] for h in contrastive_search(model, prompt_ids, alpha=alpha, **options)]
    return [
        [(detokenize(tokenizer, h.tokens_without_eos, previous_id=prompt[-1]), h) for h in row]
        for prompt, row in zip(prompt_ids, hypotheses, strict=True)
    ]
