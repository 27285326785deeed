"""The parameters of a model by name and shape, and what is not trained. The model is built without its weights.

Training changes the parameters and nothing else: not the inputs, not the softmax, not positions that are a formula.
"""

import re
from dataclasses import dataclass

from headway.config import BagOfWordsConfig, BERTConfig, BiLSTMConfig, ModelConfig, NGramConfig, StackConfig
from headway.models.registry import empty_model
from headway.tables import Column, render_table

LAYER_NUMBER = re.compile(r"(?<=\.)(\d+)(?=\.)")
FIXED_POSITIONS = {
    "sinusoidal": "sinusoidal positions: sin and cos of position / 10000^(2i/d)",
    "rotary": "rotary positions: queries and keys are rotated by position × frequency",
    "alibi": "ALiBi: scores fall linearly with distance, with a fixed slope per head",
}


@dataclass(frozen=True)
class TensorRow:
    """Tensors of equal shape at the same place of every layer."""

    name: str  # "blocks.*.attention.qkv.weight"
    shape: tuple[int, ...]
    n_layers: int

    @property
    def n_params(self) -> int:
        size = self.n_layers
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True)
class ModelSummary:
    name: str
    learned: list[TensorRow]
    fixed: list[str]
    tied: str = ""  # which parameters are shared

    @property
    def n_params(self) -> int:
        return sum(row.n_params for row in self.learned)

    def render(self, width: int | None = None) -> str:
        columns = [
            Column("learned parameter", [*(row.name for row in self.learned), "total"], is_text=True),
            Column("shape", [*(" × ".join(f"{n:,}" for n in row.shape) for row in self.learned), ""]),
            Column("layers", [*(str(row.n_layers) if row.n_layers > 1 else "" for row in self.learned), ""]),
            Column("parameters", [*(f"{row.n_params:,}" for row in self.learned), f"{self.n_params:,}"]),
        ]
        fixed = "\n".join(f"  {line}" for line in self.fixed)
        tied = f"\n\n{self.tied}" if self.tied else ""
        return f"{render_table(columns, width)}{tied}\n\nNot trained:\n{fixed}"

    def to_dict(self) -> dict[str, object]:
        rows = [
            {"name": row.name, "shape": list(row.shape), "layers": row.n_layers, "parameters": row.n_params}
            for row in self.learned
        ]
        return {"name": self.name, "learned": rows, "parameters": self.n_params, "fixed": self.fixed, "tied": self.tied}


def summarize_model(config: ModelConfig, name: str = "") -> ModelSummary:
    """The tensors of a model, equal layers in one row.

    >>> from headway.config import model_config
    >>> summarize_model(model_config("gpt2")).learned[2]
    TensorRow(name='blocks.*.attention.qkv.weight', shape=(2304, 768), n_layers=12)
    """
    model = empty_model(config)
    grouped: dict[tuple[str, tuple[int, ...]], int] = {}
    for tensor_name, parameter in model.named_parameters():
        key = (LAYER_NUMBER.sub("*", tensor_name), tuple(parameter.shape))
        grouped[key] = grouped.get(key, 0) + 1
    learned = [TensorRow(tensor_name, shape, n) for (tensor_name, shape), n in grouped.items()]
    tied = ""
    if getattr(config, "tie_embeddings", False) and config.family != "bert":  # whose output matrix is part of a head
        tied = "Tied: the unembedding (lm_head) is the embedding matrix, transposed."
    return ModelSummary(name or config.family, learned, _fixed(config), tied)


def _fixed(config: ModelConfig) -> list[str]:
    lines = ["the inputs, which are token ids"]
    if not isinstance(config, BERTConfig | BiLSTMConfig | BagOfWordsConfig):  # whose heads are not listed
        lines.append("the softmax over the vocabulary")
    if isinstance(config, NGramConfig):
        return [*lines, "probabilities are counted, not learned by gradient descent"]
    if isinstance(config, StackConfig):
        scale = " and the scale 1/√d_head" if config.attention_scale == "sqrt" else ""
        lines.append(f"the softmax{scale} of attention")
        mask = {"causal": "the causal mask", "after-softmax": "the causal mask, after the softmax"}
        lines += [mask[name] for name in mask if getattr(config, "attention_mask", None) == name]
        if config.positions in FIXED_POSITIONS:
            lines.append(FIXED_POSITIONS[config.positions])
    return lines
