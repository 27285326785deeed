"""What a model remembers of each sequence while it decodes: the KV cache of a Transformer, the state of an RNN.

GPT            2 n d L        keys and values of n tokens in L layers (the lectures' figure)
  grouped      2 n g k L      fewer key/value heads
  sliding      2 w d L        the last w tokens only
RNN, LSTM      the same for every n: this is why an RNN needs no cache
"""

from dataclasses import dataclass
from typing import Any

from headway.config import (
    BahdanauConfig,
    GPTConfig,
    ModelConfig,
    NGramConfig,
    NPLMConfig,
    RNNConfig,
    Seq2SeqConfig,
    TransformerConfig,
)
from headway.costs.formula import Formula, symbols
from headway.costs.operations import sizes_of, widths

b, n, s, r, a, w, d, L = symbols("b n s r a w d L")
TOKEN_ID_BYTES = 8


@dataclass(frozen=True)
class DecodeState:
    """Elements of the state of a batch, and their size in bytes."""

    elements: Formula
    sizes: dict[str, int]
    bytes_per_element: int

    @property
    def nbytes(self) -> int:
        return self.bytes_per_element * self.elements.evaluate(self.sizes)


def decode_state(
    config: ModelConfig,
    *,
    batch_size: int = 1,
    seq_len: int,
    source_len: int | None = None,
    bytes_per_element: int = 4,
    window: int | None = None,
) -> DecodeState | None:
    """The state after `seq_len` tokens; None for models that do not generate. `window`: the tokens that a sliding
    window keeps.

    >>> from headway.config import model_config
    >>> decode_state(model_config("gpt2"), seq_len=1024).nbytes
    75497472
    """
    c = config.resolved()
    has_window = window is not None and window < seq_len and isinstance(c, GPTConfig | TransformerConfig)
    elements = _elements(c, w if has_window else n)
    if elements is None:
        return None
    sizes = sizes_of(c) | {"b": batch_size, "n": seq_len, "s": seq_len if source_len is None else source_len}
    if has_window:
        assert window is not None
        sizes["w"] = window
    sizes["L"] = c.n_decoder_layers if isinstance(c, TransformerConfig) else getattr(c, "n_layers", 1)
    is_ids = isinstance(c, NGramConfig | NPLMConfig)
    return DecodeState(elements, sizes, TOKEN_ID_BYTES if is_ids else bytes_per_element)


def _elements(c: Any, kept: Formula) -> Formula | None:
    """`kept`: the tokens whose keys and values are kept."""
    match c:
        case GPTConfig():
            return 2 * b * kept * widths(c)[1] * L
        case TransformerConfig():
            return 2 * b * kept * widths(c)[1] * L + 2 * b * s * widths(c)[1] * L
        case RNNConfig():
            top = d if c.tie_embeddings else r
            return _state_tensors(c.cell) * b * (r * L + (top - r))
        case Seq2SeqConfig():
            return _state_tensors(c.cell) * b * d * L
        case BahdanauConfig():
            return 2 * b * s * r + b * s * a + _state_tensors(c.cell) * b * r
        case NPLMConfig():  # token ids: its window, less the newest
            return b * (w - 1)
        case NGramConfig():
            return b * w
    return None


def _state_tensors(cell: str) -> int:
    return 2 if cell in ("lstm", "peephole") else 1
