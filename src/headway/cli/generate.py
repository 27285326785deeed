"""headway generate"""

import secrets
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.options import Device, Dtype, Json, print_json

if TYPE_CHECKING:
    from headway.decoding import Token


def generate(
    model: Annotated[str, typer.Argument(help="A model directory, or a run such as runs/demo.")],
    prompt: Annotated[str, typer.Argument(help="Text to continue; - reads it from stdin. Empty: begin anew.")] = "",
    max_new_tokens: Annotated[
        int | None, typer.Option(help="Tokens to write, at least 1. Default: 256, or what the context allows.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="From 0 (the best token, always); 1: as the model says.")] = 0.8,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Always the best token: the same as --temperature 0.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text. Default: a new one.")] = None,
    n: Annotated[int, typer.Option("-n", help="How many texts to write, at least 1; text i draws from seed + i.")] = 1,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
) -> None:
    """Write text with a model, as it comes.

    \b
    Examples:
      headway generate runs/demo "The statement" --max-new-tokens 40
      headway generate runs/demo --greedy --json
    """
    from headway.data.formats import decode_text

    if n < 1:
        raise typer.BadParameter(f"{n} texts: at least 1", param_hint="-n")
    if prompt == "-":
        prompt = decode_text(sys.stdin.buffer.read(), "stdin").removesuffix("\n")  # which `echo` adds

    import headway

    loaded = headway.load(model, device=device, dtype=dtype)
    seed = secrets.randbits(32) if seed is None else seed
    heat = 0.0 if greedy else temperature
    started = time.monotonic()
    tokens = headway.generate(loaded, [prompt] * n, max_new_tokens=max_new_tokens, temperature=heat, seed=seed)
    if n == 1 and not json:
        print(prompt, end="", flush=True)
        for token in tokens:
            print(token.text, end="", flush=True)
        print()
        if max_new_tokens is None and token.finish == "length":
            print("(the end of what fits; --max-new-tokens sets how much to write)", file=sys.stderr)
        return
    rows: list[list[Token]] = [[] for _ in range(n)]
    for token in tokens:
        rows[token.row].append(token)
    texts = ["".join(token.text for token in row) for row in rows]
    if not json:
        print("\n\n".join(f"── {i} ──\n{prompt}{text}" for i, text in enumerate(texts, start=1)))
        return
    seconds = time.monotonic() - started
    print_json(
        {
            "model": model,
            "prompt": prompt,
            "seed": seed,
            "temperature": heat,
            "texts": [
                {"text": text, "ids": [t.id for t in row], "finish": row[-1].finish}
                for text, row in zip(texts, rows, strict=True)
            ],
            "seconds": seconds,
            "tokens_per_second": sum(map(len, rows)) / seconds,
        }
    )
