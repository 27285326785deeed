"""Who takes part: contestants by name, recipes, and runs that were trained before; and whether they can, which is found
out before anyone is trained."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from headway.comparison.lineup import PAIRS, TEXT, ModelTemplate
from headway.config import FAMILIES, DataConfig, Recipe, load_recipe
from headway.errors import ConfigError, DataError, suggest
from headway.runs import Run
from headway.training.task import resolve_objective

CONTEXTS = {"text": 128, "pairs": 512}

Candidate = ModelTemplate | Recipe | Path


def find_candidates(names: Sequence[str], timeline: Mapping[str, ModelTemplate]) -> dict[str, Candidate]:
    names = list(names) or list(timeline)
    found: dict[str, Candidate] = {}
    for name in names:
        entrant = _candidate(name, timeline)
        short = str(Path(name)) if isinstance(entrant, Path) and _is_taken(name, names) else _folder(name)
        if short in found:
            raise ConfigError(
                f"{short!r} is there twice: each takes part once; a copied TOML file has a name of its own"
            )
        found[short] = entrant
    return found


def _is_taken(name: str, names: Sequence[str]) -> bool:
    return sum(_folder(other) == _folder(name) for other in names) > 1


def _folder(name: str) -> str:
    return Path(name).stem if name.endswith(".toml") else Path(name).name


def _candidate(name: str, timeline: Mapping[str, ModelTemplate]) -> Candidate:
    """A contestant by name, a run that was trained before, or a recipe."""
    if name in timeline:
        return timeline[name]
    if Run.exists(name) and Run(name).checkpoint_steps():
        return Path(name)
    if name in TEXT or name in PAIRS:
        mine, this = ("pairs", "text") if timeline is TEXT else ("text", "pairs")
        raise ConfigError(f"{name} learns from {mine}, and this is {this}; for it there are {', '.join(timeline)}")
    try:
        return load_recipe(name)
    except ConfigError as error:
        if not str(error).startswith("no recipe"):
            raise
        near = suggest(name, timeline, otherwise=f" Contestants: {', '.join(timeline)}")
        raise ConfigError(f"no contestant, recipe, TOML file or run {name!r}.{near}") from None


def recipe_of(entrant: Recipe | Path) -> Recipe:
    return load_recipe(entrant) if isinstance(entrant, Path) else entrant


def check_candidate(name: str, entrant: Candidate, kind: str) -> None:
    """Say before anyone is trained that someone cannot take part."""
    if isinstance(entrant, ModelTemplate):
        return
    objective = resolve_objective(recipe_of(entrant))
    if objective != {"text": "causal", "pairs": "pairs"}[kind]:
        raise ConfigError(f"{name} learns {objective!r}, which is not what is asked of {kind}: leave it out")
    if isinstance(entrant, Path) and not is_done(entrant):
        raise DataError(f"{entrant} has not been trained to its end; go on with it: headway train {entrant} --resume")


def split_doubt(run: Path, data: DataConfig) -> str | None:
    """Why a run may have learned from what is held out here: it has this data, and holds out other parts of it."""
    own = load_recipe(run).data
    names = ("valid", "test", "split", "valid_path", "test_path")
    differing = [name for name in names if getattr(own, name) != getattr(data, name)]
    mine, other = ({Path(name).name for name in (some.mix or [some.path])} for some in (own, data))
    if not differing or not mine & other:
        return None
    said = ", ".join(f"data.{name}={getattr(own, name)}" for name in differing)
    return f"has learned from {', '.join(sorted(mine & other))} with {said}: it may know what is held out here"


def is_done(run: Path) -> bool:
    return any(record.get("event") == "end" for record in Run(run).read_log())


def check_settings(
    general: Sequence[str], special: Mapping[str, Sequence[str]], entrants: Mapping[str, Candidate]
) -> None:
    """A setting that would change nothing, or that would be unfair, is refused."""
    instead = {"data.path": "--data", "train.steps": "--tokens", "train.max_seconds": "--seconds"}
    for setting in [*general, *(own for some in special.values() for own in some)]:
        key = setting.partition("=")[0].strip()
        if key in instead:
            raise ConfigError(f"{setting}: that is the same for all, and asked for by {instead[key]}")
    known = {name: fields_of(entrant) for name, entrant in entrants.items() if not isinstance(entrant, Path)}
    for setting in general:
        section, _, key = setting.partition("=")[0].strip().partition(".")
        if section == "model" and not any(key in fields for fields in known.values()):
            names = sorted(set().union(*known.values()))
            raise ConfigError(f"{setting}: no contestant has such a setting.{suggest(key, names)}")
    for name, some in special.items():
        if name not in known:
            near = suggest(name, known, otherwise=f" There are: {', '.join(known)}")
            raise ConfigError(f"{name}:{some[0]} is for a contestant that is trained, and {name!r} is none.{near}")
        for setting in some:
            if not setting.startswith(("model.", "train.", "eval.")):
                raise ConfigError(f"{name}:{setting}: data and tokenizer are the same for all; of one: model., train.")


def fields_of(entrant: ModelTemplate | Recipe) -> tuple[str, ...]:
    kind = FAMILIES[entrant.family] if isinstance(entrant, ModelTemplate) else type(entrant.model)
    return kind.__struct_fields__


def context_for(asked: int | None, kind: str, entrants: Mapping[str, Candidate]) -> int:
    """Tokens that all are scored in windows of: no more than any was made for."""
    window = asked or CONTEXTS[kind]
    for name, entrant in entrants.items():
        own = None if isinstance(entrant, ModelTemplate) else getattr(recipe_of(entrant).model, "context", None)
        if own is not None and own < window and kind == "text":
            if asked is not None:
                raise ConfigError(f"{name} has a context of {own}, and windows are of {asked}: --context {own}")
            window = own
    return window
