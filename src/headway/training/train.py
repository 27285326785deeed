"""From a recipe to a run: new, or gone on with, in one process or among many.

Which folder, which checkpoint, whose turn it is to read the data and to hold the run: all of that is settled here, and
then the loop (loop.py) has a `Trainer` to itself. A model that counts is fitted in one go.
"""

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

from headway.config import Recipe
from headway.data.token_shards import PrepareProgress as Preparing
from headway.devices import parse_device, product_precision
from headway.errors import ConfigError
from headway.evaluation.perplexity import batch_nll
from headway.files import free_name
from headway.models import Model, NGram
from headway.runs import Run
from headway.tokenizers import load_tokenizer
from headway.training.checkpoint import TrainerProgress, write_checkpoint
from headway.training.distributed import DistContext, init_distributed, local_device, restart_count
from headway.training.environment import environment
from headway.training.signals import stop_request
from headway.training.task import OnMessage, Task, make_model, make_task
from headway.training.trainer import OnStep, Result, Trainer


def train(
    recipe: Recipe,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    report: OnStep = lambda progress: None,
    say: OnMessage = lambda line: None,
    before: Callable[[Model], None] = lambda model: None,
    preparing: Callable[[Preparing], None] = lambda progress: None,
) -> Result:
    """Train as the recipe says, into the folder `out` (by default the next free `runs/NAME`).

    With `resume`, a run that is there is gone on with from its last whole checkpoint, and one that is not is begun.
    `report` hears of every step, `say` of every stage, `preparing` of text becoming tokens; `before` gets the model
    before its first step.
    """
    device = local_device(parse_device(recipe.train.device))
    with init_distributed(recipe.train.parallel, device) as world:
        if not world.is_main:
            report, say, preparing = (lambda _: None,) * 3
        return _train(recipe, out, resume, world, device, report, say, before, preparing)


def _train(
    recipe: Recipe,
    out: str | Path | None,
    resume: bool,
    world: DistContext,
    device: torch.device,
    report: OnStep,
    say: OnMessage,
    before: Callable[[Model], None],
    preparing: Callable[[Preparing], None],
) -> Result:
    """The same, among the ranks there are. Whatever holds on to them ends with this function."""
    again = resume or restart_count() > 0
    place = Path(world.broadcast(str(out if out is not None else default_run_dir("train", again))))
    run = Run(place)
    with ExitStack() as held:
        step = _find_checkpoint(run, world, held, say) if again else None
        if step is None:
            Run.check_free(place)  # before any long work
            if resume:
                say(f"new run     there is nothing to resume in {place} yet")
        task = _shared_task(recipe, run, step, world, say, preparing)
        torch.manual_seed(recipe.train.seed)
        model = make_model(task, device)
        torch.manual_seed(recipe.train.seed + 1_000_003 * world.rank)  # ranks drop different units
        if isinstance(model, NGram):
            if step is not None:
                raise ConfigError(f"an n-gram is counted in one go: there is nothing to resume in {place}")
            return _fit_ngram(model, task, run, before, say)
        _say_model(model, recipe, device, world, say)
        trainer = Trainer(task, model, run, world, device, say, report)
        if step is None:
            before(model)
            world.on_first_rank(lambda: _create_run(run, task, held))
        return trainer.train(-1 if step is None else step)


def default_run_dir(name: str, again: bool) -> Path:
    """A new folder `runs/NAME`, or to go on `again` the one made last."""
    free = free_name(Path("runs") / name)
    made = [path for path in free.parent.glob(f"{name}*") if Run.exists(path)] if again else []
    return max(made, key=lambda path: Run(path).recipe_file.stat().st_mtime, default=free)


def _create_run(run: Run, task: Task, held: ExitStack) -> None:
    Run.create(run.path, task.recipe.to_toml())
    held.enter_context(run.lock())


def _find_checkpoint(run: Run, world: DistContext, held: ExitStack, say: OnMessage) -> int | None:
    """The step of the checkpoint to go on from; −1 if the run ended before it had one, None if it has not begun."""
    if world.broadcast("begun" if Run.exists(run.path) else "new") == "new":
        return None

    def find() -> str:
        held.enter_context(run.lock())
        run.remove_partial()
        return str(run.newest_intact(say)) if run.checkpoint_steps() or run.has_damaged() else ""

    found = world.broadcast(world.on_first_rank(find))
    return int(found) if found else -1


def _shared_task(
    recipe: Recipe,
    run: Run,
    step: int | None,
    world: DistContext,
    say: OnMessage,
    preparing: Callable[[Preparing], None],
) -> Task:
    """The first rank reads the data and makes the tokenizer; the others then take its tokenizer, and find the data
    ready in the cache."""
    tokenizer = load_tokenizer(run.checkpoint_dir(step)) if step is not None and step >= 0 else None
    if world.size == 1:
        return make_task(recipe, tokenizer=tokenizer, say=say, preparing=preparing)
    task = world.on_first_rank(lambda: make_task(recipe, tokenizer=tokenizer, say=say, preparing=preparing))
    with tempfile.TemporaryDirectory() as folder:
        if task is not None:
            task.tokenizer.save(folder)
        files = {path.name: path.read_text(encoding="utf-8") for path in Path(folder).iterdir()}
        files = json.loads(world.broadcast(json.dumps(files)))
        if task is None:
            for name, text in files.items():
                (Path(folder) / name).write_text(text, encoding="utf-8")
            task = make_task(recipe, tokenizer=load_tokenizer(folder))
    return task


def _fit_ngram(model: NGram, task: Task, run: Run, before: Callable[[Model], None], say: OnMessage) -> Result:
    """A model that counts needs no steps."""
    if task.recipe.train.parallel != "none":
        raise ConfigError("an n-gram is counted by one process; leave train.parallel at 'none'")
    if model.config.smoothing == "given":
        raise ConfigError(
            "model.smoothing='given' is of n-grams that came with probabilities; to count, set kneser-ney"
        )
    before(model)
    Run.create(run.path, task.recipe.to_toml())
    run.log(event="start", **environment(model.device), data=task.fingerprints)
    n_tokens = sum(len(corpus.train) for corpus, _ in task.prepared)
    started = time.monotonic()
    with stop_request() as stop:
        model.fit_texts(task.texts())
        seconds, is_stopped = time.monotonic() - started, stop.is_set()
        sizes = ", ".join(f"{len(model.column('log_p', k)):,}" for k in range(1, model.config.order + 1))
        say(f"counted     {sizes} n-grams of 1 to {model.config.order} tokens, {n_tokens / seconds:,.0f} tokens/s")
        held_out = None if is_stopped else task.validation
        score = None if held_out is None else held_out.score(lambda batch: batch_nll(model, batch))
        facts = {} if score is None else {"merit": score.selection_loss, **score.to_dict()}
        position = TrainerProgress(n_tokens=n_tokens, seconds=seconds, score=facts)
        write_checkpoint(model, run.checkpoint_dir(0), position.to_dict(), {})
        event = "interrupted" if is_stopped else "end"
        run.log(event=event, step=0, seconds=seconds, train_tokens=n_tokens, n_params=model.n_params, **facts)
    return Result(model.eval(), run.path, run.checkpoint_dir(0), score, 0, seconds, n_tokens, interrupted=is_stopped)


def _say_model(model: Model, recipe: Recipe, device: torch.device, world: DistContext, say: OnMessage) -> None:
    where = f"on {device} in {product_precision(device, recipe.train.dtype)}"
    ranks = "" if world.size == 1 else f", {world.size} ranks ({world.parallel})"
    say(f"model       {type(model).__name__}, {model.n_params:,} parameters, {where}{ranks}")
