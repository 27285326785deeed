"""Transformer blocks on a CPU, in float32: what follows a matrix product is computed while its result is in cache.

    h = gelu(x W₁ᵀ + b₁)              two passes over h (N, F), which exceeds the caches; here one
    y = x + h W₂ᵀ + b₂                two passes over y (N, D); here one

oneDNN applies an activation, or adds a tensor, as it writes a product ("post-ops"). With weights packed once into its
layout (see cpu_linear.py) a block of an encoder is four such products, attention and two norms.

`Block.forward` is the definition; `FusedBlocks` replaces it for as long as its context lasts. Only for inference: there
is no backward.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from headway.nn.attention import AttentionContext
from headway.nn.block import Block
from headway.nn.feedforward import FeedForward, gelu, gelu_tanh, relu
from headway.nn.kernels.cpu_linear import MIN_WEIGHTS, PACK_FOR_ROWS, can_pack, is_on_cpu
from headway.nn.kv_cache import LayerCache
from headway.nn.linear import Linear

# Activations that oneDNN applies to a product: its names of the function and of the algorithm.
POST_OPS: dict[Callable[[Tensor], Tensor], tuple[str, str]] = {
    gelu: ("gelu", "none"),
    gelu_tanh: ("gelu", "tanh"),
    relu: ("relu", ""),
}


class FusedBlocks(AbstractContextManager["FusedBlocks"]):
    """A context: inside it, the blocks of a model that can be fused are. Does nothing on a GPU, or without oneDNN.

    Weights are packed when first used, which takes their memory again, and stay packed as long as this object lives.
    Weights that change in the meantime are not noticed.
    """

    def __init__(self, model: nn.Module):
        blocks = [module for module in model.modules() if isinstance(module, Block)] if is_on_cpu(model) else []
        self.kernels = {block: FusedBlock(block) for block in blocks if can_pack() and can_fuse(block)}
        self.replaced: list[Block] = []

    def __enter__(self) -> "FusedBlocks":
        for block, kernel in self.kernels.items():
            if "forward" not in block.__dict__:  # not inside another such context
                block.__dict__["forward"] = kernel
                self.replaced.append(block)
        return self

    def __exit__(self, *exception: object) -> None:
        while self.replaced:
            del self.replaced.pop().__dict__["forward"]


def can_fuse(block: Block) -> bool:
    """Whether `FusedBlock` computes what this block does: plain linear layers, an activation that oneDNN has."""
    feed_forward = block.feed_forward
    if not isinstance(feed_forward, FeedForward) or feed_forward.activation not in POST_OPS:
        return False
    layers = (block.attention.qkv, block.attention.out, feed_forward.up, feed_forward.down)
    return all(type(layer) is Linear for layer in layers) and feed_forward.up.weight.numel() >= MIN_WEIGHTS


class FusedBlock:
    """`Block.forward` in eval mode, without a cache. Anything else is computed by the block itself."""

    def __init__(self, block: Block):
        self.block = block
        self.packed: dict[Linear, Tensor] = {}  # weights in oneDNN's layout

    def __call__(self, x: Tensor, ctx: AttentionContext, cache: LayerCache | None = None, source: Any = None) -> Tensor:
        block = self.block
        if cache is not None or source is not None or not self._can_run(x):
            return type(block).forward(block, x, ctx, cache, source)
        attention, feed_forward = block.attention, block.feed_forward
        assert isinstance(feed_forward, FeedForward)
        if block.norm_first:
            y = attention.attend(self._product(attention.qkv, block.norm1(x)), ctx)
            x = self._product_plus(attention.out, y, x)
            h = self._product(feed_forward.up, block.norm2(x), *POST_OPS[feed_forward.activation])
            return self._product_plus(feed_forward.down, h, x)
        y = attention.attend(self._product(attention.qkv, x), ctx)
        x = block.norm1(self._product_plus(attention.out, y, x))
        h = self._product(feed_forward.up, x, *POST_OPS[feed_forward.activation])
        return block.norm2(self._product_plus(feed_forward.down, h, x))

    def _can_run(self, x: Tensor) -> bool:
        return (
            not self.block.training
            and not torch.is_grad_enabled()
            and x.dtype == self.block.attention.qkv.weight.dtype == torch.float32
            and not torch.compiler.is_compiling()
            and not torch.is_autocast_enabled("cpu")
        )

    def _product(self, layer: Linear, x: Tensor, function: str = "none", algorithm: str = "") -> Tensor:
        """function(x Wᵀ + b)"""
        return torch.ops.mkldnn._linear_pointwise(x, self._weight(layer), layer.bias, function, [], algorithm)

    def _product_plus(self, layer: Linear, x: Tensor, residual: Tensor) -> Tensor:
        """residual + x Wᵀ + b"""
        return torch.ops.mkldnn._linear_pointwise(x, residual, self._weight(layer), layer.bias, "add")

    def _weight(self, layer: Linear) -> Tensor:
        if layer not in self.packed:
            self.packed[layer] = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), PACK_FOR_ROWS)
        return self.packed[layer]
