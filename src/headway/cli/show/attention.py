"""headway show attention"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.completion import complete_run
from headway.cli.option_use import OnlyWith, OnlyWithout
from headway.cli.options import Json, check_picture, note_unknown_text, print_json
from headway.cli.show.common import Out, model_name, parse_numbers, picture_path, print_picture, with_theme

if TYPE_CHECKING:
    from headway.analysis.attention import TextAttention
    from headway.models.base import Model


@with_theme
def attention(
    model: Annotated[
        str | None,
        typer.Argument(help="A model directory or a run.", autocompletion=complete_run, show_default=False),
        OnlyWithout("--scores", why="a model computes its own scores: leave MODEL or --scores out"),
    ] = None,
    text: Annotated[
        str | None, typer.Argument(help="The text; for a translation model, the source.", show_default=False)
    ] = None,
    target: Annotated[
        str | None,
        typer.Argument(
            help="For a translation model: the translation, by default the model's own. For an encoder: a second text."
        ),
    ] = None,
    side: Annotated[
        str | None,
        typer.Option(help="cross (from target to source), encoder or decoder (self-attention)."),
        OnlyWithout("--scores"),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(help="Show one layer, from 0. Default: all; with --steps, 0."),
        OnlyWithout("--scores"),
    ] = None,
    head: Annotated[
        int | None,
        typer.Option(help="Show one head, from 0. Default: all; with --steps, 0."),
        OnlyWithout("--scores"),
    ] = None,
    steps: Annotated[
        bool,
        typer.Option("--steps", help="Print every matrix of one head: X, Q, K, V, scores, weights, output."),
        OnlyWithout("--token", "--scores"),
    ] = False,
    token: Annotated[
        str | None, typer.Option(help="Show what this word attends to, ranked."), OnlyWithout("--scores")
    ] = None,
    occurrence: Annotated[
        int | None,
        typer.Option(help="Which of several such words, from 1. Default: the last.", show_default=False),
        OnlyWith("--token"),
    ] = None,
    scores: Annotated[
        str | None,
        typer.Option(help="Without a model: scores q·k separated by commas; -inf is masked.", show_default=False),
    ] = None,
    d_head: Annotated[
        int | None, typer.Option(help="The width of q and k, for --scores.", show_default=False), OnlyWith("--scores")
    ] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Show which tokens each token attends to, or how one head computes it.

    The terminal shows the three tokens with the largest weights, averaged over heads, in the last layer or in --layer.
    The plot has a panel per layer and head; tokens that may not be attended to are hatched. The rows of cross-attention
    are the target tokens being predicted, up to EOS. In encoders such as BERT, the row of [CLS] is marked: it
    represents the text.

    --steps prints each matrix of one head; its plot shows the scores, the mask, the masked scores and the softmax, with
    numbers for texts of at most 12 tokens. --token ranks the words that one word attends to. In JSON, null is −∞.

    \b
    Examples:
      headway show attention runs/reverse "abcde" --layer 1
      headway show attention runs/reverse "abcde" --side encoder --layer 0 --head 2 --json
      headway show attention runs/demo "The statement is" --layer 0
      headway show attention runs/bert "The cat sat." "It slept." --layer 0
      headway show attention runs/demo "The statement is" --layer 0 --head 1 --steps --out steps.png
      headway show attention runs/bert "The cat sat on the mat." --token cat
      headway show attention --scores 112,96 --d-head 64
    """
    check_picture(out)
    if scores is not None:
        _show_scores(scores, d_head, out, json)
        return
    if model is None:
        raise typer.BadParameter("give a model and a text, or --scores 112,96 --d-head 64", param_hint="MODEL")
    if text is None or not text.strip():
        problem = "give the text, too" if text is None else "an empty text has no tokens to attend to"
        raise typer.BadParameter(problem, param_hint="TEXT")
    request = _Request(_load(model, target, side), model, text, target, side, layer, head, out, json)
    if steps:
        _show_steps(request)
    elif token is not None:
        _show_word(request, token, occurrence)
    else:
        _show_maps(request)


@dataclass(frozen=True)
class _Request:
    """What is to be shown of which model."""

    model: "Model"
    path: str
    text: str
    target: str | None
    side: str | None
    layer: int | None
    head: int | None
    out: Path | None
    json: bool

    @property
    def selection(self) -> dict[str, Any]:
        """The arguments of functions that show several layers and heads."""
        layers, heads = (None if index is None else [index] for index in (self.layer, self.head))
        return {"side": self.side, "layers": layers, "heads": heads}

    def print_notes(self, n_tokens: int) -> None:
        """Say on stderr what the model cannot read, and what it was not trained on."""
        texts = [self.text.strip(), *([] if self.target is None else [self.target])]
        note_unknown_text(self.model.tokenizer, texts, "text")
        _note_overflow(self.model, n_tokens)


def _load(model: str, target: str | None, side: str | None) -> "Model":
    import headway
    from headway.models.base import Seq2SeqLM

    loaded = headway.load(model)
    if target is not None and side == "encoder" and isinstance(loaded, Seq2SeqLM):
        raise typer.BadParameter("this encoder sees the source alone: leave TARGET out", param_hint="TARGET")
    return loaded


def _show_maps(request: _Request) -> None:
    from headway.analysis.attention import text_attention
    from headway.analysis.attention_plots import CLS_MARK, SIDES, plot, render_text

    out = request.out
    result = text_attention(request.model, request.text, request.target, **request.selection)
    request.print_notes(max(len(result.rows), len(result.columns)))
    if out is not None:
        plot(result, out, model=model_name(request.path))
        _note_small_panels(result)
    if request.json:
        maps = [{"layer": m.layer, "heads": m.heads, "weights": m.weights.tolist()} for m in result.maps]
        print_json({"side": result.side, "rows": result.rows, "columns": result.columns, "cls_row": result.cls_row,
                    "maps": maps, "picture": picture_path(out)})  # fmt: skip
        return
    last = result.maps[-1]
    heads_shown = f"head {last.heads[0]}" if len(last.heads) == 1 else f"the mean of {len(last.heads)} heads"
    print(f"{SIDES[last.side]}, layer {last.layer}, {heads_shown}\n")
    print(render_text(last, result.rows, result.columns, width=_width(), cls_row=result.cls_row))
    if result.cls_row is not None:
        print(f"\n{CLS_MARK} {result.rows[result.cls_row]}: its hidden state represents the text")
    print_picture(out)


def _show_steps(request: _Request) -> None:
    from headway.analysis.attention_step_plots import plot
    from headway.analysis.attention_tables import render_text_steps
    from headway.analysis.layer_attention import text_attention_steps

    layer, head = request.layer or 0, request.head or 0
    result = text_attention_steps(
        request.model, request.text, request.target, side=request.side, layer=layer, head=head
    )
    request.print_notes(max(result.steps.mask.shape))
    if request.out is not None:
        plot(result, request.out, model=model_name(request.path))
    if request.json:
        print_json({**result.to_dict(), "picture": picture_path(request.out)})
        return
    print(render_text_steps(result, width=_width()))
    print_picture(request.out)


def _show_word(request: _Request, word: str, occurrence: int | None) -> None:
    from headway.analysis.token_attention import plot, render_text, word_attention

    result = word_attention(
        request.model, request.text, word, request.target, occurrence=occurrence, **request.selection
    )
    request.print_notes(result.n_tokens)
    if request.out is not None:
        plot(result, request.out, model=model_name(request.path))
    if request.json:
        print_json({**result.to_dict(), "picture": picture_path(request.out)})
        return
    print(render_text(result, width=_width()))
    print_picture(request.out)


def _show_scores(scores: str, d_head: int | None, out: Path | None, json: bool) -> None:
    from headway.analysis.attention_step_plots import plot
    from headway.analysis.attention_tables import render_scores
    from headway.analysis.worked_attention import scores_to_weights

    values = parse_numbers(scores, "--scores", example="112,96", infinite=True)
    if d_head is None:
        raise typer.BadParameter("scores are divided by √d: give the width of q and k, such as --d-head 64",
                                 param_hint="--d-head")  # fmt: skip
    result = scores_to_weights(values, d_head)
    if out is not None:
        plot(result, out)
    if json:
        print_json({"d_head": d_head, "scores": values, "scaled": result.masked[0].tolist(),
                    "weights": result.weights[0].tolist(), "picture": picture_path(out)})  # fmt: skip
        return
    print(render_scores(result))
    print_picture(out)


def _width() -> int:
    return shutil.get_terminal_size().columns


def _note_overflow(model: "Model", n_tokens: int) -> None:
    from headway.errors import count

    context = model.config.context
    if context is not None and n_tokens > context:
        past = f"goes {count(n_tokens - context, 'token')} past the training context of {context}"
        print(f"note: the text {past}: its attention may differ from what was learned", file=sys.stderr)


def _note_small_panels(attention: "TextAttention") -> None:
    from headway.analysis.attention_plots import has_small_panels

    if has_small_panels(attention):
        n_panels = len(attention.maps) * len(attention.maps[0].heads)
        hint = "--layer and --head show one of them larger"
        print(f"note: {n_panels} panels of {len(attention.columns)} tokens are small: {hint}", file=sys.stderr)
