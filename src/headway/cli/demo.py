"""headway demo"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.options import Json, print_json, program

if TYPE_CHECKING:
    from headway.models.base import LanguageModel, Model

PROMPT = "The "
SAMPLE_TOKENS = 60


def demo(
    out: Annotated[Path | None, typer.Option(help="The run's folder. Default: the next free runs/demo.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Train no longer than this. Default: as the recipe says.")
    ] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="Override a setting of the recipe.")] = None,
    json: Json = False,
) -> None:
    """Train a small GPT on the documentation inside Python, and see what it learns.

    About a minute on two cores. Shows a sample before and after, bits per byte on held-out text beside an n-gram
    that counted the same tokens, and what to try next.

    \b
    Example:
      headway demo --seconds 20
    """
    from headway.config import GPTConfig, NGramConfig, load_recipe
    from headway.errors import ConfigError

    overrides = [*(settings or []), *([f"train.max_seconds={seconds}"] if seconds is not None else [])]
    recipe = load_recipe("demo", overrides)
    if not isinstance(recipe.model, GPTConfig):
        raise ConfigError("the demo trains a GPT; `headway train` takes the other families")

    import torch

    import headway
    from headway.cli.display import TrainingDisplay, say
    from headway.data import read_split
    from headway.files import free_name
    from headway.models import GPT, NGram

    held_out = list(read_split(recipe.data, "valid"))
    seen: dict[str, Any] = {}

    def look_before(model: "Model") -> None:
        assert isinstance(model, GPT)
        seen["sample_before"] = _sample(model)
        seen["untrained"] = headway.evaluate(model, held_out).bits_per_byte
        say("training    Ctrl-C stops early and keeps what was learned")

    with TrainingDisplay() as display:
        place = out or free_name(Path("runs") / "demo")
        result = headway.train(
            recipe, out=place, report=display.report, say=say, before=look_before, preparing=display.preparing
        )
    model, tokenizer = result.model, result.model.tokenizer
    assert isinstance(model, GPT)
    assert tokenizer is not None
    score = headway.evaluate(model, held_out)
    trigram = NGram(NGramConfig(vocab_size=tokenizer.vocab_size, order=3))
    trigram.tokenizer = tokenizer
    trigram.fit(torch.tensor(tokenizer.stream(read_split(recipe.data, "train"))))
    counted = headway.evaluate(trigram, held_out, context=model.config.context)
    seen |= {"sample_after": _sample(model), "trigram": counted.bits_per_byte, "gpt": score.bits_per_byte}
    if json:
        facts = {"run": str(result.path), "steps": result.steps, "seconds": result.seconds, "n_params": model.n_params}
        print_json({**facts, **seen, "interrupted": result.interrupted})
    else:
        _print(seen, str(result.path), model.n_params, result.seconds)
    if result.interrupted:
        say(f"interrupted after step {result.steps}; what was learned so far is saved")
        raise typer.Exit(130)


def _sample(model: "LanguageModel") -> str:
    import headway

    tokens = headway.generate(model, PROMPT, max_new_tokens=SAMPLE_TOKENS, temperature=0.7, seed=1)
    return PROMPT + "".join(token.text for token in tokens)


def _print(seen: dict[str, Any], run: str, n_params: int, seconds: float) -> None:
    def quoted(text: str) -> str:
        return "\n".join(f"    {line}" for line in text.splitlines() if line.strip())

    print(f"\nBefore training, it wrote:\n\n{quoted(seen['sample_before'])}")
    print(f"\nAfter {seconds:.0f} seconds, it writes:\n\n{quoted(seen['sample_after'])}\n")
    print("Bits per byte on text it has not seen (fewer is better; 8 is not knowing anything):\n")
    rows = {
        "GPT, untrained": seen["untrained"],
        "trigram counts of the same tokens": seen["trigram"],
        f"GPT, {n_params:,} parameters, trained": seen["gpt"],
    }
    for name, value in rows.items():
        print(f"    {name:36} {value:6.3f}  {'█' * round(value * 5)}")
    command = program()
    print(
        f"""
Next:

    {f'{command} generate {run} "The statement"':56} more of it
    {f"{command} eval {run}":56} its score, again
    {f"{command} train demo --set data.path=FILE":56} the same on your own text
    {f"{command} train demo --print-config":56} every setting there is
"""
    )
