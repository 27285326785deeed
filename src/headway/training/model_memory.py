"""Memory check before training: refuse a model that does not fit, before its data is prepared and before it is built.

The estimate is a lower bound: weights, gradients, optimizer state and EMA of the parameters alone. The memory of a
whole step of a Transformer is estimated once its batches are known (build.py).
"""

import msgspec
import torch

from headway.config import ModelConfig, TrainConfig
from headway.costs import count_parameters, largest_setting, parameter_copies
from headway.errors import with_article
from headway.memory import check_fits
from headway.training.throughput import free_memory


def check_trainable(config: ModelConfig, train: TrainConfig, device: torch.device) -> None:
    """Refuse a model whose parameters alone exceed the memory of the device. Models whose parameters are not known
    from their config, such as registered families, pass."""
    n_params = count_parameters(config)
    if n_params is None:
        return
    # With FSDP each rank builds the whole model, then keeps a part of it and of what belongs to it.
    copies = 1 if train.parallel == "fsdp" else parameter_copies(train)
    for_training = f", with {copies - 1} times as much to train them," if copies > 1 else ""
    check_fits(
        4 * n_params * copies,
        f"{with_article(config.family)} of {n_params:,} parameters{for_training}",
        advice=f"lower model.{largest_setting(config)}",
        available=None if device.type == "cpu" else free_memory(device),
    )


def without_vocabulary(config: ModelConfig) -> ModelConfig:
    """The config with the smallest vocabulary, a lower bound before the tokenizer is known."""
    special_ids = {name: None for name in ("bos_id", "eos_id") if name in config.__struct_fields__}
    return msgspec.structs.replace(config, vocab_size=1, **special_ids)
