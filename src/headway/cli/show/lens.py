"""headway show lens"""

import shutil
import sys
from typing import Annotated

import typer

from headway.cli.completion import complete_run
from headway.cli.options import Json, check_picture, note_unknown_text, print_json
from headway.cli.show.common import Out, model_name, picture_path, print_picture, with_theme


@with_theme
def lens(
    model: Annotated[str, typer.Argument(help="A model directory or a run.", autocompletion=complete_run)],
    text: Annotated[
        str, typer.Argument(help="The text; for a translation model, the source; for a masked LM, with [MASK].")
    ],
    target: Annotated[
        str | None, typer.Argument(help="For a translation model: the translation, by default the model's own.")
    ] = None,
    top: Annotated[int, typer.Option(help="Tokens to show per layer at one position, at least 1.")] = 3,
    position: Annotated[
        int | None, typer.Option(help="The token after which to show --top candidates, from 0. Default: the last.")
    ] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Show what each layer would predict: the logit lens.

    The hidden states after every layer go through the final norm and the unembedding. The table has the most probable
    token of each layer after each token of the text; below it are more candidates at one position. The last column is
    the model's own output. It works for GPTs, encoder-decoders and BERTs with a masked-LM head.

    \b
    Examples:
      headway show lens runs/demo "The statement is"
      headway show lens runs/demo "The statement is" --position 1 --top 5
      headway show lens runs/reverse "abcde" --json
      headway show lens runs/bert "The cat sat on the [MASK]."
    """
    import headway
    from headway.analysis.logit_lens import check_position, logit_lens, plot, render_text
    from headway.errors import count

    check_picture(out)
    loaded = headway.load(model)
    result = logit_lens(loaded, text, target, top=top)
    check_position(result, position)
    masks = [] if "[MASK]" in text else [text.strip()]
    note_unknown_text(loaded.tokenizer, [*masks, *([] if target is None else [target])], "text")
    context, n_tokens = loaded.config.context, result.positions[-1] + 1
    if context is not None and n_tokens > context:
        past = f"goes {count(n_tokens - context, 'token')} past the training context of {context}"
        print(f"note: the text {past}: predictions there may be worse than what was learned", file=sys.stderr)
    if out is not None:
        plot(result, out, model=model_name(model))
    if json:
        rows = [
            {
                "layer": name,
                "top": [[best._asdict() for best in at_position] for at_position in layer],
                "p_output": p_output,
            }
            for name, layer, p_output in zip(result.layers, result.top, result.p_output, strict=True)
        ]
        print_json({"tokens": result.tokens, "positions": result.positions, "target": result.target, "layers": rows,
                    "picture": picture_path(out)})  # fmt: skip
        return
    print(render_text(result, position=position, width=shutil.get_terminal_size().columns))
    print_picture(out)
