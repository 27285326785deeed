"""The training loop, the same for every model family.

    train → for each batch: train_step, then _after_step: log, validate, save where due → finish_run

The loss is a function of model and batch (objectives.py), a step is in train_step.py, the state that checkpoints hold
in checkpoint.py. build.py makes a Trainer, finish.py ends its run. Batches depend only on the seed and the step, and a
background thread prepares them. However a run ends (Ctrl-C, a signal, divergence, a full disk, missing data), an intact
checkpoint remains and the error message says where (failures.py).
"""

import math
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from headway.data.loader import prefetch
from headway.devices import without_cudnn_attention
from headway.entry_points import plugin_options
from headway.errors import DataError, count
from headway.evaluation.tasks import TaskScore
from headway.evaluation.validation import EvalResult, LossOutput, NonFiniteLossError
from headway.models.base import eval_mode
from headway.nn.lora import lora_merged
from headway.runs import Run
from headway.training.checkpoint import TrainState
from headway.training.distributed import DistContext, gathered, reshard
from headway.training.environment import run_metadata
from headway.training.failures import DivergenceError, FailureContext, explain_failure, is_lost_contact
from headway.training.finish import Result, complete_result, finish_run, is_complete
from headway.training.loggers import RunLog
from headway.training.lr_schedules import learning_rate
from headway.training.objectives import LossModule
from headway.training.progress import OnMessage, OnStep, Progress, ProgressMeter, progress_fraction
from headway.training.samples import write_sample
from headway.training.signals import StopRequest, StopTraining, ValidationStopped, stop_request
from headway.training.task import Task
from headway.training.threads import BusyWatch
from headway.training.train_step import StepBatch


class StepOutput(NamedTuple):
    n_targets: int  # over all ranks
    loss: Tensor  # summed over this rank's targets, on the device
    grad_norm: Tensor


@dataclass
class Trainer:
    """One run: its parts, and the loop over them."""

    task: Task
    state: TrainState
    loss_module: LossModule  # what validation calls; `step_fn` calls its DDP wrapper, if any
    step_fn: Callable[[StepBatch, float], tuple[Tensor, Tensor]]  # a TrainStep or a CapturedStep
    iter_batches: Callable[[int], Iterator[StepBatch]]  # from a step on
    micro_batch_shape: tuple[int, int]  # rows and tokens
    run: Run
    log: RunLog
    meter: ProgressMeter
    dist: DistContext
    device: torch.device
    initial_weights: dict[str, Any]  # where the weights come from, if not from random numbers; part of the metadata
    on_message: OnMessage
    on_step: OnStep

    def __post_init__(self) -> None:
        self.config, self.eval_config = self.task.recipe.train, self.task.recipe.eval
        self.lr = self.config.lr
        self.n_skipped = 0  # steps without targets
        self.stop = StopRequest()

    def train(self, resume_step: int | None = None, new_evaluation: str = "") -> Result:
        """Train to the end, from the start or from the checkpoint of `resume_step`. `new_evaluation`
        describes how the evaluation has changed, which resets the best score; empty: it has not."""
        if resume_step is not None:
            self.state.restore(self.run.checkpoint_dir(resume_step))
            if new_evaluation:
                self.state.progress.start_evaluation(self.task.evaluation)
                self.on_message(f"evaluation  changed ({new_evaluation}): the best score is reset")
            if is_complete(self):
                self._prune()  # the process may have been killed before it could
                return complete_result(self)
            self.on_message(f"resuming    after step {resume_step:,}, from {self.run.checkpoint_dir(resume_step)}")
        self.dist.on_first_rank(lambda: self.run.rewind(resume_step, self.task.recipe.to_toml()))
        if resume_step is None:
            self.state.progress.evaluation = self.task.evaluation
            metadata = run_metadata(self.task, self.state.model, self.dist, self.device, self.meter)
            self.log.event("start", **metadata, **self.initial_weights)
            self.save()  # a run that diverges at once can return to it, and a full disk shows now
        else:
            device, threads = str(self.device), torch.get_num_threads()
            changed = {"new_evaluation": new_evaluation} if new_evaluation else {}
            self.log.event("resume", step=resume_step, ranks=self.dist.size, device=device, threads=threads, **changed)
        self.log.connect(self.config.loggers, msgspec.to_builtins(self.task.recipe))
        # This covers validation and saving too: a late Ctrl-C loses nothing.
        with stop_request(self.on_message, describe_loss=self._describe_loss) as self.stop, closing(self.log):
            try:
                is_stopped = self._run_steps()
                return finish_run(self, is_stopped)
            except Exception as error:
                self.stop.ignores_sigterm = is_lost_contact(error)
                raise self._handle_failure(error) from error

    def _run_steps(self) -> bool:
        """Train until the run is complete, or early stopping or a stop request ends it; True after a stop request."""
        progress = self.state.progress
        self.loss_module.train()
        self.start_time = time.monotonic() - progress.seconds
        self.evals_done = int(self.progress_fraction * self.eval_config.num_evals)
        self.meter.start(progress)
        self.busy_watch = BusyWatch(self.device, self.run.path, self.on_message)
        batches = prefetch(self.iter_batches(progress.step), device=self.device)
        is_stopped = progress.is_validation_pending and self._repeat_validation()
        try:
            while self.progress_fraction < 1 and not is_stopped and not self.is_out_of_patience:
                output = self.train_step(next(batches))
                is_stopped = self._after_step(output)
        finally:
            batches.close()
        if progress.step and not progress.n_tokens:
            raise DataError(
                f"none of the {count(progress.step, 'step')} had a target to predict, so nothing was learned: give "
                f"more data, or longer sequences (train.seq_len)"
            )
        return is_stopped

    def train_step(self, batch: StepBatch) -> StepOutput | None:
        """Forward, backward and optimizer step; then the EMA and the progress. A batch without targets, such as one of
        padding or of special tokens only, has no loss: its step is skipped, and None returned."""
        progress = self.state.progress
        self.lr = learning_rate(self.config, progress.step, self.progress_fraction)
        self.state.optimizer.set_lr(self.lr)
        n_targets = int(self.dist.all_reduce_sum(batch.n_targets)[0])
        if not n_targets:
            self._skip_step()
            return None
        with nullcontext() if self.task.is_uniform else without_cudnn_attention(self.device):
            # DDP and FSDP average gradients over ranks; times the number of ranks, that is their sum.
            loss, grad_norm = self.step_fn(batch, self.dist.size / n_targets)
        progress.step += 1
        progress.n_tokens += n_targets
        progress.score = {}
        if self.state.average is not None:
            self.state.average.update(progress.step)
        return StepOutput(n_targets, loss, grad_norm)

    def _skip_step(self) -> None:
        """Count a step without targets. The user is told of the first one; the log has them all."""
        progress = self.state.progress
        progress.step += 1
        progress.score = {}
        if not self.n_skipped:
            self.on_message(
                f"note        step {progress.step:,} has no targets to predict: it is skipped, like all such steps"
            )
        self.n_skipped += 1
        self.log.event("skipped", step=progress.step, reason="no targets")

    def _after_step(self, output: StepOutput | None) -> bool:
        """Log, validate and save where due. Returns whether a rank got a stop request."""
        progress, config = self.state.progress, self.config
        seconds = time.monotonic() - self.start_time
        n_stop_requests, seconds = self.dist.all_reduce_sum(float(self.stop.is_set()), seconds)
        progress.seconds = seconds / self.dist.size
        is_last = self.progress_fraction >= 1 or n_stop_requests > 0
        is_log_step = progress.step % config.log_every == 0 or is_last
        report = None
        if is_log_step or self.device.type == "cpu":  # on a GPU reading the loss forces a synchronisation
            report = self._read_metrics(output, is_log_step)
        score = None
        if self.progress_fraction < 1 and self._is_validation_due():
            try:
                score = self.validate()
            except ValidationStopped:
                return True
        is_best = score is not None and progress.best_step == progress.step
        is_save_step = is_best or (config.save_every and progress.step % config.save_every == 0)
        if is_save_step and not is_last and not self.is_out_of_patience:  # finish_run saves the last step
            self.save()
        if report is None and score is not None:
            report = self._read_metrics(output, is_log_step)
        if report is not None:
            self.busy_watch.check(report.tokens_per_second)
            if self._report(replace(report, score=score)):
                return self.dist.size == 1  # several ranks agree on it at the next step
        return n_stop_requests > 0

    def _report(self, report: Progress) -> bool:
        """Call `on_step`; returns whether it asked to stop."""
        try:
            self.on_step(report)
        except StopTraining:
            self.stop.set()
            return True
        return False

    def _repeat_validation(self) -> bool:
        """Repeat the validation that a stop request interrupted before the resume; returns whether to stop again."""
        try:
            score = self.validate()
        except ValidationStopped:
            return True
        if self.state.progress.best_step == self.state.progress.step:
            self.save()
        report = self.meter.update(self.state.progress, loss=None, lr=self.lr, grad_norm=0.0)
        return self._report(replace(report, score=score)) and self.dist.size == 1

    def _read_metrics(self, output: StepOutput | None, is_log_step: bool) -> Progress:
        """Read the loss and gradient norm of a step, check that they are finite, and log them."""
        if output is None:
            return self.meter.update(self.state.progress, loss=None, lr=self.lr, grad_norm=0.0)
        loss = self.dist.all_reduce_sum(float(output.loss))[0] / output.n_targets
        grad_norm = float(output.grad_norm)
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise DivergenceError(f"the loss is {loss}, the gradient norm {grad_norm}")
        report = self.meter.update(self.state.progress, loss=loss, lr=self.lr, grad_norm=grad_norm)
        if is_log_step:
            speed = {"tokens_per_second": report.tokens_per_second, "mfu": report.mfu, "memory": report.memory}
            totals = {"seconds": report.seconds, "train_tokens": self.state.progress.n_tokens}
            self.log.metrics(report.step, loss=loss, lr=self.lr, grad_norm=grad_norm, **speed, **totals)
        return report

    def validate(self) -> EvalResult:
        """Evaluate, log the score, and keep track of the best step. A stop request ends it: ValidationStopped."""
        progress = self.state.progress
        progress.is_validation_pending = True
        score = self.evaluate_validation_set()
        progress.is_validation_pending = False
        progress.score = {"selection_loss": score.selection_loss, **score.to_dict()}
        progress.evals_since_best = 0 if score.selection_loss < progress.best else progress.evals_since_best + 1
        if score.selection_loss <= progress.best:  # of equals the latest, as `best_checkpoint` in runs.py selects
            progress.best, progress.best_step = score.selection_loss, progress.step
        totals = {"seconds": progress.seconds, "train_tokens": progress.n_tokens}
        self.log.metrics(progress.step, **progress.score, **totals)
        if self.eval_config.sample_tokens and self.dist.is_main and self.dist.parallel != "fsdp":
            with self._evaluation_mode():
                self.log.event("sample", step=progress.step, text=write_sample(self.state.model, self.task))
        self.meter.reset_throughput(progress)
        return score

    @torch.no_grad()
    def evaluate_validation_set(self) -> EvalResult:
        """The score that `headway eval` would report: in float32, uncompiled, with the EMA weights if there are any."""
        with self._evaluation_mode():
            assert self.task.validation is not None  # only n-grams do without (task.py)
            try:
                score = self.task.validation.score(self._validation_loss, self.dist)
            except NonFiniteLossError:
                raise DivergenceError("the validation loss is not a number") from None
            reshard(self.loss_module)
            if isinstance(score, TaskScore):
                with gathered(self.loss_module):
                    score = self.task.add_metrics(score, self.state.model, self._check_stop)
        return score

    def _validation_loss(self, batch: Any) -> LossOutput:
        self._check_stop()
        loss: LossOutput = self.loss_module(batch.to(self.device))
        return loss

    def _check_stop(self) -> None:
        """End a validation, which may take minutes, after the current batch. Several ranks score together: they
        finish it."""
        if self.stop.is_set() and self.dist.size == 1:
            raise ValidationStopped

    @contextmanager
    def _evaluation_mode(self) -> Iterator[None]:
        """Inside the block the model is as `headway.load` would give it."""
        average = self.state.average
        averaged = average.in_place() if average is not None else nullcontext()
        with (
            eval_mode(self.loss_module),
            torch.compiler.set_stance("force_eager"),
            averaged,
            lora_merged(self.state.model),
            without_cudnn_attention(self.device),
        ):
            yield

    def save(self) -> None:
        """Write a checkpoint, then delete old ones beyond `keep_checkpoints`."""
        progress = self.state.progress
        self.state.save(self.run.checkpoint_dir(progress.step))
        self._prune()
        self.meter.reset_throughput(progress)

    def _prune(self) -> None:
        keep, save_every, best_step = (
            self.config.keep_checkpoints,
            self.config.save_every,
            self.state.progress.best_step,
        )
        self.dist.on_first_rank(lambda: self.run.prune(keep, best_step, save_every))

    @property
    def progress_fraction(self) -> float:
        return progress_fraction(self.state.progress, self.config)

    @property
    def is_out_of_patience(self) -> bool:
        """Early stopping: whether the last `patience` evaluations have not improved on the best."""
        patience = self.eval_config.patience
        return bool(patience) and self.state.progress.evals_since_best >= patience

    def _is_validation_due(self) -> bool:
        """Every `every_steps` steps, or `num_evals` times spread over the run."""
        if self.eval_config.every_steps:
            return self.state.progress.step % self.eval_config.every_steps == 0
        previous, self.evals_done = self.evals_done, int(self.progress_fraction * self.eval_config.num_evals)
        return self.evals_done > previous

    def _describe_loss(self) -> str:
        """What is lost if the run ends now, and how to resume it."""
        saved = max(self.run.checkpoint_steps(), default=0)
        lost = f"the steps after the checkpoint of step {saved:,} are lost"
        if saved == self.state.progress.step:
            lost = f"the checkpoint of step {saved:,} is saved"
        command = f"headway train {shlex.quote(str(self.run.path))} --resume{plugin_options()}"
        return f"stopped at once: {lost}; to resume: {command}"

    def _handle_failure(self, error: Exception) -> Exception:
        """Save the last good step, which a single process can do alone; returns the error to raise."""
        step = self.state.progress.step
        is_saved = step == 0 or step in self.run.checkpoint_steps()
        # A step that could not be logged is repeated by resuming, or the log would lack it.
        is_logged = getattr(error, "filename", None) != str(self.run.log_file)
        if self.dist.size == 1 and not is_saved and is_logged and not isinstance(error, DivergenceError):
            with suppress(Exception):  # the disk may be full
                self.save()
        shape = self.micro_batch_shape
        context = FailureContext(self.run, self.config, step, self.lr, shape, self.device, self.dist.rank)
        explained = explain_failure(error, context)
        with suppress(OSError):
            self.log.event("failed", step=step, reason=str(explained))
        return explained
