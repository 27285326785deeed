"""What is learned, as functions: `objective(model, batch) → (nats, right)`.

`nats` is the loss summed over the batch's targets (`batch.n_targets` of them; the loop divides), `right` how many of
them the model would have chosen, where that costs nothing to know. A new objective is one function here, and a
collection of examples in setup.py.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.data.datasets.labeled import LabelBatch, SpanBatch, TagBatch
from headway.data.datasets.mlm import MLMBatch
from headway.data.datasets.seq2seq import Seq2SeqBatch
from headway.data.loader import IGNORE, CausalBatch
from headway.evaluation.validation import LossOutput
from headway.models import GPT, NPLM, RNN, MaskedLM
from headway.models.base import EncoderDecoder, mask_padding
from headway.models.heads import Classifier, SpanReader, Tagger
from headway.nn.cross_entropy import token_nll
from headway.nn.recurrent import RecurrentState

PIECE = 1024  # tokens of a long text that is scored


def causal(
    model: GPT | NPLM | RNN, batch: CausalBatch, smoothing: float = 0.0, restraint: tuple[float, float] = (0.0, 0.0)
) -> LossOutput:
    """The next token, everywhere."""
    if isinstance(model, RNN) and not model.training:
        return _causal_in_chunks(model, batch), None
    packed = () if batch.documents is None else (batch.documents,)
    hidden = model.hidden_states(batch.inputs, batch.lengths, *packed)
    return token_nll(hidden, model.output, batch.targets, smoothing=smoothing) + activation_penalty(
        hidden, restraint
    ), None


def activation_penalty(hidden: Tensor, restraint: tuple[float, float]) -> Tensor | float:
    """α Σ h² + β Σ (h_t − h_{t−1})² over all tokens, the mean over units: vectors stay small and change slowly
    (Merity et al. 2017, who take the change before dropout; here both are of what is left after it)."""
    ar_alpha, tar_beta = restraint
    h, n = hidden.float(), hidden.shape[0] * hidden.shape[1]
    paid: Tensor | float = ar_alpha * h.square().mean() if ar_alpha else 0.0
    if tar_beta and hidden.shape[1] > 1:
        paid = paid + tar_beta * (h[:, 1:] - h[:, :-1]).square().mean()
    return n * paid


def _causal_in_chunks(model: RNN, batch: CausalBatch) -> Tensor:
    """A text of any length, a piece at a time, which is the same and takes less memory."""
    state, nats = model.begin(len(batch)), torch.zeros((), device=model.device)
    for at in range(0, batch.inputs.shape[1], PIECE):
        ids, targets = (x[:, at : at + PIECE] for x in (batch.inputs, batch.targets))
        hidden, state = model.run(mask_padding(ids, _rest(batch.lengths, at, ids.shape[1]))[0], state)
        nats = nats + token_nll(hidden, model.output, targets)
    return nats


def _rest(lengths: Tensor | None, at: int, n: int) -> Tensor | None:
    return None if lengths is None else (lengths - at).clamp(0, n)


def causal_with_carried_state(
    model: RNN,
    batch: CausalBatch,
    memory: list[RecurrentState],
    smoothing: float = 0.0,
    restraint: tuple[float, float] = (0.0, 0.0),
) -> LossOutput:
    """The same for rows that go on where those of the batch before ended. What they carry is in `memory`, and what
    they end with is put there: learning goes back through this window alone."""
    assert batch.carry is not None
    keep = batch.carry[:, None]
    hidden, after = model.run(batch.inputs, [tuple(t * keep for t in layer) for layer in memory])
    for old, new in zip(memory, after, strict=True):
        for a, b in zip(old, new, strict=True):
            a.copy_(b.detach())
    return token_nll(hidden, model.output, batch.targets, smoothing=smoothing) + activation_penalty(
        hidden, restraint
    ), None


def masked(model: MaskedLM, batch: MLMBatch, smoothing: float = 0.0) -> LossOutput:
    """The tokens that were hidden (Devlin et al. 2019, §3.1)."""
    hidden = model.hidden_states(batch.ids, batch.mask)
    return token_nll(hidden, (model.table, model.bias), batch.targets, smoothing=smoothing), None


def pairs(model: EncoderDecoder, batch: Seq2SeqBatch, smoothing: float = 0.0) -> LossOutput:
    """The target's next token, given the source and the target so far."""
    hidden = model.hidden_states(batch.inputs, source=batch.source, source_mask=batch.source_mask)
    return token_nll(hidden, model.output, batch.targets, smoothing=smoothing), None


def rdrop_pairs(
    model: EncoderDecoder, batch: Seq2SeqBatch, smoothing: float = 0.0, rdrop_alpha: float = 0.0
) -> LossOutput:
    """The same seen twice, with different dropout, and half of `rdrop_alpha` times how far the two answers are apart:
    KL(p ‖ q) and KL(q ‖ p), their mean (R-Drop; Liang et al. 2021, eq. 4)."""
    inputs, source, mask = (torch.cat((x, x)) for x in (batch.inputs, batch.source, batch.source_mask))
    hidden = model.hidden_states(inputs, source=source, source_mask=mask)
    log_p = F.linear(hidden, *model.output).float().log_softmax(dim=-1)  # (2B, T, V)
    is_target = batch.targets != IGNORE
    wanted = batch.targets.masked_fill(~is_target, 0)
    one, other = log_p.chunk(2)
    right = (one + other).gather(-1, wanted[..., None]).squeeze(-1) / 2
    nats = -(1 - smoothing) * right - smoothing * (one + other).mean(dim=-1) / 2
    apart = ((one.exp() - other.exp()) * (one - other)).sum(dim=-1) / 2
    return ((nats + rdrop_alpha / 2 * apart) * is_target).sum(), None


def classify(model: Classifier, batch: LabelBatch, smoothing: float = 0.0) -> LossOutput:
    """The label of a text."""
    return _label_nll(model(batch.ids, batch.mask), batch.labels, smoothing)


def tag(model: Tagger, batch: TagBatch, smoothing: float = 0.0) -> LossOutput:
    """The tag of every word."""
    return _label_nll(model(batch.ids, batch.mask).flatten(0, 1), batch.tags.flatten(), smoothing)


def span(model: SpanReader, batch: SpanBatch, smoothing: float = 0.0) -> LossOutput:
    """The first and the last token of the answer: two choices among the tokens of the row."""
    scores = model(batch.ids, batch.mask, batch.segments).masked_fill(~batch.mask[:, None], -torch.inf)  # (B, 2, T)
    nats, right = _label_nll(scores.flatten(0, 1), torch.stack((batch.starts, batch.ends), dim=1).flatten(), 0.0)
    return nats, right


OBJECTIVES: dict[str, Callable[..., LossOutput]] = {
    "causal": causal,
    "masked": masked,
    "pairs": pairs,
    "classify": classify,
    "tag": tag,
    "span": span,
}


def _label_nll(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """logits (N, C), targets (N,)"""
    nats = F.cross_entropy(logits.float(), targets, ignore_index=IGNORE, label_smoothing=smoothing, reduction="sum")
    return nats, (logits.argmax(dim=-1) == targets).sum()


class LossModule(nn.Module):
    """A model and what it learns, as one module: DDP and FSDP then wrap one `forward`. Scored without smoothing."""

    def __init__(
        self,
        model: nn.Module,
        objective: str,
        smoothing: float = 0.0,
        rdrop_alpha: float = 0.0,
        restraint: tuple[float, float] = (0.0, 0.0),
    ):
        super().__init__()
        self.model = model
        self.objective, self.smoothing, self.rdrop_alpha = OBJECTIVES[objective], smoothing, rdrop_alpha
        self.restraint = restraint
        self.memory: list[RecurrentState] | None = None  # what rows carry from batch to batch, if they do

    def remember(self, n_rows: int) -> dict[str, Tensor]:
        """Let rows carry on from batch to batch; the tensors that hold it, by name."""
        self.memory = cast(RNN, self.model).begin(n_rows)
        return {f"carried/{i}/{j}": t for i, layer in enumerate(self.memory) for j, t in enumerate(layer)}

    def forward(self, batch: Any) -> LossOutput:
        if self.training and self.memory is not None:
            return causal_with_carried_state(cast(RNN, self.model), batch, self.memory, self.smoothing, self.restraint)
        if self.training and any(self.restraint):
            return causal(cast(RNN, self.model), batch, self.smoothing, self.restraint)
        if self.training and self.rdrop_alpha:
            return rdrop_pairs(cast(EncoderDecoder, self.model), batch, self.smoothing, self.rdrop_alpha)
        return self.objective(self.model, batch, self.smoothing if self.training else 0.0)
