"""Every objective learns, is scored, saved, loaded and resumed by the one loop; its loss is what one would write."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import headway
from headway.data.datasets.seq2seq import Seq2SeqDataset
from headway.data.loader import CausalBatch, RngKey
from headway.data.records import Pair
from headway.errors import ConfigError
from headway.runs import Run
from headway.training.distributed import DistContext
from headway.training.objectives import OBJECTIVES, LossModule
from headway.training.resume_check import differences
from headway.training.task import make_model, make_task
from tests.training.recipes import for_objective

ENOUGH = {"causal": 1.0, "masked": 0.8, "pairs": 1.5, "classify": 0.2, "tag": 0.2, "span": 1.0}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_learns_saves_and_loads(objective, tmp_path):
    more = {"causal": {"steps": 250}, "masked": {"steps": 400, "optimizer": "muon", "lr": 5e-3}}.get(objective, {})
    result = headway.train(for_objective(objective, tmp_path, **more), out=tmp_path / "run")
    assert result.score.selection_loss < ENOUGH[objective]
    if objective in ("classify", "tag"):
        assert result.score.accuracy > 0.95
    loaded = headway.load(tmp_path / "run")
    assert type(loaded) is type(result.model)
    for ours, again in zip(result.model.parameters(), loaded.parameters(), strict=True):
        assert_close(again, ours)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_resumed_is_undisturbed(objective, tmp_path):
    recipe = for_objective(objective, tmp_path, steps=14, save_every=5, log_every=1)
    recipe = recipe.replace(model=recipe.model.replace(dropout=0.1))
    headway.train(recipe, out=tmp_path / "whole")
    # The training of a WordPiece vocabulary may break ties differently each time: both runs use the same one.
    recipe = recipe.replace(
        tokenizer=recipe.tokenizer.replace(path=str(tmp_path / "whole" / "checkpoints" / "step-14"))
    )
    half_way(recipe, tmp_path / "parts", 8)
    headway.train(recipe, out=tmp_path / "parts", resume=True)
    assert differences(Run(tmp_path / "whole"), Run(tmp_path / "parts")) == []


def half_way(recipe, out, step):
    """Train until a step, and end as a power cut would: with the last checkpoint and a log that goes beyond it."""

    class PowerCut(BaseException):
        pass

    def cut(progress):
        if progress.step == step:
            raise PowerCut

    with pytest.raises(PowerCut):
        headway.train(recipe, out=out, report=cut)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("objective", ["causal", "masked", "pairs", "classify", "tag", "span"])
def test_the_loss_is_the_plain_one(objective, smoothing, tmp_path):
    task = make_task(for_objective(objective, tmp_path))
    torch.manual_seed(0)
    model = make_model(task, "cpu")
    batch = task.batches(DistContext()).at(0, 0)
    learner = LossModule(model, objective, smoothing).train()  # no dropout in these
    nats, right = learner(batch)
    if objective == "causal":
        logits, targets = model(batch.inputs), batch.targets
    elif objective == "masked":
        logits, targets = model(batch.ids, batch.mask), batch.targets
    elif objective == "pairs":
        logits, targets = model(batch.inputs, source=batch.source, source_mask=batch.source_mask), batch.targets
    elif objective == "classify":
        logits, targets = model(batch.ids, batch.mask)[:, None], batch.labels[:, None]
    elif objective == "tag":
        logits, targets = model(batch.ids, batch.mask), batch.tags
    else:
        scores = model(batch.ids, batch.mask, batch.segments)  # (B, 2, T)
        logits = scores.masked_fill(~batch.mask[:, None], -torch.inf)
        targets = torch.stack((batch.starts, batch.ends), 1)
        smoothing = 0.0  # has no meaning between places
    plain = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=smoothing, reduction="sum")
    assert_close(nats, plain, rtol=1e-5, atol=1e-4)
    if right is not None:
        assert int(right) == int((logits.argmax(-1) == targets).sum())
    assert batch.n_targets == int((targets != -100).sum())
    sharp, _ = learner.eval()(batch)
    exact = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    assert_close(sharp, exact, rtol=1e-5, atol=1e-4)  # scores are never smoothed


def with_chance(tmp_path, **train):
    """Pairs with all the chance there is: dropout, words spelled anew, two passes that should agree."""
    recipe = for_objective("pairs", tmp_path, rdrop_alpha=4.0, label_smoothing=0.1, **train)
    tokenizer = recipe.tokenizer.replace(kind="bpe", vocab_size=280, dropout=0.2)
    return recipe.replace(tokenizer=tokenizer, model=recipe.model.replace(dropout=0.3))


def test_agreement_is_what_one_would_write(tmp_path):
    task = make_task(with_chance(tmp_path))
    torch.manual_seed(0)
    model = make_model(task, "cpu")
    batch = task.batches(DistContext()).at(0, 0)
    learner = LossModule(model, "pairs", 0.1, 4.0).train()
    torch.manual_seed(7)
    nats, _ = learner(batch)
    nats.backward()
    found = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    torch.manual_seed(7)
    twice = [torch.cat((x, x)) for x in (batch.inputs, batch.source, batch.source_mask)]
    logits = model(twice[0], source=twice[1], source_mask=twice[2]).chunk(2)
    is_real = batch.targets != -100
    losses = [F.cross_entropy(l[is_real], batch.targets[is_real], label_smoothing=0.1, reduction="sum") for l in logits]
    p, q = (l[is_real].log_softmax(-1) for l in logits)
    apart = sum(F.kl_div(a, b, log_target=True, reduction="sum") for a, b in ((p, q), (q, p))) / 2
    plain = sum(losses) / 2 + 4.0 / 2 * apart
    plain.backward()
    assert_close(nats, plain, rtol=1e-5, atol=1e-4)
    for ours, wanted in zip(found, (p.grad for p in model.parameters()), strict=True):
        assert_close(ours, wanted, rtol=1e-4, atol=1e-4)
    assert apart > 0.01
    learner.eval()
    assert_close(learner(batch)[0], LossModule(model, "pairs").eval()(batch)[0])  # scores know nothing of it


def test_spelled_anew_is_resumed_exactly(tmp_path):
    recipe = with_chance(tmp_path, steps=14, save_every=5, log_every=1)
    headway.train(recipe, out=tmp_path / "whole")
    half_way(recipe, tmp_path / "parts", 8)
    headway.train(recipe, out=tmp_path / "parts", resume=True)
    assert differences(Run(tmp_path / "whole"), Run(tmp_path / "parts")) == []


def sources(batch):
    return [row[mask].tolist() for row, mask in zip(batch.source, batch.source_mask, strict=True)]


def test_words_are_spelled_differently_every_epoch_and_held_out_ones_never(tmp_path):
    task = make_task(with_chance(tmp_path))
    batches = task.batches(DistContext())
    first, again = (batches.dataset.collate(batches.order.indices(0, 0), RngKey(1, epoch)) for epoch in (0, 1))
    decode = task.tokenizer.decode
    for a, b in zip(sources(first), sources(again), strict=True):
        assert decode(a) == decode(b)
    assert any(a != b for a, b in zip(sources(first), sources(again), strict=True))
    held = task.validation.batches.at(0, 0)
    for row in sources(held):
        assert row[:-1] == task.tokenizer.encode(decode(row[:-1]))


def test_a_spelling_that_does_not_fit_is_not_cut(tmp_path):
    tokenizer = headway.tokenizers.train("bpe", ["Hello world, this is a test of things."] * 9, 300)
    text = "Hello world, this is a test of things."
    n = len(tokenizer.encode(text))
    examples = Seq2SeqDataset([Pair(text, text)], tokenizer, context=n + 1, dropout=0.9)
    for epoch in range(5):
        batch = examples.collate(np.array([0]), RngKey(1, epoch))
        assert tokenizer.decode(batch.source[0].tolist()) == text
        assert batch.targets[0, -1] == tokenizer.eos_id


@pytest.mark.parametrize("name", ["train.rdrop_alpha=2", "tokenizer.bpe_dropout=0.1", "eval.metric=bleu"])
def test_what_is_for_pairs_is_refused_elsewhere(name):
    with pytest.raises(headway.ConfigError, match=f"{name.split('=')[0]}=.* is for an encoder-decoder"):
        make_task(headway.load_recipe("demo", [name]))


def test_batches_padded_to_few_shapes_teach_the_same(tmp_path):
    task = make_task(for_objective("pairs", tmp_path))
    torch.manual_seed(0)
    model = make_model(task, "cpu")
    batch = task.batches(DistContext()).at(0, 0)
    wide = batch.bucketed(1000)
    assert (len(batch), batch.source.shape[1]) != (32, 8)
    assert (len(wide), wide.source.shape[1] % 8, wide.inputs.shape[1] % 8) == (32, 0, 0)
    assert wide.n_targets == batch.n_targets
    exact = batch.bucketed(max(batch.source.shape[1], batch.inputs.shape[1]))  # no room for more
    assert max(exact.source.shape[1], exact.inputs.shape[1]) == max(batch.source.shape[1], batch.inputs.shape[1])
    gradients = []
    for one in (batch, wide):
        for learner in (LossModule(model, "pairs", 0.1), LossModule(model, "pairs", 0.1, 3.0)):
            model.zero_grad()
            nats, _ = learner.train()(one)
            nats.backward()
            gradients.append((nats, [p.grad.clone() for p in model.parameters()]))
    for (nats, ours), (others, theirs) in zip(gradients[:2], gradients[2:], strict=True):
        assert_close(nats, others, rtol=1e-5, atol=1e-5)
        for a, b in zip(ours, theirs, strict=True):
            assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("carries", [True, False])
def test_restraint_is_what_one_would_write(carries):
    torch.manual_seed(0)
    model = headway.create("lstm", vocab_size=11, d_model=6, n_layers=2, dropout=0.0).train()
    ids = torch.randint(0, 11, (3, 8))
    batch = CausalBatch(ids[:, :-1], ids[:, 1:], None, carry=torch.zeros(3))
    learner = LossModule(model, "causal", restraint=(2.0, 1.0)).train()
    if carries:
        learner.remember(3)
    nats, _ = learner(batch)
    with torch.no_grad():
        hidden, _ = model.run(batch.inputs, model.begin(3))
    plain = F.cross_entropy(model.unembed(hidden).flatten(0, 1), batch.targets.flatten(), reduction="sum")
    square = sum(float(h.square().mean()) for row in hidden for h in row)
    change = sum(float((b - a).square().mean()) for row in hidden for a, b in pairwise(row))
    assert_close(nats.item(), plain.item() + 2.0 * square + change * (3 * 7) / (3 * 6), rtol=1e-5, atol=1e-5)
    learner.eval()
    assert_close(learner(batch)[0].item(), plain.item(), rtol=1e-5, atol=1e-5)


def test_restraint_is_for_recurrent_models_alone(tmp_path):
    recipe = for_objective("causal", tmp_path, ar_alpha=1.0)
    with pytest.raises(ConfigError, match=r"train\.ar_alpha=1\.0 is for recurrent models"):
        headway.train(recipe, out=tmp_path / "run")
