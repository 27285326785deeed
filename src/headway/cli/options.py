"""Options and helpers that several verbs share."""

import copy
import functools
import inspect
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args

import typer

from headway.cli.completion import complete_recipe, complete_run, complete_setting

if TYPE_CHECKING:
    from headway.config import DataConfig
    from headway.tokenizers import Tokenizer

MAX_UNKNOWN_SHOWN = 10  # pieces of text that are not in the vocabulary
PICTURE_EXTENSIONS = (".png", ".svg", ".pdf")

Device = Annotated[str, typer.Option(show_default=False, help="cpu, cuda, cuda:1, …; default: CUDA if available.")]
Dtype = Annotated[str, typer.Option(show_default=False, help="float32, bfloat16, float16, float64; default: stored.")]
RecipeName = Annotated[
    str,
    typer.Argument(help="A shipped recipe by name, a TOML file, or a run.", autocompletion=complete_recipe),
]
BatchSize = Annotated[int, typer.Option(rich_help_panel="Loading", help="Texts per batch.")]
ModelPath = Annotated[
    str, typer.Argument(help="A model directory, or a run such as runs/demo.", autocompletion=complete_run)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Override a setting, such as train.steps=100; repeatable.",
        autocompletion=complete_setting,
    ),
]


# ── groups of options ─────────────────────────────────────────────────────────────────────────────────────────────


def with_option_groups(verb: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a verb whose type is a dataclass by one option per field of that dataclass.

    If the dataclass has a `section`, the help lists its options there. Rules of the parameter (see option_use.py)
    apply to all its options: `beams: Annotated[BeamFlags, OnlyWith("--num-beams")]`. A rule of the same type that an
    option has itself takes their place.
    """
    signature = inspect.signature(verb)
    types = {p.name: (get_args(p.annotation) or (p.annotation,)) for p in signature.parameters.values()}
    groups: dict[str, Any] = {name: group for name, (group, *_) in types.items() if is_dataclass(group)}

    @functools.wraps(verb)
    def wrapped(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        verb(**values)

    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name in groups:
            group, *rules = types[parameter.name]
            section = getattr(group, "section", None)
            parameters += [_parameter(f.name, f.default, _in_section(f.type, section, rules)) for f in fields(group)]
        else:
            parameters.append(_parameter(parameter.name, parameter.default, parameter.annotation))
    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapped


def _in_section(annotation: Any, section: str | None, rules: Sequence[Any]) -> Any:
    """The annotation of an option, with its section of the help and the rules of its group."""
    kind, option, *own_rules = get_args(annotation)
    option = copy.copy(option)  # `Json`, `Device`, … are shared by verbs
    option.rich_help_panel = option.rich_help_panel if section is None else section
    inherited = [rule for rule in rules if not any(isinstance(rule, type(own)) for own in own_rules)]
    return Annotated[kind, option, *own_rules, *inherited]


def _parameter(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)


@dataclass(frozen=True)
class LoadFlags:
    """Where and in which precision a model is loaded: the keyword arguments of `headway.load`."""

    section: ClassVar = "Loading"

    device: Device = "auto"
    dtype: Dtype = "auto"

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__dict__)


_COLUMN = "by name, or by number from 1 if the first row is not a header"


@dataclass(frozen=True)
class ReadFlags:
    """How to read a data source: the keyword arguments of `headway.data.open_source`."""

    section: ClassVar = "Reading"

    format: Annotated[
        str,
        typer.Option(help="text, lines, jsonl, csv, tsv, parquet, conll, squad or misspellings; auto: by file name."),
    ] = "auto"
    text: Annotated[str | None, typer.Option("--text", help=f"Column of the text, {_COLUMN}.")] = None
    pairs: Annotated[str | None, typer.Option("--pairs", help=f"Columns of pairs, SOURCE,TARGET, {_COLUMN}.")] = None
    separator: Annotated[
        str | None, typer.Option(help=r"Text between the documents of a text file; \n is a newline.")
    ] = None
    tag_scheme: Annotated[
        str, typer.Option(help="Tags of token-tag files: bio, bioes, iob1 (converted to BIO) or any.")
    ] = "bio"
    errors: Annotated[str, typer.Option(help="Bytes that are not UTF-8: strict (an error) or replace.")] = "strict"

    def options_for(self, source: str, target: str | None = None, label: str | None = None) -> dict[str, Any]:
        """The options for a source. A .tsv file of two columns is read as pairs, as training on pairs reads it."""
        options = self.__dict__ | {"separator": unescaped(self.separator)}
        is_plain = self.format == "auto" and not (self.text or self.pairs or target or label)
        if is_plain and os.path.isfile(source):
            from headway.data.readers import is_table_of_pairs

            if is_table_of_pairs(Path(source)):
                print("note: two columns without a header, read as pairs: --pairs 1,2", file=sys.stderr)
                options["pairs"] = "1,2"
        return options


@dataclass(frozen=True)
class BeamFlags:
    """Options of beam search beside the number of beams."""

    section: ClassVar = "Search"

    length_penalty: Annotated[float | None, typer.Option(help="Beams: above 0 favours long texts. Default: 1.")] = None
    length_norm: Annotated[
        str | None,
        typer.Option(help="Beams: power (length^α) or gnmt. Default: power."),
    ] = None
    early_stopping: Annotated[str | None, typer.Option(help="Beams: true, false or never. Default: false.")] = None

    @property
    def options(self) -> dict[str, Any]:
        """The options that were given, as keyword arguments of beam search."""
        values = {"length_penalty": self.length_penalty, "length_norm": self.length_norm}
        options: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
        if self.early_stopping is not None:
            parsed = {"true": True, "false": False, "never": "never"}
            if self.early_stopping.lower() not in parsed:
                raise typer.BadParameter(
                    f"{self.early_stopping} is not one of true, false or never", param_hint="--early-stopping"
                )
            options["early_stopping"] = parsed[self.early_stopping.lower()]
        return options


# ── checks ────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_minimum(flag: str, value: int | None, minimum: int = 1) -> None:
    if value is not None and value < minimum:
        raise typer.BadParameter(f"{value} is not at least {minimum}", param_hint=flag)


def check_output_file(file: Path | None, flag: str) -> None:
    """Refuse a file that cannot be written, before the work whose result it would hold."""
    if file is None:
        return
    if file.is_dir():
        raise typer.BadParameter(f"{file} is a folder: name a file", param_hint=flag)
    if file.exists() and not file.is_file():
        raise typer.BadParameter(f"{file} is not a regular file: name another", param_hint=flag)
    if not file.absolute().parent.is_dir():
        raise typer.BadParameter(f"the folder {file.parent} of {file.name} does not exist", param_hint=flag)


def check_new_file(file: Path | None, flag: str, *, overwrite: bool, ways_out: str = "add --overwrite") -> None:
    """Refuse an output file that cannot be written, or that exists and was not meant to be replaced."""
    from headway.errors import DataError

    check_output_file(file, flag)
    if file is not None and file.exists() and not overwrite:
        raise DataError(f"{file} already exists: name another file, or {ways_out}")


def check_picture(file: Path | None, flag: str = "--out") -> None:
    """Refuse a plot file that cannot be written, or whose extension is not that of a picture."""
    check_output_file(file, flag)
    if file is not None and file.suffix.lower() not in PICTURE_EXTENSIONS:
        raise typer.BadParameter(f"{file} does not end in .png, .svg or .pdf", param_hint=flag)


# ── input and output ──────────────────────────────────────────────────────────────────────────────────────────────


def unescaped(text: str | None) -> str | None:
    r"""The text with \n, \t and \r, which are hard to type in a shell, as the characters they stand for."""
    if text is not None:
        for escape, character in (("\\n", "\n"), ("\\t", "\t"), ("\\r", "\r")):
            text = text.replace(escape, character)
    return text


def read_text(file: str) -> str:
    """A text file without its byte-order mark, or stdin for "-". A pipe or a device is refused, not waited for."""
    from headway.data.text_files import decode_text
    from headway.errors import DataError
    from headway.file_reading import open_regular

    if file == "-":
        data = sys.stdin.buffer.read()
    else:
        try:
            with open_regular(file, error=DataError) as opened:
                data = opened.read()
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror}") from None
    return decode_text(data.removeprefix(b"\xef\xbb\xbf"), "stdin" if file == "-" else file)


def read_lines(file: str) -> list[str]:
    """The lines of a text file, or of stdin for "-"; empty lines are kept."""
    from headway.errors import DataError

    name = "stdin" if file == "-" else file
    lines = read_text(file).split("\n")
    lines = [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
    if not lines:
        raise DataError(f"{name} is empty: it should hold one text per line")
    return lines


def print_json(value: Any) -> None:
    from headway.files import non_finite_to_null

    print(json.dumps(non_finite_to_null(value), ensure_ascii=False))


def print_notes(pipe: Any) -> None:
    """Print the notes and warnings of a sampler pipeline to stderr."""
    for label, lines in (("note", pipe.notes), ("warning", pipe.warnings)):
        for line in lines:
            print(f"{label}: {line}", file=sys.stderr)


def note_unknown_text(tokenizer: "Tokenizer", texts: Sequence[str], noun: str) -> None:
    """Say on stderr which characters or words of the texts are not in the vocabulary: the model cannot see them."""
    unknown_by_number = {n: unknown for n, text in enumerate(texts, 1) if (unknown := tokenizer.unknown_text(text))}
    if not unknown_by_number:
        return
    number, unknown = next(iter(unknown_by_number.items()))
    pieces = list(dict.fromkeys(piece if piece.strip() else "↵" if "\n" in piece else "␣" for piece in unknown))
    shown = " ".join(pieces[:MAX_UNKNOWN_SHOWN])
    more = f" and {len(pieces) - MAX_UNKNOWN_SHOWN:,} more" if len(pieces) > MAX_UNKNOWN_SHOWN else ""
    others = f", and {len(unknown_by_number) - 1:,} more of {len(texts):,}" if len(unknown_by_number) > 1 else ""
    where = f" (in {noun} {number}{others})" if len(texts) > 1 else ""
    if len(pieces) == 1:
        fate = "it is dropped" if tokenizer.unk_id is None else "it becomes <unk>"
    else:
        fate = "they are dropped" if tokenizer.unk_id is None else "they become <unk>"
    print(f"note: the vocabulary lacks {shown}{more}{where}; {fate}", file=sys.stderr)


def describe_split(data: "DataConfig", split: str) -> str:
    """Where a held-out split of a run comes from: its own path, or a split of the run's data."""
    path = {"valid": data.valid_path, "test": data.test_path}[split]
    return path or f"{data.path}, {'validation' if split == 'valid' else 'test'} split"


def repeat_settings(settings: Sequence[str] | None, *, without: str = "") -> str:
    """The --set options that the user gave, for a suggested command; `without` names a setting that it sets anew.

    >>> repeat_settings(["train.lr=1", "data.path=my tales.txt"], without="train.lr")
    " --set 'data.path=my tales.txt'"
    """
    kept = [setting for setting in settings or [] if setting.partition("=")[0].strip() != without]
    return "".join(f" --set {shlex.quote(setting)}" for setting in kept)


def command(words: str) -> str:
    """A command to suggest to the user, with the plug-ins of the one that is running.

    >>> command("eval runs/demo")
    'headway eval runs/demo'
    """
    from headway.entry_points import plugin_options

    return f"{program()} {words}{plugin_options()}"


def program() -> str:
    """What the user types to run Headway: `headway`, or the path of that script if it is near and not on the PATH."""
    script = sys.argv[0]
    if shutil.which("headway") or not os.path.basename(script).startswith("headway"):
        return "headway"
    path = os.path.relpath(script)
    is_far = path.startswith(os.path.join("..", "..")) or len(path) > len(os.path.abspath(script))
    return "headway" if is_far else path


def warn_of_leak(model: Any) -> bool:
    """Whether a model sees what it predicts; if so, say it on stderr."""
    from headway.evaluation.leakage import LEAK_WARNING, sees_future

    is_leaking = sees_future(model)
    if is_leaking:
        print(f"warning: {LEAK_WARNING}", file=sys.stderr)
    return is_leaking
