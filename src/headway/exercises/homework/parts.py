"""The parts of the homework: how each is built, on what it is tried, and which mistakes are known for it.

A part is built from a namespace: the student's file, or the reference. Parts below it come from the reference in both
cases, so that a wrong attention does not make everything above it wrong. Every call gets inputs of its own: code may
work in place.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headway.exercises.homework import reference
from headway.exercises.homework.mistakes import (
    MISTAKES,
    MOVED_SOURCE_MASKS,
    MOVED_TARGET_MASKS,
    PLACES,
    SUBLAYER_MISTAKES,
)

# Sizes, all different where a mix-up would otherwise go unnoticed.
B, T, S, H, K, F, V_SOURCE, V = 2, 5, 7, 4, 6, 32, 11, 13
D = H * K
N_LAYERS = 2

Namespace = Mapping[str, Any]
Outputs = dict[str, Tensor]

REFERENCE: dict[str, Any] = {
    "causal_mask": reference.reference_causal_mask,
    "attention": reference.reference_attention,
    "clones": reference.reference_clones,
    "MultiHeadAttention": reference.ReferenceMultiHeadAttention,
    "Embeddings": reference.ReferenceEmbeddings,
    "PositionalEncoding": reference.ReferencePositionalEncoding,
    "FeedForward": reference.ReferenceFeedForward,
    "Generator": reference.ReferenceGenerator,
    "SublayerConnection": reference.ReferenceSublayerConnection,
    "EncoderLayer": reference.ReferenceEncoderLayer,
    "Encoder": reference.ReferenceEncoder,
    "DecoderLayer": reference.ReferenceDecoderLayer,
    "Decoder": reference.ReferenceDecoder,
    "EncoderDecoder": reference.ReferenceEncoderDecoder,
    "make_model": reference.reference_model,
}


class StudentError(Exception):
    """The student's code raised, or cannot be compared; `result` is what to report."""

    def __init__(self, **result: Any):
        super().__init__(result.get("message", ""))
        self.result = result


@dataclass(frozen=True, eq=False)
class HomeworkPart:
    """`build` makes the part from a namespace, `cases` call it: description → outputs by name.

    `below` are the names that the part may use; they are taken from the reference. `mistakes` are keys of MISTAKES.
    `rare` ones are tried alone, not in pairs.
    `variants` are planted beside them in turn: other ways to write the right version, which differ where it is wrong.
    """

    name: str
    symbol: str
    statement: str
    build: Callable[[Namespace], Any]
    cases: Mapping[str, Callable[[Any], Outputs]]
    mistakes: tuple[str, ...] = ()
    rare: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    below: tuple[str, ...] = ()


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ids(n: int, vocab_size: int, seed: int = 0) -> Tensor:
    return torch.randint(vocab_size, (B, n), generator=torch.Generator().manual_seed(seed))


def padding(n: int) -> Tensor:
    """(B, 1, n): the second row ends two tokens early."""
    return torch.arange(n) < torch.tensor([n, n - 2])[:, None, None]


def causal(n: int) -> Tensor:
    return torch.ones(1, n, n, dtype=torch.bool).tril()


def call_with_copies(function: Any, *inputs: Tensor | None) -> Any:
    """Call with copies of the inputs, since a right solution may change its own; equal ones stay one tensor.

    Masks are not its own: every layer gets the same.
    """
    copies = copy.deepcopy(inputs)
    result = function(*copies)
    for before, after in zip(inputs, copies, strict=True):
        if before is None or after is None or before.dtype != torch.bool:
            continue
        if not torch.equal(before, after):
            message = "It changes the mask that it is given, which the next layer uses too. Make a new one: ~mask."
            raise StudentError(status="wrong", message=message)
    return result


# ── the mask and attention ────────────────────────────────────────────────────────────────────────────────────────


def _mask_case(n: int) -> Callable[[Any], Outputs]:
    return lambda causal_mask: {"mask": causal_mask(n)}


def _attention_case(n_keys: int, mask: Tensor | None) -> Callable[[Any], Outputs]:
    q, k, v = random(B, H, T, K, seed=1), random(B, H, n_keys, K, seed=2), random(B, H, n_keys, K, seed=3)

    def run(attention: Any) -> Outputs:
        result = call_with_copies(attention, q, k, v, mask)
        is_pair = isinstance(result, tuple) and len(result) == 2
        outputs: Outputs = dict(zip(("output", "weights"), result if is_pair else (result,), strict=False))
        weights = outputs.get("weights")
        if mask is not None and isinstance(weights, Tensor) and weights.shape == (B, H, T, n_keys):
            outputs["visible weights"] = weights.masked_fill(~mask, 0.0)
        return outputs

    return run


def _multi_head_case(n_keys: int, mask: Tensor | None, *, is_self: bool = False) -> Callable[[Any], Outputs]:
    query, key, value = random(B, T, D, seed=1), random(B, n_keys, D, seed=2), random(B, n_keys, D, seed=3)
    inputs = (query, query, query) if is_self else (query, key, value)
    return lambda attend: {"output": call_with_copies(attend, *inputs, mask)}


ATTENTION_MISTAKES = (
    "no scale",
    "mask after softmax",
    *reference.WRONG_AXES,
    "softmax over all entries",
    "Q and K swapped",
    "divided by d_k",
    "divided by √n",
    "multiplied by √d_k",
    "mask ignored",
    "hidden scores are 0",
    "hidden scores are 1e9",
    "mask inverted in attention",
)
HEAD_MISTAKES = (
    "one matrix for Q, K and V",
    *(f"every head is the {head}" for head in reference.ORDINALS),
    *(f"every head uses the {head} head's W_{letter}" for letter in "QKV" for head in reference.ORDINALS),
    "queries from the keys",
    "W_Q and W_K swapped",
    "queries of `key`",
    "keys of `query`",
    "values of `key`",
    "values from W_K",
    "heads split without a transpose",
    "heads interleaved",
    "heads joined without a transpose",
    "no output projection",
    "mask not passed on",
)


# ── layers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _attention_module() -> nn.Module:
    return reference.ReferenceMultiHeadAttention(H, D, 0.0)


def _feed_forward_module() -> nn.Module:
    return reference.ReferenceFeedForward(D, F, 0.0)


def _encoder_layer(make: Any) -> Any:
    return make(D, _attention_module(), _feed_forward_module(), 0.0)


def _decoder_layer(make: Any) -> Any:
    return make(D, _attention_module(), _attention_module(), _feed_forward_module(), 0.0)


def _sublayer_case(seed: int) -> Callable[[Any], Outputs]:
    x, matrix = 2 * random(B, T, D, seed=seed) + 1, random(D, D, seed=9) / D**0.5
    return lambda connect: {"output": connect(x.clone(), lambda y: torch.tanh(y @ matrix))}


def _encoder_case(mask: Tensor | None) -> Callable[[Any], Outputs]:
    x = 2 * random(B, S, D) + 0.5
    return lambda encode: {"output": call_with_copies(encode, x, mask)}


def _decoder_case(n_source: int, source_mask: Tensor | None, target_mask: Tensor | None) -> Callable[[Any], Outputs]:
    x, memory = 2 * random(B, T, D) + 0.5, random(B, n_source, D, seed=1)
    return lambda decode: {"output": call_with_copies(decode, x, memory, source_mask, target_mask)}


def _model_case(source_mask: Tensor | None, target_mask: Tensor | None) -> Callable[[Any], Outputs]:
    source, target = ids(S, V_SOURCE), ids(T, V, seed=1)
    return lambda model: {"log-probabilities": call_with_copies(model, source, target, source_mask, target_mask)}


def _by_sublayer(*places: str) -> tuple[str, ...]:
    everywhere = tuple(mistake for mistake in SUBLAYER_MISTAKES)
    return everywhere + tuple(f"{mistake}, {place}" for mistake in SUBLAYER_MISTAKES for place in places)


DECODER_CASES = {
    "a source of as many tokens": _decoder_case(T, padding(T), causal(T)),
    "a source of another length": _decoder_case(S, padding(S), causal(T)),
    "no masks": _decoder_case(S, None, None),
}
ENCODER_CASES = {"no mask": _encoder_case(None), "a padding mask": _encoder_case(padding(S))}
LAYER_MISTAKES = ("one norm for all sublayers", "source mask not passed on")
STACK_MISTAKES = (
    "no last norm",
    "norm before the layers",
    "layers share weights",
    "one layer only",
    "source mask not passed on",
)
DECODER_MISTAKES = (
    "queries from the memory",
    "memory and target exchanged",
    "keys from the target",
    "cross-attention to the target",
    "cross-attention first",
    "target mask not passed on",
    "masks exchanged",
)

PARTS: tuple[HomeworkPart, ...] = (
    HomeworkPart(
        "mask",
        "causal_mask",
        "position t attends to positions 0 … t",
        build=lambda names: names["causal_mask"],
        cases={f"n = {n}": _mask_case(n) for n in (5, 1, 4)},
        mistakes=(*reference.SHIFTS, "mask transposed", "mask inverted"),
    ),
    HomeworkPart(
        "attention",
        "attention",
        "softmax(Q Kᵀ / √d_k) V",
        build=lambda names: names["attention"],
        cases={
            "no mask": _attention_case(T, None),
            "a causal mask": _attention_case(T, causal(T)),
            "a padding mask and keys of another length": _attention_case(S, padding(S).unsqueeze(1)),
        },
        mistakes=ATTENTION_MISTAKES,
        rare=tuple(reference.MOVED_MASKS),
        variants=(reference.FINITE_FILL,),
    ),
    HomeworkPart(
        "clones",
        "clones",
        "n copies, each with weights of its own",
        build=lambda names: names["clones"](nn.Linear(D, F), N_LAYERS),
        cases={"all copies": lambda copies: {"output": torch.stack([copy(random(B, D)) for copy in copies])}},
    ),
    HomeworkPart(
        "multi-head attention",
        "MultiHeadAttention",
        "Concat(head₁, …, head_h) W^O",
        build=lambda names: names["MultiHeadAttention"](H, D, 0.0),
        cases={
            "self-attention": _multi_head_case(T, None, is_self=True),
            "query, key and value of their own": _multi_head_case(T, None),
            "a causal mask": _multi_head_case(T, causal(T)),
            "a padding mask and keys of another length": _multi_head_case(S, padding(S)),
        },
        mistakes=(*HEAD_MISTAKES, *ATTENTION_MISTAKES),
        rare=tuple(reference.MOVED_MASKS),
        variants=(reference.FINITE_FILL,),
        below=("attention", "clones"),
    ),
    HomeworkPart(
        "embeddings",
        "Embeddings",
        "a row of the table for every token, times √d_model",
        build=lambda names: names["Embeddings"](V, D),
        cases={"token ids": lambda embed: {"output": embed(ids(T, V))}},
        mistakes=("no √d on embeddings", "embeddings divided by √d", "embeddings times d"),
    ),
    HomeworkPart(
        "positional encoding",
        "PositionalEncoding",
        "x plus sin and cos of pos / 10000^(2i/d), pos from 0",
        build=lambda names: names["PositionalEncoding"](D, 0.0),
        cases={
            f"{n} sequences of {length}": (lambda x: lambda encode: {"output": call_with_copies(encode, x)})(
                random(n, length, D)
            )
            for n, length in ((2, 5), (1, 5), (3, 7))
        },
        mistakes=(
            *reference.OFFSETS,
            "sines from 1",
            "cosines from 1",
            "frequencies off by one",
            "exponent 2i + 1",
            "exponent i instead of 2i",
            "sine and cosine swapped",
            "sines before cosines",
            "cut along the batch axis",
            "one position per row",
            "embeddings replaced",
            "no encoding",
        ),
    ),
    HomeworkPart(
        "feed-forward",
        "FeedForward",
        "max(0, x W₁ + b₁) W₂ + b₂",
        build=lambda names: names["FeedForward"](D, F, 0.0),
        cases={"random vectors": lambda feed_forward: {"output": feed_forward(random(B, T, D))}},
        mistakes=("no ReLU", "GELU instead of ReLU", "ReLU after W₂"),
    ),
    HomeworkPart(
        "generator",
        "Generator",
        "log-probabilities over the vocabulary",
        build=lambda names: names["Generator"](D, V),
        cases={"random vectors": lambda generate: {"output": generate(random(B, T, D))}},
        mistakes=(
            "logits instead of log-probabilities",
            "probabilities instead of log-probabilities",
            "log-softmax over positions",
            "log-softmax over the batch",
        ),
    ),
    HomeworkPart(
        "sublayer",
        "SublayerConnection",
        "x + sublayer(norm(x))",
        build=lambda names: names["SublayerConnection"](D, 0.0),
        cases={"random vectors": _sublayer_case(0), "other vectors": _sublayer_case(1)},
        mistakes=(*SUBLAYER_MISTAKES, "standard deviation with D − 1"),
    ),
    HomeworkPart(
        "encoder layer",
        "EncoderLayer",
        "self-attention, then feed-forward",
        build=lambda names: _encoder_layer(names["EncoderLayer"]),
        cases=ENCODER_CASES,
        mistakes=(*_by_sublayer(PLACES[0], PLACES[2]), "feed-forward first", *LAYER_MISTAKES),
        rare=MOVED_SOURCE_MASKS,
        below=("clones", "SublayerConnection", "attention", "MultiHeadAttention", "FeedForward"),
    ),
    HomeworkPart(
        "encoder",
        "Encoder",
        "layers on top of each other, and a last norm",
        build=lambda names: names["Encoder"](_encoder_layer(reference.ReferenceEncoderLayer), N_LAYERS, D),
        cases=ENCODER_CASES,
        mistakes=STACK_MISTAKES,
        rare=MOVED_SOURCE_MASKS,
        below=("clones", "SublayerConnection", "EncoderLayer"),
    ),
    HomeworkPart(
        "decoder layer",
        "DecoderLayer",
        "self-attention, cross-attention, then feed-forward",
        build=lambda names: _decoder_layer(names["DecoderLayer"]),
        cases=DECODER_CASES,
        mistakes=(*_by_sublayer(*PLACES), *DECODER_MISTAKES, *LAYER_MISTAKES),
        rare=(*MOVED_TARGET_MASKS, *MOVED_SOURCE_MASKS),
        below=("clones", "SublayerConnection", "attention", "MultiHeadAttention", "FeedForward"),
    ),
    HomeworkPart(
        "decoder",
        "Decoder",
        "layers on top of each other, and a last norm",
        build=lambda names: names["Decoder"](_decoder_layer(reference.ReferenceDecoderLayer), N_LAYERS, D),
        cases=DECODER_CASES,
        mistakes=(*STACK_MISTAKES, "target mask not passed on", "masks exchanged"),
        rare=(*MOVED_TARGET_MASKS, *MOVED_SOURCE_MASKS),
        below=("clones", "SublayerConnection", "DecoderLayer"),
    ),
    HomeworkPart(
        "whole model",
        "make_model",
        "source and target → log-probabilities of each next token",
        build=lambda names: names["make_model"](V_SOURCE, V, N_LAYERS, D, F, H, 0.0),
        cases={
            "both masks": _model_case(padding(S), causal(T)),
            "the causal mask by default": _model_case(padding(S), None),
            "no source mask": _model_case(None, None),
        },
        mistakes=tuple(MISTAKES),  # those of parts that the model does not use, or uses otherwise
    ),
)
