"""Where `model.init_from` points: a model directory, a run, or a model that an installed package carries.

A recipe needs the family of those weights before anything else; their sizes are read with the weights
(models/init_from.py).
"""

import tomllib
from pathlib import Path

from headway.config.models import FAMILIES
from headway.config.presets import PRESETS
from headway.errors import ConfigError, HeadwayError, suggest
from headway.file_reading import read_json, read_utf8
from headway.installed_files import INSTALLED_MODELS
from headway.runs import Run, suggest_run

FAMILY_OF_MODEL_TYPE = {  # of transformers
    "bert": "bert",
    "gpt2": "gpt",
    "openai-gpt": "gpt",
    "llama": "gpt",
    "marian": "transformer",
    "pegasus": "transformer",
}


def family_of_source(source: str) -> str:
    """The model family of the weights at `source`; an error if there are none."""
    path = Path(source)
    if (path / "config.json").is_file():
        return _family_of_config(path / "config.json")
    if Run.exists(path):
        return _family_of_recipe(Run(path).recipe_file)
    if (installed := INSTALLED_MODELS.get(source)) is not None:
        if (folder := installed.find()) is not None:
            return _family_of_config(folder / "config.json")
        raise ConfigError(
            f"model.init_from={source!r} is not installed: {installed.install_command}", setting="model.init_from"
        )
    names, near = ", ".join(INSTALLED_MODELS), suggest(source, INSTALLED_MODELS) or suggest_run(source)
    raise ConfigError(
        f"model.init_from={source!r} is neither a model directory, nor a run, nor one of {names}"
        + (f".{near}" if near else ""),
        setting="model.init_from",
    )


def _family_of_config(file: Path) -> str:
    try:
        model_type = str(read_json(file).get("model_type"))
    except HeadwayError as error:
        raise ConfigError(f"model.init_from: {error}", setting="model.init_from") from None
    family = FAMILY_OF_MODEL_TYPE.get(model_type, model_type.removeprefix("headway-"))
    if family not in FAMILIES:
        raise ConfigError(f"model.init_from: {file}: model_type={model_type!r:.80} is not supported")
    return family


def _family_of_recipe(file: Path) -> str:
    try:
        model = tomllib.loads(read_utf8(file)).get("model", {})
    except (HeadwayError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"model.init_from: {file}: {error}", setting="model.init_from") from None
    name = model.get("family") or model.get("name")
    return PRESETS[name].family if name in PRESETS else str(name)
