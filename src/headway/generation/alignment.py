"""Word alignment: the source word that the decoder attends to most while it generates each target word.

The words of a model with a character tokenizer are its characters, spaces included.
"""

import re
from bisect import bisect_left
from typing import NamedTuple

import torch

from headway.analysis.attention import attention_maps
from headway.errors import InputError
from headway.generation.source import decoder_start_id, encode_sources, require_translator
from headway.models import Bahdanau, Transformer
from headway.models.base import Model, Seq2SeqLM, described
from headway.tokenizers import Tokenizer


class WordAlignment(NamedTuple):
    """A word of the translation and the source word it attended to most."""

    word: str
    source: str
    source_index: int  # index of the source word, from 0; with a character tokenizer, of the character in the text
    weight: float  # the attention weight on that word


def align(
    model: Model | Seq2SeqLM, source: str, target: str, *, layer: int | None = None, truncate: bool = False
) -> list[WordAlignment]:
    """For each word of a translation, the source word that the decoder attended to most when it generated the word;
    with a character tokenizer, for each character the source character.

    Weights are the mean over the heads of one layer, by default the penultimate, which is closest to an alignment
    (Garg et al. 2019, §4.1), or the last if there are only one or two. They are summed over the tokens of a source word
    and averaged over those of a target word. With `truncate`, a source that exceeds the context is cut off as
    `translate` does.
    """
    _, tokenizer = require_translator(model)
    source_words, target_words = _split_words(tokenizer, source.strip()), _split_words(tokenizer, target.strip())
    if not source_words.words or not target_words.words:
        return []
    if not isinstance(model, Transformer | Bahdanau):
        raise InputError(f"{described(model)} has no attention to align by: use a transformer or bahdanau model")
    if layer is None:
        n_layers = model.config.resolved().n_decoder_layers if isinstance(model, Transformer) else 1
        layer = n_layers - 2 if n_layers > 2 else n_layers - 1
    (source_ids,) = encode_sources(model, tokenizer, [source], truncate=truncate)
    decoder_input = [decoder_start_id(model), *target_words.ids[:-1]][: model.config.context]
    (attention,) = attention_maps(model, decoder_input, source=source_ids, side="cross", layers=[layer])
    weights = attention.weights.mean(dim=0)  # (T, S); row t predicts token t
    by_word = torch.zeros(len(target_words.words), len(source_words.words))
    n_tokens = torch.zeros(len(target_words.words))
    # zip stops before the source's EOS, which belongs to no word, and before tokens that were cut off.
    for row, target_word in zip(weights, target_words.word_of_token, strict=False):
        n_tokens[target_word] += 1
        for weight, source_word in zip(row, source_words.word_of_token, strict=False):
            by_word[target_word, source_word] += weight
    best = (by_word / n_tokens.clamp(min=1)[:, None]).max(dim=1)
    first_index = len(source) - len(source.lstrip()) if _is_by_character(tokenizer) else 0
    return [
        WordAlignment(word, source_words.words[i], first_index + i, weight)
        for word, i, weight in zip(target_words.words, best.indices.tolist(), best.values.tolist(), strict=True)
    ]


class _SplitText(NamedTuple):
    words: list[str]
    ids: list[int]
    word_of_token: list[int]  # index of the word that each token belongs to


def _split_words(tokenizer: Tokenizer, text: str) -> _SplitText:
    """The words of a text, split at whitespace, and its tokens; the words of a character tokenizer are characters.
    A token may start with the space before its word."""
    pattern = r"(?s)." if _is_by_character(tokenizer) else r"\S+"
    spans = [match.span() for match in re.finditer(pattern, text)]
    encoded = tokenizer.encode_with_offsets(text)
    word_ends = [end for _, end in spans]
    offsets = encoded.offsets if spans else []
    word_of_token = [min(bisect_left(word_ends, max(end, 1)), len(spans) - 1) for _, end in offsets]
    return _SplitText([text[start:end] for start, end in spans], list(encoded.ids), word_of_token)


def _is_by_character(tokenizer: Tokenizer) -> bool:
    """Whether every token but the special ones is a single character, and spaces are tokens too."""
    special_tokens = tokenizer.special_ids
    has_single_characters = all(len(token) == 1 for token in tokenizer.vocab if token not in special_tokens)
    return has_single_characters and not tokenizer.drops_whitespace
