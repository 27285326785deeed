"""Homework: build the Transformer of the lectures. Fill in everything that raises NotImplementedError.

    headway check homework homework.py

tells you which parts are right, which are not done yet, and what is wrong with the others. README.md has the task.
Keep the names, the arguments and the modules that `__init__` creates: the checker copies weights into them.

Shapes: B batch, T target positions, S source positions, D model width, H heads, K = D / H, V vocabulary.
In a mask, True means "may be attended to". Masks broadcast to (B, T, S).
"""

import copy
import math  # noqa: F401 (you will need it)
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: F401 (you will need it)
from torch import Tensor, nn

NORM_EPS = 1e-6
MAX_LENGTH = 512  # positions that are tabulated

# ── attention ─────────────────────────────────────────────────────────────────────────────────────────────────────


def causal_mask(n: int) -> Tensor:
    """(1, n, n): position t may attend to positions 0 … t, to itself and to what came before.

    Fill in: a boolean tensor (1, n, n), True where row t may attend to column s.
    """
    raise NotImplementedError


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: nn.Module | None = None
) -> tuple[Tensor, Tensor]:
    """softmax(Q Kᵀ / √K) V, eq. 1. query (…, T, K), key and value (…, S, K) → output (…, T, K), weights (…, T, S).

    Fill in: scores, mask, softmax, weighted sum: return the output and the weights.
    """
    # 1. scores (…, T, S): every query times every key, divided by √K
    # 2. where the mask is False, scores are −∞ (if there is a mask)
    # 3. weights: softmax over the keys
    # 4. dropout on the weights (if it is given)
    # 5. the output: values, weighted
    raise NotImplementedError


def clones(module: nn.Module, n: int) -> nn.ModuleList:
    """n copies of a module, each with weights of its own.

    Fill in: an nn.ModuleList of n deep copies.
    """
    raise NotImplementedError


class MultiHeadAttention(nn.Module):
    """H attentions side by side, each on its own K of the D columns of Q, K and V; concatenated, times W^O (§3.2.2)."""

    def __init__(self, n_heads: int, d_model: int, dropout: float = 0.1):
        super().__init__()
        self.n_heads, self.d_head = n_heads, d_model // n_heads
        self.linears = clones(nn.Linear(d_model, d_model), 4)  # W^Q, W^K, W^V and W^O
        self.dropout = nn.Dropout(dropout)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """query (B, T, D), key and value (B, S, D) → (B, T, D).

        Fill in: project, split, attend, join, project.
        """
        # 1. project query, key and value with the first three of self.linears, and split each into heads
        # 2. give the mask an axis for the heads
        # 3. call `attention`: all heads at once
        # 4. join the heads again, (B, H, T, K) → (B, T, D), and multiply by W^O, the last of self.linears
        raise NotImplementedError

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, T, D) → (B, H, T, K): head h has the columns from h K to (h + 1) K.

        Fill in: view, then transpose.
        """
        raise NotImplementedError


# ── inputs and outputs ────────────────────────────────────────────────────────────────────────────────────────────


class Embeddings(nn.Module):
    """A row of a learned table for every token id, times √D (§3.4): (B, T) → (B, T, D)."""

    def __init__(self, vocab_size: int, d_model: int):
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model)
        self.d_model = d_model

    def forward(self, ids: Tensor) -> Tensor:
        """Fill in: rows of self.table, times √D."""
        raise NotImplementedError


class PositionalEncoding(nn.Module):
    """Add PE(pos, 2i) = sin(pos / 10000^(2i/D)) and PE(pos, 2i + 1) = cos(the same), pos from 0 (§3.5)."""

    encoding: Tensor

    def __init__(self, d_model: int, dropout: float = 0.1, max_length: int = MAX_LENGTH):
        super().__init__()
        encoding = torch.zeros(max_length, d_model)
        # Fill in the table: sines in the even columns, cosines in the odd ones. The first row is that of position 0.
        if not encoding.any():
            raise NotImplementedError
        self.register_buffer("encoding", encoding, persistent=False)  # a formula: nothing to learn or to save
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D)
        """Fill in: x plus the first T rows of self.encoding; then dropout."""
        raise NotImplementedError


class FeedForward(nn.Module):
    """max(0, x W₁ + b₁) W₂ + b₂ at every position (§3.3, eq. 2)."""

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.1):
        super().__init__()
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Fill in: up, ReLU, dropout, down."""
        raise NotImplementedError


class Generator(nn.Module):
    """Hidden states (B, T, D) → log-probabilities of the next token (B, T, V)."""

    def __init__(self, d_model: int, vocab_size: int):
        super().__init__()
        self.projection = nn.Linear(d_model, vocab_size)

    def forward(self, x: Tensor) -> Tensor:
        """Fill in: project, then log-softmax over the vocabulary."""
        raise NotImplementedError


# ── layers and stacks ─────────────────────────────────────────────────────────────────────────────────────────────


class SublayerConnection(nn.Module):
    """Norm, sublayer, residual: x + sublayer(norm(x))."""

    def __init__(self, d_model: int, dropout: float = 0.1):
        super().__init__()
        self.norm = nn.LayerNorm(d_model, eps=NORM_EPS)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Fill in: norm, sublayer, dropout, residual."""
        raise NotImplementedError


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network."""

    def __init__(self, d_model: int, self_attention: nn.Module, feed_forward: nn.Module, dropout: float = 0.1):
        super().__init__()
        self.self_attention, self.feed_forward = self_attention, feed_forward
        self.sublayers = clones(SublayerConnection(d_model, dropout), 2)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:  # (B, S, D), mask (B, 1, S)
        """Fill in: self-attention and feed-forward, each in its connection of self.sublayers."""
        # self.sublayers[0](x, f) adds f(norm(x)) to x; f takes one argument.
        raise NotImplementedError


class Encoder(nn.Module):
    """Copies of a layer on top of each other, and a last norm."""

    def __init__(self, layer: nn.Module, n_layers: int, d_model: int):
        super().__init__()
        self.layers = clones(layer, n_layers)
        self.norm = nn.LayerNorm(d_model, eps=NORM_EPS)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Fill in: all layers in turn, then the last norm."""
        raise NotImplementedError


class DecoderLayer(nn.Module):
    """Self-attention over the target so far, cross-attention over the source, then the feed-forward network."""

    def __init__(
        self,
        d_model: int,
        self_attention: nn.Module,
        cross_attention: nn.Module,
        feed_forward: nn.Module,
        dropout: float = 0.1,
    ):
        super().__init__()
        self.self_attention, self.cross_attention = self_attention, cross_attention
        self.feed_forward = feed_forward
        self.sublayers = clones(SublayerConnection(d_model, dropout), 3)

    def forward(self, x: Tensor, memory: Tensor, source_mask: Tensor | None, target_mask: Tensor | None) -> Tensor:
        """x (B, T, D), memory (B, S, D): the last encoder layer's output, read by every decoder layer.

        Fill in: self-attention, cross-attention, feed-forward, each in its connection.
        """
        raise NotImplementedError


class Decoder(nn.Module):
    """Copies of a layer on top of each other, and a last norm."""

    def __init__(self, layer: nn.Module, n_layers: int, d_model: int):
        super().__init__()
        self.layers = clones(layer, n_layers)
        self.norm = nn.LayerNorm(d_model, eps=NORM_EPS)

    def forward(self, x: Tensor, memory: Tensor, source_mask: Tensor | None, target_mask: Tensor | None) -> Tensor:
        """Fill in: all layers in turn, then the last norm."""
        raise NotImplementedError


# ── the model ─────────────────────────────────────────────────────────────────────────────────────────────────────


class EncoderDecoder(nn.Module):
    """Figure 1 of the paper: source and target token ids → log-probabilities of each next target token."""

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        source_embedding: nn.Module,
        target_embedding: nn.Module,
        generator: nn.Module,
    ):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.source_embedding, self.target_embedding = source_embedding, target_embedding
        self.generator = generator

    def forward(
        self, source: Tensor, target: Tensor, source_mask: Tensor | None = None, target_mask: Tensor | None = None
    ) -> Tensor:
        """source (B, S), target (B, T) → (B, T, V). Without `target_mask`, the target is masked causally.

        Fill in: encode, decode, generate.
        """
        raise NotImplementedError

    def encode(self, source: Tensor, source_mask: Tensor | None) -> Tensor:
        """Fill in: embed the source, then the encoder."""
        raise NotImplementedError

    def decode(
        self, memory: Tensor, source_mask: Tensor | None, target: Tensor, target_mask: Tensor | None = None
    ) -> Tensor:
        """Fill in: embed the target, then the decoder; without target_mask, use causal_mask(T)."""
        raise NotImplementedError


def make_model(
    source_vocab: int,
    target_vocab: int,
    n_layers: int = 6,
    d_model: int = 512,
    d_ff: int = 2048,
    n_heads: int = 8,
    dropout: float = 0.1,
) -> EncoderDecoder:
    """The whole model; the defaults are those of the paper's base model (Table 3)."""
    attend = MultiHeadAttention(n_heads, d_model, dropout)
    feed_forward = FeedForward(d_model, d_ff, dropout)
    add_positions = PositionalEncoding(d_model, dropout)
    new = copy.deepcopy  # every layer gets weights of its own
    encoder_layer = EncoderLayer(d_model, new(attend), new(feed_forward), dropout)
    decoder_layer = DecoderLayer(d_model, new(attend), new(attend), new(feed_forward), dropout)
    model = EncoderDecoder(
        Encoder(encoder_layer, n_layers, d_model),
        Decoder(decoder_layer, n_layers, d_model),
        nn.Sequential(Embeddings(source_vocab, d_model), add_positions),
        nn.Sequential(Embeddings(target_vocab, d_model), add_positions),
        Generator(d_model, target_vocab),
    )
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    return model
