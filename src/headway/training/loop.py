"""The training loop for causal language models: read a batch, predict, descend, now and then look at held-out text.

    for step in range(steps):
        loss = cross_entropy(model(inputs), targets)
        loss.backward();  clip;  optimizer.step()

Batches depend on the seed and the step alone, and are made ahead by a thread. Ctrl-C and SIGTERM end the run after the
step in progress, with a checkpoint.
"""

import math
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from headway import __version__
from headway.config import GPTConfig, NGramConfig, Recipe, TokenizerConfig
from headway.data.batches import Batches, CausalBatch, Examples, prefetch
from headway.data.shards import Prepared, prepare_recipe
from headway.data.shards import Progress as Preparing
from headway.data.splits import located, read_part
from headway.data.windows import Mix, Windows, as_stream
from headway.devices import parse_device
from headway.errors import ConfigError, HeadwayError
from headway.files import free_name
from headway.models import GPT, NGram, create
from headway.tokenizers import Tokenizer, load_tokenizer
from headway.tokenizers import train as train_tokenizer
from headway.training.checkpoint import Run
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
    preparing: Callable[[Preparing], None] = lambda progress: None,
) -> Result:
    """Train as the recipe says, into the folder `out` (by default the next free `runs/NAME`).

    `report` hears of every step, `say` of every stage, `preparing` of text becoming tokens; `before` gets the model
    before its first step.
    """
    if not isinstance(recipe.model, GPTConfig | NGramConfig):
        raise ConfigError(
            f"`train` teaches causal language models (gpt, ngram) so far, not {type(recipe.model).__name__}; "
            f"set model.name=gpt or a GPT preset"
        )
    device, dtype = parse_device(recipe.train.device), recipe.train.dtype
    place = Run.check_free(out or free_name(Path("runs") / "train"))  # before any long work
    data = located(recipe.data)  # to be found again, wherever one stands
    tokenizer = prepare_tokenizer(recipe.tokenizer, read_part(data, "train"))
    say(f"tokenizer   {recipe.tokenizer.path or recipe.tokenizer.kind}, {tokenizer.vocab_size:,} tokens")
    prepared = prepare_recipe(data, tokenizer, report=preparing)
    held_out = list(read_part(data, "valid"))
    for document in held_out:
        tokenizer.lost_bytes(document)  # a tokenizer that cannot be scored is refused now, not after hours of training
    say(f"text        {_name(recipe)}: {_size(prepared)} to learn from, {_text_size(held_out)} held out")
    config = recipe.model.replace(
        vocab_size=tokenizer.vocab_size, bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id
    )  # the vocabulary is the tokenizer's, whatever the preset's was
    recipe = recipe.replace(model=config, data=data)
    torch.manual_seed(recipe.train.seed)
    model = create(config, device=device)
    assert isinstance(model, GPT | NGram)
    model.tokenizer = tokenizer
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
        corpus_tokens=sum(len(corpus.train) for corpus, _ in prepared),
        data=[corpus.meta["digest"] for corpus, _ in prepared],
    )
    started = time.monotonic()
    with _stop_request() as stop:  # around scoring and saving too: what was learned is not lost to a late Ctrl-C
        if isinstance(model, NGram):
            stream = torch.from_numpy(np.concatenate([as_stream(corpus.train) for corpus, _ in prepared]))
            model.fit(stream)
            step, n_tokens = 0, len(stream)
        else:
            step, n_tokens = _descend(model, batches_of(prepared, model, recipe), held_out, recipe, run, stop, report)
        seconds, was_stopped = time.monotonic() - started, stop.is_set()
        score = None if was_stopped else evaluate(model, held_out, batch_size=recipe.eval.batch_size)
        facts = {"seconds": round(seconds, 3), "train_tokens": n_tokens, "seed": recipe.train.seed}
        facts |= {} if score is None else score.to_dict()
        checkpoint = run.save(model, step, **facts)
        run.log(event="interrupted" if was_stopped else "end", step=step, **facts)
    return Result(model.eval(), run.path, checkpoint, score, step, seconds, n_tokens, interrupted=was_stopped)


def batches_of(prepared: list[tuple[Prepared, float]], model: GPT, recipe: Recipe) -> Batches[CausalBatch]:
    """Shuffled windows of the corpus, or of several in the proportions of their weights."""
    assert model.tokenizer is not None
    given = None if model.tokenizer.shares_boundary else model.tokenizer.bos_id  # rule 3 of tokenizers/base.py
    parts: list[tuple[Examples[CausalBatch], float]] = [
        (Windows(corpus.train, model.config.context, given=given), weight) for corpus, weight in prepared
    ]
    config = recipe.train
    if len(parts) == 1:
        return Batches(parts[0][0], config.batch_size, seed=config.seed)
    return Batches(Mix(parts), config.batch_size, seed=config.seed, shuffle=False)


def _descend(
    model: GPT,
    batches: Batches[CausalBatch],
    held_out: list[str],
    recipe: Recipe,
    run: Run,
    stop: threading.Event,
    report: Report,
) -> tuple[int, int]:
    """The loop itself. Returns the steps made and the tokens seen."""
    config, device = recipe.train, model.device
    optimizer = adamw(model, config)
    model.train()
    smooth, n_tokens, seconds = math.nan, 0, 0.0
    started = time.monotonic()
    for step, batch in zip(range(config.steps), prefetch(batches.iterate(), device=device), strict=False):
        share = _share(step, seconds, config.steps, config.max_seconds)
        lr = warmup_cosine(step, share, lr=config.lr, min_lr=config.min_lr, warmup_steps=config.warmup_steps)
        for group in optimizer.param_groups:
            group["lr"] = lr
        with torch.autocast(device.type, torch.bfloat16, enabled=_precision(device, config.dtype) == "bfloat16"):
            logits = model(batch.inputs)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten())
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

        n_tokens += batch.inputs.numel()
        smooth = value if math.isnan(smooth) else 0.95 * smooth + 0.05 * value
        seconds = time.monotonic() - started
        done = step + 1
        share = _share(done, seconds, config.steps, config.max_seconds)
        is_last = share >= 1 or stop.is_set()
        score = None
        if recipe.eval.every and done % recipe.eval.every == 0 and not is_last:
            score = evaluate(model, held_out, batch_size=recipe.eval.batch_size)
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


def prepare_tokenizer(config: TokenizerConfig, documents: Iterable[str]) -> Tokenizer:
    """The one the recipe names, or a new one made from the training text alone."""
    if config.path:
        return load_tokenizer(config.path)
    return train_tokenizer(config.kind, documents, config.vocab_size, **config.options)


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


def _name(recipe: Recipe) -> str:
    return " + ".join(recipe.data.mix) or recipe.data.path


def _size(prepared: list[tuple[Prepared, float]]) -> str:
    parts = [corpus.train for corpus, _ in prepared]
    n_tokens = sum(map(len, parts))
    return f"{_bytes(sum(p.n_bytes for p in parts), sum(p.n_documents for p in parts))}, {n_tokens:,} tokens,"


def _text_size(documents: list[str]) -> str:
    return _bytes(sum(len(document.encode()) for document in documents), len(documents))


def _bytes(n_bytes: int, n_documents: int) -> str:
    count = f"{n_documents:,} document{'s' if n_documents != 1 else ''}"
    return f"{n_bytes / 1e6:.2f} MB in {count}" if n_bytes >= 10_000 else f"{n_bytes:,} bytes in {count}"
