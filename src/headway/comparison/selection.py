"""Which models take part, and whether they can: checked before any of them is trained.

A candidate is a template of the lineup, a family that a plug-in registers, a recipe, the folder of a finished run, or a
model object. Finished runs and model objects are evaluated without training.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from headway.comparison.lineup import PAIR_TEMPLATES, TEXT_TEMPLATES, ModelTemplate, registered_template
from headway.config import FAMILIES, DataConfig, Recipe, load_recipe
from headway.entry_points import load_declared, plugin_options
from headway.errors import ConfigError, DataError, suggest
from headway.models.adapter import AdaptedLM, language_model
from headway.models.base import LanguageModel, Seq2SeqLM
from headway.runs import Run
from headway.training.task import resolve_objective

DEFAULT_CONTEXT = {"text": 128, "pairs": 512}  # tokens
OBJECTIVES = {"text": "causal", "pairs": "pairs"}


@dataclass(frozen=True)
class GivenModel:
    """A model object passed to `compare`: evaluated, not trained."""

    model: Any

    @property
    def name(self) -> str:
        inner = self.model.model if isinstance(self.model, AdaptedLM) else self.model
        return type(inner).__name__.lower()


Candidate = ModelTemplate | Recipe | Path | GivenModel

# ── candidates ────────────────────────────────────────────────────────────────────────────────────────────────────


def find_candidates(models: Sequence[str | LanguageModel | Seq2SeqLM], kind: str) -> dict[str, Candidate]:
    """The candidates by the name of their folder; without names, all templates for data of this kind."""
    lineup = TEXT_TEMPLATES if kind == "text" else PAIR_TEMPLATES
    models = list(models) or list(lineup)
    names = [model for model in models if isinstance(model, str)]
    candidates: dict[str, Candidate] = {}
    for model in (model for model in models if not isinstance(model, str)):
        given = GivenModel(model if kind == "pairs" and isinstance(model, Seq2SeqLM) else language_model(model))
        key = next(name for name in _numbered(given.name) if name not in candidates and name not in names)
        candidates[key] = given
    for name in names:
        candidate = _find_candidate(name, lineup)
        is_shared = sum(_folder_name(other) == _folder_name(name) for other in names) > 1
        key = str(Path(name)) if isinstance(candidate, Path) and is_shared else _folder_name(name)
        if key in candidates:
            raise ConfigError(
                f"{key!r} is listed twice: list each model once; to vary one, copy its TOML file under a new name"
            )
        check_candidate(key, candidate, kind)
        candidates[key] = candidate
    return candidates


def _numbered(name: str) -> Iterator[str]:
    """name, name-2, name-3, …"""
    yield name
    yield from (f"{name}-{number}" for number in count(2))


def _folder_name(name: str) -> str:
    return Path(name).stem if name.endswith(".toml") else Path(name).name


def _find_candidate(name: str, lineup: Mapping[str, ModelTemplate]) -> Candidate:
    if name in lineup:
        return lineup[name]
    if is_run(name):
        return Path(name)
    if name in TEXT_TEMPLATES or name in PAIR_TEMPLATES:
        needed, available = ("pairs", "text") if lineup is TEXT_TEMPLATES else ("text", "pairs")
        raise ConfigError(f"{name} learns from {needed}, but the data is {available}; choose from {', '.join(lineup)}")
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
        if OBJECTIVES[kind] not in (allowed := FAMILIES[candidate.family].objectives):
            raise ConfigError(
                f"the family {name} is trained for {' or '.join(allowed)}, but models of {kind} are trained with "
                f"{OBJECTIVES[kind]!r}: leave it out"
            )
        return
    if isinstance(candidate, GivenModel):
        return
    objective = resolve_objective(candidate_recipe(candidate))
    if objective != OBJECTIVES[kind]:
        raise ConfigError(
            f"{name} has the objective {objective!r}, but models of {kind} are trained with {OBJECTIVES[kind]!r}: "
            f"leave it out"
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


def model_fields(candidate: ModelTemplate | Recipe) -> tuple[str, ...]:
    """The names of the settings that the candidate's model has."""
    config = FAMILIES[candidate.family] if isinstance(candidate, ModelTemplate) else type(candidate.model)
    return config.__struct_fields__


def shared_context(context: int | None, kind: str, candidates: Mapping[str, Candidate]) -> int:
    """The context that all models are scored with: at most the shortest that any recipe or run has."""
    shared = context or DEFAULT_CONTEXT[kind]
    for name, candidate in candidates.items():
        if kind != "text" or isinstance(candidate, ModelTemplate):
            continue
        if isinstance(candidate, GivenModel):
            limit = candidate.model.config.context
        else:
            limit = candidate_recipe(candidate).model.context
        if limit is not None and limit < shared:
            if context is not None:
                raise ConfigError(
                    f"{name} has a context of {limit}, less than --context {context}: use --context {limit}"
                )
            shared = limit
    return shared


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


FLAG_OF_SETTING = {"data.path": "--data", "train.steps": "--tokens", "train.max_seconds": "--seconds"}


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
