"""The program: startup, exit codes, errors, signals."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

import headway
from headway import cli
from headway.cli import main
from tests.cli.running import run


@pytest.fixture(autouse=True)
def _in_workspace(workspace, monkeypatch):
    monkeypatch.chdir(workspace)


def test_help_and_import_do_not_load_torch():
    script = """
import sys

heavy = {"torch", "numpy", "tokenizers", "rich"}
import headway
assert not (heavy | {"msgspec"}) & set(sys.modules), "import headway"

from headway.cli import main
try:
    main(["--help"])
except SystemExit as end:
    assert not end.code
assert not heavy & set(sys.modules), "headway --help"
"""
    subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)


def test_module_and_script_are_the_same_program():
    for command in ([sys.executable, "-m", "headway"], [os.path.join(os.path.dirname(sys.executable), "headway")]):
        process = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert process.stdout == f"headway {headway.__version__}\n"


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("frobnicate", 2, "No such command"),
        ("train demo --set train.step=3", 2, "no setting 'train.step'. Did you mean 'train.steps'?"),
        ("train demos", 2, "Did you mean 'demo'?"),
        ("train", 2, "name a recipe; `headway train --list` prints them"),
        ("train demo --out ''", 2, "name a new folder"),
        ("train my.txt", 2, "headway train demo --set data.path=my.txt"),
        ("train demo --device meta", 2, "device='meta' stores no data"),
        ("train demo --out runs/demo", 1, "headway train runs/demo --resume"),
        ("train demo --set data.path=nowhere.txt", 1, "nowhere.txt: neither a file, a folder"),
        ("train demo --device cuda:99", 1, "cuda"),
        ("train demo --device gpu", 2, "device='gpu' is not a device"),
        ("train demo --set model.n_heads=7", 2, "d_model=128 does not split into n_heads=7"),
        ("train nothing --resume", 2, "nothing is not a run to resume; name the folder of a run"),
        ("train runs/demo/checkpoints/step-3 --resume", 2, "did you mean runs/demo?"),
        ("train runs/demo --resume --set model.d_model=64", 2, "a resumed run keeps its model and tokenizer"),
        ("demo --set model.name=lstm", 2, "the demo trains a GPT"),
        ("generate nowhere", 1, "no model at nowhere"),
        ("generate gpt2", 1, "gpt2 is a preset, without weights"),
        ("generate runs/demo --temperature -1", 2, "temperature=-1.0"),
        ("generate runs/demo --max-new-tokens 0", 2, "max_new_tokens=0"),
        ("generate runs/demo -n 0", 2, "0 is not at least 1"),
        ("generate runs/demo --dtype half", 2, "dtype='half' is not one of"),
        ("generate runs/demo --in nowhere.txt", 1, "nowhere.txt cannot be read"),
        ("generate", 2, "name a model directory, or a run"),
        ("eval runs/demo nowhere.txt", 1, "nowhere.txt: neither a file, a folder"),
        ("eval runs/demo/checkpoints/step-3", 2, "is not a run, so it has no held-out text: name a text"),
        ("eval runs/demo --context 0", 2, "0 is not at least 1"),
        ("eval runs/demo --length-penalty 0", 2, "does not apply to runs/demo, which does not translate: leave it out"),
        ("eval runs/demo my.txt --split test", 2, "does not apply to TEXT, which is no split of a run"),
        ("eval runs/demo --split test", 1, "has no test split: set data.test_fraction when training"),
        ("show curves runs/demo -y los", 1, "Did you mean 'loss'?"),
        ("lr-find demo --steps 2", 2, "steps=2"),
        ("convert nothing out", 1, "no model at nothing"),
        ("convert runs/demo out.arpa", 2, "runs/demo is a GPT, and out.arpa is a file of n-grams: name a folder"),
        ("convert runs/demo out.gguf", 2, "out.gguf is neither a folder nor a file that ends in .arpa"),
        ("check resume nothing", 2, "no recipe 'nothing'"),
        ("check cached runs/demo/checkpoints/step-3", 2, "is not a run, so it has no held-out text: name a text"),
        ("check cached runs/reverse ''", 1, "an empty text"),
        ("check cached runs/demo --atol -1", 2, "greater than or equal to 0"),
        ("generate runs/reverse abc", 1, "use `headway translate`"),
        ("translate runs/demo abc", 1, "headway train reverse"),
        ("eval runs/demo my.txt --text abc", 2, "cannot be combined with TEXT"),
        ("eval runs/demo --text abc --split test", 2, "does not apply to --text, which is no split of a run"),
    ],
)
def test_mistakes_get_an_exit_code_and_a_way_out(command, code, message, capsys, workspace):
    before = sorted(os.walk("."))
    exit_code, out, err = run(command, capsys)
    assert (exit_code, out) == (code, ""), err
    assert message in " ".join(err.split())
    assert "Traceback" not in err
    assert sorted(os.walk(".")) == before  # nothing was written


@pytest.mark.parametrize(
    ("command", "nearest"),
    [
        ("train dmeo", "'demo'"),
        ("train demoo.toml", "'demo'"),
        ("train mine.tml", "'mine.toml'"),
        ("train runs/dmeo", "'runs/demo'"),
        ("train runs/dmeo --resume", "'runs/demo'"),
        ("train demo --init-from runs/dmeo", "'runs/demo'"),
        ("train demo --set model.name=gtp2", "'gpt2'"),
        ("train demo --set model.family=lstn", "'lstm'"),
        ("train demo --set model.positions=rotery", "'rotary'"),
        ("train demo --set tokenizer.kind=bpee", "'bpe'"),
        ("sweep demo --grid trian.lr=1", "'train'"),
        ("generate demo", "'runs/demo'"),
        ("generate run/demo", "'runs/demo'"),
        ("generate runs/demo --set topp=0.9", "'top_p'"),
        ("generate runs/demo --sampler-order top_k,tempreature", "'temperature'"),
        ("generate runs/demo --sampler-preset defualt", "'default'"),
        ("generate runs/demo --dtype flot16", "'float16'"),
        ("models gptt", "'gpt2' or 'gpt1'"),
        ("compare gptt", "'gpt'"),
        ("check contract gptt", "'gpt'"),
        ("check contract gpt --only leek", "'leak'"),
        ("cost gpt2-smal", "'gpt3-small', 'gpt2' or 'gpt2-xl'"),
        ("cost gpt2 --device h20", "'H200'"),
        ("cost gpt2 --dtype bflot16", "'bfloat16'"),
        ("cost runs/dmeo", "'runs/demo'"),
        ("show model runs/dmeo", "'runs/demo'"),
        ("show sensitivity runs/dmeo", "'runs/demo'"),
        ("show curves runs/dmeo", "'runs/demo'"),
        ("show sampling --set topk=3", "'top_k'"),
        ("show attention runs/reverse abc --side crss", "'cross'"),
        ("show attention runs/reverse abc --layer 9", "1 (the last)"),
        ("show attention runs/reverse abc --head -1", "0 (the first) or 3 (the last)"),
        ("show masks --kind causl", "'causal'"),
        ("show positions --kind rotery", "'rotary'"),
        ("show vectors runs/demo the a --layer 0 --head 9", "1 (the last)"),
        ("quiz softmax-axes", "'softmax-axis'"),
        ("score runs/dmeo x", "'runs/demo'"),
        ("runs rusn", "'runs'"),
        ("tokenizer show my-bp x", "'my-bpe'"),
        ("tokenizer train my.txt --kind word --pre-tokenizer whitspace", "'whitespace'"),
        ("data pydcs", "'pydocs'"),
        ("data ./my.tx", "my.txt'"),
        ("embed runs/bert x --pooling maen", "'mean'"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest(command, nearest, capsys, workspace):
    (workspace / "mine.toml").touch()
    code, out, err = run(command, capsys)
    assert (code in (1, 2), out) == (True, ""), err
    assert re.search(rf"Did you mean [^?]*{re.escape(nearest)}\?", " ".join(err.split())), err


def test_eval_scores_a_text_from_the_command_line_or_stdin(capsys, monkeypatch):
    text = "The cat sat on the mat. "
    by_option = json.loads(run(f"eval runs/demo --text '{text}' --json", capsys)[1])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    by_stdin = json.loads(run("eval runs/demo - --json", capsys)[1])
    expected = headway.evaluate(headway.load("runs/demo"), text)
    assert by_option["bits_per_byte"] == by_stdin["bits_per_byte"] == pytest.approx(expected.bits_per_byte)
    assert (by_option["text"], by_stdin["text"]) == ("--text", "stdin")


def test_eval_says_how_n_grams_read_the_text(capsys):
    assert "windows         none: each line is read whole\n" in run("eval runs/words my.txt", capsys)[1]
    assert "windows         64 tokens, consecutive, no overlap\n" in run("eval runs/demo my.txt", capsys)[1]


def test_a_comparison_that_cannot_be_resumed_is_said_to_start(capsys, tmp_path):
    settings = "--tokens 500 --params 30k --set tokenizer.kind=char --set eval.context=16"
    code, _, err = run(f"compare ngram --data my.txt {settings} --resume --out {tmp_path}/new", capsys)
    assert code == 0, err
    assert "new does not exist, so there is nothing to continue: starting a new comparison" in err


def test_a_damaged_model_is_named(tmp_path, capsys):
    headway.create("gpt-tiny", vocab_size=300).save(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    code, _, err = run(f"generate {tmp_path / 'model'} hello", capsys)
    assert code == 1
    assert "model.safetensors is damaged" in err


def test_a_file_that_is_not_utf8_is_named(tmp_path, capsys):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 100)
    code, _, err = run(f"train demo --set data.path={tmp_path / 'latin.txt'} --out {tmp_path / 'run'}", capsys)
    assert code == 1
    assert "is not UTF-8: byte 0xe9 at offset 3" in err
    assert not (tmp_path / "run").exists()


def test_ctrl_c_stops_training_and_saves_the_model(tmp_path):
    settings = "--set model.d_model=32 --set train.steps=100000 --set data.path=my.txt --set tokenizer.kind=char"
    command = [sys.executable, "-m", "headway", "train", "demo", "--out", str(tmp_path / "run"), *settings.split()]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "loss" in line:
            break
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted after step" in err
    assert "Traceback" not in err
    assert headway.load(tmp_path / "run").has_tokenizer


def test_sigterm_that_a_command_ignores_stays_ignored(monkeypatch):
    """A failing rank ignores SIGTERM until its error is printed; other commands leave the default handler."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        for set_by_command, expected in ((signal.SIG_IGN, signal.SIG_IGN), (None, signal.SIG_DFL)):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            monkeypatch.setattr(cli, "app", lambda new=set_by_command, **_: new and signal.signal(signal.SIGTERM, new))
            main([])
            assert signal.getsignal(signal.SIGTERM) is expected
    finally:
        signal.signal(signal.SIGTERM, handler)


def test_a_warning_of_the_package_is_a_note_and_others_stay(capsys, monkeypatch):
    others = []
    monkeypatch.setattr(cli, "show_warning", lambda message, *where: others.append(str(message)))
    cli.show_note(UserWarning("rows were padded"), UserWarning, cli.__file__, 7)
    assert capsys.readouterr().err == "note: rows were padded\n"
    cli.show_note(UserWarning("deprecated"), UserWarning, "/elsewhere/torch/module.py", 7)
    assert (others, capsys.readouterr().err) == (["deprecated"], "")
