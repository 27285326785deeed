"""A workspace with everything that the examples of the help texts and of the docs refer to."""

import contextlib
import io
import json
import shutil
from pathlib import Path

import pytest

from tests.cli.running import exit_code

TINY = (
    "--set model.n_layers=1 --set model.d_model=32 --set model.n_heads=2 --set train.steps=3 --set train.batch_size=2 "
    "--set tokenizer.vocab_size=300"
)
BERT = f"--set model.family=bert --set tokenizer.kind=wordpiece {TINY}"
LABELS = "--set train.objective=classify --set data.path=labels.csv --set data.text=text --set data.label=label"
WORDS_ONLY = "--set model.family=bow --set model.n_buckets=100 --set tokenizer.kind=word --set train.steps=3"
SETUP = [
    f"train demo --out runs/demo {TINY}",
    f"train demo --out runs/mine --set data.path=my.txt {TINY}",
    "train ngram --out runs/words --set data.path=my.txt --set model.order=2",
    "train demo --out runs/lstm --set data.path=my.txt --set model.family=lstm --set model.n_layers=1 "
    "--set model.d_model=16 --set tokenizer.kind=char --set train.steps=3 --set train.batch_size=2",
    "train reverse --out runs/reverse --set data.path=letters.tsv --set train.steps=30 --set model.d_model=32",
    f"train demo --out runs/lora --init-from runs/mine --set data.path=other.txt --set model.lora_rank=2 {TINY}",
    "convert runs/lora my-adapter --adapter-only",
    f"train demo --out runs/bert --set data.path=my.txt {BERT}",
    f"train demo --out runs/labels {LABELS} {BERT}",
    f"train demo --out runs/words-only {LABELS} {WORDS_ONLY}",
    f"train demo --out runs/tagger --set train.objective=tag --set data.path=tags.conll {BERT}",
    f"train demo --out runs/squad --set train.objective=span --set data.path=squad.json {BERT}",
    f"sweep demo --grid train.lr=1e-3 --out runs/lr --set data.path=my.txt {TINY}",
    "tokenizer train my.txt --vocab-size 280 --out my-bpe",
    "tokenizer train my.txt --kind word --out my-words",
    "convert runs/words words.arpa",
]


def make_workspace(folder):
    """Fill a folder with small runs (GPT, LSTM, n-grams, a translation model, encoders), tokenizers, texts, labels."""
    folder.mkdir(exist_ok=True)
    (folder / "my.txt").write_text("The cat sat on the mat. " * 50)
    (folder / "other.txt").write_text("The dog sat on the roof. " * 50)
    (folder / "prompts.txt").write_text("The\nThe cat\n")
    (folder / "masked.txt").write_text("The [MASK] sat.\nOn the [MASK] [MASK].\n")
    words = [f"{a}{b}{c}{d}ef" for a in "abc" for b in "def" for c in "ghi" for d in "abcdefghij"]
    (folder / "letters.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    write_examples(folder)
    shutil.copy(Path(__file__).parents[2] / "examples" / "own_transformer.py", folder / "mine.py")
    for name in ("mine", "yours", "right"):
        (folder / f"{name}.de").write_text("Ein Hund.\nZwei Katzen.\n")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(io.StringIO()) as err:
        patch.chdir(folder)
        for command in SETUP:
            with contextlib.redirect_stdout(io.StringIO()):
                assert exit_code(command) == 0, f"{command}: {err.getvalue()}"
    return folder


def write_examples(folder):
    """Texts with labels, tagged words and questions with answers; and texts to classify, tag and answer from."""
    animals, places = ("cat", "dog", "cow"), ("mat", "roof", "hill")
    rows = [f"The {animal} sat on the {place}.,{animal}" for animal in animals[:2] for place in places]
    for name in ("labels.csv", "reviews.csv"):
        (folder / name).write_text("\n".join(["text,label", *rows * (5 if name == "labels.csv" else 1), ""]))
    (folder / "texts.txt").write_text("The cat sat.\nThe dog sat on the mat.\n")
    people, cities = ("Peter Blackburn", "Anna Rossi", "Maria"), ("Rome", "New York", "Oslo")
    sentences = [tagged(person, "PER") + "visits\tO\n" + tagged(city, "LOC") + ".\tO\n"
                 for person in people for city in cities]  # fmt: skip
    (folder / "tags.conll").write_text("\n".join(sentences * 3))
    (folder / "news.txt").write_text("Peter Blackburn visits Rome.\n\nAnna visits New York.\n")
    (folder / "news.conll").write_text("-DOCSTART- O\n\nPeter O\nBlackburn O\nvisits O\nRome O\n\nAnna\n")
    (folder / "passage.txt").write_text("The cat sat on the mat. The dog sat on the roof.\n")
    paragraphs = [squad_paragraph(animal, place) for animal in animals for place in places]
    (folder / "squad.json").write_text(json.dumps({"data": [{"title": "Animals", "paragraphs": paragraphs}]}))


def tagged(words, type):
    return "".join(f"{word}\t{'I' if i else 'B'}-{type}\n" for i, word in enumerate(words.split()))


def squad_paragraph(animal, place):
    """A passage with a question that it answers, and one that it does not."""
    answer = {"text": f"The {animal}", "answer_start": 0}
    return {
        "context": f"The {animal} sat on the {place}.",
        "qas": [
            {"id": f"{animal}-{place}", "question": f"Who sat on the {place}?", "answers": [answer]},
            {"id": f"{animal}-{place}-when", "question": "When was it?", "answers": [], "is_impossible": True},
        ],
    }
