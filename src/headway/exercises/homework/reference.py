"""The Transformer of the homework, right and with every known mistake.

The parts have the names, arguments and parameters of examples/homework/homework.py. Each of them asks `planted` which
mistakes are in force, so that one set of weights gives the right output and that of any combination of mistakes:

    layer = ReferenceMultiHeadAttention(4, 16, 0.0)
    right = layer(x, x, x)
    with plant("no scale"):
        wrong = layer(x, x, x)

mistakes.py describes them. Tests compare the right version with Headway's own parts.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NORM_EPS = 1e-6
MAX_LENGTH = 64


_planted: ContextVar[frozenset[str]] = ContextVar("planted mistakes", default=frozenset())


@contextmanager
def plant(*mistakes: str) -> Iterator[None]:
    """Run the reference with these mistakes, named by their keys in mistakes.py."""
    token = _planted.set(frozenset(mistakes))
    try:
        yield
    finally:
        _planted.reset(token)


def planted(mistake: str) -> bool:
    return mistake in _planted.get()


# ── attention ─────────────────────────────────────────────────────────────────────────────────────────────────────

SHIFTS = {"mask shifted by 1": 1, "mask shifted by -1": -1, "mask shifted by 2": 2, "mask shifted by -2": -2}
ORDINALS = ("first", "second", "third", "fourth")  # the heads of the checker
FINITE_FILL = "hidden scores are −1e9"  # as right as −∞, but other mistakes show otherwise with it
FILLS = {"hidden scores are 0": 0.0, "hidden scores are 1e9": 1e9, FINITE_FILL: -1e9}
WRONG_AXES = {"softmax over queries": -2, "softmax over heads": -3, "softmax over the batch": 0}


# A mask (…, T or 1, S) that is moved by one where it is used, and the number of queries → what is used instead.
MOVED_MASKS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "mask without its diagonal": lambda mask, _: mask & torch.ones_like(mask).tril(-1),
    "mask without the diagonal": lambda mask, n: mask & mask.new_ones(n, mask.shape[-1]).tril(-1),
    "mask and a diagonal more": lambda mask, n: mask | mask.new_ones(n, mask.shape[-1]).tril(1),
    "mask rolled by 1 along the keys": lambda mask, _: mask.roll(1, -1),
    "mask rolled by -1 along the keys": lambda mask, _: mask.roll(-1, -1),
    "mask rolled by 1 along the queries": lambda mask, _: mask.roll(1, -2),
    "mask rolled by -1 along the queries": lambda mask, _: mask.roll(-1, -2),
    "mask moved by 1 along the keys": lambda mask, _: F.pad(mask, (1, 0))[..., :-1],
    "mask moved by -1 along the keys": lambda mask, _: F.pad(mask, (0, 1))[..., 1:],
    "mask moved by 1 along the queries": lambda mask, _: F.pad(mask, (0, 0, 1, 0))[..., :-1, :],
    "mask moved by -1 along the queries": lambda mask, _: F.pad(mask, (0, 0, 0, 1))[..., 1:, :],
    "mask or that of the key before": lambda mask, _: mask | mask.roll(1, -1),
    "mask and that of the key after": lambda mask, _: mask & mask.roll(-1, -1),
    "mask or that of the query after": lambda mask, _: mask | mask.roll(-1, -2),
    "mask and that of the query before": lambda mask, _: mask & mask.roll(1, -2),
}


def _moved(mask: Tensor | None, n_queries: int, prefix: str = "") -> Tensor | None:
    """The mask, unless a mistake that moves it is planted: `prefix` says which mask of a layer."""
    if mask is not None:
        for name, move in MOVED_MASKS.items():
            if planted(prefix + name):
                return move(mask, n_queries)
    return mask


def reference_causal_mask(n: int) -> Tensor:
    shift = next((offset for name, offset in SHIFTS.items() if planted(name)), 0)
    mask = torch.ones(1, n, n, dtype=torch.bool).tril(shift)
    if planted("mask transposed"):
        mask = mask.transpose(-2, -1)
    return ~mask if planted("mask inverted") else mask


def reference_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: nn.Module | None = None
) -> tuple[Tensor, Tensor]:
    if planted("Q and K swapped"):
        query, key = key, query
    scores = query @ key.transpose(-2, -1)
    mask = _moved(mask, scores.shape[-2])
    d_k = query.shape[-1]
    if planted("divided by d_k"):
        scores = scores / d_k
    elif planted("divided by √n"):
        scores = scores / math.sqrt(key.shape[-2])
    elif planted("multiplied by √d_k"):
        scores = scores * math.sqrt(d_k)
    elif not planted("no scale"):
        scores = scores / math.sqrt(d_k)
    is_before = mask is not None and not (planted("mask after softmax") or planted("mask ignored"))
    if mask is not None and is_before:
        visible = ~mask if planted("mask inverted in attention") else mask
        fill = next((number for name, number in FILLS.items() if planted(name)), -math.inf)
        scores = scores.masked_fill(~visible, fill)
    if planted("softmax over all entries"):
        weights = scores.flatten(-2).softmax(dim=-1).view_as(scores)
        return weights @ value, weights
    dim = next((axis for name, axis in WRONG_AXES.items() if planted(name)), -1)
    weights = scores.softmax(dim=dim if -scores.dim() <= dim else -1)
    if mask is not None and planted("mask after softmax"):
        weights = weights.masked_fill(~mask, 0.0)
    return weights @ value, weights


def reference_clones(module: nn.Module, n: int) -> nn.ModuleList:
    return nn.ModuleList(copy.deepcopy(module) for _ in range(n))


class ReferenceMultiHeadAttention(nn.Module):
    def __init__(self, n_heads: int, d_model: int, dropout: float = 0.1):
        super().__init__()
        self.n_heads, self.d_head = n_heads, d_model // n_heads
        self.linears = reference_clones(nn.Linear(d_model, d_model), 4)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        inputs, linears = [query, key, value], list(self.linears)
        if planted("queries from the keys"):
            inputs = [key, query, value]
        if planted("queries of `key`"):
            inputs[0] = key
        if planted("keys of `query`"):
            inputs[1] = query
        if planted("values of `key`"):
            inputs[2] = key
        if planted("W_Q and W_K swapped"):
            linears = [linears[1], linears[0], *linears[2:]]
        if planted("one matrix for Q, K and V"):
            linears = [linears[0], linears[0], linears[0], linears[3]]
        if planted("values from W_K"):
            linears[2] = linears[1]
        q, k, v = (self._split_heads(linears[i](inputs[i]), letter) for i, letter in enumerate("QKV"))
        mask = None if mask is None or planted("mask not passed on") else mask.unsqueeze(1)
        heads, _ = reference_attention(q, k, v, mask)
        if planted("heads joined without a transpose"):
            concatenated = heads.reshape(len(heads), heads.shape[2], -1)
        else:
            concatenated = heads.transpose(1, 2).flatten(2)
        return concatenated if planted("no output projection") else linears[3](concatenated)

    def _split_heads(self, x: Tensor, letter: str) -> Tensor:
        """(B, T, D) → (B, H, T, K)"""
        if planted("heads split without a transpose"):
            return x.reshape(len(x), self.n_heads, -1, self.d_head)
        if planted("heads interleaved"):
            return x.unflatten(-1, (self.d_head, self.n_heads)).permute(0, 3, 1, 2)
        heads = x.unflatten(-1, (self.n_heads, self.d_head)).transpose(1, 2)
        for i, name in enumerate(ORDINALS):
            if planted(f"every head uses the {name} head's W_{letter}") or planted(f"every head is the {name}"):
                heads = heads[:, [i % self.n_heads]].expand_as(heads)
        return heads


# ── inputs and outputs ────────────────────────────────────────────────────────────────────────────────────────────


class ReferenceEmbeddings(nn.Module):
    """`side` is "source" or "target" in a model; √d may be forgotten on one of them only."""

    def __init__(self, vocab_size: int, d_model: int):
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model)
        self.d_model = d_model
        self.side = ""

    def forward(self, ids: Tensor) -> Tensor:
        scale = math.sqrt(self.d_model)
        if planted("no √d on embeddings") or planted(f"no √d on embeddings, {self.side}"):
            scale = 1.0
        elif planted("embeddings divided by √d"):
            scale = 1 / scale
        elif planted("embeddings times d"):
            scale = float(self.d_model)
        return self.table(ids) * scale


OFFSETS = {"positions from 1": 1.0, "positions from -1": -1.0}


class ReferencePositionalEncoding(nn.Module):
    def __init__(self, d_model: int, dropout: float = 0.1, max_length: int = MAX_LENGTH):
        super().__init__()
        self.d_model = d_model

    def forward(self, x: Tensor) -> Tensor:  # (B, T, D)
        position = torch.arange(x.shape[1]) + next((o for name, o in OFFSETS.items() if planted(name)), 0.0)
        if planted("cut along the batch axis") or planted("one position per row"):
            position = torch.arange(x.shape[0]).float()
        even = torch.arange(0, self.d_model, 2)
        if planted("exponent i instead of 2i"):
            even = even // 2
        elif planted("frequencies off by one"):
            even = even + 2
        elif planted("exponent 2i + 1"):
            even = even + 1
        frequency = 10_000.0 ** (-even / self.d_model)
        angle = position[:, None] * frequency  # (T, D/2)
        sine = (angle + frequency if planted("sines from 1") else angle).sin()
        cosine = (angle + frequency if planted("cosines from 1") else angle).cos()
        pair = (cosine, sine) if planted("sine and cosine swapped") else (sine, cosine)
        is_apart = planted("sines before cosines")
        encoding = torch.cat(pair, dim=-1) if is_apart else torch.stack(pair, dim=-1).flatten(-2)
        if planted("one position per row"):
            encoding = encoding[:, None]
        if planted("no encoding"):
            return x
        return encoding.expand_as(x) if planted("embeddings replaced") else x + encoding


class ReferenceFeedForward(nn.Module):
    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.1):
        super().__init__()
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        if planted("GELU instead of ReLU"):
            return self.down(F.gelu(hidden))
        if planted("ReLU after W₂"):
            return F.relu(self.down(hidden))
        return self.down(hidden if planted("no ReLU") else F.relu(hidden))


class ReferenceGenerator(nn.Module):
    def __init__(self, d_model: int, vocab_size: int):
        super().__init__()
        self.projection = nn.Linear(d_model, vocab_size)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.projection(x)
        if planted("logits instead of log-probabilities"):
            return logits
        if planted("probabilities instead of log-probabilities"):
            return logits.softmax(dim=-1)
        if planted("log-softmax over positions"):
            return F.log_softmax(logits, dim=-2)
        return F.log_softmax(logits, dim=0 if planted("log-softmax over the batch") else -1)


# ── layers and stacks ─────────────────────────────────────────────────────────────────────────────────────────────


class ReferenceSublayerConnection(nn.Module):
    """`place` is the number of the sublayer in its layer; mistakes may be in one of them only."""

    def __init__(self, d_model: int, dropout: float = 0.1):
        super().__init__()
        self.norm = nn.LayerNorm(d_model, eps=NORM_EPS)
        self.place = ""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self._has("norm after the residual"):
            return self._norm(x + sublayer(x))
        if self._has("norm after the sublayer"):
            return x + self._norm(sublayer(x))
        if self._has("norm before and after"):
            return self._norm(x + sublayer(self._norm(x)))
        if self._has("no norm"):
            return x + sublayer(x)
        if self._has("norm on the residual path"):
            return self._norm(x) + sublayer(self._norm(x))
        if self._has("only the residual normalised"):
            return self._norm(x) + sublayer(x)
        if self._has("no residual, norm after"):
            return self._norm(sublayer(x))
        if self._has("no residual, no norm"):
            return sublayer(x)
        y = sublayer(self._norm(x))
        return y if self._has("no residual") else x + y

    def _norm(self, x: Tensor) -> Tensor:
        if self._has("standard deviation with D − 1"):
            scaled = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + NORM_EPS)
            return scaled * self.norm.weight + self.norm.bias
        return self.norm(x)

    def _has(self, mistake: str) -> bool:
        return planted(mistake) or planted(f"{mistake}, {self.place}")


def _placed(sublayers: nn.ModuleList, places: tuple[str, ...]) -> nn.ModuleList:
    for sublayer, place in zip(sublayers, places, strict=True):
        if isinstance(sublayer, ReferenceSublayerConnection):
            sublayer.place = place
    return sublayers


class ReferenceEncoderLayer(nn.Module):
    def __init__(self, d_model: int, self_attention: nn.Module, feed_forward: nn.Module, dropout: float = 0.1):
        super().__init__()
        self.self_attention, self.feed_forward = self_attention, feed_forward
        sublayers = reference_clones(ReferenceSublayerConnection(d_model, dropout), 2)
        self.sublayers = _placed(sublayers, ("self-attention", "feed-forward"))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        mask = None if planted("source mask not passed on") else _moved(mask, x.shape[1], "source ")
        if planted("feed-forward first"):
            return self.sublayers[1](self.sublayers[0](x, self.feed_forward), lambda x: self._attend(x, mask))
        second = self.sublayers[0 if planted("one norm for all sublayers") else 1]
        return second(self.sublayers[0](x, lambda x: self._attend(x, mask)), self.feed_forward)

    def _attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.self_attention(x, x, x, mask)


class ReferenceEncoder(nn.Module):
    def __init__(self, layer: nn.Module, n_layers: int, d_model: int):
        super().__init__()
        self.layers = reference_clones(layer, n_layers)
        self.norm = nn.LayerNorm(d_model, eps=NORM_EPS)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = self.norm(x) if planted("norm before the layers") else x
        for layer in _stacked(self.layers):
            x = layer(x, None if planted("source mask not passed on") else mask)
        return _finished(x, self.norm)


class ReferenceDecoderLayer(nn.Module):
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
        sublayers = reference_clones(ReferenceSublayerConnection(d_model, dropout), 3)
        self.sublayers = _placed(sublayers, ("self-attention", "cross-attention", "feed-forward"))

    def forward(self, x: Tensor, memory: Tensor, source_mask: Tensor | None, target_mask: Tensor | None) -> Tensor:
        source_mask = None if planted("source mask not passed on") else source_mask
        target_mask = None if planted("target mask not passed on") else target_mask
        source_mask = _moved(source_mask, x.shape[1], "source ")
        target_mask = _moved(target_mask, x.shape[1], "target ")
        if planted("masks exchanged"):
            source_mask, target_mask = target_mask, source_mask

        def attend(x: Tensor) -> Tensor:
            return self.self_attention(x, x, x, target_mask)

        def attend_to_source(x: Tensor) -> Tensor:
            if planted("queries from the memory"):
                return self.cross_attention(memory, x, memory, source_mask)
            if planted("memory and target exchanged"):
                return self.cross_attention(memory, x, x, source_mask)
            if planted("keys from the target"):
                return self.cross_attention(x, x, memory, source_mask)
            if planted("cross-attention to the target"):
                return self.cross_attention(x, x, x, source_mask)
            return self.cross_attention(x, memory, memory, source_mask)

        functions = [attend, attend_to_source, self.feed_forward]
        if planted("cross-attention first"):
            functions = [attend_to_source, attend, self.feed_forward]
        for i, function in enumerate(functions):
            x = self.sublayers[0 if planted("one norm for all sublayers") else i](x, function)
        return x


class ReferenceDecoder(nn.Module):
    def __init__(self, layer: nn.Module, n_layers: int, d_model: int):
        super().__init__()
        self.layers = reference_clones(layer, n_layers)
        self.norm = nn.LayerNorm(d_model, eps=NORM_EPS)

    def forward(self, x: Tensor, memory: Tensor, source_mask: Tensor | None, target_mask: Tensor | None) -> Tensor:
        masks = (
            None if planted("source mask not passed on") else source_mask,
            None if planted("target mask not passed on") else target_mask,
        )
        x = self.norm(x) if planted("norm before the layers") else x
        for layer in _stacked(self.layers):
            x = layer(x, memory, *masks)
        return _finished(x, self.norm)


def _stacked(layers: nn.ModuleList) -> list[nn.Module]:
    if planted("one layer only"):
        return [layers[0]]
    return [layers[0] for _ in layers] if planted("layers share weights") else list(layers)


def _finished(x: Tensor, norm: nn.Module) -> Tensor:
    return x if planted("no last norm") or planted("norm before the layers") else norm(x)


# ── the model ─────────────────────────────────────────────────────────────────────────────────────────────────────


class ReferenceEncoderDecoder(nn.Module):
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
        memory = self.encode(source, source_mask)
        return self.generator(self.decode(memory, source_mask, target, target_mask))

    def encode(self, source: Tensor, source_mask: Tensor | None) -> Tensor:
        return self.encoder(self.source_embedding(source), source_mask)

    def decode(
        self, memory: Tensor, source_mask: Tensor | None, target: Tensor, target_mask: Tensor | None = None
    ) -> Tensor:
        if target_mask is None and not planted("no causal mask"):
            target_mask = reference_causal_mask(target.shape[1])
        return self.decoder(self.target_embedding(target), memory, source_mask, target_mask)


def reference_model(
    source_vocab: int,
    target_vocab: int,
    n_layers: int = 6,
    d_model: int = 512,
    d_ff: int = 2048,
    n_heads: int = 8,
    dropout: float = 0.1,
) -> ReferenceEncoderDecoder:
    def attend() -> nn.Module:
        return ReferenceMultiHeadAttention(n_heads, d_model, dropout)

    def feed_forward() -> nn.Module:
        return ReferenceFeedForward(d_model, d_ff, dropout)

    def embedding(vocab_size: int, side: str) -> nn.Module:
        embeddings = ReferenceEmbeddings(vocab_size, d_model)
        embeddings.side = side
        return nn.Sequential(embeddings, ReferencePositionalEncoding(d_model, dropout))

    return ReferenceEncoderDecoder(
        ReferenceEncoder(ReferenceEncoderLayer(d_model, attend(), feed_forward(), dropout), n_layers, d_model),
        ReferenceDecoder(
            ReferenceDecoderLayer(d_model, attend(), attend(), feed_forward(), dropout), n_layers, d_model
        ),
        embedding(source_vocab, "source"),
        embedding(target_vocab, "target"),
        ReferenceGenerator(d_model, target_vocab),
    )
