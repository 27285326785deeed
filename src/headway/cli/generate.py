"""headway generate"""

import secrets
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.completion import complete_run
from headway.cli.generation_options import (
    ONLY_BEAMS,
    ONLY_SAMPLING,
    OutputFlags,
    PromptFileFlags,
    SearchFlags,
    StopFlags,
)
from headway.cli.generation_run import Sampling, Search, write_texts
from headway.cli.option_use import OnlyWithout
from headway.cli.options import BatchSize, BeamFlags, LoadFlags, check_minimum, note_unknown_text, with_option_groups
from headway.cli.prompt_files import finished_lines, read_texts
from headway.cli.sampler_options import SamplerFlags, list_samplers, sampler_settings, with_sampler_options

if TYPE_CHECKING:
    from headway.models.base import LanguageModel


@with_sampler_options
@with_option_groups
def generate(
    model: Annotated[
        str | None,
        typer.Argument(help="A model directory, or a run such as runs/demo.", autocompletion=complete_run),
    ] = None,
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads stdin. Default: BOS.")] = "",
    *,
    stopping: StopFlags,
    n: Annotated[
        int,
        typer.Option("-n", help="Texts per prompt."),
        OnlyWithout(
            "--num-beams", "--contrastive-alpha", why="a search is deterministic: use --n-best for several texts"
        ),
    ] = 1,
    seed: Annotated[int | None, typer.Option(help="Random seed; text i, from 0, uses seed + i."), ONLY_SAMPLING] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="The same as --temperature 0."), ONLY_SAMPLING] = False,
    samplers: SamplerFlags = {},  # noqa: B006 (replaced by the flags)
    search: SearchFlags,
    beams: Annotated[BeamFlags, ONLY_BEAMS],
    files: PromptFileFlags,
    output: OutputFlags,
    loading: LoadFlags,
    batch_size: BatchSize = 32,
) -> None:
    """Generate text with a language model.

    Samples at temperature 0.8 unless you set samplers; --num-beams and --contrastive-alpha search instead.

    \b
    Examples:
      headway generate runs/demo "The statement" --max-new-tokens 40
      headway generate runs/demo "The" --top-p 0.9 --set dry_multiplier=0.8 --seed 1
      headway generate runs/demo "The" --top-k 20 --explain --max-new-tokens 3
      headway generate runs/demo "The" --num-beams 4 --max-new-tokens 10 --json
      headway generate runs/demo --in prompts.txt --out texts.jsonl
    """
    if output.list_all:
        list_samplers(json=output.json)
        return
    if model is None:
        raise typer.BadParameter("name a model directory, or a run such as runs/demo", param_hint="MODEL")
    for flag, number in (("-n", n), ("--batch-size", batch_size)):
        check_minimum(flag, number)
    files.check(prompt)
    if greedy and samplers["temperature"]:
        raise typer.BadParameter("cannot be combined with a --temperature above 0", param_hint="--greedy")
    _check_length(samplers["min_new_tokens"], stopping.max_new_tokens)
    search_options = search.options(beams)
    if search_options:
        _check_search(samplers)
    records = _read_prompts(prompt, files.source)
    texts = [record["prompt"] for record in records]
    if greedy:
        samplers = {**samplers, "temperature": 0.0}
    flags = {"model": model, "dtype": loading.dtype, **stopping.__dict__, **samplers, **search_options}
    settings = _settings_to_store({**flags, "logprobs": output.logprobs, "explain": output.explain})
    finished = finished_lines(files.out, records, settings) if files.out is not None and files.resume else []

    import headway
    from headway.generation.generate import encode_prompts
    from headway.models.adapter import language_model

    loaded: Any = language_model(headway.load(model, **loading.options))
    prompt_ids = encode_prompts(loaded, texts)
    note_unknown_text(loaded.tokenizer, texts, "prompt")
    _note_overflow(loaded, prompt_ids, stopping.max_new_tokens)
    generation: Sampling | Search
    if search_options:
        constraints = sampler_settings(samplers, loaded.tokenizer)
        generation = Search(loaded, model, texts, prompt_ids, search_options, stopping, constraints, batch_size)
    else:
        generation = Sampling(
            model=loaded,
            name=model,
            prompts=[text for text in texts for _ in range(n)],
            prompt_ids=[ids for ids in prompt_ids for _ in range(n)],
            n_per_prompt=n,
            seed=_base_seed(seed, n, finished),
            samplers=samplers,
            stopping=stopping,
            output=output,
            batch_size=batch_size,
        )
    if seed is not None and isinstance(generation, Sampling) and generation.is_greedy and not generation.draws:
        print("note: --seed has no effect: at temperature 0 nothing is drawn at random", file=sys.stderr)
    if files.out is not None:
        write_texts(generation, records, settings, files.out, len(finished), json=output.json)
    else:
        generation.run(json=output.json)
    if seed is None and not output.json and isinstance(generation, Sampling) and not generation.is_greedy:
        print(f"(seed {generation.seed})", file=sys.stderr)


# ── flags and prompts ─────────────────────────────────────────────────────────────────────────────────────────────


def _check_length(min_new_tokens: Any, max_new_tokens: int | None) -> None:
    if max_new_tokens is not None and isinstance(min_new_tokens, int) and min_new_tokens > max_new_tokens:
        raise typer.BadParameter(
            f"{min_new_tokens} is more than --max-new-tokens {max_new_tokens}", param_hint="--min-new-tokens"
        )


def _check_search(samplers: SamplerFlags) -> None:
    """Refuse sampler flags that a search would ignore. The search itself refuses samplers that draw at random."""
    for name in ("temperature", "sampler_order", "sampler_preset"):
        if samplers[name] is not None:
            raise typer.BadParameter(ONLY_SAMPLING.why, param_hint=f"--{name.replace('_', '-')}")


def _read_prompts(prompt: str, file: str | None) -> list[dict[str, Any]]:
    """The prompts as {"prompt": text}, with the other fields that a file of JSON lines has."""
    from headway.data.text_files import decode_text

    if file is not None:
        return read_texts(file, "prompt")
    if prompt == "-":
        prompt = decode_text(sys.stdin.buffer.read(), "stdin").removesuffix("\n")  # the newline that `echo` adds
    return [{"prompt": prompt}]


def _settings_to_store(flags: dict[str, Any]) -> dict[str, Any]:
    """What the texts depend on, beside the seeds: the model, and the flags that differ from their defaults."""
    return {
        name: value
        for name, value in flags.items()
        if value is not None and value is not False and value not in ([], "auto")
    }


def _base_seed(seed: int | None, n: int, finished: list[dict[str, Any]]) -> int:
    """The seed of the first text. A resumed file goes on with the seed it was started with."""
    if not finished:
        return secrets.randbits(32) if seed is None else seed
    texts = finished[0].get("texts") or [{}]
    started_with = texts[0].get("seed")
    if len(texts) != n or started_with is None or seed not in (None, started_with):
        raise typer.BadParameter(
            f"the file was started with seed {started_with} and {len(texts)} texts per prompt: give the same, or "
            f"start again with --overwrite",
            param_hint="--resume",
        )
    return int(started_with)


def _note_overflow(model: "LanguageModel", prompt_ids: list[list[int]], max_new_tokens: int | None) -> None:
    from headway.errors import count
    from headway.generation.limits import context_overflow

    if n_tokens := context_overflow(model, prompt_ids, max_new_tokens):
        print(
            f"note: the text goes {count(n_tokens, 'token')} past the training context of {model.config.context}: its "
            f"quality may drop",
            file=sys.stderr,
        )
