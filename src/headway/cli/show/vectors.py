"""headway show vectors"""

import sys
from typing import Annotated

import typer

from headway.cli.completion import complete_run
from headway.cli.options import Json, check_picture, print_json
from headway.cli.show.common import Out, model_name, picture_path, print_picture, with_theme


@with_theme
def vectors(
    model: Annotated[str, typer.Argument(help="A model directory or a run.", autocompletion=complete_run)],
    words: Annotated[list[str], typer.Argument(help="Two or more words.")],
    layer: Annotated[int | None, typer.Option(help="Layer of the head, from 0. Default: 0.")] = None,
    head: Annotated[int | None, typer.Option(help="The head, from 0. Default: 0.")] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Show words in the plane: their embeddings, and their queries and keys in a head.

    Vectors are projected to their first two principal components. Queries and keys, W_Q x and W_K x, exist in gpt, bert
    and transformer models; of other models with embeddings, the embeddings are shown. The vector of a word of several
    tokens is the mean of theirs.

    \b
    Examples:
      headway show vectors runs/demo the a is of
      headway show vectors runs/demo the a is of --layer 0 --head 1 --json
      headway show vectors runs/words-only cat dog mat
    """
    import headway
    from headway.analysis.embedding_plots import plot_vectors, render_vectors
    from headway.analysis.embedding_space import word_vectors

    check_picture(out)
    result = word_vectors(headway.load(model), words, layer=layer, head=head)
    for word, n_tokens in zip(result.words, result.n_tokens, strict=True):
        if n_tokens > 1:
            print(f"note: {word!r} is {n_tokens} tokens: the mean of their vectors is shown", file=sys.stderr)
    if out is not None:
        plot_vectors(result.views, result.words, out, title=f"{model_name(model)}: words in the plane")
    if json:
        views = [
            {"title": view.title, "explained": list(view.explained), "coordinates": view.coordinates.tolist()}
            for view in result.views
        ]
        print_json({"words": result.words, "layer": result.layer, "head": result.head, "views": views,
                    "picture": picture_path(out)})  # fmt: skip
        return
    print(render_vectors(result))
    print_picture(out)
