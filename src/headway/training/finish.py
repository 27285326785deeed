"""The end of a run: the last validation and checkpoint, checkpoint averaging, and the result."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headway.config import load_recipe
from headway.config.recipe_loading import changed_settings
from headway.entry_points import plugin_options
from headway.errors import count
from headway.evaluation.perplexity import LMScore
from headway.evaluation.tasks import TaskScore
from headway.evaluation.validation import EvalResult, NotScored
from headway.file_reading import read_json
from headway.models import Model, load
from headway.nn.lora import merge_lora
from headway.runs import PROGRESS_FILE, read_progress
from headway.training.checkpoint import write_checkpoint
from headway.training.signals import ValidationStopped
from headway.training.task import make_model
from headway.training.weight_averaging import average_checkpoints, steps_to_average

if TYPE_CHECKING:
    from headway.training.trainer import Trainer

RISEN_LOSS = 1.1  # times the first loss: more than the noise between batches


@dataclass(frozen=True, repr=False)
class Result:
    """What `headway.train` returns."""

    model: Model
    path: Path  # of the run
    checkpoint: Path  # the last one
    score: EvalResult  # on the validation set; `NotScored`, which is false, if the run was interrupted
    steps: int
    seconds: float
    n_tokens: int
    interrupted: bool = False
    best_step: int | None = None  # of the checkpoint that `load` takes

    @property
    def scores(self) -> dict[str, float]:
        """The score by name: {"bits_per_byte": 1.66, …}; empty if the run was interrupted."""
        return self.score.to_dict()

    def __repr__(self) -> str:
        ended = ", interrupted" if self.interrupted else ""
        return f"Result({str(self.path)!r}, {self.steps:,} steps, {self.score.summary}{ended})"


class Limit(NamedTuple):
    """A limit that ends a run."""

    setting: str  # "train.steps"
    reason: str  # in words
    way_out: str  # a setting that lifts the limit: "train.steps=2000"


def limits_met(trainer: "Trainer") -> list[Limit]:
    """The limits that a run has reached: its steps, the clock, or early stopping. Usually there is one."""
    progress, config, patience = trainer.state.progress, trainer.config, trainer.eval_config.patience
    limits = []
    if progress.step >= config.steps:
        reason = f"after {count(progress.step, 'step')} (train.steps)"
        limits.append(Limit("train.steps", reason, f"train.steps={2 * progress.step}"))
    if config.max_seconds and progress.seconds >= config.max_seconds:
        reason = f"after {config.max_seconds:g} seconds (train.max_seconds)"
        limits.append(Limit("train.max_seconds", reason, "train.max_seconds=none"))
    if trainer.is_out_of_patience:
        reason = f"after {count(patience, 'evaluation')} without a better score (eval.patience)"
        limits.append(Limit("eval.patience", reason, "eval.patience=0"))
    return limits


def _describe_end(trainer: "Trainer") -> str:
    """Why a run has ended, and after which step. A run with a time limit may have any number of steps ahead of it."""
    step, steps = trainer.state.progress.step, trainer.config.steps
    reasons = " and ".join(limit.reason for limit in limits_met(trainer))
    of_steps = "" if trainer.config.max_seconds else f" of {steps:,}"
    return reasons if step >= steps else f"{reasons}, at step {step:,}{of_steps}"


def finish_run(trainer: "Trainer", is_stopped: bool) -> Result:
    """Validate (unless a stop request ended the run), save, average checkpoints, and log the end."""
    if not is_stopped and not trainer.state.progress.score:
        is_stopped = _run_unless_stopped(trainer.validate)
    trainer.save()
    if trainer.config.average_checkpoints and not is_stopped:
        is_stopped = _run_unless_stopped(lambda: average_last_checkpoints(trainer))
    if not is_stopped:
        _note_risen_loss(trainer)
        trainer.on_message(f"finished    {_describe_end(trainer)}")
    _log_end(trainer, "interrupted" if is_stopped else "end")
    trainer.dist.on_first_rank(trainer.run.remove_partial)  # what could not be deleted at once
    return make_result(trainer, is_stopped)


def _run_unless_stopped(evaluate: Callable[[], object]) -> bool:
    """Run an evaluation; returns whether a stop request ended it. Resuming the run repeats it."""
    try:
        evaluate()
    except ValidationStopped:
        return True
    return False


def _note_risen_loss(trainer: "Trainer") -> None:
    """Say so if the loss ended above its start: training went wrong, though nothing failed."""
    first, last = trainer.meter.first_loss, trainer.meter.last_loss
    if min(last, trainer.meter.smoothed_loss) > RISEN_LOSS * first:
        hint = f"try a smaller train.lr than {trainer.config.lr:g} or more train.warmup_steps"
        trainer.on_message(f"note        the training loss rose from {first:.2f} to {last:.2f}: {hint}")


def is_complete(trainer: "Trainer") -> bool:
    """Whether a restored run has nothing left to do."""
    is_trained = trainer.progress_fraction >= 1 or trainer.is_out_of_patience
    # A run that was extended may still have the average of its earlier end.
    averaged_step = read_progress(trainer.run.averaged_dir).get("step")
    is_averaged = averaged_step == trainer.state.progress.step or not trainer.config.average_checkpoints
    return is_trained and bool(trainer.state.progress.score) and is_averaged


def complete_result(trainer: "Trainer") -> Result:
    """The result of a run that was already complete when it was resumed."""
    if trainer.config.average_checkpoints:
        trainer.state.progress.score = read_json(trainer.run.averaged_dir / PROGRESS_FILE)["score"]
    if not any(record.get("event") == "end" for record in trainer.run.read_log()):
        _log_end(trainer, "end")  # the process was killed before it could
    # The settings that the run was resumed with are not stored while there is nothing to train.
    unused = changed_settings(load_recipe(trainer.run.path), trainer.task.recipe)
    settings = ", ".join(f"{name}={value}" for name, value in unused.items())
    note = f"; {settings} {'was' if len(unused) == 1 else 'were'} not used" if unused else ""
    command = _command_to_train_longer(trainer, unused)
    trainer.on_message(f"complete    {_describe_end(trainer)}{note}; to train longer: {command}")
    return make_result(trainer)


def _command_to_train_longer(trainer: "Trainer", settings: dict[str, str]) -> str:
    """It lifts the limits that were met, and repeats the settings that the run was resumed with."""
    settings = settings | dict(limit.way_out.split("=", 1) for limit in limits_met(trainer))
    options = " ".join(f"--set {shlex.quote(f'{name}={value}')}" for name, value in settings.items())
    return f"headway train {shlex.quote(str(trainer.run.path))} --resume {options}{plugin_options()}"


def average_last_checkpoints(trainer: "Trainer") -> None:
    """Average the weights of the last checkpoints, evaluate the average, and save it in `averaged/`."""
    progress, config, run = trainer.state.progress, trainer.config, trainer.run
    steps = steps_to_average(run, progress.step, config.average_checkpoints, config.save_every)
    weights = average_checkpoints(run, steps, trainer.state.model)
    merge_lora(trainer.state.model)  # the mean of merged matrices has no update of low rank
    trainer.state.load_weights(weights)
    score = trainer.evaluate_validation_set()
    trainer.on_message(f"averaged    {len(steps)} checkpoints, steps {', '.join(map(str, steps))}: {score.summary}")
    progress.score = {"selection_loss": score.selection_loss, **score.to_dict()}

    def write() -> None:
        model = make_model(trainer.task, "cpu", for_training=False)
        model.load_weights(weights)
        write_checkpoint(model, run.averaged_dir, progress.to_dict(), {})

    trainer.dist.on_first_rank(write)


def make_result(trainer: "Trainer", is_stopped: bool = False) -> Result:
    """The result, with the model as it is on disk: unsharded, averaged if the run averages weights, LoRA merged."""
    progress, model = trainer.state.progress, trainer.state.model
    checkpoint, averaged = trainer.run.checkpoint_dir(progress.step), trainer.run.averaged_dir
    is_averaged = bool(trainer.config.average_checkpoints) and not is_stopped
    if trainer.dist.parallel == "fsdp" or trainer.config.average_checkpoints:
        model = load(averaged if is_averaged else checkpoint, device=trainer.device)
    elif trainer.state.average is not None:
        trainer.state.average.swap()
    merge_lora(model)
    score: EvalResult = NotScored()
    if not is_stopped:
        table = read_json(averaged / PROGRESS_FILE)["score"] if is_averaged else progress.score
        if trainer.task.objective == "causal":
            score = LMScore(**{name: table[name] for name in LMScore.__dataclass_fields__ if name in table})
        else:
            score = TaskScore.from_dict(table, trainer.task.recipe.eval.metric)
    return Result(
        model.eval(),
        trainer.run.path,
        checkpoint,
        score,
        progress.step,
        progress.seconds,
        progress.n_tokens,
        interrupted=is_stopped,
        best_step=progress.best_step,
    )


def _log_end(trainer: "Trainer", event: str) -> None:
    progress = trainer.state.progress
    totals = {"seconds": progress.seconds, "train_tokens": progress.n_tokens, "best_step": progress.best_step}
    score = {key: value for key, value in progress.score.items() if key != "selection_loss"}
    limits = [limit.setting for limit in limits_met(trainer)]
    trainer.log.event(event, step=progress.step, limits=limits, **totals, **score)
