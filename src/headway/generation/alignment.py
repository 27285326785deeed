"""Word alignment: which source word the decoder attends to most when it writes each target word."""

import re
from bisect import bisect_left
from typing import NamedTuple

import torch

from headway.analysis.attention import record
from headway.errors import InputError
from headway.generation.source import decoder_start_id, encode_sources, require_translator
from headway.models import Bahdanau, Transformer
from headway.models.base import Model, Seq2SeqLM
from headway.tokenizers import Tokenizer


class WordAlignment(NamedTuple):
    """A word of the translation and the word of the source it looked at most."""

    word: str
    source: str
    place: int  # which word of the source, from 0
    weight: float  # how much of its look fell there


def align(
    model: Model | Seq2SeqLM, source: str, target: str, *, layer: int | None = None, truncate: bool = False
) -> list[WordAlignment]:
    """For each word of a translation, the word of the source that the decoder looked at most when it wrote it.

    Weights are the mean over the heads of one layer, by default the last but one, which is the nearest to an alignment
    (Garg et al. 2019, §4.1), summed over the pieces of a source word and averaged over those of a target word. With
    `truncate` a source longer than the context is cut as `translate` cuts it.
    """
    _, tokenizer = require_translator(model)
    here, there = _words(tokenizer, source.strip()), _words(tokenizer, target.strip())
    if not here.words or not there.words:
        return []
    if not isinstance(model, Transformer | Bahdanau):
        raise InputError(f"a {type(model).__name__} does not look back at the source: there is nothing to align by")
    if layer is None:
        layer = max(0, model.config.resolved().n_decoder_layers - 2) if isinstance(model, Transformer) else 0
    (ids,) = encode_sources(model, tokenizer, [source], truncate=truncate)
    written = [decoder_start_id(model), *there.ids[:-1]][: model.config.context]
    seen = record(model, written, source=ids, side="cross", layers=[layer])
    weights = seen[0].weights.mean(dim=0)  # (T, S); row t wrote token t
    by_word = torch.zeros(len(there.words), len(here.words))
    for row, word in zip(weights, there.places, strict=False):  # the end is no word, nor is what was cut
        for weight, other in zip(row, here.places, strict=False):
            by_word[word, other] += weight
    counts = torch.bincount(torch.tensor(there.places), minlength=len(there.words)).clamp(min=1)
    best = (by_word / counts[:, None]).max(dim=1)
    return [
        WordAlignment(word, here.words[place], place, weight)
        for word, place, weight in zip(there.words, best.indices.tolist(), best.values.tolist(), strict=True)
    ]


class _WordSpans(NamedTuple):
    words: list[str]
    ids: list[int]
    places: list[int]  # the word of each token


def _words(tokenizer: Tokenizer, text: str) -> _WordSpans:
    """The words of a text, cut at spaces, and its tokens. A token may begin with the space before its word."""
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    encoded = tokenizer.encode_with_offsets(text)
    ends = [end for _, end in spans]
    places = [min(bisect_left(ends, max(end, 1)), len(spans) - 1) for _, end in encoded.offsets] if spans else []
    return _WordSpans([text[a:b] for a, b in spans], list(encoded.ids), places)
