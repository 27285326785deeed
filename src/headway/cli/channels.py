"""The noisy channel as options, for the verbs that translate."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.runs import Run

if TYPE_CHECKING:
    from headway.data.records import Pair
    from headway.generation.noisy_channel import NoisyChannelReranker

Reverse = Annotated[
    str | None,
    typer.Option("--reverse-model", help="Rerank the beams by a model that translates back: a run or directory."),
]
LanguageModelOfTarget = Annotated[
    str | None, typer.Option("--lm", help="Rerank the beams by a language model of what is written, of any family.")
]
WeightsText = Annotated[
    str | None,
    typer.Option(
        "--weights", help="Of --reverse-model and --lm, such as direct=1,channel=0.5,lm=0.2,length=0 (the defaults)."
    ),
]
TuneOn = Annotated[
    str | None,
    typer.Option(
        "--tune", help="Find the weights by BLEU on pairs: valid (what the run held out) or data such as val.{en,de}."
    ),
]


def make_channel(
    model: Any,
    name: str,
    *,
    reverse_model: str | None,
    lm: str | None,
    weights: str | None,
    tune: str | None,
    num_beams: int | None,
    batch_size: int,
    device: str,
    dtype: str,
) -> "NoisyChannelReranker | None":
    """What reranks, as the flags say; None: nothing does."""
    if reverse_model is None and lm is None:
        for flag, value in (("--weights", weights), ("--tune", tune)):
            if value is not None:
                raise typer.BadParameter("weighs a --reverse-model or an --lm: give one", param_hint=flag)
        return None
    if num_beams == 1:
        raise typer.BadParameter("one beam leaves nothing to rerank: --num-beams 10", param_hint="--num-beams")
    for flag, value, term in (("--reverse-model", reverse_model, "channel"), ("--lm", lm, "lm")):
        if value is None and weights is not None and re.search(rf"\b{term}\s*=", weights):
            raise typer.BadParameter(f"{term} weighs what {flag} would give: give it too", param_hint="--weights")
    if weights is not None and tune is not None:
        raise typer.BadParameter("weights that are given, or ones to be found: one of the two", param_hint="--tune")
    import headway
    from headway.evaluation import metrics
    from headway.generation.noisy_channel import ChannelWeights, NoisyChannelReranker
    from headway.generation.translate import DEFAULT_BEAMS, tune_reranker
    from headway.models.base import Seq2SeqLM

    chosen = ChannelWeights() if weights is None else ChannelWeights.parse(weights)
    if reverse_model is not None:
        _check_back(name, reverse_model)
    reverse = None if reverse_model is None else headway.load(reverse_model, device=device, dtype=dtype)
    if reverse is not None and not isinstance(reverse, Seq2SeqLM):
        raise typer.BadParameter(f"{reverse_model} does not translate: that is for --lm", param_hint="--reverse-model")
    of_target = None if lm is None else headway.load(lm, device=device, dtype=dtype)
    if isinstance(of_target, Seq2SeqLM):
        raise typer.BadParameter(
            f"{lm} translates, and is no language model: that is for --reverse-model", param_hint="--lm"
        )
    made = NoisyChannelReranker(reverse, of_target, chosen)
    if tune is None:
        return made
    pairs = _pairs(name, tune)
    print(f"tuning on {len(pairs):,} pairs …", file=sys.stderr, flush=True)
    found = tune_reranker(model, made, pairs, metrics.bleu, num_beams=num_beams or DEFAULT_BEAMS, batch_size=batch_size)
    print(f"--weights {found.weights}  BLEU {found.before:.2f} → {found.after:.2f} there", file=sys.stderr, flush=True)
    return NoisyChannelReranker(reverse, of_target, found.weights)


def _pairs(name: str, tune: str) -> "list[Pair]":
    from headway.config import load_recipe
    from headway.data.sources import open_pairs
    from headway.training.task import load_pairs

    if tune == "valid":
        if not Run.exists(name):
            raise typer.BadParameter(f"{name} is no run that held pairs out: name some", param_hint="--tune")
        return load_pairs(load_recipe(Path(name)), "valid")
    plan = load_recipe(Path(name)) if Run.exists(name) else None
    return list(open_pairs(tune, None if plan is None else plan.data.pairs))


def sides(run: str) -> tuple[str, str] | None:
    """What a run reads and writes, by the endings of its files, where they say so."""
    if not Run.exists(run):
        return None
    from headway.config import load_recipe

    data = load_recipe(run).data
    found = re.search(r"\{([^{},]+),([^{},]+)\}", data.path)
    reads, writes = found.groups() if found else (Path(data.path).suffix[1:], Path(data.target_path or "").suffix[1:])
    return (reads, writes) if reads != writes and writes else None


def _check_back(model: str, reverse_model: str) -> None:
    onward, back = sides(model), sides(reverse_model)
    if onward is not None and onward == back:
        raise typer.BadParameter(
            f"{reverse_model} reads .{back[0]} and writes .{back[1]}, as {model} does; a channel translates back",
            param_hint="--reverse-model",
        )
