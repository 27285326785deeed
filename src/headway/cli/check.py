"""headway check resume | cached | batched | contract | homework"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.help import CommandApp
from headway.cli.options import Device, Dtype, Json, Settings, print_json, warn_of_leak
from headway.cli.recipe_notes import load_recipe_with_notes
from headway.errors import ConfigError
from headway.runs import Run
from headway.temporary_files import TemporaryFolder

if TYPE_CHECKING:
    from headway.evaluation.invariants import CheckInputs
    from headway.models import Model

ModelArgument = Annotated[str, typer.Argument(help="A model directory, or a run such as runs/demo.")]
Text = Annotated[
    str | None,
    typer.Argument(help="The text; for a translation model, the source. Default: from the run's validation split."),
]
Atol = Annotated[float, typer.Option(min=0, help="Largest difference allowed, in nats.")]

app = CommandApp(help="Check resuming, caching, batching, the contract of a model, or homework.")

MAX_SEED = 2**63  # of torch.Generator


@app.command(short_help="Check that a killed and resumed run equals an uninterrupted one.")
def resume(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe by name, a TOML file, or a run.")],
    settings: Settings = None,
    steps: Annotated[int, typer.Option(min=2, help="Steps to train.")] = 36,
    kills: Annotated[int, typer.Option(min=1, help="How often to kill the run, at random steps.")] = 3,
    ranks: Annotated[int, typer.Option(min=1, help="Number of processes, started with torchrun.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Seed of the random steps. Default: a new one.")] = None,
    out: Annotated[Path | None, typer.Option(help="Keep both runs in this new folder. Default: delete them.")] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Check that a killed and resumed run equals an uninterrupted one, bit for bit.

    Trains twice: once undisturbed, and once killed with SIGKILL at random steps and resumed each time. Then compares
    weights, optimizer state and log. Exits with 0 if they are equal, with 1 if not. A time limit (train.max_seconds) is
    ignored, because a learning rate that follows the clock is not reproducible.

    \b
    Examples:
      headway check resume demo --kills 1 --steps 12 --json
      headway check resume demo --kills 1 --steps 8 --set train.dtype=bfloat16 --set train.grad_accum_steps=2
    """
    from headway.display import print_status
    from headway.training.resume_check import check_resume

    overrides = [*(settings or []), *([f"train.device={device}"] if device != "auto" else [])]
    config = load_recipe_with_notes(recipe, overrides, ignored=("train.steps", "train.max_seconds"))
    with TemporaryFolder() as temporary:
        folder = temporary if out is None else Run.check_free(out)
        folder.mkdir(parents=True, exist_ok=True)
        report = check_resume(config, folder, steps=steps, kills=kills, ranks=ranks, seed=seed, on_message=print_status)
    if json:
        print_json(report.to_dict())
    elif report.is_exact:
        print(f"exact: killed after steps {report.kills}, resumed from {report.resumed_from}; every bit is equal")
    else:
        print("NOT exact:\n" + "\n".join(f"  {line}" for line in report.differences))
    raise typer.Exit(0 if report.is_exact else 1)


@app.command(short_help="Check that decoding with a cache equals one forward pass.")
def cached(
    model: ModelArgument,
    text: Text = None,
    atol: Atol = 1e-4,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
) -> None:
    """Check that decoding token by token with a cache equals one forward pass.

    Compares the log-probabilities of the whole vocabulary after every token of a text. Exits with 0 if none differs by
    more than --atol, with 1 if one does. In bfloat16, sums are rounded differently: raise --atol.

    \b
    Examples:
      headway check cached runs/demo
      headway check cached runs/reverse "abcdef" --json
      headway check cached runs/words "the cat sat"
    """
    from headway.evaluation.invariants import max_cached_difference

    loaded, inputs = _load(model, text, device, dtype)
    difference = max_cached_difference(loaded, inputs.ids, inputs.source)
    if difference > atol:
        warn_of_leak(loaded)  # then they must differ: decoding is causal
    _report(difference, atol, model, len(inputs.ids), "decoding with a cache and one forward pass", json)


@app.command(short_help="Check that a text in a padded batch scores the same as alone.")
def batched(
    model: ModelArgument,
    text: Text = None,
    atol: Atol = 1e-4,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
) -> None:
    """Check that a text in a padded batch gets the same log-probabilities as alone.

    Exits with 0 if no log-probability differs by more than --atol, with 1 if one does.

    \b
    Examples:
      headway check batched runs/demo
      headway check batched runs/reverse "abcdef"
    """
    from headway.evaluation.invariants import max_batched_difference

    loaded, inputs = _load(model, text, device, dtype)
    n = len(inputs.ids)
    prefixes = [inputs.ids[:length] for length in (n, max(1, n // 2), 1, max(1, n - 1))]
    difference = max_batched_difference(loaded, prefixes, inputs.source)
    _report(difference, atol, model, n, "a padded batch and each text alone", json)


@app.command(short_help="Check the contract that sampling, search and evaluation rely on.")
def contract(
    model: Annotated[str, typer.Argument(help="A model directory, a run, or a family or preset (at toy size).")],
    only: Annotated[
        str | None, typer.Option(help="Check only these properties, such as leak,padding. Default: all.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=2, help="Rows of random tokens.")] = 4,
    length: Annotated[int, typer.Option(min=4, help="Tokens of a row, at most the model's context.")] = 12,
    atol: Annotated[
        float | None, typer.Option(min=0, help="Largest difference allowed, in nats. Default: 1e-4, or rounding.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random tokens and of new weights.")] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
) -> None:
    """Check that a model keeps the contract that sampling, search and evaluation rely on.

    A future token never changes a past logit, padding and batching change nothing, step by step equals one forward
    pass, states can be copied and reordered, and more: docs/contract.md lists the properties. Name a family of your own
    with --plugin. Exits with 0 if all hold, with 1 if one fails.

    \b
    Examples:
      headway check contract gpt
      headway check contract runs/demo --only leak,padding,step
      headway check contract lstm --batch-size 3 --length 8 --json
    """
    from rich.console import Console

    from headway.evaluation.contract import check_contract

    if not 0 <= seed < MAX_SEED:
        raise typer.BadParameter(f"{seed} is not from 0 to 2^63 - 1", param_hint="--seed")
    loaded = _load_or_create(model, seed, device, dtype)
    with Console(stderr=True).status("checking") as status:  # shows nothing unless stderr is a terminal
        report = check_contract(
            loaded,
            only=None if only is None else [name.strip() for name in only.split(",")],
            batch_size=batch_size,
            length=length,
            atol=atol,
            seed=seed,
            on_check=lambda name: status.update(f"checking {name}"),
        )
    if json:
        print_json(report.to_dict())
    else:
        print(report)
    raise typer.Exit(0 if report.passed else 1)


@app.command(short_help="Check your own Transformer part by part, and name the mistake.")
def homework(
    file: Annotated[Path, typer.Argument(help="Your solution: a .py file. It is imported, so its code runs.")],
    json: Json = False,
) -> None:
    """Check your own Transformer part by part, and say what is wrong and how.

    FILE is examples/homework/homework.py with its blanks filled in. Every part is compared with a reference that has
    the same weights; the parts below it are the reference's, so that one mistake does not spoil the rest. FILE is
    executed with your rights: check only code that you trust. Exits with 0 if all parts are right, with 1 if not.

    \b
    Examples:
      headway check homework mine.py
      headway check homework mine.py --json
    """
    from headway.exercises.homework import check_homework

    report = check_homework(file)
    print_json(report.to_dict()) if json else print(report)
    raise typer.Exit(0 if report.passed else 1)


def _load_or_create(name: str, seed: int, device: str, dtype: str) -> "Model":
    """A stored model, or a new one of a family or preset, at toy size."""
    import headway
    from headway.config import FAMILIES
    from headway.devices import parse_device, parse_dtype
    from headway.models.tiny import create_tiny

    if Path(name).exists():
        return headway.load(name, device=device, dtype=dtype)
    try:
        tiny = create_tiny(name, seed=seed)
    except ConfigError as error:
        if name in FAMILIES:
            raise
        message = f"{name} is neither a model directory nor a run: {error}"
        hint = "A family of your own needs --plugin MODULE."
        raise typer.BadParameter(f"{message.removesuffix('.')} {hint}", param_hint="MODEL") from None
    return tiny.to(parse_device(device), parse_dtype(dtype))


def _load(name: str, text: str | None, device: str, dtype: str) -> "tuple[Model, CheckInputs]":
    """The model, and the tokens to compare it on."""
    import headway
    from headway.evaluation.invariants import encode_check_text

    loaded = headway.load(name, device=device, dtype=dtype)
    return loaded, encode_check_text(loaded, _validation_text(name, loaded) if text is None else text)


def _validation_text(name: str, model: "Model") -> str:
    """The first text of the run's validation split, or of its training split if nothing is held out."""
    from headway.config import load_recipe
    from headway.data import read_split
    from headway.models.base import Seq2SeqLM
    from headway.training.record_datasets import load_pairs

    if not Run.exists(name):
        raise typer.BadParameter(f"{name} is not a run, so it has no held-out text: name a text", param_hint="TEXT")
    recipe = load_recipe(Path(name))
    if isinstance(model, Seq2SeqLM):
        return load_pairs(recipe, "valid")[0].source
    splits = (read_split(recipe.data, "valid"), read_split(recipe.data, "train"))
    return next(document for documents in splits for document in documents if document.strip())


def _report(difference: float, atol: float, model: str, n_tokens: int, compared: str, json: bool) -> None:
    holds = difference <= atol
    if json:
        print_json({"model": model, "tokens": n_tokens, "difference": difference, "atol": atol, "holds": holds})
    else:
        verdict = "equal" if holds else "NOT equal"
        print(f"{verdict}: {compared}, over {n_tokens} tokens; largest difference {difference:.1e} nats")
    raise typer.Exit(0 if holds else 1)
