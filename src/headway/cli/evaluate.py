"""headway eval"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headway.cli.channels import LanguageModelOfTarget, Reverse, TuneOn, WeightsText, make_channel
from headway.cli.options import Device, Dtype, Json, check_out, name_of_part, print_json
from headway.cli.scores import FilesToScore, Translating, score_files, score_translator
from headway.runs import Run

if TYPE_CHECKING:
    from headway.config import Recipe
    from headway.models.base import Model


def evaluate(
    model: Annotated[
        str | None, typer.Argument(help="A model directory, or a run such as runs/demo. None: score --hypotheses.")
    ] = None,
    text: Annotated[
        str | None,
        typer.Argument(help="A text file, folder, glob or built-in corpus. Default: what the run held out."),
    ] = None,
    split: Annotated[
        Literal["valid", "test"], typer.Option(help="Of a run's own text: valid, what it held out, or test.")
    ] = "valid",
    context: Annotated[int | None, typer.Option(help="Tokens in a window. Default: as the run has it.")] = None,
    batch_size: Annotated[int, typer.Option(help="Windows or texts at a time, at least 1.")] = 16,
    references: Annotated[
        list[Path] | None,
        typer.Option("-r", "--references", help="Right translations, line by line; repeatable."),
    ] = None,
    hypotheses: Annotated[
        Path | None, typer.Option("--hypotheses", help="Score these translations, a file, instead of a model's.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="Compare with a second model, run or file of translations, by paired bootstrap."),
    ] = None,
    sentences: Annotated[
        Path | None, typer.Option(help="Write the scores of every sentence to this file, a JSON object per line.")
    ] = None,
    num_beams: Annotated[
        int | None, typer.Option(help="Translating: beams, 1 or more; 1 is greedy. Default: 5.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Translating: above 0 favours long texts. Off: 0. Default: 1.")
    ] = None,
    reverse_model: Reverse = None,
    lm: LanguageModelOfTarget = None,
    weights: WeightsText = None,
    tune: TuneOn = None,
    limit: Annotated[int | None, typer.Option(help="Translating: the first so many texts only.")] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="BLEU and chrF without regard to case.")] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
) -> None:
    """Score a model: a language model in bits per byte, a translator by BLEU and chrF.

    Windows of text are consecutive and do not overlap. Bits per byte can be compared across tokenizers and families. A
    translator is scored on what its run held out, or on TEXT with --references; BLEU is sacreBLEU's, cased, with its
    signature. A model that learned something else (labels, tags, …) is scored on what its run held out.

    \b
    Examples:
      headway eval runs/demo
      headway eval runs/demo my.txt --json
      headway eval runs/reverse --limit 100
      headway eval --hypotheses mine.de --references right.de --against yours.de
    """
    for name, value in (("--context", context), ("--batch-size", batch_size), ("--limit", limit)):
        if value is not None and value < 1:
            raise typer.BadParameter(f"{value}: at least 1", param_hint=name)
    if text is not None and split != "valid":
        raise typer.BadParameter(f"{split} is a split of the run's own data, not of {text}", param_hint="--split")
    check_out(sentences, "--sentences")
    files = FilesToScore(references or [], hypotheses, against, sentences, lowercase)
    beams: dict[str, object] = {"--num-beams": num_beams, "--length-penalty": length_penalty}
    beams |= {"--channel": reverse_model, "--lm": lm, "--weights": weights, "--tune": tune}
    if hypotheses is not None:
        _refuse({**beams, "--split": None if split == "valid" else split}, "translations that are there already")
        score_files(files, model, limit, json=json)
        return
    if model is None:
        raise typer.BadParameter("a model or run, or --hypotheses FILE --references FILE", param_hint="MODEL")
    import headway
    from headway.config import Recipe, load_recipe
    from headway.data import load_documents, read_split
    from headway.models import find_model
    from headway.models.base import LanguageModel, Seq2SeqLM

    plan = load_recipe(Path(model)) if Run.exists(model) else None
    find_model(model)  # which says what is wrong with it
    if text is None and plan is None and not references:
        raise typer.BadParameter(f"{model} is no run with held-out text of its own: name a text", param_hint="TEXT")
    loaded = headway.load(model, device=device, dtype=dtype)
    if isinstance(loaded, Seq2SeqLM):
        if context is not None:
            raise typer.BadParameter("windows are for language models; this one translates", param_hint="--context")
        penalty = 1.0 if length_penalty is None else length_penalty
        if tune == "valid" and text is None and split == "valid":
            raise typer.BadParameter(
                "weights would be tuned on what they are scored on: --split test, or --tune with other pairs",
                param_hint="--tune",
            )
        reranker = make_channel(
            loaded,
            model,
            reverse_model=reverse_model,
            lm=lm,
            weights=weights,
            tune=tune,
            num_beams=num_beams,
            batch_size=batch_size,
            device=device,
            dtype=dtype,
        )
        beams_used = 5 if num_beams is None else num_beams
        how = Translating(beams_used, penalty, batch_size, limit, device, dtype, reranker)
        score_translator(loaded, model, plan, text, split, files, how, json=json)
        return
    if files.given:
        raise typer.BadParameter(f"{model} does not translate: {files.given} is for those that do", param_hint="MODEL")
    _refuse({**beams, "--limit": limit, "--lowercase": lowercase or None}, "a model that does not translate")
    is_plain = isinstance(loaded, LanguageModel) and not isinstance(loaded, Seq2SeqLM)
    if text is None and not is_plain:
        assert plan is not None
        _evaluate_task(loaded, model, plan, split, json)
        return
    if text is not None:
        documents, what = load_documents(text, format=_format(loaded, plan, text)), text
    else:
        assert isinstance(plan, Recipe)
        documents = list(read_split(plan.data, split))
        what, context = name_of_part(plan.data, split), context or plan.eval.context
        if not documents:
            hint = f"{plan.data.path} has no {split} split: set data.{split} when training"
            raise typer.BadParameter(hint, param_hint="--split")
    score = headway.evaluate(loaded, documents, context=context, batch_size=batch_size)
    if json:
        print_json({"model": model, "text": what, "n_params": loaded.n_params, **score.to_dict()})
        return
    print(f"model           {model}: {type(loaded).__name__}, {loaded.n_params:,} parameters")
    print(f"text            {what}: {score.n_bytes:,} bytes, {score.n_tokens:,} tokens")
    print(f"windows         {score.context} tokens, consecutive, no overlap")
    print(f"bits per byte   {score.bits_per_byte:.4f}")
    print(f"nats per token  {score.nats_per_token:.4f}   (perplexity {score.perplexity:,.2f})")
    if score.lost_bytes:
        print(f"unknown         {score.lost_bytes:,} bytes lost in <unk> or between words, charged at 8 bits each")


def _format(loaded: "Model", plan: "Recipe | None", text: str) -> str:
    """A line at a time for what learned so; and for words between blanks, whose sentences are lines everywhere."""
    from headway.data.builtin import corpus

    if corpus(text) is not None:
        return "auto"
    is_of_lines = loaded.tokenizer is not None and loaded.tokenizer.drops_blanks
    return "lines" if (is_of_lines if plan is None else plan.data.format == "lines") else "auto"


def _refuse(options: dict[str, object], what: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise typer.BadParameter(f"says nothing about {what}: leave it out", param_hint=name)


def _evaluate_task(loaded: "Model", name: str, plan: "Recipe", split: Literal["valid", "test"], json: bool) -> None:
    """A model that learned something else than the next token, on what its run held out."""
    from headway.training.task import evaluate_split

    score = evaluate_split(loaded, plan, split)
    if json:
        print_json(
            {"model": name, "text": name_of_part(plan.data, split), "n_params": loaded.n_params, **score.to_dict()}
        )
        return
    print(f"model           {name}: {type(loaded).__name__}, {loaded.n_params:,} parameters")
    print(f"data            {name_of_part(plan.data, split)}")
    print(f"score           {score.summary}")
