"""Transformer blocks on a CPU, in float32: the activation is computed while the product is in cache.

    h = gelu(x W₁ᵀ + b₁)              two passes over h (N, F), which exceeds the caches; here one
    y = x + h W₂ᵀ + b₂                the residual is added in place: no third tensor

oneDNN applies an activation as it writes a product (a "post-op"). It can also add a tensor, but PyTorch's operator for
that takes 2 ms more per call, whatever the size.

`Block.forward` is the definition, and `FusedBlock` replaces it inside the context `encoder_kernels(model)`. Only for
inference: there is no backward.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headway.nn.attention import AttentionContext, SelfAttention
from headway.nn.block import Block
from headway.nn.feedforward import FeedForward, gelu, gelu_tanh, relu
from headway.nn.kernels.cpu_linear import CPUKernels, can_pack, is_plain_float32
from headway.nn.kv_cache import LayerCache
from headway.nn.linear import Linear

# Activations that oneDNN has as post-ops: its names of the function and of the algorithm.
POST_OPS: dict[Callable[[Tensor], Tensor], tuple[str, str]] = {
    gelu: ("gelu", "none"),
    gelu_tanh: ("gelu", "tanh"),
    relu: ("relu", ""),
}


def encoder_kernels(model: nn.Module, *, pack: bool = True) -> CPUKernels:
    """A context: inside it, the model's blocks are fused where they can be, and its other products use `CPULinear`.

    Does nothing on a GPU, and fuses nothing where oneDNN is missing or not the faster library.
    """
    kernels = CPUKernels(model, pack=pack)
    if kernels.linear and can_pack():
        for block in model.modules():
            if isinstance(block, Block) and can_fuse(block):
                kernels.kernels[block, "forward"] = FusedBlock(block, kernels)
    return kernels


def can_fuse(block: Block) -> bool:
    """Whether `FusedBlock` computes what this block does: our own modules, without hooks inside, not compiled, and an
    activation that oneDNN has as a post-op."""
    attention, feed_forward = block.attention, block.feed_forward
    if not (type(block) is Block and type(attention) is SelfAttention and type(feed_forward) is FeedForward):
        return False
    is_exchanged = "forward" in block.__dict__ or block._compiled_call_impl is not None
    has_hooks = any(part._forward_hooks or part._forward_pre_hooks for part in block.modules() if part is not block)
    return (
        all(type(layer) is Linear for layer in (attention.qkv, attention.out, feed_forward.up, feed_forward.down))
        and feed_forward.activation in POST_OPS
        and block.residual
        and not is_exchanged
        and not has_hooks
    )


class FusedBlock:
    """`Block.forward` without gradients, dropout or a cache. Anything else is computed by the block itself."""

    def __init__(self, block: Block, kernels: CPUKernels):
        assert isinstance(block.feed_forward, FeedForward)
        self.block, self.feed_forward, self.kernels = block, block.feed_forward, kernels

    def __call__(self, x: Tensor, ctx: AttentionContext, cache: LayerCache | None = None, source: Any = None) -> Tensor:
        block, attention, feed_forward = self.block, self.block.attention, self.feed_forward
        if cache is not None or source is not None or not self._can_run(x):
            return Block.forward(block, x, ctx, cache, source)
        activation = POST_OPS[feed_forward.activation]
        if block.norm_first:
            y = attention.attend(self._product(attention.qkv, block.norm1(x)), ctx)
            x = self._product_plus(x, attention.out, y)
            h = self._product(feed_forward.up, block.norm2(x), *activation)
            return self._product_plus(x, feed_forward.down, h)
        y = attention.attend(self._product(attention.qkv, x), ctx)
        x = block.norm1(self._product_plus(x, attention.out, y))
        h = self._product(feed_forward.up, x, *activation)
        return block.norm2(self._product_plus(x, feed_forward.down, h))

    def _can_run(self, x: Tensor) -> bool:
        is_inference = not torch.is_grad_enabled() and not self.block.dropout.training
        return is_inference and is_plain_float32(x, self.feed_forward.up.weight)

    def _product(self, layer: Linear, x: Tensor, function: str = "none", algorithm: str = "") -> Tensor:
        """function(x Wᵀ + b)"""
        return torch.ops.mkldnn._linear_pointwise(x, self._weight(layer), layer.bias, function, [], algorithm)

    def _product_plus(self, residual: Tensor, layer: Linear, x: Tensor) -> Tensor:
        """residual + x Wᵀ + b"""
        return self._product(layer, x).add_(residual)

    def _weight(self, layer: Linear) -> Tensor:
        return self.kernels.linear[layer, "linear_fn"].onednn_weight(layer.weight)
