"""Generate text: prompts in, tokens with their text out, streamed as they are sampled.

This file wraps the decode loop (decode_loop.py; reference.py is its specification) with samplers, incremental
detokenization and the ways a text ends: an EOS token, a stop string, or its length.
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
from headway.generation.inputs import check_int
from headway.generation.sampling_params import check_token_ids, eos_token_ids, make_pipeline
from headway.models.base import LanguageModel, Model, Seq2SeqLM, eval_mode, language_model
from headway.nn.kv_cache import State
from headway.sampling import (
    PRESETS,
    History,
    PerRowPipeline,
    Pipeline,
    check_stop_strings,
    find_stop,
    partial_stop_length,
)
from headway.sampling.parameters import to_python
from headway.tokenizers import TextStream, Tokenizer

DEFAULT_NEW_TOKENS = 256
DEFAULT_BATCH = 32  # rows written at a time


class SamplerTrace(NamedTuple):
    """What one stage did to the distribution a token was drawn from."""

    sampler: str
    n_alive: int  # tokens that can still be drawn
    n_removed: int  # tokens this stage removed …
    removed: list[tuple[int, float]]  # … the most likely of them, with their probabilities before it
    p: float  # the probability of the token that was drawn, after this stage
    best: list[tuple[int, float]]  # the most likely tokens after it


class Token(NamedTuple):
    """One generated token; `text` is what became certain with it (a character may take several tokens)."""

    row: int
    id: int
    text: str
    finish: str | None = None  # with a row's last token: "stop" (end of text or a stop) or "length"
    logprob: float | None = None  # ln p by the model itself, before any sampler
    top: list[tuple[int, float]] | None = None  # the most likely tokens and their ln p
    stop: str | None = None  # the stop string that ended the row
    steps: list[SamplerTrace] | None = None  # with `explain`


def generate(
    model: Model | LanguageModel,
    prompts: str | Sequence[str],
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
    batch_size: int = DEFAULT_BATCH,
    **settings: Any,
) -> Iterator[Token]:
    """Continue one prompt or several, yielding tokens as they come.

    Samplers are given by name, `top_p=0.9, dry_multiplier=0.8`, in the order of `sampler_preset` or in a `sampler_order` of your own,
    or as a `pipeline`; without any, temperature is 0.8. Temperature 0 or `do_sample=False` is greedy: bias,
    constraints and penalties, then the best token. Row i draws from `seed + i`, so a text depends on its own seed, not
    on the batch. Without `max_new_tokens` a text goes on until its end token, the end of the context the model was
    trained with, or 256 tokens. `logprobs=k` also gives each token's ln p and the k most likely ones.

        "".join(token.text for token in headway.generate(model, "Once upon", seed=1, top_p=0.9))
    """
    model, tokenizer, rows = _encode_prompts(model, prompts)
    if batch_size < 1:
        raise ConfigError(f"batch_size={batch_size} must be at least 1")
    if logprobs is not None and not 0 <= logprobs <= tokenizer.vocab_size:
        raise ConfigError(f"logprobs={logprobs} must be from 0 to the size of the vocabulary, {tokenizer.vocab_size}")
    ends = eos_token_ids(model) | check_token_ids(tokenizer, stop_token_ids)
    if pipeline is None:
        pipe = make_pipeline(
            tokenizer, ends, sampler_preset, sampler_order, temperature=temperature, do_sample=do_sample, **settings
        )
    elif settings or temperature is not None or sampler_order is not None:
        raise ConfigError("a pipeline and settings besides: put them into the pipeline")
    else:
        pipe = pipeline if do_sample else pipeline.greedy()
    limits = [max_tokens_that_fit(model, len(row), max_new_tokens) for row in rows]
    request = GenerationRequest(
        model=model,
        tokenizer=tokenizer,
        pipe=pipe,
        ends=ends,
        stops=check_stop_strings(stop),
        include_stop=include_stop,
        logprobs=logprobs,
        explain=explain,
    )
    base = secrets.randbits(32) if seed is None else to_python(seed)
    if pipe.n_rows not in (None, len(rows)):
        raise ConfigError(f"settings for {pipe.n_rows} rows, and {len(rows)} prompts: one value, or one per prompt")
    seeds = [base + i for i in range(len(rows))] if isinstance(base, int) else [int(value) for value in base]
    if len(seeds) != len(rows):
        raise ConfigError(f"{len(seeds)} seeds for {len(rows)} prompts: one number, or one per prompt")
    return _batches(request, rows, limits, seeds, batch_size)


def _encode_prompts(
    model: Model | LanguageModel, prompts: str | Sequence[str]
) -> tuple[LanguageModel, Tokenizer, list[list[int]]]:
    """The model if it writes, its tokenizer, and the prompts as ids."""
    model = language_model(model)
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError(
            "this model has no tokenizer, so it only takes token ids: use headway.generation.reference.decode or "
            "headway.generation.beam_search.beam_search"
        )
    rows = [tokenizer.prompt(prompt) for prompt in ([prompts] if isinstance(prompts, str) else prompts)]
    if not rows:
        raise InputError("no prompt to continue: give at least one, which may be empty")
    return model, tokenizer, rows


@dataclass(frozen=True)
class GenerationRequest:
    """What all rows of a call share."""

    model: LanguageModel | Seq2SeqLM
    tokenizer: Tokenizer
    pipe: Pipeline | PerRowPipeline
    ends: frozenset[int]
    stops: list[str]
    include_stop: bool
    logprobs: int | None
    explain: bool


def _batches(
    request: GenerationRequest, rows: list[list[int]], limits: list[int], seeds: list[int], batch_size: int
) -> Iterator[Token]:
    """Rows of similar length together, so that little is padding; one batch after another."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i])) if len(rows) > batch_size else list(range(len(rows)))
    with eval_mode(request.model):
        for at in range(0, len(order), batch_size):
            some = order[at : at + batch_size]
            prompts, most, own = [rows[i] for i in some], [limits[i] for i in some], [seeds[i] for i in some]
            for token in stream_tokens(request, request.pipe.select(some), prompts, most, own):
                yield token._replace(row=some[token.row])


def stream_tokens(
    request: GenerationRequest,
    pipe: Pipeline | PerRowPipeline,
    prompts: list[list[int]],
    limits: list[int],
    seeds: list[int],
    state: State | None = None,
) -> Iterator[Token]:
    """The tokens of some rows, each with its own prompt, length and seed; a model with a source comes started."""
    loop = DecodeLoop(
        request.model,
        prompts,
        pipe,
        max(limits),
        seeds=seeds,
        vocab_size=request.tokenizer.vocab_size,
        state=state,
        graph=False if request.explain else None,
        drops_at_once=len(set(limits)) > 1,
    )
    texts = [
        _StopAwareText(request, prompt[-1], _min_new_tokens(pipe, row), limit)
        for row, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    ]
    while loop.live:
        for row, slot, id in loop.step():
            piece, finish, stop = texts[row].push(id)
            logits = loop.logits[slot]
            logprob, top = _logprobs(logits, id, request.logprobs)
            steps = _explain(loop, slot, id) if request.explain else None
            if finish:
                loop.end(row)
            yield Token(row, id, piece, finish, logprob, top, stop, steps)


class _StopAwareText:
    """The text of one row as it grows: nothing of a stop string is ever let out, nor of what may become one."""

    def __init__(self, request: GenerationRequest, after: int, min_new: int, max_new: int):
        self.request, self.stream = request, TextStream(request.tokenizer, after)
        self.min_new, self.max_new = min_new, max_new
        self.n, self.text, self.shown = 0, "", 0
        self.searched = 0  # matches that end before here were before the least length, and do not count

    def push(self, id: int) -> tuple[str, str | None, str | None]:
        """What became certain, how the row ends with it if it does, and the stop string it met."""
        request = self.request
        self.n += 1
        is_end, is_last = id in request.ends, self.n == self.max_new
        self.text += self.stream.flush() if is_end else self.stream.push(id)
        if is_last and not is_end:
            self.text += self.stream.flush()
        if request.stops and self.n >= self.min_new:
            match = find_stop(self.text, request.stops, after=self.searched)
            if match is not None:
                return self._show(match.end if request.include_stop else match.start), "stop", match.stop
        self.searched = len(self.text)
        if is_end or is_last:
            return self._show(len(self.text)), "stop" if is_end else "length", None
        return self._show(len(self.text) - partial_stop_length(self.text, request.stops)), None, None

    def _show(self, end: int) -> str:
        end = max(end, self.shown)
        piece, self.shown = self.text[self.shown : end], end
        return piece


def _logprobs(logits: Tensor, id: int, n: int | None) -> tuple[float | None, list[tuple[int, float]] | None]:
    if n is None:
        return None, None
    log_p = logits.double().log_softmax(dim=-1)
    best = log_p.topk(n) if n else None
    top = [] if best is None else list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return log_p[id].item(), top


def _min_new_tokens(pipe: Pipeline | PerRowPipeline, row: int) -> int:
    """Before so many tokens text stops do not count either."""
    one = pipe.select([row])
    calls = [call for call in getattr(one, "samplers", []) if call.name == "min_new_tokens" and not call.is_off]
    return calls[0].row(0)["min_new"] if calls else 0


def _explain(loop: DecodeLoop, slot: int, id: int) -> list[SamplerTrace]:
    """The distribution after each stage, as it was before the token was added to the history."""
    index = torch.tensor([slot], device=loop.device)
    history = loop.history.reorder(index)
    history = History(history.ids, history.lengths - 1, history.n_prompt)
    steps: list[SamplerTrace] = []
    pipe, before = loop.pipe.select([slot]), None
    assert isinstance(pipe, Pipeline)
    for name, row in pipe.explain(loop.logits[index], history=history, state=loop.drawn_from.reorder(index)):
        steps.append(trace_stage(name, row[0], id, before))
        before = row[0]
    return steps


def trace_stage(name: str, row: Tensor, id: int, before: Tensor | None, n_best: int = 5) -> SamplerTrace:
    """What a stage made of the row (V,) `before` it."""
    p, alive = row.double().softmax(dim=-1), row.isfinite()
    gone = torch.zeros_like(p) if before is None else before.double().softmax(dim=-1).masked_fill(alive, 0.0)
    n_gone = 0 if before is None else int((before.isfinite() & ~alive).sum())
    return SamplerTrace(
        name, int(alive.sum()), n_gone, _most_likely(gone, min(n_best, n_gone)), p[id].item(), _most_likely(p, n_best)
    )


def _most_likely(p: Tensor, n: int) -> list[tuple[int, float]]:
    best = p.topk(min(n, len(p)))
    return [(id, value) for id, value in zip(best.indices.tolist(), best.values.tolist(), strict=True) if value > 0]


def max_tokens_that_fit(model: LanguageModel, longest: int, max_new_tokens: int | None) -> int:
    """How many tokens to make: as many as asked, or as fit."""
    if max_new_tokens is not None:
        check_int("max_new_tokens", max_new_tokens, 1)
    context = model.config.context
    place = getattr(model, "positions", None)
    limit = None if place is None else place.limit  # positions that are formulas have none
    if limit is not None and longest + (max_new_tokens or 1) > limit:
        raise InputError(
            f"a prompt of {longest} tokens and {max_new_tokens or 1} new ones do not fit in the context of {limit}: "
            f"shorten the prompt" + (f", or ask for at most {limit - longest}" if longest < limit else "")
        )
    fits = DEFAULT_NEW_TOKENS if context is None or context <= longest else context - longest
    return max_new_tokens or min(DEFAULT_NEW_TOKENS, fits)


def search(
    model: Model | LanguageModel,
    prompts: str | Sequence[str],
    *,
    max_new_tokens: int | None = None,
    num_beams: int | None = None,
    alpha: float | None = None,
    stop_token_ids: Sequence[int] = (),
    **options: Any,
) -> list[list[tuple[str, Hypothesis]]]:
    """Continue prompts by beam search (`num_beams`) or contrastive search (`alpha`): for each its texts, best first.

    Further options are those of `headway.search`, and settings of constraints and penalties by their flat names.
    """
    model, tokenizer, rows = _encode_prompts(model, prompts)
    if (num_beams is None) == (alpha is None):
        raise ConfigError("search by num_beams=… (beam search) or by alpha=… (contrastive search)")
    ends = eos_token_ids(model) | check_token_ids(tokenizer, stop_token_ids)
    own = {"n_best", "length_penalty", "length_norm", "early_stopping"} if alpha is None else {"k"}
    settings = {name: options.pop(name) for name in list(options) if name not in own}
    order = [name for name in PRESETS["default"] if name != "temperature"]
    pipe = make_pipeline(tokenizer, ends, sampler_order=order, **settings)
    shared: dict[str, Any] = {
        "max_new_tokens": max_tokens_that_fit(model, max(map(len, rows)), max_new_tokens),
        "eos_ids": sorted(ends),
        "pipeline": pipe,
        "vocab_size": tokenizer.vocab_size,
    }
    if alpha is None:
        assert num_beams is not None
        found = beam_search(model, rows, num_beams=num_beams, **shared, **options)
    else:
        found = [[h] for h in contrastive_search(model, rows, alpha=alpha, **shared, **options)]
    return [[(_text(tokenizer, prompt[-1], h, ends), h) for h in row] for prompt, row in zip(rows, found, strict=True)]


def _text(tokenizer: Tokenizer, after: int, h: Hypothesis, ends: frozenset[int]) -> str:
    """As it goes on after the last token of the prompt, which may ask for a space."""
    stream = TextStream(tokenizer, after)
    kept = h.tokens[:-1] if h.ended and h.tokens[-1] in ends else h.tokens
    return "".join(map(stream.push, kept)) + stream.flush()
