"""The Transformer of the lectures in one file: an encoder and a decoder of linear layers (Vaswani et al. 2017).

    python examples/own_transformer.py

Read it from top to bottom beside the lecture. It first prints how far its log-probabilities are from those of Headway's
`transformer` with the same weights, then learns to copy sequences: well under a minute on one CPU thread.
`examples/homework/homework.py` is this file with blanks, and `headway check homework FILE` tells you what is wrong with
your solution.

Shapes: B batch, T target positions, S source positions, D model width, H heads, K = D / H, V vocabulary.
In a mask, True means "may be attended to". Masks broadcast to (B, T, S).

Departures from the paper, all of them the lectures':
- Norms stand before each sublayer, and a last one closes each stack, whose residual stream is otherwise unnormalised.
  The paper normalises after each residual connection and needs no last norm.
- There are two vocabularies, and the generator has a matrix and a bias of its own. The paper shares one matrix.
- Dropout is also applied to the attention weights.
And two from the lectures: `nn.LayerNorm` divides by √(variance + ε), ε = 1e-6, not by standard deviation + ε; and the
positional encoding is cut to the length of the sequence, where a slide cuts the batch axis.
"""

import argparse
import copy
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headway

NORM_EPS = 1e-6
MAX_LENGTH = 512  # positions that are tabulated

# ── attention ─────────────────────────────────────────────────────────────────────────────────────────────────────


def causal_mask(n: int) -> Tensor:
    """(1, n, n): position t may attend to positions 0 … t, to itself and to what came before."""
    return torch.ones(1, n, n, dtype=torch.bool).tril()


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: nn.Module | None = None
) -> tuple[Tensor, Tensor]:
    """softmax(Q Kᵀ / √K) V, eq. 1. query (…, T, K), key and value (…, S, K) → output (…, T, K), weights (…, T, S)."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(dim=-1)  # each query's weights sum to 1
    if dropout is not None:
        weights = dropout(weights)
    return weights @ value, weights


def clones(module: nn.Module, n: int) -> nn.ModuleList:
    """n copies of a module, each with weights of its own."""
    return nn.ModuleList(copy.deepcopy(module) for _ in range(n))


class MultiHeadAttention(nn.Module):
    """H attentions side by side, each on its own K of the D columns of Q, K and V; concatenated, times W^O (§3.2.2)."""

    def __init__(self, n_heads: int, d_model: int, dropout: float = 0.1):
        super().__init__()
        self.n_heads, self.d_head = n_heads, d_model // n_heads
        self.linears = clones(nn.Linear(d_model, d_model), 4)  # W^Q, W^K, W^V and W^O
        self.dropout = nn.Dropout(dropout)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """query (B, T, D), key and value (B, S, D) → (B, T, D)."""
        to_query, to_key, to_value, to_output = self.linears
        q = self.split_heads(to_query(query))
        k = self.split_heads(to_key(key))
        v = self.split_heads(to_value(value))
        if mask is not None:
            mask = mask.unsqueeze(1)  # the same for all heads
        heads, _ = attention(q, k, v, mask, self.dropout)  # (B, H, T, K)
        concatenated = heads.transpose(1, 2).flatten(2)  # (B, T, D)
        output: Tensor = to_output(concatenated)
        return output

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, T, D) → (B, H, T, K): head h has the columns from h K to (h + 1) K."""
        return x.view(x.size(0), -1, self.n_heads, self.d_head).transpose(1, 2)


# ── inputs and outputs ────────────────────────────────────────────────────────────────────────────────────────────


class Embeddings(nn.Module):
    """A row of a learned table for every token id, times √D (§3.4): (B, T) → (B, T, D)."""

    def __init__(self, vocab_size: int, d_model: int):
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model)
        self.d_model = d_model

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.table(ids)
        return x * math.sqrt(self.d_model)


class PositionalEncoding(nn.Module):
    """Add PE(pos, 2i) = sin(pos / 10000^(2i/D)) and PE(pos, 2i + 1) = cos(the same), pos from 0 (§3.5)."""

    encoding: Tensor

    def __init__(self, d_model: int, dropout: float = 0.1, max_length: int = MAX_LENGTH):
        super().__init__()
        position = torch.arange(max_length).unsqueeze(1)  # (T, 1)
        frequency = 10_000.0 ** (-torch.arange(0, d_model, 2) / d_model)  # (D/2,): from 1 down to nearly 1/10000
        encoding = torch.zeros(max_length, d_model)
        encoding[:, 0::2] = torch.sin(position * frequency)
        encoding[:, 1::2] = torch.cos(position * frequency)
        self.register_buffer("encoding", encoding, persistent=False)  # a formula: nothing to learn or to save
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D)
        output: Tensor = self.dropout(x + self.encoding[: x.size(1)])
        return output


class FeedForward(nn.Module):
    """max(0, x W₁ + b₁) W₂ + b₂ at every position (§3.3, eq. 2)."""

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.1):
        super().__init__()
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down(self.dropout(F.relu(self.up(x))))
        return output


class Generator(nn.Module):
    """Hidden states (B, T, D) → log-probabilities of the next token (B, T, V)."""

    def __init__(self, d_model: int, vocab_size: int):
        super().__init__()
        self.projection = nn.Linear(d_model, vocab_size)

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.projection(x), dim=-1)


# ── layers and stacks ─────────────────────────────────────────────────────────────────────────────────────────────


class SublayerConnection(nn.Module):
    """Norm, sublayer, residual: x + sublayer(norm(x))."""

    def __init__(self, d_model: int, dropout: float = 0.1):
        super().__init__()
        self.norm = nn.LayerNorm(d_model, eps=NORM_EPS)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        output: Tensor = x + self.dropout(sublayer(self.norm(x)))
        return output


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network."""

    def __init__(self, d_model: int, self_attention: nn.Module, feed_forward: nn.Module, dropout: float = 0.1):
        super().__init__()
        self.self_attention, self.feed_forward = self_attention, feed_forward
        self.sublayers = clones(SublayerConnection(d_model, dropout), 2)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:  # (B, S, D), mask (B, 1, S)
        x = self.sublayers[0](x, lambda x: self.self_attention(x, x, x, mask))
        output: Tensor = self.sublayers[1](x, self.feed_forward)
        return output


class Encoder(nn.Module):
    """Copies of a layer on top of each other, and a last norm."""

    def __init__(self, layer: nn.Module, n_layers: int, d_model: int):
        super().__init__()
        self.layers = clones(layer, n_layers)
        self.norm = nn.LayerNorm(d_model, eps=NORM_EPS)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        output: Tensor = self.norm(x)
        return output


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
        """x (B, T, D), memory (B, S, D): the last encoder layer's output, read by every decoder layer."""
        x = self.sublayers[0](x, lambda x: self.self_attention(x, x, x, target_mask))
        x = self.sublayers[1](x, lambda x: self.cross_attention(x, memory, memory, source_mask))
        output: Tensor = self.sublayers[2](x, self.feed_forward)
        return output


class Decoder(nn.Module):
    """Copies of a layer on top of each other, and a last norm."""

    def __init__(self, layer: nn.Module, n_layers: int, d_model: int):
        super().__init__()
        self.layers = clones(layer, n_layers)
        self.norm = nn.LayerNorm(d_model, eps=NORM_EPS)

    def forward(self, x: Tensor, memory: Tensor, source_mask: Tensor | None, target_mask: Tensor | None) -> Tensor:
        for layer in self.layers:
            x = layer(x, memory, source_mask, target_mask)
        output: Tensor = self.norm(x)
        return output


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
        """source (B, S), target (B, T) → (B, T, V). Without `target_mask`, the target is masked causally."""
        output: Tensor = self.generator(self.decode(self.encode(source, source_mask), source_mask, target, target_mask))
        return output

    def encode(self, source: Tensor, source_mask: Tensor | None) -> Tensor:
        memory: Tensor = self.encoder(self.source_embedding(source), source_mask)
        return memory

    def decode(
        self, memory: Tensor, source_mask: Tensor | None, target: Tensor, target_mask: Tensor | None = None
    ) -> Tensor:
        if target_mask is None:
            target_mask = causal_mask(target.size(1))
        hidden: Tensor = self.decoder(self.target_embedding(target), memory, source_mask, target_mask)
        return hidden


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


# ── the same as Headway's ─────────────────────────────────────────────────────────────────────────────────────────


def distance_to_headway(dtype: torch.dtype = torch.float64, seed: int = 0) -> float:
    """The largest difference of a log-probability between this model and Headway's `transformer` with its weights.

    In float64, so that rounding cannot hide a difference. Headway shares one table between source and target, so both
    tables are set to it; its generator has no bias, so ours is set to 0.
    """
    torch.manual_seed(seed)
    theirs = headway.create(
        "transformer",
        vocab_size=100,
        n_layers=3,
        d_model=64,
        n_heads=4,
        norm_order="pre",
        norm_eps=NORM_EPS,
        tie_embeddings=False,
    )
    own = make_model(100, 100, n_layers=3, d_model=64, d_ff=256, n_heads=4)
    copy_weights(theirs, own)
    theirs.to(dtype).eval()
    own.to(dtype).eval()
    source, target = torch.randint(100, (4, 9)), torch.randint(100, (4, 7))
    source_mask = torch.arange(9) < torch.tensor([9, 5, 7, 9])[:, None]  # rows of different lengths: (B, S)
    with torch.no_grad():
        expected = theirs(target, source=source, source_mask=source_mask).log_softmax(-1)
        difference = own(source, target, source_mask.unsqueeze(1)) - expected
    return float(difference.abs().max())


def copy_weights(theirs: headway.models.Transformer, own: EncoderDecoder) -> None:
    """Headway stacks W^Q, W^K and W^V in one matrix; everything else has a counterpart here."""
    weights = theirs.state_dict()
    copied: dict[str, Tensor] = {
        "source_embedding.0.table.weight": weights["embedding.weight"],
        "target_embedding.0.table.weight": weights["embedding.weight"],
        "generator.projection.weight": weights["embedding.output"],
        "generator.projection.bias": torch.zeros(len(weights["embedding.output"])),
    }
    for kind in ("weight", "bias"):
        for side in ("encoder", "decoder"):
            copied[f"{side}.norm.{kind}"] = weights[f"{side}.norm.{kind}"]
            for i in range(theirs.config.n_layers):
                block, layer = f"{side}.blocks.{i}", f"{side}.layers.{i}"
                attentions = {"self_attention": weights[f"{block}.attention.qkv.{kind}"].chunk(3)}
                norms = ["norm1", "norm2"]
                copied[f"{layer}.self_attention.linears.3.{kind}"] = weights[f"{block}.attention.out.{kind}"]
                if side == "decoder":
                    norms.insert(1, "cross_norm")
                    cross = f"{block}.cross_attention"
                    keys_and_values = weights[f"{cross}.kv.{kind}"].chunk(2)
                    attentions["cross_attention"] = (weights[f"{cross}.q.{kind}"], *keys_and_values)
                    copied[f"{layer}.cross_attention.linears.3.{kind}"] = weights[f"{cross}.out.{kind}"]
                for name, matrices in attentions.items():
                    for j, matrix in enumerate(matrices):
                        copied[f"{layer}.{name}.linears.{j}.{kind}"] = matrix
                for j, norm in enumerate(norms):
                    copied[f"{layer}.sublayers.{j}.norm.{kind}"] = weights[f"{block}.{norm}.{kind}"]
                for name in ("up", "down"):
                    copied[f"{layer}.feed_forward.{name}.{kind}"] = weights[f"{block}.feed_forward.{name}.{kind}"]
    own.load_state_dict(copied)


# ── learning to copy ──────────────────────────────────────────────────────────────────────────────────────────────

START = 0  # the first token of every target
N_SYMBOLS, LENGTH = 10, 8


def random_sequences(n: int, generator: torch.Generator) -> Tensor:
    """(n, LENGTH) symbols from 1 to N_SYMBOLS."""
    return torch.randint(1, N_SYMBOLS + 1, (n, LENGTH), generator=generator)


def decoder_inputs(target: Tensor) -> Tensor:
    """The target shifted right by one: at each position the decoder sees what came before it (teacher forcing)."""
    return F.pad(target[:, :-1], (1, 0), value=START)


@torch.no_grad()
def greedy_decode(model: EncoderDecoder, source: Tensor, n_tokens: int) -> Tensor:
    """The most likely token, appended and fed back: (B, S) → (B, n_tokens)."""
    memory = model.encode(source, None)
    target = torch.full((len(source), 1), START)
    for _ in range(n_tokens):
        hidden = model.decode(memory, None, target)
        next_token = model.generator(hidden[:, -1:]).argmax(dim=-1)
        target = torch.cat((target, next_token), dim=1)
    return target[:, 1:]


def learn_to_copy(steps: int = 400, seed: int = 0, *, verbose: bool = True) -> float:
    """Train on random sequences; return the fraction of 200 unseen ones that greedy decoding copies without a mistake.

    There are 10⁸ sequences, so those of the test have almost certainly not been seen.
    """
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    model = make_model(N_SYMBOLS + 1, N_SYMBOLS + 1, n_layers=2, d_model=64, d_ff=128, n_heads=4, dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    for step in range(1, steps + 1):
        sequences = random_sequences(64, random)
        log_probs = model(sequences, decoder_inputs(sequences))
        loss = F.nll_loss(log_probs.flatten(0, 1), sequences.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        if verbose and (step % (steps // 8 or 1) == 0 or step == 1):
            accuracy = (log_probs.argmax(-1) == sequences).float().mean()
            print(f"step {step:>4}  loss {loss.item():.3f}  next-token accuracy {accuracy:.1%}", flush=True)
    model.eval()
    test = random_sequences(200, random)
    copies = greedy_decode(model, test, LENGTH)
    if verbose:
        print(f"source {test[0].tolist()}\ncopy   {copies[0].tolist()}")
    return float((copies == test).all(dim=1).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="training steps of the copy task")
    options = parser.parse_args()
    print(f"largest difference from Headway's transformer: {distance_to_headway():.1e} nats")
    print(f"{learn_to_copy(options.steps):.0%} of 200 unseen sequences are copied without a mistake")


if __name__ == "__main__":
    main()
