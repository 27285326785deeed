"""How commands are declared and how their help is laid out.

`CommandApp` is a Typer app whose commands share four things: help that fits 80 columns with nothing cut off, answers to
unknown options and words (unknown_options.py, unexpected_words.py), refusals of options without effect
(option_use.py), and `--plugin`, which imports your own module before the command runs.

Help has sections. An option names its own, `typer.Option(rich_help_panel="Search")`; commands stand in a table,
`app.add_sections({"Train": [("demo", "Train a small GPT.", "demo")]}, package="headway.cli")`. What names none comes
first; examples come last. The commands of a table are loaded lazily: a command line imports the module of its own
command only, so that `headway` starts fast.
"""

import functools
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from headway.cli.colors import bold, use_colors
from headway.cli.option_use import checked_options
from headway.cli.unexpected_words import (
    explain_extra_arguments,
    explain_unknown_command,
    explain_unreadable_words,
    explain_value,
)
from headway.cli.unknown_options import explain_unknown_option, value_of
from headway.entry_points import PLUGINS_VARIABLE

# Recent versions of Typer carry their own copy of click: the class is found beside a public one, in either.
NoSuchOption: Any = sys.modules[typer.BadParameter.__module__].NoSuchOption

# Section of a group's help → its commands: name, one sentence, and the module with the function of the same name, or
# with the `app` of its sub-commands.
Sections = dict[str, list[tuple[str, str, str]]]

GENERAL = "General"  # the last section of a command: the options that every command has
COLUMN_WIDTH = 24  # of the names of options; longer ones stand on a line of their own
VALUE_NAMES = {"int": "N", "float": "X", "str": "TEXT", "path": "PATH", "file": "FILE", "directory": "FOLDER"}

Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin", metavar="MODULE", rich_help_panel=GENERAL, help="Import your own module first; repeatable."
    ),
]


class CommandApp(typer.Typer):
    """A Typer app with our help and errors, whose commands all take `--plugin`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            cls=VerbGroup,
            no_args_is_help=True,
            rich_markup_mode=None,  # rich makes --help several times slower
            pretty_exceptions_enable=False,
            context_settings={"help_option_names": ["-h", "--help"]},
            **{"add_completion": False, **options},
        )

        self.lazy_commands: LazyCommands | None = None

    @functools.cached_property
    def parser(self) -> Any:
        """The command, or the group with its commands, which Typer builds anew for every call."""
        is_empty = not self.registered_commands and not self.registered_callback  # which get_command refuses
        parser: Any = typer.main.get_group(self) if is_empty else typer.main.get_command(self)
        if self.lazy_commands is not None:
            parser.commands = self.lazy_commands
        return parser

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.parser(*args, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        register = super().command(name, **{"cls": Verb, **options})

        def decorate(verb: Any) -> Any:
            register(_with_plugins(verb))
            return verb

        return decorate

    def add_sections(self, sections: Sections, *, package: str) -> None:
        """Take the commands of a table, in its order, from the modules of a package."""
        self.lazy_commands = LazyCommands(sections, package)


class LazyCommands(Mapping[str, Any]):
    """The commands of a table by name. A command is imported, and its options are built, when it is looked up."""

    def __init__(self, sections: Sections, package: str):
        self.sections, self.package = sections, package
        self.modules = {name: module for commands in sections.values() for name, _, module in commands}
        self.summaries = {name: summary for commands in sections.values() for name, summary, _ in commands}
        self.loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.loaded:
            self.loaded[name] = self._load(name)
        return self.loaded[name]

    def _load(self, name: str) -> Any:
        module = import_module(f"{self.package}.{self.modules[name]}")
        app = getattr(module, "app", None)
        if app is None:
            app = CommandApp()
            app.command(name)(getattr(module, self.modules[name]))
        command = app.parser
        command.name, command.short_help = name, self.summaries[name]
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)

    def __contains__(self, name: object) -> bool:
        return name in self.modules


class Verb(TyperCommand):
    """A command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        command_line = list(args)  # parsing empties the list
        ctx.allow_extra_args = True  # they are answered below
        try:
            extra: list[str] = super().parse_args(ctx, args)
        except NoSuchOption as error:
            return ctx.fail(explain_unknown_option(error.option_name, command_line, ctx))  # raises
        except typer.BadParameter as error:
            names = getattr(error.param, "opts", [])
            values = (value_of(name, command_line) for name in names if name.startswith("-"))
            error.message = explain_value(error.message, next((value for value in values if value is not None), None))
            raise
        if extra and not ctx.resilient_parsing:
            ctx.fail(explain_extra_arguments(extra, command_line, ctx))
        return extra

    def invoke(self, ctx: Any) -> Any:
        try:
            with checked_options(self, ctx):
                return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            print(str(interrupt) or "interrupted", file=sys.stderr)
            raise typer.Exit(130) from None

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        names = [_argument_name(parameter) for parameter in _arguments(self.get_params(ctx))]
        return [self.options_metavar or "", *names]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        _write_text(formatter, _split_help(self.help)[0])

    def format_options(self, ctx: Any, formatter: Any) -> None:
        parameters = self.get_params(ctx)
        arguments = [(_argument_name(p).strip("[]."), p.get_help_record(ctx)) for p in _arguments(parameters)]
        # The usage line shows which arguments are required.
        sections = {"Arguments": [(name, record[1].removesuffix("[required]")) for name, record in arguments if record]}
        sections |= _option_sections(parameters, ctx)
        write_sections(formatter, sections)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        _write_examples(formatter, _split_help(self.help)[1])


class VerbGroup(TyperGroup):
    """A group of commands: `headway` itself, or `headway show`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        command_line = list(args)
        if not ctx.resilient_parsing and (problem := explain_unreadable_words(command_line)):
            ctx.fail(problem)
        try:
            return super().parse_args(ctx, args)
        except NoSuchOption as error:
            return ctx.fail(explain_unknown_option(error.option_name, command_line, ctx))  # raises

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not ctx.resilient_parsing:
            ctx.fail(explain_unknown_command(args[0], ctx))
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        if isinstance(self.commands, LazyCommands):
            sections = {title: [row[:2] for row in rows] for title, rows in self.commands.sections.items()}
        else:
            sections = {"Commands": [(name, _summary(command)) for name, command in self.commands.items()]}
        write_sections(formatter, sections)
        # A column of their own: the names of options are much longer than those of commands.
        write_sections(formatter, _option_sections(self.get_params(ctx), ctx))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Where the group has no epilog of its own: an example per section, or per command of a single section."""
        if self.epilog:
            super().format_epilog(ctx, formatter)
            return
        names = list(self.commands)
        if isinstance(self.commands, LazyCommands):
            names = [rows[0][0] for rows in self.commands.sections.values()]
        _write_examples(
            formatter, [example for name in names for example in _split_help(self.commands[name].help)[1][:1]]
        )


# ── plug-ins ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _with_plugins(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with the option --plugin, which imports modules and is not passed on."""
    signature = inspect.signature(verb)

    @functools.wraps(verb)
    def wrapped(*, plugins: list[str] | None = None, **values: Any) -> None:
        with _loaded_plugins(plugins or []):
            verb(**values)

    option = inspect.Parameter("plugins", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Plugins)
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in signature.parameters.values()]
    wrapped.__signature__ = signature.replace(parameters=[*parameters, option])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {**verb.__annotations__, "plugins": Plugins}
    return wrapped


@contextmanager
def _loaded_plugins(names: list[str]) -> Iterator[None]:
    """Import plug-ins, and name them in the environment while the command runs, for the processes it starts."""
    before = os.environ.get(PLUGINS_VARIABLE)
    modules = [name.strip() for name in (before or "").split(",") if name.strip()] + names
    if not modules:
        yield
        return
    from headway.plugins import load_plugin

    for name in dict.fromkeys(modules):
        load_plugin(name)
    os.environ[PLUGINS_VARIABLE] = ",".join(dict.fromkeys(modules))
    try:
        yield
    finally:
        if before is None:
            del os.environ[PLUGINS_VARIABLE]
        else:
            os.environ[PLUGINS_VARIABLE] = before


# ── layout ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _arguments(parameters: list[Any]) -> list[Any]:
    return [parameter for parameter in parameters if parameter.param_type_name == "argument"]


def _argument_name(parameter: Any) -> str:
    """MODEL, [TEXT] or [MODELS]...: as the usage line writes an argument."""
    name = parameter.metavar or parameter.name.upper()
    return (name if parameter.required else f"[{name}]") + ("..." if parameter.nargs != 1 else "")


def _option_sections(parameters: list[Any], ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """Section → names and help of its options, the general ones last."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for parameter in parameters:
        record = parameter.get_help_record(ctx)
        if parameter.param_type_name != "option" or record is None:
            continue
        section = getattr(parameter, "rich_help_panel", None) or "Options"
        if parameter.name == "help" and GENERAL in sections:
            section = GENERAL
        sections.setdefault(section, []).append((_with_value_name(record[0]), record[1]))
    return sections | ({GENERAL: sections.pop(GENERAL)} if GENERAL in sections else {})


def _with_value_name(names: str) -> str:
    """ "--stop <list[str]>" → "--stop TEXT"."""
    kind = r"<(?:list\[)?([^\]>]+?)\]?(?: range)?>"
    return re.sub(kind, lambda found: VALUE_NAMES.get(found[1].lower(), found[1]), names)


def _summary(command: Any) -> str:
    """The first sentence of a command's help, or its short help; never cut off."""
    return command.short_help or " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())


def _write_text(formatter: Any, text: str) -> None:
    formatter.write_paragraph()
    with formatter.indentation():
        for i, paragraph in enumerate(text.split("\n\n")):
            indent = " " * formatter.current_indent
            wrapped = _wrap(" ".join(paragraph.split()), formatter.width - len(indent))
            formatter.write(("\n" if i else "") + textwrap.indent("\n".join(wrapped), indent) + "\n")


def write_sections(formatter: Any, sections: dict[str, list[tuple[str, str]]]) -> None:
    names = [name for rows in sections.values() for name, _ in rows]
    width = max([len(name) for name in names if len(name) <= COLUMN_WIDTH], default=COLUMN_WIDTH)
    for section, rows in sections.items():
        if rows:
            with formatter.section(_heading(section)):
                for name, help in rows:
                    _write_row(formatter, name, help, width)


def _write_examples(formatter: Any, examples: list[str]) -> None:
    if examples:
        with formatter.section(_heading("Examples" if len(examples) > 1 else "Example")):
            indent = " " * formatter.current_indent
            formatter.write("".join(f"{wrap_command(line, indent, formatter.width)}\n" for line in examples))


def _heading(title: str) -> str:
    return bold(title) if use_colors() else title


def _write_row(formatter: Any, name: str, help: str, width: int) -> None:
    indent = " " * formatter.current_indent
    gap = "\n" + " " * (len(indent) + width + 2)
    lines = _wrap(" ".join(help.split()), formatter.width - len(gap) + 1)
    first = f"{name:<{width}}  " if len(name) <= width else f"{name}{gap}"
    formatter.write(indent + first + gap.join(lines) + "\n")


def _wrap(text: str, width: int) -> list[str]:
    """Lines of text, broken at spaces only, so that --max-new-tokens stays whole."""
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False) or [""]


def _split_help(help: str | None) -> tuple[str, list[str]]:
    """The prose of a help text, and its examples."""
    prose, _, examples = re.sub(r"\x08\n?", "", inspect.cleandoc(help or "")).partition("\nExample")
    return prose.strip(), [line.strip() for line in examples.split("\n")[1:] if line.strip()]


def wrap_command(command: str, indent: str, width: int) -> str:
    """A command on as few lines as fit, joined by backslashes so that it can be pasted into a shell."""
    words = re.findall(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""", command)
    lines, line = [], indent + words[0]
    for i, word in enumerate(words[1:], 1):
        # An option and its value stay together.
        unit = f"{word} {words[i + 1]}" if word.startswith("-") and i + 1 < len(words) else word
        if len(line) + 1 + len(unit) + 2 > width:
            lines.append(line + " \\")
            line = f"{indent}    {word}"
        else:
            line += f" {word}"
    return "\n".join([*lines, line])
