"""Train several models on the same data, with the same tokenizer and the same budget, and score them alike.

    tokenizer = trained once, on the training split
    for each model:  train(its recipe, for the budget's tokens, epochs or seconds);  score(its best checkpoint)

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

from torch import nn

from headway.comparison.budget import (
    Budget,
    SharedSettings,
    data_kind,
    iter_contents,
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
    GivenModel,
    ModelOrName,
    Overrides,
    check_overrides,
    find_candidates,
    is_finished,
    leakage_warning,
    missing_weights,
    own_settings,
    shared_context,
)
from headway.config import NGramConfig, Recipe, load_recipe
from headway.config.setting_use import unused_in_all, unused_settings
from headway.costs import flops_per_token
from headway.devices import parse_device
from headway.errors import CheckpointError
from headway.evaluation.leakage import sees_future
from headway.files import free_name, non_finite_to_null, write_text
from headway.models import load
from headway.models.base import tokenizer_of
from headway.runs import Run
from headway.tokenizers import Tokenizer
from headway.training.callbacks import Callbacks, progress_callbacks
from headway.training.progress import OnMessage, OnStep
from headway.training.threads import cpu_threads
from headway.training.train import train


def compare(
    models: Sequence[ModelOrName] = (),
    *,
    data: str = "pydocs",
    params: int | None = None,
    tokens: int | None = None,
    epochs: float | None = None,
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
    quiet: bool = False,
    on_message: OnMessage | None = None,
    on_step: OnStep | None = None,
) -> Comparison:
    """Train and score several models on the same data.

    `models` are names: of templates (`TEXT_TEMPLATES`, `PAIR_TEMPLATES`, `ENCODER_TEMPLATES`), of families you
    registered, of recipes and TOML files. Runs, and models that you pass themselves, are scored as they are. The
    default is every template for this kind of data, unless the weights it starts from are not installed. `settings` are
    those of recipes, for all models ("train.seed=2"; a setting of `model` for those that have it) or for one
    ("gpt:model.dropout=0.1"). A name with settings is a variant of its own: "gpt:model.norm=none" beside "gpt".
    The budget is a number of `seconds`; of `tokens`, for text and pairs; or of `epochs`, for all but text.
    Sequence-to-sequence models translate the first `limit` sources of the evaluation split, and as many of
    `long_data`, a second data source with longer sentences. With `resume`, models that are finished in `out` are not
    trained again.

    Progress is shown as by `headway.train`: unless `quiet`, or if you pass callbacks of your own. If training is
    interrupted, the comparison has no results, and its `interrupted` is true.
    """
    setup = _set_up(
        models,
        data,
        Budget(params, tokens, seconds, epochs),
        context,
        Overrides.parse(settings),
        ScoringOptions(long_data, limit, num_beams, prompt, sample_tokens),
    )
    out_dir = Path(out) if out is not None else free_name(Path("runs") / "compare")
    if out_dir.exists() and any(out_dir.iterdir()) and not resume:
        raise CheckpointError(f"{out_dir} already exists; choose another folder with --out, or continue with --resume")
    with progress_callbacks(quiet, on_step, on_message) as callbacks:
        shared, recipes = _prepare(setup, out_dir, callbacks.on_message)
        config = setup.recipe.train
        threads = cpu_threads(config.threads, parse_device(config.device), on_message=callbacks.on_message)
        with threads:  # the same for all models
            is_trained = _train_all(recipes, out_dir, resume, callbacks)
            results = _score_all(setup, shared.tokenizer, out_dir, callbacks.on_message) if is_trained else []
    comparison = Comparison(
        data=setup.data,
        kind=setup.kind,
        split=setup.evaluator.split,
        size=setup.evaluator.size,
        context=setup.context,
        vocab_size=shared.tokenizer.vocab_size,
        budget=setup.budget.summary if recipes else "as they were trained",
        results=results,
        metric=setup.evaluator.metric,
        longest=setup.evaluator.longest_train_source(shared.tokenizer) if recipes else None,
        prompt=setup.evaluator.prompt,
        path=str(out_dir),
        unit=setup.budget.unit,
        interrupted=not is_trained,
    )
    if is_trained:
        document = json.dumps(non_finite_to_null(comparison.to_dict()), indent=1, ensure_ascii=False)
        write_text(out_dir / "compare.json", document + "\n")
    return comparison


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
    left_out: dict[str, str]  # templates whose weights are not installed, and what installs them
    evaluator: Evaluator

    @property
    def configures_tokenizer(self) -> bool:
        return any(setting.startswith("tokenizer.") for setting in self.overrides.shared)

    def manifest(self) -> dict[str, Any]:
        splits = (iter_contents(self.recipe, self.kind, split) for split in ("train", self.evaluator.split))
        return {
            "data": self.data,
            **asdict(self.budget),
            "context": self.context,
            "settings": self.overrides.shared,
            OWN_SETTINGS: self.overrides.by_model,
            "content": digest(chain.from_iterable(splits)),
        }


def _set_up(
    models: Sequence[ModelOrName],
    data: str,
    budget: Budget,
    context: int | None,
    overrides: Overrides,
    options: ScoringOptions,
) -> _Setup:
    recipe = shared_recipe(data, overrides.shared)
    kind = data_kind(recipe.data)
    budget.check_unit(data, kind)
    candidates = find_candidates(models, kind)
    overrides = Overrides(overrides.shared, {**overrides.by_model, **own_settings(models)})
    check_overrides(overrides, candidates)
    context = shared_context(context, kind, candidates)
    evaluator = make_evaluator(recipe, kind, context, options)
    left_out = {} if models else missing_weights(kind)
    return _Setup(data, recipe, kind, budget, context, overrides, candidates, left_out, evaluator)


def _prepare(setup: _Setup, out_dir: Path, on_message: OnMessage) -> tuple[SharedSettings, dict[str, Recipe]]:
    """Train the tokenizer, derive every recipe and write the manifest. Nothing is written if anything is wrong."""
    manifest, notes = setup.manifest(), _check_labels(setup)
    finished = [name for name in setup.candidates if is_finished(out_dir / name)]
    check_same_settings(out_dir, manifest, finished)
    tokenizer_dir = out_dir / "tokenizer"
    tokenizer = shared_tokenizer(setup.recipe, setup.kind, tokenizer_dir, is_configured=setup.configures_tokenizer)
    on_message(f"tokenizer   {tokenizer.kind}, {tokenizer.vocab_size:,} tokens, shared by all models")
    shared = SharedSettings(setup.recipe, setup.kind, setup.context, setup.budget, tokenizer, tokenizer_dir)
    recipes = {}
    for name, candidate in setup.candidates.items():
        if isinstance(candidate, ModelTemplate | Recipe):
            own_settings = setup.overrides.by_model.get(name, [])
            recipes[name] = shared.recipe_for(candidate, setup.overrides.shared, own_settings)
        elif isinstance(candidate, Path) and (warning := leakage_warning(candidate, setup.recipe.data)):
            on_message(f"warning     {name} {warning}")
    notes += [
        f"{name} is left out: its weights are not installed; to compare it too: {command}"
        for name, command in setup.left_out.items()
    ]
    for note in [*notes, *_unused_settings(setup, recipes)]:
        on_message(f"note        {note}")
    manifest["recipes"] = check_same_recipes(out_dir, recipes, finished)
    write_manifest(out_dir, manifest, tokenizer)
    return shared, recipes


def _check_labels(setup: _Setup) -> list[str]:
    """Raise if a model could not predict the labels of the data; returns notes on labels."""
    configs: dict[str, Any] = {}
    for name, candidate in setup.candidates.items():
        if isinstance(candidate, Path):
            configs[name] = load_recipe(candidate).model
        elif isinstance(candidate, GivenModel):
            configs[name] = candidate.model.config
    return setup.evaluator.check_labels(configs, is_training=len(configs) < len(setup.candidates))


def _unused_settings(setup: _Setup, recipes: Mapping[str, Recipe]) -> list[str]:
    """A note for each setting without effect; for a shared setting, if it has none on any model."""

    def names(settings: Sequence[str]) -> list[str]:
        return [setting.partition("=")[0].strip() for setting in settings]

    shared = names(setup.overrides.shared)
    tokenizer = [name for name in shared if name.startswith("tokenizer.")]  # the recipes have its path instead
    others = [name for name in shared if name not in tokenizer]
    notes = [*unused_settings(setup.recipe, tokenizer).values(), *unused_in_all(recipes.values(), others).values()]
    for model, settings in setup.overrides.by_model.items():
        notes += [f"{model}: {note}" for note in unused_settings(recipes[model], names(settings)).values()]
    if not recipes:
        trained = [name for name in others if name.startswith(("model.", "train.", "eval."))]
        notes += [f"{name} has no effect: no model is trained here" for name in trained]
    return notes


def _train_all(recipes: Mapping[str, Recipe], out_dir: Path, resume: bool, callbacks: Callbacks) -> bool:
    """Train one model after the other, skipping finished ones; returns False if training was interrupted."""
    on_message = callbacks.on_message
    for number, (name, recipe) in enumerate(recipes.items(), 1):
        if is_finished(out_dir / name):
            on_message(f"finished    {name}, in an earlier run")
            continue
        on_message(f"\n{name}, {number} of {len(recipes)}")
        is_ngram = isinstance(recipe.model, NGramConfig)
        if is_ngram:  # fitted in one pass: an interrupted one starts over
            shutil.rmtree(out_dir / name, ignore_errors=True)
        try:
            result = train(
                recipe,
                out=out_dir / name,
                resume=resume and not is_ngram,
                on_step=callbacks.on_step,
                on_message=on_message,
                on_prepare=callbacks.on_prepare,
            )
        except KeyboardInterrupt:
            if is_ngram:
                return False
            raise
        if result.interrupted:
            return False
    return True


def _score_all(setup: _Setup, tokenizer: Tokenizer, out_dir: Path, on_message: OnMessage) -> list[ModelResult]:
    results = []
    for name, candidate in setup.candidates.items():
        on_message(f"scoring     {name}")
        if isinstance(candidate, GivenModel):
            results.append(_score_model(name, candidate.model, setup.evaluator, tokenizer))
            continue
        run = candidate if isinstance(candidate, Path) else out_dir / name
        results.append(_score_run(name, run, candidate, setup.evaluator, tokenizer))
    return results


def _score_run(name: str, run: Path, candidate: Candidate, evaluator: Evaluator, tokenizer: Tokenizer) -> ModelResult:
    """The result of one run: its cost from the log, its scores from its best checkpoint."""
    model, recipe, log = load(run, device="auto"), load_recipe(run), Run(run).read_log()
    start, end = (next(record for record in log[::-1] if record.get("event") == event) for event in ("start", "end"))
    n_tokens, steps = int(end["train_tokens"]), int(end["step"])
    seq_len = recipe.train.seq_len or recipe.model.context or 0
    token_flops = start.get("flops_per_token") or flops_per_token(model.config, seq_len)
    target_flops = token_flops * evaluator.tokens_per_target(model.tokenizer)
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
        flops=n_tokens * target_flops,
        seconds=float(end["seconds"]),
        scores=scores,
        curve=[] if isinstance(candidate, Path) else _training_curve(log, n_tokens, steps, target_flops, evaluator),
        by_length=by_length,
        sample=evaluator.sample(model),
        init_from=recipe.finetune.init_from,
        vocab_size=_own_vocab_size(model, tokenizer),
        sees_future=evaluator.is_generative and sees_future(model),
    )


def _score_model(name: str, model: Any, evaluator: Evaluator, tokenizer: Tokenizer) -> ModelResult:
    """The result of a model object, whose training cost is unknown."""
    scores, by_length = evaluator.score(model, tokenizer)
    n_params = sum(p.numel() for p in model.parameters()) if isinstance(model, nn.Module) else 0
    return ModelResult(
        name=name,
        year=None,
        title="a model object, not trained here",
        run="",
        n_params=n_params,
        n_tokens=0,
        steps=0,
        flops=0.0,
        seconds=0.0,
        scores=scores,
        by_length=by_length,
        sample=evaluator.sample(model),
        vocab_size=_own_vocab_size(model, tokenizer),
        sees_future=evaluator.is_generative and sees_future(model),
    )


def _own_vocab_size(model: Any, tokenizer: Tokenizer) -> int | None:
    """The vocabulary of a model's tokenizer; None if that is the shared one."""
    own = tokenizer_of(model)
    return None if own is None or own.vocab == tokenizer.vocab else own.vocab_size


def _training_curve(
    log: Sequence[Mapping[str, Any]], n_tokens: int, steps: int, target_flops: float, evaluator: Evaluator
) -> list[CurvePoint]:
    """The validation scores of a run, and what its training had cost until then."""
    points = []
    for record in log:
        score = record.get(evaluator.curve_metric)
        if "event" not in record and score is not None and steps:
            tokens = n_tokens * record["step"] / steps
            points.append(CurvePoint(tokens, tokens * target_flops, record["seconds"], score))
    return points
