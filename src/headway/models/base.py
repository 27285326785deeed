"""The contract of every generative model, whether an n-gram, an LSTM or a GPT.

    logits        = model(ids, lengths=None)                  # (B, T, V), for training and scoring
    state         = model.start(batch_size=B, capacity=None)
    logits, state = model.step(ids, state, lengths=None)      # (B, T) in: a prefill is one step, so is a new token
    state         = state.reorder(rows)                       # select rows: beams, unfinished rows

Tests check for every model: `step` by `step` equals `forward`; a batch equals its rows one by one; padding changes
nothing; a future token never changes a past logit. Sequence-to-sequence models take `source` and `source_mask` in
`forward` and `start`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.config import ModelConfig
from headway.errors import CheckpointError, InputError, with_article
from headway.models.description import describe_shape, format_count
from headway.nn.embedding import check_shape
from headway.nn.linear import LinearFn
from headway.nn.masks import padding
from headway.nn.state import State

if TYPE_CHECKING:
    from headway.tokenizers import Tokenizer


@runtime_checkable
class LanguageModel(Protocol):
    """What samplers, search, evaluation and the decode loop need from a model."""

    config: Any

    @property
    def device(self) -> torch.device: ...

    def __call__(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor: ...

    def start(self, batch_size: int = 1, capacity: int | None = None) -> State: ...

    def step(
        self, ids: Tensor, state: Any, lengths: Tensor | None = None, *, last: bool = False
    ) -> tuple[Tensor, Any]: ...


class MinimalLM(Protocol):
    """The least that `generate`, `evaluate` and the searches accept: the methods of a `LanguageModel`, with or without
    their optional arguments. adapter.py fills in the rest."""

    def __call__(self, ids: Tensor, /) -> Tensor: ...

    @property
    def start(self) -> Callable[..., Any]: ...

    @property
    def step(self) -> Callable[..., Any]: ...


@runtime_checkable
class Seq2SeqLM(Protocol):
    """A language model conditioned on a source: `start(source=…)` and `model(ids, source=…)`. Its `encode` method
    distinguishes it from a `LanguageModel`."""

    config: Any

    @property
    def device(self) -> torch.device: ...

    def __call__(
        self, ids: Tensor, lengths: Tensor | None = None, *, source: Tensor, source_mask: Tensor | None = None
    ) -> Tensor: ...

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Any: ...

    def start(
        self,
        batch_size: int | None = None,
        capacity: int | None = None,
        *,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> Any: ...

    def step(
        self, ids: Tensor, state: Any, lengths: Tensor | None = None, *, last: bool = False
    ) -> tuple[Tensor, Any]: ...


class Model(nn.Module):
    """The base class of all families: a config, a tokenizer once it is set, and saving to a directory."""

    config: ModelConfig
    _tokenizer: "Tokenizer | None" = None

    @property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer whose ids the model reads. A loaded run has one; a new model has none until you set it."""
        if self._tokenizer is None:
            raise InputError(
                f"this {self.display_name} has no tokenizer, so it only takes token ids: set model.tokenizer = "
                f"headway.load_tokenizer(PATH)"
            )
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: "Tokenizer | None") -> None:
        self._tokenizer = tokenizer

    @property
    def has_tokenizer(self) -> bool:
        return self._tokenizer is not None

    def init_weights(self) -> None:
        """Initialise the parameters as in the paper."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def n_params(self) -> int:
        """Number of parameters; a tied matrix counts once."""
        return sum(p.numel() for p in self.parameters())

    @property
    def display_name(self) -> str:
        """What people call the model. Not always its class: an RNN with LSTM cells is an LSTM."""
        return type(self).__name__

    def __repr__(self) -> str:
        """One line, such as GPT(12 layers, 768 wide, 124.4M parameters, cpu float32); `tree()` shows every module."""
        return f"{self.display_name}({', '.join(self._describe())})"

    def _describe(self) -> list[str]:
        """The parts of the repr."""
        parts = [*describe_shape(self.config), f"{format_count(self.n_params)} parameters"]
        if (parameter := next(self.parameters(), None)) is not None:
            parts.append(f"{parameter.device} {str(parameter.dtype).removeprefix('torch.')}")
        return parts

    def tree(self) -> str:
        """All modules, one per line, as PyTorch prints them."""
        return super().__repr__()

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Use these tensors as the parameters, without copying. Names and shapes must match exactly."""
        expected = self.state_dict()
        for name, parameter in expected.items():
            if name not in tensors:
                raise CheckpointError(f"missing tensor {name!r} in the checkpoint")
            if tensors[name].dtype not in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
                raise CheckpointError(f"{name!r} is of type {tensors[name].dtype}; weights are floating-point numbers")
            if tensors[name].shape != parameter.shape:
                shapes = f"{tuple(tensors[name].shape)}, not {tuple(parameter.shape)}"
                raise CheckpointError(f"{name!r} has shape {shapes}: config.json and the weights do not agree")
        if unexpected := [name for name in tensors if name not in expected]:
            raise CheckpointError(f"unexpected tensor {unexpected[0]!r} in the checkpoint")
        self.load_state_dict(dict(tensors), assign=True)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write a model directory for `headway.load`, and for transformers if it supports the architecture."""
        from headway.models.serialization import save

        return save(self, path, overwrite=overwrite)


AnyLanguageModel: TypeAlias = Model | MinimalLM  # of our own classes, or of any other


class AutoregressiveLM(Model):
    """A generative model whose logits are a linear map of its hidden states; `decode_hidden` implements a step."""

    config: Any

    def __init__(self) -> None:
        super().__init__()
        self.unembed_fn: LinearFn = F.linear  # exchangeable from outside, as `Linear.linear_fn` is

    @property
    def output_layer(self) -> tuple[Tensor, Tensor | None]:
        """The output matrix (V, D) and the output bias (V,), if there is one."""
        raise NotImplementedError

    def decode_hidden(self, ids: Tensor, state: Any, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        """Final hidden states (B, T, D) after each new token (B, T), and the new state."""
        raise NotImplementedError

    def unembed(self, hidden: Tensor) -> Tensor:
        """(…, D) → logits (…, V)."""
        return self.unembed_fn(hidden, *self.output_layer)

    @torch.no_grad()
    def step(self, ids: Tensor, state: Any, lengths: Tensor | None = None, *, last: bool = False) -> tuple[Tensor, Any]:
        """Logits (B, T, V) after each new token (B, T); with `last`, (B, 1, V) after each row's last real token."""
        hidden, state = self.decode_hidden(ids, state, lengths)
        return self.unembed(last_real(hidden, lengths) if last else hidden), state


class EncoderDecoder(AutoregressiveLM):
    """A generative model conditioned on a source sequence."""

    def hidden_states(
        self, ids: Tensor, lengths: Tensor | None = None, *, source: Tensor, source_mask: Tensor | None = None
    ) -> Tensor:
        """Final hidden states (B, T, D)."""
        raise NotImplementedError

    def start(
        self,
        batch_size: int | None = None,
        capacity: int | None = None,
        *,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> Any:
        """Encode the source (B, S) and return the initial decoder state."""
        raise NotImplementedError

    def forward(
        self, ids: Tensor, lengths: Tensor | None = None, *, source: Tensor, source_mask: Tensor | None = None
    ) -> Tensor:
        """Logits (B, T, V) after each target token (B, T), given the source (B, S)."""
        return self.unembed(self.hidden_states(ids, lengths, source=source, source_mask=source_mask))


def described(model: object) -> str:
    """ "a GPT", "an LSTM": a model of any class, in a sentence."""
    return with_article(getattr(model, "display_name", type(model).__name__))


def tokenizer_of(model: object) -> "Tokenizer | None":
    """The tokenizer of a model, of any class, or None if it has none."""
    return model._tokenizer if isinstance(model, Model) else getattr(model, "tokenizer", None)


@contextmanager
def eval_mode(model: object) -> Iterator[None]:
    """Switch the model to eval mode inside the block and restore its mode afterwards."""
    was_training = isinstance(model, nn.Module) and model.training
    if was_training:
        cast(nn.Module, model).eval()
    try:
        yield
    finally:
        if was_training:
            cast(nn.Module, model).train()


def mask_padding(ids: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Check `lengths` (B,) against `ids` (B, T) and replace padding by token 0.

    If no row has padding, the returned lengths are None. On a GPU the values are not checked: it would force a
    synchronisation.
    """
    check_shape(ids)
    if lengths is None:
        return ids, None
    lengths = torch.as_tensor(lengths)
    if lengths.dtype not in (torch.int64, torch.int32):
        raise InputError(f"lengths of type {lengths.dtype}: lengths are integers; use .long()")
    if lengths.shape != ids.shape[:1]:
        raise InputError(
            f"lengths of shape {tuple(lengths.shape)} for ids of shape {tuple(ids.shape)}: expected one per row"
        )
    if lengths.device.type == "cpu" and not torch.compiler.is_compiling():
        low, high = (int(bound) for bound in lengths.aminmax()) if lengths.numel() else (0, 0)
        if low < 0 or high > ids.shape[1]:
            raise InputError(
                f"lengths from {low} to {high} for rows of {ids.shape[1]} tokens: expected 0 to {ids.shape[1]}"
            )
        if low == ids.shape[1]:
            return ids, None
    lengths = lengths.to(ids.device, torch.long)
    return ids.masked_fill(~padding(lengths, ids.shape[1]), 0), lengths


def require_source(source: Tensor | None, batch_size: int | None) -> Tensor:
    """Check the source passed to `start` and return it."""
    if source is None:
        raise InputError("an encoder-decoder needs a source: start(source=ids, source_mask=…)")
    check_shape(source, "source")
    if batch_size is not None and batch_size != source.shape[0]:
        raise InputError(f"batch_size={batch_size} for a source of {source.shape[0]} rows; omit batch_size")
    return source


def check_source(ids: Tensor, source: Tensor) -> None:
    check_shape(source, "source")
    if ids.shape[0] != source.shape[0]:
        raise InputError(
            f"ids of {ids.shape[0]} rows for a source of {source.shape[0]}: expected one target per source"
        )


def source_lengths(source: Tensor, mask: Tensor | None) -> Tensor | None:
    """The number of real tokens in each source, for recurrent models: padding must come last."""
    check_shape(source, "source")
    if mask is None:
        return None
    if mask.shape != source.shape or mask.dtype != torch.bool:
        raise InputError(
            f"source_mask of shape {tuple(mask.shape)} and type {mask.dtype} for a source of shape "
            f"{tuple(source.shape)}: one boolean per token, True = may be attended to; use source_mask.bool()"
        )
    lengths = mask.sum(dim=1)
    if mask.device.type == "cpu" and not bool((mask == padding(lengths, mask.shape[1])).all()):
        raise InputError(
            "source_mask has a real token after padding: a recurrent model needs padding at the end of each row"
        )
    return lengths


def last_real(x: Tensor, lengths: Tensor | None) -> Tensor:
    """(B, T, D) → (B, 1, D): each row's last real position."""
    if lengths is None:
        return x[:, -1:]
    lengths = torch.as_tensor(lengths).to(x.device, torch.long)
    return x.gather(1, (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, x.shape[-1]))


def check_context(n_tokens: int, limit: int | None, positions: str) -> None:
    if limit is not None and n_tokens > limit:
        raise InputError(
            f"{n_tokens} tokens are longer than the context of {limit}, where {positions} positions end: shorten the "
            f"text, or use a model whose positions extend (sinusoidal, rotary, alibi)"
        )
