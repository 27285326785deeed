"""Train a small GPT on your own text, score it, and sample from it.

    python examples/own_text.py my.txt --steps 400

Without a file it learns the synthetic task "dates": every line is a date in words, a tab, and the same date in digits.
Training takes about 40 seconds on two cores; then the model converts dates it has not seen, most of them correctly.
"""

import argparse
import tempfile
from itertools import islice
from pathlib import Path

import headway
from headway.config import recipe_from_table
from headway.data import pairs

N_QUESTIONS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", default="dates", help="a file, a folder or a built-in corpus")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--out", type=Path, help="folder of the run; by default a temporary one")
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

        # 2. Train. Progress goes to stderr; `quiet=True` turns it off, and `on_step` hands it to a function of yours.
        result = headway.train(recipe, out=out)
        print(f"validation: {result.scores['bits_per_byte']:.3f} bits per byte")

        # 3. Load the model from disk and generate text.
        model = headway.load(out)
        if options.text == "dates":
            questions = list(islice(pairs("dates", seed=12345), N_QUESTIONS))
            answers = [answer(model, question) for question, _ in questions]
            n_correct = sum(text == expected for text, (_, expected) in zip(answers, questions, strict=True))
            question, expected = questions[0]
            print(f"{question!r} is {answers[0]!r} (expected: {expected!r}); {n_correct} of {N_QUESTIONS} correct")
        else:
            print(headway.complete(model, "", seed=1)[0].text)


def answer(model: headway.models.Model, question: str) -> str:
    """Continue the question and a tab up to the end of the line."""
    [completion] = headway.complete(model, f"{question}\t", temperature=0, max_new_tokens=11, stop=["\n"])
    return completion.text


if __name__ == "__main__":
    main()
