"""Progress by default: shown on stderr, silenced by `quiet`, replaced by callbacks of your own."""

import sys
from types import ModuleType

import pytest

import headway
from headway import display
from headway.training.callbacks import progress_callbacks

SETTINGS = [
    "model.n_layers=1",
    "model.d_model=16",
    "model.n_heads=2",
    "model.context=16",
    "tokenizer.kind=char",
    "train.steps=2",
    "train.batch_size=2",
    "train.max_seconds=none",
]


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "text.txt").write_text("one two three four five " * 50)
    return headway.load_recipe("demo", [*SETTINGS, f"data.path={tmp_path / 'text.txt'}"])


def test_train_shows_its_progress_unless_quiet_or_told_whom_to_tell(recipe, tmp_path, capsys):
    headway.train(recipe, out=tmp_path / "shown")
    out, err = capsys.readouterr()
    assert "model       GPT" in err
    assert "2/2" in err  # the last step
    assert out == ""
    headway.train(recipe, out=tmp_path / "quiet", quiet=True)
    assert capsys.readouterr() == ("", "")
    steps, lines = [], []
    headway.train(recipe, out=tmp_path / "told", on_step=steps.append)
    headway.train(recipe, out=tmp_path / "also", on_message=lines.append)
    assert capsys.readouterr() == ("", "")
    assert [progress.step for progress in steps] == [1, 2]
    assert any("model       GPT" in line for line in lines)


def test_a_callback_takes_the_place_of_the_display(capsys):
    told = []
    with progress_callbacks(False, None, told.append) as callbacks:
        callbacks.on_message("hello")
        callbacks.on_step(None)  # nobody asked
    with progress_callbacks(True, None, None) as callbacks:
        callbacks.on_message("silence")
    assert told == ["hello"]
    assert capsys.readouterr().err == ""
    with progress_callbacks(False, None, None) as callbacks:
        callbacks.on_message("shown")
    assert capsys.readouterr().err == "shown\n"


def test_a_bar_needs_a_terminal_or_a_notebook_with_widgets(monkeypatch):
    assert not display.can_update_lines()
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.setattr(display, "find_spec", lambda name: None)
    assert not display.can_update_lines()  # a notebook without ipywidgets gets lines
    monkeypatch.setattr(display, "find_spec", lambda name: name == "ipywidgets" or None)
    assert display.can_update_lines()
    monkeypatch.delitem(sys.modules, "ipykernel")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert display.can_update_lines()


def test_a_long_evaluation_shows_its_progress_unless_quiet(monkeypatch, capsys):
    monkeypatch.setattr(display, "SECONDS_BETWEEN_LINES", -1.0)  # as if every batch took long
    model = headway.create("gpt", vocab_size=300, context=16, n_layers=1, n_heads=2, d_model=16)
    model.tokenizer = headway.tokenizers.train("char", ["one two three"])
    text = "one two three " * 100
    shown = headway.evaluate(model, text)
    assert "scoring" in capsys.readouterr().err
    assert headway.evaluate(model, text, quiet=True) == shown
    assert capsys.readouterr().err == ""
