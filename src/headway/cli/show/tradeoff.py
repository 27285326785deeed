"""headway show tradeoff"""

import shutil
from typing import Annotated, Any

import typer

from headway.cli.options import Json, ModelPath, check_minimum, check_picture, note_unknown_text, print_json
from headway.cli.progress import CountDisplay
from headway.cli.show.common import Out, model_name, parse_numbers, picture_path, print_picture, with_theme

PLAIN_WIDTH = 120  # columns of what is not a terminal


@with_theme
def tradeoff(
    model: ModelPath,
    prompt: Annotated[str, typer.Argument(help="The text to continue. Default: BOS.")] = "",
    temperature: Annotated[
        str | None,
        typer.Option(metavar="T,…", help="Temperatures. Default: 0.2,0.5,1,1.5 unless a filter is given."),
    ] = None,
    top_p: Annotated[str | None, typer.Option(metavar="P,…", help="Values of top_p, at temperature 1.")] = None,
    top_k: Annotated[str | None, typer.Option(metavar="K,…", help="Values of top_k, at temperature 1.")] = None,
    min_p: Annotated[str | None, typer.Option(metavar="P,…", help="Values of min_p, at temperature 1.")] = None,
    n: Annotated[int, typer.Option("-n", help="Texts per setting, at least 2.")] = 20,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum length of each text, in tokens.")] = 40,
    judge: Annotated[
        str | None, typer.Option(help="A second model that judges the quality. Default: the model itself.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed; text i, from 0, uses seed + i.")] = 0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Show quality against diversity for several sampler settings.

    Each setting continues the prompt -n times. Quality is the mean -ln p per token under the model itself, at
    temperature 1; under a judge with another tokenizer it is bits per byte. Lower is more likely. Diversity: distinct-1
    and -2, the fraction of different words and word pairs; repetition, the fraction of 4-grams that the same text had
    before; self-BLEU, how much a text resembles the others. One parameter varies at a time.

    \b
    Examples:
      headway show tradeoff runs/demo "The" -n 4 --max-new-tokens 10
      headway show tradeoff runs/demo "The" --temperature 0.5,1 --top-p 0.5,0.9 -n 4 --max-new-tokens 10
      headway show tradeoff runs/demo "The" --top-k 5,50 --judge runs/mine -n 4 --max-new-tokens 10
    """
    lists = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
    settings = {
        name: parse_numbers(values, f"--{name.replace('_', '-')}")
        for name, values in lists.items()
        if values is not None
    }
    check_picture(out)
    check_minimum("-n", n, 2)
    check_minimum("--max-new-tokens", max_new_tokens)

    import headway
    from headway.analysis.tradeoff import DEFAULT_TEMPERATURES, measure_tradeoff, plot, render_text

    loaded: Any = headway.load(model)
    judge_model: Any = None if judge is None else headway.load(judge)
    n_settings = sum(map(len, settings.values())) or len(DEFAULT_TEMPERATURES)
    n_done = 0
    with CountDisplay("settings", n_settings) as display:

        def show_progress(_: object) -> None:
            nonlocal n_done
            n_done += 1
            display.update(n_done)

        result = measure_tradeoff(
            loaded,
            prompt,
            settings,
            n=n,
            max_new_tokens=max_new_tokens,
            judge=judge_model,
            judge_name="" if judge is None else model_name(judge),
            seed=seed,
            on_point=show_progress,
        )
    note_unknown_text(loaded.tokenizer, [prompt], "prompt")
    if out is not None:
        plot(result, out, model=model_name(model))
    if json:
        print_json({"model": model, "n": n, **result.to_dict(), "picture": picture_path(out)})
        return
    judged = "the model itself" if judge is None else judge
    print(f"{n} texts per setting after {prompt!r}; {result.unit} under {judged}, lower is more likely\n")
    print(render_text(result, width=shutil.get_terminal_size((PLAIN_WIDTH, 1)).columns))
    print_picture(out)
