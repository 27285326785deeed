"""headway show neighbors"""

import sys
from typing import Annotated, Literal

import typer

from headway.cli.completion import complete_run
from headway.cli.options import Json, check_picture, print_json
from headway.cli.show.common import Out, model_name, picture_path, print_picture, with_theme


@with_theme
def neighbors(
    model: Annotated[str, typer.Argument(help="A model directory or a run.", autocompletion=complete_run)],
    tokens: Annotated[
        list[str], typer.Argument(help='Tokens of its vocabulary, such as the or " the", with its space.')
    ],
    top: Annotated[int, typer.Option(help="Neighbours per token, at least 1.")] = 10,
    by: Annotated[
        Literal["cosine", "dot"] | None,
        typer.Option(help="One list, by cosine or dot, with the rank by the other. Default: both lists."),
    ] = None,
    unembedding: Annotated[
        bool, typer.Option("--unembedding", help="Compare rows of the output matrix instead of embeddings.")
    ] = False,
    out: Out = None,
    json: Json = False,
) -> None:
    """Show the tokens nearest to a token, by cosine and by dot product.

    The dot product is the cosine times the norms of both vectors, so it favours long vectors, and the lists may differ.
    Every model with embeddings works: nplm, rnn, lstm, seq2seq, bahdanau, transformer, gpt, bert, bilstm, bow.

    \b
    Examples:
      headway show neighbors runs/demo the a
      headway show neighbors runs/demo the --by dot --top 5
      headway show neighbors runs/bert cat --unembedding --json
    """
    import headway
    from headway.analysis.embedding_plots import plot_nearest, render_nearest
    from headway.analysis.embedding_space import is_tied, nearest_tokens

    check_picture(out)
    loaded = headway.load(model)
    nearest = [nearest_tokens(loaded, token, top=top, unembedding=unembedding) for token in tokens]
    if unembedding and is_tied(loaded):
        print("note: --unembedding changes nothing: this model ties it to the embedding", file=sys.stderr)
    if out is not None:
        plot_nearest(nearest, out, model=model_name(model))
    if json:
        lists = [
            {
                "token": one.token,
                **{f"by_{name}": [near._asdict() for near in one.by(name)] for name in ("cosine", "dot")
                   if by in (None, name)},
            }
            for one in nearest
        ]  # fmt: skip
        print_json({"tokens": lists, "picture": picture_path(out)})
        return
    print("\n\n".join(render_nearest(one, by) for one in nearest))
    print_picture(out)
