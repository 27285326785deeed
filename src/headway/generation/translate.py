"""Translate: sources in, translations out, with any sequence-to-sequence model.

Each source is encoded once, and all its beams attend to that one encoding (nn/beam_cache.py). Sources of similar length
share a batch, and finished sentences leave it early. A translation does not depend on the rest of its batch.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

from headway.data.records import Pair
from headway.errors import ConfigError
from headway.generation.beam_search import (
    BeamConfig,
    BeamStep,
    Hypothesis,
    make_beam_config,
    on_row_step,
    run_beam_search,
)
from headway.generation.generate import GenerationRequest, RowRequest, Token, stream_tokens
from headway.generation.inputs import check_int, check_row_count, search_processors
from headway.generation.limits import resolve_max_target_tokens
from headway.generation.noisy_channel import ChannelScores, ChannelWeights, NoisyChannelReranker, tune_weights
from headway.generation.sampling_params import PerPrompt, eos_token_ids, given, make_pipeline
from headway.generation.source import decoder_start_id, encode_sources, require_translator, start_from_sources
from headway.generation.unknown_settings import refuse_unknown_settings
from headway.models.base import Model, Seq2SeqLM, eval_mode
from headway.nn.kernels.cpu_linear import CPUKernels
from headway.sampling import FLAT_NAMES, ORDER_PRESETS, SAMPLERS, PerRowPipeline, Pipeline
from headway.sampling.samplers import BoundSampler
from headway.tokenizers import Tokenizer

DEFAULT_BEAMS = 5
DEFAULT_BATCH_SOURCES = 64  # sources translated at a time


class Translation(NamedTuple):
    """A translation; with `n_best` > 1, `others` are the next best ones."""

    text: str
    score: float  # log-probability, in beam search divided by the length norm; with a reranker, its score
    log_prob: float  # summed over the tokens
    tokens: list[int]  # EOS included
    ended: bool  # by EOS, not by the length limit
    others: list["Translation"]
    terms: ChannelScores | None = None  # what a reranker weighed


EMPTY_TRANSLATION = Translation("", 0.0, 0.0, [], True, [])  # the translation of an empty source


def translate(
    model: Model | Seq2SeqLM,
    texts: str | Sequence[str],
    *,
    num_beams: int | None = None,
    n_best: int = 1,
    length_penalty: float | None = None,
    length_norm: str | None = None,
    early_stopping: bool | Literal["never"] | None = None,
    max_new_tokens: int | None = None,
    truncate: bool = False,
    reranker: NoisyChannelReranker | None = None,
    temperature: PerPrompt[float] | None = None,
    top_k: PerPrompt[int] | None = None,
    top_p: PerPrompt[float] | None = None,
    min_p: PerPrompt[float] | None = None,
    repetition_penalty: PerPrompt[float] | None = None,
    no_repeat_ngram: PerPrompt[int] | None = None,
    seed: int | None = None,
    batch_size: int = DEFAULT_BATCH_SOURCES,
    **options: Any,
) -> list[Translation]:
    """Translate one text or several with an encoder-decoder; the translations come in the order of the texts.

        model = headway.load("runs/multi30k-en-de")
        best = headway.translate(model, "Two dogs play.")[0]
        print(best.text, best.log_prob)

    By default, beam search with 5 beams. The options:

    - `num_beams`, `length_penalty` (1), `length_norm` ("power" or "gnmt"), `early_stopping` (False): beam search.
      `num_beams=1` is greedy.
    - `temperature=0.7`, `top_p=0.9`, `seed=1`, …: any sampler set by name replaces beam search by sampling.
    - `n_best`: translations per text. The best one is returned; the others are in its `.others`.
    - `max_new_tokens`: the longest translation, EOS included; by default the model's context.
    - `truncate`: cut off sources that exceed the context, instead of raising.
    - `reranker`: rerank the beams by a reverse model and a language model (`NoisyChannelReranker`).
    - `no_repeat_ngram=3`, `repetition_penalty=1.2`, …: bias, constraints and penalties, for beam search and sampling.
    - other samplers by their names, `sampler_order` and `sampler_preset`: as for `generate`.
    - `batch_size` (64): sources translated at a time; it changes speed and memory, not the translations.
    - `on_beam_step`: a function that gets every step of the beam search as a `BeamStep`, such as a list's `append`.

    `translations` takes the same options and yields each translation as soon as it is ready.
    """
    texts = [texts] if isinstance(texts, str) else list(texts)
    samplers = given(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        no_repeat_ngram=no_repeat_ngram,
    )
    by_row = dict(
        translations(
            model,
            texts,
            num_beams=num_beams,
            n_best=n_best,
            length_penalty=length_penalty,
            length_norm=length_norm,
            early_stopping=early_stopping,
            max_new_tokens=max_new_tokens,
            truncate=truncate,
            reranker=reranker,
            seed=seed,
            batch_size=batch_size,
            **samplers,
            **options,
        )
    )
    return [by_row[row] for row in range(len(texts))]


def translations(
    model: Model | Seq2SeqLM,
    texts: Sequence[str],
    *,
    num_beams: int | None = None,
    n_best: int = 1,
    length_penalty: float | None = None,
    length_norm: str | None = None,
    early_stopping: bool | Literal["never"] | None = None,
    max_new_tokens: int | None = None,
    truncate: bool = False,
    batch_size: int = DEFAULT_BATCH_SOURCES,
    seed: int | None = None,
    sampler_preset: str | None = None,
    sampler_order: Sequence[str] | None = None,
    reranker: NoisyChannelReranker | None = None,
    on_pipeline: Callable[[Pipeline | PerRowPipeline], None] = lambda pipe: None,
    on_beam_step: Callable[[BeamStep], None] | None = None,
    **settings: Any,
) -> Iterator[tuple[int, Translation]]:
    """Yield (row, translation) batch by batch: empty texts first, then from the longest sources to the shortest.

    Beam search uses 5 beams, `length_penalty` 1, `length_norm` "power" and `early_stopping` False by default;
    `num_beams=1` is greedy. A temperature or a filter by its name (`temperature=0.7`, `top_p=0.9`, …) samples instead:
    translation j of row i draws from `seed + i · n_best + j`. Bias, constraints and penalties work with both. An empty
    text has an empty translation. A text that exceeds the model's context is an error, or cut off with `truncate`.
    Without `max_new_tokens` a translation may be as long as the context. A `reranker` reorders all beams by its own
    scores (noisy_channel.py). `on_pipeline` is called with the sampler pipeline, whose `.notes` and `.warnings` may be
    worth showing, and `on_beam_step` with every step of the beam search of every text.
    """
    translator, tokenizer = require_translator(model)
    refuse_unknown_settings(translations, settings)
    check_int("batch_size", batch_size, 1)
    check_int("n_best", n_best, 1)
    batch = _SourceBatch(
        model=translator,
        tokenizer=tokenizer,
        texts=texts,
        source_ids=encode_sources(translator, tokenizer, texts, truncate=truncate),
        eos_ids=eos_token_ids(translator),
        max_new_tokens=resolve_max_target_tokens(translator, max_new_tokens),
        n_best=n_best,
    )
    min_new_tokens = settings.get("min_new_tokens")
    if isinstance(min_new_tokens, int) and min_new_tokens > batch.max_new_tokens:
        raise ConfigError(
            f"min_new_tokens={min_new_tokens} is more than the {batch.max_new_tokens} tokens a translation may have"
        )
    beam_options = {"length_penalty": length_penalty, "length_norm": length_norm, "early_stopping": early_stopping}
    beam_options = {name: value for name, value in beam_options.items() if value is not None}
    translate_rows: _SampledTranslator | _BeamTranslator
    if num_beams is None and _has_sampling(settings):
        _refuse_beam_options(beam_options, reranker, on_beam_step)
        pipe = make_pipeline(tokenizer, batch.eos_ids, sampler_preset or "default", sampler_order, **settings)
        on_pipeline(pipe)
        translate_rows = _SampledTranslator(batch, pipe, _base_seed(seed))
    else:
        _refuse_sampling_options(seed=seed, sampler_preset=sampler_preset, temperature=settings.get("temperature"))
        config = _beam_config(batch, DEFAULT_BEAMS if num_beams is None else num_beams, beam_options, reranker)
        order = sampler_order or [name for name in ORDER_PRESETS["default"] if name != "temperature"]
        pipe = make_pipeline(tokenizer, batch.eos_ids, sampler_order=order, **settings)
        on_pipeline(pipe)
        pipe = search_processors(pipe, "beam search", len(texts))
        translate_rows = _BeamTranslator(batch, pipe, config, reranker, on_beam_step)
    check_row_count(pipe, len(texts), "text")
    return _in_batches(batch, batch_size, translate_rows)


# ── options ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _has_sampling(settings: dict[str, Any]) -> bool:
    """Whether the settings ask for sampling: a temperature, or a filter that is not off."""
    by_sampler: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if name in FLAT_NAMES and value is not None:
            sampler, parameter = FLAT_NAMES[name]
            by_sampler.setdefault(sampler, {})[parameter] = value
        elif name in SAMPLERS and value is not None:  # a table of its parameters
            by_sampler[name] = {}
    return any(
        SAMPLERS[sampler].group not in ("constraint", "penalty")
        and ("temperature" in sampler or not values or not BoundSampler.of(sampler, values).is_off)
        for sampler, values in by_sampler.items()
    )


def _refuse_beam_options(
    options: dict[str, Any],
    reranker: NoisyChannelReranker | None,
    on_beam_step: Callable[[BeamStep], None] | None,
) -> None:
    if reranker is not None:
        raise ConfigError("a reranker reorders beams, but these settings draw at random: leave one of them out")
    if on_beam_step is not None:
        raise ConfigError("on_beam_step (--explain) follows a search, but these settings draw at random: leave one out")
    for name, value in options.items():
        raise ConfigError(f"{name}={value!r} is for beam search, but these settings draw at random: leave one out")


def _refuse_sampling_options(**options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"{name}={value!r} with beam search, which draws nothing at random: leave it out")


def _base_seed(seed: int | None) -> int:
    if seed is None:
        return secrets.randbits(32)
    check_int("seed", seed, -(2**63), 2**63 - 1)
    return seed


def _beam_config(
    batch: "_SourceBatch", num_beams: int, options: dict[str, Any], reranker: NoisyChannelReranker | None
) -> BeamConfig:
    check_int("num_beams", num_beams, 1)
    if batch.n_best > num_beams:
        raise ConfigError(f"n_best={batch.n_best} of num_beams={num_beams}: a search finds at most one text per beam")
    options = {"length_penalty": 1.0, "length_norm": "power", "early_stopping": False, **options}
    n_best = batch.n_best if reranker is None else num_beams  # a reranker chooses from all beams
    return make_beam_config(num_beams, batch.max_new_tokens, batch.eos_ids, **options, n_best=n_best)


# ── two ways to translate ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _SourceBatch:
    """The sources of a call and what their translations share."""

    model: Seq2SeqLM
    tokenizer: Tokenizer
    texts: Sequence[str]
    source_ids: list[list[int]]
    eos_ids: frozenset[int]
    max_new_tokens: int
    n_best: int

    def start(self, rows: list[int]) -> Any:
        """Encode the sources of these rows. The cache has space for the decoder start token and all new ones."""
        return start_from_sources(self.model, [self.source_ids[row] for row in rows], self.max_new_tokens + 1)


@dataclass(frozen=True)
class _BeamTranslator:
    """Beam search, and reranking if there is a reranker."""

    batch: _SourceBatch
    pipe: Pipeline | PerRowPipeline  # constraints and penalties
    config: BeamConfig
    reranker: NoisyChannelReranker | None
    on_beam_step: Callable[[BeamStep], None] | None

    def __call__(self, rows: list[int]) -> list[list[Translation]]:
        """The `n_best` translations of each of these rows."""
        batch = self.batch
        hypotheses = run_beam_search(
            batch.model,
            [[decoder_start_id(batch.model)] for _ in rows],
            self.config,
            self.pipe.select(rows),
            state=batch.start(rows),
            vocab_size=batch.tokenizer.vocab_size,
            on_step=on_row_step(self.on_beam_step, rows),
        )
        candidates = [[_from_hypothesis(batch.tokenizer, h) for h in row] for row in hypotheses]
        if self.reranker is not None:
            n_source = [len(batch.source_ids[row]) for row in rows]
            candidates = _rerank(self.reranker, [batch.texts[row] for row in rows], candidates, n_source)
        return [row[: batch.n_best] for row in candidates]


@dataclass(frozen=True)
class _SampledTranslator:
    """Ancestral sampling through a sampler pipeline."""

    batch: _SourceBatch
    pipe: Pipeline | PerRowPipeline
    seed: int

    def __call__(self, rows: list[int]) -> list[list[Translation]]:
        """`n_best` samples for each of these rows, the most likely first."""
        batch, n = self.batch, self.batch.n_best
        request = GenerationRequest(batch.model, batch.tokenizer, batch.eos_ids, logprobs=0)
        prompt = [decoder_start_id(batch.model)]
        samples = [RowRequest(prompt, batch.max_new_tokens, self.seed + row * n + j) for row in rows for j in range(n)]
        repeated_rows = [row for row in rows for _ in range(n)]
        state = batch.start(rows).reorder([i for i in range(len(rows)) for _ in range(n)])
        tokens: list[list[Token]] = [[] for _ in samples]
        for token in stream_tokens(request, samples, self.pipe.select(repeated_rows), state):
            tokens[token.row].append(token)
        sampled = [_from_tokens(sample) for sample in tokens]
        by_row = [sampled[i : i + n] for i in range(0, len(sampled), n)]
        return [sorted(row, key=lambda t: -t.log_prob) for row in by_row]


def _in_batches(
    batch: _SourceBatch, batch_size: int, translate_rows: Callable[[list[int]], list[list[Translation]]]
) -> Iterator[tuple[int, Translation]]:
    lengths = [len(ids) for ids in batch.source_ids]
    yield from ((row, EMPTY_TRANSLATION) for row, length in enumerate(lengths) if not length)
    # The longest first, so that a batch that exceeds the memory fails at once.
    order = sorted((row for row, length in enumerate(lengths) if length), key=lambda row: -lengths[row])
    kernels = CPUKernels(batch.model)  # packed once for all batches
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        with eval_mode(batch.model), kernels, torch.inference_mode():
            translated = translate_rows(rows)
        yield from ((row, best._replace(others=others)) for row, (best, *others) in zip(rows, translated, strict=True))


def _from_hypothesis(tokenizer: Tokenizer, h: Hypothesis) -> Translation:
    text = tokenizer.decode(h.tokens_without_eos).strip()
    return Translation(text, h.score, h.log_prob, h.tokens, h.ended, [])


def _from_tokens(tokens: list[Token]) -> Translation:
    log_prob = sum(token.logprob or 0.0 for token in tokens)
    return Translation(
        text="".join(token.text for token in tokens).strip(),
        score=log_prob,
        log_prob=log_prob,
        tokens=[token.id for token in tokens],
        ended=tokens[-1].finish_reason == "stop",
        others=[],
    )


# ── reranking ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _rerank(
    reranker: NoisyChannelReranker,
    texts: Sequence[str],
    candidates: Sequence[list[Translation]],
    n_source: Sequence[int],
) -> list[list[Translation]]:
    """The candidates of each text, best first by the reranker's score, which replaces theirs."""
    described = [[(t.text, t.log_prob, len(t.tokens)) for t in row] for row in candidates]
    reranked = []
    for row, row_terms in zip(candidates, reranker.terms(texts, described, n_source), strict=True):
        scored = [
            t._replace(score=reranker.weights.score(terms), terms=terms)
            for t, terms in zip(row, row_terms, strict=True)
        ]
        reranked.append(sorted(scored, key=lambda t: -t.score))
    return reranked


class TunedWeights(NamedTuple):
    weights: ChannelWeights
    before: float  # the metric without reranking
    after: float  # the metric with these weights


def tune_reranker(
    model: Model | Seq2SeqLM,
    reranker: NoisyChannelReranker,
    pairs: Sequence[Pair],
    metric: Callable[[list[str], list[str]], float],
    *,
    num_beams: int = DEFAULT_BEAMS,
    batch_size: int = DEFAULT_BATCH_SOURCES,
) -> TunedWeights:
    """Find the weights whose reranked translations of the pairs' sources score highest by `metric(texts, references)`,
    such as BLEU. Tune on a validation set."""
    references = [pair.target for pair in pairs]
    translated = translate(
        model,
        [pair.source for pair in pairs],
        num_beams=num_beams,
        n_best=num_beams,
        batch_size=batch_size,
        truncate=True,
        reranker=reranker,
    )
    candidates = [[t, *t.others] for t in translated]
    no_terms = ChannelScores(0.0, 0.0, 0.0, 0.0)  # of an empty source
    terms = [[t.terms or no_terms for t in row] for row in candidates]

    def judge(choices: list[int]) -> float:
        return metric([row[i].text for row, i in zip(candidates, choices, strict=True)], references)

    models = {"channel": reranker.reverse, "lm": reranker.lm}
    tuned_terms = [name for name, scorer in models.items() if scorer is not None]
    weights, after = tune_weights(terms, judge, terms=[*tuned_terms, "length"])
    direct_only = ChannelWeights(1.0, 0.0, 0.0, 0.0)
    return TunedWeights(weights, judge([direct_only.best(row) for row in terms]), after)
