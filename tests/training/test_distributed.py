"""Several ranks train one run: DDP and FSDP2 over gloo match the losses of one process, and share checkpoints."""

import json
import os
import re
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
from headway.files import verify_checksums, write_text
from headway.runs import Run
from headway.training.distributed import DistContext, init_distributed
from tests.training.ranks import start_ranks
from tests.training.recipes import for_objective, make

LAST_STEP = 6
BASE = {"steps": LAST_STEP, "save_every": 2, "log_every": 1, "keep_checkpoints": 0}
SHORT = {"steps": 3, "save_every": 0, "log_every": 1}


def write_jobs(folder, jobs):
    table = []
    for recipe, out, keys in jobs:
        file = folder / f"{out.name}.toml"
        write_text(file, recipe.to_toml())
        table.append({"recipe": str(file), "out": str(out), **keys})
    (folder / "jobs.json").write_text(json.dumps(table))
    return folder / "jobs.json"


def launch(folder, jobs, ranks, *options):
    """Run jobs (recipe, out, more keys) one after the other on so many ranks; returns stderr."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *options]
    command += [str(Path(__file__).with_name("ranks.py")), str(write_jobs(folder, jobs))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stderr


def losses(run):
    return {r["step"]: r["loss"] for r in Run(run).read_log() if "loss" in r}


def assert_same_losses(run, expected_run):
    actual, expected = losses(run), losses(expected_run)
    assert actual.keys() == expected.keys()
    assert max(abs(actual[step] - expected[step]) for step in expected) < 1e-5


def parallel(recipe, kind):
    return recipe.replace(train=recipe.train.replace(parallel=kind))


CASES = {
    "plain": {"train": BASE},
    "uneven-ema": {"train": {**SHORT, "batch_size": 7, "ema": 0.9}, "eval": {"every_steps": 2}},
    # one rank has 3 rows for 3 micro-batches, the other 2: it runs a dummy
    "accumulation": {"train": {**SHORT, "batch_size": 5, "grad_accum_steps": 3}},
    "one-row": {"train": {**SHORT, "batch_size": 1}},
}
OBJECTIVES = ["masked", "pairs", "classify", "tag", "span"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every case in one process, and with DDP and FSDP on two ranks, all in one start of torchrun. In the last job,
    "restarted", a rank dies after step 3."""
    folder = tmp_path_factory.mktemp("runs")
    recipes = {name: make(folder, **tables) for name, tables in CASES.items()}
    recipes |= {name: for_objective(name, folder, **SHORT, batch_size=7) for name in OBJECTIVES}
    jobs = []
    for name, recipe in recipes.items():
        result = headway.train(recipe, out=folder / f"single-{name}")
        # all runs share a tokenizer, which need not be trained again
        recipe = recipe.replace(tokenizer=recipe.tokenizer.replace(path=str(result.checkpoint)))
        jobs += [(parallel(recipe, kind), folder / f"{kind}-{name}", {}) for kind in ("ddp", "fsdp")]
    jobs.append((parallel(recipes["plain"], "fsdp"), folder / "restarted", {"die_at_step": 3}))
    (folder / "stderr.txt").write_text(launch(folder, jobs, 2, "--max-restarts=1"))
    return folder


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", [*CASES, *OBJECTIVES])
def test_two_ranks_give_the_losses_of_one(runs, kind, name):
    assert_same_losses(runs / f"{kind}-{name}", runs / f"single-{name}")
    scores = [
        [r.get("bits_per_byte", r.get("nats_per_target")) for r in Run(runs / run).read_log() if "perplexity" in r]
        for run in (f"single-{name}", f"{kind}-{name}")
    ]
    assert scores[1] == pytest.approx(scores[0], abs=1e-5)


@pytest.mark.parametrize("name", ["plain", "uneven-ema"])
def test_a_sharded_run_loads_as_one_model(runs, name, tmp_path):
    sharded, single = headway.load(runs / f"fsdp-{name}"), headway.load(runs / f"single-{name}")
    for a, b in zip(sharded.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    sharded.save(tmp_path / "model")
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").num_parameters() == single.n_params


def copy_unfinished(runs, kind, tmp_path):
    """A copy of a run without its last checkpoint."""
    shutil.copytree(runs / f"{kind}-plain", tmp_path / "run")
    shutil.rmtree(Run(tmp_path / "run").checkpoint_dir(LAST_STEP))
    return tmp_path / "run"


@pytest.mark.parametrize("kind", ["fsdp", "none"])
@pytest.mark.parametrize("written_by", ["fsdp", "ddp"])
def test_one_process_resumes_the_checkpoint_of_two_ranks(runs, tmp_path, written_by, kind):
    run = copy_unfinished(runs, written_by, tmp_path)
    headway.train(load_recipe(run, [f"train.parallel={kind}"]), out=run, resume=True)
    assert_same_losses(run, runs / "single-plain")


def test_four_ranks_resume_the_shards_of_two(runs, tmp_path):
    run = copy_unfinished(runs, "fsdp", tmp_path)
    start_ranks(write_jobs(tmp_path, [(load_recipe(run), run, {"resume": True})]), 4)
    assert_same_losses(run, runs / "single-plain")
    assert [(r["step"], r["ranks"]) for r in Run(run).read_log() if r.get("event") == "resume"] == [(4, 4)]


def test_a_damaged_shard_is_named_and_the_previous_checkpoint_used(runs, tmp_path):
    run = copy_unfinished(runs, "fsdp", tmp_path)
    shard = sorted((Run(run).checkpoint_dir(4) / "shards").iterdir())[1]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 4
    shard.write_bytes(data)
    messages = []
    headway.train(load_recipe(run), out=run, resume=True, on_message=messages.append)
    assert any(shard.name in line and "previous checkpoint" in line for line in messages)
    assert_same_losses(run, runs / "single-plain")


def test_when_a_rank_dies_the_others_say_how_to_resume(runs):
    stderr, run = (runs / "stderr.txt").read_text(), runs / "restarted"
    assert re.search(r"rank 0: rank 0 lost contact with the other ranks \(.*\): one of them has exited", stderr)
    assert f"the last checkpoint is {run}/checkpoints/step-2; to resume: headway train {run} --resume" in stderr
    verify_checksums(Run(run).checkpoint_dir(2))


def test_torchrun_restarts_and_the_run_resumes(runs):
    assert [r["step"] for r in Run(runs / "restarted").read_log() if r.get("event") == "resume"] == [2]
    assert_same_losses(runs / "restarted", runs / "single-plain")


def test_several_ranks_without_train_parallel_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused = pytest.raises(ConfigError, match=r"torchrun started 2 processes, but with train\.parallel='none'")
    with refused, init_distributed("none", torch.device("cpu")):
        pass


def test_collectives_of_a_single_rank():
    dist = DistContext()
    assert dist.all_reduce_sum(1.5, 2.0) == [1.5, 2.0]
    assert dist.broadcast("text") == "text"
    assert dist.on_first_rank(lambda: 3) == 3
