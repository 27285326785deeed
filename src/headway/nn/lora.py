"""LoRA: train a low-rank update of each matrix, not the matrix itself (Hu et al. 2022).

    y = x Wᵀ + b + (α/r) (x Aᵀ) Bᵀ          W (out, in) and b are frozen; A (r, in) and B (out, r) are trained

B starts at zero, so the model starts as it was (§4.1). After training, W + (α/r) B A is a plain matrix again: using the
model costs nothing extra.

Every matrix of the blocks gets an update. Hu et al. adapt W_Q and W_V only; Dettmers et al. 2023 (§4) find that the
other matrices are needed too to reach the scores of full fine-tuning. The stacked W_Q, W_K and W_V share one A.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.errors import ConfigError, with_article
from headway.nn.block import Block
from headway.nn.linear import Linear


class LoRALinear(Linear):
    """A `Linear` with a low-rank update; it takes over the parameters of `layer`, whose names stay."""

    def __init__(self, layer: Linear, a: Tensor, b: Tensor, scale: float):
        _take_over(self, layer, layer.weight)
        self.lora_a, self.lora_b, self.scale = nn.Parameter(a), nn.Parameter(b), scale
        self.merged: Tensor | None = None  # W + (α/r) B A, inside `lora_merged`

    @property
    def rank(self) -> int:
        return len(self.lora_a)

    def forward(self, x: Tensor) -> Tensor:
        if self.merged is not None:
            return self.linear_fn(x, self.merged, self.bias)
        update = F.linear(F.linear(x, self.lora_a), self.lora_b)
        return self.linear_fn(x, self.weight, self.bias) + self.scale * update

    @torch.no_grad()
    def merged_weight(self) -> Tensor:
        """W + (α/r) B A, rounded once if W is in half precision."""
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        update = self.scale * (self.lora_b.to(dtype) @ self.lora_a.to(dtype))
        return (self.weight + update).to(self.weight.dtype)


M = TypeVar("M", bound=nn.Module)


def add_lora(model: M, rank: int, alpha: float) -> M:
    """Give every matrix of the blocks an update of this rank, scaled by alpha / rank, and freeze all other parameters;
    returns the model."""
    if lora_layers(model):
        raise ConfigError("the model has LoRA updates already: merge them first, merge_lora(model)")
    layers = block_layers(model)
    if not layers:
        kind = with_article(type(model).__name__)
        raise ConfigError(f"{kind} without Transformer blocks has no matrices for LoRA: train it as a whole")
    model.requires_grad_(False)
    for name, layer in layers.items():
        a, b = layer.weight.new_empty(rank, layer.in_features), layer.weight.new_zeros(layer.out_features, rank)
        nn.init.kaiming_uniform_(a, a=math.sqrt(5))  # the released code; the paper draws from a normal distribution
        replace_layer(model, name, LoRALinear(layer, a, b, alpha / rank))
    return model


def merge_lora(model: M) -> M:
    """Add the updates to their matrices and remove them. All parameters may be trained again; returns the model."""
    for name, layer in lora_layers(model).items():
        plain = Linear.__new__(Linear)
        _take_over(plain, layer, nn.Parameter(layer.merged_weight()))
        replace_layer(model, name, plain)
        model.requires_grad_(True)
    return model


@contextmanager
def lora_merged(model: nn.Module) -> Iterator[None]:
    """Inside the block the model computes with the merged matrices, as it will when it is saved and loaded."""
    layers = lora_layers(model).values()
    for layer in layers:
        layer.merged = layer.merged_weight()
    try:
        yield
    finally:
        for layer in layers:
            layer.merged = None


def merged_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of the model after `merge_lora`."""
    layers = lora_layers(model)
    merged = {f"{name}.weight": layer.merged_weight() for name, layer in layers.items()}
    is_update = {f"{name}.{part}" for name in layers for part in ("lora_a", "lora_b")}
    return {name: merged.get(name, tensor) for name, tensor in model.state_dict().items() if name not in is_update}


def lora_layers(model: nn.Module) -> dict[str, LoRALinear]:
    """The adapted layers by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, LoRALinear)}


def n_lora_params(model: nn.Module) -> int:
    """The number of parameters in all updates."""
    return sum(layer.lora_a.numel() + layer.lora_b.numel() for layer in lora_layers(model).values())


def block_layers(model: nn.Module) -> dict[str, Linear]:
    """The linear layers of the blocks by name: those that LoRA adapts."""
    blocks = [(name, block) for name, block in model.named_modules() if isinstance(block, Block)]
    return {
        f"{prefix}.{name}": layer
        for prefix, block in blocks
        for name, layer in block.named_modules()
        if isinstance(layer, Linear)
    }


def replace_layer(model: nn.Module, name: str, layer: Linear) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, layer)


def _take_over(layer: Linear, other: Linear, weight: Tensor) -> None:
    """Initialise a layer as the other one with this weight; `Linear.__init__` would draw a new one."""
    nn.Module.__init__(layer)
    layer.in_features, layer.out_features, layer.parts = other.in_features, other.out_features, other.parts
    layer.weight, layer.linear_fn, layer.training = cast(nn.Parameter, weight), other.linear_fn, other.training
    layer.register_parameter("bias", other.bias)
