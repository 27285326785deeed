"""Many ranks are one run: DDP and FSDP2 over gloo give the losses of one process, and each other's checkpoints."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

import headway
from headway.config import load_recipe
from headway.errors import ConfigError
from headway.files import verify, write_text
from headway.runs import Run
from headway.training.distributed import DistContext, init_distributed
from tests.training.recipes import for_objective, make

pytestmark = pytest.mark.xdist_group("ranks")  # one worker makes the runs for all of these tests

STEPS = {"steps": 12, "save_every": 4, "log_every": 1, "keep": 0}


def launch(folder, jobs, ranks, *options, check=True):
    """Run jobs on so many ranks; each is (recipe, out, more)."""
    table = []
    for recipe, out, more in jobs:
        file = folder / f"{out.name}.toml"
        write_text(file, recipe.to_toml())
        table.append({"recipe": str(file), "out": str(out), **more})
    (folder / f"jobs-{ranks}.json").write_text(json.dumps(table))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *options]
    command += [str(Path(__file__).with_name("ranks.py")), str(folder / f"jobs-{ranks}.json")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert not check or done.returncode == 0, done.stderr[-3000:]
    return done


def losses(run):
    return {r["step"]: r["loss"] for r in Run(run).read_log() if "loss" in r}


def parallel(recipe, kind):
    return recipe.replace(train=recipe.train.replace(parallel=kind))


CASES = {
    "plain": {},
    "uneven": {"train": {"batch_size": 7}},
    "pieces": {"train": {"batch_size": 7, "accumulate": 3}},
    "average": {"train": {"ema": 0.9}, "eval": {"every": 3}},
    "one row": {"train": {"batch_size": 1}},
}
OBJECTIVES = ["masked", "pairs", "classify", "tag", "span"]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Everything on two ranks, in one launch; and the same in one process."""
    folder = tmp_path_factory.mktemp("two")
    recipes = {}
    for name, tables in CASES.items():
        recipes[name.replace(" ", "-")] = make(folder, **{**tables, "train": {**STEPS, **tables.get("train", {})}})
    for objective in OBJECTIVES:
        recipes[objective] = for_objective(objective, folder, **{**STEPS, "steps": 6, "batch_size": 7})
    jobs = []
    for name, recipe in recipes.items():
        headway.train(recipe, out=folder / f"one-{name}")
        own = folder / f"one-{name}" / "checkpoints" / f"step-{recipe.train.steps}"  # WordPiece has ties of its own
        recipe = recipe.replace(tokenizer=recipe.tokenizer.replace(path=str(own)))
        jobs += [(parallel(recipe, kind), folder / f"{kind}-{name}", {}) for kind in ("ddp", "fsdp")]
    launch(folder, jobs, 2)
    return folder


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", [*(name.replace(" ", "-") for name in CASES), *OBJECTIVES])
def test_two_ranks_give_the_losses_of_one(two, kind, name):
    one, many = losses(two / f"one-{name}"), losses(two / f"{kind}-{name}")
    assert one.keys() == many.keys()
    assert max(abs(one[step] - many[step]) for step in one) < 1e-5
    scores = [
        [r.get("bits_per_byte", r.get("nats_per_target")) for r in Run(two / run).read_log() if "perplexity" in r]
        for run in (f"one-{name}", f"{kind}-{name}")
    ]
    assert scores[1] == pytest.approx(scores[0], abs=1e-5)


@pytest.mark.parametrize("name", ["plain", "average"])
def test_shares_are_put_together_into_one_model(two, name, tmp_path):
    shared, one = headway.load(two / f"fsdp-{name}"), headway.load(two / f"one-{name}")
    for a, b in zip(shared.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    shared.save(tmp_path / "model")
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").num_parameters() == one.n_params


def begun(two, name, tmp_path, kind):
    """A copy of a run without its last checkpoint."""
    shutil.copytree(two / f"{kind}-{name}", tmp_path / "run")
    shutil.rmtree(Run(tmp_path / "run").checkpoint_dir(12))
    return tmp_path / "run"


@pytest.mark.parametrize("now", ["fsdp", "none"])
@pytest.mark.parametrize("before", ["fsdp", "ddp"])
def test_what_two_ranks_wrote_one_process_goes_on_with(two, tmp_path, before, now):
    run = begun(two, "plain", tmp_path, before)
    headway.train(load_recipe(run, [f"train.parallel={now}"]), out=run, resume=True)
    one, again = losses(two / "one-plain"), losses(run)
    assert max(abs(one[step] - again[step]) for step in one) < 1e-5


def test_four_ranks_give_the_same_and_go_on_with_what_two_wrote(two, tmp_path):
    run = begun(two, "plain", tmp_path, "fsdp")
    recipe = load_recipe(two / "one-plain")
    jobs = [(parallel(recipe, kind), tmp_path / kind, {}) for kind in ("ddp", "fsdp")]
    launch(tmp_path, [*jobs, (load_recipe(run), run, {"resume": True})], 4)
    one = losses(two / "one-plain")
    for many in (tmp_path / "ddp", tmp_path / "fsdp", run):
        found = losses(many)
        assert max(abs(one[step] - found[step]) for step in one) < 1e-5


def test_a_damaged_share_is_refused_by_name(two, tmp_path):
    run = begun(two, "plain", tmp_path, "fsdp")
    share = sorted((Run(run).checkpoint_dir(8) / "shards").iterdir())[1]
    data = bytearray(share.read_bytes())
    data[len(data) // 2] ^= 4
    share.write_bytes(data)
    said = []
    headway.train(load_recipe(run), out=run, resume=True, say=said.append)
    assert any(share.name in line and "the one before" in line for line in said)
    one, again = losses(two / "one-plain"), losses(run)
    assert max(abs(one[step] - again[step]) for step in one) < 1e-5


def test_a_rank_that_dies_ends_the_job_with_a_message_and_a_checkpoint(tmp_path):
    recipe = parallel(make(tmp_path, train=STEPS), "ddp")
    done = launch(tmp_path, [(recipe, tmp_path / "run", {"die": 6})], 2, check=False)
    assert done.returncode != 0
    assert "rank 0 lost the others" in done.stderr
    assert f"the last checkpoint is {tmp_path / 'run'}/checkpoints/step-4; go on with" in done.stderr
    verify(Run(tmp_path / "run").checkpoint_dir(4))


def test_torchrun_starts_again_and_the_run_goes_on(tmp_path):
    recipe = make(tmp_path, train=STEPS)
    headway.train(recipe, out=tmp_path / "one")
    launch(tmp_path, [(parallel(recipe, "fsdp"), tmp_path / "run", {"die": 6})], 2, "--max-restarts=1")
    assert [r["step"] for r in Run(tmp_path / "run").read_log() if r.get("event") == "resume"] == [4]
    one, again = losses(tmp_path / "one"), losses(tmp_path / "run")
    assert max(abs(one[step] - again[step]) for step in one) < 1e-5


def test_ranks_without_a_way_to_share_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused = pytest.raises(ConfigError, match=r"torchrun started 2 processes, but train\.parallel='none'")
    with refused, init_distributed("none", torch.device("cpu")):
        pass


def test_a_world_of_one_talks_to_itself():
    world = DistContext()
    assert world.all_reduce_sum(1.5, 2.0) == [1.5, 2.0]
    assert world.broadcast("text") == "text"
    assert world.on_first_rank(lambda: 3) == 3
