"""What may change when a run is resumed: how it trains, but not its model and tokenizer.

Scores on another validation set, or with another context or metric, are not comparable with earlier ones. Such a change
needs `force`, which resets the best score. A run that has lost its checkpoints can only start over, which needs `force`
too.
"""

from headway.config import Recipe, load_recipe
from headway.config.recipe_loading import changed_settings
from headway.data.splits import split_fractions
from headway.entry_points import plugin_options
from headway.errors import CheckpointError, ConfigError, DataError
from headway.files import remove_directory
from headway.models.init_from import absolute_source
from headway.runs import Run, read_progress
from headway.training.progress import OnMessage
from headway.training.task import Task

# What a score means follows from the validation data and these settings.
EVALUATION_SETTINGS = (
    "data.valid_fraction",
    "data.test_fraction",
    "data.split",
    "data.valid_path",
    "eval.context",
    "eval.metric",
    "train.objective",
    "train.mask_prob",
    "train.whole_word_masking",
    "train.segment_pairs",
    "train.seed",
)


def find_checkpoint(run: Run, force: bool, on_message: OnMessage) -> int | None:
    """The step to resume from; None if the run was killed before its first checkpoint, or is forced to start over."""
    run.remove_partial()
    problem = f"{run.path} has no checkpoint, but its log has steps: they are lost"
    if run.checkpoint_steps() or run.has_damaged():
        try:
            return run.newest_intact(on_message)
        except CheckpointError as error:
            problem = str(error)
    elif not run.has_logged_steps() and not run.averaged_dir.exists():
        return None
    if not force:
        raise CheckpointError(
            f"{problem}. Put the checkpoints back; or start over: headway train {run.path} --resume --force, which "
            f"drops the log; or train a new run: headway train {run.path} --out NEW{plugin_options()}"
        )
    on_message(f"start over  {problem}")
    if run.averaged_dir.exists():
        remove_directory(run.averaged_dir)
    return None


def check_steps(run: Run, step: int, recipe: Recipe) -> None:
    if recipe.train.steps < step:
        raise ConfigError(
            f"train.steps={recipe.train.steps} is below the {step} steps that {run.path} has done: set more, or resume "
            f"it without train.steps",
            setting="train.steps",
        )


def with_started_model(recipe: Recipe, run: Run) -> Recipe:
    """The recipe of a run to resume. One with model.init_from takes the sizes that the run was started with, as the
    weights it started from may be gone."""
    if recipe.model_settings is None or recipe.finetune.init_from is None:
        return recipe
    started = load_recipe(run.path).model
    given = {name: getattr(recipe.model, name) for name in recipe.model_settings}
    given = {name: value for name, value in given.items() if value is not None}  # "none" follows from the weights
    model = started.replace(**given) if started.family == recipe.model.family else recipe.model
    finetune = recipe.finetune.replace(init_from=absolute_source(recipe.finetune.init_from))
    return recipe.replace(model=model, model_settings=None, finetune=finetune)


def check_unchanged(run: Run, task: Task) -> None:
    """Refuse another model or tokenizer: the checkpoint has its own, and another one would be ignored or not fit."""
    changed = changed_settings(load_recipe(run.path), task.recipe, ("model", "tokenizer", "finetune"))
    changed = {name.replace("finetune.", "model."): value for name, value in changed.items()}
    changed.pop("tokenizer.bpe_dropout", None)  # how a tokenizer is used while training
    if changed:
        settings = ", ".join(f"{name}={value}" for name, value in changed.items())
        raise ConfigError(
            f"{settings}: a resumed run keeps its model and tokenizer; leave it out, or start a new run: headway train "
            f"{run.path} --out NEW{plugin_options()}"
        )


def check_data(run: Run, task: Task) -> None:
    """Refuse data that has changed since the run was started."""
    start = next((record for record in run.read_log() if record.get("event") == "start"), {})
    if start.get("data", task.fingerprints) == task.fingerprints:
        return
    if not task.corpora and _has_other_split(load_recipe(run.path), task.recipe):
        return  # fingerprints of records are those of the training split: `find_new_evaluation` names the change
    raise DataError(
        f"{task.recipe.data.path} is not the data that {run.path} was started with: restore it, or start a new run: "
        f"headway train {run.path} --out NEW{plugin_options()}"
    )


def find_new_evaluation(run: Run, step: int, task: Task, force: bool) -> str:
    """Describes how the evaluation has changed since the checkpoint; empty if scores stay comparable. A change without
    `force` is refused."""
    before, after = load_recipe(run.path), task.recipe
    settings = changed_settings(before, after)
    changed = [f"{name}={settings[name]}" for name in EVALUATION_SETTINGS if name in settings]
    evaluation = read_progress(run.checkpoint_dir(step)).get("evaluation")
    is_same = evaluation == task.evaluation if evaluation else not changed  # none: a run of an earlier version
    if is_same and not _has_other_split(before, after):
        return ""
    reason = ", ".join(changed) or "the validation data"
    if not force:
        raise ConfigError(
            f"{reason} changed since {run.path} was started: scores would not be comparable with those before, and "
            f"the validation data may contain text that was trained on. Leave it as it was; or start a new run: "
            f"headway train {run.path} --out NEW{plugin_options()}; or add --force (in Python force=True): the best "
            f"score is then reset"
        )
    return reason


def _has_other_split(before: Recipe, after: Recipe) -> bool:
    return split_fractions(before.data) != split_fractions(after.data)
