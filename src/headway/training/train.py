"""`headway.train`: from a recipe to a run, new or resumed, in one process or under torchrun.

This file finds the run's folder and the checkpoint to resume from, has the first rank prepare the data, and then hands
over to the Trainer (trainer.py). N-grams are fitted in one pass.
"""

import json
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from headway.config import ModelConfig, Recipe, as_recipe
from headway.config.ablations import ablation_warnings
from headway.data.token_shards import OnPrepare
from headway.devices import matmul_dtype, parse_device
from headway.errors import ConfigError, count
from headway.evaluation.perplexity import batch_nll
from headway.evaluation.validation import EvalResult, NotScored
from headway.files import free_name
from headway.models import Model, NGram
from headway.models.base import described, tokenizer_of
from headway.models.heads import TextEncoder
from headway.models.serialization import is_registered
from headway.nn.lora import lora_layers
from headway.runs import Run
from headway.temporary_files import TemporaryFolder, delete_if_stopped
from headway.tokenizers import Tokenizer, load_tokenizer
from headway.training.build import build_trainer
from headway.training.callbacks import Callbacks, OnModelReady, ignore, progress_callbacks
from headway.training.checkpoint import TrainerProgress, write_checkpoint
from headway.training.distributed import DistContext, init_distributed, local_device, restart_count
from headway.training.environment import environment
from headway.training.finish import Result
from headway.training.progress import OnMessage, OnStep
from headway.training.resume_rules import (
    check_data,
    check_steps,
    check_unchanged,
    find_checkpoint,
    find_new_evaluation,
    with_started_model,
)
from headway.training.task import HEADS, Task, load_initial_weights, make_model, make_task
from headway.training.threads import cpu_threads, logged_threads
from headway.training.trainable import check_base, choose_trainable, describe_trained

RANK_SEED_STRIDE = 1_000_003  # between the seeds of two ranks


def train(
    recipe: Recipe | str | Path,
    *,
    model: Model | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    quiet: bool = False,
    on_step: OnStep | None = None,
    on_message: OnMessage | None = None,
    on_prepare: OnPrepare | None = None,
    on_model_ready: OnModelReady = ignore,
) -> Result:
    """Train a recipe into the folder `out` (default: the next free `runs/train`).

        result = headway.train("demo", out="runs/demo")
        print(result.scores["bits_per_byte"], result.model)

    `recipe` is a recipe, or what `headway.load_recipe` takes: the name of a shipped one, a TOML file, or a run.

    `model` is trained from its own weights, with its own tokenizer if it has one, in place of the recipe's model.

    With `resume`, training continues from the last intact checkpoint if the run exists; otherwise it starts. If
    `recipe` is the folder of a run, `out` is that folder by default: `headway.train("runs/demo", resume=True)`.

    `force` resumes even if something is lost: if the evaluation has changed (another split, context or
    metric), and the best score is reset; or if the checkpoints are gone, and training starts over.

    Progress is shown on stderr: as a bar in a terminal or a notebook, else as a line every few seconds. `quiet=True`
    turns it off, and so do the callbacks `on_step`, `on_message` and `on_prepare`: pass any of them to report the
    progress yourself.

    Callbacks: `on_step` gets the `Progress` after each step (on a GPU, after each step that is logged or evaluated) and
    may raise `StopTraining` to end the run, `on_message` gets a line per stage, `on_prepare` the progress of tokenizing
    the text, and `on_model_ready` the model before its first step.
    """
    if force and not resume:
        raise ConfigError("force=True is for resume=True: a new run never overwrites anything")
    if resume and out is None and isinstance(recipe, str | Path) and Run.exists(recipe):
        out = recipe
    recipe = as_recipe(recipe)
    if model is not None:
        finetune = recipe.finetune.replace(init_from=None, new_head=False)
        recipe = recipe.replace(model=_config_of(model), model_settings=None, finetune=finetune, preset="")
    device = local_device(parse_device(recipe.train.device))
    with init_distributed(recipe.train.parallel, device) as dist:
        reported = (on_step, on_message, on_prepare) if dist.is_main else (None, None, None)
        with progress_callbacks(quiet or not dist.is_main, *reported) as callbacks:
            callbacks = replace(callbacks, on_model_ready=on_model_ready)
            return _train(recipe, model, out, resume, force, dist, device, callbacks)


def _train(
    recipe: Recipe,
    model: Model | None,
    out: str | Path | None,
    resume: bool,
    force: bool,
    dist: DistContext,
    device: torch.device,
    callbacks: Callbacks,
) -> Result:
    """Train inside a process group. Everything that holds on to the group goes out of scope with this function."""
    may_resume = resume or restart_count() > 0
    path = Path(dist.broadcast(str(out if out is not None else default_run_dir("train", may_resume))))
    run = Run(path)
    with ExitStack() as exit_stack:
        has_started = may_resume and dist.broadcast(str(Run.exists(path))) == "True"
        step = _lock_and_find_checkpoint(run, force, dist, exit_stack, callbacks.on_message) if has_started else None
        if step is not None and recipe.train.epochs is None:
            check_steps(run, step, recipe)
        if step is None and model is None:
            check_base(recipe)
        if not has_started:
            Run.check_free(path)  # before the data is prepared, which may take long
            if resume:
                callbacks.on_message(f"new run     there is nothing to resume in {path} yet")
        task = _prepare_task(recipe, run, step, dist, callbacks, tokenizer_of(model))
        new_evaluation = ""
        if step is not None:
            check_steps(run, step, task.recipe)
            check_unchanged(run, task)
            check_data(run, task)
            new_evaluation = find_new_evaluation(run, step, task, force)
        torch.manual_seed(recipe.train.seed)
        model = make_model(task, device) if model is None else _fit_to_task(model, task, device)
        transfer = load_initial_weights(model, task) if step is None else None
        if transfer is not None:
            callbacks.on_message(f"weights     {transfer.summary}")
        choose_trainable(model, recipe)
        torch.manual_seed(recipe.train.seed + RANK_SEED_STRIDE * dist.rank)  # dropout differs between ranks
        if isinstance(model, NGram):
            if has_started:
                raise ConfigError(
                    f"an n-gram is fitted in one pass: nothing to resume in {path}; fit it again with --out NEW"
                )
            return _fit_ngram(model, task, path, callbacks)
        stored = logged_threads(run.read_log()) if has_started else None
        threads = cpu_threads(recipe.train.threads, device, stored=stored, on_message=callbacks.on_message)
        exit_stack.enter_context(threads)  # also for the last validation
        callbacks.on_message(_describe_model(model, recipe, device, dist))
        for warning in ablation_warnings(model.config):
            callbacks.on_message(f"warning     {warning}")
        trainer = build_trainer(
            task, model, run, dist, device, transfer, on_message=callbacks.on_message, on_step=callbacks.on_step
        )
        if not has_started:
            callbacks.on_model_ready(model)
            dist.on_first_rank(lambda: exit_stack.enter_context(Run.create(path, task.recipe.to_toml())))
        return trainer.train(step, new_evaluation)


def default_run_dir(name: str, resume: bool) -> Path:
    """The next free folder `runs/NAME`, or to resume the latest run of that name."""
    new = free_name(Path("runs") / name)
    runs = [path for path in new.parent.glob(f"{name}*") if Run.exists(path)] if resume else []
    return max(runs, key=lambda path: Run(path).recipe_file.stat().st_mtime, default=new)


def _lock_and_find_checkpoint(
    run: Run, force: bool, dist: DistContext, locks: ExitStack, on_message: OnMessage
) -> int | None:
    """The step to resume from, on all ranks; the first one holds the lock."""

    def find() -> str:
        locks.enter_context(run.lock())
        checkpoint_step = find_checkpoint(run, force, on_message)
        return "" if checkpoint_step is None else str(checkpoint_step)

    step = dist.broadcast(dist.on_first_rank(find))
    return int(step) if step else None


def _config_of(model: Model) -> ModelConfig:
    """The config of the user's model, if its checkpoints can be loaded again."""
    if not isinstance(model, Model) or not is_registered(model):
        name = type(model).__name__
        raise ConfigError(
            f"model={name} cannot be trained: its checkpoints need a subclass of headway.models.Model whose family is "
            f"registered: headway.register('family', NAME, {name}, config=…)"
        )
    if lora_layers(model):
        raise ConfigError("the model has LoRA updates, which a run makes itself: merge them first, merge_lora(model)")
    return model.config


def _fit_to_task(model: Model, task: Task, device: torch.device) -> Model:
    """Attach the tokenizer of the task to the user's model, and move it to the device."""
    n_model, n_tokenizer = model.config.vocab_size, task.tokenizer.vocab_size
    if n_model != n_tokenizer:
        raise ConfigError(
            f"the model has a vocabulary of {n_model:,}, the tokenizer {n_tokenizer:,}: create the model with "
            f"vocab_size={n_tokenizer}, or set model.tokenizer before training"
        )
    _check_head(model, task)
    model.tokenizer, model.config = task.tokenizer, task.recipe.model.resolved()
    return model.to(device).train()


def _check_head(model: Model, task: Task) -> None:
    """Refuse an encoder without the head of the task, or with other labels: its outputs would get other names."""
    head = HEADS.get(task.objective)
    if head is None or not isinstance(getattr(model, "encoder", model), TextEncoder):
        return
    if type(model) is not head:
        name = getattr(head, "__name__", str(head))
        raise ConfigError(
            f"the objective {task.objective!r} trains a {name}, and the model is {described(model)}: pass "
            f"{name}(encoder), or start from the weights in its directory, model.init_from=PATH"
        )
    own, labels = model.config.labels, task.recipe.model.labels  # type: ignore[attr-defined]
    if labels and own != labels:
        raise ConfigError(
            f"the model has the labels {', '.join(own[:20])}, the data has {', '.join(labels[:20])}: pass a model with "
            f"those of the data, in the same order"
        )


def _prepare_task(
    recipe: Recipe, run: Run, step: int | None, dist: DistContext, callbacks: Callbacks, tokenizer: Tokenizer | None
) -> Task:
    """The first rank prepares the data and the tokenizer. The others get its tokenizer and find the data in the
    cache."""
    if step is not None:
        recipe, tokenizer = with_started_model(recipe, run), load_tokenizer(run.checkpoint_dir(step))

    def prepare() -> Task:
        on_message, on_prepare = callbacks.on_message, callbacks.on_prepare
        return make_task(recipe, tokenizer=tokenizer, on_message=on_message, on_prepare=on_prepare)

    task = dist.on_first_rank(prepare)
    if dist.size == 1:
        assert task is not None
        return task
    with TemporaryFolder() as folder:
        if task is not None:
            task.tokenizer.save(folder)
        files = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
        files = json.loads(dist.broadcast(json.dumps(files)))
        if task is None:
            for name, text in files.items():
                (folder / name).write_text(text, encoding="utf-8")
            task = make_task(recipe, tokenizer=load_tokenizer(folder))
    return task


def _fit_ngram(model: NGram, task: Task, path: Path, callbacks: Callbacks) -> Result:
    """Fit an n-gram: counting needs no steps."""
    if task.recipe.train.parallel != "none":
        raise ConfigError("an n-gram is fitted by one process; leave train.parallel at 'none'")
    if model.config.smoothing == "given":
        raise ConfigError(
            "model.smoothing='given' is for n-grams loaded with their probabilities; to fit one, set kneser-ney"
        )
    callbacks.on_model_ready(model)
    # It cannot be resumed: if it is stopped, the run is removed.
    with Run.create(path, task.recipe.to_toml()) as run, delete_if_stopped(path):
        run.log(event="start", **environment(model.device), data=task.fingerprints)
        n_tokens, checkpoint = task.n_train_tokens, run.checkpoint_dir(0)
        start = time.monotonic()
        model.fit_texts(task.token_shards())
        seconds = time.monotonic() - start
        counts = ", ".join(f"{len(model.column('log_p', k)):,}" for k in range(1, model.config.order + 1))
        callbacks.on_message(
            f"counted     {counts} n-grams of 1 to {model.config.order} tokens, {n_tokens / seconds:,.0f} tokens/s"
        )
        score: EvalResult = NotScored()
        if task.validation is not None:
            score = task.validation.score(lambda batch: batch_nll(model, batch))
        metrics = score.to_dict()
        selection = {"selection_loss": score.selection_loss} if score else {}
        table = {**selection, **metrics}
        progress = TrainerProgress(n_tokens=n_tokens, seconds=seconds, score=table, evaluation=task.evaluation)
        write_checkpoint(model, checkpoint, progress.to_dict(), {})
        run.log(event="end", step=0, seconds=seconds, train_tokens=n_tokens, n_params=model.n_params, **metrics)
    return Result(model.eval(), run.path, checkpoint, score, 0, seconds, n_tokens)


def _describe_model(model: Model, recipe: Recipe, device: torch.device, dist: DistContext) -> str:
    ranks = "" if dist.size == 1 else f", {dist.size} ranks ({dist.parallel})"
    precision, size = matmul_dtype(device, recipe.train.dtype), describe_trained(model, recipe)
    threads = f", {count(torch.get_num_threads(), 'thread')}" if device.type == "cpu" else ""
    return f"model       {model.display_name}, {size}, on {device} in {precision}{threads}{ranks}"
