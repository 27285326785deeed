"""headway compare"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import Json, check_picture, print_json, program

if TYPE_CHECKING:
    from headway.comparison import Comparison

SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}


def compare(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="Contestants (--list), recipes, TOML files, runs. Default: all contestants for this data, in order of "
            "their years."
        ),
    ] = None,
    data: Annotated[str, typer.Option(help="A text or pairs: a built-in corpus, a file, a folder, …")] = "pydocs",
    params: Annotated[
        str | None,
        typer.Option(help="Parameters of each contestant, such as 300k or 2M; recipes keep their own. Default: 1M."),
    ] = None,
    tokens: Annotated[str | None, typer.Option(help="Tokens each learns from, such as 5M, repetitions too.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Seconds each learns for, above 0. Default: 60.")] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens in a window, for all, 1 or more. Default: 128 of text, 512 of pairs.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A setting as in a recipe, for all (train.seed=2, tokenizer.kind=char) or for one "
            "(gpt:model.dropout=0.1); repeatable.",
        ),
    ] = None,
    long_data: Annotated[
        str | None, typer.Option(help="Pairs: also score on these, of long_data sentences, such as dates+24.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Pairs: held-out ones each writes, the first so many.")] = 1000,
    num_beams: Annotated[int, typer.Option(help="Pairs: beams, 1 or more; 1 is greedy.")] = 1,
    prompt: Annotated[
        str | None, typer.Option(help="What samples begin with. Default: the first words held out.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder of the runs and results. Default: the next runs/compare.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what was stopped in --out.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="The picture, .png, .svg or .pdf. Default: compare.png in the folder.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Show models there is, and leave.")] = False,
    json: Json = False,
) -> None:
    """Compare models on the same data at the same budget: one table, one picture.

    Each learns from the same text in the same tokens, with about as many --params, for as many --tokens or --seconds,
    and is scored in bits per byte on the same windows of the same held-out text. Contestants of pairs write
    translations, scored by exact match or BLEU, also by the length of the sentence. Every contestant is a run of its
    own in --out, beside compare.json, compare.md and compare.png.

    \b
    Examples:
      headway compare --list
      headway compare ngram rnn gpt --seconds 2 --params 50k --set tokenizer.vocab_size=300
      headway compare --data my.txt --tokens 20k --params 100k
      headway compare --data dates+4 --long-data dates+24 --tokens 50k --params 50k
      headway compare runs/demo ngram --json
    """
    if show_list:
        _list(json)
        return
    for name, value in (("--context", context), ("--limit", limit), ("--num-beams", num_beams)):
        if value is not None and value < 1:
            raise typer.BadParameter(f"{value}: at least 1", param_hint=name)
    check_picture(plot, "--plot")
    n_params, n_tokens = _count(params, "--params"), _count(tokens, "--tokens")

    import headway
    from headway.cli.display import TrainingDisplay, say
    from headway.comparison.report import markdown, text_table
    from headway.files import free_name, write_text

    place = out or (_latest() if resume else free_name(Path("runs") / "compare"))
    with TrainingDisplay() as display:
        found = headway.compare(
            models or [],
            data=data,
            params=n_params,
            tokens=n_tokens,
            seconds=seconds,
            context=context,
            settings=settings or [],
            long_data=long_data,
            limit=limit,
            num_beams=num_beams,
            prompt=prompt,
            out=place,
            resume=resume,
            say=display.say,
            report=display.report,
        )
    if found is None:
        say(f"interrupted; models is done stays. To go on, the same again with --out {place} --resume")
        raise typer.Exit(130)
    write_text(place / "compare.md", markdown(found))
    picture = _draw(found, plot or place / "compare.png", is_asked=plot is not None)
    if json:
        print_json({**found.to_dict(), "picture": None if picture is None else str(picture)})
        return
    print(text_table(found))
    say(f"\nin {place}: compare.json, compare.md{'' if picture is None else f'; picture: {picture}'}")
    verb = "generate" if found.kind == "text" else "eval"
    say(f"try:   {program()} {verb} {found.rows[-1].run}")


def _latest() -> Path:
    """The comparison begun last."""
    begun = [path.parent for path in Path("runs").glob("compare*/plan.json")]
    if not begun:
        raise typer.BadParameter(
            "there is no runs/compare to go on with: name its folder with --out", param_hint="--resume"
        )
    return max(begun, key=lambda path: (path / "plan.json").stat().st_mtime)


def _draw(found: "Comparison", file: Path, *, is_asked: bool) -> Path | None:
    """A picture that was not asked for is no reason to fail where there is no matplotlib."""
    from headway.cli.display import say
    from headway.comparison.report import draw
    from headway.errors import InputError

    try:
        return draw(found, file)
    except InputError as error:
        if is_asked:
            raise
        say(f"no picture: {error}")
        return None


def _list(json: bool) -> None:
    from headway.comparison import PAIRS, TEXT

    if json:
        kinds = {"text": TEXT, "pairs": PAIRS}
        print_json({k: {n: {"year": c.year, "title": c.title} for n, c in some.items()} for k, some in kinds.items()})
        return
    for kind, some in (("text", TEXT), ("pairs", PAIRS)):
        print(f"for {kind}:")
        for name, contestant in some.items():
            print(f"  {contestant.year}  {name:<12} {contestant.title}")


def _count(given: str | None, flag: str) -> int | None:
    """A number as people write it: 300k, 2M, 1.5m, 5_000_000."""
    if given is None:
        return None
    number = r"\d{1,3}(?:[,_]\d{3})+|\d*\.?\d+(?:e\d+)?|\d+\.?"
    match = re.fullmatch(rf"({number})\s*([kmgb]?)", given.strip().lower())
    value = round(float(re.sub("[,_]", "", match[1])) * SIZES[match[2]]) if match else 0
    if value < 1:
        raise typer.BadParameter(f"{given}: a number above 0, such as 300k or 2M", param_hint=flag)
    return value
