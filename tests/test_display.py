"""The line of a training run fits every terminal, and begins with the time left."""

import dataclasses
import io
import math
import os
import random
import re

import pytest

from headway.display import TrainingDisplay, describe_progress, format_duration, live_line
from headway.training.progress import Progress

TYPICAL = Progress(
    step=120,
    steps=1000,
    fraction=0.12,
    seconds=9.1,
    loss=2.345,
    lr=1e-3,
    grad_norm=0.52,
    tokens_per_second=15_623.4,
    bits_per_byte=1.146,
    mfu=0.671,
    memory=2**29,
    seconds_left=66.2,
)


def random_progress(rng):
    steps = rng.choice([1, 50, 1000, 600_000])
    is_text = rng.random() < 0.5
    return Progress(
        step=rng.randint(1, steps),
        steps=steps,
        fraction=rng.choice([rng.random(), 1.0]),
        seconds=rng.random() * 1e5,
        loss=rng.choice([rng.random(), 1e4]),
        lr=10 ** rng.uniform(-10, 0),
        grad_norm=10 ** rng.uniform(-3, 6),
        tokens_per_second=10 ** rng.uniform(0, 7),
        bits_per_byte=rng.random() if is_text else None,
        mfu=rng.random() if is_text else None,
        memory=rng.randint(0, 2**37),
        seconds_left=rng.choice([math.inf, rng.random() * 10 ** rng.randint(0, 6)]),
    )


@pytest.mark.parametrize("width", [24, 40, 60, 80, 96, 100, 120, 140, 200])
def test_the_line_never_exceeds_the_terminal_and_begins_with_the_time_left(width):
    rng = random.Random(width)
    for _ in range(200):
        progress = random_progress(rng)
        text, live = describe_progress(progress, width), live_line(progress, width)
        assert max(len(text), len(live)) <= width
        assert re.match(r"(\?|[\d:]+) left", text)
        assert re.match(r"([━─]+ )?(\?|[\d:]+) left", live)


def test_the_number_of_steps_is_left_out_if_the_clock_ends_the_run():
    by_clock = dataclasses.replace(TYPICAL, steps=10**9)
    assert "step 120  avg loss" in describe_progress(by_clock)
    assert "step  120/1000  avg loss" in describe_progress(TYPICAL)


def test_the_least_important_parts_are_left_out_first():
    parts = [
        "1:06 left",
        "step  120/1000",
        "avg loss 2.345 (1.146 bits/byte)",
        "15,623 tokens/s",
        "lr 1.0e-03",
        "norm 0.52",
    ]
    parts += ["MFU 67.1%", "0.5 GiB"]
    for width, n_parts in {60: 3, 80: 4, 100: 6, 140: 8}.items():
        assert describe_progress(TYPICAL, width).split("  ", 1)[0] == parts[0]
        assert describe_progress(TYPICAL, width) == "  ".join(parts[:n_parts])
    assert live_line(TYPICAL, 80) == describe_progress(TYPICAL, 80)  # no room for a bar
    assert live_line(TYPICAL, 140) == "━━" + "─" * 18 + " " + "  ".join(parts)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_a_terminal_of_any_width_shows_one_line(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with TrainingDisplay() as display:
        display.on_step(TYPICAL)
        display.on_message('note        train.loggers=["wandb"] ' + "x" * 100)
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", terminal.getvalue())
    lines = re.split(r"[\r\n]+", text)
    assert live_line(TYPICAL, width) in [line.rstrip() for line in lines]
    assert '["wandb"] ' + "x" * 100 in text  # messages are neither parsed as markup nor broken into lines
    assert all(len(line) <= width for line in lines if "wandb" not in line)


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (65.4, "1:05"), (7203, "2:00:03"), (math.inf, "?")])
def test_durations(seconds, text):
    assert format_duration(seconds) == text


def test_lines_that_nobody_reads_do_not_end_the_work(monkeypatch):
    """`headway train … 2>&1 | head` closes the pipe while the run goes on."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr("sys.stderr", pipe)
        with TrainingDisplay() as display:
            for _ in range(3):
                display.on_step(dataclasses.replace(TYPICAL, fraction=1.0))
                display.on_message("a line")


def test_a_bar_that_nobody_reads_does_not_end_the_work(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr("headway.display.can_update_lines", lambda: True)
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr("sys.stderr", pipe)
        with TrainingDisplay() as display:
            display.on_step(TYPICAL)
            display.on_message("a line")
