import pytest

import headway
from headway.config import recipe_from_table
from headway.errors import ConfigError
from headway.training.task import make_task
from tests.training.recipes import for_objective


def with_train(recipe, **train):
    table = recipe.to_table()
    table["train"] = {**{key: value for key, value in table["train"].items() if key != "steps"}, **train}
    return recipe_from_table(table)


@pytest.mark.parametrize("objective", ["pairs", "classify", "tag", "span"])
@pytest.mark.parametrize("epochs", [0.5, 1, 3])
def test_epochs_become_steps(objective, epochs, tmp_path):
    task = make_task(with_train(for_objective(objective, tmp_path), epochs=epochs, batch_size=8, warmup_steps=1000))
    steps = round(epochs * -(-len(task.dataset) // 8))
    assert (task.recipe.train.steps, task.recipe.train.epochs) == (steps, None)
    assert task.recipe.train.warmup_steps == steps // 10


def test_epochs_of_batches_by_tokens_count_the_batches_of_an_epoch(tmp_path):
    recipe = with_train(for_objective("pairs", tmp_path), epochs=2, tokens_per_batch=100)
    task = make_task(recipe)
    assert task.recipe.train.steps == 2 * len(task.loader(_single_process()).sampler.plan(0))


def _single_process():
    from headway.training.distributed import DistContext

    return DistContext()


def test_an_epoch_reads_every_example_once(tmp_path):
    recipe = with_train(for_objective("classify", tmp_path), epochs=1, batch_size=7)
    result = headway.train(recipe, out=tmp_path / "run", quiet=True)
    assert result.n_tokens == len(make_task(recipe).dataset)  # one target each


def test_epochs_of_running_text_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"train\.epochs=2 counts passes over examples; .*set train\.steps"):
        make_task(with_train(for_objective("causal", tmp_path), epochs=2))


def test_epochs_and_steps_replace_each_other():
    by_steps = headway.load_recipe("classify", ["train.steps=7", "model.family=bilstm"])
    assert (by_steps.train.steps, by_steps.train.epochs) == (7, None)
    assert headway.load_recipe("pairs", ["train.epochs=2"]).train.epochs == 2
    with pytest.raises(ConfigError, match=r"train\.steps=7 and train\.epochs=2 both say how long"):
        headway.load_recipe("classify", ["train.steps=7", "train.epochs=2", "model.family=bilstm"])


def test_another_family_leaves_the_learning_rates_of_fine_tuning_behind():
    recipe = headway.load_recipe("classify", ["model.family=bilstm"])
    default = headway.load_recipe("demo").train.__class__()
    assert recipe.finetune.init_from is None
    assert (recipe.train.lr, recipe.train.layer_lr_decay) == (default.lr, default.layer_lr_decay)
    assert recipe.train.epochs == headway.load_recipe("classify").train.epochs
    assert headway.load_recipe("classify", ["model.family=bilstm", "train.lr=0.5"]).train.lr == 0.5
    from_scratch = headway.load_recipe("classify", ["model.init_from=none"])
    assert (from_scratch.finetune.init_from, from_scratch.train.lr) == (None, default.lr)


def test_a_bag_of_words_has_a_learning_rate_of_its_own():
    assert headway.load_recipe("classify", ["model.family=bow"]).train.lr == 1e-2
    assert headway.load_recipe("classify", ["model.family=bow", "train.lr=0.5"]).train.lr == 0.5


def test_epochs_that_are_unset_leave_steps_free():
    train = headway.load_recipe("answer", ["train.steps=12", "train.epochs=none"]).train
    assert (train.steps, train.epochs) == (12, None)


def test_a_run_of_epochs_resumes_with_its_steps_and_takes_more_epochs(tmp_path):
    recipe = with_train(for_objective("classify", tmp_path), epochs=1, batch_size=60)
    headway.train(recipe, out=tmp_path / "run", quiet=True)
    steps = headway.load_recipe(tmp_path / "run").train.steps
    more = with_train(for_objective("classify", tmp_path), epochs=2, batch_size=60)
    result = headway.train(more, out=tmp_path / "run", resume=True, quiet=True)
    assert result.steps == 2 * steps
    fewer = with_train(for_objective("classify", tmp_path), epochs=1, batch_size=60)
    with pytest.raises(ConfigError, match=rf"train\.steps={steps} is below the {2 * steps} steps"):
        headway.train(fewer, out=tmp_path / "run", resume=True, quiet=True)
