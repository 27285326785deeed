"""headway show gates"""

from typing import Annotated, Literal

import typer

from headway.cli.completion import complete_run
from headway.cli.options import Json, check_picture, note_unknown_text, print_json
from headway.cli.show.common import Out, model_name, picture_path, print_picture, with_theme


@with_theme
def gates(
    model: Annotated[str, typer.Argument(help="A model directory or a run.", autocompletion=complete_run)],
    text: Annotated[str, typer.Argument(help="The text; for a translation model, the source.")],
    layer: Annotated[int | None, typer.Option(help="The layer, from 0. Default: the last.")] = None,
    unit: Annotated[int | None, typer.Option(help="One unit of the layer, from 0. Default: the mean of all.")] = None,
    direction: Annotated[
        Literal["forward", "backward"], typer.Option(help="Of a bidirectional encoder: forward or backward.")
    ] = "forward",
    out: Out = None,
    json: Json = False,
) -> None:
    """Show the gates of an LSTM or GRU over a text, token by token.

    The input gate writes to the cell, the forget gate keeps it (1) or erases it (0), the output gate shows it; a GRU
    has a reset and an update gate. |c| is the length of the cell. The plot also has every unit. It works for lstm, rnn
    with model.cell=gru or peephole, bilstm, and the encoders of seq2seq and bahdanau.

    \b
    Examples:
      headway show gates runs/lstm "The cat sat."
      headway show gates runs/lstm "The cat sat." --layer 0 --unit 3 --json
    """
    import headway
    from headway.analysis.gates import plot, render_text, text_gates

    check_picture(out)
    loaded = headway.load(model)
    result = text_gates(loaded, text, layer=layer, direction=direction)
    values = result.of_unit(unit)
    note_unknown_text(loaded.tokenizer, [text.strip()], "text")
    if out is not None:
        plot(result, out, unit=unit, model=model_name(model))
    if json:
        state = {"state_norm": result.state_norm} if unit is None else {"state": result.state[:, unit]}
        numbers = {name: row.tolist() for name, row in state.items()}
        gate_values = {name: gate.tolist() for name, gate in values.items()}
        print_json({"tokens": result.tokens, "layer": result.layer, "unit": unit, "direction": result.direction,
                    "gates": gate_values, **numbers, "picture": picture_path(out)})  # fmt: skip
        return
    print(render_text(result, unit))
    print_picture(out)
