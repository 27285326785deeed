"""Training objectives as functions: `objective(model, batch) → (nats, n_correct)`.

`nats` is the loss summed over the batch's targets (there are `batch.n_targets`; the trainer divides), `n_correct` the
number of targets that got the highest score, or None if it would cost extra to know. A new objective is one function
here and a dataset in task.py; one registered by a plug-in (`headway.register`) is a training loss on the batches of
another.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.config.choices import BASE_OBJECTIVES
from headway.data.datasets.classification import LabelBatch
from headway.data.datasets.mlm import MLMBatch
from headway.data.datasets.seq2seq import Seq2SeqBatch
from headway.data.datasets.spans import SpanBatch
from headway.data.datasets.tagging import TagBatch
from headway.data.loader import IGNORE_INDEX, CausalBatch
from headway.evaluation.validation import LossOutput
from headway.models import GPT, NPLM, RNN, MaskedLM
from headway.models.base import EncoderDecoder, mask_padding
from headway.models.heads import Classifier, SpanReader, Tagger
from headway.nn.cross_entropy import scoring_nll, token_nll
from headway.nn.recurrent import RecurrentState

EVAL_CHUNK_TOKENS = 1024  # scored at a time, by recurrent models and masked LMs


def causal(
    model: GPT | NPLM | RNN,
    batch: CausalBatch,
    smoothing: float = 0.0,
    ar_alpha: float = 0.0,
    tar_beta: float = 0.0,
) -> LossOutput:
    """Predict the next token at every position."""
    if isinstance(model, RNN) and not model.training:
        return _causal_in_chunks(model, batch), None
    if not hasattr(model, "hidden_states"):  # a family of a plug-in may have logits only
        nats = F.cross_entropy(
            model(batch.inputs, batch.lengths).flatten(0, 1).float(),
            batch.targets.flatten(),
            ignore_index=IGNORE_INDEX,
            label_smoothing=smoothing,
            reduction="sum",
        )
        return nats, None
    documents = () if batch.documents is None else (batch.documents,)
    hidden = model.hidden_states(batch.inputs, batch.lengths, *documents)
    nats = _nll(model, hidden, batch.targets, smoothing)
    return nats + activation_penalty(hidden, ar_alpha, tar_beta), None


def _nll(model: Any, hidden: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """The loss in nats; that of a validation set, without gradients, is summed in float64 as `evaluate` sums it."""
    if model.training or torch.is_grad_enabled():
        return token_nll(hidden, model.output_layer, targets, smoothing=smoothing)
    return scoring_nll(hidden, model.output_layer, targets)


def activation_penalty(hidden: Tensor, ar_alpha: float, tar_beta: float) -> Tensor | float:
    """AR and TAR (Merity et al. 2017): α Σ h² + β Σ (h_t − h_{t−1})² over all tokens, averaged over units.

    The paper computes TAR on the outputs before dropout; here both use the outputs after it.
    """
    h, n_tokens = hidden.float(), hidden.shape[0] * hidden.shape[1]
    penalty: Tensor | float = ar_alpha * h.square().mean() if ar_alpha else 0.0
    if tar_beta and hidden.shape[1] > 1:
        penalty = penalty + tar_beta * (h[:, 1:] - h[:, :-1]).square().mean()
    return n_tokens * penalty


def _causal_in_chunks(model: RNN, batch: CausalBatch) -> Tensor:
    """The loss of a text of any length, chunk by chunk with the state carried over: same result, bounded memory."""
    state, nats = model.initial_state(len(batch)), torch.zeros((), device=model.device)
    for start in range(0, batch.inputs.shape[1], EVAL_CHUNK_TOKENS):
        ids, targets = (x[:, start : start + EVAL_CHUNK_TOKENS] for x in (batch.inputs, batch.targets))
        lengths = None if batch.lengths is None else (batch.lengths - start).clamp(0, ids.shape[1])
        hidden, state = model.run(mask_padding(ids, lengths)[0], state)
        nats = nats + _nll(model, hidden, targets, 0.0)
    return nats


def causal_with_carried_state(
    model: RNN,
    batch: CausalBatch,
    state: list[RecurrentState],
    smoothing: float = 0.0,
    ar_alpha: float = 0.0,
    tar_beta: float = 0.0,
) -> LossOutput:
    """Stateful truncated BPTT: rows continue from the hidden state of the previous batch, and gradients stop at the
    start of this one. `state` is updated in place; rows where `batch.carry` is 0 start from zeros."""
    assert batch.carry is not None
    keep = batch.carry[:, None]
    hidden, new_state = model.run(batch.inputs, [tuple(t * keep for t in layer) for layer in state])
    for layer, new_layer in zip(state, new_state, strict=True):
        for tensor, new_tensor in zip(layer, new_layer, strict=True):
            tensor.copy_(new_tensor.detach())
    nats = token_nll(hidden, model.output_layer, batch.targets, smoothing=smoothing)
    return nats + activation_penalty(hidden, ar_alpha, tar_beta), None


def masked(model: MaskedLM, batch: MLMBatch, smoothing: float = 0.0) -> LossOutput:
    """Predict the masked tokens (Devlin et al. 2019, §3.1). Only they need logits."""
    hidden, targets = model.hidden_states(batch.ids, batch.mask, batch.segments), batch.targets
    if not model.training:
        return _masked_in_chunks(model, hidden, targets)
    if targets.device.type == "cpu":  # on a GPU, to select them would force a synchronisation
        is_target = targets != IGNORE_INDEX
        hidden, targets = hidden[is_target][None], targets[is_target][None]  # (1, N, D), (1, N)
    return token_nll(hidden, (model.table, model.bias), targets, smoothing=smoothing), None


def _masked_in_chunks(model: MaskedLM, hidden: Tensor, targets: Tensor) -> LossOutput:
    """The loss and the number of masked tokens predicted correctly, in bounded memory."""
    is_target = targets != IGNORE_INDEX
    chunks = zip(hidden[is_target].split(EVAL_CHUNK_TOKENS), targets[is_target].split(EVAL_CHUNK_TOKENS), strict=True)
    losses = [_label_nll(F.linear(h, model.table, model.bias), t, smoothing=0.0) for h, t in chunks]
    nats, n_correct = (torch.stack(values).sum() for values in zip(*losses, strict=True))
    return nats, n_correct


def pairs(model: EncoderDecoder, batch: Seq2SeqBatch, smoothing: float = 0.0) -> LossOutput:
    """Predict each target token from the source and the previous target tokens (teacher forcing)."""
    hidden = model.hidden_states(batch.inputs, source=batch.source, source_mask=batch.source_mask)
    return _nll(model, hidden, batch.targets, smoothing), None


def rdrop_pairs(
    model: EncoderDecoder, batch: Seq2SeqBatch, smoothing: float = 0.0, rdrop_alpha: float = 0.0
) -> LossOutput:
    """R-Drop (Liang et al. 2021, eq. 4): two forward passes p and q with different dropout; their mean loss plus
    α/2 · (KL(p ‖ q) + KL(q ‖ p)) / 2."""
    inputs, source, mask = (torch.cat((x, x)) for x in (batch.inputs, batch.source, batch.source_mask))
    hidden = model.hidden_states(inputs, source=source, source_mask=mask)
    log_p, log_q = F.linear(hidden, *model.output_layer).float().log_softmax(dim=-1).chunk(2)  # (B, T, V) each
    is_target = batch.targets != IGNORE_INDEX
    targets = batch.targets.masked_fill(~is_target, 0)
    target_log_prob = (log_p + log_q).gather(-1, targets[..., None]).squeeze(-1) / 2
    nats = -(1 - smoothing) * target_log_prob - smoothing * (log_p + log_q).mean(dim=-1) / 2
    kl = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=-1) / 2
    return ((nats + rdrop_alpha / 2 * kl) * is_target).sum(), None


def classify(
    model: Classifier, batch: LabelBatch, smoothing: float = 0.0, class_weights: Tensor | None = None
) -> LossOutput:
    """Predict the label of each text, or all its labels. `class_weights` (C,)."""
    logits = model(batch.ids, batch.mask, batch.segments)
    return _classification_nll(logits, batch.labels, smoothing, class_weights)


def rdrop_classify(
    model: Classifier,
    batch: LabelBatch,
    smoothing: float = 0.0,
    rdrop_alpha: float = 0.0,
    class_weights: Tensor | None = None,
) -> LossOutput:
    """R-Drop as in `rdrop_pairs`, for texts: adds the KL divergence between two passes' label distributions."""
    twice = LabelBatch.stack((batch, batch))
    logits = model(twice.ids, twice.mask, twice.segments).float()
    nats, _ = _classification_nll(logits, twice.labels, smoothing, class_weights)
    p, q = logits.chunk(2)  # (B, C) each
    if batch.labels.dim() == 2:  # each label is a choice of two: KL(p ‖ q) + KL(q ‖ p) = (p − q) (logit p − logit q)
        kl = ((p.sigmoid() - q.sigmoid()) * (p - q)).sum(dim=-1) / 2
        is_target = batch.labels[:, 0] != IGNORE_INDEX
    else:
        kl = ((p.softmax(dim=-1) - q.softmax(dim=-1)) * (p.log_softmax(dim=-1) - q.log_softmax(dim=-1))).sum(dim=-1) / 2
        is_target = batch.labels != IGNORE_INDEX
    return nats / 2 + rdrop_alpha / 2 * (kl * is_target).sum(), None


def tag(model: Tagger, batch: TagBatch, smoothing: float = 0.0, class_weights: Tensor | None = None) -> LossOutput:
    """Predict the tag of each word. `class_weights` (C,)."""
    return _label_nll(model(batch.ids, batch.mask).flatten(0, 1), batch.tags.flatten(), smoothing, class_weights)


def span(model: SpanReader, batch: SpanBatch, smoothing: float = 0.0) -> LossOutput:
    """Predict the first and the last token of the answer: two choices among the tokens of the row. Label smoothing
    does not apply to positions."""
    scores = model(batch.ids, batch.mask, batch.segments).masked_fill(~batch.mask[:, None], -torch.inf)  # (B, 2, T)
    targets = torch.stack((batch.starts, batch.ends), dim=1)  # (B, 2)
    return _label_nll(scores.flatten(0, 1), targets.flatten(), 0.0)


RDROP_OBJECTIVES: dict[str, Callable[..., LossOutput]] = {"pairs": rdrop_pairs, "classify": rdrop_classify}
OBJECTIVES: dict[str, Callable[..., LossOutput]] = {
    "causal": causal,
    "masked": masked,
    "pairs": pairs,
    "classify": classify,
    "tag": tag,
    "span": span,
}


def _classification_nll(
    logits: Tensor, labels: Tensor, smoothing: float, class_weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """logits (B, C); labels (B,), or (B, C) for multi-label data; class_weights (C,)"""
    loss = _label_set_nll if labels.dim() == 2 else _label_nll
    return loss(logits, labels, smoothing, class_weights)


def _label_nll(
    logits: Tensor, targets: Tensor, smoothing: float, class_weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """logits (N, C), targets (N,), class_weights (C,)"""
    nats = F.cross_entropy(
        logits.float(),
        targets,
        class_weights,
        ignore_index=IGNORE_INDEX,
        label_smoothing=smoothing,
        reduction="sum",
    )
    return nats, (logits.argmax(dim=-1) == targets).sum()


def _label_set_nll(
    logits: Tensor, targets: Tensor, smoothing: float, class_weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The negative log-likelihood of the labels of each text, which are independent given the text: binary
    cross-entropy, summed. A weight multiplies the loss where its label is present. Rows of IGNORE_INDEX do not count.
    logits and targets (N, C), class_weights (C,)."""
    is_target = targets[:, :1] != IGNORE_INDEX
    smooth_targets = targets * (1 - smoothing) + smoothing / 2
    nats = F.binary_cross_entropy_with_logits(
        logits.float(), smooth_targets, pos_weight=class_weights, weight=is_target.float(), reduction="sum"
    )
    is_correct = ((logits > 0) == (targets > 0)).all(dim=-1, keepdim=True)
    return nats, (is_correct & is_target).sum()


class LossModule(nn.Module):
    """A model and its objective as one module, so that DDP and FSDP wrap one `forward`.

    Label smoothing, R-Drop, class weights, the activation penalties and registered objectives apply in training mode
    only: evaluation reports the plain negative log-likelihood.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: str,
        smoothing: float = 0.0,
        rdrop_alpha: float = 0.0,
        ar_alpha: float = 0.0,
        tar_beta: float = 0.0,
        class_weights: Sequence[float] | None = None,
    ):
        super().__init__()
        self.model = model
        self.class_weights: Tensor | None = None
        if class_weights is not None:
            self.class_weights = torch.tensor(class_weights, device=next(model.parameters()).device)
        self.objective, self.smoothing = OBJECTIVES[objective], smoothing
        self.rdrop_objective, self.rdrop_alpha = RDROP_OBJECTIVES[objective] if rdrop_alpha else None, rdrop_alpha
        self.eval_objective = OBJECTIVES[BASE_OBJECTIVES.get(objective, objective)]
        self.ar_alpha, self.tar_beta = ar_alpha, tar_beta
        self.carried_state: list[RecurrentState] | None = None  # hidden state carried from batch to batch, if any

    def carry_state(self, n_rows: int) -> dict[str, Tensor]:
        """Carry the hidden state of `n_rows` rows from batch to batch. Returns its tensors by name, to checkpoint."""
        self.carried_state = cast(RNN, self.model).initial_state(n_rows)
        return {f"carried/{i}/{j}": t for i, layer in enumerate(self.carried_state) for j, t in enumerate(layer)}

    def forward(self, batch: Any) -> LossOutput:
        if not self.training:
            return self.eval_objective(self.model, batch)
        penalties = (self.ar_alpha, self.tar_beta)
        if self.carried_state is not None:
            model = cast(RNN, self.model)
            return causal_with_carried_state(model, batch, self.carried_state, self.smoothing, *penalties)
        if any(penalties):
            return causal(cast(RNN, self.model), batch, self.smoothing, *penalties)
        weights = () if self.class_weights is None else (self.class_weights,)
        if self.rdrop_objective is not None:
            return self.rdrop_objective(self.model, batch, self.smoothing, self.rdrop_alpha, *weights)
        return self.objective(self.model, batch, self.smoothing, *weights)
