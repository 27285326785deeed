"""Named published configs, looked up exactly: `headway.create("gpt2")`. No torch here.

Each is a difference from the family's defaults in config/models.py (GPT-2 small, BERT-base, the 2017 base model).
"""

from typing import Any

from headway.config import BERTConfig, GPTConfig, ModelConfig, TransformerConfig


def _gpt3(n_layers: int, d_model: int, n_heads: int, d_head: int) -> GPTConfig:
    """A row of Brown et al. 2020, Table 2.1: GPT-2's parts, twice the context.

    Departure: the paper alternates dense and locally banded sparse layers (§2.1); all layers here are dense.
    """
    return GPTConfig(context=2048, n_layers=n_layers, d_model=d_model, n_heads=n_heads, d_head=d_head)


def _llama(n_layers: int, d_model: int, n_heads: int, d_ff: int, **changes: Any) -> GPTConfig:
    """A row of Touvron et al. 2023 (LLaMA, Table 2; Llama 2, Appendix A.2.1) or of Grattafiori et al. 2024 (Llama 3,
    Table 3)."""
    parts: dict[str, Any] = {
        "positions": "rotary",
        "norm": "rms",
        "feed_forward": "swiglu",
        "bias": False,
        "tie_embeddings": False,
    }
    shape = {"n_layers": n_layers, "d_model": d_model, "n_heads": n_heads, "d_ff": d_ff}
    return GPTConfig(**{**parts, **shape, "dropout": 0.0, "vocab_size": 32_000, "context": 4096, **changes})


_LLAMA3: dict[str, Any] = {"n_kv_heads": 8, "vocab_size": 128_256, "context": 8192, "rope_theta": 500_000.0}
_SMALL: dict[str, Any] = {"context": 128, "dropout": 0.0, "vocab_size": 1024}

PRESETS: dict[str, ModelConfig] = {
    # Radford et al. 2018: the block of Vaswani et al. 2017, normalised after the residual, with learned positions.
    "gpt1": GPTConfig(vocab_size=40_478, context=512, norm_order="post"),
    # Radford et al. 2019, Table 2. The paper prints 117M, 345M, 762M and 1542M parameters; the released models
    # have the sizes these configs give.
    "gpt2": GPTConfig(),
    "gpt2-medium": GPTConfig(n_layers=24, d_model=1024, n_heads=16),
    "gpt2-large": GPTConfig(n_layers=36, d_model=1280, n_heads=20),
    "gpt2-xl": GPTConfig(n_layers=48, d_model=1600, n_heads=25),
    # In two rows the heads do not multiply to the width: XL (24 × 128 = 3072 ≠ 2048), 13B (40 × 128 = 5120 ≠ 5140).
    "gpt3-small": _gpt3(12, 768, 12, 64),
    "gpt3-medium": _gpt3(24, 1024, 16, 64),
    "gpt3-large": _gpt3(24, 1536, 16, 96),
    "gpt3-xl": _gpt3(24, 2048, 24, 128),
    "gpt3-2.7b": _gpt3(32, 2560, 32, 80),
    "gpt3-6.7b": _gpt3(32, 4096, 32, 128),
    "gpt3-13b": _gpt3(40, 5140, 40, 128),
    "gpt3-175b": _gpt3(96, 12_288, 96, 128),
    "llama-7b": _llama(32, 4096, 32, 11_008, context=2048),
    "llama-13b": _llama(40, 5120, 40, 13_824, context=2048),
    "llama-33b": _llama(60, 6656, 52, 17_920, context=2048),
    "llama-65b": _llama(80, 8192, 64, 22_016, context=2048),
    "llama-2-7b": _llama(32, 4096, 32, 11_008),
    "llama-2-13b": _llama(40, 5120, 40, 13_824),
    "llama-2-70b": _llama(80, 8192, 64, 28_672, n_kv_heads=8),
    "llama-3-8b": _llama(32, 4096, 32, 14_336, **_LLAMA3),
    "llama-3-70b": _llama(80, 8192, 64, 28_672, **_LLAMA3),
    # Released as Llama 3.1: its long context also rescales the rotary frequencies, which this preset does not.
    "llama-3-405b": _llama(126, 16_384, 128, 53_248, **{**_LLAMA3, "context": 131_072}),
    "bert-base": BERTConfig(),
    "bert-large": BERTConfig(n_layers=24, d_model=1024, n_heads=16),
    # Turc et al. 2019: smaller BERTs. Theirs of 4 layers and width 256 is called mini too.
    "bert-tiny": BERTConfig(n_layers=2, d_model=128, n_heads=2),
    "bert-small": BERTConfig(n_layers=4, d_model=512, n_heads=8),
    "bert-medium": BERTConfig(n_layers=8, d_model=512, n_heads=8),
    # Vaswani et al. 2017, Table 3: base and the last row, big.
    "transformer-base": TransformerConfig(),
    "transformer-big": TransformerConfig(d_model=1024, n_heads=16, dropout=0.3),
    # For a laptop: seconds to minutes on two cores.
    "gpt-tiny": GPTConfig(**_SMALL, n_layers=2, d_model=64, n_heads=2),
    "gpt-mini": GPTConfig(**_SMALL, n_layers=4, d_model=192, n_heads=6),
    "llama-mini": _llama(4, 192, 6, 512, n_kv_heads=2, **_SMALL),
    "bert-mini": BERTConfig(vocab_size=1024, context=128, n_layers=4, d_model=192, n_heads=6),
    "transformer-mini": TransformerConfig(vocab_size=1024, context=128, n_layers=3, d_model=192, n_heads=6),
}
