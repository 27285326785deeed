"""The loss of a model that predicts tokens: −ln softmax(h Wᵀ + b)[target], summed over the targets.

`cross_entropy` is the definition. It materialises all (N, V) logits in float32, and autograd as many again: for GPT-2
and 32 × 1024 tokens, 6.6 GB each. `fused_cross_entropy` is the same function a few thousand rows at a time: it computes
the logits of a chunk in the precision of the matmul, overwrites them with their own gradient,

    ∂loss/∂logits = softmax(logits) − [column = target]

and multiplies that out at once, so that only the gradients of h, W and b, which are small, are kept for the backward
pass.

Label smoothing (Szegedy et al. 2016, §7) spreads a fraction ε of each target evenly over the vocabulary. Rows whose
target is `ignore` contribute nothing. On a GPU, W is cast to the precision of the matmul anyway; the copy is padded to
a multiple of `VOCAB_MULTIPLE` rows, which suits tensor cores, and the extra columns of logits are never read.

PyTorch 2.13 has `F.linear_cross_entropy`, 2.11 does not. On two CPU cores, 2,048 rows of width 384 and 8,000 tokens:
630 ms, chunked 1,085, against 524 here (benchmarks/torch_parts.py). On an H200, 32,768 rows of GPT-2: 31.8 ms by the
definition, 13.6 here.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.compilers import triton_works

VOCAB_MULTIPLE = 64  # rows of the padded output matrix, on a GPU
CHUNK_LOGITS = {"cpu": 2**24, "cuda": 2**29}  # logits materialised at once
CHUNK_ROW_MULTIPLE = 1024  # chunks of at least so many rows are rounded down to a multiple: faster matmuls


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    smoothing: float = 0.0,
    ignore: int = -100,
) -> Tensor:
    """hidden (N, D), weight (V, D), bias (V,), targets (N,) → the summed loss, a float32 scalar."""
    logits = F.linear(hidden, weight, bias).float()
    return F.cross_entropy(logits, targets, ignore_index=ignore, label_smoothing=smoothing, reduction="sum")


def fused_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    smoothing: float = 0.0,
    ignore: int = -100,
) -> Tensor:
    """The same function, a chunk of rows at a time."""
    device_type = hidden.device.type
    is_autocast = torch.is_autocast_enabled(device_type)
    dtype = torch.get_autocast_dtype(device_type) if is_autocast else hidden.dtype
    with torch.autocast(device_type, enabled=False):
        return _Fused.apply(hidden, weight, bias, targets, smoothing, ignore, dtype, torch.is_grad_enabled())


def token_nll(
    hidden: Tensor, output: tuple[Tensor, Tensor | None], targets: Tensor, *, smoothing: float = 0.0, ignore: int = -100
) -> Tensor:
    """Negative log-likelihood summed over the targets (B, T), from hidden states (B, T, D) and the output layer."""
    weight, bias = output
    flat = hidden.flatten(0, 1)
    return fused_cross_entropy(flat, weight, targets.flatten(), bias, smoothing=smoothing, ignore=ignore)


@torch.no_grad()
def token_losses(
    hidden: Tensor, output: tuple[Tensor, Tensor | None], targets: Tensor, *, ignore: int = -100
) -> Tensor:
    """Negative log-likelihood of each target (B, T), 0 where it is `ignore`: the terms that `token_nll` sums."""
    (weight, bias), device_type = output, hidden.device.type
    dtype = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else hidden.dtype
    with torch.autocast(device_type, enabled=False):
        w, b = _output_layer(weight, bias, dtype)
        h, losses = hidden.flatten(0, 1).to(dtype), torch.empty(targets.numel(), device=hidden.device)
        for chunk in _chunks(len(h), w):
            logits = F.linear(h[chunk], w, b)  # (n_rows, V)
            _to_gradient(logits, targets.flatten()[chunk], losses[chunk], weight.shape[0], 0.0, ignore)
    return losses.reshape(targets.shape)


def scoring_nll(hidden: Tensor, output: tuple[Tensor, Tensor | None], targets: Tensor, *, ignore: int = -100) -> Tensor:
    """`token_nll` for scoring: without gradients, and summed in float64, so that the score of a text is the sum of the
    scores of its tokens."""
    return token_losses(hidden, output, targets, ignore=ignore).sum(dtype=torch.float64)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        ignore: int,
        dtype: torch.dtype,
        is_grad_enabled: bool,
    ) -> Tensor:
        N, V = hidden.shape[0], weight.shape[0]
        needs_grad = is_grad_enabled and any(ctx.needs_input_grad[:3])
        h, (w, b) = hidden.to(dtype), _output_layer(weight, bias, dtype)
        losses = torch.empty(N, dtype=torch.float32, device=hidden.device)
        grad_hidden = torch.empty_like(h) if needs_grad else None
        grad_weight = torch.zeros(w.shape, dtype=torch.float32, device=w.device) if needs_grad else None
        grad_bias = (
            torch.zeros(w.shape[0], dtype=torch.float32, device=w.device) if needs_grad and bias is not None else None
        )
        for chunk in _chunks(N, w):
            logits = F.linear(h[chunk], w, b)  # (n_rows, V)
            _to_gradient(logits, targets[chunk], losses[chunk], V, smoothing, ignore)
            if grad_hidden is not None and grad_weight is not None:
                torch.mm(logits, w, out=grad_hidden[chunk])
                _add_product(grad_weight, logits, h[chunk])
                if grad_bias is not None:
                    grad_bias += logits.sum(0, dtype=torch.float32)
        if grad_hidden is not None and grad_weight is not None:
            ctx.save_for_backward(grad_hidden, grad_weight[:V], None if grad_bias is None else grad_bias[:V])
            ctx.dtypes = hidden.dtype, weight.dtype, None if bias is None else bias.dtype
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        grads = [None if tensor is None else (tensor * grad).to(dtype) for tensor, dtype in saved]
        return (*grads, None, None, None, None, None)


def _output_layer(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The output matrix and bias in the precision of the matmul; on a GPU, with a padded vocabulary."""
    w = _pad_vocab(weight, dtype)
    return w, None if bias is None else F.pad(bias.to(dtype), (0, w.shape[0] - weight.shape[0]))


def _chunks(n_rows: int, weight: Tensor) -> Iterator[slice]:
    """Slices of the rows whose logits fit into `CHUNK_LOGITS`."""
    size = max(1, CHUNK_LOGITS.get(weight.device.type, 2**24) // weight.shape[0])
    size = size if size < CHUNK_ROW_MULTIPLE else size // CHUNK_ROW_MULTIPLE * CHUNK_ROW_MULTIPLE
    return (slice(start, start + size) for start in range(0, n_rows, size))


def _pad_vocab(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix in this precision; on a GPU, zero-padded to a multiple of `VOCAB_MULTIPLE` rows."""
    n_rows = -(-weight.shape[0] // VOCAB_MULTIPLE) * VOCAB_MULTIPLE if weight.is_cuda else weight.shape[0]
    if n_rows == weight.shape[0]:
        return weight.to(dtype)
    copy = torch.zeros(n_rows, weight.shape[1], dtype=dtype, device=weight.device)
    copy[: weight.shape[0]] = weight
    return copy


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += aᵀ b, accumulated in float32 regardless of the precision of a and b."""
    if a.dtype == torch.float32:
        total.addmm_(a.T, b)
    elif a.is_cuda:
        torch.addmm(total, a.T, b, out_dtype=torch.float32, out=total)
    else:
        total += (a.T @ b).float()


def _to_gradient(
    logits: Tensor, targets: Tensor, losses: Tensor, n_columns: int, smoothing: float, ignore: int
) -> None:
    """Write the loss of each row, and replace its logits (R, V) by the gradient of that loss, in place."""
    if logits.is_cuda and triton_works(logits.device):
        from headway.nn.kernels.cross_entropy import rows_to_gradient

        return rows_to_gradient(logits, targets, losses, n_columns, smoothing, ignore)
    is_target = targets != ignore
    index = targets.masked_fill(~is_target, 0)[:, None]
    scores = logits[:, :n_columns].float()
    log_p = scores.log_softmax(dim=-1)
    target_log_p = log_p.gather(1, index).squeeze(1)
    losses.copy_((-(1 - smoothing) * target_log_p - smoothing * log_p.mean(dim=-1)).masked_fill(~is_target, 0.0))
    grad = log_p.exp_()
    if smoothing:
        grad -= smoothing / n_columns
    grad.scatter_add_(1, index, torch.full_like(index, -(1 - smoothing), dtype=grad.dtype))
    logits[:, :n_columns] = grad.masked_fill_(~is_target[:, None], 0.0)
    logits[:, n_columns:] = 0.0  # padding
    return None
