"""Heads on an encoder, for what is known about a text: one label, a tag per word, or where the answer stands.

    Classifier   the pooled text → one of the labels         Devlin et al. 2019, §4.1
    Tagger       every token → one of the tags               §5.3
    SpanReader   every token → is it the first, the last?    §4.2

The names of labels and tags are the config's, so that a saved model knows them.
"""

from torch import Tensor, nn

from headway.config import BERTConfig, BiLSTMConfig
from headway.errors import ConfigError
from headway.models.base import Model
from headway.models.bert import BERT
from headway.models.bilstm import BiLSTM
from headway.nn.init import truncated_normal

TextEncoder = BERT | BiLSTM


class Head(Model):
    """What the three share: an encoder, dropout, and one linear layer, which lives where the encoder does."""

    config: BERTConfig | BiLSTMConfig

    def __init__(self, encoder: TextEncoder, n_outputs: int):
        super().__init__()
        self.encoder, self.config, self.tokenizer = encoder, encoder.config, encoder.tokenizer
        self.dropout = nn.Dropout(encoder.config.dropout)
        self.output = nn.Linear(encoder.width, n_outputs, device=encoder.device, dtype=encoder.dtype)
        self.init_weights()

    def init_weights(self) -> None:
        """The head's alone: the encoder comes with weights of its own."""
        truncated_normal(self.output, std=0.02)


def _n_labels(config: BERTConfig | BiLSTMConfig) -> int:
    if not config.labels:
        raise ConfigError(f"this head needs the names it chooses from: {type(config).__name__}(labels=[…])")
    return len(config.labels)


class Classifier(Head):
    def __init__(self, encoder: TextEncoder):
        super().__init__(encoder, _n_labels(encoder.config))

    def forward(self, ids: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Logits of the labels (B, C)."""
        return self.output(self.dropout(self.encoder.pool(self.encoder(ids, mask, segments))))


class Tagger(Head):
    def __init__(self, encoder: TextEncoder):
        super().__init__(encoder, _n_labels(encoder.config))

    def forward(self, ids: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Logits of the tags (B, T, C)."""
        return self.output(self.dropout(self.encoder(ids, mask, segments)))


class SpanReader(Head):
    def __init__(self, encoder: BERT):
        super().__init__(encoder, 2)

    def forward(self, ids: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Scores (B, 2, T) of each token as the first and as the last of the answer."""
        return self.output(self.encoder(ids, mask, segments)).transpose(1, 2)
