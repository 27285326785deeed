"""headway generate"""

import secrets
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.generation_output import (
    print_explained,
    print_hypotheses,
    print_texts,
    print_texts_json,
    token_json,
)
from headway.cli.options import (
    BeamFlags,
    Json,
    LoadFlags,
    check_minimum,
    print_json,
    print_notes,
    read_lines,
    unescaped,
    with_option_groups,
)
from headway.cli.sampler_options import (
    SamplerFlags,
    list_samplers,
    parse_order,
    sampler_settings,
    with_sampler_options,
)

if TYPE_CHECKING:
    from headway.models.base import LanguageModel

DEFAULT_CONTRASTIVE_K = 4


@dataclass(frozen=True)
class StopFlags:
    """When a text ends."""

    max_new_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens to generate, at least 1. Default: what is left of the context, at most 256."),
    ] = None
    stop: Annotated[list[str] | None, typer.Option(help=r"End before this string (\n is a newline); repeatable.")] = (
        None
    )
    stop_token_ids: Annotated[
        list[int] | None, typer.Option("--stop-token-id", help="End at this token, as at EOS; repeatable.")
    ] = None
    include_stop: Annotated[bool, typer.Option("--include-stop", help="Keep the stop string in the text.")] = False

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of `headway.generate`."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "stop": [unescaped(text) for text in self.stop or []],
            "stop_token_ids": self.stop_token_ids or [],
            "include_stop": self.include_stop,
        }


@dataclass(frozen=True)
class SearchFlags:
    """Search instead of sampling."""

    num_beams: Annotated[int | None, typer.Option(help="Beam search: number of beams, at least 1. Off: not given.")] = (
        None
    )
    n_best: Annotated[
        int | None, typer.Option(help="Beam search: texts per prompt, at most --num-beams. Default: 1.")
    ] = None
    contrastive_alpha: Annotated[
        float | None, typer.Option(help="Contrastive search: degeneration penalty, 0 to 1. Off: not given. Usual: 0.6.")
    ] = None
    contrastive_k: Annotated[
        int | None, typer.Option(help=f"Contrastive search: candidates, at least 1. Default: {DEFAULT_CONTRASTIVE_K}.")
    ] = None

    def options(self, beams: BeamFlags) -> dict[str, Any]:
        """Keyword arguments of `headway.generation.generate.search`; empty if no search was asked for."""
        beam_options = {**({} if self.n_best is None else {"n_best": self.n_best}), **beams.options}
        if self.num_beams is None and beam_options:
            flag = f"--{next(iter(beam_options)).replace('_', '-')}"
            raise typer.BadParameter("is an option of beam search: add --num-beams", param_hint=flag)
        if self.contrastive_alpha is None and self.contrastive_k is not None:
            raise typer.BadParameter(
                "is an option of contrastive search: add --contrastive-alpha", param_hint="--contrastive-k"
            )
        if self.num_beams is not None and self.contrastive_alpha is not None:
            raise typer.BadParameter(
                "cannot be combined with --num-beams: choose one search", param_hint="--contrastive-alpha"
            )
        if self.num_beams is not None:
            return {"num_beams": self.num_beams, **beam_options}
        if self.contrastive_alpha is not None:
            k = DEFAULT_CONTRASTIVE_K if self.contrastive_k is None else self.contrastive_k
            return {"alpha": self.contrastive_alpha, "k": k}
        return {}


@dataclass(frozen=True)
class DetailFlags:
    """What to show of each token."""

    logprobs: Annotated[
        int | None, typer.Option(help="Show ln p of each token and of this many most likely ones. Off: not given.")
    ] = None
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what each sampler removed, and p before and after, per token.")
    ] = False
    stream: Annotated[
        bool, typer.Option("--stream", help="Print each text when it is finished; with --json, each token.")
    ] = False


@with_sampler_options
@with_option_groups
def generate(
    model: Annotated[str | None, typer.Argument(help="A model directory, or a run such as runs/demo.")] = None,
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads stdin. Default: start from BOS.")] = "",
    *,
    prompts: Annotated[
        str | None, typer.Option("--prompts", help="A file with one prompt per line; - reads stdin.")
    ] = None,
    stopping: StopFlags,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the first text; text i uses seed + i. Default: a new one, printed.")
    ] = None,
    n: Annotated[int, typer.Option("-n", help="Texts per prompt, at least 1.")] = 1,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Take the most likely token: the same as --temperature 0.")
    ] = False,
    samplers: SamplerFlags = {},  # noqa: B006 (replaced by the flags)
    search: SearchFlags,
    beams: BeamFlags,
    details: DetailFlags,
    list_all: Annotated[bool, typer.Option("--list-samplers", help="List all samplers and exit.")] = False,
    batch_size: Annotated[int, typer.Option(help="Texts per batch, at least 1.")] = 32,
    loading: LoadFlags,
    json: Json = False,
) -> None:
    """Generate text with a language model.

    The temperature is 0.8 unless you set it; --num-beams and --contrastive-alpha search instead of sampling.

    \b
    Examples:
      headway generate runs/demo "The statement" --max-new-tokens 40
      headway generate runs/demo "The" --top-p 0.9 --dry-multiplier 0.8 --seed 1 --max-new-tokens 40
      headway generate runs/demo "The" --top-k 20 --sampler-order top_k,temperature --explain --max-new-tokens 3
      headway generate runs/demo "The" --num-beams 4 --max-new-tokens 10 --json
      headway generate --list-samplers
    """
    if list_all:
        list_samplers(json=json)
        return
    if model is None:
        raise typer.BadParameter("name a model directory, or a run such as runs/demo", param_hint="MODEL")
    for flag, number in (("-n", n), ("--batch-size", batch_size)):
        check_minimum(flag, number)
    if prompt and prompts is not None:
        raise typer.BadParameter("cannot be combined with a prompt", param_hint="--prompts")
    if greedy and samplers["temperature"]:
        raise typer.BadParameter("cannot be combined with a --temperature above 0", param_hint="--greedy")
    _check_length(samplers["min_new_tokens"], stopping.max_new_tokens)
    search_options = search.options(beams)
    if search_options:
        sampling_flags = {**stopping.__dict__, **details.__dict__, **samplers, "seed": seed, "greedy": greedy}
        _check_search(sampling_flags, n)
    texts = _read_prompts(prompt, prompts)

    import headway
    from headway.generation.generate import encode_prompts
    from headway.models.base import language_model

    loaded: Any = language_model(headway.load(model, **loading.options))
    prompt_ids = encode_prompts(loaded, texts)
    _note_overflow(loaded, prompt_ids, stopping.max_new_tokens)
    if search_options:
        settings = sampler_settings(samplers, loaded.tokenizer)
        _search(loaded, model, texts, prompt_ids, search_options, stopping, settings, json)
        return
    sampling = _Sampling(
        model=loaded,
        name=model,
        prompts=[text for text in texts for _ in range(n)],
        prompt_ids=[ids for ids in prompt_ids for _ in range(n)],
        n_per_prompt=n,
        seed=secrets.randbits(32) if seed is None else seed,
        samplers={**samplers, "temperature": 0.0} if greedy else samplers,
        stopping=stopping,
        details=details,
        batch_size=batch_size,
    )
    sampling.run(json=json)
    is_greedy = sampling.samplers["temperature"] == 0
    if seed is None and not json and not is_greedy:
        print(f"(seed {sampling.seed})", file=sys.stderr)


# ── flags and prompts ─────────────────────────────────────────────────────────────────────────────────────────────


def _check_length(min_new_tokens: int | None, max_new_tokens: int | None) -> None:
    if max_new_tokens is not None and (min_new_tokens or 0) > max_new_tokens:
        raise typer.BadParameter(
            f"{min_new_tokens} is more than --max-new-tokens {max_new_tokens}", param_hint="--min-new-tokens"
        )


def _check_search(flags: dict[str, Any], n: int) -> None:
    """Refuse flags that a search would ignore. Those of samplers that draw are refused by the search itself."""
    ignored = ("temperature", "greedy", "explain", "logprobs", "stream", "stop", "include_stop", "sampler_order")
    for name in (*ignored, "sampler_preset", "seed"):
        value = flags[name]
        if value is not None and value is not False and value != []:
            raise typer.BadParameter(
                "does not apply to a search, which draws nothing at random and ends at EOS or --stop-token-id: leave "
                "it out",
                param_hint=f"--{name.replace('_', '-')}",
            )
    if n != 1:
        raise typer.BadParameter("a search is deterministic: use --n-best for several texts", param_hint="-n")


def _read_prompts(prompt: str, prompts: str | None) -> list[str]:
    from headway.data.text_files import decode_text

    if prompts is not None:
        return read_lines(prompts)
    if prompt == "-":
        return [decode_text(sys.stdin.buffer.read(), "stdin").removesuffix("\n")]  # the newline that `echo` adds
    return [prompt]


def _note_overflow(model: "LanguageModel", prompt_ids: list[list[int]], max_new_tokens: int | None) -> None:
    from headway.generation.limits import context_overflow

    if n_tokens := context_overflow(model, prompt_ids, max_new_tokens):
        print(
            f"note: the text goes {n_tokens} tokens past the training context of {model.config.context}: its quality "
            f"may drop",
            file=sys.stderr,
        )


# ── sampling and search ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Sampling:
    """Sampled texts: one row per text, n rows per prompt."""

    model: Any
    name: str
    prompts: list[str]
    prompt_ids: list[list[int]]
    n_per_prompt: int
    seed: int  # of the first row
    samplers: SamplerFlags
    stopping: StopFlags
    details: DetailFlags
    batch_size: int

    def run(self, *, json: bool) -> None:
        import headway

        tokenizer, details, start = self.model.tokenizer, self.details, time.monotonic()
        pipe = self._pipeline()
        print_notes(pipe)
        options = {**self.stopping.options, "logprobs": details.logprobs, "explain": details.explain, "seed": self.seed}
        tokens = headway.generate(self.model, self.prompt_ids, pipeline=pipe, batch_size=self.batch_size, **options)
        if json and details.stream:
            for token in tokens:
                row = {"prompt": token.row // self.n_per_prompt, **token_json(token, tokenizer)}
                print_json({**row, "seed": self.seed + token.row})
                sys.stdout.flush()
        elif json:
            print_texts_json(tokens, tokenizer, self.name, self.prompts, self.seed, pipe, options, start)
        elif details.explain or details.logprobs is not None:
            print_explained(tokens, tokenizer, self.prompts, pipe)
        elif len(self.prompts) == 1:
            self._print_stream(tokens)
        else:
            print_texts(tokens, self.prompts, details.stream)

    def _pipeline(self) -> Any:
        from headway.generation.sampling_params import eos_token_ids, make_pipeline

        return make_pipeline(
            self.model.tokenizer,
            eos_token_ids(self.model, self.stopping.stop_token_ids or []),
            self.samplers["sampler_preset"] or "default",
            parse_order(self.samplers["sampler_order"]),
            temperature=self.samplers["temperature"],
            **sampler_settings(self.samplers, self.model.tokenizer),
        )

    def _print_stream(self, tokens: Any) -> None:
        """Print one text as it is generated."""
        print(self.prompts[0], end="", flush=True)
        for token in tokens:
            print(token.text, end="", flush=True)
        print()
        if self.stopping.max_new_tokens is None and token.finish_reason == "length":
            print("(stopped at the default length; --max-new-tokens sets another)", file=sys.stderr)


def _search(
    model: Any,
    name: str,
    prompts: list[str],
    prompt_ids: list[list[int]],
    search_options: dict[str, Any],
    stopping: StopFlags,
    settings: dict[str, Any],
    json: bool,
) -> None:
    from headway.generation.generate import search

    start = time.monotonic()
    hypotheses = search(
        model,
        prompt_ids,
        max_new_tokens=stopping.max_new_tokens,
        stop_token_ids=stopping.stop_token_ids or [],
        **search_options,
        **settings,
    )
    print_hypotheses(hypotheses, prompts, name, search_options, time.monotonic() - start, json=json)
