"""Runs of encoders that are selected and stopped by a metric of their task, not by the loss."""

from dataclasses import dataclass, replace

import pytest

import headway
from headway.config import load_recipe
from headway.errors import ConfigError
from headway.evaluation.tasks import TASK_METRICS, TaskScore, ValidationExamples
from headway.models.serialization import find_model
from headway.runs import Run
from headway.training import task as task_module
from headway.training.resume_check import differences
from headway.training.run_evaluation import evaluate_split
from headway.training.task import make_task
from tests.training.recipes import for_objective, train_until_power_cut

SHORT = {"steps": 10, "save_every": 0, "log_every": 1, "keep_checkpoints": 1, "batch_size": 4}
LOSSES = [0.9, 0.8, 0.7, 0.6, 0.5]  # of evaluations every two steps: they fall to the end …
VALUES = [0.1, 0.6, 0.5, 0.3, 0.2]  # … while the metric has its best at the second
METRICS = [(objective, metric) for objective, names in TASK_METRICS.items() for metric in names]


@dataclass
class FakeReport:
    metrics: dict[str, float]


def with_metric(objective, metric, folder, **settings):
    recipe = for_objective(objective, folder, **SHORT)
    if metric == "micro_f1":
        recipe = recipe.replace(data=recipe.data.replace(label_separator=";"))
    return recipe.replace(eval=recipe.eval.replace(every_steps=2, metric=metric, **settings))


@pytest.fixture
def scripted(monkeypatch):
    """Evaluations give the losses and values above, one after the other."""
    n_done = {"losses": 0, "values": 0}

    def value():
        n_done["values"] += 1
        return VALUES[n_done["values"] - 1]

    original = ValidationExamples.score

    def score(self, *arguments):
        real = original(self, *arguments)
        n_done["losses"] += 1
        accuracy = VALUES[n_done["losses"] - 1] if real.accuracy is not None else None
        return replace(real, nats_per_target=LOSSES[n_done["losses"] - 1], accuracy=accuracy)

    def report(objective, *arguments, **options):
        if objective == "masked":
            return None
        number = value()
        return FakeReport(dict.fromkeys(TASK_METRICS[objective], number))

    monkeypatch.setattr(ValidationExamples, "score", score)
    monkeypatch.setattr(task_module, "make_report", report)


@pytest.mark.parametrize(("objective", "metric"), METRICS)
def test_the_best_checkpoint_is_that_of_the_metric(objective, metric, scripted, tmp_path):
    result = headway.train(with_metric(objective, metric, tmp_path), out=tmp_path / "run")
    assert (result.best_step, result.steps) == (4, 10)
    assert find_model(tmp_path / "run") == Run(tmp_path / "run").checkpoint_dir(4)
    assert Run(tmp_path / "run").checkpoint_steps() == [4, 10]
    scores = [record for record in Run(tmp_path / "run").read_log() if "selection_loss" in record]
    assert [record["selection_loss"] for record in scores] == [-value for value in VALUES]
    assert [record["nats_per_target"] for record in scores] == LOSSES
    assert result.score.metric_value == VALUES[-1]
    assert result.score.selection_loss == -VALUES[-1]


def test_without_a_metric_it_is_that_of_the_loss(scripted, tmp_path):
    result = headway.train(with_metric("classify", "loss", tmp_path), out=tmp_path / "run")
    assert result.best_step == 10
    assert find_model(tmp_path / "run") == result.checkpoint


@pytest.mark.parametrize(("patience", "last_step"), [(1, 6), (2, 8), (3, 10), (0, 10)])
def test_early_stopping_counts_evaluations_without_a_better_metric(patience, last_step, scripted, tmp_path):
    messages = []
    recipe = with_metric("classify", "macro_f1", tmp_path, patience=patience)
    result = headway.train(recipe, out=tmp_path / "run", on_message=messages.append)
    assert (result.best_step, result.steps) == (4, last_step)
    is_early = any("without a better score (eval.patience)" in line for line in messages)
    assert is_early == (patience in (1, 2, 3))
    assert find_model(tmp_path / "run") == Run(tmp_path / "run").checkpoint_dir(4)


@pytest.mark.parametrize(("values", "patience", "steps"), [([0.6] * 5, 2, 6), ([0.1, 0.6, 0.5, 0.6, 0.2], 0, 10)])
def test_of_equal_values_the_latest_is_loaded_and_none_is_better(
    values, patience, steps, scripted, tmp_path, monkeypatch
):
    """Accuracies are often equal. What a run names as its best step is what `headway.load` takes."""
    monkeypatch.setattr("tests.training.test_encoder_metrics.VALUES", values)
    recipe = with_metric("classify", "accuracy", tmp_path, patience=patience)
    result = headway.train(recipe, out=tmp_path / "run")
    assert result.steps == steps
    assert result.best_step == max(2 * i + 2 for i in range(steps // 2) if values[i] == max(values))
    assert find_model(tmp_path / "run") == Run(tmp_path / "run").checkpoint_dir(result.best_step)


def test_a_stopped_run_is_complete(scripted, tmp_path):
    headway.train(with_metric("classify", "accuracy", tmp_path, patience=1), out=tmp_path / "run")
    messages = []
    again = headway.train(tmp_path / "run", resume=True, on_message=messages.append)
    assert again.steps == 6
    assert any(line.startswith("complete") and "eval.patience=0" in line for line in messages)


@pytest.mark.parametrize(("objective", "metric"), [("classify", "macro_f1"), ("tag", "f1"), ("span", "f1")])
def test_the_metric_is_that_of_an_evaluation_of_the_saved_model(objective, metric, tmp_path):
    """Nothing scripted: training logs what `headway eval` would report for the best checkpoint."""
    recipe = with_metric(objective, metric, tmp_path)
    recipe = recipe.replace(train=recipe.train.replace(steps=30, lr=1e-2), eval=recipe.eval.replace(every_steps=10))
    result = headway.train(recipe, out=tmp_path / "run")
    logged = {r["step"]: r for r in Run(tmp_path / "run").read_log() if "selection_loss" in r}
    best = min(logged, key=lambda step: (logged[step]["selection_loss"], -step))
    assert result.best_step == best
    score = evaluate_split(headway.load(tmp_path / "run"), load_recipe(tmp_path / "run"))
    assert isinstance(score, TaskScore)
    assert score.metrics[metric] == pytest.approx(-logged[best]["selection_loss"])
    assert score.nats_per_target == pytest.approx(logged[best]["nats_per_target"], rel=1e-4)


def test_a_run_selected_by_a_metric_resumes_exactly(tmp_path):
    recipe = with_metric("tag", "f1", tmp_path, patience=4)
    recipe = recipe.replace(train=recipe.train.replace(save_every=3, keep_checkpoints=0))
    result = headway.train(recipe, out=tmp_path / "undisturbed")
    recipe = recipe.replace(tokenizer=recipe.tokenizer.replace(path=str(result.checkpoint)))
    train_until_power_cut(recipe, tmp_path / "resumed", 5)
    headway.train(recipe, out=tmp_path / "resumed", resume=True)
    assert differences(Run(tmp_path / "undisturbed"), Run(tmp_path / "resumed")) == []


def test_another_metric_needs_force_and_resets_the_best_score(tmp_path):
    train_until_power_cut(with_metric("classify", "accuracy", tmp_path), tmp_path / "run", 5)
    other = load_recipe(tmp_path / "run", ["eval.metric=macro_f1"])
    with pytest.raises(ConfigError, match=r"eval\.metric=macro_f1 changed since .* scores would not be comparable"):
        headway.train(other, out=tmp_path / "run", resume=True)
    messages = []
    headway.train(other, out=tmp_path / "run", resume=True, force=True, on_message=messages.append)
    assert any("the best score is reset" in line for line in messages)


@pytest.mark.parametrize("setting", ["mask_prob", "whole_word_masking", "segment_pairs"])
def test_other_masks_change_the_validation_set_and_are_named(setting, tmp_path):
    train_until_power_cut(for_objective("masked", tmp_path, **SHORT), tmp_path / "run", 5)
    value = "0.3" if setting == "mask_prob" else "true"
    other = load_recipe(tmp_path / "run", [f"train.{setting}={value}"])
    with pytest.raises(ConfigError, match=rf"^train\.{setting}={value} changed since"):
        headway.train(other, out=tmp_path / "run", resume=True)


WRONG = [
    ("classify", "f1", r"eval\.metric='f1' is not for the objective 'classify': choose loss or accuracy or macro_f1"),
    ("classify", "bleu", r"eval\.metric='bleu' is not for the objective 'classify'"),
    ("tag", "macro_f1", r"eval\.metric='macro_f1' is not for the objective 'tag': choose loss or f1 or accuracy"),
    ("span", "accuracy", r"eval\.metric='accuracy' is not for the objective 'span': choose loss or f1 or exact_match"),
    ("masked", "f1", r"eval\.metric='f1' is not for the objective 'masked': choose loss or accuracy"),
    ("causal", "accuracy", r"eval\.metric='accuracy' is not for the objective 'causal': choose loss"),
    ("pairs", "accuracy", r"eval\.metric='accuracy' is not for the objective 'pairs'"),
]


@pytest.mark.parametrize(("objective", "metric", "message"), WRONG)
def test_a_metric_of_another_task_is_refused(objective, metric, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        make_task(with_metric(objective, metric, tmp_path))


def test_metrics_that_the_labels_do_not_have_are_refused(tmp_path):
    recipe = with_metric("classify", "accuracy", tmp_path)
    with pytest.raises(ConfigError, match=r"'micro_f1' of one label per text is the accuracy: set eval\.metric=accur"):
        make_task(recipe.replace(eval=recipe.eval.replace(metric="micro_f1")))
    (tmp_path / "pos.conll").write_text("a\tDT\ncat\tNN\n\n" * 40)
    recipe = with_metric("tag", "f1", tmp_path)
    data = recipe.data.replace(path=str(tmp_path / "pos.conll"), tag_scheme="any")
    with pytest.raises(ConfigError, match=r"'f1' counts entities, and tags such as 'DT' mark none: set eval\.metric"):
        make_task(recipe.replace(data=data))
