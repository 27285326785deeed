"""Optimisers."""

import torch
from torch import nn

from headway.config import TrainConfig


def adamw(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019). Matrices decay; biases and gains, which have no scale to lose, do not."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), fused=True)
