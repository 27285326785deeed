"""The command line: `headway VERB …`, one file per verb, each a thin shell over a public function.

Results go to stdout, progress to stderr. Exit codes: 0 success, 1 failure, 2 misuse, 130 interrupted. Verbs import
torch when they run, so that `--help` is instant.
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
    help="Build, train, compare and use the models of the Transformer lectures, from n-grams to GPT and BERT.",
    epilog="Start with: headway demo. Each command has examples: headway train --help.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich makes --help several times slower
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_given: bool) -> None:
    if is_given:
        print(f"headway {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


app.command("demo", short_help="Train a small GPT in a minute and show what it learns.")(demo.demo)
app.command("train", short_help="Train a model from a recipe, or resume a run.")(train.train)
app.command("generate", short_help="Generate text with a language model.")(generate.generate)
app.command("translate", short_help="Translate texts with a sequence-to-sequence model.")(translate.translate)
app.command("eval", short_help="Score a model on held-out text.")(evaluate.evaluate)
app.command("compare", short_help="Compare models on the same data and budget.")(compare.compare)
app.command("data", short_help="Summarise a data source.")(data.data)
app.command("convert", short_help="Convert a model to or from other formats.")(convert.convert)
app.command("lr-find", short_help="Find a learning rate.")(lr_find.lr_find)
app.add_typer(tokenizer.app, name="tokenizer", short_help="Train, use and compare tokenizers.")
app.add_typer(show.app, name="show", short_help="Show the inside of models and runs.")
app.add_typer(check.app, name="check", short_help="Check resume, caching and batching.")


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit inside the block, so that cleanup runs and no partial file is left."""

    def exit_cleanly(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()
    # Only default handlers are replaced: under `nohup`, SIGHUP stays ignored.
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if is_main and signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, exit_cleanly)
    try:
        yield
    finally:
        for number in numbers:
            if signal.getsignal(number) is exit_cleanly:  # a failing rank ignores SIGTERM until its error is printed
                signal.signal(number, signal.SIG_DFL)


def main(argv: list[str] | None = None) -> None:
    """Run a command line. Errors that the user can fix become one line on stderr and an exit code."""
    try:
        with _exit_on_signals():
            app(args=argv, prog_name="headway")
    except HeadwayError as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except BrokenPipeError:  # `headway … | head` closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        description = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print(f"Error: {description}", file=sys.stderr)
        raise SystemExit(1) from None
