"""The command line: `headway VERB …`, one file per verb, each a thin shell over a public function.

Results go to stdout, progress to stderr. Exit codes: 0 done, 1 failed, 2 misused, 130 interrupted. Torch is imported
inside the verbs that need it, so that `--help` is instant.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from headway import __version__
from headway.cli import (
    check,
    compare,
    convert,
    data,
    demo,
    evaluate,
    generate,
    lr_find,
    show,
    tokenizer,
    train,
    translate,
)
from headway.errors import HeadwayError

app = typer.Typer(
    name="headway",
    help="Build, train and use the models of the Transformer lectures.",
    epilog="Begin with: headway demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich help costs more time than all the rest
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"headway {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    pass


app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("generate")(generate.generate)
app.command("translate")(translate.translate)
app.command("eval")(evaluate.evaluate)
app.command("compare")(compare.compare)
app.command("data")(data.data)
app.add_typer(tokenizer.app, name="tokenizer")
app.add_typer(check.app, name="check")
app.add_typer(show.app, name="show")
app.command("lr-find")(lr_find.lr_find)
app.command("convert")(convert.convert)


@contextmanager
def _in_order() -> Iterator[None]:
    """Who is told to end (SIGTERM, a terminal that closes) ends as after an error, with nothing half written."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()
    asked = [n for n in (signal.SIGTERM, signal.SIGHUP) if is_main and signal.getsignal(n) is signal.SIG_DFL]
    for number in asked:  # `nohup` has one ignored
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in asked:
            if signal.getsignal(number) is leave:  # a run with a last word to say has SIGTERM ignored until it is out
                signal.signal(number, signal.SIG_DFL)


def main(argv: list[str] | None = None) -> None:
    """Run a command line; errors that are the user's to solve become one line on stderr and an exit code."""
    try:
        with _in_order():
            app(args=argv, prog_name="headway")
    except HeadwayError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except BrokenPipeError:  # `headway … | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"Error: {what}", file=sys.stderr)
        raise SystemExit(1) from None
