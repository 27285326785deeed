"""Optimisers: AdamW, Adam, SGD, and Muon for matrices with AdamW for the rest.

A learning rate is set by `set_rate`, never by hand: on a GPU it is a tensor that captured steps read, and Muon's
matrices have one in units of their own. `skip` is a number on the device, 1 where the gradient is not finite: the step
then leaves weights and moments as they are, and nobody has had to wait for the device to know.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from headway.config import TrainConfig
from headway.nn.linear import Linear

MATRIX_LR = 0.02  # Jordan et al. 2024


class Optimizer:
    """One face for one or two of torch's optimisers, and their state by the names of parameters."""

    def __init__(self, model: nn.Module, config: TrainConfig, *, device: torch.device):
        self.names = {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.parts = OPTIMIZERS[config.optimizer](model, config)
        self.peak = config.lr
        self.device = device
        for group in self.groups:
            group["peak"] = group["lr"]
            if device.type == "cuda":
                group["lr"] = torch.tensor(float(group["lr"]), device=device)

    @property
    def groups(self) -> Iterator[dict[str, Any]]:
        return (group for part in self.parts for group in part.param_groups)

    def set_rate(self, lr: float) -> None:
        for group in self.groups:
            rate = lr * group["peak"] / self.peak if self.peak else 0.0
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def step(self, skip: Tensor | None = None) -> None:
        for part in self.parts:
            part.grad_scale, part.found_inf = None, skip  # type: ignore[attr-defined]  # as torch's fused kernels read it
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Every number the optimiser remembers: {"exp_avg/blocks.0.norm1.weight": …}. Made where not there yet."""
        found = {}
        for part in self.parts:
            for group in part.param_groups:
                for parameter in group["params"]:
                    own = part.state[parameter]
                    if not own:
                        own.update(blank_state(part, parameter))
                    found.update({f"{key}/{self.names[parameter]}": value for key, value in own.items()})
        return found


def blank_state(part: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    """The state of a parameter that has made no step, as the optimiser itself would begin it."""
    if isinstance(part, torch.optim.SGD) and not part.defaults["momentum"]:
        return {}
    if isinstance(part, Muon | torch.optim.SGD):
        return {"momentum_buffer": torch.zeros_like(parameter)}
    return {
        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
        "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
    }


def _by_decay(parameters: Iterable[nn.Parameter], decay: float) -> list[dict[str, Any]]:
    """Matrices decay; biases and gains, which have no scale to lose, do not. Parameters that are frozen stay out."""
    parameters = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _on_gpu(model: nn.Module) -> bool:
    """Whether a step may become part of a CUDA graph."""
    return any(p.is_cuda for p in model.parameters())


def adamw(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Loshchilov & Hutter 2019."""
    groups = _by_decay(model.parameters(), config.weight_decay)
    betas = (config.beta1, config.beta2)
    return [torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True, capturable=_on_gpu(model))]


def adam(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Kingma & Ba 2015; decay, if any, is added to the gradient."""
    groups = _by_decay(model.parameters(), config.weight_decay)
    betas = (config.beta1, config.beta2)
    return [torch.optim.Adam(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True, capturable=_on_gpu(model))]


def sgd(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """With step decay and momentum 0, what the LSTM papers used."""
    groups = _by_decay(model.parameters(), config.weight_decay)
    return [torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum or 0.0, fused=True)]


def muon(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of linear layers; AdamW for embeddings, norms and biases."""
    linear = {
        m.get_parameter("weight"): m for m in model.modules() if isinstance(m, nn.Linear) and m.weight.requires_grad
    }
    rest = [p for p in model.parameters() if p not in linear]
    parts = {p: m.parts if isinstance(m, Linear) else [m.out_features] for p, m in linear.items()}
    rate = MATRIX_LR if config.muon_lr is None else config.muon_lr
    momentum = 0.95 if config.momentum is None else config.momentum
    matrices = Muon(parts, lr=rate, momentum=momentum, weight_decay=config.weight_decay)
    groups, betas = _by_decay(rest, 0.0), (config.beta1, config.beta2)
    return [
        matrices,
        torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True, capturable=_on_gpu(model)),
    ]


OPTIMIZERS = {"adamw": adamw, "adam": adam, "sgd": sgd, "muon": muon}


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised (Jordan et al. 2024): every direction of a matrix moves by the same amount.

        M ← μ M + (1 − μ) G;   W ← W − η (√max(1, rows/columns) · UVᵀ + λ W),   UΣVᵀ = (1 − μ) G + μ M

    UVᵀ is found by a few steps of a polynomial iteration in bfloat16, matrices of one shape together. Where a matrix is
    several in one (queries, keys and values), each is orthogonalised for itself.
    """

    def __init__(self, parts: dict[nn.Parameter, list[int]], *, lr: float, momentum: float, weight_decay: float):
        self.parts = parts
        super().__init__(list(parts), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        skip: Tensor | None = getattr(self, "found_inf", None)
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            directions = []
            for p in parameters:
                if not self.state[p]:
                    self.state[p].update(blank_state(self, p))
                buffer, grad = self.state[p]["momentum_buffer"], p.grad
                if skip is not None:
                    grad = torch.where(skip > 0, buffer, grad)
                buffer.lerp_(grad, 1 - group["momentum"])
                directions.append(grad.lerp(buffer, group["momentum"]))
            for p, update in zip(parameters, self._orthogonal(parameters, directions), strict=True):
                change = update + group["weight_decay"] * p
                change = change if skip is None else torch.where(skip > 0, 0.0, change)
                p.sub_(change * group["lr"])

    def _orthogonal(self, parameters: list[nn.Parameter], directions: list[Tensor]) -> list[Tensor]:
        """UVᵀ of each direction, part by part, those of one shape in one batch."""
        whole = [d.full_tensor() if isinstance(d, DTensor) else d for d in directions]
        pieces = [piece for p, d in zip(parameters, whole, strict=True) for piece in d.split(self.parts[p])]
        done: list[Tensor] = [torch.empty(0)] * len(pieces)
        for shape in dict.fromkeys(piece.shape for piece in pieces):
            places = [i for i, piece in enumerate(pieces) if piece.shape == shape]
            made = orthogonalize(torch.stack([pieces[i] for i in places]))
            scale = max(1.0, shape[0] / shape[1]) ** 0.5
            for i, piece in zip(places, made, strict=True):
                done[i] = piece * scale
        updates, at = [], 0
        for p, d in zip(parameters, directions, strict=True):
            n = len(self.parts[p])
            update = torch.cat(done[at : at + n])
            if isinstance(d, DTensor):  # every rank has made all of it, and keeps its own share
                update = distribute_tensor(update, d.device_mesh, d.placements, src_data_rank=None)
            updates.append(update)
            at += n
        return updates


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """(N, rows, columns) → about UVᵀ of each: singular values end between 0.7 and 1.2 (Jordan et al. 2024).

    X ← a X + b (XXᵀ) X + c (XXᵀ)² X, with coefficients chosen for speed near 0 rather than exactness at 1.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.shape[-2] > matrices.shape[-1]
    X = matrices.mT if tall else matrices
    X = (X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(steps):
        A = X @ X.mT
        X = a * X + (b * A + c * (A @ A)) @ X
    return (X.mT if tall else X).to(matrices.dtype)
