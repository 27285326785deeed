"""Training: it learns, it repeats itself, and whatever ends it leaves a whole checkpoint."""

import json
import os
import shutil
import signal
import tomllib

import pytest
import torch
import transformers
from torch.testing import assert_close

import headway
from headway.config import NGramConfig, load_recipe, recipe_from_table
from headway.data import read_split
from headway.errors import CheckpointError, ConfigError, HeadwayError, InputError

TEXT = "one two three four five six seven eight nine ten. " * 60


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)

    def make(**tables):
        base = {
            "model": {"name": "gpt-tiny", "context": 32},
            "tokenizer": {"kind": "char"},
            "data": {"path": str(tmp_path / "text.txt")},
            "train": {"device": "cpu", "steps": 150, "batch_size": 8, "lr": 3e-3, "warmup_steps": 5},
        }
        return recipe_from_table({key: {**base.get(key, {}), **tables.get(key, {})} for key in {**base, **tables}})

    return make


def lines(path):
    return [json.loads(line) for line in (path / "log.jsonl").read_text().splitlines()]


def test_learns_and_says_so(recipe, tmp_path):
    seen = []
    result = headway.train(recipe(), out=tmp_path / "run", report=seen.append)
    assert result.score.bits_per_byte < 1.0  # 3.3 is knowing only which characters there are
    assert [p.step for p in seen] == list(range(1, 151))
    assert seen[-1].broadcast == 1.0
    assert all(p.tokens_per_second > 0 and p.seconds_left >= 0 for p in seen)
    log = lines(tmp_path / "run")
    assert log[0]["event"] == "start"
    assert log[-1]["bits_per_byte"] == result.score.bits_per_byte
    assert [r["step"] for r in log if "loss" in r] == list(range(10, 151, 10))


def test_the_run_is_its_own_description(recipe, tmp_path):
    result = headway.train(recipe(), out=tmp_path / "run")
    again = load_recipe(tmp_path / "run")
    assert again.model.replace() == result.model.config.replace(n_kv_heads=None, d_head=None, d_ff=None)
    assert tomllib.loads((tmp_path / "run" / "recipe.toml").read_text())["train"]["seed"] == 1
    repeated = headway.train(again, out=tmp_path / "again")
    for a, b in zip(result.model.parameters(), repeated.model.parameters(), strict=True):
        assert torch.equal(a, b)  # the same recipe on the same machine: the same bits
    assert repeated.score == result.score


def test_a_run_finds_its_text_from_anywhere(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    headway.train(recipe(data={"path": "text.txt"}, train={"steps": 1}), out="run")
    assert load_recipe("run").data.path == str(tmp_path / "text.txt")


def test_several_sources_are_learned_from_by_weight(recipe, tmp_path):
    """And the log says which data it was."""
    (tmp_path / "b.txt").write_text("alpha beta gamma delta " * 200)
    mix = {str(tmp_path / "text.txt"): 1.0, str(tmp_path / "b.txt"): 3.0}
    result = headway.train(recipe(data={"mix": mix}), out=tmp_path / "run")
    assert result.score.bits_per_byte < 1.5
    start = lines(tmp_path / "run")[0]
    assert len(set(start["data"])) == 2
    assert load_recipe(tmp_path / "run").data.mix == mix
    again = headway.train(load_recipe(tmp_path / "run"), out=tmp_path / "again")
    assert again.score == result.score


def test_held_out_text_may_be_a_file_of_its_own(recipe, tmp_path):
    (tmp_path / "held.txt").write_text("one two three four")
    result = headway.train(recipe(data={"valid_path": str(tmp_path / "held.txt")}), out=tmp_path / "run")
    assert result.score.n_bytes == len("one two three four")


@pytest.mark.parametrize("kind", ["char", "word", "wordpiece", "unigram"])
def test_every_kind_of_tokenizer_can_be_trained_on_the_way(recipe, tmp_path, kind):
    """A tokenizer that loses spaces or case, as WordPiece does, is refused a number for what it lost."""
    size = {"vocab_size": 60} if kind in ("wordpiece", "unigram") else {}
    plan = recipe(tokenizer={"kind": kind, **size}, train={"steps": 3})
    if kind == "wordpiece":
        with pytest.raises(InputError, match="changes the text it encodes"):
            headway.train(plan, out=tmp_path / "run")
        assert not (tmp_path / "run").exists()  # before anything was learned that could be lost
        return
    assert headway.train(plan, out=tmp_path / "run").score.lost_bytes == 0


def test_the_checkpoint_is_the_model_and_transformers_opens_it(recipe, tmp_path):
    result = headway.train(recipe(), out=tmp_path / "run")
    ids = torch.tensor([result.model.tokenizer.encode("one two")])
    assert_close(headway.load(tmp_path / "run")(ids), result.model(ids))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(result.checkpoint)
    assert_close(theirs(ids).logits, result.model(ids), rtol=1e-4, atol=1e-4)
    text = "".join(t.text for t in headway.generate(headway.load(tmp_path / "run"), "one tw", temperature=0))
    assert text.startswith("o three four")


def test_looks_at_held_out_text_on_a_schedule(recipe, tmp_path):
    seen = []
    headway.train(recipe(eval={"every": 50}), out=tmp_path / "run", report=seen.append)
    assert [p.step for p in seen if p.score] == [50, 100]  # and at the end, in the result
    found = [r["step"] for r in lines(tmp_path / "run") if "bits_per_byte" in r and "event" not in r]
    assert found == [50, 100, 150]


def test_scores_are_spread_over_the_run_in_windows_of_the_size_asked_for(recipe, tmp_path):
    plan = recipe(train={"steps": 50}, eval={"times": 4, "context": 16})
    result = headway.train(plan, out=tmp_path / "run")
    assert [r["step"] for r in lines(tmp_path / "run") if "bits_per_byte" in r and "event" not in r] == [13, 25, 38, 50]
    assert result.score.context == 16
    again = headway.evaluate(headway.load(tmp_path / "run"), list(read_split(plan.data, "valid")), context=16)
    assert again.bits_per_byte == pytest.approx(result.score.bits_per_byte)
    with pytest.raises(ConfigError, match=r"eval\.every_steps=5 steps, or eval\.num_evals=2 in all: one of the two"):
        recipe(eval={"every": 5, "times": 2})


def test_ends_by_the_clock_with_the_schedule_complete(recipe, tmp_path):
    seen = []
    result = headway.train(recipe(train={"steps": 10**6, "max_seconds": 1.0}), out=tmp_path / "run", report=seen.append)
    assert result.steps < 10**5
    assert seen[-1].broadcast >= 1.0
    assert seen[-1].lr < 0.2 * 3e-3
    assert result.score is not None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_the_step_with_a_checkpoint(recipe, tmp_path, number):
    def interrupt(progress):
        if progress.step == 7:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    result = headway.train(recipe(), out=tmp_path / "run", report=interrupt)
    assert result.interrupted
    assert result.steps in (7, 8)
    assert headway.load(tmp_path / "run").n_params == result.model.n_params
    assert lines(tmp_path / "run")[-1]["event"] == "interrupted"
    assert signal.getsignal(number) == before


def test_an_existing_run_is_never_written_to(recipe, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("precious")
    with pytest.raises(CheckpointError, match="is there already; choose another place with --out"):
        headway.train(recipe(), out=tmp_path / "run")
    assert os.listdir(tmp_path / "run") == ["mine"]


def test_a_diverging_run_says_what_to_try(recipe, tmp_path):
    with pytest.raises(HeadwayError, match=r"diverged; try a smaller train\.lr"):
        headway.train(recipe(train={"lr": 1e30, "grad_clip": 0.0}), out=tmp_path / "run")


def test_bfloat16_on_the_cpu_learns_too(recipe, tmp_path):
    result = headway.train(recipe(train={"dtype": "bfloat16"}), out=tmp_path / "run")
    assert result.model.dtype == torch.float32  # the weights stay exact; products are in bfloat16
    assert result.score.bits_per_byte < 1.2


def test_an_ngram_is_trained_by_counting(recipe, tmp_path):
    result = headway.train(recipe().replace(model=NGramConfig(order=4)), out=tmp_path / "run")
    assert result.score.bits_per_byte < 0.5
    assert headway.load(tmp_path / "run").config.order == 4


def test_an_objective_that_is_not_the_familys_is_refused(tmp_path):
    plan = recipe_from_table({"model": {"name": "bert-mini"}, "train": {"objective": "causal"}})
    with pytest.raises(ConfigError, match="'causal' is not for a bert, which learns masked or classify or tag or span"):
        headway.train(plan, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="compiling needs a C++ compiler")
def test_compiled_training_is_the_same_training(recipe, tmp_path):
    """Up to rounding: compiled code adds in another order."""
    scores = {}
    for how in (False, "blocks", "model"):
        plan = recipe(train={"steps": 8, "compile": how}, model={"n_layers": 1})
        scores[how] = headway.train(plan, out=tmp_path / str(how)).score.bits_per_byte
    assert scores["blocks"] == pytest.approx(scores[False], rel=1e-4)
    assert scores["model"] == pytest.approx(scores[False], rel=1e-4)


def test_a_narrow_residual_is_for_narrow_products_alone(recipe, tmp_path):
    with pytest.raises(ConfigError, match=r"set train\.dtype=bfloat16 too"):
        headway.train(recipe(train={"residual": "bfloat16"}), out=tmp_path / "run")
    plan = recipe(train={"residual": "bfloat16", "dtype": "bfloat16"})
    assert headway.train(plan, out=tmp_path / "run").score.bits_per_byte < 1.4
