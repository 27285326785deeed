"""What commands work on: tiny runs of several kinds, model directories, tokenizers, data files and recipes."""

import contextlib
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import headway
from headway.config import load_recipe
from headway.models.ngram.arpa import write_arpa

SMALL = ["train.steps=2", "train.batch_size=2", "train.device=cpu", "train.warmup_steps=1", "train.threads=1"]
TINY_GPT = """\
[model]
family = "gpt"
n_layers = 1
n_heads = 2
d_model = 16
context = 16

[tokenizer]
kind = "char"

[data]
path = "{folder}/my.txt"

[train]
steps = 2
batch_size = 2
"""
TINY_PAIRS = TINY_GPT.replace('"gpt"', '"transformer"').replace("my.txt", "pairs.tsv")
TEXT = "The cat sat on the mat. A dog lay on the rug.\n"
REPEATS = 40


def make_inputs(folder: Path) -> None:
    """Fill a folder; takes a few seconds."""
    folder.mkdir()
    (folder / "my.txt").write_text(TEXT * REPEATS)
    words = [f"{a}{b}{c}" for a in "abc" for b in "def" for c in "ghi"]
    (folder / "pairs.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words * 4))
    (folder / "labels.csv").write_text("text,label\n" + "".join(f"{w} {w},{w[0]}\n" for w in words))
    (folder / "tags.conll").write_text("".join(f"{w}\tB-{w[0]}\n{w[1]}\tO\n\n" for w in words * 2))
    (folder / "squad.json").write_text(json.dumps({"data": [{"paragraphs": [_paragraph(w) for w in words]}]}))
    (folder / "texts.jsonl").write_text('{"prompt": "The", "source": "abc", "text": "The cat"}\n' * 3)
    (folder / "lines.bin").write_bytes(bytes(range(256)) * 3)
    (folder / "empty.txt").touch()
    (folder / "tiny.toml").write_text(TINY_GPT.format(folder=folder))
    (folder / "pairs.toml").write_text(TINY_PAIRS.format(folder=folder))
    (folder / "broken.toml").write_text(TINY_GPT.format(folder=folder) + "steps = [\n")
    os.mkfifo(folder / "pipe")
    with contextlib.redirect_stderr(io.StringIO()):
        _make_models(folder)


def _paragraph(word: str) -> dict[str, Any]:
    answers = [{"text": word, "answer_start": 2}]
    return {"context": f"a {word} b", "qas": [{"id": word, "question": "which", "answers": answers}]}


def _make_models(folder: Path) -> None:
    labels = [f"data.path={folder}/labels.csv", "data.text=text", "data.label=label", "train.objective=classify"]
    tags = [f"data.path={folder}/tags.conll", "train.objective=tag"]
    questions = [f"data.path={folder}/squad.json", "train.objective=span"]
    size = ["model.n_layers=1", "model.n_heads=2", "model.d_model=16", "model.context=16"]
    bert = ["model.family=bert", *size, "tokenizer.kind=wordpiece", "tokenizer.vocab_size=60"]
    recipes = {
        "gpt": load_recipe(folder / "tiny.toml", SMALL),
        "translator": load_recipe(folder / "pairs.toml", SMALL),
        "ngram": load_recipe("ngram", [f"data.path={folder}/my.txt", "model.order=2"]),
        "classifier": load_recipe(folder / "tiny.toml", [*SMALL, *bert, *labels]),
        "tagger": load_recipe(folder / "tiny.toml", [*SMALL, *bert, *tags]),
        "reader": load_recipe(folder / "tiny.toml", [*SMALL, *bert, *questions]),
        "masked": load_recipe(folder / "tiny.toml", [*SMALL, *bert]),
    }
    for name, recipe in recipes.items():
        result = headway.train(recipe, out=folder / name, quiet=True)
        if name == "gpt":
            result.model.save(folder / "model")
            result.model.tokenizer.save(folder / "tokenizer")
        if name == "ngram":
            write_arpa(result.model, folder / "words.arpa")
    shutil.copytree(folder / "model", folder / "damaged")
    weights = folder / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
