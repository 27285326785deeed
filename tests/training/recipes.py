"""Tiny recipes, one for each family and objective, and runs that end early."""

import json

import pytest

import headway
from headway.config import recipe_from_table

TEXT = "one two three four five six seven eight nine ten. " * 60
TINY = {"n_layers": 1, "d_model": 32, "n_heads": 2, "context": 48, "dropout": 0.0}


def make(folder, **tables):
    """A small GPT on a text in `folder`; keyword arguments change its tables."""
    text = folder / "text.txt"
    if not text.exists():
        text.write_text(TEXT)
    base = {
        "model": {"name": "gpt-tiny", "context": 32},
        "tokenizer": {"kind": "char"},
        "data": {"path": str(text)},
        "train": {"device": "cpu", "steps": 150, "batch_size": 8, "lr": 3e-3, "warmup_steps": 5},
    }
    return recipe_from_table({key: {**base.get(key, {}), **tables.get(key, {})} for key in {**base, **tables}})


def for_objective(objective, folder, **train):
    """A tiny model and a dataset that it can learn, for each objective; keyword arguments change the train table."""
    words = ["red", "green", "blue", "cat", "dog", "fish"]
    file, data, tokenizer = folder / f"{objective}.txt", {}, {"kind": "word"}
    model = {"name": "bert-mini", **TINY}
    if objective == "causal":
        file.write_text(TEXT)
        model, tokenizer = {"name": "gpt-tiny", **TINY}, {"kind": "char"}
    elif objective == "masked":
        file.write_text(TEXT * 4)
        tokenizer = {"kind": "wordpiece", "vocab_size": 80}
    elif objective == "pairs":
        file = folder / "pairs.tsv"
        rows = [(f"{a} {b}", f"{b} {a}") for a in words for b in words]
        file.write_text("source\ttarget\n" + "".join(f"{a}\t{b}\n" for a, b in rows * 10))
        model, data = {"name": "transformer-mini", **TINY}, {"pairs": "source,target"}
    elif objective == "classify":
        file = folder / "labels.tsv"
        rows = [(f"the {a} {b}", "colour" if a in words[:3] else "animal") for a in words for b in words]
        file.write_text("text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in rows * 10))
        data, tokenizer = {"text": "text", "label": "label"}, {"kind": "wordpiece", "vocab_size": 80}
    elif objective == "tag":
        file = folder / "tags.conll"
        rows = [(a, b) for a in words for b in words] * 10
        tag = {word: "B-COL" if word in words[:3] else "O" for word in words}
        file.write_text("".join(f"{a}\t{tag[a]}\n{b}\t{tag[b]}\n\n" for a, b in rows))
        data, tokenizer = {"format": "conll"}, {"kind": "wordpiece", "vocab_size": 80}
    else:
        file = folder / "questions.json"
        paragraphs = []
        for i, (a, b) in enumerate([(a, b) for a in words[:3] for b in words[3:]] * 20):
            answers = [{"text": a, "answer_start": 4}]
            question = {"id": str(i), "question": "which colour", "answers": answers}
            paragraphs.append({"context": f"the {a} {b} {i}", "qas": [question]})
        file.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
        data, tokenizer = {"format": "squad"}, {"kind": "wordpiece", "vocab_size": 120}
    steps = {"device": "cpu", "steps": 120, "batch_size": 16, "lr": 3e-3, "warmup_steps": 10, **train}
    table = {"model": model, "tokenizer": tokenizer, "data": {"path": str(file), **data}, "train": steps}
    return recipe_from_table({**table, "train": {"objective": objective, **steps}})


def train_until_power_cut(recipe, out, step):
    """Train until a step and end as a power cut would: with the last checkpoint and a log that goes beyond it."""

    class PowerCut(BaseException):
        pass

    def cut(progress):
        if progress.step == step:
            raise PowerCut

    with pytest.raises(PowerCut):
        headway.train(recipe, out=out, on_step=cut)
