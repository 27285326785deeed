"""Heads on an encoder: text classification, tagging, and extractive question answering.

    Classifier   the pooled text → a label                    Devlin et al. 2019, §4.1
    Tagger       every token → a tag                          §5.3
    SpanReader   every token → start and end score            §4.2

Label and tag names are part of the config, so a saved model includes them.
"""

import warnings

import torch
from torch import Tensor, nn

from headway.config import BagOfWordsConfig, BERTConfig, BiLSTMConfig
from headway.errors import ConfigError, count
from headway.models.bag_of_words import BagOfWords
from headway.models.base import Model, tokenizer_of
from headway.models.bert import BERT
from headway.models.bilstm import BiLSTM
from headway.nn.init import truncated_normal

TextEncoder = BERT | BiLSTM | BagOfWords
TextEncoderConfig = BERTConfig | BiLSTMConfig | BagOfWordsConfig


class Head(Model):
    """Base of the three heads: an encoder, dropout, and a linear layer with the encoder's device and dtype."""

    config: TextEncoderConfig

    def __init__(self, encoder: TextEncoder, n_outputs: int):
        super().__init__()
        self.encoder, self.config, self.tokenizer = encoder, encoder.config, tokenizer_of(encoder)
        self.dropout = nn.Dropout(encoder.config.dropout)
        self.output = nn.Linear(encoder.width, n_outputs, device=encoder.device, dtype=encoder.dtype)
        self.init_weights()

    def _describe(self) -> list[str]:
        labels = [count(len(self.config.labels), "label")] if self.config.labels else []
        return [self.encoder.display_name, *labels, *super()._describe()]

    def init_weights(self) -> None:
        """Only the head: the encoder is already initialised."""
        truncated_normal(self.output, std=0.02)


def _n_labels(config: TextEncoderConfig) -> int:
    if not config.labels:
        raise ConfigError(f"this head needs the names of its labels: {type(config).__name__}(labels=[…])")
    return len(config.labels)


class Classifier(Head):
    def __init__(self, encoder: TextEncoder):
        super().__init__(encoder, _n_labels(encoder.config))

    def forward(self, ids: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Logits of the labels (B, C)."""
        if not self.training:
            self._check_start(ids)
        return self.output(self.dropout(self.encoder.pool(self.encoder(ids, mask, segments), mask)))

    def _check_start(self, ids: Tensor) -> None:
        """Warn if a text does not start as in training, with [CLS], whose hidden state gives the label. On a GPU the
        check is skipped: it would force a synchronisation."""
        tokenizer = tokenizer_of(self)
        if tokenizer is None or ids.device.type != "cpu" or torch.compiler.is_compiling() or ids.dim() != 2:
            return
        expected = tokenizer.build_inputs([])[0][:1]
        if expected and ids.shape[1] and bool((ids[:, 0] != expected[0]).any()):
            warnings.warn(
                f"a text does not start with {tokenizer.token(expected[0])}, as all training texts did: encode it with "
                f"tokenizer.build_inputs(tokenizer.encode(text))[0]",
                stacklevel=4,
            )


class Tagger(Head):
    def __init__(self, encoder: TextEncoder):
        super().__init__(encoder, _n_labels(encoder.config))

    def forward(self, ids: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Logits of the tags (B, T, C)."""
        return self.output(self.dropout(self.encoder(ids, mask, segments)))


class SpanReader(Head):
    def __init__(self, encoder: BERT | BiLSTM):
        super().__init__(encoder, 2)
        self.has_segments = isinstance(encoder.config, BERTConfig) and encoder.config.n_segments > 1

    def forward(self, ids: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Logits (B, 2, T) of each token as the start and as the end of the answer. For an encoder without segments,
        [SEP] alone tells the question from its context."""
        return self.output(self.encoder(ids, mask, segments if self.has_segments else None)).transpose(1, 2)
