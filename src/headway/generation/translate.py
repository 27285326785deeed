"""From one text to another: sources in, translations out, whatever the two languages are.

The encoder reads each source once, and all beams look at the one result (nn/beam_cache.py). Sources of like length are
translated together, and a sentence that is finished leaves its batch, so that neither waits for the other; what comes
out does not depend on who was in the batch.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch

from headway.data.records import Pair
from headway.errors import ConfigError, InputError
from headway.generation.beam_search import Hypothesis, beam_search, make_beam_config
from headway.generation.generate import GenerationRequest, Token, stream_tokens
from headway.generation.inputs import check_int, search_processors
from headway.generation.noisy_channel import ChannelScores, ChannelWeights, NoisyChannelReranker, tune_weights
from headway.generation.sampling_params import eos_token_ids, make_pipeline
from headway.generation.source import decoder_start_id, encode_sources, require_translator, start_from_sources
from headway.models import Transformer
from headway.models.base import Model, Seq2SeqLM, eval_mode
from headway.nn.linear import PackedWeights
from headway.sampling import FLAT, PRESETS, SAMPLERS, PerRowPipeline, Pipeline
from headway.sampling.samplers import BoundSampler
from headway.tokenizers import Tokenizer

DEFAULT_BEAMS = 5
DEFAULT_BATCH = 64  # sources translated at a time


class Translation(NamedTuple):
    """One way to say it; `others` are the next best ones, where more than one was asked for."""

    text: str
    score: float | None  # of beam search: log-probability over the norm of its length
    log_prob: float | None  # summed over its tokens
    tokens: list[int]  # the end token included
    ended: bool  # by the end token, not by the length
    others: list["Translation"]
    terms: ChannelScores | None = None  # what a noisy channel weighed


EMPTY = Translation("", None, None, [], True, [])  # of an empty source


def translate(model: Model | Seq2SeqLM, texts: str | Sequence[str], **options: Any) -> list[Translation]:
    """The translation of each text, in their order; `translations` lists the options.

    headway.translate(model, ["Two dogs play."])[0].text
    """
    given = [texts] if isinstance(texts, str) else list(texts)
    with PackedWeights():
        found = dict(translations(model, given, **options))
    return [found[row] for row in range(len(given))]


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
    batch_size: int = DEFAULT_BATCH,
    seed: int | None = None,
    sampler_preset: str | None = None,
    sampler_order: Sequence[str] | None = None,
    reranker: NoisyChannelReranker | None = None,
    note: Callable[[Pipeline | PerRowPipeline], None] = lambda pipe: None,
    **settings: Any,
) -> Iterator[tuple[int, Translation]]:
    """Yield (row, translation) as they are done, similar lengths together.

    Five beams search for the best translation (`length_penalty` 1, `length_norm` "power", `early_stopping` False unless
    given); `num_beams=1` is greedy. A temperature or a filter by its name (`temperature=0.7`, `top_p=0.9`, …) draws at
    random instead, text j of row i from `seed + i · n_best + j`. Bias, constraints and penalties go with both. An empty
    text has an empty translation. One that is longer than the model's context is refused, or cut with `truncate`.
    Without `max_new_tokens` a translation may be as long as the context. A `reranker` reranks all beams
    (noisy_channel.py), and scores are then its. `note` gets the samplers, which may have something to say (`.notes`,
    `.warnings`).
    """
    translator, tokenizer = require_translator(model)
    check_int("batch_size", batch_size, 1)
    check_int("n_best", n_best, 1)
    sources = encode_sources(translator, tokenizer, texts, truncate=truncate)
    longest = _longest(translator, max_new_tokens)
    ends = eos_token_ids(translator)
    least = settings.get("min_new_tokens")
    if isinstance(least, int) and least > longest:
        raise ConfigError(f"min_new_tokens={least} is more than the {longest} tokens a translation may have")
    asked = {"length_penalty": length_penalty, "length_norm": length_norm, "early_stopping": early_stopping}
    of_beams: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if _draws(settings, num_beams):
        if reranker is not None:
            raise ConfigError("a noisy channel reranks what beam search finds, and this draws at random: one of them")
        for name, value in of_beams.items():
            raise ConfigError(f"{name}={value!r} is for beam search, and this draws at random: one of the two")
        if seed is not None:
            check_int("seed", seed, -(2**63), 2**63 - 1)
        pipe = make_pipeline(tokenizer, ends, sampler_preset or "default", sampler_order, **settings)
        note(pipe)
        base = secrets.randbits(32) if seed is None else seed
    else:
        for name, unused in (
            ("seed", seed),
            ("sampler_preset", sampler_preset),
            ("temperature", settings.get("temperature")),
        ):
            if unused is not None:
                raise ConfigError(f"{name}={unused!r} with beam search, which draws nothing at random: leave it out")
        beams = DEFAULT_BEAMS if num_beams is None else num_beams
        check_int("num_beams", beams, 1)
        if n_best > beams:
            raise ConfigError(f"n_best={n_best} of num_beams={beams}: at most as many as there are beams")
        of_beams = {"length_penalty": 1.0, "length_norm": "power", "early_stopping": False, **of_beams}
        make_beam_config(beams, longest, sorted(ends), **of_beams, n_best=n_best)  # refuses what is wrong, here and now
        sampler_order = sampler_order or [name for name in PRESETS["default"] if name != "temperature"]
        asked_for = make_pipeline(tokenizer, ends, sampler_order=sampler_order, **settings)
        note(asked_for)
        pipe = search_processors(asked_for, "beam search", len(texts))
    if pipe.n_rows not in (None, len(texts)):
        raise ConfigError(f"settings for {pipe.n_rows} rows, and {len(texts)} texts: one value, or one per text")

    def by_beams(rows: list[int]) -> list[list[Translation]]:
        found = beam_search(
            translator,
            [[decoder_start_id(translator)] for _ in rows],
            num_beams=beams,
            max_new_tokens=longest,
            eos_ids=sorted(ends),
            n_best=n_best if reranker is None else beams,
            pipeline=pipe.select(rows),
            state=start_from_sources(translator, [sources[row] for row in rows], longest + 1),
            vocab_size=tokenizer.vocab_size,
            **of_beams,
        )
        spelled = [[_spelled(tokenizer, h, ends) for h in row] for row in found]
        if reranker is None:
            return spelled
        lengths = [len(sources[row]) for row in rows]
        return [some[:n_best] for some in _reranked(reranker, [texts[row] for row in rows], spelled, lengths)]

    def by_chance(rows: list[int]) -> list[list[Translation]]:
        several = [row for row in rows for _ in range(n_best)]
        request = GenerationRequest(
            translator, tokenizer, pipe, ends, [], include_stop=False, logprobs=0, explain=False
        )
        seeds = [base + row * n_best + j for row in rows for j in range(n_best)]
        state = start_from_sources(translator, [sources[row] for row in rows], longest + 1)
        state = state.reorder([i for i in range(len(rows)) for _ in range(n_best)])
        prompts = [[decoder_start_id(translator)] for _ in several]
        written: list[list[Token]] = [[] for _ in several]
        for token in stream_tokens(request, pipe.select(several), prompts, [longest] * len(several), seeds, state):
            written[token.row].append(token)
        drawn = [_written(tokens) for tokens in written]
        by_row = [drawn[i : i + n_best] for i in range(0, len(drawn), n_best)]
        return [sorted(some, key=lambda t: -(t.log_prob or 0.0)) for some in by_row]

    return _in_batches(translator, sources, batch_size, by_chance if _draws(settings, num_beams) else by_beams)


def _in_batches(
    model: Seq2SeqLM,
    sources: list[list[int]],
    batch_size: int,
    work: Callable[[list[int]], list[list[Translation]]],
) -> Iterator[tuple[int, Translation]]:
    yield from ((row, EMPTY) for row, source in enumerate(sources) if not source)
    # The longest first: what does not fit into memory shows at once.
    order = sorted((row for row, source in enumerate(sources) if source), key=lambda row: -len(sources[row]))
    for at in range(0, len(order), batch_size):
        rows = order[at : at + batch_size]
        with eval_mode(model), PackedWeights(), torch.inference_mode():
            found = work(rows)
        yield from ((row, best._replace(others=others)) for row, (best, *others) in zip(rows, found, strict=True))


def _longest(model: Seq2SeqLM, asked: int | None) -> int:
    """How many tokens a translation may have, its end included."""
    limit = model.decoder.positions.limit if isinstance(model, Transformer) else None
    if asked is not None:
        check_int("max_new_tokens", asked, 1)
        if limit is not None and asked >= limit:
            raise InputError(
                f"max_new_tokens={asked} do not fit in the context of {limit}: ask for at most {limit - 1}"
            )
        return asked
    return max(1, model.config.context - 1)


def _draws(settings: dict[str, Any], num_beams: int | None) -> bool:
    """Whether tokens are drawn at random: a temperature or some filter that is not off, and no beams are asked for."""
    given: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if name in FLAT and value is not None:
            stage, parameter = FLAT[name]
            given.setdefault(stage, {})[parameter] = value
        elif name in SAMPLERS and value is not None:  # as a table of its parameters
            given[name] = {}
    return num_beams is None and any(
        SAMPLERS[stage].group not in ("constraint", "penalty")
        and ("temperature" in stage or not values or not BoundSampler.of(stage, values).is_off)
        for stage, values in given.items()
    )


def _spelled(tokenizer: Tokenizer, h: Hypothesis, ends: frozenset[int]) -> Translation:
    tokens = h.tokens[:-1] if h.ended and h.tokens[-1] in ends else h.tokens
    return Translation(tokenizer.decode(tokens).strip(), h.score, h.log_prob, h.tokens, h.ended, [])


def _reranked(
    reranker: NoisyChannelReranker, texts: Sequence[str], found: Sequence[list[Translation]], lengths: Sequence[int]
) -> list[list[Translation]]:
    """The candidates of each text, the best first by the channel's score."""
    candidates = [[(t.text, t.log_prob or 0.0, len(t.tokens)) for t in some] for some in found]
    ranked = []
    for some, terms in zip(found, reranker.terms(texts, candidates, lengths), strict=True):
        scored = [t._replace(score=reranker.weights.score(x), terms=x) for t, x in zip(some, terms, strict=True)]
        ranked.append(sorted(scored, key=lambda t: -(t.score or 0.0)))
    return ranked


class TunedWeights(NamedTuple):
    weights: ChannelWeights
    before: float  # score of the direct model's own order
    after: float


def tune_reranker(
    model: Model | Seq2SeqLM,
    reranker: NoisyChannelReranker,
    pairs: Sequence[Pair],
    metric: Callable[[list[str], list[str]], float],
    *,
    num_beams: int = DEFAULT_BEAMS,
    batch_size: int = DEFAULT_BATCH,
) -> TunedWeights:
    """The weights under which the reranked translations score highest by `metric(texts, references)`, such as BLEU."""
    references = [pair.target for pair in pairs]
    found = translate(
        model,
        [pair.source for pair in pairs],
        num_beams=num_beams,
        n_best=num_beams,
        batch_size=batch_size,
        truncate=True,
        reranker=reranker,
    )
    candidates = [[t, *t.others] for t in found]
    terms = [
        [t.terms or ChannelScores(0.0, 0.0, 0.0, 0.0) for t in some] for some in candidates
    ]  # an empty source has none

    def judge(chosen: list[int]) -> float:
        return metric([some[i].text for some, i in zip(candidates, chosen, strict=True)], references)

    used = [name for name, part in (("channel", reranker.reverse), ("lm", reranker.lm)) if part is not None]
    weights, after = tune_weights(terms, judge, terms=[*used, "length"])
    return TunedWeights(weights, judge([ChannelWeights(1.0, 0.0, 0.0, 0.0).best(some) for some in terms]), after)


def _written(tokens: list[Token]) -> Translation:
    text = "".join(token.text for token in tokens).strip()
    return Translation(
        text,
        None,
        sum(token.logprob or 0.0 for token in tokens),
        [token.id for token in tokens],
        tokens[-1].finish == "stop",
        [],
    )
