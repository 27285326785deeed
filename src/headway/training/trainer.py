"""The training loop, one for every family: read a batch, predict, descend, now and then look at held-out text.

    for work in prefetch(work_from(batches, step)):
        set_rate(learning_rate(step));  loss, norm = step(work)
        every so often: log, score, save

What is learned is a function (objectives.py), what a step is stands in step.py, what ranks share in parallel.py, what
is remembered in state.py. Batches depend on the seed and the step alone, and are made ahead by a thread. Whatever ends
a run (Ctrl-C, SIGTERM, a loss that is no number, a full disk, text that has gone) leaves a whole checkpoint and says
where.
"""

import math
import re
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from headway.config import StackConfig
from headway.costs import flops_per_token, training_memory
from headway.data.loader import prefetch
from headway.devices import product_precision, varying_shapes
from headway.errors import ConfigError, DataError, HeadwayError
from headway.evaluation.perplexity import LMScore
from headway.evaluation.tasks import TaskScore
from headway.evaluation.validation import EvalResult
from headway.models import Model, Transformer, load
from headway.models.base import eval_mode
from headway.models.serialization import AVERAGED, read_json, read_weights
from headway.runs import Run
from headway.training.checkpoint import TrainerProgress, TrainState, copy_tensor, write_checkpoint
from headway.training.distributed import DistContext, replicate, reshard, shard
from headway.training.environment import environment
from headway.training.loggers import LOGGERS, Logger, check_loggers
from headway.training.lr_schedules import learning_rate
from headway.training.objectives import LossModule
from headway.training.optimizers import Optimizer
from headway.training.signals import is_lost_contact, stop_request
from headway.training.task import OnMessage, Task, make_model
from headway.training.throughput import ThroughputMeter, device_peak, free_memory, peak_memory
from headway.training.train_step import (
    CapturedStep,
    Diverged,
    StepBatch,
    TrainStep,
    checkpoint_blocks,
    compile_blocks,
    compile_model,
    iter_step_batches,
    use_bfloat16_residual,
)
from headway.training.weight_averaging import ExponentialMovingAverage, mean_weights


@dataclass(frozen=True)
class Progress:
    """What is known after a step, for whoever shows it."""

    step: int  # steps done
    steps: int
    share: float  # of the run that is done, 0 to 1: by steps or, with a time limit, by the clock
    seconds: float
    loss: float  # nats per target, smoothed over some twenty steps
    lr: float
    grad_norm: float
    tokens_per_second: float
    bits_per_byte: float | None = None  # of the text learned from, smoothed alike
    mfu: float | None = None  # share of what the device could compute
    memory: int = 0  # bytes in use, at most
    score: EvalResult | None = None  # on held-out text, on the steps that look at it
    seconds_left: float = math.inf


@dataclass(frozen=True)
class Result:
    model: Model
    path: Path  # the run
    checkpoint: Path  # the last
    score: EvalResult | None  # on held-out text; none if the run was interrupted
    steps: int
    seconds: float
    n_tokens: int
    interrupted: bool = False
    best_step: int | None = None  # whose checkpoint `load` takes


OnStep = Callable[[Progress], None]


class Trainer:
    """One run: its parts, and the loop over them."""

    def __init__(
        self,
        task: Task,
        model: Model,
        run: Run,
        world: DistContext,
        device: torch.device,
        say: OnMessage,
        report: OnStep,
    ):
        self.task, self.model, self.run, self.world, self.device = task, model, run, world, device
        self.config, self.say, self.report = task.recipe.train, say, report
        config = self.config
        check_loggers(config.loggers)
        self.is_bfloat16 = product_precision(device, config.dtype) == "bfloat16"
        self.loader = task.loader(world)
        self.rows, self.width = next(iter_step_batches(self.loader, 0, config.grad_accum_steps)).tensors()[0].shape[:2]
        self._check_memory()
        if config.warmup_steps > config.steps:
            say(f"note        train.warmup_steps={config.warmup_steps} is longer than the run, so lr is never reached")
        self.peak, self.peak_from = device_peak(device, 2 if self.is_bfloat16 else 4)
        self.flops = flops_per_token(model.config, self.width)

        restraint = (config.ar_alpha, config.tar_beta)
        self.learner = LossModule(model, task.objective, config.label_smoothing, config.rdrop_alpha, restraint)
        is_compiled = bool(config.compile) and (config.compile != "auto" or (device.type == "cuda" and task.is_uniform))
        if config.checkpoint_activations:
            checkpoint_blocks(model)
        if config.residual_dtype == "bfloat16":
            self._narrow()
        if is_compiled:
            compile_model(model) if config.compile == "model" else compile_blocks(model)
        shard(self.learner, world)
        optimizer = Optimizer(model, config, device=device)
        average = ExponentialMovingAverage(model, config.ema) if config.ema else None
        carried = self.learner.remember(self.rows) if task.carries_state else {}
        self.state = TrainState(model, optimizer, average, TrainerProgress(), world, carried)
        module = replicate(self.learner, world, device)
        step = TrainStep(module, optimizer, clip=config.grad_clip, autocast=self.is_bfloat16, device=device)
        can_capture = device.type == "cuda" and world.parallel == "none"
        # What reads one token after the other asks how many there are, and a graph cannot wait for the answer.
        self.is_bucketed = can_capture and isinstance(model, Transformer) and not is_compiled
        self.step = (
            CapturedStep(step) if can_capture and (self.is_bucketed or (is_compiled and task.is_uniform)) else step
        )
        self.trackers: list[Logger] = []

    # ── beginning and end ─────────────────────────────────────────────────────────────────────────────────────────

    def train(self, step: int) -> Result:
        """Go on after the checkpoint of `step`, or with −1 begin, and train to the end."""
        is_new = step < 0
        if not is_new:
            self._check_data()
            self.state.restore(self.run.checkpoint_dir(step))
            if self._is_complete():
                if not any(record.get("event") == "end" for record in self.run.read_log()):
                    self._log_end("end")  # whoever ended it had no time to
                self.say(f"complete    {step:,} of {self.config.steps:,} steps; to go on, set more train.steps")
                return self._result()
            self.say(f"resuming    after step {step:,}, from {self.run.checkpoint_dir(step)}")
        self.world.on_first_rank(lambda: self.run.rewind(step, self.task.recipe.to_toml()))
        if is_new:
            self._log(event="start", **self._facts())
            self.save()  # what diverges at once can go back here; and a disk without room says so now
        else:
            self._log(event="resume", step=step, ranks=self.world.size)
        if self.world.is_main:
            table = msgspec.to_builtins(self.task.recipe)
            self.trackers = [LOGGERS[name](self.run.path, table) for name in self.config.loggers]
        try:
            with stop_request() as stop:  # around scoring and saving too: nothing is lost to a late Ctrl-C
                try:
                    is_stopped = self._loop(stop)
                    return self._finish(is_stopped)
                except Exception as error:
                    stop.is_last_word = is_lost_contact(error)
                    raise self._explained(error) from error
        finally:
            for tracker in self.trackers:
                tracker.close()

    def _facts(self) -> dict[str, Any]:
        """All that is needed to repeat the run, beside its recipe."""
        return {
            **environment(self.device),
            "dtype": product_precision(self.device, self.config.dtype),
            "ranks": self.world.size,
            "seed": self.config.seed,
            "objective": self.task.objective,
            "n_params": self.model.n_params,
            "flops_per_token": self.flops,
            "corpus_tokens": sum(len(corpus.train) for corpus, _ in self.task.prepared),
            "data": self.task.fingerprints,
            "bytes_per_token": self.task.bytes_per_target,
            "peak_flops": self.peak,
            "peak_flops_from": self.peak_from,
        }

    def _check_data(self) -> None:
        begun = next((r for r in self.run.read_log() if r.get("event") == "start"), {})
        if begun.get("data", self.task.fingerprints) != self.task.fingerprints:
            raise DataError(
                f"the data is not what {self.run.path} was begun with: {self.task.recipe.data.path} has changed since; "
                f"put it back, or begin a new run: headway train {self.run.path} --out NEW"
            )

    def _is_complete(self) -> bool:
        is_averaged = not self.config.average_checkpoints or (self.run.path / AVERAGED / "config.json").is_file()
        return (self._share() >= 1 or self._is_stale()) and bool(self.state.progress.score) and is_averaged

    def _finish(self, is_stopped: bool) -> Result:
        position = self.state.progress
        if not is_stopped and not position.score:
            self._score()
        self.save()
        if self.config.average_checkpoints and not is_stopped:
            self._average()
        self._log_end("interrupted" if is_stopped else "end")
        return self._result(is_stopped)

    def _log_end(self, event: str) -> None:
        position = self.state.progress
        facts = {"seconds": position.seconds, "train_tokens": position.n_tokens, "best_step": position.best_step}
        facts |= {key: value for key, value in position.score.items() if key != "merit"}
        self._log(event=event, step=position.step, **facts)

    def _result(self, is_stopped: bool = False) -> Result:
        """With the model as it is on disk: averaged, and whole where this rank has a share of it."""
        position, state = self.state.progress, self.state
        model: Model = self.model
        is_averaged = self.config.average_checkpoints and not is_stopped
        if self.world.parallel == "fsdp" or is_averaged:
            model = load(
                self.run.path / AVERAGED if is_averaged else self.run.checkpoint_dir(position.step), device=self.device
            )
        elif state.average is not None:
            state.average.swap()
        score = None
        if not is_stopped:
            kind = LMScore if self.task.objective == "causal" else TaskScore
            facts = self._averaged_score() if is_averaged else position.score
            score = kind(**{name: facts[name] for name in kind.__dataclass_fields__ if name in facts})
        return Result(
            model.eval(),
            self.run.path,
            self.run.checkpoint_dir(position.step),
            score,
            position.step,
            position.seconds,
            position.n_tokens,
            interrupted=is_stopped,
            best_step=position.best_step,
        )

    def _explained(self, error: Exception) -> Exception:
        """What ended the run, and what of it is safe. A run of one process also keeps its last good step."""
        config, position = self.config, self.state.progress
        if isinstance(error, Diverged):
            text = (
                f"{error} (learning rate {self.lr:.2g}): training has diverged; try a smaller train.lr than "
                f"{config.lr} or more train.warmup_steps"
            )
        elif isinstance(error, torch.OutOfMemoryError):
            text = (
                f"{self.device} is out of memory at {self.rows} x {self.width} tokens at a time: set train.grad_accum_steps="
                f"{2 * config.grad_accum_steps}, which gives the same steps, or train.checkpoint_activations=true"
            )
        elif isinstance(error, OSError):
            text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        elif is_lost_contact(error):
            reason = str(error).strip().splitlines()[0]
            text = f"rank {self.world.rank} lost the others ({reason}): one of them has ended"
        elif isinstance(error, HeadwayError):
            text = str(error)
        else:
            text = ""
        is_sound = not isinstance(error, Diverged)
        if self.world.size == 1 and position.step not in self.run.checkpoint_steps() and position.step and is_sound:
            with suppress(Exception):  # the disk may be full
                self.save()
        if not text:
            return error  # not foreseen: with all that Python has to say
        steps = self.run.checkpoint_steps()
        safe = f"the last checkpoint is {self.run.checkpoint_dir(steps[-1])}" if steps else "there is no checkpoint yet"
        smaller = "" if is_sound else f" --set train.lr={config.lr / 10:.2g}"
        way = f"; go on with: headway train {self.run.path} --resume{smaller}" if steps else ""
        text = re.sub(r"\.(step-\d+)\.[^/]*partial", r"\1", text)  # by the name it would have had
        return HeadwayError(f"{text}. Stopped after step {position.step}; {safe}{way}")

    # ── the loop ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _loop(self, stop: threading.Event) -> bool:
        """Returns whether it was asked to stop before the end."""
        position, config = self.state.progress, self.config
        self.learner.train()
        self.started = time.monotonic() - position.seconds
        self.begun, self.first_share = time.monotonic(), self._share()
        self.parts_done = int(self.first_share * self.task.recipe.eval.num_evals)
        self.speed, self.smooth, self.lr = ThroughputMeter(position.n_tokens), math.nan, config.lr
        most = self.model.config.context if self.is_bucketed else None
        made = iter_step_batches(self.loader, position.step, config.grad_accum_steps, bucketed=most)
        work = prefetch(made, device=self.device)
        is_stopped = False
        try:
            while self._share() < 1 and not is_stopped and not self._is_stale():
                n_targets, loss, norm = self._descend(next(work))
                is_stopped = self._look_around(n_targets, loss, norm, stop)
        finally:
            work.close()
        return is_stopped

    def _descend(self, work: StepBatch) -> tuple[int, Tensor, Tensor]:
        position = self.state.progress
        self.lr = learning_rate(self.config, position.step, self._share())
        self.state.optimizer.set_rate(self.lr)
        n_targets = int(self.world.all_reduce_sum(work.n_targets)[0])
        with nullcontext() if self.task.is_uniform else varying_shapes():
            loss, norm = self.step(work, self.world.size / max(n_targets, 1))  # engines average gradients over ranks
        position.step += 1
        position.n_tokens += n_targets
        position.score = {}
        if self.state.average is not None:
            self.state.average.update(position.step)
        return n_targets, loss, norm

    def _look_around(self, n_targets: int, loss: Tensor, norm: Tensor, stop: threading.Event) -> bool:
        """After a step: read, log, score and save what is due. Returns whether someone asks to stop."""
        position, config = self.state.progress, self.config
        stops, seconds = self.world.all_reduce_sum(float(stop.is_set()), time.monotonic() - self.started)
        position.seconds = seconds / self.world.size
        is_last = self._share() >= 1 or stops > 0
        is_due = position.step % config.log_every == 0 or is_last
        progress = self._read(n_targets, loss, norm, is_due) if is_due or self.device.type == "cpu" else None
        score = None
        if self._share() < 1 and self._is_time_to_score():
            score = self._score()
        is_best = score is not None and position.best_step == position.step
        is_last = is_last or self._is_stale()
        if (is_best or (config.save_every and position.step % config.save_every == 0)) and not is_last:
            self.save()
        if progress is not None:
            self.report(replace(progress, score=score))
        return stops > 0

    def _read(self, n_targets: int, loss: Tensor, norm: Tensor, is_due: bool) -> Progress:
        """Wait for the step's numbers, and log them where they are due."""
        position, config = self.state.progress, self.config
        value, size = self.world.all_reduce_sum(float(loss))[0] / max(n_targets, 1), float(norm)
        if not (math.isfinite(value) and math.isfinite(size)):
            raise Diverged(f"the loss is {value}, the gradient norm {size}")
        self.smooth = value if math.isnan(self.smooth) else 0.95 * self.smooth + 0.05 * value
        speed = self.speed.mark(position.n_tokens)
        mfu = speed * self.flops / (self.peak * self.world.size) if self.flops else None
        if is_due:
            self._log(
                step=position.step,
                loss=value,
                lr=self.lr,
                grad_norm=size,
                tokens_per_second=speed,
                mfu=mfu,
                memory=peak_memory(self.device),
                seconds=position.seconds,
            )
        share = min(self._share(), 1.0)
        done = share - self.first_share
        per_byte = self.task.bytes_per_target
        return Progress(
            position.step,
            config.steps,
            share,
            position.seconds,
            self.smooth,
            self.lr,
            size,
            speed,
            bits_per_byte=self.smooth / math.log(2) / per_byte if per_byte else None,
            mfu=mfu,
            memory=peak_memory(self.device),
            seconds_left=(time.monotonic() - self.begun) * (1 - share) / done if done > 0 else math.inf,
        )

    def _share(self) -> float:
        """How much of the run is done: by steps or, where that is further, by the clock."""
        position, limit = self.state.progress, self.config.max_seconds
        return max(position.step / self.config.steps, position.seconds / limit if limit else 0.0)

    def _is_time_to_score(self) -> bool:
        """By steps, or each time another part of the run is done."""
        evaluation, before = self.task.recipe.eval, self.parts_done
        if evaluation.every_steps:
            return self.state.progress.step % evaluation.every_steps == 0
        self.parts_done = int(self._share() * evaluation.num_evals)
        return self.parts_done > before

    def _is_stale(self) -> bool:
        patience = self.task.recipe.eval.patience
        return bool(patience) and self.state.progress.evals_since_best >= patience

    # ── scoring and saving ────────────────────────────────────────────────────────────────────────────────────────

    @torch.no_grad()
    def _ask(self) -> EvalResult:
        """The score on held-out text, in float32 and uncompiled: what `headway eval` will say."""
        average = self.state.average
        averaged = average.in_place() if average is not None else nullcontext()
        with eval_mode(self.learner), torch.compiler.set_stance("force_eager"), averaged, varying_shapes():
            assert self.task.validation is not None  # what learns by steps has something held out (setup.py)
            score = self.task.validation.score(lambda batch: self.learner(batch.to(self.device)), self.world)
            reshard(self.learner)
            if isinstance(score, TaskScore):
                score = self.task.with_generation_score(score, self.model)
        return score

    def _score(self) -> EvalResult:
        """Ask, and remember the answer."""
        position, score = self.state.progress, self._ask()
        position.score = {"merit": score.selection_loss, **score.to_dict()}
        is_best = score.selection_loss < position.best
        position.evals_since_best = 0 if is_best else position.evals_since_best + 1
        if is_best:
            position.best, position.best_step = score.selection_loss, position.step
        self._log(step=position.step, **score.to_dict(), seconds=position.seconds)
        self.speed = ThroughputMeter(position.n_tokens)
        return score

    def save(self) -> None:
        """Write a checkpoint, then let go of those that need not be kept."""
        step = self.state.progress.step
        self.state.save(self.run.checkpoint_dir(step))
        keep, every = self.config.keep_checkpoints, self.config.save_every
        self.world.on_first_rank(lambda: self.run.prune(keep, self.state.progress.best_step, every))
        self.speed = ThroughputMeter(self.state.progress.n_tokens)

    @torch.no_grad()
    def _average(self) -> None:
        """The mean of the last regular checkpoints and the last of all, scored, and saved beside them."""
        position, every = self.state.progress, self.config.save_every
        regular = [
            step for step in self.run.checkpoint_steps() if step == position.step or (every and step % every == 0)
        ]
        last = [step for step in regular if 0 < step <= position.step][-self.config.average_checkpoints :]
        mean = mean_weights(read_weights(self.run.checkpoint_dir(step), self.model) for step in last)
        for name, parameter in self.model.named_parameters():
            copy_tensor(parameter.detach(), mean[name])
        self.state.average = None  # the mean of averages is what counts now
        score = self._ask()
        self.say(f"averaged    {len(last)} checkpoints, steps {', '.join(map(str, last))}: {score.summary}")
        position.score = {"merit": score.selection_loss, **score.to_dict()}

        def write() -> None:
            final = make_model(self.task, "cpu")
            final.load_weights(mean)
            write_checkpoint(final, self.run.path / AVERAGED, position.to_dict(), {})

        self.world.on_first_rank(write)

    def _averaged_score(self) -> dict[str, Any]:
        return read_json(self.run.path / AVERAGED / "training.json")["score"]

    def _log(self, **record: Any) -> None:
        if self.world.is_main:
            self.run.log(**record)
            if "event" not in record:
                step = record.pop("step")
                for tracker in self.trackers:
                    tracker.log(step, record)

    def _narrow(self) -> None:
        if not self.is_bfloat16 or not hasattr(self.model, "dropout"):
            raise ConfigError(
                "train.residual_dtype='bfloat16' is for a gpt whose products are in bfloat16: set train.dtype=bfloat16 too"
            )
        use_bfloat16_residual(self.model)

    def _check_memory(self) -> None:
        """Refuse what cannot fit, before it fails."""
        config, c, free = self.config, self.model.config, free_memory(self.device)
        if not isinstance(c, StackConfig) or free is None:
            return
        need = training_memory(
            c,
            self.model.n_params,
            config,
            rows=self.rows,
            width=self.width,
            ranks=self.world.size,
            bytes_each=2 if self.is_bfloat16 else 4,
        )
        size = f"{need.total / 2**30:.1f} GiB" if need.total > 2**29 else f"{need.total / 2**20:.0f} MiB"
        self.say(f"memory      about {size} for {self.rows} x {self.width} tokens at a time")
        rest = need.total - need.activations - self.model.n_params * 4  # the weights are there already
        if rest + need.activations <= free:
            return
        pieces = config.grad_accum_steps * math.ceil(need.activations / max(free - rest, 1))
        if rest < free and pieces <= self.rows * config.grad_accum_steps:
            way = (
                f"set train.grad_accum_steps={pieces}, which gives the same steps, or train.checkpoint_activations=true"
            )
        else:
            way = "take a smaller model, or share it over several devices with train.parallel=fsdp"
        raise ConfigError(
            f"a step needs about {need.total / 2**30:.1f} GiB, {need.activations / 2**30:.1f} of them for "
            f"{self.rows} x {self.width} tokens at a time, and {self.device} has {free / 2**30:.1f} GiB free: {way}"
        )
