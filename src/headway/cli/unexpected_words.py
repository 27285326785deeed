"""Errors about unexpected words on the command line: unknown commands, too many arguments, values that are not numbers,
and bytes that are not text.

$ headway sample runs/demo
Error: no command 'sample'; did you mean headway generate?
$ headway show curves runs/demo --x stpe
Error: Invalid value for '-x' / '--x': 'stpe' is not one of 'step', 'seconds', 'tokens'. Did you mean 'step'?
$ headway generate runs/demo Once upon a time
Error: too many arguments; quote the prompt: headway generate runs/demo "Once upon a time"
$ headway train demo --set train.steps = 20
Error: too many arguments; --set takes NAME=VALUE without spaces: --set train.steps=20
"""

import re
import shlex
from typing import Any

from headway.cli.unknown_options import in_quotes
from headway.errors import alternatives, did_you_mean, nearest, suggest

# What other tools call a command.
COMMANDS = {
    "complete": "generate",
    "evaluate": "eval",
    "fit": "train",
    "gen": "generate",
    "list": "runs",
    "ls": "runs",
    "lr_find": "lr-find",
    "perplexity": "eval",
    "plot": "show",
    "run": "generate",
    "sample": "generate",
    "test": "eval",
    "tokenize": "tokenizer",
}
TEXTS = ("prompt", "text", "target")  # arguments that may hold several words


def explain_unknown_command(name: str, ctx: Any) -> str:
    """One line about a command that the group of `ctx` does not have: what other tools call it, the nearest names, or
    a command of another group."""
    here, root = ctx.command.commands, ctx.find_root()
    full_names = {
        word: f"{root.command_path} {group} {word}"
        for group, command in root.command.commands.items()
        for word in getattr(command, "commands", {})
    } | {word: f"{root.command_path} {word}" for word in root.command.commands}
    if (meant := COMMANDS.get(name)) in here:
        return f"no command {name!r}; did you mean {ctx.command_path} {meant}?"
    near = nearest(name, full_names)
    if near and near[0] in here:
        return f"No such command {name!r}.{did_you_mean([word for word in near if word in here])}"
    if near:
        return f"no command {name!r}; did you mean {alternatives([full_names[word] for word in near])}?"
    return f"No such command {name!r}; {ctx.command_path} --help lists the commands"


def explain_unreadable_words(words: list[str]) -> str:
    """An error about the first word that is not UTF-8 or has a zero byte; empty if there is none."""
    for number, word in enumerate(words, 1):
        if "\0" in word:
            return f"word {number} of the command line holds a zero byte: leave it out"
        if any("\ud800" <= character <= "\udfff" for character in word):  # how Python passes on undecodable bytes
            shown = word[:60].encode("ascii", "backslashreplace").decode()
            return f"word {number} of the command line is not UTF-8: {shown}; type it, or rename the file, in UTF-8"
    return ""


def explain_extra_arguments(extra: list[str], words: list[str], ctx: Any) -> str:
    """One line about arguments that the command of `ctx` does not take; `words` are all that were given."""
    if setting := _setting_with_spaces(words):
        return f"too many arguments; --set takes NAME=VALUE without spaces: --set {shlex.quote(setting)}"
    arguments = [p.name for p in ctx.command.get_params(ctx) if p.param_type_name == "argument"]
    texts = [name for name in arguments if name in TEXTS]
    if texts:
        text = " ".join([*(ctx.params[name] or "" for name in texts), *extra])
        others = [shlex.quote(str(ctx.params[name])) for name in arguments if name not in TEXTS]
        return f"too many arguments; quote the {texts[0]}: {' '.join([ctx.command_path, *others])} {in_quotes(text)}"
    takes = f"takes only {' and '.join(name.upper() for name in arguments)}" if arguments else "takes no arguments"
    return f"unexpected {' '.join(map(repr, extra))}: {ctx.command_path} {takes}"


def _setting_with_spaces(words: list[str]) -> str:
    """The setting in `--set train.steps = 20` or `--set train.steps 20`, as it should be: "train.steps=20"."""
    for i, word in enumerate(words[:-2]):
        if word == "--set" and re.fullmatch(r"[\w.:-]+=?", words[i + 1]):
            name, *rest = (words[i + 1].rstrip("="), *words[i + 2 : i + 4])
            value = next((text for text in (word.lstrip("=") for word in rest) if text), "")
            if value and not value.startswith("-"):
                return f"{name}={value}"
    return ""


def explain_value(message: str, value: str | None) -> str:
    """The parser's message about a value in plain words, with the nearest of the values that may be chosen; `value` is
    that of an option, None for an argument."""
    message = message.removeprefix("Value error, ")
    if choice := re.fullmatch(r"'(.*)' is not one of ('.*)", message, re.DOTALL):
        return message + suggest(choice[1], re.findall(r"'([^']*)'", choice[2]))
    if value is not None and re.search(r"valid (float|number)", message):
        return f"{value!r} is not a number"
    return f"{value!r} is not a whole number" if value is not None and "valid integer" in message else message
