"""A workspace with everything that the examples of the help texts refer to, made once per session."""

import contextlib
import io

import pytest

from tests.cli.running import exit_code

TINY = (
    "--set model.n_layers=1 --set model.d_model=32 --set model.n_heads=2 --set train.steps=3 --set train.batch_size=2 "
    "--set tokenizer.vocab_size=300"
)
SETUP = [
    f"train demo --out runs/demo {TINY}",
    f"train demo --out runs/mine --set data.path=my.txt {TINY}",
    "train ngram --out runs/words --set data.path=my.txt --set model.order=2",
    "train reverse --out runs/reverse --set data.path=letters.tsv --set train.steps=30 --set model.d_model=32",
    f"train demo --out runs/bert --set data.path=my.txt --set model.family=bert --set tokenizer.kind=wordpiece {TINY}",
    f"sweep demo --grid train.lr=1e-3 --out runs/lr --set data.path=my.txt {TINY}",
    "tokenizer train my.txt --vocab-size 280 --out my-bpe",
    "tokenizer train my.txt --kind word --out my-words",
    "convert runs/words words.arpa",
]


@pytest.fixture(scope="session")
def workspace(tmp_path_factory):
    """A folder with small runs (a GPT, word n-grams, a translation model), tokenizers, texts and translations."""
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "my.txt").write_text("The cat sat on the mat. " * 50)
    (folder / "prompts.txt").write_text("The\nThe cat\n")
    (folder / "masked.txt").write_text("The [MASK] sat.\nOn the [MASK] [MASK].\n")
    words = [f"{a}{b}{c}{d}ef" for a in "abc" for b in "def" for c in "ghi" for d in "abcdefghij"]
    (folder / "letters.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    for name in ("mine", "yours", "right"):
        (folder / f"{name}.de").write_text("Ein Hund.\nZwei Katzen.\n")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(io.StringIO()) as err:
        patch.chdir(folder)
        for command in SETUP:
            with contextlib.redirect_stdout(io.StringIO()):
                assert exit_code(command) == 0, f"{command}: {err.getvalue()}"
    return folder
