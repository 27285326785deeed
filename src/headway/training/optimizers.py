"""Optimizers: AdamW, Adam, SGD, and Muon for matrices with AdamW for everything else.

`Optimizer.set_lr` sets the learning rate: on a GPU it is a tensor that captured steps read, and Muon's matrices
use the same schedule scaled to `muon_lr`. `skip` is a scalar on the device, 1 if the gradient is not finite: the step
then leaves weights and moments unchanged, without a synchronisation.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from headway.config import TrainConfig
from headway.errors import ConfigError
from headway.nn.linear import Linear
from headway.training.layers import layer_lr_factors

MUON_LR = 0.02  # Jordan et al. 2024


class Optimizer:
    """One interface to one or two torch optimizers, with their state by parameter name."""

    def __init__(self, model: nn.Module, config: TrainConfig, *, device: torch.device):
        self.names = {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}
        made = OPTIMIZERS[config.optimizer](model, config)
        self.optimizers = [made] if isinstance(made, torch.optim.Optimizer) else list(made)
        self.peak_lr = config.lr
        self.device = device
        self.initial_groups = [[dict(group) for group in optimizer.param_groups] for optimizer in self.optimizers]
        for group in self.groups:
            group["peak"] = group["lr"]
            if device.type == "cuda":
                group["lr"] = torch.tensor(float(group["lr"]), device=device)

    @property
    def groups(self) -> Iterator[dict[str, Any]]:
        return (group for optimizer in self.optimizers for group in optimizer.param_groups)

    def set_lr(self, lr: float) -> None:
        for group in self.groups:
            group_lr = lr * group["peak"] / self.peak_lr if self.peak_lr else 0.0
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(group_lr)
            else:
                group["lr"] = group_lr

    @property
    def is_capturable(self) -> bool:
        """Whether a step may be captured in a CUDA graph: if all optimizers skip a step by themselves."""
        return all(skips_by_itself(optimizer) for optimizer in self.optimizers)

    def step(self, skip: Tensor | None = None) -> None:
        for optimizer in self.optimizers:
            if skips_by_itself(optimizer):
                # the attributes that torch's fused kernels read
                optimizer.grad_scale, optimizer.found_inf = None, skip  # type: ignore[union-attr]
            elif skip is not None and bool(skip > 0):  # registered optimizers cannot skip by themselves; synchronises
                continue
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """All state tensors by name: {"exp_avg/blocks.0.norm1.weight": …}. Creates those that do not exist yet."""
        tensors = {}
        for optimizer in filter(skips_by_itself, self.optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    state = optimizer.state[parameter]
                    if not state:
                        state.update(initial_state(optimizer, parameter))
                    tensors.update({f"{key}/{self.names[parameter]}": value for key, value in state.items()})
        return tensors

    def registered_state(self) -> dict[str, Tensor]:
        """The state of optimizers that plug-ins register, as far as it exists: of parameters, and numbers of groups."""
        tensors: dict[str, Tensor] = {}
        for i, optimizer in enumerate(self.optimizers):
            if skips_by_itself(optimizer):
                continue
            for parameter, state in optimizer.state.items():
                for key, value in state.items():
                    kind = "" if isinstance(value, Tensor) else NUMBER
                    if value is not None:
                        tensors[f"optimizer/{i}/{kind}{key}/{self.names[cast(nn.Parameter, parameter)]}"] = _to_tensor(
                            key, value
                        )
            for j, (group, initial) in enumerate(zip(optimizer.param_groups, self.initial_groups[i], strict=True)):
                for key in initial:  # numbers that the optimizer counts up, not settings, which may change on resume
                    value = group[key]
                    if key != "lr" and isinstance(value, int | float) and value != initial[key]:
                        tensors[f"optimizer/{i}/group {j}/{key}"] = _to_tensor(key, value)
        return tensors

    def load_registered_state(self, saved: Mapping[str, Tensor]) -> None:
        """Restore what `registered_state` returned."""
        parameters = {name: parameter for parameter, name in self.names.items()}
        for name, tensor in saved.items():
            if not name.startswith("optimizer/"):
                continue
            _, i, key, rest = name.split("/", 3)
            optimizer = self.optimizers[int(i)]
            if key.startswith("group "):
                optimizer.param_groups[int(key.removeprefix("group "))][rest] = tensor.item()
                continue
            parameter = parameters[rest]
            is_number = key.startswith(NUMBER)
            value = tensor.item() if is_number else tensor.to(parameter.device)
            optimizer.state[parameter][key.removeprefix(NUMBER)] = value


NUMBER = "number "  # prefix of state that is a Python number, not a tensor


def _to_tensor(key: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, int | float):
        return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
    raise ConfigError(f"the optimizer's state {key!r} is {value!r:.40}: a checkpoint holds tensors and numbers only")


def initial_state(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    """The state of a parameter before its first step, as the optimizer itself would create it."""
    if isinstance(optimizer, torch.optim.SGD) and not optimizer.defaults["momentum"]:
        return {}
    if isinstance(optimizer, Muon | torch.optim.SGD):
        return {"momentum_buffer": torch.zeros_like(parameter)}
    return {
        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
        "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
    }


def _param_groups(
    model: nn.Module, config: TrainConfig, weight_decay: float, without: Collection[nn.Parameter] = ()
) -> list[dict[str, Any]]:
    """Parameter groups: matrices decay, biases and norm gains do not, and lower layers may have lower learning rates.
    Frozen parameters are left out, and those in `without`."""
    lr_factors = layer_lr_factors(model, config.layer_lr_decay)
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter not in without:
            key = (lr_factors.get(name, 1.0), parameter.dim() >= 2)
            groups.setdefault(key, []).append(parameter)
    return [
        {"params": parameters, "lr": config.lr * factor, "weight_decay": weight_decay if is_matrix else 0.0}
        for (factor, is_matrix), parameters in sorted(groups.items(), key=lambda item: item[0], reverse=True)
    ]


def _is_capturable(model: nn.Module) -> bool:
    """Whether a step may be captured in a CUDA graph."""
    return any(p.is_cuda for p in model.parameters())


def adamw(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Loshchilov & Hutter 2019."""
    groups, capturable = _param_groups(model, config, config.weight_decay), _is_capturable(model)
    betas = (config.beta1, config.beta2)
    return [torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True, capturable=capturable)]


def adam(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Kingma & Ba 2015; weight decay, if any, is added to the gradient."""
    groups, capturable = _param_groups(model, config, config.weight_decay), _is_capturable(model)
    betas = (config.beta1, config.beta2)
    return [torch.optim.Adam(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True, capturable=capturable)]


def sgd(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """With step decay and without momentum this is the optimizer of the LSTM papers."""
    groups = _param_groups(model, config, config.weight_decay)
    return [torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum or 0.0, fused=True)]


def muon(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Muon for the weight matrices of linear layers; AdamW for embeddings, norms and biases."""
    linear = {
        m.get_parameter("weight"): m for m in model.modules() if isinstance(m, nn.Linear) and m.weight.requires_grad
    }
    part_sizes = {p: m.parts if isinstance(m, Linear) else [m.out_features] for p, m in linear.items()}
    lr = MUON_LR if config.muon_lr is None else config.muon_lr
    momentum = 0.95 if config.momentum is None else config.momentum
    groups, capturable = _param_groups(model, config, 0.0, without=linear), _is_capturable(model)
    betas = (config.beta1, config.beta2)
    factors = layer_lr_factors(model, config.layer_lr_decay)
    lr_factors = {model.get_parameter(name): factor for name, factor in factors.items()}
    made: list[torch.optim.Optimizer] = []
    if part_sizes:  # none if all blocks are frozen
        made.append(Muon(part_sizes, lr=lr, momentum=momentum, weight_decay=config.weight_decay, lr_factors=lr_factors))
    if groups:
        made.append(
            torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=config.eps, fused=True, capturable=capturable)
        )
    return made


OPTIMIZERS: dict[str, Callable[[nn.Module, TrainConfig], Any]] = {
    "adamw": adamw,
    "adam": adam,
    "sgd": sgd,
    "muon": muon,
}


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum (Jordan et al. 2024): every direction of a matrix moves by the same amount.

        M ← μ M + (1 − μ) G;   W ← W − η (√max(1, rows/columns) · UVᵀ + λ W),   UΣVᵀ = (1 − μ) G + μ M

    A few steps of a polynomial iteration in bfloat16 approximate UVᵀ, in one batch for all matrices of a shape.
    `part_sizes` gives the rows of the matrices that a weight stacks (queries, keys and values); each part is
    orthogonalised on its own. `lr_factors` multiply the learning rate of some of them.

    `torch.optim.Muon` orthogonalises one matrix after the other: 26.1 ms per step against 9.6 here, GPT-2 124M on an
    H200 (benchmarks/torch_parts.py; on a CPU theirs is 1.3 times as fast). It also treats stacked matrices as one, and
    has neither sharded parameters nor steps that a CUDA graph can skip.
    """

    def __init__(
        self,
        part_sizes: dict[nn.Parameter, list[int]],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        lr_factors: Mapping[nn.Parameter, float] | None = None,
    ):
        self.part_sizes = part_sizes
        groups: dict[float, list[nn.Parameter]] = {}
        for parameter in part_sizes:
            groups.setdefault((lr_factors or {}).get(parameter, 1.0), []).append(parameter)
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__([{"params": group, "lr": lr * factor} for factor, group in groups.items()], defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        skip: Tensor | None = getattr(self, "found_inf", None)
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            directions = []
            for p in parameters:
                if not self.state[p]:
                    self.state[p].update(initial_state(self, p))
                buffer, grad = self.state[p]["momentum_buffer"], p.grad
                if skip is not None:
                    grad = torch.where(skip > 0, buffer, grad)
                buffer.lerp_(grad, 1 - group["momentum"])
                directions.append(grad.lerp(buffer, group["momentum"]))
            for p, update in zip(parameters, self._orthogonalize(parameters, directions), strict=True):
                change = update + group["weight_decay"] * p
                change = change if skip is None else torch.where(skip > 0, 0.0, change)
                p.sub_(change * group["lr"])

    def _orthogonalize(self, parameters: list[nn.Parameter], directions: list[Tensor]) -> list[Tensor]:
        """UVᵀ of each direction, part by part; parts of the same shape go in one batch."""
        full = [d.full_tensor() if isinstance(d, DTensor) else d for d in directions]
        parts = [part for p, d in zip(parameters, full, strict=True) for part in d.split(self.part_sizes[p])]
        orthogonal: list[Tensor] = [torch.empty(0)] * len(parts)
        for shape in dict.fromkeys(part.shape for part in parts):
            indices = [i for i, part in enumerate(parts) if part.shape == shape]
            batch = orthogonalize(torch.stack([parts[i] for i in indices]))
            scale = max(1.0, shape[0] / shape[1]) ** 0.5
            for i, matrix in zip(indices, batch, strict=True):
                orthogonal[i] = matrix * scale
        updates, start = [], 0
        for p, d in zip(parameters, directions, strict=True):
            n_parts = len(self.part_sizes[p])
            update = torch.cat(orthogonal[start : start + n_parts])
            if isinstance(d, DTensor):  # every rank has computed the full update and keeps its shard
                update = distribute_tensor(update, d.device_mesh, d.placements, src_data_rank=None)
            updates.append(update)
            start += n_parts
        return updates


def skips_by_itself(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer reads `found_inf` and skips a step by it: ours, and torch's fused ones."""
    is_fused = isinstance(optimizer, torch.optim.Adam | torch.optim.SGD) and bool(optimizer.defaults.get("fused"))
    return isinstance(optimizer, Muon) or (is_fused and not optimizer.defaults.get("amsgrad"))


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """(N, rows, columns) → about UVᵀ of each: singular values end between 0.7 and 1.2 (Jordan et al. 2024).

    X ← a X + b (XXᵀ) X + c (XXᵀ)² X, with coefficients chosen for speed near 0 rather than exactness at 1.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    X = matrices.mT if is_tall else matrices
    X = (X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(steps):
        A = X @ X.mT
        X = a * X + (b * A + c * (A @ A)) @ X
    return (X.mT if is_tall else X).to(matrices.dtype)
