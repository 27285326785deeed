"""headway score: the sum of its column is what headway eval reports, from the command line and from files."""

import io
import json

import pytest

import headway
from tests.cli.running import run


@pytest.fixture(autouse=True)
def _in_workspace(workspace, monkeypatch):
    monkeypatch.chdir(workspace)


@pytest.mark.parametrize("model", ["runs/demo", "runs/words"])
@pytest.mark.parametrize("text", ["The cat sat on the zebra's mat.\nThe cat", "The"])
def test_the_sum_is_that_of_eval(model, text, capsys):
    code, out, _ = run(f'score {model} "{text}" --json', capsys)
    assert code == 0
    scored, evaluated = json.loads(out), json.loads(run(f'eval {model} --text "{text}" --json', capsys)[1])
    assert -scored["log_prob"] == pytest.approx(evaluated["nats_per_token"] * evaluated["n_tokens"], abs=1e-6)
    assert sum(token["log_prob"] for token in scored["tokens"]) == pytest.approx(scored["log_prob"], abs=1e-6)
    for key in ("bits_per_byte", "perplexity", "n_tokens", "n_bytes", "lost_bytes", "context"):
        assert scored[key] == pytest.approx(evaluated[key])


def test_a_file_and_stdin_are_read_as_eval_reads_them(capsys, monkeypatch):
    evaluated = json.loads(run("eval runs/mine other.txt --json", capsys)[1])
    scored = json.loads(run("score runs/mine --in other.txt --top 0 --json", capsys)[1])
    assert scored["bits_per_byte"] == pytest.approx(evaluated["bits_per_byte"])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"The cat")))
    from_stdin = json.loads(run("score runs/mine --json", capsys)[1])
    assert from_stdin["log_prob"] == json.loads(run("score runs/mine 'The cat' --json", capsys)[1])["log_prob"]


def test_a_pair_has_the_loss_that_eval_reports(capsys, tmp_path):
    pair = tmp_path / "pair.tsv"
    pair.write_text("abcdef\tfedcba\n")
    evaluated = json.loads(run(f"eval runs/reverse {pair} --json", capsys)[1])
    scored = json.loads(run("score runs/reverse abcdef --target fedcba --json", capsys)[1])
    assert -scored["log_prob"] == pytest.approx(evaluated["nats_per_target"] * evaluated["n_targets"], abs=1e-6)
    code, out, _ = run("score runs/reverse abcdef --target fedcba", capsys)
    assert code == 0
    assert out.startswith("source  abcdef\ntarget  fedcba\n")
    assert f"ln p(target | source)  {scored['log_prob']:.4f}" in out


def test_the_table_has_p_rank_and_what_was_expected(capsys, tmp_path):
    code, out, _ = run(f"score runs/words 'The cat sat' --out {tmp_path}/s.png --theme dark", capsys)
    assert code == 0
    assert out.splitlines()[0].split() == ["#", "token", "p", "ln", "p", "sum", "rank", "most", "likely"]
    assert "p(text)" in out
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("score runs/bert 'The cat'", "use a language model such as gpt"),
        ("score runs/labels 'The cat'", "(`headway classify` uses it)"),
        ("score runs/demo ''", "there is no text to score: it is empty"),
        ("score runs/demo The --top -1", "-1 is not at least 0"),
        ("score runs/demo The --context 0", "0 is not at least 1"),
        ("score runs/demo The --out s.txt", "does not end in .png, .svg or .pdf"),
    ],
)
def test_what_cannot_be_scored_is_told(command, message, capsys):
    code, out, err = run(command, capsys)
    assert code != 0
    assert out == ""
    assert message in " ".join(err.split())


def test_a_text_that_names_a_file_is_noted(capsys):
    assert "to score the file: --in my.txt" in run("score runs/demo my.txt", capsys)[2]


def test_a_model_that_sees_what_it_predicts_is_told_by_score_eval_and_check(capsys, tmp_path):
    tokenizer = headway.load("runs/demo").tokenizer
    model = headway.create("gpt-tiny", vocab_size=tokenizer.vocab_size, attention_mask="none")
    model.tokenizer = tokenizer
    model.save(tmp_path / "leak")
    for verb in ("score {} The", "eval {} --text The", "check cached {} 'The cat sat'"):
        _, _, err = run(verb.format(tmp_path / "leak"), capsys)
        assert "warning: this model sees what it predicts" in err, verb
