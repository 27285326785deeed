"""How well a model does on held-out text: bits per byte for language models, nats per target for everything else.

    bits per byte = −log2 p(text) / UTF-8 bytes of the text

which families and tokenizers share. The text is cut into consecutive windows without overlap: of the model's context
unless one is given, and to compare families the same one must be given. A model without a context, such as an n-gram,
reads the whole text as one. Every token is paid for: the first one too
(tokenizers/base.py, rules 3 and 4), and bytes lost in <unk> are spelled out at 8 bits each.

Each score has a `merit`, smaller being better: what training compares checkpoints by.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.data.batches import IGNORE, Batch, Batches, CausalBatch
from headway.data.windows import consecutive_windows
from headway.errors import ConfigError, DataError, InputError
from headway.models import GPT, NGram
from headway.models.base import LanguageModel, Model, evaluating, language_model
from headway.nn.masks import padding
from headway.tokenizers import Tokenizer
from headway.tokenizers.base import check_texts
from headway.training.objectives import Outcome, causal
from headway.training.parallel import World

MAX_LOGITS = 2**25  # numbers held at once: 128 MiB in float32

Ask = Callable[[Any], Outcome]  # a batch → its nats, and how many it got right


class Scored(Protocol):
    """What the loop asks of a score."""

    @property
    def merit(self) -> float: ...

    @property
    def summary(self) -> str: ...

    def to_dict(self) -> dict[str, float]: ...


class HeldOut(Protocol):
    """Held-out examples, ready to be asked about again and again."""

    def score(self, ask: Ask, world: World = World()) -> Scored: ...  # noqa: B008 (frozen)


@dataclass(frozen=True)
class Score:
    """Of a language model on a text."""

    nats_per_token: float
    bits_per_byte: float
    n_tokens: int  # that were predicted
    n_bytes: int
    context: int  # tokens in a window
    lost_bytes: int = 0  # charged at 8 bits each

    @property
    def perplexity(self) -> float:
        return _exp(self.nats_per_token)

    @property
    def merit(self) -> float:
        return self.bits_per_byte

    @property
    def summary(self) -> str:
        return (
            f"{self.bits_per_byte:.4f} bits per byte, {self.nats_per_token:.4f} nats per token, "
            f"perplexity {self.perplexity:,.2f}"
        )

    def to_dict(self) -> dict[str, float]:
        return {**self.__dict__, "perplexity": self.perplexity}


@dataclass(frozen=True)
class TaskScore:
    """Of a model on examples with answers."""

    nats_per_target: float
    n_targets: int
    accuracy: float | None = None  # share of the targets that got the highest score, where that is asked
    bleu: float | None = None  # of what the model writes, where that is asked (eval.metric)
    exact: float | None = None  # share of what it writes that is right to the letter, where that is asked

    @property
    def perplexity(self) -> float:
        return _exp(self.nats_per_target)

    @property
    def merit(self) -> float:
        written = self.bleu if self.bleu is not None else self.exact
        return self.nats_per_target if written is None else -written

    @property
    def summary(self) -> str:
        parts = [f"{self.nats_per_target:.4f} nats per target"]
        parts += [] if self.accuracy is None else [f"{self.accuracy:.2%} right"]
        parts += [] if self.bleu is None else [f"BLEU {self.bleu:.2f}"]
        parts += [] if self.exact is None else [f"{self.exact:.2%} exact"]
        return ", ".join(parts)

    def to_dict(self) -> dict[str, float]:
        found = {"nats_per_target": self.nats_per_target, "n_targets": self.n_targets, "perplexity": self.perplexity}
        asked = {"accuracy": self.accuracy, "bleu": self.bleu, "exact": self.exact}
        return found | {name: value for name, value in asked.items() if value is not None}


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf


class HeldOutText:
    """Documents as one stream of tokens, in consecutive windows."""

    def __init__(
        self, documents: Sequence[str], tokenizer: Tokenizer, *, vocab_size: int, context: int | None, batch_size: int
    ):
        check_texts(documents)
        self.n_bytes = sum(len(document.encode()) for document in documents)
        if not self.n_bytes:
            raise DataError("there is no text to score: it is empty")
        self.n_documents = len(documents)
        self.lost = sum(map(tokenizer.lost_bytes, documents))
        ids, begins = tokenizer.stream_with_begins(documents)
        self.stream, self.is_given = torch.tensor(ids), torch.zeros(len(ids), dtype=torch.bool)
        self.is_given[begins] = True
        # With no token to begin from, the first is paid for as one out of the vocabulary.
        self.first = math.log(vocab_size) if tokenizer.bos_id is None else 0.0
        self.context = context or max(1, len(ids))
        self.rows = max(1, min(batch_size, MAX_LOGITS // (self.context * vocab_size)))

    def batches(self) -> Iterator[CausalBatch]:
        windows = consecutive_windows(self.stream, self.context, self.rows)
        given = consecutive_windows(self.is_given, self.context, self.rows)
        for (inputs, targets, lengths), (_, skipped, _) in zip(windows, given, strict=True):
            counted = padding(lengths, targets.shape[1]) & ~skipped
            yield CausalBatch(inputs, targets.masked_fill(~counted, IGNORE), lengths)

    def score(self, ask: Ask, world: World = World()) -> Score:  # noqa: B008 (frozen)
        nats, n_tokens, _ = ask_all(ask, self.batches(), world)
        nats, n_tokens = nats + self.first, n_tokens + bool(self.first)
        return Score(
            nats_per_token=nats / max(n_tokens, 1),
            bits_per_byte=(nats / math.log(2) + 8 * self.lost) / self.n_bytes,
            n_tokens=n_tokens,
            n_bytes=self.n_bytes,
            context=self.context,
            lost_bytes=self.lost,
        )


class HeldOutExamples:
    """Examples of any task, in the order of their batches."""

    def __init__(self, batches: Batches[Any]):
        self.batches = batches

    def score(self, ask: Ask, world: World = World()) -> TaskScore:  # noqa: B008 (frozen)
        nats, count, right = ask_all(ask, self.batches.epoch(), world)
        return TaskScore(nats / max(count, 1), count, None if right is None else right / max(count, 1))


def ask_all(ask: Ask, batches: Iterator[Any], world: World) -> tuple[float, int, int | None]:
    """Nats, targets and right answers, summed over all batches. Each rank asks about its rows of every batch; one that
    has none asks about another's and forgets the answer, since a sharded model answers only if all ranks ask."""
    total, hits, count = 0.0, 0.0, 0
    kept: list[tuple[Tensor, Tensor | None]] = []
    knows_right = False
    for batch in batches:
        count += batch.n_targets
        own = torch.arange(len(batch))[world.rank :: world.size]
        is_real = len(own) > 0
        rows: Batch = batch if world.size == 1 else batch.rows(own if is_real else torch.arange(1))
        nats, right = ask(rows)
        if is_real:
            kept.append((nats.double(), right))
            knows_right = right is not None
        if len(kept) == 64:  # now and then: reading a number waits for the device
            total, hits = total + _sum(n for n, _ in kept), hits + _sum(r for _, r in kept)
            kept = []
    total, hits = total + _sum(n for n, _ in kept), hits + _sum(r for _, r in kept)
    total, hits, knows = world.sums(total, hits, float(knows_right))
    return total, count, int(hits) if knows else None


def _sum(numbers: Iterator[Tensor | None]) -> float:
    found = [number for number in numbers if number is not None]
    return float(torch.stack(found).sum()) if found else 0.0


@torch.no_grad()
def evaluate(
    model: Model | LanguageModel,
    documents: str | Sequence[str],
    *,
    context: int | None = None,
    batch_size: int = 16,
) -> Score:
    """Score a model on one text or several. `context` is the window, by default the model's own."""
    for name, value in (("context", context), ("batch_size", batch_size)):
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value} must be at least 1")
    documents = [documents] if isinstance(documents, str) else list(documents)
    model = language_model(model)
    if model.tokenizer is None:
        check_texts(documents)
        raise InputError("this model has no tokenizer, so no text can be scored")
    held_out = HeldOutText(
        documents,
        model.tokenizer,
        vocab_size=model.config.vocab_size,
        context=context or getattr(model.config, "context", None),
        batch_size=batch_size,
    )
    with evaluating(model):
        return held_out.score(lambda batch: predict(model, batch))


def predict(model: LanguageModel, batch: CausalBatch) -> Outcome:
    """The nats of the targets of a batch, by whatever way the model has."""
    batch = CausalBatch(batch.inputs.to(model.device), batch.targets.to(model.device), batch.lengths)
    if isinstance(model, GPT):
        return causal(model, batch)
    if isinstance(model, NGram) and model.is_normalized:
        return _looked_up(model, batch), None
    B, T = batch.inputs.shape
    lengths = torch.full((B,), T) if batch.lengths is None else batch.lengths
    nats, state = torch.zeros((), dtype=torch.float64, device=model.device), model.start(batch_size=B)
    piece = max(1, MAX_LOGITS // (B * model.config.vocab_size))
    for at in range(0, T, piece):  # a long text in pieces, which is the same
        ids, targets = batch.inputs[:, at : at + piece], batch.targets[:, at : at + piece].flatten()
        logits, state = model.step(ids, state, (lengths - at).clamp(0, ids.shape[1]))
        nats += F.cross_entropy(logits.flatten(0, 1).float(), targets, ignore_index=IGNORE, reduction="sum")
    return nats, None


def _looked_up(model: NGram, batch: CausalBatch) -> Tensor:
    """Without the probabilities of everything else."""
    nats = 0.0
    for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
        is_asked = targets != IGNORE
        row = torch.cat((inputs[:1], torch.where(is_asked, targets, inputs.roll(-1))))
        nats -= float(model.log_probability(row)[1:][is_asked.numpy()].sum(dtype="float64"))
    return torch.tensor(nats, dtype=torch.float64)
