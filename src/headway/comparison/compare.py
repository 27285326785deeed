"""Train several models on the same data, with the same tokenizer and the same budget, and score them alike.

    tokenizer = trained once, on the training split
    for each model:  train(its recipe, for the budget's tokens or seconds);  score(its best checkpoint)

Each model is an ordinary run in its own folder, which `headway eval`, `generate` and `show` open. Results are read back
from these folders, so a run that was trained earlier can take part as well.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from headway.comparison.budget import (
    Budget,
    SharedSettings,
    data_kind,
    iter_texts,
    shared_recipe,
    shared_tokenizer,
)
from headway.comparison.lineup import ModelTemplate
from headway.comparison.manifest import (
    OWN_SETTINGS,
    check_same_recipes,
    check_same_settings,
    digest,
    write_manifest,
)
from headway.comparison.results import Comparison, CurvePoint, ModelResult
from headway.comparison.scoring import Evaluator, ScoringOptions, make_evaluator
from headway.comparison.selection import (
    Candidate,
    Overrides,
    check_overrides,
    find_candidates,
    is_finished,
    leakage_warning,
    shared_context,
)
from headway.config import NGramConfig, Recipe, load_recipe
from headway.costs import flops_per_token
from headway.errors import CheckpointError
from headway.files import free_name, non_finite_to_null, write_text
from headway.models import load
from headway.runs import Run
from headway.tokenizers import Tokenizer
from headway.training.progress import OnMessage, OnStep
from headway.training.train import train


def compare(
    names: Sequence[str] = (),
    *,
    data: str = "pydocs",
    params: int | None = None,
    tokens: int | None = None,
    seconds: float | None = None,
    context: int | None = None,
    settings: Sequence[str] = (),
    long_data: str | None = None,
    limit: int = 1000,
    num_beams: int = 1,
    prompt: str | None = None,
    sample_tokens: int = 50,
    out: str | Path | None = None,
    resume: bool = False,
    on_message: OnMessage = lambda line: None,
    on_step: OnStep = lambda progress: None,
) -> Comparison | None:
    """Train and score several models on the same data; returns None if training was interrupted.

    `names` are templates (`TEXT_TEMPLATES`, `PAIR_TEMPLATES`), recipes, TOML files, and runs, which are scored as they
    are; the default is every template for this kind of data. `settings` are those of recipes, for all models
    ("train.seed=2"; a setting of `model` for those that have it) or for one ("gpt:model.dropout=0.1").
    Sequence-to-sequence models translate the first `limit` sources of the evaluation split, and as many of
    `long_data`, a second data source with longer sentences. With `resume`, models that are finished in `out` are not
    trained again.
    """
    setup = _set_up(
        names,
        data,
        Budget(params, tokens, seconds),
        context,
        Overrides.parse(settings),
        ScoringOptions(long_data, limit, num_beams, prompt, sample_tokens),
    )
    out_dir = Path(out) if out is not None else free_name(Path("runs") / "compare")
    if out_dir.exists() and any(out_dir.iterdir()) and not resume:
        raise CheckpointError(f"{out_dir} already exists; choose another folder with --out, or continue with --resume")
    shared, recipes = _prepare(setup, out_dir, on_message)
    if not _train_all(recipes, out_dir, resume, on_message, on_step):
        return None
    return _score_all(setup, shared, recipes, out_dir, on_message)


@dataclass(frozen=True)
class _Setup:
    """A comparison whose arguments are checked, before anything is written."""

    data: str
    recipe: Recipe
    kind: str
    budget: Budget
    context: int
    overrides: Overrides
    candidates: dict[str, Candidate]
    evaluator: Evaluator

    @property
    def configures_tokenizer(self) -> bool:
        return any(setting.startswith("tokenizer.") for setting in self.overrides.shared)

    def manifest(self) -> dict[str, Any]:
        splits = (iter_texts(self.recipe, self.kind, split) for split in ("train", self.evaluator.split))
        return {
            "data": self.data,
            **asdict(self.budget),
            "context": self.context,
            "settings": self.overrides.shared,
            OWN_SETTINGS: self.overrides.by_model,
            "content": digest(chain.from_iterable(splits)),
        }


def _set_up(
    names: Sequence[str],
    data: str,
    budget: Budget,
    context: int | None,
    overrides: Overrides,
    options: ScoringOptions,
) -> _Setup:
    recipe = shared_recipe(data, overrides.shared)
    kind = data_kind(recipe.data)
    candidates = find_candidates(names, kind)
    check_overrides(overrides, candidates)
    context = shared_context(context, kind, candidates)
    evaluator = make_evaluator(recipe, kind, context, options)
    return _Setup(data, recipe, kind, budget, context, overrides, candidates, evaluator)


def _prepare(setup: _Setup, out_dir: Path, on_message: OnMessage) -> tuple[SharedSettings, dict[str, Recipe]]:
    """Train the tokenizer, derive every recipe and write the manifest. Nothing is written if anything is wrong."""
    manifest = setup.manifest()
    finished = [name for name in setup.candidates if is_finished(out_dir / name)]
    check_same_settings(out_dir, manifest, finished)
    tokenizer_dir = out_dir / "tokenizer"
    tokenizer = shared_tokenizer(setup.recipe, setup.kind, tokenizer_dir, is_configured=setup.configures_tokenizer)
    on_message(f"tokenizer   {tokenizer.kind}, {tokenizer.vocab_size:,} tokens, shared by all models")
    shared = SharedSettings(setup.recipe, setup.kind, setup.context, setup.budget, tokenizer, tokenizer_dir)
    recipes = {}
    for name, candidate in setup.candidates.items():
        if not isinstance(candidate, Path):
            own_settings = setup.overrides.by_model.get(name, [])
            recipes[name] = shared.recipe_for(candidate, setup.overrides.shared, own_settings)
        elif warning := leakage_warning(candidate, setup.recipe.data):
            on_message(f"warning     {name} {warning}")
    manifest["recipes"] = check_same_recipes(out_dir, recipes, finished)
    write_manifest(out_dir, manifest, tokenizer)
    return shared, recipes


def _train_all(
    recipes: Mapping[str, Recipe], out_dir: Path, resume: bool, on_message: OnMessage, on_step: OnStep
) -> bool:
    """Train one model after the other, skipping finished ones; returns False if training was interrupted."""
    for number, (name, recipe) in enumerate(recipes.items(), 1):
        if is_finished(out_dir / name):
            on_message(f"finished    {name}, in an earlier run")
            continue
        on_message(f"\n{name}, {number} of {len(recipes)}")
        is_ngram = isinstance(recipe.model, NGramConfig)
        if is_ngram:  # fitted in one pass: an interrupted one starts over
            shutil.rmtree(out_dir / name, ignore_errors=True)
        result = train(
            recipe, out=out_dir / name, resume=resume and not is_ngram, on_message=on_message, on_step=on_step
        )
        if result.interrupted:
            return False
    return True


def _score_all(
    setup: _Setup, shared: SharedSettings, recipes: Mapping[str, Recipe], out_dir: Path, on_message: OnMessage
) -> Comparison:
    """Score every model, and write compare.json."""
    evaluator, results = setup.evaluator, []
    for name, candidate in setup.candidates.items():
        on_message(f"scoring     {name}")
        run = candidate if isinstance(candidate, Path) else out_dir / name
        results.append(_score_run(name, run, candidate, evaluator, shared.tokenizer))
    comparison = Comparison(
        data=setup.data,
        kind=setup.kind,
        split=evaluator.split,
        size=evaluator.size,
        context=setup.context,
        vocab_size=shared.tokenizer.vocab_size,
        budget=setup.budget.summary if recipes else "as they were trained",
        results=results,
        metric=evaluator.metric,
        longest=evaluator.longest_train_source(shared.tokenizer) if recipes else None,
        prompt=evaluator.prompt,
        path=str(out_dir),
    )
    document = json.dumps(non_finite_to_null(comparison.to_dict()), indent=1, ensure_ascii=False)
    write_text(out_dir / "compare.json", document + "\n")
    return comparison


def _score_run(name: str, run: Path, candidate: Candidate, evaluator: Evaluator, tokenizer: Tokenizer) -> ModelResult:
    """The result of one run: its cost from the log, its scores from its best checkpoint."""
    model, recipe, log = load(run, device="auto"), load_recipe(run), Run(run).read_log()
    start, end = (next(record for record in log[::-1] if record.get("event") == event) for event in ("start", "end"))
    n_tokens, steps = int(end["train_tokens"]), int(end["step"])
    seq_len = recipe.train.seq_len or recipe.model.context or 0
    token_flops = start.get("flops_per_token") or flops_per_token(model.config, seq_len)
    template = candidate if isinstance(candidate, ModelTemplate) else None
    scores, by_length = evaluator.score(model, tokenizer)
    return ModelResult(
        name=name,
        year=template.year if template else None,
        title=template.title if template else recipe.description,
        run=str(run),
        n_params=model.n_params,
        n_tokens=n_tokens,
        steps=steps,
        flops=n_tokens * token_flops,
        seconds=float(end["seconds"]),
        scores=scores,
        curve=[] if isinstance(candidate, Path) else _training_curve(log, n_tokens, steps, token_flops),
        by_length=by_length,
        sample=evaluator.sample(model),
    )


def _training_curve(
    log: Sequence[Mapping[str, Any]], n_tokens: int, steps: int, token_flops: float
) -> list[CurvePoint]:
    """The validation scores of a run, and what its training had cost until then."""
    points = []
    for record in log:
        score = record.get("bits_per_byte", record.get("nats_per_target"))
        if "event" not in record and score is not None and steps:
            tokens = n_tokens * record["step"] / steps
            points.append(CurvePoint(tokens, tokens * token_flops, record["seconds"], score))
    return points
