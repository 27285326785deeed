"""Code that users write against the public API passes `mypy --strict`: README, docs, examples and two scripts."""

import inspect
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import get_args

import headway
from headway.config.presets import PRESETS
from headway.generation.generate import search
from headway.models import BERT, GPT, MODELS, Transformer
from headway.models.registry import BERTName, GPTName, TransformerName
from headway.sampling import FLAT_NAMES

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
SCRIPTS = ROOT / "tests" / "typing"


def script_of(page: Path) -> str:
    """The Python blocks of a page are one script: a block may use what those above it define."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return "\n".join(blocks)


def run_mypy(*paths: Path) -> str:
    """What `mypy --strict` finds, with its default settings: those of this repository are not the user's."""
    options = ["--strict", "--config-file=", f"--cache-dir={ROOT / '.mypy_cache' / 'users'}", "--no-error-summary"]
    command = [sys.executable, "-m", "mypy", *options, *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout


def test_the_docs_the_examples_and_the_scripts_pass_mypy_strict(tmp_path):
    pages = tmp_path / "pages"
    pages.mkdir()
    for page in PAGES:
        if script := script_of(page):
            name = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
            (pages / f"{name}.py").write_text(script, encoding="utf-8")
    assert len(list(pages.iterdir())) >= 7
    wrong = tmp_path / "wrong.py"  # the check itself can fail: a misspelt name, a wrong type, a value that may be None
    wrong.write_text(
        "import headway\n"
        "headway.generat\n"
        "headway.generate(headway.load('runs/demo'), 'A', top_k='many')\n"
        "headway.complete(headway.load('runs/demo'), 'A')[0].stop.upper()\n"
    )
    found = run_mypy(pages, SCRIPTS, ROOT / "examples", wrong)
    errors = [line for line in found.splitlines() if ": error:" in line]
    expected = [line for line in errors if "/wrong.py:" in line]  # from the cache, an error names an earlier folder
    assert [line.rpartition("[")[2] for line in expected] == ["attr-defined]", "arg-type]", "union-attr]"], found
    others = [line for line in errors if line not in expected]
    assert not others, "\n".join(others)


def test_a_script_trains_evaluates_samples_and_reads_the_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "text.txt").write_text("one two three four five six seven eight nine ten " * 100)
    script = str(SCRIPTS / "user_script.py")
    monkeypatch.setattr(sys, "argv", [script, str(tmp_path / "text.txt"), str(tmp_path / "run")])
    runpy.run_path(script, run_name="__main__")
    out = capsys.readouterr().out
    assert re.search(r"\d\.\d+ bits per byte after 4 steps", out)
    assert "finished: 4 losses, best checkpoint step-4, seed" in out


def test_a_model_of_ones_own_class_is_scored_and_sampled(capsys):
    runpy.run_path(str(SCRIPTS / "own_model.py"), run_name="__main__")
    assert float(capsys.readouterr().out.split()[0]) < 3.2  # log2 of 9 characters and EOS is 3.3


def test_the_package_ships_its_types():
    assert (ROOT / "src" / "headway" / "py.typed").is_file()
    assert '"py.typed"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_types_of_create_name_every_family_and_preset():
    names = {GPT: GPTName, BERT: BERTName, Transformer: TransformerName}
    classes = MODELS | {name: MODELS[config.family] for name, config in PRESETS.items()}
    for kind, literal in names.items():
        assert set(get_args(literal)) == {name for name, model in classes.items() if model is kind}
    others = {name: model for name, model in classes.items() if model not in names}
    assert set(others) == {"ngram", "nplm", "rnn", "lstm", "seq2seq", "bahdanau", "bilstm", "bow"}  # one name each


def test_generate_and_complete_take_the_same_arguments():
    """Both spell out the common samplers, which must be samplers, with the same types and defaults."""
    ours, theirs = (dict(inspect.signature(function).parameters) for function in (headway.complete, headway.generate))
    assert set(theirs) - set(ours) == {"logprobs", "explain"}  # a completion has its log-probabilities
    assert set(ours) - set(theirs) == {"n"}
    for name in set(ours) & set(theirs):
        assert str(ours[name]) == str(theirs[name])
    for function in (headway.generate, headway.complete, headway.translate, search):
        parameters = inspect.signature(function).parameters.values()
        per_prompt = {p.name for p in parameters if "Sequence" in str(p.annotation) and p.default is None}
        assert per_prompt - {"seed", "sampler_order"} <= set(FLAT_NAMES)
