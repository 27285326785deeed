"""A family: the context is an average of earlier embeddings that decays, at a learned rate per channel."""

import torch
from torch import Tensor, nn

import headway
from headway.config import ModelConfig
from headway.models import UncachedLM


class DecayConfig(ModelConfig, frozen=True, kw_only=True):
    context: int = 128  # tokens of a training or evaluation window
    d_model: int = 128


class Decay(UncachedLM):
    """A decaying average of embeddings, and one hidden layer."""

    def __init__(self, config: DecayConfig):
        super().__init__()
        self.config, D = config, config.d_model
        self.embedding, self.output = nn.Embedding(config.vocab_size, D), nn.Linear(D, config.vocab_size)
        self.rate, self.hidden = nn.Parameter(torch.empty(D)), nn.Linear(2 * D, D)

    def init_weights(self) -> None:
        for layer in (self.embedding, self.hidden, self.output):
            layer.reset_parameters()
        nn.init.uniform_(self.rate, -2.0, 4.0)  # averages over about 1 to 50 tokens

    def forward(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        x, positions = self.embedding(ids), torch.arange(ids.shape[1], device=ids.device)  # (B, T, D), (T,)
        age = positions[:, None] - positions  # (T, T): how many tokens ago
        weights = self.rate.sigmoid() ** age.clamp(min=0)[..., None] * (age >= 0)[..., None]  # (T, T, D)
        context = torch.einsum("tsd,bsd->btd", weights / weights.sum(dim=1, keepdim=True), x)
        logits: Tensor = self.output(nn.functional.gelu(self.hidden(torch.cat((x, context), dim=-1))))
        return logits


headway.register("family", "decay", Decay, config=DecayConfig)
