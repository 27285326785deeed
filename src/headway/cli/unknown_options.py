"""Answers to options that a command does not have: what the user probably meant, in one line.

$ headway train demo --steps 20
Error: no option --steps; a setting of the recipe is set with --set train.steps=20
$ headway generate runs/demo --temp 0.5
Error: no option --temp; did you mean --temperature?
$ headway generate runs/demo --prompt Once
Error: no option --prompt; the prompt is an argument: headway generate runs/demo "Once"
"""

import re
import shlex
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

# The flags of earlier versions.
OLD_NAMES = {
    "--channel": "--reverse-model",
    "--longer": "--long-data",
    "--mirostat-tau": "--mirostat-v2-tau",
    "--order": "--sampler-order",
    "--part": "--split",
    "--places": "--n-positions",
    "--preset": "--sampler-preset",
    "--quantity": "--metric",
    "--scheme": "--tag-scheme",
    "--show": "--print-config",
    "--special": "--special-token",
    "--test": "--test-fraction",
    "--valid": "--valid-fraction",
    "--within": "--atol",
    "--words": "--pre-tokenizer",
}
# What other tools call an option.
SYNONYMS = {
    "--batch": "--batch-size",
    "--beam-size": "--num-beams",
    "--beams": "--num-beams",
    "--file": "--in",
    "--input": "--in",
    "--iterations": "--steps",
    "--learning-rate": "--lr",
    "--length": "--max-new-tokens",
    "--max-length": "--max-new-tokens",
    "--max-tokens": "--max-new-tokens",
    "--num-return-sequences": "-n",
    "--output": "--out",
    "--output-dir": "--out",
}
# Options of other sub-commands of `headway show`, for the same thing.
SIZES = {"--length": "--size", "--size": "--length", "--d-model": "--width", "--n-heads": "--heads"}
TABLES = ("model", "tokenizer", "data", "train", "eval")


def explain_unknown_option(option: str, arguments: list[str], ctx: Any) -> str:
    """One line about `option`, which the command of `ctx` does not have; `arguments` are all that were given."""
    options, answer = _long_options(ctx), f"no option {option}"
    if (new := OLD_NAMES.get(option)) in options:
        return f"{answer}; its name is {new} now"
    option = _as_typed(option, arguments)
    if f"-{option}" in options:  # one dash too few
        return f"{answer}; did you mean -{option}?"
    dashed = option.replace("_", "-")
    for meant in (SYNONYMS.get(dashed, dashed), SIZES.get(dashed)):
        if meant in options or meant in _short_options(ctx):
            return f"{answer}; did you mean {meant}?"
    if example := _as_argument(option, arguments, ctx):
        return f"{answer}; the {_setting_name(option)} is an argument: {example}"
    option = SYNONYMS.get(option, option)
    if "--set" in options:
        name, value = _setting_name(option), _value(option, arguments)
        if "--sampler-order" in options:
            if name in sampler_settings():
                return f"{answer}; a setting of a sampler is set with --set {name}={value}"
        elif name in ("epochs", "num_epochs", "max_epochs"):
            return f"{answer}; use --set train.epochs=N for examples, --set train.steps=N for running text"
        elif settings := matching_settings(name):
            choices = " or ".join(f"--set {setting}={value}" for setting in settings)
            return f"{answer}; a setting of the recipe is set with {choices}"
    near = [name for name in options if name.startswith(option)] or get_close_matches(option, options, n=3, cutoff=0.7)
    if near:
        return f"{answer}; did you mean {_listed(near[:4], 'or')}?"
    if ctx.parent is None and option in _names_of_every_command(ctx):
        return f"{answer} of headway itself; it stands after the command: headway COMMAND {option} …"
    if commands := [command for command, names in _options_by_command(ctx).items() if option in names]:
        return f"{answer}; it is an option of {_listed(commands[:4], 'and')}"
    if settings := matching_settings(_setting_name(option)):
        value = _value(option, arguments)
        return f"{answer}; it is a setting of training: headway train RECIPE --set {settings[0]}={value}"
    if "--set" in options and "--sampler-order" not in options:
        names = [setting.partition(".")[2] for setting in recipe_settings()]
        if close := get_close_matches(_setting_name(option), names, n=1, cutoff=0.75):
            (setting, *_) = matching_settings(close[0])
            return f"{answer}; did you mean --set {setting}={_value(option, arguments)}?"
    return f"{answer}; {ctx.command_path} --help lists the options"


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────────────────


def recipe_settings() -> list[str]:
    """Every setting of a recipe, such as train.steps; those of the model are those of every family."""
    from headway.config import FAMILIES, Recipe
    from headway.config.recipe import FINETUNE_SETTINGS

    default = Recipe()
    names = {table: list(getattr(default, table).__struct_fields__) for table in TABLES if table != "model"}
    of_families = [name for config in FAMILIES.values() for name in config.__struct_fields__]
    names["model"] = ["name", "family", *of_families, *FINETUNE_SETTINGS]
    derived = {"model.vocab_size", "model.bos_id", "model.eos_id"}  # set by the tokenizer
    settings = dict.fromkeys(f"{table}.{name}" for table in TABLES for name in names[table])
    return [setting for setting in settings if setting not in derived]


def matching_settings(name: str) -> list[str]:
    """The settings of a recipe with this name, with its table or without: steps → train.steps. Other tools' names for
    a setting, such as learning_rate, are understood too."""
    from headway.config.renamed import RENAMED
    from headway.config.renamed import SYNONYMS as OTHER_NAMES

    settings = recipe_settings()
    if name in settings:
        return [name]
    matching_settings = [setting for setting in settings if setting.partition(".")[2] == name]
    if matching_settings:
        return sorted(matching_settings, key=lambda setting: not setting.startswith("train."))[:3]
    for old, new in RENAMED.items():
        if name in (old, old.partition(".")[2]):
            return [f"{old.partition('.')[0]}.{new}"]
    return [OTHER_NAMES[name]] if name in OTHER_NAMES else []


def sampler_settings() -> set[str]:
    from headway.sampling.specs import FLAT_NAMES, SHARED_PARAMETERS

    return {*FLAT_NAMES, *SHARED_PARAMETERS}


def _setting_name(option: str) -> str:
    return option.lstrip("-").partition("=")[0].replace("-", "_")


# ── what was typed ────────────────────────────────────────────────────────────────────────────────────────────────


def _as_typed(option: str, arguments: list[str]) -> str:
    """The whole option: a parser that reads -top-k as short options complains about -t."""
    if option.startswith("--"):
        return option
    return next((word.partition("=")[0] for word in arguments if word.startswith(option)), option)


def _value(option: str, arguments: list[str]) -> str:
    """The value of an option; VALUE if there is none."""
    return value_of(option, arguments) or "VALUE"


def value_of(option: str, arguments: list[str]) -> str | None:
    """The value that follows an option, or that it has after "="."""
    for i, word in enumerate(arguments):
        name, sign, value = word.partition("=")
        if name != option and SYNONYMS.get(name) != option:
            continue
        if sign:
            return value
        following = arguments[i + 1 : i + 2]
        if following and re.match(r"[^-]|-[\d.]", following[0]):
            return following[0]
    return None


def _as_argument(option: str, arguments: list[str], ctx: Any) -> str:
    """The command that gives `option` as an argument, if the command of `ctx` has one of that name."""
    names = [parameter.name for parameter in _arguments(ctx)]
    if (name := _setting_name(option)) not in names:
        return ""
    value = _value(option, arguments)
    words = {name: name.upper() if value == "VALUE" else value if name == names[0] else in_quotes(value)}
    if name != names[0] and arguments and not arguments[0].startswith("-"):
        words[names[0]] = arguments[0]
    return " ".join([ctx.command_path, *(words.get(n, n.upper()) for n in names[: names.index(name) + 1])])


def in_quotes(text: str) -> str:
    """The text in quotes for a shell, in double ones if they do."""
    return shlex.quote(text) if set(text) & set('"$`\\!') else f'"{text}"'


# ── commands and their options ────────────────────────────────────────────────────────────────────────────────────


def _long_options(ctx: Any) -> list[str]:
    return [name for name in _names(ctx.command, ctx) if name.startswith("--")]


def _short_options(ctx: Any) -> list[str]:
    return [name for name in _names(ctx.command, ctx) if not name.startswith("--")]


def _names(command: Any, ctx: Any) -> Iterator[str]:
    for parameter in command.get_params(ctx):
        if parameter.param_type_name == "option":
            yield from (*parameter.opts, *parameter.secondary_opts)


def _arguments(ctx: Any) -> list[Any]:
    return [parameter for parameter in ctx.command.get_params(ctx) if parameter.param_type_name == "argument"]


def _names_of_every_command(ctx: Any) -> set[str]:
    """The options that all commands have: --plugin."""
    options = [names for command, names in _options_by_command(ctx).items() if names - {"-h", "--help"}]
    return set.intersection(*options) if options else set()


def _options_by_command(ctx: Any) -> dict[str, set[str]]:
    """Every other command and its options."""

    def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        yield path, command
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, f"{path} {name}")

    root = ctx.find_root()
    commands = walk(root.command, "headway")
    return {path: set(_names(command, ctx)) for path, command in commands if command is not ctx.command}


def _listed(names: list[str], word: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}"
