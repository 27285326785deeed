"""Training learns, repeats itself bit for bit, and evaluates, logs and stops when it should."""

import json
import os
import signal
import tomllib
from functools import partial

import msgspec
import pytest
import torch
import transformers
from torch.testing import assert_close

import headway
from headway.config import NGramConfig, load_recipe, recipe_from_table
from headway.data import read_split
from headway.errors import CheckpointError, ConfigError, HeadwayError, InputError
from headway.training.task import make_task
from tests.training.recipes import make

TINY = {"n_layers": 1, "d_model": 32}


def read_log(path):
    return [json.loads(line) for line in (path / "log.jsonl").read_text().splitlines()]


def evaluated_steps(path):
    return [r["step"] for r in read_log(path) if "bits_per_byte" in r and "event" not in r]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 150 steps that evaluates every 50, its result, and what `on_step` received."""
    folder = tmp_path_factory.mktemp("trained")
    reports = []
    result = headway.train(make(folder, eval={"every_steps": 50}), out=folder / "run", on_step=reports.append)
    return result, reports


def test_training_learns_and_reports_every_step(trained):
    result, reports = trained
    assert result.score.bits_per_byte < 1.0  # 3.3 is the entropy of single characters
    assert [p.step for p in reports] == list(range(1, 151))
    assert reports[-1].fraction == 1.0
    assert all(p.tokens_per_second > 0 and p.seconds_left >= 0 for p in reports)
    log = read_log(result.path)
    assert log[0]["event"] == "start"
    assert log[-1]["bits_per_byte"] == result.score.bits_per_byte
    assert [r["step"] for r in log if "loss" in r] == list(range(10, 151, 10))


def test_train_finds_a_recipe_by_its_name_or_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = make(tmp_path, train={"steps": 2})
    (tmp_path / "mine.toml").write_text(recipe.to_toml())
    given = headway.train(recipe, quiet=True)
    for path in ("mine.toml", tmp_path / "mine.toml"):
        assert headway.train(path, quiet=True).scores == given.scores
    resumed = headway.train(str(given.path), resume=True, quiet=True)
    assert resumed.path == given.path  # a run is resumed in its own folder
    with pytest.raises(ConfigError, match=r"no recipe 'dmo'.*Did you mean 'demo'"):
        headway.train("dmo")
    with pytest.raises(ConfigError, match=r"must be a Recipe, its name or its path; .*recipe_from_table"):
        headway.train({"train": {"steps": 2}})
    with pytest.raises(ConfigError, match="recipe=None must be a Recipe"):
        headway.train(None)


def test_validation_runs_every_eval_every_steps(trained):
    result, reports = trained
    assert [p.step for p in reports if p.score] == [50, 100]  # the last one is in the result
    assert evaluated_steps(result.path) == [50, 100, 150]


def test_the_checkpoint_is_a_model_that_transformers_loads(trained):
    result, _ = trained
    ids = torch.tensor([result.model.tokenizer.encode("one two")])
    assert_close(headway.load(result.path)(ids), result.model(ids))
    hf_model = transformers.AutoModelForCausalLM.from_pretrained(result.checkpoint)
    assert_close(hf_model(ids).logits, result.model(ids), rtol=1e-4, atol=1e-4)
    text = "".join(t.text for t in headway.generate(headway.load(result.path), "one tw", temperature=0))
    assert text.startswith("o three four")


def test_a_run_describes_itself_and_repeats_bit_for_bit(tmp_path):
    result = headway.train(make(tmp_path, train={"steps": 20}), out=tmp_path / "run")
    recipe = load_recipe(tmp_path / "run")
    assert recipe.model.replace() == result.model.config.replace(n_kv_heads=None, d_head=None, d_ff=None)
    assert tomllib.loads((tmp_path / "run" / "recipe.toml").read_text())["train"]["seed"] == 1
    repeated = headway.train(recipe, out=tmp_path / "repeated")
    for a, b in zip(result.model.parameters(), repeated.model.parameters(), strict=True):
        assert torch.equal(a, b)  # same recipe, same machine
    assert repeated.score == result.score


def test_a_run_stores_absolute_data_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    headway.train(make(tmp_path, data={"path": "text.txt"}, train={"steps": 1}, model=TINY), out="run")
    assert load_recipe("run").data.path == str(tmp_path / "text.txt")


def test_several_sources_are_mixed_by_weight_and_fingerprinted(tmp_path):
    (tmp_path / "b.txt").write_text("alpha beta gamma delta " * 200)
    mix = {str(tmp_path / "text.txt"): 1.0, str(tmp_path / "b.txt"): 3.0}
    result = headway.train(make(tmp_path, data={"mix": mix}, train={"steps": 80}), out=tmp_path / "run")
    assert result.score.bits_per_byte < 1.5
    assert len(set(read_log(tmp_path / "run")[0]["data"])) == 2
    recipe = load_recipe(tmp_path / "run")
    assert recipe.data.mix == mix
    assert headway.train(recipe, out=tmp_path / "repeated").score == result.score


def test_the_validation_text_may_be_a_file_of_its_own(tmp_path):
    (tmp_path / "valid.txt").write_text("one two three four")
    recipe = make(tmp_path, data={"valid_path": str(tmp_path / "valid.txt")}, train={"steps": 1}, model=TINY)
    assert headway.train(recipe, out=tmp_path / "run").score.n_bytes == len("one two three four")


@pytest.mark.parametrize("kind", ["char", "word", "unigram"])
def test_training_trains_a_tokenizer_of_any_kind(tmp_path, kind):
    size = {"vocab_size": 60} if kind == "unigram" else {}
    recipe = make(tmp_path, tokenizer={"kind": kind, **size}, train={"steps": 1}, model=TINY)
    assert headway.train(recipe, out=tmp_path / "run").score.lost_bytes == 0


def test_a_tokenizer_that_changes_the_text_is_refused(tmp_path):
    """WordPiece loses spaces, so bits per byte would be an unfair number."""
    recipe = make(tmp_path, tokenizer={"kind": "wordpiece", "vocab_size": 60}, train={"steps": 1})
    with pytest.raises(InputError, match="changes the text it encodes"):
        headway.train(recipe, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()  # before any training that would be lost


def test_evaluations_are_spread_over_the_run_with_the_given_context(tmp_path):
    recipe = make(tmp_path, train={"steps": 50}, eval={"num_evals": 4, "context": 16}, model=TINY)
    result = headway.train(recipe, out=tmp_path / "run")
    assert evaluated_steps(tmp_path / "run") == [13, 25, 38, 50]
    assert result.score.context == 16
    score = headway.evaluate(headway.load(tmp_path / "run"), list(read_split(recipe.data, "valid")), context=16)
    assert score.bits_per_byte == pytest.approx(result.score.bits_per_byte)
    with pytest.raises(ConfigError, match=r"eval\.every_steps=5.*eval\.num_evals=2"):
        make(tmp_path, eval={"every_steps": 5, "num_evals": 2})


def test_a_time_limit_ends_the_run_with_the_schedule_complete(tmp_path):
    reports = []
    recipe = make(tmp_path, train={"steps": 10**6, "max_seconds": 1.0}, model=TINY)
    result = headway.train(recipe, out=tmp_path / "run", on_step=reports.append)
    assert result.steps < 10**5
    assert reports[-1].fraction >= 1.0
    assert reports[-1].lr < 0.2 * 3e-3
    assert result.score is not None


LIMITS = {
    "train.steps": ({"steps": 4}, {}, "after 4 steps (train.steps)", "train.steps=8"),
    "train.max_seconds": (
        {"steps": 50_000, "max_seconds": 1e-6},
        {},
        "after 1e-06 seconds (train.max_seconds), at step 1",
        "train.max_seconds=none",
    ),
    "eval.patience": (
        {"steps": 9, "lr": 0.0},
        {"every_steps": 1, "patience": 1},
        "after 1 evaluation without a better score (eval.patience), at step 2 of 9",
        "eval.patience=0",
    ),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_the_end_of_a_run_names_its_limit_and_a_resume_how_to_lift_it(tmp_path, limit):
    train, evaluation, reason, way_out = LIMITS[limit]
    recipe, messages = make(tmp_path, train=train, eval=evaluation, model=TINY), []
    headway.train(recipe, out=tmp_path / "run", on_message=messages.append)
    assert messages[-1] == f"finished    {reason}"
    assert read_log(tmp_path / "run")[-1]["limits"] == [limit]
    headway.train(recipe, out=tmp_path / "run", resume=True, on_message=messages.append)
    command = f"headway train {tmp_path / 'run'} --resume --set {way_out}"
    assert messages[-1] == f"complete    {reason}; to train longer: {command}"
    longer = load_recipe(tmp_path / "run", [way_out, *(["train.steps=5"] if limit != "train.steps" else [])])
    resumed = headway.train(longer, out=tmp_path / "run", resume=True)
    assert resumed.steps == longer.train.steps


def test_a_resume_is_told_of_the_limit_it_met_not_of_another(tmp_path):
    messages = []
    recipe = make(tmp_path, train={"steps": 50_000, "max_seconds": 1e-6}, model=TINY)
    headway.train(recipe, out=tmp_path / "run")
    more_steps = load_recipe(tmp_path / "run", ["train.steps=70_000"])
    headway.train(more_steps, out=tmp_path / "run", resume=True, on_message=messages.append)
    assert messages[-1].endswith("--resume --set train.steps=70000 --set train.max_seconds=none")


@pytest.mark.parametrize(("text", "size"), [("abcdef", "5 bytes"), ("one two three " * 500, "6,300 bytes")])
def test_a_text_that_is_too_small_is_noted(tmp_path, text, size):
    (tmp_path / "small.txt").write_text(text)
    messages = []
    recipe = make(tmp_path, data={"path": str(tmp_path / "small.txt")}, train={"steps": 1}, model=TINY)
    headway.train(recipe, out=tmp_path / "run", on_message=messages.append)
    note = f"note        only {size} of text for training: a model learns them by heart; give more text"
    assert note in messages
    if text == "abcdef":
        assert any(line.endswith("1 byte in 1 document for validation") for line in messages)


def test_many_passes_over_a_text_are_noted(tmp_path):
    """12,150 characters are read 1,264 times by 60,000 steps of 8 rows of 32."""
    (tmp_path / "text.txt").write_text("one two three four five six " * 500)
    recipe = make(tmp_path, train={"steps": 60_000}, model=TINY)
    for changes, is_noted in (({}, True), ({"max_seconds": 60.0}, False), ({"steps": 1000}, False)):
        messages = []
        make_task(recipe.replace(train=recipe.train.replace(**changes)), on_message=messages.append)
        assert any("read this text 1,2" in line for line in messages) == is_noted


@pytest.mark.parametrize(("family", "name"), [("rnn", "RNN"), ("lstm", "LSTM")])
def test_a_model_is_announced_by_the_name_people_use(tmp_path, family, name):
    recipe = recipe_from_table({
        **msgspec.to_builtins(make(tmp_path, train={"steps": 1})),
        "model": {"family": family, "d_model": 16},
    })  # fmt: skip
    messages = []
    headway.train(recipe, out=tmp_path / "run", on_message=messages.append)
    assert any(line.startswith(f"model       {name}, ") and line.endswith(", 1 thread") for line in messages)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_the_step_with_a_checkpoint(tmp_path, number):
    def interrupt(progress):
        if progress.step == 7:
            os.kill(os.getpid(), number)

    handler = signal.getsignal(number)
    result = headway.train(make(tmp_path, model=TINY), out=tmp_path / "run", on_step=interrupt)
    assert result.interrupted
    assert result.steps in (7, 8)
    assert headway.load(tmp_path / "run").n_params == result.model.n_params
    assert read_log(tmp_path / "run")[-1]["event"] == "interrupted"
    assert signal.getsignal(number) == handler


def test_an_existing_folder_is_never_overwritten(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("precious")
    with pytest.raises(CheckpointError, match="already exists; choose another folder with --out"):
        headway.train(make(tmp_path), out=tmp_path / "run")
    assert os.listdir(tmp_path / "run") == ["mine"]


def test_a_diverging_run_suggests_a_smaller_lr(tmp_path):
    with pytest.raises(HeadwayError, match=r"diverged; try a smaller train\.lr"):
        headway.train(make(tmp_path, train={"lr": 1e30, "grad_clip": 0.0}, model=TINY), out=tmp_path / "run")


@pytest.mark.parametrize("residual_dtype", ["float32", "bfloat16"])
def test_bfloat16_learns_on_the_cpu(tmp_path, residual_dtype):
    train = {"steps": 80, "dtype": "bfloat16", "residual_dtype": residual_dtype}
    result = headway.train(make(tmp_path, train=train), out=tmp_path / "run")
    assert result.model.dtype == torch.float32  # weights stay in float32; matrix products are in bfloat16
    assert result.score.bits_per_byte < 1.0


def test_a_bfloat16_residual_needs_bfloat16_products(tmp_path):
    with pytest.raises(ConfigError, match=r"needs matrix products in bfloat16"):
        headway.train(make(tmp_path, train={"residual_dtype": "bfloat16"}), out=tmp_path / "run")


def test_an_ngram_is_trained_by_counting(tmp_path):
    result = headway.train(make(tmp_path).replace(model=NGramConfig(order=4)), out=tmp_path / "run")
    assert result.score.bits_per_byte < 0.5
    assert headway.load(tmp_path / "run").config.order == 4


def test_an_objective_of_another_family_is_refused(tmp_path):
    recipe = recipe_from_table({"model": {"name": "bert-mini"}, "train": {"objective": "causal"}})
    expected = "'causal' is not for the family bert: choose masked or classify or tag or span"
    with pytest.raises(ConfigError, match=expected):
        headway.train(recipe, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_compiled_training_is_the_same_training(tmp_path, monkeypatch):
    """Blocks and models are captured, differentiated and trained as graphs. The backend is "aot_eager", which skips the
    generation of C++: that takes half a minute, and is PyTorch's to test."""
    scores = {}
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    for compile in (False, "blocks", "model"):
        recipe = make(tmp_path, train={"steps": 8, "compile": compile}, model=TINY)
        scores[compile] = headway.train(recipe, out=tmp_path / str(compile)).score.bits_per_byte
    assert scores["blocks"] == pytest.approx(scores[False], rel=1e-4)
    assert scores["model"] == pytest.approx(scores[False], rel=1e-4)
