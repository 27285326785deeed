"""The config of what the user names: a family, a preset, a recipe, a model directory or a run. No weights are read."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from headway.config import FAMILIES, RECIPES, ModelConfig, find_recipe, load_recipe, model_config
from headway.config.presets import PRESETS
from headway.config.published import NOT_BUILDABLE
from headway.config.recipe_loading import parse_setting
from headway.errors import ConfigError, suggest
from headway.installed_files import INSTALLED_MODELS
from headway.runs import Run, suggest_run


class NamedConfig(NamedTuple):
    name: str
    config: ModelConfig
    note: str = ""  # what was assumed


def find_config(name: str, settings: Sequence[str] = ()) -> NamedConfig:
    """The config of a model, with settings such as "vocab_size=40000" (or "model.vocab_size=40000") changed."""
    for setting in settings:
        if "=" not in setting:
            raise ConfigError(f"--set {setting!r} is not of the form name=value, such as n_layers=2")
    overrides = dict(parse_setting(setting.removeprefix("model.")) for setting in settings)
    if name in FAMILIES or name in PRESETS:
        return NamedConfig(name, model_config(name, overrides))
    path = Path(name)
    if (path / "config.json").exists() or name in INSTALLED_MODELS or _has_checkpoints(path):
        return NamedConfig(name, _read_config(name).replace(**overrides))
    is_recipe = path.is_file() and path.suffix == ".toml"
    if Run.exists(path) or is_recipe or (RECIPES / f"{name}.toml").is_file():
        return _from_recipe(name, overrides)
    if name in NOT_BUILDABLE:
        raise ConfigError(NOT_BUILDABLE[name].error(name), setting="model.name")
    names = [*FAMILIES, *PRESETS, *sorted(file.stem for file in RECIPES.glob("*.toml")), *INSTALLED_MODELS]
    hint = (
        "; `headway models` lists presets" if not path.exists() else ": it is neither a model, a run nor a .toml file"
    )
    near = suggest(name, names) or suggest_run(path)
    raise ConfigError(f"no family, preset, recipe, model or run named {name!r}{hint}.{near}")


def _has_checkpoints(path: Path) -> bool:
    return Run.exists(path) and bool(Run(path).models())


def _read_config(name: str) -> ModelConfig:
    from headway.file_reading import read_json  # the next two import torch
    from headway.models.config_json import describe_model
    from headway.models.serialization import find_model

    file = find_model(name) / "config.json"
    return describe_model(read_json(file), file).config


def _from_recipe(name: str, overrides: dict[str, object]) -> NamedConfig:
    recipe = load_recipe(find_recipe(name))
    vocab_size = recipe.tokenizer.vocab_size
    note = ""
    if "vocab_size" not in overrides:
        size = vocab_size or recipe.model.vocab_size
        overrides = {**overrides, "vocab_size": size}
        if vocab_size is None:
            note = f"{name}: the tokenizer decides the vocabulary; {size:,} tokens are assumed: --set vocab_size=N"
    return NamedConfig(name, recipe.model.replace(**overrides), note)
