"""The command line: `headway VERB …`, one file per verb, each a thin shell over a public function.

Results go to stdout, progress to stderr. Exit codes: 0 success, 1 failure, 2 misuse, 130 interrupted, 128 + n ended by
signal n. The module of a verb is imported when it is used, and torch when it runs, so that `--help` is instant.
"""

import os
import sys
import warnings
from pathlib import Path
from typing import TextIO

import typer

from headway import __version__
from headway.cli.help import CommandApp, Sections
from headway.errors import HeadwayError
from headway.termination import exit_on_signals

app = CommandApp(
    name="headway",
    help="Build, train, compare and use the models of every Transformer course, from n-grams to GPT and BERT.",
    epilog="Start with: headway demo. For options and examples: headway train --help.",
    add_completion=True,
)


def _print_version(is_given: bool) -> None:
    if is_given:
        print(f"headway {__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: bool = typer.Option(
        False,
        "--version",
        callback=_print_version,
        is_eager=True,
        help="Print the version and exit.",
    ),
) -> None:
    pass


VERBS: Sections = {
    "Train": [
        ("demo", "Train a small GPT in a little over a minute and sample from it.", "demo"),
        ("train", "Train a model from a recipe, or resume a run.", "train"),
        ("lr-find", "Find a learning rate.", "lr_find"),
        ("sweep", "Train a recipe with many settings, and rank the runs.", "sweep"),
        ("compare", "Train several models on the same data and budget, and score them.", "compare"),
    ],
    "Use": [
        ("generate", "Generate text with a language model.", "generate"),
        ("translate", "Translate texts with a sequence-to-sequence model.", "translate"),
        ("classify", "Classify texts: labels and their probabilities.", "classify"),
        ("tag", "Tag the words of texts, such as named entities.", "tag"),
        ("answer", "Answer questions from a passage.", "answer"),
        ("fill", "Fill the masks of texts with a masked language model.", "fill"),
        ("embed", "Embed texts as vectors, or rank them by similarity.", "embed"),
        ("convert", "Convert a model to or from other formats.", "convert"),
    ],
    "Look inside": [
        ("runs", "List runs with their settings, status and scores.", "runs"),
        ("models", "List published models and presets with their sizes.", "models"),
        ("cost", "Count parameters, FLOPs, bytes and memory of a model.", "cost"),
        ("score", "Score a text token by token: p, ln p, rank, running sum.", "score"),
        ("quiz", "Ask a quiz of the lectures, and judge your answer.", "quiz"),
        ("show", "Show attention, positions, layers, samplers and training curves.", "show"),
    ],
    "Check": [
        ("eval", "Score a model on held-out text.", "evaluate"),
        ("check", "Check resume, caching, batching, a model's contract, homework.", "check"),
    ],
    "Data": [
        ("data", "Summarise a data source.", "data"),
        ("tokenizer", "Train, use and compare tokenizers.", "tokenizer"),
    ],
}
app.add_sections(VERBS, package=__name__)


PACKAGE = str(Path(__file__).parents[1])
show_warning = warnings.showwarning


def show_note(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning of this package as a line, without the place in its source code."""
    if filename.startswith(PACKAGE):
        print(f"note: {message}", file=sys.stderr)
    else:
        show_warning(message, category, filename, lineno, file, line)


def main(argv: list[str] | None = None) -> None:
    """Run a command line. Errors that the user can fix become one line on stderr and an exit code."""
    if argv is None:  # the process runs this command only
        warnings.showwarning = show_note
    try:
        with exit_on_signals(has_deadline=argv is None):  # the process runs this command only
            app(args=argv, prog_name="headway")
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "interrupted", file=sys.stderr)
        raise SystemExit(130) from None
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
    except MemoryError:
        print("Error: out of memory: use a smaller model, a smaller batch or less data at a time", file=sys.stderr)
        raise SystemExit(1) from None
    except RecursionError:
        print("Error: the input is nested too deeply: use a simpler one", file=sys.stderr)
        raise SystemExit(1) from None
