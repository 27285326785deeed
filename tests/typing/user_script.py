"""A script as a user writes it: train, evaluate, sample, read the run. It runs, and `mypy --strict` passes on it."""

import sys
from pathlib import Path

import headway
from headway.generation.complete import Completion
from headway.models import Model
from headway.training import Progress, Result

SETTINGS = [
    "model.n_layers=1",
    "model.d_model=32",
    "model.n_heads=2",
    "tokenizer.vocab_size=300",
    "train.steps=4",
    "train.batch_size=2",
    "train.max_seconds=none",
    "train.log_every=1",
    "eval.num_evals=1",
]


def train(text: Path, out: Path) -> Result:
    """Train on a text file and print the loss now and then."""

    def report(progress: Progress) -> None:
        if progress.step % 2 == 0:
            print(f"step {progress.step}: loss {progress.loss:.3f}")

    recipe = headway.load_recipe("demo", [*SETTINGS, f"data.path={text}"])
    return headway.train(recipe, out=out, on_step=report)


def sample(model: Model, prompts: list[str]) -> list[Completion]:
    """Two texts per prompt, the likeliest per token first."""
    completions = headway.complete(model, prompts, n=2, max_new_tokens=8, temperature=[0.5, 1.0], top_k=20, seed=1)
    return sorted(completions, key=lambda c: -c.logprob / len(c.tokens))


def main(text: Path, out: Path) -> None:
    result = train(text, out)
    print(f"{result.scores['bits_per_byte']:.3f} bits per byte after {result.steps} steps")

    model = headway.load(result.path)
    score = headway.evaluate(model, text.read_text(encoding="utf-8"), quiet=True)
    print(f"perplexity {score.perplexity:.1f}, {model.tokenizer.vocab_size} tokens")
    for completion in sample(model, ["one", "two"]):
        print(completion.prompt, repr(completion.text), completion.finish_reason, min(completion.logprobs))
    print("".join(token.text for token in headway.generate(model, "one", max_new_tokens=8, min_p=0.1, seed=1)))

    run = headway.open_run(out)
    losses = [loss for loss in run.history["loss"] if loss == loss]  # NaN where it was not logged
    print(f"{run.status}: {len(losses)} losses, best checkpoint {run.best.path.name}, seed {run.recipe.train.seed}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
