"""Which models take part, and whether they can: checked before any of them is trained.

A candidate is a template of the lineup, a family that a plug-in registers, a recipe, the folder of a finished run, or a
model object. Finished runs and model objects are evaluated without training. A variant is a candidate with settings of
its own: "gpt:model.norm=none".
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from headway.comparison.lineup import LINEUPS, ModelTemplate, registered_template
from headway.config import FAMILIES, DataConfig, Recipe, load_recipe
from headway.config.init_source import family_of_source
from headway.data.records import KIND_NAMES
from headway.entry_points import load_declared, plugin_options
from headway.errors import ConfigError, DataError, suggest
from headway.installed_files import INSTALLED_MODELS
from headway.models.adapter import AdaptedLM, language_model
from headway.models.base import LanguageModel, Seq2SeqLM
from headway.models.heads import Classifier, Head, Tagger
from headway.models.init_from import FREE_SETTINGS, source_config
from headway.prediction.heads import require_head
from headway.runs import Run
from headway.training.task import resolve_objective

DEFAULT_CONTEXT = {"text": 128, "pairs": 512, "labelled": 256, "tagged": 128}  # tokens
OBJECTIVES = {"text": "causal", "pairs": "pairs", "labelled": "classify", "tagged": "tag"}


@dataclass(frozen=True)
class GivenModel:
    """A model object passed to `compare`: evaluated, not trained."""

    model: Any

    @property
    def name(self) -> str:
        inner = self.model.model if isinstance(self.model, AdaptedLM) else self.model
        return inner.config.family if isinstance(inner, Head) else type(inner).__name__.lower()


ModelOrName = str | LanguageModel | Seq2SeqLM | Head
Candidate = ModelTemplate | Recipe | Path | GivenModel

# ── variants ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Variant:
    """ "gpt:model.norm=none,model.n_layers=8" is the model "gpt" with two of its settings changed."""

    base: str
    settings: list[str]

    @classmethod
    def parse(cls, name: str) -> "Variant | None":
        """The variant of this name; None if it is not one. "gpt:norm=none" is short for "gpt:model.norm=none"."""
        base, colon, rest = name.partition(":")
        if not colon or Path(name).exists():
            return None
        settings = [setting.strip() for setting in re.split(r",(?=\s*[\w.]+=)", rest)]
        if not base or not all(re.match(r"[\w.]+=.", setting) for setting in settings):
            raise ConfigError(f"{name!r} is not a variant of a model: write it as gpt:model.norm=none")
        return cls(base, [s if "." in s.partition("=")[0] else f"model.{s}" for s in settings])

    @property
    def label(self) -> str:
        """Its name in the table, and that of its folder: "gpt:norm=none,n_layers=8"."""
        settings = [setting.removeprefix("model.") for setting in self.settings]
        return f"{_folder_name(self.base)}:{','.join(settings)}".replace("/", "-")


def own_settings(models: Sequence[ModelOrName]) -> dict[str, list[str]]:
    """The settings of the variants among these models, by their labels."""
    variants = [Variant.parse(model) for model in models if isinstance(model, str)]
    return {variant.label: variant.settings for variant in variants if variant is not None}


# ── candidates ────────────────────────────────────────────────────────────────────────────────────────────────────


def find_candidates(models: Sequence[ModelOrName], kind: str) -> dict[str, Candidate]:
    """The candidates by the name of their folder; without names, all templates for data of this kind whose weights are
    installed."""
    models = list(models) or [name for name in LINEUPS[kind] if name not in missing_weights(kind)]
    names = [model for model in models if isinstance(model, str)]
    candidates: dict[str, Candidate] = {}
    for model in (model for model in models if not isinstance(model, str)):
        given = _given_model(model, kind)
        key = next(name for name in _numbered(given.name) if name not in candidates and name not in names)
        candidates[key] = given
    for name in names:
        if (variant := Variant.parse(name)) is not None:
            candidate = _find_candidate(variant.base, kind)
            if isinstance(candidate, Path):
                raise ConfigError(f"{name!r}: a run is scored as it was trained, so it has no variants: name a model")
            name = variant.label
        else:
            candidate = _find_candidate(name, kind)
        is_shared = sum(_folder_name(other) == _folder_name(name) for other in names) > 1
        key = str(Path(name)) if isinstance(candidate, Path) and is_shared else _folder_name(name)
        if key in candidates:
            raise ConfigError(f"{key!r} is listed twice: list each model once; to vary one: {key}:model.dropout=0.2")
        check_candidate(key, candidate, kind)
        candidates[key] = candidate
    return candidates


def missing_weights(kind: str) -> dict[str, str]:
    """The templates for data of this kind whose weights are not installed, and what installs them."""
    names = {name: template.init_from for name, template in LINEUPS[kind].items() if template.init_from is not None}
    models = {name: INSTALLED_MODELS[source] for name, source in names.items()}
    return {name: model.install_command for name, model in models.items() if model.find() is None}


def _given_model(model: Any, kind: str) -> GivenModel:
    """A model object, which must be of the class that models of this kind of data have."""
    if kind == "labelled":
        return GivenModel(require_head(model, Classifier, "compare"))
    if kind == "tagged":
        return GivenModel(require_head(model, Tagger, "compare"))
    return GivenModel(model if kind == "pairs" and isinstance(model, Seq2SeqLM) else language_model(model))


def _numbered(name: str) -> Iterator[str]:
    """name, name-2, name-3, …"""
    yield name
    yield from (f"{name}-{number}" for number in count(2))


def _folder_name(name: str) -> str:
    return Path(name).stem if name.endswith(".toml") else Path(name).name


def _find_candidate(name: str, kind: str) -> Candidate:
    lineup = LINEUPS[kind]
    if name in lineup:
        return lineup[name]
    if is_run(name):
        return Path(name)
    if needed := [KIND_NAMES[other] for other, templates in LINEUPS.items() if name in templates]:
        raise ConfigError(
            f"{name} learns from {' or '.join(needed)}, but the data is {KIND_NAMES[kind]}; choose from "
            f"{', '.join(lineup)}"
        )
    load_declared("family", name, FAMILIES)
    if name in FAMILIES:
        return registered_template(name)
    try:
        return load_recipe(name)
    except ConfigError as error:
        if not str(error).startswith("no recipe"):
            raise
        hint = suggest(name, lineup, otherwise=f" Models: {', '.join(lineup)}")
        raise ConfigError(f"no model, recipe, TOML file or run {name!r}.{hint}") from None


def is_run(name: str) -> bool:
    """Whether a name is that of a run with a checkpoint, which is scored but not trained."""
    return Run.exists(name) and bool(Run(name).checkpoint_steps())


def candidate_recipe(candidate: Recipe | Path) -> Recipe:
    return load_recipe(candidate) if isinstance(candidate, Path) else candidate


def check_candidate(name: str, candidate: Candidate, kind: str) -> None:
    """Raise if a recipe or run has another objective than this comparison, or a run is unfinished."""
    if isinstance(candidate, ModelTemplate):
        if candidate.init_from is not None:
            family_of_source(candidate.init_from)  # raises if the weights are not installed
        if OBJECTIVES[kind] not in (allowed := FAMILIES[candidate.family].objectives):
            raise ConfigError(
                f"the family {name} is trained for {' or '.join(allowed)}, but models of {KIND_NAMES[kind]} are "
                f"trained with {OBJECTIVES[kind]!r}: leave it out"
            )
        return
    if isinstance(candidate, GivenModel):
        return
    objective = resolve_objective(candidate_recipe(candidate))
    if objective != OBJECTIVES[kind]:
        raise ConfigError(
            f"{name} has the objective {objective!r}, but models of {KIND_NAMES[kind]} are trained with "
            f"{OBJECTIVES[kind]!r}: leave it out"
        )
    if isinstance(candidate, Path) and not is_finished(candidate):
        raise DataError(
            f"{candidate} is not fully trained yet; finish it: headway train {candidate} --resume{plugin_options()}"
        )


def is_finished(run: Path) -> bool:
    return any(record.get("event") == "end" for record in Run(run).read_log())


def leakage_warning(run: Path, data: DataConfig) -> str | None:
    """Why a run may have been trained on the evaluation data: it uses the same source with another split."""
    run_data = load_recipe(run).data
    names = ("valid_fraction", "test_fraction", "split", "valid_path", "test_path")
    differing = [name for name in names if getattr(run_data, name) != getattr(data, name)]
    run_sources, sources = ({Path(name).name for name in (config.mix or [config.path])} for config in (run_data, data))
    if not differing or not run_sources & sources:
        return None
    settings = ", ".join(f"data.{name}={getattr(run_data, name)}" for name in differing)
    return (
        f"was trained on {', '.join(sorted(run_sources & sources))} with {settings}: "
        f"its training data may contain the text it is scored on"
    )


def weights_of(candidate: ModelTemplate | Recipe) -> str | None:
    """The weights that a candidate starts from, whose tokenizer it has; None for random ones."""
    return candidate.init_from if isinstance(candidate, ModelTemplate) else candidate.finetune.init_from


def model_fields(candidate: ModelTemplate | Recipe) -> tuple[str, ...]:
    """The names of the settings that the candidate's model has, and that its weights, if it has any, leave free."""
    config = FAMILIES[candidate.family] if isinstance(candidate, ModelTemplate) else type(candidate.model)
    names = config.__struct_fields__
    return names if weights_of(candidate) is None else tuple(name for name in names if name in FREE_SETTINGS)


def shared_context(context: int | None, kind: str, candidates: Mapping[str, Candidate]) -> int:
    """The context that all models are scored with: at most the shortest that any recipe, run or weights have."""
    shared = context or DEFAULT_CONTEXT[kind]
    for name, candidate in candidates.items():
        limit = None if kind == "pairs" else _longest_context(candidate)
        if limit is not None and limit < shared:
            if context is not None:
                raise ConfigError(
                    f"{name} has a context of {limit}, less than --context {context}: use --context {limit}"
                )
            shared = limit
    return shared


def _longest_context(candidate: Candidate) -> int | None:
    """The context of a candidate's model, which may be that of the weights it starts from; None if any will do."""
    if isinstance(candidate, GivenModel):
        return candidate.model.config.context
    if isinstance(candidate, ModelTemplate):
        return None if candidate.init_from is None else source_config(candidate.init_from).context
    recipe = candidate_recipe(candidate)
    if recipe.finetune.init_from is not None and recipe.model_settings is not None:
        return source_config(recipe.finetune.init_from).context
    return recipe.model.context


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Overrides:
    """Settings "table.key=value" for all models, and those for one: "gpt:model.dropout=0.1"."""

    shared: list[str] = field(default_factory=list)
    by_model: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def parse(cls, settings: Sequence[str]) -> "Overrides":
        overrides = cls()
        for setting in settings:
            name, colon, own_setting = setting.partition(":")
            if colon and "=" not in name:
                overrides.by_model.setdefault(name, []).append(own_setting)
            else:
                overrides.shared.append(setting)
        return overrides


FLAG_OF_SETTING = {
    "data.path": "--data",
    "train.steps": "--tokens or --epochs",
    "train.epochs": "--epochs",
    "train.max_seconds": "--seconds",
}


def check_overrides(overrides: Overrides, candidates: Mapping[str, Candidate]) -> None:
    """Refuse settings that have no effect, and those that would make the comparison unfair."""
    for setting in [*overrides.shared, *(setting for own in overrides.by_model.values() for setting in own)]:
        key = setting.partition("=")[0].strip()
        if key in FLAG_OF_SETTING:
            raise ConfigError(f"{setting}: all models share this; set it with {FLAG_OF_SETTING[key]}")
    fields = {name: model_fields(c) for name, c in candidates.items() if isinstance(c, ModelTemplate | Recipe)}
    for setting in overrides.shared:
        section, _, key = setting.partition("=")[0].strip().partition(".")
        if section == "model" and not any(key in names for names in fields.values()):
            hint = suggest(key, sorted(set().union(*fields.values())))
            raise ConfigError(f"{setting}: no model in this comparison has such a setting.{hint}")
    for name, settings in overrides.by_model.items():
        if name not in fields:
            hint = suggest(name, fields, otherwise=f" Models: {', '.join(fields)}")
            raise ConfigError(f"{name}:{settings[0]}: {name!r} is not one of the models trained here.{hint}")
        for setting in settings:
            if not setting.startswith(("model.", "train.", "eval.")):
                raise ConfigError(
                    f"{name}:{setting}: data and tokenizer are shared by all models; for one model set model., train. "
                    f"or eval. settings"
                )
