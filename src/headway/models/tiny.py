"""A family or preset at toy size: all of its parts, small widths, random weights. For checks that take a second."""

from typing import Any

import torch

from headway.errors import ConfigError
from headway.models.base import Model
from headway.models.ngram.model import NGram
from headway.models.registry import create

# The largest value of each size, in any family.
TINY_SIZES = {
    "vocab_size": 41,
    "context": 24,
    "n_layers": 2,
    "n_encoder_layers": 2,
    "n_decoder_layers": 2,
    "n_heads": 4,
    "d_model": 24,
    "d_hidden": 16,
    "d_attention": 12,
    "d_out": 12,
    "order": 4,
    "n_buckets": 50,
}
DERIVED = ("d_head", "d_ff")  # widths that follow from the others when unset
FIT_TOKENS = 400


def create_tiny(name: str, *, seed: int = 0) -> Model:
    """A small model of a family or preset, with random weights; an n-gram is fitted on random text.

    >>> create_tiny("llama-3-8b").config.n_layers
    2
    """
    config = create(name, device="meta").config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = create(config.replace(**_tiny_sizes(config)))
        except ConfigError:  # a family of your own, whose sizes depend on each other in another way
            model = create(config)
        if isinstance(model, NGram):
            tokens = torch.randint(config.vocab_size, (FIT_TOKENS,)) * torch.rand(FIT_TOKENS)
            model.fit(tokens.long() % model.config.vocab_size)
    return model.eval()


def _tiny_sizes(config: Any) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    for field in config.__struct_fields__:
        value = getattr(config, field)
        if field in DERIVED:
            sizes[field] = None
        elif field in TINY_SIZES and isinstance(value, int):
            sizes[field] = min(value, TINY_SIZES[field])
        elif field in ("bos_id", "eos_id") and value is not None:
            sizes[field] = min(value, TINY_SIZES["vocab_size"] - 1)
    if getattr(config, "n_kv_heads", None):  # grouped-query attention stays grouped
        sizes["n_kv_heads"] = sizes["n_heads"] if config.n_kv_heads == config.n_heads else min(config.n_kv_heads, 2)
    return sizes
