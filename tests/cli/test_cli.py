"""The command line as a user meets it: results, errors, exit codes, and every example of every help text."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import transformers

import headway
from headway import cli
from headway.cli import main
from tests.cli.running import run
from tests.training.recipes import for_objective

TINY = (
    "--set model.n_layers=1 --set model.d_model=32 --set model.n_heads=2 --set train.steps=3 --set train.batch_size=2"
)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with a small run, as after `headway demo`, and a text."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "my.txt").write_text("The cat sat on the mat. " * 50)
    here = os.getcwd()
    os.chdir(folder)
    try:
        with pytest.raises(SystemExit) as end:
            main(shlex.split(f"train demo --out runs/demo {TINY} --set tokenizer.vocab_size=300"))
        assert not end.value.code
        with pytest.raises(SystemExit) as end:
            main(shlex.split("train ngram --out runs/words --set data.path=my.txt --set model.order=2"))
        assert not end.value.code
        with pytest.raises(SystemExit) as end:
            main(shlex.split("train reverse --out runs/reverse --set train.steps=30 --set model.d_model=32"))
        assert not end.value.code
        for name in ("mine", "yours", "right"):
            (folder / f"{name}.de").write_text("Ein Hund.\nZwei Katzen.\n")
    finally:
        os.chdir(here)
    return folder


@pytest.fixture(autouse=True)
def _at_home(home, monkeypatch):
    monkeypatch.chdir(home)


VERBS = ("demo", "train", "generate", "eval", "translate", "compare", "show attention")
VERBS += (
    "lr-find",
    "show curves",
    "show sampling",
    "show sensitivity",
    "check resume",
    "check cached",
    "check batched",
    "convert",
)
VERBS += ("tokenizer train", "tokenizer encode", "tokenizer decode", "tokenizer show", "data")


def examples() -> list[str]:
    found = []
    for verb in VERBS:
        text = subprocess.run(
            [sys.executable, "-m", "headway", *verb.split(), "--help"], capture_output=True, text=True, check=True
        ).stdout
        listed = re.findall(r"^ +headway (.+)$", text.split("Example")[1], re.MULTILINE)
        assert listed, f"{verb} --help ends without an example"
        found += listed
    return found


def test_every_example_of_every_help_text_runs(capsys):
    for example in examples():
        short = f" {TINY}" if example.startswith(("train", "demo")) and "--resume" not in example else ""
        code, out, err = run(example + short, capsys)
        assert code == 0, f"headway {example}: {err}"
        assert out, example


def test_help_and_import_are_instant_and_without_torch():
    """What the time is spent on, not how long it takes: timings are for benchmarks."""
    check = "import sys; assert not {'torch', 'numpy', 'tokenizers'} & set(sys.modules), 'too much imported'"
    subprocess.run([sys.executable, "-c", f"import headway; {check}; assert 'msgspec' not in sys.modules"], check=True)
    script = f"""
import sys
from headway.cli import main
try:
    main(["--help"])
except SystemExit as end:
    assert not end.code
{check}
assert "rich" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert all(verb.split()[0] in done.stdout for verb in VERBS)


def test_the_module_and_the_script_are_the_same_program():
    for command in ([sys.executable, "-m", "headway"], [os.path.join(os.path.dirname(sys.executable), "headway")]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout == f"headway {headway.__version__}\n"


def test_generate_streams_text_and_repeats_itself(capsys):
    command = 'generate runs/demo "The cat" --max-new-tokens 8 --seed 3'
    code, out, _ = run(command, capsys)
    assert code == 0
    assert out.startswith("The cat")
    assert run(command, capsys)[1] == out


def test_generate_json_and_several(capsys):
    code, out, _ = run('generate runs/demo "The" -n 3 --max-new-tokens 5 --seed 1 --json', capsys)
    assert code == 0
    document = json.loads(out)
    assert len(document["texts"]) == 3
    assert len(document["texts"][0]["ids"]) <= 5
    assert document["seed"] == 1
    alone = json.loads(run('generate runs/demo "The" --max-new-tokens 5 --seed 2 --json', capsys)[1])
    assert alone["texts"][0] == document["texts"][1]  # text i draws from seed + i
    code, out, _ = run('generate runs/demo "The" -n 2 --max-new-tokens 5', capsys)
    assert out.count("──") == 4


def test_generate_reads_a_prompt_from_stdin(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"The mat")))
    assert run("generate runs/demo - --greedy --max-new-tokens 3", capsys)[1].startswith("The mat")


def test_every_sampler_has_a_flag_whose_help_says_range_and_off(capsys):
    from headway.sampling import FLAT, SAMPLERS

    code, out, _ = run("generate --help", capsys)
    assert code == 0
    flags = {
        flag: " ".join(text.split()) for flag, text in re.findall(r"^  --([\w-]+)(.*?)(?=^  -|\Z)", out, re.M | re.S)
    }
    others = {"logit-bias", "dry-breaker", "min-keep", "mirostat", "mirostat-tau", "mirostat-eta", "mirostat-m"}
    for name, (stage, parameter) in FLAT.items():
        flag = name.replace("_", "-")
        if parameter in ("min_keep", "eos_ids", "protected", "breakers", "bias") or stage.startswith("mirostat"):
            continue
        assert flag in flags, flag
        kind = SAMPLERS[stage].parameters[parameter]
        if kind.off is not None:
            assert f"Off: {kind.off:g}" in flags[flag], (flag, flags[flag])
    assert others <= set(flags)


def test_generate_from_a_file_of_prompts(capsys, tmp_path):
    (tmp_path / "prompts.txt").write_text("The\nA statement\nIf", encoding="utf-8")
    command = f"generate runs/demo --prompts {tmp_path / 'prompts.txt'} --max-new-tokens 4 --seed 1 -n 2 --batch-size 2"
    code, out, _ = run(f"{command} --json", capsys)
    assert code == 0
    texts = json.loads(out)["texts"]
    assert [t["prompt"] for t in texts] == ["The", "The", "A statement", "A statement", "If", "If"]
    assert [t["seed"] for t in texts] == [1, 2, 3, 4, 5, 6]
    assert run(command, capsys)[1].count("──") == 12
    assert run(f"{command} --stream", capsys)[1].count("──") == 12


def test_generate_explains_and_streams(capsys):
    code, out, _ = run('generate runs/demo "The" --top-k 5 --explain --max-new-tokens 2 --seed 1', capsys)
    assert code == 0
    assert out.count("top_k") == 3  # the settings, and two tokens
    assert "removed: " in out
    code, out, _ = run('generate runs/demo "The" --logprobs 2 --max-new-tokens 2 --seed 1', capsys)
    assert out.count("ln p") == 2
    code, out, _ = run('generate runs/demo "The" --max-new-tokens 3 --seed 1 --stream --json --logprobs 2', capsys)
    lines = [json.loads(line) for line in out.splitlines()]
    assert len(lines) <= 3
    assert len(lines[0]["top"]) == 2


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        ("--top-p 2", 2, "top_p=2.0 must be a number from 0 to 1; 1 turns it off"),
        ("--sampler-order topp", 2, "no sampler named 'topp'. Did you mean 'top_p'?"),
        ("--sampler-preset fast", 2, "no order preset named 'fast'"),
        ("--dry-base 2 --max-new-tokens 2", 0, "note: dry_base is set, but dry_multiplier is not"),
        ("--num-beams 2 --stop x", 2, "ends at end tokens alone"),
        ("--num-beams 2 -n 2", 2, "--n-best gives several"),
        ("--num-beams 2 --explain", 2, "leave it out"),
        ("--n-best 2", 2, "it belongs to --num-beams"),
        ("--contrastive-k 2", 2, "it belongs to --contrastive-alpha"),
        ("--num-beams 2 --early-stopping soon", 2, "true, false or never"),
        ("--greedy --temperature 2", 2, "one of them"),
        ("--sampler-order top_k --sampler-preset default", 2, "one of them"),
        ("--min-keep 0", 2, "1 or more"),
        ("--min-new-tokens 9 --max-new-tokens 3", 2, "9 is more than --max-new-tokens 3"),
        ("--logit-bias 99999=1", 2, "there is no token 99999"),
        ("--stop-token-id 99999", 2, "there is no token 99999"),
        ("--dry-multiplier 1 --dry-breaker qzqzqz", 2, "no token contains"),
        ("--max-new-tokens 90", 0, "go past the 64 it was trained with"),
        ("--mirostat 3", 2, "1 or 2"),
        ("--mirostat-tau 3", 2, "--mirostat 1 or --mirostat 2 turns it on"),
        ("--num-beams 2 --top-k 3", 2, "top_k with beam search"),
        ("--num-beams 2 --contrastive-alpha 0.5", 2, "one of the two searches"),
        ("--logit-bias x", 2, "TOKEN=VALUE"),
        ("--stop ''", 2, "an empty string"),
        ("--prompts nowhere.txt", 2, "one of them"),
        ("--mirostat 2 --top-k 3 --max-new-tokens 2", 0, "warning: mirostat_v2 steers"),
        ("--temperature 0 --top-p 0.9 --max-new-tokens 2", 0, "note: temperature below"),
    ],
)
def test_generate_says_what_is_wrong(flags, code, said, capsys):
    found, _, err = run(f'generate runs/demo "The" {flags}', capsys)
    assert (found, said in " ".join(err.split())) == (code, True), err


def test_generate_without_a_model_says_so(capsys):
    assert run("generate", capsys)[0] == 2
    code, _, err = run("generate runs/demo --prompts nowhere.txt", capsys)
    assert (code, "nowhere.txt" in err) == (1, True)


def test_show_sampling_as_table_json_and_picture(capsys, tmp_path):
    code, out, _ = run(f"show sampling --set top_k=4 --set temperature=0.5 --out {tmp_path / 's.png'}", capsys)
    assert code == 0
    assert "·" in out
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads(run("show sampling --set top_k=2 --json", capsys)[1])
    assert document["stages"] == ["model", "top_k"]
    assert document["n_alive"] == [6, 2]
    assert run("show sampling --logits a,b", capsys)[0] == 2
    assert run("show sampling --set top_k", capsys)[0] == 2


def test_transformers_opens_what_was_trained():
    folder = "runs/demo/checkpoints/step-3"
    theirs, ours = transformers.AutoModelForCausalLM.from_pretrained(folder), headway.load("runs/demo")
    ids = ours.tokenizer.encode("The statement")
    assert transformers.AutoTokenizer.from_pretrained(folder).encode("The statement") == ids
    torch.testing.assert_close(theirs(torch.tensor([ids])).logits, ours(torch.tensor([ids])), rtol=1e-4, atol=1e-4)


def test_eval_scores_held_out_text_and_files(capsys):
    code, out, _ = run("eval runs/demo --json", capsys)
    score = json.loads(out)
    assert code == 0
    assert score["bits_per_byte"] > 0
    logged = json.loads(Path("runs/demo/log.jsonl").read_text().splitlines()[-1])
    assert score["bits_per_byte"] == pytest.approx(logged["bits_per_byte"], rel=1e-6)
    code, out, _ = run("eval runs/demo my.txt --context 16", capsys)
    assert code == 0
    assert re.search(r"bits per byte +\d\.\d{4}\nnats per token +\d\.\d{4}", out)
    assert "16 tokens, consecutive" in out


def test_train_prints_json_and_chooses_a_free_folder(capsys):
    first = json.loads(run(f"train demo {TINY} --json --device cpu --dtype float32", capsys)[1])
    second = json.loads(run(f"train demo {TINY} --json --device cpu", capsys)[1])
    assert first["run"] != second["run"]
    assert first["bits_per_byte"] == second["bits_per_byte"]
    assert os.path.isfile(os.path.join(first["checkpoint"], "model.safetensors"))


def test_train_shows_every_setting(capsys):
    code, out, _ = run("train demo --print-config --set train.steps=7", capsys)
    assert code == 0
    assert "steps = 7" in out
    assert "[eval]\nevery = 0" in out
    assert json.loads(run("train demo --print-config --json", capsys)[1])["data"]["path"] == "pydocs"


def test_a_prompt_that_is_not_utf8_is_named(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9")))
    code, _, err = run("generate runs/demo -", capsys)
    assert code == 1
    assert "stdin is not UTF-8: byte 0xe9 at offset 3" in err


def test_train_lists_its_recipes(capsys):
    assert "\ndemo " in run("train --list", capsys)[1]
    assert "demo" in json.loads(run("train --list --json", capsys)[1])


def test_demo_shows_what_it_promises(capsys):
    code, out, err = run(f"demo {TINY}", capsys)
    assert code == 0
    for promised in ("Before training", "After", "trigram", "GPT, untrained", "headway generate runs/demo-"):
        assert promised in out
    assert "tokens/s" in err
    document = json.loads(run(f"demo {TINY} --json", capsys)[1])
    assert document["gpt"] < document["untrained"]


def test_a_run_with_a_last_word_is_not_cut_off_on_its_way_out(monkeypatch):
    """Whoever has SIGTERM ignored inside of a command has it ignored until its error is out."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(cli, "app", lambda **given: signal.signal(signal.SIGTERM, signal.SIG_IGN))
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        main([])
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        monkeypatch.setattr(cli, "app", lambda **given: None)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        main([])
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_does_not_write_says_so(capsys, tmp_path):
    tokenizer = headway.tokenizers.train("word", ["a b"])
    model = headway.create("bilstm", vocab_size=tokenizer.vocab_size, d_model=8, d_hidden=8)
    model.tokenizer = tokenizer
    model.save(tmp_path / "reader")
    code, _, err = run(f"generate {tmp_path}/reader a", capsys)
    assert code == 1
    assert "does not predict the next token" in err


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("train demo --set train.step=3", 2, "no setting 'train.step'. Did you mean 'train.steps'?"),
        ("train demos", 2, "Did you mean 'demo'?"),
        ("train", 2, "which recipe?"),
        ("train demo --out ''", 2, "name a new folder"),
        ("train my.txt", 2, "headway train demo --set data.path=my.txt"),
        ("train demo --device meta", 2, "holds no numbers"),
        ("train demo --out runs/demo", 1, "runs/demo is there already"),
        ("train demo --set data.path=nowhere.txt", 1, "nowhere.txt: neither a file"),
        ("train demo --device cuda:99", 1, "cuda"),
        ("train demo --device gpu", 2, "device='gpu' is no device"),
        ("train demo --set model.n_heads=7", 2, "d_model=128 does not split into n_heads=7"),
        ("generate nowhere", 1, "no model at nowhere"),
        ("generate gpt2", 1, "gpt2 is a preset, without weights"),
        ("generate runs/demo --temperature -1", 2, "temperature=-1.0"),
        ("generate runs/demo --max-new-tokens 0", 2, "max_new_tokens=0"),
        ("generate runs/demo -n 0", 2, "at least 1"),
        ("generate runs/demo --dtype half", 2, "dtype='half' is not one of"),
        ("eval runs/demo nowhere.txt", 1, "nowhere.txt: neither a file"),
        ("eval runs/demo/checkpoints/step-3", 2, "name a text"),
        ("eval runs/demo --context 0", 2, "at least 1"),
        ("frobnicate", 2, "No such command"),
    ],
)
def test_mistakes_get_an_exit_code_and_a_way_out(command, code, message, capsys):
    before = sorted(os.walk("runs"))
    got, out, err = run(command, capsys)
    assert got == code
    assert message in err
    assert "Traceback" not in err
    assert not out
    assert sorted(os.walk("runs")) == before  # nothing half-written


def test_a_damaged_model_is_named(capsys, tmp_path):
    headway.create("gpt-tiny", vocab_size=300).save(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    code, _, err = run(f"generate {tmp_path / 'model'} hello", capsys)
    assert code == 1
    assert "model.safetensors is damaged" in err


def test_a_file_that_is_not_utf8_is_named(capsys, tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 100)
    code, _, err = run(f"train demo --set data.path={tmp_path / 'latin.txt'} --out {tmp_path / 'run'}", capsys)
    assert code == 1
    assert "is not UTF-8: byte 0xe9 at offset 3" in err
    assert not (tmp_path / "run").exists()


def test_ctrl_c_keeps_what_was_learned(tmp_path):
    command = [sys.executable, "-m", "headway", "train", "demo", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [*command, "--set", "model.d_model=32", "--set", "train.steps=100000"], stderr=subprocess.PIPE, text=True
    )
    for line in process.stderr:
        if line.startswith("step"):
            break
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted after step" in err
    assert "Traceback" not in err
    assert headway.load(tmp_path / "run").tokenizer is not None


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train nothing --resume", "nothing is no run to go on with; name a run's folder"),
        ("train runs/demo/checkpoints/step-3 --resume", "did you mean runs/demo?"),
        ("train runs/demo --resume --set model.d_model=64", "keeps its model and tokenizer"),
        ("train demo --out runs/demo", "headway train runs/demo --resume"),
        ("eval runs/demo my.txt --split test", "is a part of the run's own text"),
        ("eval runs/demo --split test", "has no test part: set data.test_fraction when training"),
        ("show curves runs/demo -y los", "Did you mean 'loss'?"),
        ("lr-find demo --steps 2", "steps=2 are too few"),
        ("convert nothing out", "no model at nothing"),
        ("check resume nothing", "no recipe 'nothing'"),
    ],
)
def test_what_training_refuses(command, message, capsys):
    code, _, err = run(command, capsys)
    assert code in (1, 2)
    assert message in " ".join(err.replace("│", " ").split())


def test_a_run_is_gone_on_with(capsys):
    code, out, err = run(f"train demo --out runs/longer {TINY} --set tokenizer.vocab_size=300", capsys)
    assert code == 0
    code, out, err = run("train runs/longer --resume --set train.steps=5", capsys)
    assert code == 0
    assert "resuming    after step 3" in err
    assert "5 steps in" in out
    code, _, err = run("train runs/longer --resume", capsys)
    assert code == 0
    assert "complete" in err


@pytest.mark.parametrize("objective", ["masked", "pairs", "classify", "tag", "span"])
def test_what_learned_something_else_is_scored_by_eval(objective, tmp_path, capsys):
    recipe = for_objective(objective, tmp_path, steps=2)
    result = headway.train(recipe, out=tmp_path / "run")
    code, out, err = run(f"eval {tmp_path / 'run'} --json --device cpu", capsys)
    assert code == 0, err
    assert json.loads(out)["nats_per_target"] == pytest.approx(result.score.nats_per_target, rel=1e-5)
    code, out, _ = run(f"eval {tmp_path / 'run'} --device cpu", capsys)
    assert "nats per target" in out


def test_recipes_are_listed_with_their_numbers(capsys):
    code, out, _ = run("train --list --json", capsys)
    assert code == 0
    listed = json.loads(out)
    assert {"demo", "shakespeare-char", "gpt2-124m", "enwik8-byte", "wikitext2-gpt"} <= set(listed)
    assert all(recipe["ours"] and recipe["target"] for recipe in listed.values())
