"""`headway.check_contract`: models that keep the contract pass, and each defect is found and named.

Every defect is planted in one of two small models (duck_models.py) that pass without it. The right diagnosis has one
root: properties that fail as a consequence must say so.
"""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import headway
from headway.config import RNNConfig
from headway.errors import HeadwayError, InputError
from headway.evaluation.contract import PROPERTIES, check_contract
from headway.models.bert import MaskedLM
from headway.models.heads import Classifier, SpanReader, Tagger
from headway.models.rnn import RNN
from headway.models.tiny import create_tiny
from tests.evaluation.duck_models import Attention, CacheState, HiddenState, Recurrent, V, last_of, new_tokens
from tests.plugin_registries import restored_registries

SMALL_RNN = {"vocab_size": V, "d_model": 8}


@pytest.mark.parametrize("make", [Recurrent, Attention])
def test_a_model_that_inherits_from_nothing_can_pass(make):
    report = check_contract(make())
    assert report.passed, report
    assert not report.notes
    assert {result.name for result in report.results if result.status == "skipped"} == {"save", "gradients"}


@pytest.mark.parametrize("family", [*headway.MODELS, "llama-3-8b", "gpt2"])
def test_every_family_passes(family):
    report = check_contract(create_tiny(family))
    assert report.passed, report


# ── defects ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class BidirectionalAttention(Attention):
    def may_attend(self, positions, n_slots):
        return torch.ones(*positions.shape, n_slots, dtype=torch.bool)

    def step(self, ids, state, lengths=None, *, last=False):  # correct, so that only forward leaks
        causal = Attention()
        return causal.step(ids, state, lengths, last=last)

    def __call__(self, ids, lengths=None):
        return Attention.step(self, ids, self.start(len(ids), ids.shape[1]), lengths)[0]


class MaskOffByOne(Attention):
    def may_attend(self, positions, n_slots):
        return torch.arange(n_slots) <= positions[..., None] + 1


class BatchMean(Recurrent):
    def run(self, ids, h, n_new):
        logits, h = super().run(ids, h, n_new)
        return logits - logits.mean(dim=0), h


class DividesByWidth(Recurrent):
    """Depends on the number of columns, padding included."""

    def __call__(self, ids, lengths=None):
        return super().__call__(ids, lengths) / math.sqrt(ids.shape[1])

    def step(self, ids, state, lengths=None, *, last=False):
        return super().step(ids, state, lengths, last=last)


class RunsOverPadding(Recurrent):
    """The hidden state after the last column, not after each row's last real token."""

    def step(self, ids, state, lengths=None, *, last=False):
        logits, after = super().step(ids, state, None)
        n_new = new_tokens(ids, lengths)
        return last_of(logits, n_new) if last else logits, HiddenState(after.h, state.length + n_new)


class MovesEmptyRows(Recurrent):
    """A row of length 0 takes a step all the same."""

    def run(self, ids, h, n_new):
        return super().run(ids, h, n_new.clamp(min=1))


class CopiesNothing(CacheState):
    def copy(self):
        return self


class SharesItsCache(CacheState):
    def copy(self):
        return replace(self, length=self.length.clone())


class ReordersInPlace(HiddenState):
    def reorder(self, rows):
        object.__setattr__(self, "h", self.h[rows])
        object.__setattr__(self, "length", self.length[rows])
        return self


class KeepsRowOrder(HiddenState):
    def reorder(self, rows):
        return HiddenState(self.h[torch.arange(len(rows)) % len(self.h)], self.length[rows])


class CountsPadding(Recurrent):
    def step(self, ids, state, lengths=None, *, last=False):
        logits, after = super().step(ids, state, lengths, last=last)
        return logits, HiddenState(after.h, state.length + ids.shape[1])


class CountsSteps(Recurrent):
    def step(self, ids, state, lengths=None, *, last=False):
        logits, after = super().step(ids, state, lengths, last=last)
        return logits, HiddenState(after.h, state.length + 1)


class OneLengthForAll(HiddenState):
    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        return int(value[0]) if name == "length" else value


class KeepsItsState(Recurrent):
    """The hidden state is an attribute of the model; `start` resets it."""

    def start(self, batch_size=1, capacity=None):
        self.h = torch.zeros(batch_size, self.W.shape[0])
        return super().start(batch_size)

    def step(self, ids, state, lengths=None, *, last=False):
        h = self.h if len(self.h) == len(ids) else state.h
        logits, after = super().step(ids, HiddenState(h, state.length), lengths, last=last)
        self.h = after.h
        return logits, after


class RestartsPositions(Attention):
    def step(self, ids, state, lengths=None, *, last=False):
        shifted = self.P
        self.P = torch.cat((shifted[:1], shifted))[:16] if ids.shape[1] == 1 else shifted
        try:
            return super().step(ids, state, lengths, last=last)
        finally:
            self.P = shifted


class NoMaskInsideAStep(Attention):
    """Each token of a step sees all the others of the step. `forward` is right."""

    def step(self, ids, state, lengths=None, *, last=False):
        end = (state.length + new_tokens(ids, lengths))[:, None, None]
        self.may_attend = lambda positions, n: (torch.arange(n) < end).expand(-1, positions.shape[1], -1)
        return super().step(ids, state, lengths, last=last)

    def __call__(self, ids, lengths=None):
        return Attention()(ids, lengths)


class LastColumn(Recurrent):
    def step(self, ids, state, lengths=None, *, last=False):
        logits, state = super().step(ids, state, lengths)
        return logits[:, -1:] if last else logits, state


class DropoutInEval(Recurrent):
    def run(self, ids, h, n_new):
        logits, h = super().run(ids, h, n_new)
        return torch.nn.functional.dropout(logits, 0.1), h


class FillsPadding(Recurrent):
    def __call__(self, ids, lengths=None):
        if lengths is not None:
            ids.masked_fill_(torch.arange(ids.shape[1]) >= lengths[:, None], 0)
        return super().__call__(ids, lengths)


class NotANumber(Recurrent):
    def run(self, ids, h, n_new):
        logits, h = super().run(ids, h, n_new)
        return logits.masked_fill(torch.arange(ids.shape[1])[:, None] == 2, torch.nan), h


class LastLogitsOnly(Recurrent):
    def __call__(self, ids, lengths=None):
        return super().__call__(ids, lengths)[:, -1:]


class RingBuffer(Attention):
    """Overwrites the oldest tokens when the cache is full."""

    def write(self, x, state, positions, n_new):
        super().write(x, state, positions % state.x.shape[1], n_new)


class BytesAreAMethod(Recurrent):
    class state_class(HiddenState):  # noqa: N801
        def nbytes(self):
            return self.h.nbytes


def with_state(model_class, state_class):
    """The model with another class of state."""

    class Model(model_class):
        def start(self, batch_size=1, capacity=None):
            return state_class(**vars(super().start(batch_size, capacity)))

        def step(self, ids, state, lengths=None, *, last=False):
            logits, after = super().step(ids, state, lengths, last=last)
            return logits, state_class(**vars(after))

    Model.__name__ = state_class.__name__
    return Model


DEFECTS = [
    # model, the property at the root, what is said about it, and the hint
    (
        BidirectionalAttention,
        "leak",
        r"at position 1 \(.*\) changes the logits at row 0, position 0, by",
        "causal mask",
    ),
    (MaskOffByOne, "leak", r"at position 1 \(.*\) changes the logits at row 0, position 0, by", "off by one"),
    (BatchMean, "batch", r"row 0 alone and in a batch of 4 differ at row 0, position 0, by", "over the batch"),
    (DividesByWidth, "padding", r"6 tokens alone and padded to 12 .* in forward at row 1, position 0", "padded width"),
    (RunsOverPadding, "padding", r"a step after a padded one differs .* at row 1", "padding went into the state"),
    (MovesEmptyRows, "padding", r"row had no token \(length 0\).* at row 1, position 7", "must keep its state"),
    (with_state(Attention, CopiesNothing), "copy", r"steps of the copy change the logits of the original", "Clone"),
    (with_state(Attention, SharesItsCache), "copy", r"of the original at row 0, position 11, by", "shares memory"),
    (
        with_state(Recurrent, ReordersInPlace),
        "reorder",
        r"reorder\(.*\) changes the state it is called on",
        "in place",
    ),
    (
        with_state(Recurrent, KeepsRowOrder),
        "reorder",
        r"state.reorder\(\[3, 0, 0, 1, 0\]\) differ",
        "is row rows",
    ),
    (CountsPadding, "length", r"with lengths \[5, 5, 1, 5\], not \[12, 12, 8, 12\]", "counts the real tokens"),
    (CountsSteps, "length", r"state.length is \[1, 1, 1, 1\] after a step of 6 tokens, not \[6, 6, 6, 6\]", "counts"),
    (with_state(Recurrent, OneLengthForAll), "length", r"state.length is 0 after start", "integer tensor of shape"),
    (KeepsItsState, "isolation", r"two states stepped in turn disturb each other", "attribute"),
    (RestartsPositions, "step", r"token by token differs from .*; equal: in one step, in two steps", "restart at 0"),
    (NoMaskInsideAStep, "step", r"decoding in one step differs .*; equal: token by token", "causal mask in `step`"),
    (LastColumn, "last", r"with lengths \[12, 6, 1, 11\] differs .* at row 1, position 0", "lengths − 1"),
    (DropoutInEval, "deterministic", r"two calls with the same ids differ", "dropout"),
    (FillsPadding, "inputs", r"forward changes its argument ids", "in-place"),
    (NotANumber, "shape", r"124 values of NaN or \+inf, the first at row 0, position 2", "masked row"),
    (LastLogitsOnly, "shape", r"forward returns shape \(4, 1, 31\), not \(B, T, V\) = \(4, 12, 31\)", "every token"),
    (RingBuffer, "capacity", r"start\(capacity=6\) gives wrong logits instead of an error", "raises an error"),
    (BytesAreAMethod, "nbytes", r"state.nbytes is <bound method", "is a property"),
]


DEFECT_NAMES = [make.__name__ for make, *_ in DEFECTS]


@pytest.mark.parametrize(("make", "name", "message", "hint"), DEFECTS, ids=DEFECT_NAMES)
def test_a_defect_is_found_and_named(make, name, message, hint):
    report = check_contract(make())
    assert not report.passed
    assert report.findings[0].name == name, str(report)
    assert all(name in finding.may_follow_from for finding in report.findings[1:]), str(report)
    found = report[name]
    assert re.search(message, found.message), found.message
    assert hint in found.hint


def test_consequences_name_their_cause():
    report = check_contract(BatchMean())
    assert [finding.name for finding in report.findings] == ["batch", "padding"]
    assert "May follow from batch: repair that first." in str(report["padding"])


# ── members ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class NoStep:
    config = Recurrent().config

    def __call__(self, ids, lengths=None):
        return Recurrent()(ids, lengths)


class NoLast(Recurrent):
    def step(self, ids, state, lengths=None):
        return super().step(ids, state, lengths)


class NoCopy(Recurrent):
    @dataclass(frozen=True)
    class state_class:  # noqa: N801
        h: torch.Tensor
        length: torch.Tensor

        def reorder(self, rows):
            return type(self)(self.h[rows], self.length[rows])


class RaisesInStep(Recurrent):
    def step(self, ids, state, lengths=None, *, last=False):
        raise KeyError("hidden")


@pytest.mark.parametrize(
    ("make", "missing", "is_checked", "is_skipped"),
    [
        (NoStep, "missing: start, step", "leak", "step"),
        (NoCopy, "missing: state.nbytes, state.copy", "reorder", "copy"),
        (torch.nn.Module, "missing: forward, start, step", None, "leak"),
    ],
)
def test_missing_members_are_named_and_the_rest_is_checked(make, missing, is_checked, is_skipped):
    report = check_contract(make())
    assert [(finding.name, finding.message) for finding in report.findings] == [("members", missing)]
    assert is_checked is None or report[is_checked].status == "passed"
    assert report[is_skipped].status == "skipped"


def test_the_parameter_last_is_optional():
    report = check_contract(NoLast())
    assert report.passed
    assert report["last"].message == "needs step(last=)"


def test_an_exception_is_a_finding_that_shows_the_call():
    report = check_contract(RaisesInStep())
    assert report["step"].message == "step(4×12, HiddenState) raises KeyError: 'hidden'"
    assert report["leak"].status == "passed"


# ── encoder-decoders, encoders, saving, notes ─────────────────────────────────────────────────────────────────────────


def test_an_encoder_decoder_that_ignores_the_source_mask_is_found(monkeypatch):
    model = create_tiny("transformer")
    assert check_contract(model)["source"].status == "passed"
    encode = model.encode
    monkeypatch.setattr(model, "encode", lambda source, source_mask=None: encode(source))
    report = check_contract(model)
    assert report.findings[0].name == "source"
    assert "source's padding change the logits at row 1" in report["source"].message


def test_an_encoder_that_ignores_its_mask_is_found(monkeypatch):
    model = create_tiny("bert")
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda ids, mask=None, segments=None: forward(ids))
    report = check_contract(model)
    assert report.kind == "encoder"
    assert [finding.name for finding in report.findings] == ["padding"]
    assert "6 tokens alone and padded to 12 (mask given)" in report["padding"].message


def test_heads_of_encoders_can_be_checked():
    encoder = headway.create("bert", vocab_size=V, d_model=16, n_heads=2, n_layers=1, labels=["no", "yes"])
    for head in (Classifier, Tagger, SpanReader, MaskedLM):
        report = check_contract(head(encoder))
        assert report.passed, str(report)
        assert report["save"].status == "passed"


def test_what_a_saved_model_loses_is_found():
    class Scaled(RNN):
        scale = 1.0  # neither a parameter nor a setting

        def forward(self, ids, lengths=None):
            return super().forward(ids, lengths) * self.scale

        def step(self, ids, state, lengths=None, *, last=False):
            logits, state = super().step(ids, state, lengths, last=last)
            return logits * self.scale, state

    class ScaledConfig(RNNConfig, frozen=True, kw_only=True):
        pass

    with restored_registries():
        headway.register("family", "scaled", Scaled, config=ScaledConfig)
        model = Scaled(ScaledConfig(**SMALL_RNN))
        model.init_weights()
        assert check_contract(model).passed
        model.scale = 3.0
        assert [finding.name for finding in check_contract(model).findings] == ["save"]


def test_notes_do_not_fail():
    model = headway.create("rnn", **SMALL_RNN)
    model.unused = torch.nn.Parameter(torch.ones(2))
    report = check_contract(model, only=["gradients"])
    assert report.passed
    (note,) = report.notes
    assert note.message.startswith("no gradient reaches 1 of ")
    assert note.message.endswith("parameters: unused")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert [note.name for note in check_contract(model, only=["sensitivity"]).notes] == ["sensitivity"]


# ── options and reports ───────────────────────────────────────────────────────────────────────────────────────────────


def test_only_selects_properties_and_atol_sets_the_limit():
    report = check_contract(BatchMean(), only=["leak", "batch"])
    assert [result.name for result in report.results] == ["members", "leak", "batch"]
    assert check_contract(BatchMean(), only=["batch"], atol=1e3).passed
    assert check_contract(create_tiny("bert"), only=["leak"])["leak"].message == "not a property of an encoder"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": ["leek"]}, "no property named 'leek'. Did you mean 'leak'?"),
        ({"batch_size": 1}, "batch_size=1: rows are compared with each other; use at least 2"),
        ({"length": 3}, "length=3: a prompt and the steps after it need at least 4 tokens"),
        ({"batch_size": 10**30}, f"{10**30} rows of 12 tokens are more than 1,000,000 tokens: check fewer"),
        ({"atol": -1.0}, "atol=-1.0: the largest difference allowed is a number of at least 0"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(HeadwayError, match=re.escape(message)):
        check_contract(Recurrent(), **options)


def test_inputs_fit_the_context_and_any_vocabulary():
    model = Attention()
    assert check_contract(model, length=50).length == 16
    del model.config.vocab_size  # then it is the width of the logits
    assert check_contract(model, batch_size=7, length=5, seed=3).passed
    model.config.context = 3
    with pytest.raises(InputError, match="a context of 3 tokens is too short"):
        check_contract(model)


def test_the_model_and_torch_are_left_as_they_were():
    model = headway.create("lstm", vocab_size=V, d_model=8, dropout=0.5).train()
    before = torch.get_rng_state()
    assert check_contract(model).passed  # in eval mode: dropout would make it random
    assert model.training
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_report_reads_well():
    report = check_contract(BidirectionalAttention())
    assert (
        repr(report)
        == "ContractReport(BidirectionalAttention: 14 properties hold, 3 fail (leak, padding, step), 2 skipped)"
    )
    lines = str(report).splitlines()
    assert lines[0].startswith("BidirectionalAttention, language model: 4 × 12 random tokens, seed 0")
    assert any(line.startswith("FAILED   leak           a future token never changes a past logit") for line in lines)
    assert max(map(len, lines)) <= 100
    document = report.to_dict()
    assert document["passed"] is False
    assert {result["name"] for result in document["results"]} == {"members", *PROPERTIES} - {"source"}


def test_the_docs_describe_every_property():
    page = (Path(__file__).parents[2] / "docs" / "contract.md").read_text(encoding="utf-8")
    assert [name for name in ("members", *PROPERTIES) if f"`{name}`" not in page] == []


@pytest.mark.parametrize("change", [lambda ids: ids.clamp_(max=3), lambda ids: ids.zero_()])
def test_a_forward_that_changes_its_ids_is_found_in_the_full_check(change):
    """Every property gets copies, so that an earlier call cannot hide the change."""

    class ChangesIds(Recurrent):
        def __call__(self, ids, lengths=None):
            logits = super().__call__(ids, lengths)
            change(ids)
            return logits

    report = check_contract(ChangesIds())
    assert [(result.name, result.status) for result in report.results if result.status == "failed"] == [
        ("inputs", "failed")
    ]
    assert "forward changes its argument ids" in repr(report) + str(report)


def test_a_seed_that_torch_does_not_take_is_refused():
    with pytest.raises(InputError, match="seed=99999999999999999999 is not a seed"):
        check_contract(create_tiny("gpt"), seed=99999999999999999999)
