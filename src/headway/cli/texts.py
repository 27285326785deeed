"""How texts that a model wrote are shown: as text, as JSON, token by token with what the samplers did."""

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headway.cli.options import print_json

if TYPE_CHECKING:
    from headway.generation.beam_search import Hypothesis
    from headway.generation.generate import Token
    from headway.tokenizers import Tokenizer


def print_texts(tokens: "Iterator[Token]", rows: list[str], stream: bool) -> None:
    texts, n_done = [""] * len(rows), 0

    def show(i: int) -> None:
        print(f"── {i + 1} ──\n{rows[i]}{texts[i]}\n", flush=True)

    for token in tokens:
        texts[token.row] += token.text
        if token.finish:
            n_done += 1
            if stream:
                show(token.row)
            elif sys.stderr.isatty():
                print(f"\r{n_done} of {len(rows)} texts", end="\n" if n_done == len(rows) else "", file=sys.stderr)
    if not stream:
        for i in range(len(rows)):
            show(i)


def as_json(token: "Token", tokenizer: "Tokenizer") -> dict[str, Any]:
    found: dict[str, Any] = {"row": token.row, "id": token.id, "text": token.text, "finish": token.finish}
    if token.stop is not None:
        found["stop"] = token.stop
    if token.logprob is not None:
        found["logprob"] = token.logprob
        found["top"] = [{"id": id, "token": tokenizer.decode([id]), "logprob": p} for id, p in token.top or []]
    if token.steps is not None:
        found["steps"] = [
            {**step._asdict(), "best": [{"id": id, "token": tokenizer.decode([id]), "p": p} for id, p in step.best]}
            for step in token.steps
        ]
    return found


def print_written(
    tokens: "Iterator[Token]",
    tokenizer: "Tokenizer",
    model: str,
    rows: list[str],
    seed: int,
    pipe: Any,
    options: dict[str, Any],
    started: float,
) -> None:
    written: list[list[Token]] = [[] for _ in rows]
    for token in tokens:
        written[token.row].append(token)
    seconds = time.monotonic() - started
    texts = []
    for i, row in enumerate(written):
        text: dict[str, Any] = {"prompt": rows[i], "text": "".join(token.text for token in row), "seed": seed + i}
        text |= {"ids": [token.id for token in row], "finish": row[-1].finish}
        if row[-1].stop is not None:
            text["stop"] = row[-1].stop
        if options["logprobs"] is not None or options["explain"]:
            text["tokens"] = [as_json(token, tokenizer) for token in row]
        texts.append(text)
    said = {name: options[name] for name in ("seed", "max_new_tokens", "stop", "stop_token_ids", "include_stop")}
    speed = sum(map(len, written)) / seconds
    print_json(
        {"model": model, **said, "stages": pipe.stages, "texts": texts, "seconds": seconds, "tokens_per_second": speed}
    )


def print_explained(tokens: "Iterator[Token]", tokenizer: "Tokenizer", rows: list[str], pipe: Any) -> None:
    def spelled(pairs: list[tuple[int, float]]) -> str:
        return "  ".join(f"{tokenizer.decode([id])!r} {p:.3f}" for id, p in pairs)

    shown = {"breakers", "protected", "eos_ids"}
    for stage in pipe.stages:
        values = ", ".join(f"{k} {v}" for k, v in stage.items() if k != "stage" and k not in shown)
        print(f"{stage['stage']}: {values}")
    print()
    counts, texts = [0] * len(rows), list(rows)
    for token in tokens:
        counts[token.row] += 1
        texts[token.row] += token.text
        which = f"text {token.row + 1}, " if len(rows) > 1 else ""
        title = f"{which}token {counts[token.row]}: {tokenizer.decode([token.id])!r}"
        if token.logprob is not None:
            title += f"   ln p {token.logprob:.4f}   most likely: {spelled(token.top or [])}"
        if token.steps:
            print(f"{title}   p {token.steps[0].p:.4f} → {token.steps[-1].p:.4f}")
            print(f"    {'stage':20} {'alive':>7} {'removed':>8} {'p':>8}")
            for step in token.steps:
                removed = "" if step.sampler == "model" else f"{step.n_removed}"
                print(f"    {step.sampler:20} {step.n_alive:>7} {removed:>8} {step.p:>8.4f}   {spelled(step.best)}")
                if step.removed:
                    print(f"    {'':20} {'':>7} {'':>8} {'':>8}   removed: {spelled(step.removed)}{_more(step)}")
            print(flush=True)
        else:
            print(title, flush=True)
    for text in texts:
        print(f"── text ──\n{text}")


def _more(step: Any) -> str:
    return f"  and {step.n_removed - len(step.removed)} more" if step.n_removed > len(step.removed) else ""


def print_found(
    found: "list[list[tuple[str, Hypothesis]]]",
    given: list[str],
    model: str,
    searched: dict[str, Any],
    seconds: float,
    *,
    json: bool,
) -> None:
    """The texts of a search, best first."""
    if json:
        texts = []
        for prompt, row in zip(given, found, strict=True):
            for rank, (text, h) in enumerate(row, start=1):
                ended = "stop" if h.ended else "length"
                said = {"ids": h.tokens, "finish": ended, "rank": rank, "score": h.score, "log_prob": h.log_prob}
                texts.append({"prompt": prompt, "text": text, **said})
        print_json({"model": model, "search": searched, "texts": texts, "seconds": seconds})
        return
    is_one = len(given) == 1 and len(found[0]) == 1
    for i, (prompt, row) in enumerate(zip(given, found, strict=True), start=1):
        for rank, (text, h) in enumerate(row, start=1):
            which = f"{i}.{rank}" if len(given) > 1 else f"{rank}"
            print(f"{prompt}{text}" if is_one else f"── {which}, score {h.score:.4f} ──\n{prompt}{text}\n")


def list_samplers(*, json: bool) -> None:
    from headway.sampling import FLAT, PRESETS, SAMPLERS

    flags = {(stage, parameter): flat for flat, (stage, parameter) in FLAT.items()}
    if json:
        described = ("help", "range", "off", "usual")
        print_json(
            {
                name: {
                    "group": stage.group,
                    "summary": stage.summary,
                    "parameters": {
                        p: {"setting": flags[name, p]} | {key: getattr(kind, key) for key in described}
                        for p, kind in stage.parameters.items()
                    },
                }
                for name, stage in SAMPLERS.items()
            }
        )  # fmt: skip
        return
    print("In the order of the preset `default`; all are off unless set, but for temperature: 0.8.\n")
    for name in PRESETS["default"]:
        stage = SAMPLERS[name]
        print(f"{name:20} {stage.summary}")
        for parameter, kind in stage.parameters.items():
            if parameter == "min_keep":
                continue
            off = "" if kind.off is None else f"; off: {kind.off:g}"
            usual = f"; usual: {kind.usual}" if kind.usual else ""
            print(f"{'':20}   {flags[name, parameter]}: {kind.help} ({kind.range}{off}{usual})")
