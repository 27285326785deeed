"""headway show attention"""

import shutil
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import Json, check_picture, note_unknown_text, print_json
from headway.cli.show.common import Out, model_name, picture_path, print_picture, with_theme

if TYPE_CHECKING:
    from headway.analysis.attention import TextAttention
    from headway.models.base import Model


@with_theme
def attention(
    model: Annotated[str, typer.Argument(help="A model directory or a run.")],
    text: Annotated[str, typer.Argument(help="The text; for a translation model, the source.")],
    target: Annotated[
        str | None,
        typer.Argument(
            help="For a translation model: the translation, by default the model's own. For an encoder: a second text."
        ),
    ] = None,
    side: Annotated[
        str | None, typer.Option(help="cross (from target to source), encoder or decoder (self-attention).")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Show one layer, from 0. Default: all.")] = None,
    head: Annotated[int | None, typer.Option(help="Show one head, from 0. Default: all.")] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Show which tokens each token attends to.

    The terminal shows the three tokens with the largest weights, averaged over heads, in the last layer or in --layer.
    The plot has a panel per layer and head; tokens that may not be attended to are hatched. The rows of cross-attention
    are the tokens being written, up to EOS. In encoders such as BERT, the row of [CLS] is marked: it represents the
    text.

    \b
    Examples:
      headway show attention runs/reverse "abcde" --layer 1
      headway show attention runs/reverse "abcde" --side encoder --layer 0 --head 2 --json
      headway show attention runs/demo "The statement is" --layer 0
      headway show attention runs/bert "The cat sat." "It slept." --layer 0
    """
    import headway
    from headway.analysis.attention import text_attention
    from headway.analysis.attention_plots import CLS_MARK, SIDES, plot, render_text
    from headway.models.base import Seq2SeqLM

    check_picture(out)
    if not text.strip():
        raise typer.BadParameter("an empty text has no tokens to attend to", param_hint="TEXT")
    layers, heads = (None if index is None else [index] for index in (layer, head))
    loaded = headway.load(model)
    if target is not None and side == "encoder" and isinstance(loaded, Seq2SeqLM):
        raise typer.BadParameter("this encoder sees the source alone: leave TARGET out", param_hint="TARGET")
    result = text_attention(loaded, text, target, side=side, layers=layers, heads=heads)
    note_unknown_text(loaded.tokenizer, [text.strip(), *([] if target is None else [target])], "text")
    _note_overflow(loaded, result)
    if out is not None:
        plot(result, out, model=model_name(model))
        _note_small_panels(result)
    if json:
        maps = [{"layer": m.layer, "heads": m.heads, "weights": m.weights.tolist()} for m in result.maps]
        print_json({"side": result.side, "rows": result.rows, "columns": result.columns, "cls_row": result.cls_row,
                    "maps": maps, "picture": picture_path(out)})  # fmt: skip
        return
    last = result.maps[-1]
    heads_shown = f"head {last.heads[0]}" if len(last.heads) == 1 else f"the mean of {len(last.heads)} heads"
    print(f"{SIDES[last.side]}, layer {last.layer}, {heads_shown}\n")
    width = shutil.get_terminal_size().columns
    print(render_text(last, result.rows, result.columns, width=width, cls_row=result.cls_row))
    if result.cls_row is not None:
        print(f"\n{CLS_MARK} {result.rows[result.cls_row]}: its hidden state represents the text")
    print_picture(out)


def _note_overflow(model: "Model", attention: "TextAttention") -> None:
    from headway.errors import count

    context, n_tokens = model.config.context, max(len(attention.rows), len(attention.columns))
    if context is not None and n_tokens > context:
        past = f"goes {count(n_tokens - context, 'token')} past the training context of {context}"
        print(f"note: the text {past}: its attention may differ from what was learned", file=sys.stderr)


def _note_small_panels(attention: "TextAttention") -> None:
    from headway.analysis.attention_plots import has_small_panels

    if has_small_panels(attention):
        n_panels = len(attention.maps) * len(attention.maps[0].heads)
        hint = "--layer and --head show one of them larger"
        print(f"note: {n_panels} panels of {len(attention.columns)} tokens are small: {hint}", file=sys.stderr)
