"""Options of noisy-channel reranking, for the verbs that translate."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from headway.cli.option_use import OnlyWith, OnlyWithout
from headway.runs import Run

if TYPE_CHECKING:
    from headway.data.records import Pair
    from headway.generation.noisy_channel import NoisyChannelReranker


_NEEDS_RERANKER = OnlyWith("--reverse-model", "--lm", why="needs a reranker: add --reverse-model or --lm")


@dataclass(frozen=True)
class RerankingFlags:
    section: ClassVar = "Reranking"

    reverse_model: Annotated[str | None, typer.Option(help="Rerank the beams with a model that translates back.")] = (
        None
    )
    lm: Annotated[str | None, typer.Option("--lm", help="Rerank the beams with a language model of the target.")] = None
    weights: Annotated[
        str | None,
        typer.Option(help="Weights of the reranker. Default: direct=1,channel=0.5,lm=0.2,length=0."),
        _NEEDS_RERANKER,
    ] = None
    tune: Annotated[
        str | None,
        typer.Option(help="Tune the weights by BLEU on valid (the run's validation split) or on pairs: val.{en,de}."),
        _NEEDS_RERANKER,
        OnlyWithout("--weights", why="cannot be combined with --weights, which it would replace"),
    ] = None

    def check(self, num_beams: int | None) -> None:
        """Refuse flags that contradict each other."""
        if self.reverse_model is None and self.lm is None:
            return
        if num_beams == 1:
            raise typer.BadParameter("one beam leaves nothing to rerank: try --num-beams 10", param_hint="--num-beams")
        for flag, value, term in (("--reverse-model", self.reverse_model, "channel"), ("--lm", self.lm, "lm")):
            if value is None and re.search(rf"\b{term}\s*=", self.weights or ""):
                raise typer.BadParameter(f"{term} is the weight of {flag}: add {flag} too", param_hint="--weights")

    def load(
        self, model: Any, name: str, *, num_beams: int | None, batch_size: int, device: str, dtype: str
    ) -> "NoisyChannelReranker | None":
        """The reranker for the translations of the model at the path `name`, with tuned weights if --tune asks."""
        if self.reverse_model is None and self.lm is None:
            return None
        from headway.display import print_status
        from headway.evaluation import metrics
        from headway.generation.noisy_channel import load_reranker
        from headway.generation.translate import DEFAULT_BEAMS, tune_reranker

        paths = {"reverse_model": self.reverse_model, "lm": self.lm}
        reranker = load_reranker(name, **paths, weights=self.weights or "", device=device, dtype=dtype)
        if self.tune is None:
            return reranker
        pairs = _tuning_pairs(name, self.tune)
        print_status(f"tuning on {len(pairs):,} pairs …")
        beams = num_beams or DEFAULT_BEAMS
        tuned = tune_reranker(model, reranker, pairs, metrics.bleu, num_beams=beams, batch_size=batch_size)
        print_status(f"--weights {tuned.weights}  BLEU {tuned.before:.2f} → {tuned.after:.2f} on these pairs")
        return replace(reranker, weights=tuned.weights)


def _tuning_pairs(name: str, tune: str) -> "list[Pair]":
    """The validation pairs of a run, or pairs at a path, in the columns that the run was trained on."""
    from headway.config import load_recipe
    from headway.data.sources import open_pairs
    from headway.training.record_datasets import load_pairs

    recipe = load_recipe(Path(name)) if Run.exists(name) else None
    if tune != "valid":
        return list(open_pairs(tune, None if recipe is None else recipe.data.pairs))
    if recipe is None:
        raise typer.BadParameter(
            f"{name} is not a run, so it has no validation split: name pairs such as val.{{en,de}}", param_hint="--tune"
        )
    return load_pairs(recipe, "valid")
