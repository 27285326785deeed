"""The log-probabilities of the tags of every word, from its first subword. Long sentences are read in windows.

A window is as long as the context, and neighbours overlap by half. Each word is read from the window in whose middle it
lies, where it has the most context on both sides.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headway.data.padding import text_capacity
from headway.data.tag_schemes import OUTSIDE
from headway.data.words import NO_TOKEN, encode_words
from headway.models.heads import Tagger
from headway.prediction.batching import DEFAULT_BATCH_SIZE, EncoderInput, OnProgress, run_encoder

P_OUTSIDE = 0.99  # of O, for a word without a token, which no model can read


def word_log_probs(
    model: Tagger,
    sentences: Sequence[Sequence[str]],
    *,
    context: int | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    on_progress: OnProgress = lambda n_done: None,
) -> list[NDArray[np.float32]]:
    """The log-probability of every tag for every word, (words, tags) per sentence. `context` is the longest window in
    tokens, by default the model's."""
    labels, tokenizer = model.config.labels, model.tokenizer
    capacity, n_leading = text_capacity(tokenizer, model.config.context if context is None else context)
    encoded = encode_words(sentences, tokenizer)
    first_tokens = [np.array(words.first_tokens, dtype=np.int64) for words in encoded]
    windows: list[tuple[int, int, NDArray[np.int64]]] = []  # sentence, first token, the words that it is read for
    for number, (ids, _) in enumerate(encoded):
        starts = window_starts(len(ids), capacity)
        words = np.flatnonzero(first_tokens[number] != NO_TOKEN)
        nearest = nearest_window(first_tokens[number][words], starts, capacity)
        windows += [(number, starts[i], words[nearest == i]) for i in np.unique(nearest)]
    inputs = [
        EncoderInput(tokenizer.build_inputs(encoded[number].ids[start : start + capacity])[0])
        for number, start, _ in windows
    ]

    def forward(ids: Tensor, mask: Tensor | None, segments: Tensor | None) -> Tensor:
        return model(ids, mask).float().log_softmax(dim=-1).cpu()  # (B, T, C)

    log_probs = [np.tile(_without_token(labels), (len(words), 1)) for words in sentences]
    for i, row in run_encoder(
        model,
        inputs,
        forward,
        batch_size=batch_size,
        on_progress=lambda n_done: on_progress(n_done * len(sentences) // len(inputs)),
    ):
        number, start, words = windows[i]
        log_probs[number][words] = row.numpy()[n_leading + first_tokens[number][words] - start]
    return log_probs


def window_starts(n_tokens: int, width: int) -> list[int]:
    """The first tokens of windows that cover `n_tokens`; neighbours overlap by half a window or more."""
    last = max(0, n_tokens - width)  # the last window is full too
    return [*range(0, last, max(1, width // 2)), last]


def nearest_window(tokens: NDArray[np.int64], starts: Sequence[int], width: int) -> NDArray[np.int64]:
    """For each token (N,) the number of the window whose middle it is nearest to (N,)."""
    middles = np.array(starts) + (width - 1) / 2
    return np.searchsorted((middles[1:] + middles[:-1]) / 2, tokens)


def _without_token(labels: Sequence[str]) -> NDArray[np.float32]:
    """The log-probabilities (C,) of a word without a token: almost surely outside, or uniform if no tag means that."""
    probs: NDArray[Any] = np.full(len(labels), 1 / len(labels))
    if OUTSIDE in labels and len(labels) > 1:
        probs[:] = (1 - P_OUTSIDE) / (len(labels) - 1)
        probs[labels.index(OUTSIDE)] = P_OUTSIDE
    return np.log(probs).astype(np.float32)
