"""headway score"""

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.eval_inputs import TextInput, read_text_input
from headway.cli.option_use import OnlyFor, check_options_for
from headway.cli.options import (
    Json,
    LoadFlags,
    ModelPath,
    check_minimum,
    check_picture,
    note_unknown_text,
    print_json,
    warn_of_leak,
    with_option_groups,
)
from headway.cli.show.common import Out, model_name, picture_path, print_picture, with_theme
from headway.runs import Run

if TYPE_CHECKING:
    from headway.analysis.token_scores import TextScore

PLAIN_WIDTH = 120  # columns of what is not a terminal


@with_theme
@with_option_groups
def score(
    model: ModelPath,
    text: Annotated[
        str | None, typer.Argument(help="The text; for a translation model, the source. Default: stdin.")
    ] = None,
    *,
    target: Annotated[
        str | None,
        typer.Option(help="For a translation model: the translation. Default: the model's own."),
        OnlyFor(model="translation model"),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("-i", "--in", metavar="FILE", help="Score a file, read as headway eval reads it."),
        OnlyFor(model="language model"),
    ] = None,
    top: Annotated[int, typer.Option(help="Most likely tokens to show at each position, at least 0.")] = 3,
    context: Annotated[
        int | None,
        typer.Option(help="Tokens per window. Default: the model's context."),
        OnlyFor(model="language model"),
    ] = None,
    out: Out = None,
    loading: LoadFlags,
    json: Json = False,
) -> None:
    """Score a text token by token: p, ln p, rank, running sum.

    Shows what the model expected at each position, and p of the text as the product of the conditional probabilities.
    The sum of ln p is that of headway eval: from BOS to EOS, in consecutive windows if the text exceeds the context.
    For a translation model, each token of the translation is scored given the source. The plot has a bar per token.

    \b
    Examples:
      headway score runs/demo "The statement is"
      headway score runs/words "The cat sat on the mat." --top 5 --json
      headway score runs/reverse "abcd" --target "dcba"
      headway score runs/demo --in my.txt --top 0
    """
    check_picture(out)
    check_minimum("--top", top, 0)
    check_minimum("--context", context)
    if text is not None and file is not None:
        raise typer.BadParameter("cannot be combined with TEXT: score one of the two", param_hint="--in")
    if text is None and file is None and sys.stdin.isatty():
        raise typer.BadParameter("give a text, --in FILE, or a text on stdin", param_hint="TEXT")
    if text is not None and "\n" not in text and os.path.isfile(text):
        print(f"note: scoring the text {text!r} itself; to score the file: --in {text}", file=sys.stderr)

    import headway
    from headway.analysis.token_score_plot import plot
    from headway.generation.source import require_translator
    from headway.models.base import Seq2SeqLM

    loaded: Any = headway.load(model, **loading.options)
    if isinstance(loaded, Seq2SeqLM):
        check_options_for(f"{model}, which translates", model="translation model")
        source, tokenizer = _read_source(text), require_translator(loaded)[1]
        note_unknown_text(tokenizer, [source, *([] if target is None else [target])], "text")
        result = headway.score(loaded, source, target=target, top=top)
    else:
        check_options_for(f"{model}, which does not translate", model="language model")
        result = _score_text(loaded, model, text, file, top, context)
    warn_of_leak(loaded)
    if out is not None:
        plot(result, out, model=model_name(model))
    if json:
        print_json({"model": model, **result.to_dict(), "picture": picture_path(out)})
        return
    _print_score(result)
    print_picture(out)


def _read_source(text: str | None) -> str:
    text_input = read_text_input("-", None) if text in (None, "-") else TextInput("TEXT", text)
    assert text_input is not None
    assert text_input.content is not None
    return text_input.content.strip()


def _score_text(
    loaded: Any, name: str, text: str | None, file: Path | None, top: int, context: int | None
) -> "TextScore":
    """Score a text or file, split into documents as `headway eval` splits it."""
    import headway
    from headway.config import load_recipe
    from headway.models.adapter import language_model

    language_model(loaded)  # its error says what another model is for
    recipe = load_recipe(Path(name)) if Run.exists(name) else None
    if file is not None:
        text_input: TextInput | None = TextInput(str(file))
    else:
        text_input = read_text_input("-", None) if text in (None, "-") else read_text_input(None, text)
    assert text_input is not None
    documents = text_input.documents(loaded, recipe)
    result = headway.score(loaded, documents, top=top, context=context)
    if result.lost_bytes:
        note_unknown_text(loaded.tokenizer, documents, "text")
    return result


def _print_score(result: "TextScore") -> None:
    from headway.analysis.token_scores import render_text

    if result.source is not None:
        print(f"source  {result.source}\ntarget  {result.target}\n")
    print(render_text(result, width=shutil.get_terminal_size((PLAIN_WIDTH, 1)).columns))
