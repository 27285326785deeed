"""Ablations: settings that take a part of a model away, or put it in the wrong place, to show what it is for.

Each combines with every other part, so `headway compare gpt gpt:model.norm=none` trains both side by side. Those that
break a model come with a warning.
"""

from headway.config.models import BERTConfig, ModelConfig, StackConfig

SEES_TARGETS = "this model sees what it predicts"

# The value of a model as published; None: any but "none".
STANDARD_VALUES: dict[str, str | None] = {
    "positions": None,
    "norm": None,
    "residual": "add",
    "attention_scale": "sqrt",
    "similarity": "dot",
    "attention_mask": "causal",
}
WARNINGS = {
    ("norm", "none"): "activations grow from layer to layer, and training may diverge; a lower train.lr helps",
    ("residual", "none"): "gradients fade from layer to layer, so that deep stacks hardly learn",
    ("attention_scale", "none"): "scores grow with √d_head, and a saturated softmax has hardly any gradient",
    ("attention_mask", "none"): f"{SEES_TARGETS}: its loss does not measure prediction",
    (
        "attention_mask",
        "after-softmax",
    ): f"{SEES_TARGETS}: later tokens leak through the softmax, whose weights do not sum to 1",
}


def ablated_settings(config: ModelConfig) -> dict[str, str]:
    """The settings of a Transformer that differ from every published model: name → value."""
    if not isinstance(config, StackConfig):
        return {}
    values = {name: getattr(config, name) for name in STANDARD_VALUES if hasattr(config, name)}
    return {
        name: value
        for name, value in values.items()
        if (value == "none" if STANDARD_VALUES[name] is None else value != STANDARD_VALUES[name])
    }


def ablation_warnings(config: ModelConfig) -> list[str]:
    """What to expect of a model whose settings break it: "model.norm=none: activations grow …"."""
    warnings = []
    for name, value in ablated_settings(config).items():
        if name == "positions":
            order = "not at all" if isinstance(config, BERTConfig) else "only through the causal mask"
            order = "on the source side not at all" if config.family == "transformer" else order
            warnings.append(f"model.positions=none: the model sees the order of its tokens {order}")
        elif (name, value) in WARNINGS:
            warnings.append(f"model.{name}={value}: {WARNINGS[name, value]}")
    return warnings
