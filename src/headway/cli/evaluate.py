"""headway eval"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headway.cli.completion import complete_run
from headway.cli.eval_inputs import TextInput, read_text_input
from headway.cli.eval_translations import HEAD_OBJECTIVES, TranslationFlags, TranslationTask, evaluate_files
from headway.cli.option_use import OnlyFor, check_options_for
from headway.cli.options import (
    Json,
    LoadFlags,
    check_minimum,
    check_output_file,
    describe_split,
    note_unknown_text,
    print_json,
    warn_of_leak,
    with_option_groups,
)
from headway.cli.reranking_options import RerankingFlags
from headway.runs import Run

if TYPE_CHECKING:
    from headway.config import Recipe
    from headway.evaluation.perplexity import LMScore
    from headway.evaluation.validation import EvalResult
    from headway.models import Model

MAX_TEXTS_NOTED = 1000  # are searched for characters that are not in the vocabulary


@with_option_groups
def evaluate(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A model directory or a run such as runs/demo; not with --hypotheses.", autocompletion=complete_run
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Argument(
            help="Text, or data as the run was trained on: a file, folder, glob or built-in corpus; - reads stdin. "
            "Default: the run's validation split."
        ),
    ] = None,
    *,
    literal_text: Annotated[str | None, typer.Option("--text", help="Score this text itself.")] = None,
    split: Annotated[
        Literal["valid", "test"],
        typer.Option(help="The held-out split of the run's own data."),
        OnlyFor(text="the run's own"),
    ] = "valid",
    context: Annotated[
        int | None,
        typer.Option(help="Tokens per window. Default: that of the run, or the model's."),
        OnlyFor(model="language model"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="How to read TEXT, such as data.label=stars; repeatable."),
        OnlyFor(model=HEAD_OBJECTIVES, text="given"),
    ] = None,
    translation: Annotated[TranslationFlags, OnlyFor(model="translation model")],
    reranking: Annotated[RerankingFlags, OnlyFor(model="translation model")],
    loading: LoadFlags,
    batch_size: Annotated[
        int,
        typer.Option(
            rich_help_panel="Loading",
            help="Windows or sources per batch. Encoders with a head use the eval.batch_size of their run.",
        ),
        OnlyFor(model=("language model", "translation model")),
    ] = 16,
    json: Json = False,
) -> None:
    """Score a model on held-out text.

    Language models are scored in bits per byte, which compare across tokenizers and families, over consecutive windows
    without overlap. Models that translate are scored by BLEU and chrF (sacreBLEU, cased, with signatures) on pairs, or
    on TEXT with --references; summaries also by ROUGE, corrections by GLEU, if the run's eval.metric or --metric names
    them. Classifiers are scored by accuracy and F1 per label, taggers by precision, recall and F1
    per type of entity, models that answer questions by exact match and F1, as SQuAD defines them. A file is read as the
    data of the run was: with the same columns, separator and tag scheme.

    \b
    Examples:
      headway eval runs/demo
      headway eval runs/demo my.txt --json
      headway eval runs/demo --text "The cat sat on the mat."
      headway eval runs/reverse --limit 100
      headway eval runs/reverse letters.tsv --limit 20
      headway eval runs/labels reviews.csv --json
      headway eval runs/labels --against runs/words-only
      headway eval --hypotheses mine.de --references right.de --against yours.de
      headway eval --hypotheses mine.de --references right.de --metric rougeL
    """
    for flag, number in (("--context", context), ("--batch-size", batch_size), ("--limit", translation.limit)):
        check_minimum(flag, number)
    check_output_file(translation.sentences, "--sentences")
    reranking.check(translation.num_beams)
    if text is not None and literal_text is not None:
        raise typer.BadParameter("cannot be combined with TEXT: score one of the two", param_hint="--text")
    has_text = text is not None or literal_text is not None
    if has_text:
        check_options_for(f"{'TEXT' if literal_text is None else '--text'}, which is no split of a run", text="given")
    elif translation.hypotheses is None:
        check_options_for("a split of the run's own data, which is read as for training", text="the run's own")
    if translation.hypotheses is not None:
        evaluate_files(translation, json)
        return
    if model is None:
        raise typer.BadParameter("name a model or run, or --hypotheses FILE --references FILE", param_hint="MODEL")
    import headway
    from headway.cli.eval_heads import HeadTask
    from headway.config import load_recipe
    from headway.models import find_model
    from headway.models.base import Seq2SeqLM, described
    from headway.models.heads import Head
    from headway.training.task import resolve_objective

    recipe = load_recipe(Path(model)) if Run.exists(model) else None
    find_model(model)  # its error says what is wrong with the path
    if not has_text and recipe is None and not translation.references:
        raise typer.BadParameter(f"{model} is not a run, so it has no held-out text: name a text", param_hint="TEXT")
    text_input = read_text_input(text, literal_text)
    loaded = headway.load(model, **loading.options)
    if isinstance(loaded, Seq2SeqLM):
        check_options_for(f"{model}, which translates", model="translation model")
        warn_of_leak(loaded)
        task = TranslationTask(model, recipe, text_input, split, translation)
        if reranking.tune == "valid" and not has_text and split == "valid":
            raise typer.BadParameter(
                "tunes the weights on the data they are scored on: use --split test, or tune on other pairs",
                param_hint="--tune",
            )
        reranker = reranking.load(
            loaded, model, num_beams=translation.num_beams, batch_size=batch_size, **loading.options
        )
        task.evaluate(loaded, reranker, batch_size=batch_size, **loading.options, json=json)
        return
    if isinstance(loaded, Head):
        head_task = HeadTask(model, loaded, recipe, text_input, split, settings or [], translation)
        check_options_for(f"{model}, {described(loaded)}", model=head_task.objective)
        head_task.evaluate(**loading.options, json=json)
        return
    objective = "causal" if recipe is None else resolve_objective(recipe)
    if objective == "causal":
        check_options_for(f"{model}, which does not translate", model="language model")
    else:
        check_options_for(f"{model}, whose objective is {objective}", model=objective)
    _evaluate_model(loaded, model, recipe, text_input, split, context, batch_size, json)


# ── language models ───────────────────────────────────────────────────────────────────────────────────────────────


def _evaluate_model(
    loaded: "Model",
    name: str,
    recipe: "Recipe | None",
    text_input: TextInput | None,
    split: Literal["valid", "test"],
    context: int | None,
    batch_size: int,
    json: bool,
) -> None:
    from headway.evaluation.perplexity import LMScore
    from headway.training.run_evaluation import evaluate_split, is_read_by_line

    if text_input is not None:
        source = text_input.name
        score = _score_text_input(loaded, recipe, text_input, context, batch_size)
    else:
        assert recipe is not None
        source = describe_split(recipe.data, split)
        score = evaluate_split(loaded, recipe, split, context=context, batch_size=batch_size)
    is_leaking = isinstance(score, LMScore) and warn_of_leak(loaded)
    if json:
        leak = {"sees_future": is_leaking} if isinstance(score, LMScore) else {}
        print_json({"model": name, "text": source, "n_params": loaded.n_params, **score.to_dict(), **leak})
        return
    print(f"model           {name}: {loaded.display_name}, {loaded.n_params:,} parameters")
    if isinstance(score, LMScore):
        is_whole = context is None and getattr(loaded.config, "context", None) is None
        unit = "line" if is_read_by_line(loaded, recipe) else "document"
        _print_lm_score(score, source, f"none: each {unit} is read whole" if is_whole else None)
    else:
        print(f"data            {source}")
        print(f"score           {score.summary}")


def _score_text_input(
    loaded: "Model", recipe: "Recipe | None", text_input: TextInput, context: int | None, batch_size: int
) -> "EvalResult":
    """The score of a model on a text or file of the user."""
    from headway.evaluation.perplexity import LMScore
    from headway.training.run_evaluation import evaluate_documents

    documents = text_input.documents(loaded, recipe)
    score = evaluate_documents(loaded, recipe, documents, context=context, batch_size=batch_size)
    if isinstance(score, LMScore) and score.lost_bytes:
        note_unknown_text(loaded.tokenizer, documents[:MAX_TEXTS_NOTED], "text")
    return score


def _print_lm_score(score: "LMScore", source: str, windows: str | None) -> None:
    from headway.errors import count

    print(f"text            {source}: {count(score.n_bytes, 'byte')}, {count(score.n_tokens, 'token')}")
    print(f"windows         {windows or f'{score.context} tokens, consecutive, no overlap'}")
    print(f"bits per byte   {score.bits_per_byte:.4f}")
    print(f"nats per token  {score.nats_per_token:.4f}   (perplexity {score.perplexity:,.2f})")
    if score.lost_bytes:
        lost = count(score.lost_bytes, "byte")
        print(f"unknown         {lost} lost in <unk> or between words, charged at 8 bits each")
