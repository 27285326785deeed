"""Printing generated texts: as plain text, as JSON, or token by token with the effect of each sampler."""

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headway.cli.options import print_json

if TYPE_CHECKING:
    from headway.generation.beam_search import Hypothesis
    from headway.generation.generate import Token
    from headway.tokenizers import Tokenizer

PLAIN_WIDTH = 120  # columns of what is not a terminal


def print_texts(tokens: "Iterator[Token]", prompts: list[str], stream: bool) -> None:
    """Print numbered texts with their prompts; with `stream` each as soon as it is finished."""
    texts, n_finished = [""] * len(prompts), 0

    def show(i: int) -> None:
        print(f"── {i + 1} ──\n{prompts[i]}{texts[i]}\n", flush=True)

    for token in tokens:
        texts[token.row] += token.text
        if token.finish_reason:
            n_finished += 1
            if stream:
                show(token.row)
            elif sys.stderr.isatty():
                end = "\n" if n_finished == len(prompts) else ""
                print(f"\r{n_finished} of {len(prompts)} texts", end=end, file=sys.stderr)
    if not stream:
        for i in range(len(prompts)):
            show(i)


def token_json(token: "Token", tokenizer: "Tokenizer") -> dict[str, Any]:
    fields: dict[str, Any] = {
        "row": token.row,
        "id": token.id,
        "text": token.text,
        "finish_reason": token.finish_reason,
    }
    if token.stop is not None:
        fields["stop"] = token.stop
    if token.logprob is not None:
        fields["logprob"] = token.logprob
        fields["top"] = [{"id": id, "token": tokenizer.decode([id]), "logprob": p} for id, p in token.top or []]
    if token.sampler_trace:
        fields["steps"] = [
            {**step._asdict(), "best": [{"id": id, "token": tokenizer.decode([id]), "p": p} for id, p in step.best]}
            for step in token.sampler_trace
        ]
    return fields


def text_json(tokens: "list[Token]", tokenizer: "Tokenizer", seed: int, *, details: bool) -> dict[str, Any]:
    """One generated text; with `details`, each of its tokens."""
    last = tokens[-1]
    text: dict[str, Any] = {
        "text": "".join(token.text for token in tokens),
        "seed": seed,
        "ids": [token.id for token in tokens],
        "finish_reason": last.finish_reason,
    }
    if last.stop is not None:
        text["stop"] = last.stop
    if details:
        text["tokens"] = [token_json(token, tokenizer) for token in tokens]
    return text


def hypotheses_json(row: "list[tuple[str, Hypothesis]]") -> list[dict[str, Any]]:
    """The texts of a search for one prompt, the best first."""
    return [
        {
            "text": text,
            "ids": h.tokens,
            "finish_reason": "stop" if h.ended else "length",
            "rank": rank,
            "score": h.score,
            "log_prob": h.log_prob,
        }
        for rank, (text, h) in enumerate(row, start=1)
    ]


def print_texts_json(
    generated: "list[list[Token]]",
    tokenizer: "Tokenizer",
    model: str,
    prompts: list[str],
    seed: int,
    pipe: Any,
    options: dict[str, Any],
    seconds: float,
) -> None:
    """Print one JSON object with all texts, the settings and the speed."""
    details = options["logprobs"] is not None or options["explain"]
    texts = [
        {"prompt": prompts[i], **text_json(row, tokenizer, seed + i, details=details)}
        for i, row in enumerate(generated)
    ]
    settings = {name: options[name] for name in ("seed", "max_new_tokens", "stop", "stop_token_ids", "include_stop")}
    results = {"texts": texts, "seconds": seconds, "tokens_per_second": sum(map(len, generated)) / seconds}
    print_json({"model": model, **settings, "stages": pipe.stages, **results})


def print_explained(tokens: "Iterator[Token]", tokenizer: "Tokenizer", prompts: list[str], pipe: Any) -> None:
    """Print each token with its log-probability and what every sampler removed, as much as the terminal is wide."""
    columns = shutil.get_terminal_size((PLAIN_WIDTH, 1)).columns

    def spelled(
        pairs: Sequence[tuple[int, float]],
        indent: int,
        format: Callable[[float], str] = format_probability,
        n_total: int = 0,
    ) -> str:
        """The tokens that fit after `indent` columns, at least one, and how many more of `n_total` there are."""
        words = [f"{tokenizer.decode([id])!r} {format(p)}" for id, p in pairs]
        while True:
            more = [f"and {n_total - len(words)} more"] if n_total > len(words) else []
            line = "  ".join([*words, *more])
            if indent + len(line) <= columns or len(words) <= 1:
                return line
            words.pop()

    hidden = {"stage", "breakers", "protected", "eos_ids"}
    for stage in pipe.stages:
        print(
            f"{stage['stage']}: {', '.join(f'{name} {value}' for name, value in stage.items() if name not in hidden)}"
        )
    print()
    counts, texts = [0] * len(prompts), list(prompts)
    for token in tokens:
        counts[token.row] += 1
        texts[token.row] += token.text
        label = f"text {token.row + 1}, " if len(prompts) > 1 else ""
        title = f"{label}token {counts[token.row]}: {tokenizer.decode([token.id])!r}"
        if token.logprob is not None:
            title += f"   ln p {token.logprob:.4f}   most likely: "
            title += spelled(token.top or [], len(title), "{:.3f}".format)
        if token.sampler_trace:
            first, last = (format_probability(step.p) for step in (token.sampler_trace[0], token.sampler_trace[-1]))
            print(f"{title}   p {first} → {last}")
            width = max(len(step.sampler) for step in token.sampler_trace)
            print(f"    {'stage':{width}} {'alive':>7} {'removed':>8} {'p':>6}")
            for step in token.sampler_trace:
                removed = "" if step.sampler == "model" else f"{step.n_removed}"
                start = f"    {step.sampler:{width}} {step.n_alive:>7} {removed:>8} {format_probability(step.p):>6}   "
                print(start + spelled(step.best, len(start)))
                if step.removed:
                    start = f"{'':{len(start)}}removed: "
                    print(start + spelled(step.removed, len(start), n_total=step.n_removed))
            print(flush=True)
        else:
            print(title, flush=True)
    for text in texts:
        print(f"── text ──\n{text}")


def format_probability(p: float) -> str:
    """A probability in at most six characters, also a small one: 0.250, 2e-04."""
    return f"{p:.3f}" if p >= 0.0005 or p == 0 else f"{p:.0e}"


def print_hypotheses(
    results: "list[list[tuple[str, Hypothesis]]]",
    prompts: list[str],
    model: str,
    search_options: dict[str, Any],
    seconds: float,
    *,
    json: bool,
) -> None:
    """Print the texts of a search, the best first for each prompt."""
    if json:
        texts = [
            {"prompt": prompt, **text}
            for prompt, row in zip(prompts, results, strict=True)
            for text in hypotheses_json(row)
        ]
        print_json({"model": model, "search": search_options, "texts": texts, "seconds": seconds})
        return
    is_single = len(prompts) == 1 and len(results[0]) == 1
    for i, (prompt, row) in enumerate(zip(prompts, results, strict=True), start=1):
        for rank, (text, h) in enumerate(row, start=1):
            label = f"{i}.{rank}" if len(prompts) > 1 else f"{rank}"
            print(f"{prompt}{text}" if is_single else f"── {label}, score {h.score:.4f} ──\n{prompt}{text}\n")
