"""Attention as a worked example: every step is a matrix that you can print.

    S = Q Kᵀ                          scores: how well each query matches each key
    S / √d                            scaled: with variance 1 whatever the width d of a head
    S / √d + bias                     only with relative positions or ALiBi
    −∞ where masked                   added before the softmax, never multiplied after it
    A = softmax over each row         weights: every row sums to 1
    A V                               output: the weighted sum of the values
    concat(heads) W^O + b             the heads side by side, projected

`attention_steps` takes matrices of your own, and `weighted_sum` starts from weights that are already known;
layer_attention.py takes a text and one head of a model.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from headway.errors import InputError
from headway.nn import masks

WEIGHT_SUM_ATOL = 1e-3  # weights typed by hand are rounded: thirds as 0.333


@dataclass(frozen=True, eq=False)
class AttentionSteps:
    """Attention of T queries to S keys. With several heads, each of Q … output has H matrices: (H, T, S), say."""

    Q: Tensor  # (T, K)
    K: Tensor  # (S, K)
    V: Tensor  # (S, K)
    scores: Tensor  # (T, S) Q Kᵀ
    scale: float  # 1 / √d unless another was asked for
    scaled: Tensor  # (T, S) scores · scale
    mask: Tensor  # (T, S) True = may be attended to
    masked: Tensor  # (T, S) scaled, plus the bias if there is one, and −∞ where the mask is False
    weights: Tensor  # (T, S) softmax of each row; a row that may attend to nothing is 0
    output: Tensor  # (T, K) weights · V
    bias: Tensor | None = None  # (T, S) added to the scaled scores by relative positions and ALiBi
    concat: Tensor | None = None  # (T, H · K) the outputs of all heads side by side
    projected: Tensor | None = None  # (T, D) concat · W^O + b
    X: Tensor | None = None  # (T, D) what the queries are projected from
    memory: Tensor | None = None  # (S, D) what keys and values are projected from, if not X: the encoded source
    rows: tuple[str, ...] = ()  # names of the queries
    columns: tuple[str, ...] = ()  # names of the keys

    @property
    def additive_mask(self) -> Tensor:
        """The mask as a matrix to add to the scores: 0 where it is True, −∞ elsewhere. (T, S)"""
        return torch.zeros(self.mask.shape, dtype=self.scaled.dtype).masked_fill(~self.mask, -torch.inf)

    def to_dict(self) -> dict[str, Any]:
        """Everything as numbers and lists, for JSON; steps that were not computed are left out."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        present = {name: value for name, value in values.items() if value is not None}
        return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in present.items()}

    def __str__(self) -> str:
        from headway.analysis.attention_tables import render_steps

        return render_steps(self)


def attention_steps(
    Q: Any,
    K: Any,
    V: Any,
    mask: Any = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    bias: Any = None,
    W_O: Any = None,
    b_O: Any = None,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> AttentionSteps:
    """Every step of scaled dot-product attention on small matrices: tensors, arrays or nested lists.

    Q (T, K), K (S, K) and V (S, any width) for one head; Q (H, T, K), K and V (G, S, …) for several, where each of the
    G key/value heads serves H/G query heads. `mask` is True (or 1) where a query may attend to a key, or 0 and −∞ to be
    added to the scores; it broadcasts to (T, S). `causal` also hides the keys after each query, where the queries are
    the last T of the S positions. `scale` is 1/√K by default. W_O (H · V's width, D) and b_O (D,) project the heads'
    outputs, side by side.
    `rows` and `columns` name the queries and keys, by default 1, 2, ….

    >>> steps = attention_steps([[1, 0]], [[1, 0], [0, 1]], [[1, 2], [3, 4]], scale=1)
    >>> [round(w, 2) for w in steps.weights[0].tolist()]
    [0.73, 0.27]
    """
    q, k, v = _matrix(Q, "Q"), _matrix(K, "K"), _matrix(V, "V")
    k, v = _check_shapes(q, k, v)
    dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    shape = (*q.shape[:-1], k.shape[-2])  # (H, T, S) or (T, S)
    visible = torch.ones(shape[-2:], dtype=torch.bool) if mask is None else _boolean_mask(mask, shape)
    if causal:
        visible = visible & masks.causal(*shape[-2:])
    if scale is not None and not (isinstance(scale, int | float) and math.isfinite(scale)):
        raise InputError(f"scale={scale!r} is not a finite number: by default it is 1/√{q.shape[-1]}")
    added = None if bias is None else _broadcast(_matrix(bias, "bias", least=0), "bias", shape)
    q, k, v = (x.to(dtype) for x in (q, k, v))
    steps = dot_product_steps(q, k, v, visible.expand(shape), bias=added, scale=scale)
    if not bool(steps.scores.isfinite().all()):
        raise InputError("Q Kᵀ is too large for its floating-point type: pass smaller numbers")
    steps = replace(steps, rows=_names(rows, shape[-2], "rows"), columns=_names(columns, shape[-1], "columns"))
    return _with_projection(steps, W_O, b_O)


def dot_product_steps(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, bias: Tensor | None = None, scale: float | None = None
) -> AttentionSteps:
    """q (…, T, K), k and v (…, S, K), mask (…, T, S): the steps of `dot_product_attention` (nn/attention.py), kept."""
    scores = q @ k.transpose(-2, -1)  # (…, T, S)
    root = math.sqrt(q.shape[-1])
    scale, scaled = (1 / root, scores / root) if scale is None else (float(scale), scores * scale)
    biased = scaled if bias is None else scaled + bias
    masked = biased.masked_fill(~mask, -torch.inf)
    # A query that may attend to nothing gets zeros: softmax would be 0/0.
    weights = masked.softmax(dim=-1).masked_fill(~mask, 0.0)
    return AttentionSteps(q, k, v, scores, scale, scaled, mask, masked, weights, weights.to(v.dtype) @ v, bias)


def _with_projection(steps: AttentionSteps, W_O: Any, b_O: Any) -> AttentionSteps:
    """The heads side by side, and their projection if its weights are given."""
    if W_O is None:
        if b_O is not None:
            raise InputError("b_O is added to concat · W_O: give W_O too")
        return replace(steps, concat=_side_by_side(steps.output)) if steps.output.dim() == 3 else steps
    concat, weight = _side_by_side(steps.output), _matrix(W_O, "W_O")
    if weight.dim() != 2 or weight.shape[0] != concat.shape[-1]:
        raise InputError(
            f"W_O of shape {tuple(weight.shape)} for heads of {concat.shape[-1]} outputs together: "
            f"it needs {concat.shape[-1]} rows"
        )
    projected = concat @ weight.to(concat.dtype)
    if b_O is not None:
        projected = projected + _broadcast(_matrix(b_O, "b_O", least=1), "b_O", tuple(projected.shape))
    return replace(steps, concat=concat, projected=projected)


def _side_by_side(output: Tensor) -> Tensor:
    """(H, T, K) → (T, H · K); one head (T, K) stays as it is."""
    return output if output.dim() == 2 else output.transpose(0, 1).flatten(1)


def scores_to_weights(scores: Sequence[float], d_head: int) -> AttentionSteps:
    """From scores q·k of one query to its weights, if queries and keys are `d_head` wide; −inf is masked.

    >>> [round(w, 2) for w in scores_to_weights([112, 96], 64).weights[0].tolist()]
    [0.88, 0.12]
    """
    if d_head < 1:
        raise InputError(f"d_head={d_head}: the width of queries and keys is at least 1")
    is_visible = [score != -math.inf for score in scores]
    if not any(is_visible):
        raise InputError(f"scores={list(scores)}: at least one has to be finite, because the weights sum to 1")
    # A query of width 1 whose only component is 1 has the keys themselves as its scores.
    keys = [[score] if visible else [0.0] for score, visible in zip(scores, is_visible, strict=True)]
    values = torch.eye(len(scores), dtype=torch.float64)
    steps = attention_steps([[1.0]], keys, values, [is_visible], scale=d_head**-0.5, rows=["q"])
    return replace(steps, scores=torch.tensor([scores], dtype=torch.float64), scaled=steps.masked)


# ── weights that are already known ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class WeightedSum:
    """A V from known weights A: what is left of attention once the softmax is done."""

    weights: Tensor  # (T, S), or (S,) for one query
    V: Tensor  # (S, K) the values: X · W_V
    terms: Tensor  # (T, S, K), or (S, K): each value times its weight
    output: Tensor  # (T, K), or (K,): the sum of the terms


def weighted_sum(weights: Any, X: Any, W_V: Any = None) -> WeightedSum:
    """The output of attention from its weights (S,), or (T, S), the inputs X (S, D) and W_V (D, K), by default I.

    >>> weighted_sum([0.1, 0.2, 0.6, 0.1], [[1, 0, 0], [0, 1, 0], [0, 0, 2], [0, 0, 1]]).output.tolist()
    [0.1, 0.2, 1.3]
    """
    a, x = _matrix(weights, "weights", least=1), _matrix(X, "X")
    if a.dim() > 2 or x.dim() != 2 or a.shape[-1] != x.shape[0]:
        raise InputError(
            f"weights of shape {tuple(a.shape)} for X of shape {tuple(x.shape)}: one weight per row of X, in one row "
            f"of weights per query"
        )
    sums = a.sum(dim=-1).reshape(-1)
    if bool((a < 0).any()) or bool(((sums - 1).abs() > WEIGHT_SUM_ATOL).any()):
        wrong = next((s for s in sums.tolist() if abs(s - 1) > WEIGHT_SUM_ATOL), None)
        fault = "one of them is negative" if wrong is None else f"these sum to {wrong:.4g}"
        raise InputError(f"attention weights are at least 0, and each row sums to 1; {fault}")
    v = x
    if W_V is not None:
        weight = _matrix(W_V, "W_V")
        if weight.dim() != 2 or weight.shape[0] != x.shape[1]:
            raise InputError(
                f"W_V of shape {tuple(weight.shape)} for X of shape {tuple(x.shape)}: X · W_V has no shape"
            )
        v = x @ weight.to(x.dtype)
    v = v.to(torch.promote_types(v.dtype, a.dtype))
    terms = a.to(v.dtype)[..., None] * v  # (…, S, K)
    return WeightedSum(a, v, terms, terms.sum(dim=-2))


# ── checks ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _matrix(values: Any, name: str, *, least: int = 2) -> Tensor:
    """Numbers as a tensor of at least `least` dimensions on the CPU; lists and integers become float64."""
    try:
        tensor = values.detach().cpu() if isinstance(values, Tensor) else torch.as_tensor(_nested_list(values))
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"{name} is not a matrix of numbers with rows of one length: pass a tensor, an array or nested lists"
        ) from None
    if tensor.is_complex():
        raise InputError(f"{name} holds complex numbers: pass real ones")
    if not tensor.is_floating_point():
        tensor = tensor.double()
    tensor = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
    if not least <= tensor.dim() <= 3 or tensor.numel() == 0:
        shape = "(tokens, width), or (heads, tokens, width)" if least == 2 else "one number or more"
        raise InputError(f"{name} has the shape {tuple(tensor.shape)}: it needs {shape}, and at least one number")
    if not bool(tensor.isfinite().all()):
        raise InputError(f"{name} holds {_first_non_finite(tensor)}: pass finite numbers, and hide keys by the mask")
    return tensor


def _nested_list(values: Any) -> Any:
    """Python numbers as float64, which `torch.as_tensor` would make float32; tensors in lists as lists of numbers."""
    if isinstance(values, list | tuple):
        return torch.tensor([_to_numbers(row) for row in values], dtype=torch.float64)
    return values if hasattr(values, "shape") else torch.tensor(values, dtype=torch.float64)


def _to_numbers(row: Any) -> Any:
    if isinstance(row, list | tuple):
        return [_to_numbers(value) for value in row]
    return row.tolist() if hasattr(row, "tolist") else row


def _first_non_finite(tensor: Tensor) -> str:
    value = float(tensor[~tensor.isfinite()][0])
    return "NaN" if math.isnan(value) else "infinity" if value > 0 else "−infinity"


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values, repeated so that every query head has its own."""
    shapes = f"Q {tuple(q.shape)}, K {tuple(k.shape)}, V {tuple(v.shape)}"
    if not q.dim() == k.dim() == v.dim():
        raise InputError(f"{shapes}: give all three with a dimension of heads, or none of them")
    if q.shape[-1] != k.shape[-1]:
        raise InputError(f"{shapes}: queries and keys need the same width, because their dot product is the score")
    if k.shape[-2] != v.shape[-2]:
        raise InputError(f"{shapes}: every key needs one value")
    if q.dim() == 3:
        if k.shape[0] != v.shape[0] or q.shape[0] % k.shape[0]:
            raise InputError(f"{shapes}: the number of query heads is a multiple of that of key and value heads")
        k, v = (x.repeat_interleave(q.shape[0] // x.shape[0], dim=0) for x in (k, v))
    return k, v


def _boolean_mask(mask: Any, shape: tuple[int, ...]) -> Tensor:
    """True = may be attended to, from booleans, 1 and 0, or 0 and −∞ to be added."""
    try:
        tensor = mask.detach().cpu() if isinstance(mask, Tensor) else torch.as_tensor(mask)
    except (TypeError, ValueError, RuntimeError):
        raise InputError("the mask is not a matrix of True and False") from None
    if tensor.dtype != torch.bool:
        is_zero, is_one, is_hidden = tensor == 0, tensor == 1, tensor == -math.inf
        if bool((is_zero | is_hidden).all()) and bool(is_hidden.any()):
            tensor = is_zero
        elif bool((is_zero | is_one).all()) and bool(is_one.any()):
            tensor = is_one
        elif bool(is_zero.all()):
            raise InputError("a mask of zeros alone may hide everything or nothing: pass True and False")
        else:
            raise InputError(
                "the mask is neither True and False (or 1 and 0), True where a query may attend to a key, nor 0 and "
                "−infinity, to be added to the scores"
            )
    return _broadcast(tensor, "mask", shape)


def _broadcast(tensor: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    try:
        return tensor.expand(shape)
    except RuntimeError:
        raise InputError(f"{name} of shape {tuple(tensor.shape)} does not fit {shape}") from None


def _names(names: Sequence[str] | None, n: int, argument: str) -> tuple[str, ...]:
    if names is None:
        return tuple(str(i) for i in range(1, n + 1))
    if isinstance(names, str) or len(names) != n:
        raise InputError(f"{argument}={names!r} does not name {n} of them: pass a list of {n} names")
    return tuple(names)
