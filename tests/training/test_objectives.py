"""Every objective learns, is scored, saved, loaded and resumed by the one loop; its loss is what one would write."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import headway
from headway.training.checkpoint import Run
from headway.training.objectives import OBJECTIVES, Learner
from headway.training.parallel import World
from headway.training.resume_check import differences
from headway.training.setup import make_model, make_task
from tests.training.recipes import for_objective

ENOUGH = {"causal": 1.0, "masked": 0.8, "pairs": 1.5, "classify": 0.2, "tag": 0.2, "span": 1.0}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_learns_saves_and_loads(objective, tmp_path):
    more = {"causal": {"steps": 250}, "masked": {"steps": 400, "optimizer": "muon", "lr": 5e-3}}.get(objective, {})
    result = headway.train(for_objective(objective, tmp_path, **more), out=tmp_path / "run")
    assert result.score.merit < ENOUGH[objective]
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
    batch = task.batches(World()).at(0, 0)
    learner = Learner(model, objective, smoothing).train()  # no dropout in these
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
