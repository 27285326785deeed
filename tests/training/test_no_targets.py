"""Steps without a target are not logged as a loss of 0: they are skipped, and said. A run of nothing else fails."""

import json

import pytest
import torch
from safetensors.torch import load_file

import headway
from headway import tokenizers
from headway.config import recipe_from_table
from headway.data.datasets import mlm
from headway.data.loader import IGNORE_INDEX
from headway.errors import DataError, HeadwayError
from headway.evaluation.perplexity import ValidationText
from headway.evaluation.validation import NonFiniteLossError
from headway.training.lr_finder import find_lr
from headway.training.objectives import LossModule
from headway.training.optimizers import Optimizer
from headway.training.task import make_model, make_task
from headway.training.train_step import StepBatch, TrainStep
from tests.training.recipes import for_objective, make, train_until_power_cut

KNOWN, UNKNOWN = "the cat sat on the mat ", "漢 字 "


def masked_recipe(folder, text, **train):
    """Masked LM in windows of six tokens, one per step, with a tokenizer that does not know all of the text."""
    tokenizers.train("wordpiece", [KNOWN * 3], 40).save(folder / "tokenizer")
    (folder / "text.txt").write_text(text)
    (folder / "valid.txt").write_text(KNOWN * 4)
    return recipe_from_table(
        {
            "model": {"name": "bert-mini", "n_layers": 1, "d_model": 16, "n_heads": 2, "context": 8},
            "tokenizer": {"path": str(folder / "tokenizer")},
            "data": {"path": str(folder / "text.txt"), "valid_path": str(folder / "valid.txt")},
            "train": {
                "device": "cpu",
                "threads": 1,
                "steps": 12,
                "batch_size": 1,
                "log_every": 1,
                "save_every": 4,
                **train,
            },
            "eval": {"every_steps": 3},
        }
    )


def read_log(run):
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def test_steps_without_a_target_are_skipped_and_said(tmp_path):
    messages, steps = [], []
    result = headway.train(
        masked_recipe(tmp_path, KNOWN * 4 + UNKNOWN * 40 + KNOWN * 4),
        out=tmp_path / "run",
        on_message=messages.append,
        on_step=steps.append,
    )
    log = read_log(tmp_path / "run")
    losses = {record["step"]: record["loss"] for record in log if "loss" in record}
    skipped = {record["step"] for record in log if record.get("event") == "skipped"}
    assert skipped
    assert losses
    assert losses.keys() | skipped == set(range(1, 13))
    assert not losses.keys() & skipped
    assert min(losses.values()) > 0.5  # nats: nothing is learned in so few steps
    assert len([line for line in messages if "has no targets to predict: it is skipped" in line]) == 1
    assert [progress.step for progress in steps] == list(range(1, 13))
    assert result.scores["n_targets"] > 0


def test_a_run_with_skipped_steps_resumes_exactly(tmp_path):
    recipe = masked_recipe(tmp_path, KNOWN * 4 + UNKNOWN * 40 + KNOWN * 4)
    whole = headway.train(recipe, out=tmp_path / "whole", quiet=True)
    train_until_power_cut(recipe, tmp_path / "cut", 6)
    resumed = headway.train(recipe, out=tmp_path / "cut", resume=True, quiet=True)
    assert resumed.scores == whole.scores
    a, b = (load_file(result.checkpoint / "model.safetensors") for result in (whole, resumed))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_without_any_target_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(mlm, "any_maskable", lambda tokens, special_ids: True)
    recipe = masked_recipe(tmp_path, UNKNOWN * 60, steps=3)
    with pytest.raises(HeadwayError, match="none of the 3 steps had a target to predict, so nothing was learned"):
        headway.train(recipe, out=tmp_path / "run", quiet=True)
    with pytest.raises(DataError, match="only 0 steps of 12 had targets to predict"):
        find_lr(recipe, steps=12)


def test_the_learning_rate_is_swept_over_the_steps_with_targets(tmp_path):
    sweep = find_lr(masked_recipe(tmp_path, KNOWN * 30 + UNKNOWN * 20, batch_size=1), low=1e-3, high=0.5, steps=80)
    assert 20 < len(sweep.trials) < 80
    assert min(trial.loss for trial in sweep.trials) > 0


@pytest.mark.parametrize("objective", ["causal", "masked", "pairs", "tag"])
def test_a_micro_batch_without_targets_changes_nothing(objective, tmp_path):
    """Neither the loss nor the gradient: there is no 0 / 0 in gradient accumulation."""
    made = make_task(for_objective(objective, tmp_path))
    torch.manual_seed(0)
    model = make_model(made, "cpu")
    batch = made.loader(headway.training.distributed.DistContext()).at(0, 0)
    name = "tags" if objective == "tag" else "targets"
    empty = batch.rows(torch.arange(2))
    getattr(empty, name).fill_(IGNORE_INDEX)
    results = []
    for micro_batches in ([batch], [empty, batch, empty]):
        step = TrainStep(
            LossModule(model, objective).train(),
            Optimizer(model, made.recipe.train.replace(lr=0.0, min_lr=0.0), device=torch.device("cpu")),
            clip=0.0,
            autocast=False,
            device=torch.device("cpu"),
        )
        step_batch = StepBatch(micro_batches, [True] * len(micro_batches), batch.n_targets)
        results.append([float(value) for value in step(step_batch, 1 / batch.n_targets)])
    assert results[0] == pytest.approx(results[1], rel=1e-5)
    assert results[0][0] > 0


def test_a_validation_loss_that_is_no_number_ends_the_run_and_is_never_the_best(tmp_path, monkeypatch):
    def score(self, loss_fn, ranks=None):
        raise NonFiniteLossError("the loss is nan")

    monkeypatch.setattr(ValidationText, "score", score)
    recipe = make(tmp_path, train={"steps": 4, "threads": 1}, eval={"every_steps": 2})
    with pytest.raises(
        HeadwayError, match=r"the validation loss is not a number.*training has diverged; try a smaller"
    ):
        headway.train(recipe, out=tmp_path / "run", quiet=True)
    assert headway.open_run(tmp_path / "run").status == "failed"
    assert not any("bits_per_byte" in record for record in read_log(tmp_path / "run"))


@pytest.mark.parametrize("setting", ["seq_len", "batch_size", "steps"])
def test_a_size_of_zero_is_refused(setting, tmp_path):
    with pytest.raises(HeadwayError, match=f"train.{setting}=0 "):
        make(tmp_path, train={setting: 0})
