"""Train a small GPT on a text of your own, score it, and hear it.

    python examples/own_text.py my.txt --steps 400

Without a file it learns the generated task "dates": every line is a date in words, a tab, and the same date in digits.
About 40 seconds on two cores; then it is asked for dates it has never seen, and gets most of them right.
"""

import argparse
import tempfile
from itertools import islice
from pathlib import Path

import headway
from headway.config import recipe_from_table
from headway.data import pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", default="dates", help="a file, a folder or a built-in corpus")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--out", type=Path, help="where the run goes; by default it is thrown away")
    options = parser.parse_args()

    # 1. A recipe is a table, in Python or in a TOML file.
    recipe = recipe_from_table(
        {
            "model": {"name": "gpt-mini", "n_layers": 3, "d_model": 128, "n_heads": 4, "positions": "rotary"},
            "tokenizer": {"kind": "char"},
            "data": {"path": options.text},
            "train": {"steps": options.steps, "batch_size": 16, "lr": 3e-3},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        out = options.out or Path(folder) / "run"

        # 2. Train. What `report` hears of every step, the command line shows as a bar.
        def report(progress: headway.training.Progress) -> None:
            if progress.step % 50 == 0:
                print(f"step {progress.step}: loss {progress.loss:.3f}, {progress.tokens_per_second:,.0f} tokens/s")

        result = headway.train(recipe, out=out, report=report, say=print)
        print(f"held-out text: {result.score.bits_per_byte:.3f} bits per byte")

        # 3. Load it back from disk, and ask.
        model = headway.load(out)
        if options.text == "dates":
            asked = list(islice(pairs("dates", seed=12345), 20))
            right = sum(answer(model, question) == expected for question, expected in asked)
            question, expected = asked[0]
            print(f"{question!r} is {answer(model, question)!r} (right: {expected!r}); {right} of {len(asked)} right")
        else:
            print("".join(token.text for token in headway.generate(model, "", seed=1)))


def answer(model: headway.models.Model, question: str) -> str:
    """Continue the question and a tab up to the end of the line."""
    tokens = headway.generate(model, f"{question}\t", temperature=0, max_new_tokens=11)
    return "".join(token.text for token in tokens).split("\n")[0]


if __name__ == "__main__":
    main()
