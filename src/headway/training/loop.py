"""The training loop for causal language models: read a batch, predict, descend, now and then look at held-out text.

    for step in range(steps):
        loss = cross_entropy(model(inputs), targets)
        loss.backward();  clip;  optimizer.step()

Batches depend on (seed, step) alone. Ctrl-C and SIGTERM end the run after the step in progress, with a checkpoint.
"""

import math
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from headway import __version__
from headway.config import GPTConfig, NGramConfig, Recipe, TokenizerConfig
from headway.data import Split, load_split, locate, random_windows
from headway.devices import parse_device
from headway.errors import ConfigError, HeadwayError
from headway.models import GPT, NGram, create
from headway.tokenizers import Tokenizer, load_tokenizer
from headway.tokenizers import train as train_tokenizer
from headway.training.checkpoint import Run, free_name
from headway.training.evaluation import Score, evaluate
from headway.training.optim import adamw
from headway.training.schedule import warmup_cosine

LOG_EVERY = 10  # steps between lines of log.jsonl: reading the loss waits for the device


@dataclass(frozen=True)
class Progress:
    """What is known after a step, for whoever shows it."""

    step: int  # steps done
    steps: int
    share: float  # of the run that is done, 0 to 1: by steps or, with a time limit, by the clock
    seconds: float
    loss: float  # nats per token, smoothed over some twenty steps
    lr: float
    grad_norm: float
    tokens_per_second: float
    score: Score | None = None  # held-out text, on the steps that look at it

    @property
    def seconds_left(self) -> float:
        return self.seconds * (1 - self.share) / self.share if self.share else math.inf


@dataclass(frozen=True)
class Result:
    model: GPT | NGram
    path: Path  # the run
    checkpoint: Path
    score: Score | None  # on held-out text; none if the run was interrupted
    steps: int
    seconds: float
    n_tokens: int
    interrupted: bool = False


Report = Callable[[Progress], None]
Say = Callable[[str], None]


def train(
    recipe: Recipe,
    *,
    out: str | Path | None = None,
    report: Report = lambda progress: None,
    say: Say = lambda line: None,
    before: Callable[[GPT | NGram], None] = lambda model: None,
) -> Result:
    """Train as the recipe says, into the folder `out` (by default the next free `runs/NAME`).

    `report` hears of every step, `say` of every stage; `before` gets the model before its first step.
    """
    if not isinstance(recipe.model, GPTConfig | NGramConfig):
        raise ConfigError(
            f"`train` teaches causal language models (gpt, ngram) so far, not {type(recipe.model).__name__}; "
            f"set model.name=gpt or a GPT preset"
        )
    device, dtype = parse_device(recipe.train.device), recipe.train.dtype
    place = Run.check_free(out or free_name(Path("runs") / "train"))  # before any long work
    split = load_split(recipe.data)
    say(f"text        {recipe.data.path}: {_size(split.train)} to learn from, {_size(split.valid)} held out")
    tokenizer = prepare_tokenizer(recipe.tokenizer, split)
    say(f"tokenizer   {recipe.tokenizer.path or recipe.tokenizer.kind}, {tokenizer.vocab_size:,} tokens")
    config = recipe.model.replace(
        vocab_size=tokenizer.vocab_size, bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id
    )  # the vocabulary is the tokenizer's, whatever the preset's was
    data = recipe.data.replace(path=locate(recipe.data.path, recipe.data.root), root=None)  # to be found again
    recipe = recipe.replace(model=config, data=data)
    torch.manual_seed(recipe.train.seed)
    model = create(config, device=device)
    assert isinstance(model, GPT | NGram)
    model.tokenizer = tokenizer
    stream = torch.tensor(tokenizer.stream(split.train))
    say(
        f"model       {type(model).__name__}, {model.n_params:,} parameters, on {device} in {_precision(device, dtype)}"
    )
    before(model)

    run = Run.create(place, recipe.to_toml())
    run.log(
        event="start",
        headway=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        device=str(device),
        seed=recipe.train.seed,
        n_params=model.n_params,
        corpus_tokens=len(stream),
    )
    started = time.monotonic()
    with _stop_request() as stop:  # around scoring and saving too: what was learned is not lost to a late Ctrl-C
        if isinstance(model, NGram):
            model.fit(stream)
            step, n_tokens = 0, len(stream)
        else:
            step, n_tokens = _descend(model, stream, split, recipe, run, stop, report)
        seconds, was_stopped = time.monotonic() - started, stop.is_set()
        score = None if was_stopped else evaluate(model, split.valid, batch_size=recipe.eval.batch_size)
        facts = {"seconds": round(seconds, 3), "train_tokens": n_tokens, "seed": recipe.train.seed}
        facts |= {} if score is None else score.to_dict()
        checkpoint = run.save(model, step, **facts)
        run.log(event="interrupted" if was_stopped else "end", step=step, **facts)
    return Result(model.eval(), run.path, checkpoint, score, step, seconds, n_tokens, interrupted=was_stopped)


def _descend(
    model: GPT, stream: Tensor, split: Split, recipe: Recipe, run: Run, stop: threading.Event, report: Report
) -> tuple[int, int]:
    """The loop itself. Returns the steps made and the tokens seen."""
    config, device = recipe.train, model.device
    optimizer = adamw(model, config)
    model.train()
    smooth, n_tokens, seconds = math.nan, 0, 0.0
    started = time.monotonic()
    for step in range(config.steps):
        share = _share(step, seconds, config.steps, config.max_seconds)
        lr = warmup_cosine(step, share, lr=config.lr, min_lr=config.min_lr, warmup_steps=config.warmup_steps)
        for group in optimizer.param_groups:
            group["lr"] = lr
        inputs, targets = random_windows(stream, model.config.context, config.batch_size, seed=config.seed, step=step)
        inputs, targets = inputs.to(device), targets.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=_precision(device, config.dtype) == "bfloat16"):
            logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        value = loss.item()
        if not math.isfinite(value):
            raise HeadwayError(
                f"the loss is {value} at step {step} (learning rate {lr:.2g}): training has diverged; "
                f"try a smaller train.lr than {config.lr} or more train.warmup_steps"
            )
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip or math.inf)
        optimizer.step()
        optimizer.zero_grad()

        n_tokens += inputs.numel()
        smooth = value if math.isnan(smooth) else 0.95 * smooth + 0.05 * value
        seconds = time.monotonic() - started
        done = step + 1
        share = _share(done, seconds, config.steps, config.max_seconds)
        is_last = share >= 1 or stop.is_set()
        score = None
        if recipe.eval.every and done % recipe.eval.every == 0 and not is_last:
            score = evaluate(model, split.valid, batch_size=recipe.eval.batch_size)
            run.log(step=done, **score.to_dict())
        if done % LOG_EVERY == 0 or is_last:
            speed = n_tokens / seconds
            run.log(step=done, loss=value, lr=lr, grad_norm=float(norm), tokens_per_second=speed, seconds=seconds)
        report(
            Progress(done, config.steps, share, seconds, smooth, lr, float(norm), n_tokens / max(seconds, 1e-9), score)
        )
        if is_last:
            break
    return done, n_tokens


def _share(step: int, seconds: float, steps: int, max_seconds: float | None) -> float:
    """How much of the run is done: by steps or, where that is further, by the clock."""
    return max(step / steps, seconds / max_seconds if max_seconds else 0.0)


def _precision(device: torch.device, dtype: str) -> str:
    return ("bfloat16" if device.type == "cuda" else "float32") if dtype == "auto" else dtype


def prepare_tokenizer(config: TokenizerConfig, split: Split) -> Tokenizer:
    """The one the recipe names, or a new one made from the training text alone."""
    return load_tokenizer(config.path) if config.path else train_tokenizer(config.kind, split.train, config.vocab_size)


@contextmanager
def _stop_request() -> Iterator[threading.Event]:
    """Ctrl-C or SIGTERM sets the event instead of tearing a step apart; a second Ctrl-C does interrupt."""
    stop = threading.Event()

    def ask(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals are the main thread's business
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _size(documents: list[str]) -> str:
    n_bytes = sum(len(document.encode()) for document in documents)
    count = f"{len(documents)} document{'s' if len(documents) != 1 else ''}"
    return f"{n_bytes / 1e6:.2f} MB in {count}" if n_bytes >= 10_000 else f"{n_bytes:,} bytes in {count}"
