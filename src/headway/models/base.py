"""The contract every generative model keeps, be it an n-gram, an LSTM or a GPT.

    logits        = model(ids, lengths=None)                  # (B, T, V), for training and scoring
    state         = model.start(batch_size=B, capacity=None)
    logits, state = model.step(ids, state, lengths=None)      # (B, T) in: a prompt is one step, a new token is one
    state         = state.reorder(rows)                       # beams, finished rows

Equal by test: `step` by `step` = `forward`; a batch = its rows one by one; padding changes nothing; a future token
never changes a past logit. Sequence-to-sequence models take `source` and `source_mask` in `forward` and `start`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from headway.config import ModelConfig
from headway.errors import CheckpointError, InputError
from headway.nn.embedding import check_shape
from headway.nn.kv_cache import State
from headway.nn.linear import linear
from headway.nn.masks import padding

if TYPE_CHECKING:
    from headway.tokenizers import Tokenizer


@runtime_checkable
class LanguageModel(Protocol):
    """What samplers, search, evaluation and the engine ask of a model."""

    config: Any
    tokenizer: "Tokenizer | None"

    @property
    def device(self) -> torch.device: ...

    def __call__(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor: ...

    def start(self, batch_size: int = 1, capacity: int | None = None) -> State: ...

    def step(
        self, ids: Tensor, state: Any, lengths: Tensor | None = None, *, last: bool = False
    ) -> tuple[Tensor, Any]: ...


@runtime_checkable
class Seq2SeqLM(Protocol):
    """A language model conditioned on a source: `start(source=…)` and `model(ids, source=…)`. What sets it apart from a
    `LanguageModel` is `encode`."""

    config: Any
    tokenizer: "Tokenizer | None"

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
    """What all families share: a config, a tokenizer that may be absent, and a directory on disk."""

    config: ModelConfig
    tokenizer: "Tokenizer | None" = None

    def init_weights(self) -> None:
        """Fill the parameters as the paper says."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def n_params(self) -> int:
        """Parameters, a tied matrix counted once."""
        return sum(p.numel() for p in self.parameters())

    def load_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Take these tensors as the parameters, without a copy. Every one must be there, of the right shape."""
        own = self.state_dict()
        for name, parameter in own.items():
            if name not in tensors:
                raise CheckpointError(f"the weights lack {name!r}")
            if tensors[name].dtype not in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
                raise CheckpointError(f"{name!r} is of type {tensors[name].dtype}; weights are floating-point numbers")
            if tensors[name].shape != parameter.shape:
                shapes = f"{tuple(tensors[name].shape)}, not {tuple(parameter.shape)}"
                raise CheckpointError(f"{name!r} has shape {shapes}: config.json and the weights do not agree")
        if strange := [name for name in tensors if name not in own]:
            raise CheckpointError(f"the weights hold {strange[0]!r}, which the model has not")
        self.load_state_dict(dict(tensors), assign=True)

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write a model directory that `headway.load` opens, and transformers where it knows the architecture."""
        from headway.models.serialization import save

        return save(self, path, overwrite=overwrite)


class AutoregressiveLM(Model):
    """A generative model whose logits are a product of vectors and one matrix: `advance` says what a step is."""

    config: Any

    @property
    def output(self) -> tuple[Tensor, Tensor | None]:
        """The matrix (V, D) that turns vectors into logits, and the bias (V,) if there is one."""
        raise NotImplementedError

    def advance(self, ids: Tensor, state: Any, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        """The vectors (B, T, D) that are turned into logits, after each of the new tokens (B, T)."""
        raise NotImplementedError

    def unembed(self, hidden: Tensor) -> Tensor:
        """(…, D) → logits (…, V)."""
        return linear(hidden, *self.output)

    @torch.no_grad()
    def step(self, ids: Tensor, state: Any, lengths: Tensor | None = None, *, last: bool = False) -> tuple[Tensor, Any]:
        """Logits after each of the new tokens (B, T), or with `last` after each row's last: (B, T or 1, V)."""
        hidden, state = self.advance(ids, state, lengths)
        return self.unembed(last_real(hidden, lengths) if last else hidden), state


class EncoderDecoder(AutoregressiveLM):
    """One that writes from a source."""

    def hidden_states(
        self, ids: Tensor, lengths: Tensor | None = None, *, source: Tensor, source_mask: Tensor | None = None
    ) -> Tensor:
        """The vectors (B, T, D) that are turned into logits."""
        raise NotImplementedError

    def start(
        self,
        batch_size: int | None = None,
        capacity: int | None = None,
        *,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> Any:
        """Read the source (B, S) and be ready to write its targets."""
        raise NotImplementedError

    def forward(
        self, ids: Tensor, lengths: Tensor | None = None, *, source: Tensor, source_mask: Tensor | None = None
    ) -> Tensor:
        """Logits (B, T, V) after each target token (B, T), given the source (B, S)."""
        return self.unembed(self.hidden_states(ids, lengths, source=source, source_mask=source_mask))


def language_model(model: object) -> LanguageModel:
    """The model itself, if it predicts the next token."""
    if not isinstance(model, LanguageModel) or isinstance(model, Seq2SeqLM):
        raise InputError(
            f"a {type(model).__name__} does not predict the next token from those before it alone, so it neither "
            f"writes nor scores plain text; a gpt or an ngram does"
        )
    return model


@contextmanager
def eval_mode(model: object) -> Iterator[None]:
    """Without dropout inside the block, whatever the model's mode was; and back to that after it."""
    was_training = isinstance(model, nn.Module) and model.training
    if was_training:
        cast(nn.Module, model).eval()
    try:
        yield
    finally:
        if was_training:
            cast(nn.Module, model).train()


def mask_padding(ids: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Check `lengths` (B,) against `ids` (B, T) and put token 0 where there is padding, whatever was there.

    Lengths that say "no padding" come back as None. Where they are on the host this costs nothing; on the device
    nobody looks, since looking waits for it.
    """
    check_shape(ids)
    if lengths is None:
        return ids, None
    lengths = torch.as_tensor(lengths)
    if lengths.dtype not in (torch.int64, torch.int32):
        raise InputError(f"lengths of type {lengths.dtype}: how many tokens are real is an integer")
    if lengths.shape != ids.shape[:1]:
        raise InputError(f"lengths of shape {tuple(lengths.shape)} for ids of shape {tuple(ids.shape)}: one per row")
    if lengths.device.type == "cpu" and not torch.compiler.is_compiling():
        low, high = (int(bound) for bound in lengths.aminmax()) if lengths.numel() else (0, 0)
        if low < 0 or high > ids.shape[1]:
            raise InputError(f"lengths from {low} to {high} for rows of {ids.shape[1]} tokens: from 0 to that many")
        if low == ids.shape[1]:
            return ids, None
    lengths = lengths.to(ids.device, torch.long)
    return ids.masked_fill(~padding(lengths, ids.shape[1]), 0), lengths


def require_source(source: Tensor | None, batch_size: int | None) -> Tensor:
    """The source that a state is started from."""
    if source is None:
        raise InputError("an encoder-decoder writes from a source: start(source=ids, source_mask=…)")
    check_shape(source, "source")
    if batch_size is not None and batch_size != source.shape[0]:
        raise InputError(f"batch_size={batch_size} for a source of {source.shape[0]} rows; leave batch_size out")
    return source


def check_source(ids: Tensor, source: Tensor) -> None:
    check_shape(source, "source")
    if ids.shape[0] != source.shape[0]:
        raise InputError(f"ids of {ids.shape[0]} rows for a source of {source.shape[0]}: one target a source")


def source_lengths(source: Tensor, mask: Tensor | None) -> Tensor | None:
    """How many tokens of each source are real, for models that read one token after the other: what is not must come
    last."""
    check_shape(source, "source")
    if mask is None:
        return None
    if mask.shape != source.shape or mask.dtype != torch.bool:
        raise InputError(
            f"source_mask of shape {tuple(mask.shape)} and type {mask.dtype} for a source of shape "
            f"{tuple(source.shape)}: one boolean per token, True = may be looked at; use source_mask.bool()"
        )
    lengths = mask.sum(dim=1)
    if mask.device.type == "cpu" and not bool((mask == padding(lengths, mask.shape[1])).all()):
        raise InputError(
            "source_mask has a real token after one that is not: a recurrent model needs padding at the end"
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
            f"text, or build the model with positions that extend (sinusoidal, rotary, alibi)"
        )
