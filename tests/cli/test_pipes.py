"""A pipe in place of an input file is refused at once, by every option that reads one: nobody may ever write to it."""

import os
import signal

import pytest

from tests.cli.running import run

MAX_SECONDS = 20.0


@pytest.fixture
def pipes(tmp_path):
    """FIFOs without a writer: opening one the usual way would wait for ever, and here ends in a TimeoutError."""

    def give_up(number, frame):
        raise TimeoutError("the command waits for the pipe")

    for name in ("pipe", "pipe.jsonl", "pipe.csv", "pipe.json"):
        os.mkfifo(tmp_path / name)
    previous = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
    yield tmp_path
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize(
    "command",
    [
        "generate no-model --in pipe",
        "generate no-model --in pipe.jsonl",
        "translate no-model --in pipe",
        "classify no-model --in pipe",
        "classify no-model --in pipe.csv",
        "tag no-model --in pipe",
        "answer no-model --in pipe.json",
        "answer no-model --in pipe.jsonl",
        "answer no-model Who --context-file pipe",
        "fill no-model --in pipe",
        "embed no-model --in pipe.csv",
        "eval --hypotheses pipe --references pipe",
        "data pipe",
        "tokenizer train pipe",
        "tokenizer encode pipe text",
    ],
)
def test_a_pipe_is_refused(command, pipes, monkeypatch, capsys):
    monkeypatch.chdir(pipes)
    code, _, error = run(command, capsys)
    assert code in (1, 2)
    assert "not a file" in error or "not a regular file" in error
