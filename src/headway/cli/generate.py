"""headway generate"""

import secrets
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli.options import Device, Dtype, Json, print_json, say, unescaped
from headway.cli.samplers import Samplers, names_in, settings_from, with_samplers
from headway.cli.texts import as_json, list_samplers, print_explained, print_found, print_texts, print_written


@with_samplers
def generate(
    model: Annotated[str | None, typer.Argument(help="A model directory, or a run such as runs/demo.")] = None,
    prompt: Annotated[str, typer.Argument(help="Text to continue; - reads it from stdin. Empty: begin anew.")] = "",
    prompts: Annotated[
        str | None, typer.Option("--prompts", help="A file with one prompt per line instead; - reads stdin.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Tokens to write, at least 1. Default: 256, or what the context allows.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="The same seed gives the same text; any whole number. Default: a new one, shown at the end."),
    ] = None,
    n: Annotated[int, typer.Option("-n", help="Texts per prompt, at least 1; text i draws from seed + i.")] = 1,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help=r"End before this text (\n: a line end); may be repeated.")
    ] = None,
    stop_token_ids: Annotated[
        list[int] | None,
        typer.Option("--stop-token-id", help="End at this token, as at the end of text; may be repeated."),
    ] = None,
    include_stop: Annotated[bool, typer.Option("--include-stop", help="Keep the stop text that ended it.")] = False,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Always the best token: the same as --temperature 0.")
    ] = False,
    samplers: Samplers = {},  # noqa: B006 (replaced by the flags)
    # ── search instead of sampling ──
    num_beams: Annotated[
        int | None, typer.Option(help="Beam search with so many beams, 1 or more; with --n-best texts. Off: not given.")
    ] = None,
    n_best: Annotated[int | None, typer.Option(help="Texts of a beam search, 1 to --num-beams. Default: 1.")] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Beam search: any number; above 0 favours long texts. Off: 0. Default: 1.")
    ] = None,
    length_norm: Annotated[str | None, typer.Option(help="Beam search: power (default) or gnmt.")] = None,
    early_stopping: Annotated[str | None, typer.Option(help="Beam search: true, false (default) or never.")] = None,
    contrastive_alpha: Annotated[
        float | None,
        typer.Option(help="Contrastive search: weight of being different, 0 to 1. Off: not given. Usual: 0.6."),
    ] = None,
    contrastive_k: Annotated[int | None, typer.Option(help="Its candidates, 1 or more. Default: 4.")] = None,
    # ── output ──
    logprobs: Annotated[
        int | None,
        typer.Option(
            help="Also ln p of each token and of so many most likely ones, 0 to the vocabulary. Off: not given."
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show for each token what every stage removed, and p before and after.")
    ] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Show texts as they are done; with --json: one line per token.")
    ] = False,
    list_all: Annotated[bool, typer.Option("--list-samplers", help="List all stages and leave.")] = False,
    batch_size: Annotated[int, typer.Option(help="Texts written at a time, at least 1.")] = 32,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
) -> None:
    """Write text with a model, as it comes.

    \b
    Examples:
      headway generate runs/demo "The statement" --max-new-tokens 40
      headway generate runs/demo "The" --top-p 0.9 --dry-multiplier 0.8 --seed 1 --max-new-tokens 40
      headway generate runs/demo "The" --top-k 20 --sampler-order top_k,temperature --explain --max-new-tokens 3
      headway generate runs/demo "The" --num-beams 4 --max-new-tokens 10 --json
      headway generate --list-samplers
    """
    given = {**locals(), **samplers}
    if list_all:
        list_samplers(json=json)
        return
    if model is None:
        raise typer.BadParameter("a model directory, or a run such as runs/demo", param_hint="MODEL")
    if n < 1:
        raise typer.BadParameter(f"{n} texts: at least 1", param_hint="-n")
    searched = _searched(given)
    _check_together(given, searched)
    texts = _read_prompts(prompt, prompts)

    import headway
    from headway.generation.sampling_params import make_pipeline
    from headway.models.base import language_model

    loaded: Any = language_model(headway.load(model, device=device, dtype=dtype))
    tokenizer = loaded.tokenizer
    settings = settings_from(samplers, tokenizer)
    _note_length(loaded, texts, max_new_tokens)
    if searched:
        _search(loaded, model, texts, searched, max_new_tokens, stop_token_ids or [], settings, json)
        return
    rows = [text for text in texts for _ in range(n)]
    base = secrets.randbits(32) if seed is None else seed
    preset, order = samplers["sampler_preset"], samplers["sampler_order"]
    ends = {id for id in (loaded.config.eos_id, tokenizer.eos_id, *(stop_token_ids or [])) if id is not None}
    heat = 0.0 if greedy else samplers["temperature"]
    pipe: Any = make_pipeline(tokenizer, ends, preset or "default", names_in(order), temperature=heat, **settings)
    say(pipe)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stop": [unescaped(text) for text in stop or []]}
    options |= {"stop_token_ids": stop_token_ids or [], "include_stop": include_stop, "logprobs": logprobs}
    options |= {"explain": explain, "batch_size": batch_size, "seed": base}
    started = time.monotonic()
    tokens = headway.generate(loaded, rows, pipeline=pipe, **options)
    if json and stream:
        for token in tokens:
            print_json({"prompt": token.row // n, **as_json(token, tokenizer), "seed": base + token.row})
            sys.stdout.flush()
    elif json:
        print_written(tokens, tokenizer, model, rows, base, pipe, options, started)
    elif explain or logprobs is not None:
        print_explained(tokens, tokenizer, rows, pipe)
    elif len(rows) == 1:
        print(rows[0], end="", flush=True)
        for token in tokens:
            print(token.text, end="", flush=True)
        print()
        if max_new_tokens is None and token.finish == "length":
            print("(the end of what fits; --max-new-tokens sets how much to write)", file=sys.stderr)
    else:
        print_texts(tokens, rows, stream)
    if seed is None and not json and not greedy and (heat is None or heat > 0):
        print(f"(seed {base})", file=sys.stderr)


def _searched(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a search, if one was asked for."""
    of_beams = {name: given[name] for name in ("n_best", "length_penalty", "length_norm", "early_stopping")}
    of_beams = {name: value for name, value in of_beams.items() if value is not None}
    if given["num_beams"] is None and of_beams:
        raise typer.BadParameter("it belongs to --num-beams", param_hint=f"--{next(iter(of_beams)).replace('_', '-')}")
    if given["contrastive_alpha"] is None and given["contrastive_k"] is not None:
        raise typer.BadParameter("it belongs to --contrastive-alpha", param_hint="--contrastive-k")
    if given["num_beams"] is not None:
        if given["contrastive_alpha"] is not None:
            raise typer.BadParameter("--num-beams and --contrastive-alpha: one of the two searches")
        if "early_stopping" in of_beams:
            known = {"true": True, "false": False, "never": "never"}
            if of_beams["early_stopping"].lower() not in known:
                raise typer.BadParameter("true, false or never", param_hint="--early-stopping")
            of_beams["early_stopping"] = known[of_beams["early_stopping"].lower()]
        return {"num_beams": given["num_beams"], **of_beams}
    if given["contrastive_alpha"] is not None:
        return {
            "alpha": given["contrastive_alpha"],
            "k": 4 if given["contrastive_k"] is None else given["contrastive_k"],
        }
    return {}


def _check_together(given: dict[str, Any], searched: dict[str, Any]) -> None:
    """Flags that contradict each other, or would be ignored."""
    unused = (
        "temperature",
        "greedy",
        "explain",
        "logprobs",
        "stream",
        "stop",
        "include_stop",
        "sampler_order",
        "sampler_preset",
        "seed",
    )
    for name in unused if searched else ():
        if given[name] is not None and given[name] is not False and given[name] != []:
            why = "a search draws nothing and ends at end tokens alone (--stop-token-id)"
            raise typer.BadParameter(f"{why}: leave it out", param_hint=f"--{name.replace('_', '-')}")
    if searched and given["n"] != 1:
        raise typer.BadParameter("a search gives the same text every time; --n-best gives several", param_hint="-n")
    if given["greedy"] and given["temperature"]:
        raise typer.BadParameter("always the best token, or a temperature: one of them", param_hint="--greedy")
    if given["prompt"] and given["prompts"] is not None:
        raise typer.BadParameter("a prompt and a file of prompts: one of them", param_hint="--prompts")
    if given["batch_size"] < 1:
        raise typer.BadParameter(f"{given['batch_size']}: at least 1", param_hint="--batch-size")
    least, most = given["min_new_tokens"] or 0, given["max_new_tokens"]
    if most is not None and least > most:
        raise typer.BadParameter(f"{least} is more than --max-new-tokens {most}", param_hint="--min-new-tokens")


def _note_length(loaded: Any, texts: list[str], max_new_tokens: int | None) -> None:
    context = loaded.config.context
    longest = max(len(loaded.tokenizer.prompt(text)) for text in texts)
    if context is not None and longest + (max_new_tokens or 1) > context:
        print(
            f"note: {longest} + {max_new_tokens or 1} tokens go past the {context} it was trained with", file=sys.stderr
        )


def _read_prompts(prompt: str, prompts: str | None) -> list[str]:
    from headway.data.readers import decode_text
    from headway.errors import DataError

    if prompts is not None:
        data = sys.stdin.buffer.read() if prompts == "-" else _read(Path(prompts))
        lines = decode_text(data, "stdin" if prompts == "-" else prompts).splitlines()
        if not lines:
            raise DataError(f"{prompts} holds no prompt: one per line")
        return lines
    if prompt == "-":
        return [decode_text(sys.stdin.buffer.read(), "stdin").removesuffix("\n")]  # which `echo` adds
    return [prompt]


def _read(path: Path) -> bytes:
    from headway.errors import DataError

    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _search(
    loaded: Any,
    model: str,
    given: list[str],
    searched: dict[str, Any],
    max_new_tokens: int | None,
    stop_token_ids: list[int],
    settings: dict[str, Any],
    json: bool,
) -> None:
    from headway.generation.generate import search

    started = time.monotonic()
    found = search(loaded, given, max_new_tokens=max_new_tokens, stop_token_ids=stop_token_ids, **searched, **settings)
    print_found(found, given, model, searched, time.monotonic() - started, json=json)
