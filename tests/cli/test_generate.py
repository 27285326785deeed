"""headway generate and headway show sampling."""

import io
import json
import re

import pytest

import headway
from headway.cli.generation_output import format_probability
from tests.cli.running import run


@pytest.fixture(autouse=True)
def _in_workspace(workspace, monkeypatch):
    monkeypatch.chdir(workspace)


def set_stdin(data, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_the_same_seed_gives_the_same_text(capsys):
    command = 'generate runs/demo "The cat" --max-new-tokens 8 --seed 3'
    code, out, _ = run(command, capsys)
    assert code == 0
    assert out.startswith("The cat")
    assert run(command, capsys)[1] == out


def test_text_i_draws_from_seed_plus_i(capsys):
    code, out, _ = run('generate runs/demo "The" -n 3 --max-new-tokens 5 --seed 1 --json', capsys)
    assert code == 0
    document = json.loads(out)
    assert len(document["texts"]) == 3
    assert len(document["texts"][0]["ids"]) <= 5
    assert document["seed"] == 1
    single = json.loads(run('generate runs/demo "The" --max-new-tokens 5 --seed 2 --json', capsys)[1])
    assert single["texts"][0] == document["texts"][1]
    code, out, _ = run('generate runs/demo "The" -n 2 --max-new-tokens 5', capsys)
    assert out.count("──") == 4


def test_a_prompt_comes_from_stdin(capsys, monkeypatch):
    set_stdin(b"The mat", monkeypatch)
    assert run("generate runs/demo - --greedy --max-new-tokens 3", capsys)[1].startswith("The mat")
    set_stdin(b"caf\xe9", monkeypatch)
    code, _, err = run("generate runs/demo -", capsys)
    assert code == 1
    assert "stdin is not UTF-8: byte 0xe9 at offset 3" in err


def test_prompts_come_from_a_file(capsys, tmp_path):
    (tmp_path / "prompts.txt").write_text("The\nA statement\nIf", encoding="utf-8")
    command = f"generate runs/demo --in {tmp_path / 'prompts.txt'} --max-new-tokens 4 --seed 1 -n 2 --batch-size 2"
    code, out, _ = run(f"{command} --json", capsys)
    assert code == 0
    texts = json.loads(out)["texts"]
    assert [t["prompt"] for t in texts] == ["The", "The", "A statement", "A statement", "If", "If"]
    assert [t["seed"] for t in texts] == [1, 2, 3, 4, 5, 6]
    assert run(command, capsys)[1].count("──") == 12
    assert run(f"{command} --stream", capsys)[1].count("──") == 12


def test_explain_logprobs_and_stream(capsys):
    code, out, _ = run('generate runs/demo "The" --top-k 5 --explain --max-new-tokens 2 --seed 1', capsys)
    assert code == 0
    assert out.count("top_k") == 3  # in the settings, and for two tokens
    assert "removed: " in out
    code, out, _ = run('generate runs/demo "The" --logprobs 2 --max-new-tokens 2 --seed 1', capsys)
    assert out.count("ln p") == 2
    code, out, _ = run('generate runs/demo "The" --max-new-tokens 3 --seed 1 --stream --json --logprobs 2', capsys)
    lines = [json.loads(line) for line in out.splitlines()]
    assert len(lines) <= 3
    assert len(lines[0]["top"]) == 2


@pytest.mark.parametrize("width", [80, 100, 120])
def test_explained_tokens_fit_the_terminal(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    out = run('generate runs/demo "The" --top-k 200 --top-p 0.9 --explain --max-new-tokens 2 --seed 1', capsys)[1]
    assert max(map(len, out.partition("── text ──")[0].splitlines())) <= width
    removed = [int(n) for n in re.findall(r"^    top_\w +\d+ +(\d+)", out, re.MULTILINE)]
    shown = [(line.count("' 0."), int(n)) for line, n in re.findall(r"removed: (.*)and (\d+) more", out)]
    assert [n_shown + n_more for n_shown, n_more in shown] == [n for n in removed if n]


def test_small_probabilities_keep_a_digit():
    assert [format_probability(p) for p in (0.25, 0.0012, 0.00021, 3e-9, 0.0)] == [
        "0.250", "0.001", "2e-04", "3e-09", "0.000"
    ]  # fmt: skip


def test_any_sampler_is_set_by_name(capsys):
    command = 'generate runs/demo "The" --max-new-tokens 4 --seed 1 --json'
    by_flag = json.loads(run(f"{command} --top-k 3 --temperature 0.5", capsys)[1])
    by_name = json.loads(run(f"{command} --set top_k=3 --set temperature=0.5", capsys)[1])
    assert by_name["texts"] == by_flag["texts"]
    assert by_name["stages"] == by_flag["stages"]
    stages = json.loads(run(f"{command} --set top_k=3 --set top-k-min-keep=2", capsys)[1])["stages"]
    assert {"stage": "top_k", "k": 3, "min_keep": 2}.items() <= stages[0].items()


def test_unknown_characters_of_a_prompt_are_named(capsys, tmp_path):
    model = headway.create("gpt-tiny", vocab_size=4)
    model.tokenizer = headway.tokenizers.train("char", ["ab"])
    model.save(tmp_path / "letters")
    code, _, err = run(f"generate {tmp_path / 'letters'} 'ab☃b☃' --max-new-tokens 2 --seed 1", capsys)
    assert code == 0
    assert "note: the vocabulary lacks ☃; it becomes <unk>\n" in err
    err = run(f"generate {tmp_path / 'letters'} 'ab☃bc' --max-new-tokens 2 --seed 1", capsys)[2]
    assert "note: the vocabulary lacks ☃ c; they become <unk>\n" in err


def test_a_mistyped_run_is_answered_with_a_near_one(capsys):
    code, _, err = run("generate runs/demoo", capsys)
    assert code == 1
    assert "Did you mean 'runs/demo'?" in err
    assert "Runs in runs: " in run("generate runs/zzzzz", capsys)[2]


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        ("--set top_k", 2, "is not of the form NAME=VALUE"),
        ("--set top_k=3 --top-k 3", 2, "top_k is given twice"),
        ("--set topk=3", 2, "Did you mean 'top_k'?"),
        ("--top-p 2", 2, "top_p=2.0 must be a number"),
        ("--sampler-order topp", 2, "no sampler named 'topp'. Did you mean 'top_p'?"),
        ("--sampler-preset fast", 2, "no order preset named 'fast'"),
        ("--dry-base 2 --max-new-tokens 2", 0, "note: dry_base is set, but dry_multiplier, which turns dry on, is not"),
        ("--num-beams 2 --stop x", 2, "does not apply to a search"),
        ("--num-beams 2 --seed 0", 2, "does not apply to a search"),
        ("--num-beams 2 --explain", 2, "leave it out"),
        ("--num-beams 2 -n 2", 2, "use --n-best for several texts"),
        ("--n-best 2", 2, "is an option of beam search: add --num-beams"),
        ("--contrastive-k 2", 2, "is an option of contrastive search: add --contrastive-alpha"),
        ("--num-beams 2 --early-stopping soon", 2, "soon is not one of true, false or never"),
        ("--greedy --temperature 2", 2, "cannot be combined with a --temperature above 0"),
        ("--sampler-order top_k --sampler-preset default", 2, "cannot be combined with --sampler-preset"),
        ("--min-keep 0", 2, "min_keep=0 must be"),
        ("--min-new-tokens 9 --max-new-tokens 3", 2, "9 is more than --max-new-tokens 3"),
        ("--logit-bias 99999=1", 2, "there is no token 99999"),
        ("--stop-token-id 99999", 2, "there is no token 99999"),
        ("--dry-multiplier 1 --dry-breaker qzqzqz", 2, "no token contains"),
        ("--max-new-tokens 90", 0, "tokens past the training context of 64"),
        ("--num-beams 2 --top-k 3", 2, "top_k with beam search"),
        ("--num-beams 2 --contrastive-alpha 0.5", 2, "choose one search"),
        ("--logit-bias x", 2, "TOKEN=VALUE"),
        ("--stop ''", 2, "an empty string"),
        ("--in nowhere.txt", 2, "cannot be combined with a prompt"),
        (
            "--mirostat-v2-tau 3 --top-k 3 --max-new-tokens 2",
            0,
            "warning: mirostat_v2 sets its own cutoff, and top_k truncates",
        ),
        ("--temperature 0 --top-p 0.9 --max-new-tokens 2", 0, "note: greedy decoding ignores top_p"),
    ],
)
def test_flags_that_are_wrong_or_without_effect_are_named(flags, code, message, capsys):
    exit_code, _, err = run(f'generate runs/demo "The" {flags}', capsys)
    assert (exit_code, message in " ".join(err.split())) == (code, True), err


def test_a_model_that_is_no_language_model_is_refused(capsys, tmp_path):
    tokenizer = headway.tokenizers.train("word", ["a b"])
    model = headway.create("bilstm", vocab_size=tokenizer.vocab_size, d_model=8, d_hidden=8)
    model.tokenizer = tokenizer
    model.save(tmp_path / "encoder")
    code, _, err = run(f"generate {tmp_path}/encoder a", capsys)
    assert code == 1
    assert "BiLSTM is not a language model" in err


def test_show_sampling_prints_a_table_json_and_a_plot(capsys, tmp_path):
    code, out, _ = run(f"show sampling --set top_k=4 --set temperature=0.5 --out {tmp_path / 's.png'}", capsys)
    assert code == 0
    assert "·" in out
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    document = json.loads(run("show sampling --set top_k=2 --json", capsys)[1])
    assert document["stages"] == ["model", "top_k"]
    assert document["n_alive"] == [6, 2]
    assert run("show sampling --logits a,b", capsys)[0] == 2
    assert run("show sampling --set top_k", capsys)[0] == 2
