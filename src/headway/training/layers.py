"""Layers of a GPT or a BERT, counted from the bottom: to freeze the lower ones, or to train them more slowly.

0             the embeddings
1 … L         the blocks
L + 1         the final norm, the pooler and the head
"""

import re

from torch import nn

from headway.errors import ConfigError

BLOCK = re.compile(r"(?:encoder\.)?blocks\.(\d+)\.")
EMBEDDINGS = re.compile(r"(?:encoder\.)?(embedding|positions|segments|embedding_norm)\b")


def layer_numbers(model: nn.Module) -> dict[str, int]:
    """Parameter → the number of its layer."""
    blocks = {name: int(match[1]) for name, _ in model.named_parameters() if (match := BLOCK.match(name))}
    top = 2 + max(blocks.values(), default=-1)
    return {
        name: blocks[name] + 1 if name in blocks else 0 if EMBEDDINGS.match(name) else top
        for name, _ in model.named_parameters()
    }


def layer_lr_factors(model: nn.Module, decay: float) -> dict[str, float]:
    """Parameter → its factor of the learning rate, decay^(layers above it) (Howard & Ruder 2018, §3.2)."""
    if decay == 1:
        return {}
    numbers = layer_numbers(model)
    top = max(numbers.values())
    return {name: decay ** (top - number) for name, number in numbers.items()}


def freeze_layers(model: nn.Module, n_layers: int) -> None:
    """Do not train the embeddings and the first `n_layers` blocks."""
    numbers = layer_numbers(model)
    n_blocks = max(numbers.values()) - 1
    if n_layers > n_blocks:
        raise ConfigError(
            f"train.frozen_layers={n_layers} of {n_blocks}: freeze {n_blocks} at most, or leave it out",
            setting="train.frozen_layers",
        )
    for name, parameter in model.named_parameters():
        if numbers[name] <= n_layers:
            parameter.requires_grad_(False)
