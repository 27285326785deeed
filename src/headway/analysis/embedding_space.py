"""The vectors of tokens: the embedding and unembedding matrices of a model, nearest tokens, and words in the plane.

    dot product    x·y = |x| |y| cos(x, y)         grows with the lengths of both vectors: long ones are near everything
    cosine         x·y / (|x| |y|)                 the angle alone

Attention and the unembedding compare by dot products, search engines by cosines; the two rank neighbours differently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.analysis.attention import attention_modules
from headway.analysis.token_labels import token_label, token_labels
from headway.errors import InputError, index_error, suggest
from headway.models import BERT, GPT, Transformer
from headway.models.adapter import refuse_path
from headway.models.base import AutoregressiveLM, described
from headway.nn import Embedding
from headway.nn.attention import SelfAttention
from headway.tokenizers import Tokenizer

SIMILARITIES = ("cosine", "dot")


def embedding_matrix(model: Any) -> Tensor:
    """The input embeddings (V, D) of any model that has them, or of the encoder under its head."""
    refuse_path(model)
    core = model if isinstance(model, Transformer) else getattr(model, "encoder", model)
    for owner in (model, core):
        for name in ("embedding", "C"):  # C: of the NPLM, as in its paper
            matrix = getattr(owner, name, None)
            matrix = matrix.weight if isinstance(matrix, Embedding) else matrix
            if isinstance(matrix, Tensor) and matrix.dim() == 2:
                return matrix
    raise InputError(
        f"{described(model)} has no embedding: use a model that has one, such as nplm, lstm, gpt, bert or bow"
    )


def unembedding_matrix(model: Any) -> Tensor:
    """The output matrix (V, D) of a model that predicts tokens; where embeddings are tied, the embedding itself."""
    refuse_path(model)
    if isinstance(model, AutoregressiveLM):
        return model.output_layer[0]
    if isinstance(table := getattr(model, "table", None), Tensor):  # of a masked LM
        return table
    raise InputError(
        f"{described(model)} has no unembedding: it predicts no tokens; leave unembedding out, or use a language model"
    )


def is_tied(model: Any) -> bool:
    """Whether embedding and unembedding are one matrix."""
    return unembedding_matrix(model).data_ptr() == embedding_matrix(model).data_ptr()


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────────────────────


def find_token(tokenizer: Tokenizer, text: str) -> int:
    """The id of a token, given as text ("the"), with a space in front where the vocabulary has it only so, or as the
    vocabulary spells it ("Ġthe", "[CLS]")."""
    for spelling in (text, f" {text}"):
        ids = tokenizer.encode(spelling) if text else []
        if len(ids) == 1 and ids[0] != tokenizer.unk_id:
            return ids[0]
    if (id := tokenizer.token_id(text)) is not None:
        return id
    ids = [id for id in tokenizer.encode(text) if id != tokenizer.unk_id] if text else []
    pieces = f": it is {len(ids)} tokens, {' '.join(token_labels(tokenizer, ids))}" if len(ids) > 1 else ""
    words = (tokenizer.decode([id]).strip() for id in tokenizer.vocab.values())
    hint = suggest(text, [word for word in words if word]) or " `headway tokenizer show` lists the tokens."
    raise InputError(f"{text!r} is not a token of this vocabulary{pieces}.{hint}")


class NearToken(NamedTuple):
    """A token of the vocabulary, compared with another."""

    id: int
    token: str
    cosine: float
    dot: float
    rank_by_cosine: int  # from 1: among all tokens but the one compared with
    rank_by_dot: int


@dataclass(frozen=True)
class NearestTokens:
    """The tokens nearest to one, by both measures."""

    token: str
    by_cosine: list[NearToken]
    by_dot: list[NearToken]

    @property
    def n_common(self) -> int:
        """How many tokens are in both lists."""
        return len({near.id for near in self.by_cosine} & {near.id for near in self.by_dot})

    def by(self, similarity: str) -> list[NearToken]:
        return self.by_cosine if similarity == "cosine" else self.by_dot


@torch.inference_mode()
def nearest_tokens(model: Any, token: str, *, top: int = 10, unembedding: bool = False) -> NearestTokens:
    """The `top` tokens whose embeddings (or rows of the unembedding) are nearest to that of a token, by cosine and by
    dot product."""
    if top < 1:
        raise InputError(f"top={top} must be at least 1")
    matrix = (unembedding_matrix(model) if unembedding else embedding_matrix(model)).float().cpu()
    tokenizer = model.tokenizer
    id = find_token(tokenizer, token)
    others = torch.tensor([i for i in sorted(tokenizer.vocab.values()) if i != id and i < len(matrix)])  # (V − 1,)
    if not len(others):
        raise InputError("a vocabulary of one token has no neighbours")
    dots = matrix[others] @ matrix[id]
    cosines = F.normalize(matrix[others], dim=-1) @ F.normalize(matrix[id], dim=-1)
    order = {
        name: values.argsort(descending=True, stable=True) for name, values in (("cosine", cosines), ("dot", dots))
    }
    ranks = {name: torch.empty_like(row).scatter_(0, row, torch.arange(1, len(row) + 1)) for name, row in order.items()}

    def near(row: int) -> NearToken:
        near_id, ranks_of_row = int(others[row]), (int(ranks[name][row]) for name in SIMILARITIES)
        label = token_label(tokenizer, near_id)
        return NearToken(near_id, label, float(cosines[row]), float(dots[row]), *ranks_of_row)

    lists = ([near(row) for row in order[name][:top].tolist()] for name in SIMILARITIES)
    return NearestTokens(token_label(tokenizer, id), *lists)


# ── words in the plane ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class PlaneView:
    """Vectors projected to a plane."""

    title: str
    coordinates: Tensor  # (N, 2)
    explained: tuple[float, float]  # the fraction of the variance along each axis
    is_projected: bool = True  # False: the vectors have two dimensions and are shown as they are


def project(vectors: Tensor | Sequence[Sequence[float]], title: str = "") -> PlaneView:
    """Vectors (N, D) on their first two principal components. Vectors of two dimensions are left as they are.

    The sign of a component is arbitrary; here its largest entry by absolute value is positive.
    """
    rows = _as_rows(vectors, "vectors")
    if rows.dim() != 2 or len(rows) < 2 or rows.shape[1] < 2:
        raise InputError(
            f"vectors of shape {tuple(rows.shape)}: expected at least two vectors of two dimensions, (N, D)"
        )
    if not bool(rows.isfinite().all()):
        raise InputError("the vectors hold infinite or undefined numbers: there is no plane to project them to")
    centred = rows - rows.mean(dim=0)
    variance = centred.square().sum()
    if rows.shape[1] == 2:
        fractions = centred.square().sum(dim=0) / variance.clamp(min=1e-300)
        return PlaneView(title, rows, (float(fractions[0]), float(fractions[1])), is_projected=False)
    _, singular, components = torch.linalg.svd(centred, full_matrices=False)  # components: (min(N, D), D), in rows
    axes = components[:2]
    signs = axes.gather(1, axes.abs().argmax(dim=1, keepdim=True)).sign()
    fractions = singular[:2].square() / variance.clamp(min=1e-300)
    return PlaneView(title, centred @ (signs * axes).T, (float(fractions[0]), float(fractions[1])))


def map_vectors(
    vectors: Tensor | Sequence[Sequence[float]], matrices: Mapping[str, Tensor | Sequence[Sequence[float]]]
) -> list[PlaneView]:
    """Vectors x (N, D) in the plane as they are, then under each linear map M x, M (K, D) by name.

    map_vectors([[1, 1], [1, 0], [0, 1]], {"finance": [[1, 0], [0, 0.1]], "nature": [[0.1, 0], [0, 1]]})
    """
    rows = _as_rows(vectors, "vectors")
    views = [project(rows, "as they are")]
    for name, matrix in matrices.items():
        weights = _as_rows(matrix, f"the matrix {name!r}")
        if weights.dim() != 2 or weights.shape[1] != rows.shape[-1]:
            raise InputError(
                f"the matrix {name!r} of shape {tuple(weights.shape)} does not map vectors of {rows.shape[-1]} "
                f"numbers: expected (K, {rows.shape[-1]})"
            )
        views.append(project(rows @ weights.T, name))
    return views


def _as_rows(values: Tensor | Sequence[Sequence[float]], name: str) -> Tensor:
    try:
        return torch.as_tensor(values, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected rows of numbers, all of one length ({error})") from None


@dataclass(frozen=True)
class WordVectors:
    """Words in the plane: their embeddings and, of a Transformer, what a head makes of them."""

    words: list[str]
    views: list[PlaneView]
    layer: int | None = None
    head: int | None = None
    n_tokens: tuple[int, ...] = ()  # of each word; the vector of a word of several tokens is their mean


@torch.inference_mode()
def word_vectors(model: Any, words: Sequence[str], *, layer: int | None = None, head: int | None = None) -> WordVectors:
    """The embeddings of words in the plane; of a gpt, bert or transformer also their queries and keys, W_Q x and W_K x,
    in one head (default: layer 0, head 0; of an encoder-decoder, of its encoder).

    x is what the layer would receive if the words entered it directly: the embedding, scaled as the model scales it,
    and normalised where the layer begins with a norm. Positions are left out.
    """
    matrix = embedding_matrix(model)
    unique = list(dict.fromkeys(words))
    if len(unique) < 2:
        raise InputError(f"{len(unique)} word{'s' * (len(unique) != 1)}: pass at least two different words to compare")
    ids = [_word_ids(model.tokenizer, word) for word in unique]
    x = torch.stack([matrix[row].float().mean(dim=0) for row in ids])  # (N, D)
    views = [project(x, "embeddings")]
    core = model if isinstance(model, Transformer) else getattr(model, "encoder", model)
    if isinstance(core, GPT | BERT | Transformer):
        layer, head = layer or 0, head or 0
        queries, keys = _queries_and_keys(model, core, x, layer, head)
        where = f"in layer {layer}, head {head}"
        views += [project(queries, f"queries {where}"), project(keys, f"keys {where}")]
    elif layer is not None or head is not None:
        raise InputError(f"{described(model)} has no attention layers: leave layer and head out")
    labels = [
        word if len(row) > 1 else token_label(model.tokenizer, row[0]) for word, row in zip(unique, ids, strict=True)
    ]
    return WordVectors(labels, views, layer, head, tuple(map(len, ids)))


def _word_ids(tokenizer: Tokenizer, word: str) -> list[int]:
    """The token of a word, or the tokens, as they would be encoded inside a text."""
    try:
        return [find_token(tokenizer, word)]
    except InputError:
        ids = [id for id in tokenizer.encode(f" {word}" if word[:1].isalnum() else word) if id != tokenizer.unk_id]
        pieces = [id for id in ids if tokenizer.decode([id]).strip()]
        if not pieces or tokenizer.unknown_text(word):
            raise
        return pieces


def _queries_and_keys(model: Any, core: Any, x: Tensor, layer: int, head: int) -> tuple[Tensor, Tensor]:
    """W_Q x and W_K x of one head, (N, K) each. Of grouped queries, the key head that serves the query head."""
    modules = attention_modules(model, "decoder" if isinstance(core, GPT) else "encoder")
    if not modules:
        raise InputError("this model has no layers, so no queries and keys: use a model with n_layers=1 or more")
    for name, index, n in (("layer", layer, len(modules)), ("head", head, modules[0].n_heads)):
        if not 0 <= index < n:
            raise index_error(name, index, n)
    attention = modules[layer]
    assert isinstance(attention, SelfAttention)
    blocks: Any = core.encoder.blocks if isinstance(core, Transformer) else core.blocks
    block = blocks[layer]
    weight = embedding_matrix(model)
    x = (x * core.embedding.scale).to(weight)
    if isinstance(core, BERT):
        x = core.embedding_norm(x)
    if block.norm_first:
        x = block.norm1(x)
    q, k, _ = attention.qkv(x).split([n * attention.d_head for n in attention.heads], dim=-1)
    kv_head = head // (attention.n_heads // attention.n_kv_heads)
    cut = attention.d_head
    return q[:, head * cut : (head + 1) * cut].float(), k[:, kv_head * cut : (kv_head + 1) * cut].float()
