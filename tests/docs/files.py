"""What the pages refer to, besides the tests' workspace: pairs, reviews, a module of your own, damaged files, runs."""

import contextlib
import gzip
import itertools
import os
import shutil
from pathlib import Path

from tests.cli.conftest import make_workspace
from tests.cli.running import exit_code
from tests.docs.blocks import ROOT
from tests.docs.commands import Printed, captured

MAX_COPIED_BYTES = 50_000  # larger files are linked: Headway replaces those, and appends to small ones
ANIMALS = {"dogs": "Hunde", "cats": "Katzen", "horses": "Pferde", "birds": "Vögel"}
NUMBERS = {"Two": "Zwei", "Three": "Drei", "Four": "Vier", "Many": "Viele"}
PLACES = {"in the snow": "im Schnee", "in the garden": "im Garten", "on the roof": "auf dem Dach"}
TRANSLATOR = (
    "train pairs --set 'data.path=train.{en,de}' --set 'data.valid_path=val.{en,de}' "
    "--set 'data.test_path=test.{en,de}' --set tokenizer.vocab_size=300 --set model.n_layers=1 --set model.d_model=32 "
    "--set model.n_heads=2 --set train.steps=3 --out runs/en-de"
)
COPIES = {
    "classify": "labels",
    "tag": "tagger",
    "answer": "squad",
    "bert-pydocs": "bert",
    "other": "en-de",
    "dates": "reverse",
}
MODULE = '''"""A family of your own, "mine": the embedding of the last token, times a matrix."""

import headway
from headway.config import ModelConfig
from headway.models import UncachedLM
from torch import nn


class MineConfig(ModelConfig, frozen=True, kw_only=True):
    context: int = 64
    d_model: int = 16


class Mine(UncachedLM):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.output = nn.Linear(config.d_model, config.vocab_size)

    def init_weights(self):
        self.embedding.reset_parameters()
        self.output.reset_parameters()

    def forward(self, ids, lengths=None):
        return self.output(self.embedding(ids.clamp(min=0)))


headway.register("family", "mine", Mine, config=MineConfig)
'''


def make_page_folder(folder: Path, workspace: Path | None = None) -> Path:
    """A folder from which those of all pages are copied."""
    if workspace is None:
        make_workspace(folder)
    else:
        copy_folder(workspace, folder)
    (folder / "my_module.py").write_text(MODULE)
    write_pairs(folder)
    reviews = [f"A {word} film.,{stars}" for word, stars in [("good", 5), ("bad", 1), ("fine", 4), ("dull", 2)]]
    (folder / "reviews.csv").write_text("\n".join(["review,stars", *reviews * 10, ""]))
    shutil.copyfile(folder / "tags.conll", folder / "train.conll")
    shutil.copyfile(folder / "letters.tsv", folder / "new.tsv")
    write_damaged_files(folder / "texts")
    with contextlib.chdir(folder), captured(printed := Printed()):
        code = exit_code(TRANSLATOR)
    assert code == 0, printed.last_lines
    for name, original in COPIES.items():
        copy_folder(folder / "runs" / original, folder / "runs" / name)
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


def write_pairs(folder: Path) -> None:
    """Sentences in English and German, in two files each and in one."""
    pairs = [
        (f"{number} {animal} play {place}.", f"{NUMBERS[number]} {ANIMALS[animal]} spielen {PLACES[place]}.")
        for number, animal, place in itertools.product(NUMBERS, ANIMALS, PLACES)
    ]
    for name, part in (("train", pairs[:40]), ("val", pairs[40:44]), ("test", pairs[44:])):
        for language, column in (("en", 0), ("de", 1)):
            (folder / f"{name}.{language}").write_text("".join(f"{pair[column]}\n" for pair in part))
    lines = [f"{source}\t{target}\n" for source, target in pairs]
    (folder / "my.tsv").write_text("".join(lines))
    (folder / "pairs.tsv").write_text("".join(["english\tgerman\n", *lines]))


def write_damaged_files(folder: Path) -> None:
    """50 texts, three of which cannot be read."""
    folder.mkdir()
    for number in range(47):
        (folder / f"text-{number}.txt").write_text("A text.\n")
    (folder / "a.txt").write_text("A text.\n", encoding="utf-16")
    (folder / "b.txt.gz").write_bytes(gzip.compress(b"A text.\n" * 100)[:-20])
    os.mkfifo(folder / "c.txt")


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder with its pipes and links; large files are linked."""

    def copy(file: str, to: str) -> None:
        if Path(file).is_fifo():
            os.mkfifo(to)
        elif os.path.getsize(file) > MAX_COPIED_BYTES:
            os.link(file, to)
        else:
            shutil.copyfile(file, to)

    shutil.copytree(source, target, copy_function=copy, symlinks=True, dirs_exist_ok=True)
