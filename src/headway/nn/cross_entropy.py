"""The loss of a model that predicts tokens: −ln softmax(h Wᵀ + b)[target], summed over the targets.

`cross_entropy` is the definition. It makes all logits in float32, (N, V) of them, and autograd as many again: for GPT-2
and 32 × 1024 tokens 6.6 GB each. `fused_cross_entropy` is the same function a few thousand rows at a time: it makes the
logits of a chunk in the precision of the product, turns them into their own gradient where they lie,

    ∂loss/∂logits = softmax(logits) − [column = target]

and multiplies that out at once, so that only the gradients of h, W and b, which are small, wait for the way back.

Label smoothing (Szegedy et al. 2016, §7) spreads a share ε of each target evenly over the vocabulary. Rows whose target
is `ignore` count nothing. On a GPU, W is copied to the precision of the product anyway, and there into a matrix whose
number of rows is a multiple of `PAD`, which tensor cores like; those extra columns of logits are never looked at.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

PAD = 64
CHUNK_NUMBERS = {"cpu": 2**24, "cuda": 2**29}  # logits held at once
ROWS = 1024  # chunks are multiples of so many rows, where there are as many: products like that too


def cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    *,
    smoothing: float = 0.0,
    ignore: int = -100,
) -> Tensor:
    """hidden (N, D), weight (V, D), bias (V,), targets (N,) → the sum of the losses, a float32 scalar."""
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
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    with torch.autocast(kind, enabled=False):
        return _Fused.apply(hidden, weight, bias, targets, smoothing, ignore, dtype, torch.is_grad_enabled())


def token_nll(
    hidden: Tensor, output: tuple[Tensor, Tensor | None], targets: Tensor, *, smoothing: float = 0.0, ignore: int = -100
) -> Tensor:
    """Negative log-likelihood summed over the targets (B, T), from hidden states (B, T, D) and the output layer."""
    weight, bias = output
    flat = hidden.flatten(0, 1)
    return fused_cross_entropy(flat, weight, targets.flatten(), bias, smoothing=smoothing, ignore=ignore)


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
        is_learning: bool,
    ) -> Tensor:
        N, V = hidden.shape[0], weight.shape[0]
        wants = is_learning and any(ctx.needs_input_grad[:3])
        h, w = hidden.to(dtype), _padded(weight, dtype)
        b = None if bias is None else F.pad(bias.to(dtype), (0, w.shape[0] - V))
        rows = max(1, CHUNK_NUMBERS.get(hidden.device.type, 2**24) // w.shape[0])
        rows = rows if rows < ROWS else rows // ROWS * ROWS
        losses = torch.empty(N, dtype=torch.float32, device=hidden.device)
        grad_hidden = torch.empty_like(h) if wants else None
        grad_weight = torch.zeros(w.shape, dtype=torch.float32, device=w.device) if wants else None
        grad_bias = (
            torch.zeros(w.shape[0], dtype=torch.float32, device=w.device) if wants and bias is not None else None
        )
        for part in (slice(at, at + rows) for at in range(0, N, rows)):
            logits = F.linear(h[part], w, b)  # (rows, V)
            _to_gradient(logits, targets[part], losses[part], V, smoothing, ignore)
            if grad_hidden is not None and grad_weight is not None:
                torch.mm(logits, w, out=grad_hidden[part])
                _add_product(grad_weight, logits, h[part])
                if grad_bias is not None:
                    grad_bias += logits.sum(0, dtype=torch.float32)
        if grad_hidden is not None and grad_weight is not None:
            ctx.save_for_backward(grad_hidden, grad_weight[:V], None if grad_bias is None else grad_bias[:V])
            ctx.dtypes = hidden.dtype, weight.dtype, None if bias is None else bias.dtype
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        made = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        grads = [None if tensor is None else (tensor * grad).to(dtype) for tensor, dtype in made]
        return (*grads, None, None, None, None, None)


def _padded(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy of the matrix in this precision with its rows filled up to a multiple of `PAD`; itself if it is so."""
    n_rows = -(-weight.shape[0] // PAD) * PAD if weight.is_cuda else weight.shape[0]
    if n_rows == weight.shape[0]:
        return weight.to(dtype)
    copy = torch.zeros(n_rows, weight.shape[1], dtype=dtype, device=weight.device)
    copy[: weight.shape[0]] = weight
    return copy


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += aᵀ b, in float32 whatever the precision of a and b."""
    if a.dtype == torch.float32:
        total.addmm_(a.T, b)
    elif a.is_cuda:
        torch.addmm(total, a.T, b, out_dtype=torch.float32, out=total)
    else:
        total += (a.T @ b).float()


def _to_gradient(
    logits: Tensor, targets: Tensor, losses: Tensor, n_columns: int, smoothing: float, ignore: int
) -> None:
    """Write the loss of each row, and turn its logits (R, V) into the gradient of that loss, in place."""
    if logits.is_cuda:
        from headway.nn.kernels.cross_entropy import rows_to_gradient

        return rows_to_gradient(logits, targets, losses, n_columns, smoothing, ignore)
    real = targets != ignore
    index = targets.masked_fill(~real, 0)[:, None]
    scores = logits[:, :n_columns].float()
    log_p = scores.log_softmax(dim=-1)
    picked = log_p.gather(1, index).squeeze(1)
    losses.copy_((-(1 - smoothing) * picked - smoothing * log_p.mean(dim=-1)).masked_fill(~real, 0.0))
    grad = log_p.exp_()
    if smoothing:
        grad -= smoothing / n_columns
    grad.scatter_add_(1, index, torch.full_like(index, -(1 - smoothing), dtype=grad.dtype))
    logits.copy_(grad.masked_fill_(~real[:, None], 0.0))
    return None
