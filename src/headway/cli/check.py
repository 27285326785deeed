"""headway check"""

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli.options import Device, Dtype, Json, print_json
from headway.runs import Run

ModelArgument = Annotated[str, typer.Argument(help="A model directory, or a run such as runs/demo.")]
Text = Annotated[
    str | None, typer.Argument(help="The text; of a translator, what it reads. Default: some of what the run held out.")
]
Atol = Annotated[float, typer.Option(help="The largest difference allowed, in nats; 0 or more.")]
N_TOKENS = 100  # of a text that are compared

app = typer.Typer(
    help="Guarantees that you can run yourself.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)


@app.command()
def resume(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe by name, a TOML file, or a run.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting: --set train.grad_accum_steps=2. Repeatable.")
    ] = None,
    steps: Annotated[int, typer.Option(min=2, help="Steps to train.")] = 36,
    kills: Annotated[int, typer.Option(min=1, help="How often the run is killed, at random steps.")] = 3,
    ranks: Annotated[int, typer.Option(min=1, help="Processes, as torchrun would start them.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Of the random steps. Default: another each time.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Keep both runs in this new folder. Default: they are removed.")
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Check that a run which was killed and resumed is the run that was not.

    Trains twice: once undisturbed, and once killed with SIGKILL at random steps and resumed each time. Then compares
    the weights, the optimiser's memory and the log, bit for bit. Exit code 0 if they are the same, 1 if not.

    A time limit (train.max_seconds) is left out, since a learning rate that follows the clock never repeats itself.

    \b
    Examples:
      headway check resume demo --kills 1 --steps 12 --json
      headway check resume demo --kills 1 --steps 8 --set train.dtype=bfloat16 --set train.grad_accum_steps=2
    """
    from headway.cli.display import say
    from headway.config import load_recipe
    from headway.training.resume_check import check_resume

    overrides = [*(settings or []), *([f"train.device={device}"] if device != "auto" else [])]
    plan = load_recipe(recipe, overrides)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if out is None else Run.check_free(out)
        folder.mkdir(parents=True, exist_ok=True)
        report = check_resume(plan, folder, steps=steps, kills=kills, ranks=ranks, seed=seed, say=say)
    if json:
        print_json(report.to_dict())
    elif report.is_exact:
        print(f"exact: killed after steps {report.kills}, resumed from {report.resumed_from}; every bit is the same")
    else:
        print("NOT exact:\n" + "\n".join(f"  {line}" for line in report.differences))
    raise typer.Exit(0 if report.is_exact else 1)


@app.command()
def cached(
    model: ModelArgument,
    text: Text = None,
    atol: Atol = 1e-4,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
) -> None:
    """Check that a model says the same token by token, from what it remembers, as all at once.

    Compares the log-probabilities of the whole vocabulary after every token of a text. Exit code 0 if none differs by
    more than --atol, 1 if one does. In bfloat16 sums are rounded differently: allow for it.

    \b
    Examples:
      headway check cached runs/demo
      headway check cached runs/reverse "abcdef" --json
      headway check cached runs/words "the cat sat"
    """
    from headway.evaluation.invariants import max_cached_difference

    loaded, ids, source = _loaded(model, text, device, dtype)
    _report(max_cached_difference(loaded, ids, source), atol, model, len(ids), "token by token as all at once", json)


@app.command()
def batched(
    model: ModelArgument,
    text: Text = None,
    atol: Atol = 1e-4,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
) -> None:
    """Check that a model says the same of a text in a batch, with padding, as of the text alone.

    \b
    Examples:
      headway check batched runs/demo
      headway check batched runs/reverse "abcdef"
    """
    from headway.evaluation.invariants import max_batched_difference

    loaded, ids, source = _loaded(model, text, device, dtype)
    rows = [ids, ids[: max(1, len(ids) // 2)], ids[:1], ids[: max(1, len(ids) - 1)]]
    _report(max_batched_difference(loaded, rows, source), atol, model, len(ids), "in a batch as alone", json)


def _loaded(name: str, text: str | None, device: str, dtype: str) -> tuple[Any, list[int], list[int] | None]:
    """The model, the tokens to compare it on, and their source where it has one."""
    import headway
    from headway.config import load_recipe
    from headway.data import read_split
    from headway.generation.source import decoder_start_id, encode_sources
    from headway.models.base import Seq2SeqLM
    from headway.training.task import load_pairs

    loaded: Any = headway.load(name, device=device, dtype=dtype)
    if loaded.tokenizer is None:
        raise typer.BadParameter(f"{name} has no tokenizer", param_hint="MODEL")
    has_recipe = Run.exists(name)
    if text is None and not has_recipe:
        raise typer.BadParameter(f"{name} is no run with held-out text of its own: give a text", param_hint="TEXT")
    if isinstance(loaded, Seq2SeqLM):
        text = load_pairs(load_recipe(Path(name)), "valid")[0].source if text is None else text
        (source,) = encode_sources(loaded, loaded.tokenizer, [text])
        if not source:
            raise typer.BadParameter("an empty text: there is nothing to compare", param_hint="TEXT")
        found = headway.translate(loaded, text, num_beams=1)[0].tokens
        return loaded, [decoder_start_id(loaded), *found][:N_TOKENS], source
    if text is None:
        text = next((d for d in read_split(load_recipe(Path(name)).data, "valid") if d.strip()), None)
        text = text or next(d for d in read_split(load_recipe(Path(name)).data, "train") if d.strip())
    limit = loaded.config.context or N_TOKENS
    return loaded, loaded.tokenizer.prompt(text)[: min(N_TOKENS, limit)], None


def _report(apart: float, atol: float, name: str, n_tokens: int, what: str, json: bool) -> None:
    holds = apart <= atol
    if json:
        print_json({"model": name, "tokens": n_tokens, "difference": apart, "atol": atol, "holds": holds})
    else:
        print(f"{'the same' if holds else 'NOT the same'} {what}: {n_tokens} tokens, at most {apart:.1e} nats apart")
    raise typer.Exit(0 if holds else 1)
