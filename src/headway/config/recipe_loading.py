"""Loading recipes: from a TOML file, a run or a shipped recipe, with `--set` overrides, and all errors at once.

    file → table → overrides → check each setting → Recipe

An error of the file is reported with its line; one of an override is not.
"""

import copy
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from headway.config.base import build
from headway.config.init_source import family_of_source
from headway.config.models import FAMILIES, model_config
from headway.config.presets import PRESETS
from headway.config.recipe import (
    DEFAULT_MODEL,
    FINETUNE_SETTINGS,
    KIND_SETTINGS,
    FinetuneConfig,
    Recipe,
    TokenizerConfig,
    toml_value,
)
from headway.entry_points import load_declared, plugin_hint
from headway.errors import ConfigError, did_you_mean, nearest, suggest
from headway.file_reading import read_utf8
from headway.runs import Run, suggest_run

MAX_RECIPE_BYTES = 2**20


def load_recipe(path: str | Path, overrides: Sequence[str] = (), *, imports: bool = True) -> Recipe:
    """Load a recipe from a TOML file, a run, or a shipped one by name, with overrides such as "train.steps=100".

    All errors of the file are reported at once, each with its line. An override may name what an installed package
    declares, which is then imported; pass `imports=False` if the overrides come from a file.
    """
    file = find_recipe(path)
    try:
        text = read_utf8(file, max_bytes=MAX_RECIPE_BYTES, error=ConfigError).replace("\r\n", "\n")
        table = parse_toml(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = "" if file.suffix == ".toml" else f"; to train on a text: headway train demo --set data.path={file}"
        raise ConfigError(f"{file} is not a recipe in TOML ({error}){hint}") from None
    settings = [parse_setting(override) for override in overrides]
    for key, value in settings:
        if imports and key in DECLARABLE_SETTINGS:
            load_declared(DECLARABLE_SETTINGS[key], value)
    _drop_replaced(table, dict(settings))
    for (key, value), override in zip(settings, overrides, strict=True):
        if (way_out := DERIVED_SETTINGS.get(key)) is not None:
            raise ConfigError(f"--set {override!r}: {way_out}")
        _set(table, key, value)
    for key, name in {"preset": "name", "finetune": "init_from", "model_settings": "init_from"}.items():
        if key in table:
            raise ConfigError(f"no setting {key!r}. Did you mean 'model.{name}'?", setting=key)
    if not (errors := find_errors(table)):
        return recipe_from_table(table)
    overridden = {key for key, _ in settings} | {
        f"{table}.{key}" for table, value in settings if isinstance(value, dict) for key in value
    }
    lines = [(0 if _settings_in(e) & overridden else line_of(_setting_of(e), text), str(e)) for e in errors]
    messages = [f"line {line}: {message}" if line else message for line, message in sorted(lines)]
    if not any(line for line, _ in lines):
        raise ConfigError("\n".join(messages), setting=errors[0].setting)
    if len(messages) == 1:
        raise ConfigError(f"{file}, {messages[0]}", setting=errors[0].setting)
    raise ConfigError("\n  ".join([f"{file} has {len(messages)} errors:", *messages]), setting=errors[0].setting)


DERIVED_SETTINGS = {  # settings of the model that follow from the tokenizer or the data, and what to set instead
    "model.vocab_size": "the model takes the tokenizer's vocabulary; set tokenizer.vocab_size",
    "model.bos_id": "the model takes the tokenizer's BOS token; set tokenizer.path to use another tokenizer",
    "model.eos_id": "the model takes the tokenizer's EOS token; set tokenizer.path to use another tokenizer",
    "model.labels": "the model takes the labels of the training data; leave it out",
    "model.multi_label": "the model takes the labels as the data has them; set data.label_separator",
}


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text; every fault is a TOMLDecodeError, even a number with thousands of digits."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("it is nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:
        raise tomllib.TOMLDecodeError(str(error)) from None


def as_recipe(recipe: Recipe | str | Path) -> Recipe:
    """The recipe itself, or the one that `load_recipe` finds under a name or a path."""
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, str | Path):
        return load_recipe(recipe)
    hint = "headway.config.recipe_from_table makes one from a dict" if isinstance(recipe, Mapping) else "such as 'demo'"
    raise ConfigError(f"recipe={recipe!r} must be a Recipe, its name or its path; {hint}")


DECLARABLE_SETTINGS = {  # settings that name something, and the kind of plug-in that may provide it
    "model.name": "family",
    "model.family": "family",
    "model.attention": "attention",
    "tokenizer.kind": "tokenizer",
    "data.path": "dataset",
    "data.format": "reader",
    "train.objective": "objective",
    "train.optimizer": "optimizer",
    "eval.metric": "metric",
}


# Their tokenizer is WordPiece by default, which has [CLS], [SEP] and [MASK].
ENCODER_FAMILIES = ("bert", "bilstm", "bow")
FAMILY_LR = {"bow": 1e-2}  # learning rates that are far from the default


def recipe_from_table(table: Mapping[str, Any]) -> Recipe:
    """A recipe from nested tables, as TOML has them."""
    model = table.get("model", {})
    if not isinstance(model, Mapping):
        raise ConfigError(f"model={model!r} is not a table; write model.name={model!r}", setting="model")
    model = dict(model)
    finetune = build(FinetuneConfig, {key: model.pop(key) for key in FINETUNE_SETTINGS if key in model}, where="model")
    name = model.pop("name", None)
    family = model.pop("family", None)
    if finetune.init_from is not None and name is not None:
        raise ConfigError(
            f"model.name={name!r} and model.init_from={finetune.init_from!r} both give the sizes of the model: leave "
            f"one of them out",
            setting="model.name",
        )
    if finetune.init_from is not None and family is None:
        family = family_of_source(finetune.init_from)
    if family is not None and (not isinstance(family, str) or family not in FAMILIES):
        hint = plugin_hint("family", family)
        near = suggest(str(family), FAMILIES, otherwise=f" Families: {', '.join(FAMILIES)}. {hint}")
        raise ConfigError(f"no model family {family!r}.{near}", setting="model.family")
    has_heads = family in FAMILIES and "n_heads" in FAMILIES[family].__struct_fields__
    placeholders = _placeholder_sizes(model) if finetune.init_from is not None and has_heads else {}
    config = model_config(
        name if name is not None else family if family is not None else DEFAULT_MODEL, {**placeholders, **model}
    )
    if name is not None and family is not None and family != config.family:
        raise ConfigError(
            f"model.name={name!r} is of the family {config.family!r}, not {family!r}; give one of the two",
            setting="model.name",
        )
    sections = {key: value for key, value in table.items() if key not in ("model", "preset")}
    train = sections.get("train")
    if isinstance(train, Mapping) and "steps" in train and train.get("epochs") not in (None, "none"):
        raise ConfigError(
            f"train.steps={train['steps']} and train.epochs={train['epochs']} both say how long to train: set one",
            setting="train.epochs",
        )
    if config.family in FAMILY_LR and isinstance(train := sections.get("train", {}), Mapping):
        sections["train"] = {"lr": FAMILY_LR[config.family], **train}
    if config.family in ENCODER_FAMILIES and isinstance(tokenizer := sections.get("tokenizer", {}), Mapping):
        sections["tokenizer"] = {"kind": "wordpiece", **tokenizer}
    preset = name if name in PRESETS else ""
    settings = list(model) if finetune.init_from is not None else None
    return msgspec.structs.replace(
        build(Recipe, sections), model=config, preset=preset, finetune=finetune, model_settings=settings
    )


def _placeholder_sizes(model: Mapping[str, Any]) -> dict[str, int]:
    """Heads and a width that are valid with the given sizes, where the family's defaults might not be. The sizes of the
    weights replace them once they are read."""
    n_heads = model.get("n_heads", model.get("n_kv_heads", 1))
    if not {"n_heads", "n_kv_heads", "d_model"} & model.keys() or not isinstance(n_heads, int) or n_heads < 1:
        return {}
    return {"n_heads": n_heads, "d_model": 2 * n_heads}


def find_errors(table: Mapping[str, Any]) -> list[ConfigError]:
    """All wrong settings of a table. Rules about several settings are checked once each setting is right by itself."""
    remaining = copy.deepcopy(dict(table))
    errors: list[ConfigError] = []
    while True:
        try:
            recipe_from_table(remaining)
            return errors
        except ConfigError as error:
            # Without its family, the rest of [model] cannot be judged.
            setting = "model" if error.setting in ("model.name", "model.family") else error.setting
            if not _remove(remaining, setting):
                return errors or [error]
            errors.append(error)


def _remove(table: dict[str, Any], setting: str) -> bool:
    """Remove a setting, such as "train.steps" or "train.loggers[0]", from nested tables."""
    *tables, name = setting.partition("[")[0].split(".")
    inner: Any = table
    for key in tables:
        inner = inner.get(key) if isinstance(inner, dict) else None
    return isinstance(inner, dict) and inner.pop(name, None) is not None


def _setting_of(error: ConfigError) -> str:
    """The setting that an error is about; where it is about several of a table, the first it names."""
    named = re.match(r"([a-z]\w*\.\w+)=", str(error))
    return named[1] if named and "." not in error.setting else error.setting


def _settings_in(error: ConfigError) -> set[str]:
    """Every setting that an error is about: "model.d_model=128 does not split into n_heads=3 equal heads" is about
    two of one table. If one of them was given with --set, the file is not to blame."""
    setting = _setting_of(error)
    table = setting.partition(".")[0]
    return {setting, *(f"{table}.{name}" for name in re.findall(r"\b([a-z]\w*)=", str(error)))}


def line_of(setting: str, text: str) -> int:
    """The line of a TOML text that sets "train.steps"; 0 if there is none."""
    keys, table = setting.partition("[")[0].split("."), ""
    for number, line in enumerate(_without_multiline_strings(text).split("\n"), start=1):
        # Patterns without neighbouring repeats: a line of thousands of spaces is matched in linear time.
        if header := re.match(r"\[([^\[\]]+)\]", line.strip()):
            table = header[1].strip()
        before, equals, _ = line.partition("=")
        key = before.strip() if equals and re.fullmatch(r"[\w.\-\"' ]+", before.strip()) else ""
        name = f"{table}.{key}" if key and table else key or (table if header else None)
        if name and [part.strip("\"' ") for part in name.split(".")] in (keys, keys[:1] if "{" in line else keys):
            return number
    return 0


def _without_multiline_strings(text: str) -> str:
    """The text with the content of multi-line strings blanked, line breaks kept."""
    pattern = r"\"\"\".*?\"\"\"|'''.*?'''"
    return re.sub(pattern, lambda match: re.sub(r"[^\n]", " ", match[0]), text, flags=re.DOTALL)


FINETUNING_RATES = ("lr", "min_lr", "layer_lr_decay", "frozen_layers")  # chosen for given weights, not for random ones


def _drop_replaced(table: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Drop the recipe's settings of a model or tokenizer that `--set` exchanges for another one."""
    model, tokenizer = table.get("model", {}), table.get("tokenizer", {})
    if not isinstance(model, dict) or not isinstance(tokenizer, dict):
        return  # an error that `recipe_from_table` reports
    source = settings.get("model.init_from")
    is_other_source = source not in (None, "none", model.get("init_from"))
    is_other_family = settings.get("model.family") not in (None, _family_of(model))
    is_other_family |= is_other_source and _is_of_other_family(str(source), model)
    if "model.name" in settings or is_other_family or is_other_source:
        # How to fine-tune applies to other weights too.
        table["model"] = {key: model[key] for key in FINETUNE_SETTINGS if key in model} if is_other_source else {}
        table.pop("description", None)  # of another model, as is the result
        table.pop("result", None)
    is_from_scratch = not is_other_source and ("model.name" in settings or source == "none")
    if "init_from" in model and (is_other_family or is_from_scratch) and isinstance(table.get("train"), dict):
        table["train"] = {key: value for key, value in table["train"].items() if key not in FINETUNING_RATES}
    if isinstance(train := table.get("train", {}), dict):
        for name, other in (("steps", "epochs"), ("epochs", "steps")):
            if f"train.{name}" in settings and f"train.{other}" not in settings:
                train.pop(other, None)
    kind = tokenizer.get("kind", TokenizerConfig().kind)
    if settings.get("tokenizer.kind", kind) != kind:
        table["tokenizer"] = {key: value for key, value in tokenizer.items() if key not in KIND_SETTINGS}


def _is_of_other_family(source: str, model: Mapping[str, Any]) -> bool:
    """Whether the weights at `source` are of another family than a [model] table: if they are not there, later checks
    say so."""
    try:
        return family_of_source(source) != (_family_of(model) or family_of_source(str(model["init_from"])))
    except ConfigError:
        return False


def _family_of(model: Mapping[str, Any]) -> str:
    """The family of a [model] table; empty if it is that of the weights to start from."""
    if "init_from" in model and not {"family", "name"} & model.keys():
        return ""
    preset = PRESETS.get(str(model.get("name", DEFAULT_MODEL)))
    return str(model.get("family") or (preset.family if preset is not None else model.get("name")))


RECIPES = Path(__file__).parent.parent / "recipes"


def find_recipe(path: str | Path) -> Path:
    """The path of a recipe: a TOML file, the recipe of a run, or a shipped recipe by name."""
    file, shipped = Path(path), RECIPES / f"{path}.toml"
    if Run.exists(file):
        return Run(file).recipe_file
    if file.is_file():
        return file
    if shipped.is_file():
        return shipped
    names = [p.stem for p in sorted(RECIPES.glob("*.toml"))]
    if str(path) in FAMILIES or str(path) in PRESETS:
        raise ConfigError(_explain_model_name(str(path)))
    recipes = {name: name for name in names} | {p.stem: str(p) for p in sorted(file.parent.glob("*.toml"))}
    near = did_you_mean([recipes[stem] for stem in nearest(file.stem, recipes)])
    if file.parent != Path() and not file.suffix:  # runs/NAME
        near = suggest_run(path) or near
    raise ConfigError(
        f"no recipe {str(path)!r}: neither a TOML file nor a shipped recipe."
        + (near or f" Shipped: {', '.join(names)}")
    )


RECIPE_BY_FAMILY = {  # a small recipe for each family whose data is not plain text
    "transformer": "reverse",
    "seq2seq": "reverse",
    "bahdanau": "reverse",
    "ngram": "ngram",
}


def _explain_model_name(name: str) -> str:
    """Why the name of a family or a preset is not that of a recipe, and the command that trains such a model."""
    if name in PRESETS:
        return f"{name} is a preset of a model, not a recipe: headway train demo --set model.name={name}"
    recipe = RECIPE_BY_FAMILY.get(name, "demo")
    table = tomllib.loads((RECIPES / f"{recipe}.toml").read_text(encoding="utf-8"))
    settings = "" if _family_of(table.get("model", {})) == name else f" --set model.family={name}"
    if name in ("bilstm", "bow"):
        settings += " --set train.objective=classify --set data.path=FILE"
    return f"{name} is a model family, not a recipe: headway train {recipe}{settings}"


def apply_setting(table: dict[str, Any], override: str) -> None:
    """Set "table.key=value" in a nested table."""
    _set(table, *parse_setting(override))


def parse_setting(override: str) -> tuple[str, Any]:
    """ "train.steps=100" → ("train.steps", 100). The value is parsed as TOML, or taken as text if it is not TOML."""
    key, equals, raw = override.partition("=")
    keys = [name.strip() for name in key.split(".")]
    if not equals or not all(keys):
        raise ConfigError(f"--set {override!r} is not of the form table.key=value, such as train.steps=100")
    try:
        parsed = parse_toml(f"value = {raw}")
        value = parsed["value"] if len(parsed) == 1 else raw.strip()
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    if not isinstance(value, str) and _is_text(keys):
        value = raw.strip()  # such as a column number
    return ".".join(keys), value


def _set(table: dict[str, Any], key: str, value: Any) -> None:
    *tables, name = key.split(".")
    for part in tables:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {key}={value}: {part!r} is a value, not a table")
    table[name] = value


def changed_settings(
    before: Recipe, after: Recipe, tables: Sequence[str] = ("data", "train", "eval")
) -> dict[str, str]:
    """The settings of these tables that differ, with their values in `after` as `--set` takes them."""
    changed = {}
    for table in tables:
        old, new = getattr(before, table), getattr(after, table)
        for name in new.__struct_fields__:
            if getattr(old, name, None) != (value := getattr(new, name)):
                plain = msgspec.to_builtins(value)
                text = "none" if plain is None else plain if isinstance(plain, str) else toml_value(plain)
                changed[f"{table}.{name}"] = text
    return changed


def _is_text(keys: Sequence[str]) -> bool:
    """Whether a setting outside the [model] table is a string or None."""
    kind: Any = Recipe
    for key in keys:
        kind = get_type_hints(kind).get(key) if hasattr(kind, "__struct_fields__") else None
    return kind is str or (get_origin(kind) in (Union, UnionType) and set(get_args(kind)) == {str, type(None)})
