"""The steps of a beam search, for `headway translate --explain`: as a table per step, and as JSON."""

import shutil
from typing import TYPE_CHECKING, Any

from headway.cli.generation_output import PLAIN_WIDTH
from headway.tables import Column, render_table

if TYPE_CHECKING:
    from headway.generation.beam_search import BeamStep
    from headway.tokenizers import Tokenizer

MAX_EXPLAINED_TEXTS = 20
MAX_STEPS_SHOWN = 40  # of each text; --json has all
MAX_DROPPED_SHOWN = 10  # candidates per step


def step_json(step: "BeamStep", tokenizer: "Tokenizer") -> dict[str, Any]:
    """A step, with its candidates as text."""
    from headway.analysis.token_labels import token_labels

    candidates = [
        {
            "fate": candidate.fate,
            "text": tokenizer.decode(candidate.tokens),
            "id": candidate.tokens[-1],
            "token": token_labels(tokenizer, candidate.tokens[-1:])[0],
            "parent": candidate.parent,
            "token_log_prob": candidate.token_log_prob,
            "log_prob": candidate.log_prob,
            "score": candidate.score,
        }
        for candidate in step.candidates
    ]
    finished = [{"text": tokenizer.decode(h.tokens), "score": h.score} for h in step.finished]
    return {"step": step.length, "candidates": candidates, "finished": finished, "is_done": step.is_done}


def print_steps(result: dict[str, Any], search: str) -> None:
    """Print the steps of one translation: every candidate with its text so far, its last token and its scores.
    `search` is what `describe_search` says."""
    print(f"── {result['source'].strip()} ──\n{search}\n")
    width = shutil.get_terminal_size((PLAIN_WIDTH, 1)).columns
    fed_back = ["the decoder start token"]
    steps = result["steps"]
    for step in steps[:MAX_STEPS_SHOWN]:
        candidates = step["candidates"]
        n_of = {fate: sum(c["fate"] == fate for c in candidates) for fate in ("live", "finished", "dropped")}
        counts = ", ".join(f"{n} {fate}" for fate, n in n_of.items() if n)
        print(f"step {step['step']}: fed back {', '.join(fed_back)}; of {len(candidates)} candidates {counts}")
        print(_indented(render_table(_columns(candidates), width - 2)))
        if n_of["dropped"] > MAX_DROPPED_SHOWN:
            print(f"  and {n_of['dropped'] - MAX_DROPPED_SHOWN} more dropped")
        if step["is_done"]:
            finished = ", ".join(f"{h['text']!r} {h['score']:.4f}" for h in step["finished"])
            print(f"  done; finished, best first: {finished or 'none'}")
        print()
        fed_back = [c["token"] for c in candidates if c["fate"] == "live"]
    if len(steps) > MAX_STEPS_SHOWN:
        print(f"… and {len(steps) - MAX_STEPS_SHOWN} more steps; --json has all of them\n")


def _columns(candidates: list[dict[str, Any]]) -> list[Column]:
    dropped = [c for c in candidates if c["fate"] == "dropped"][MAX_DROPPED_SHOWN:]
    shown = [c for c in candidates if not any(c is other for other in dropped)]
    return [
        Column("", [c["fate"] for c in shown], is_text=True),
        Column("text so far", [" ".join(c["text"].split("\n")) for c in shown], is_text=True, keeps_end=True),
        Column("token", [c["token"] for c in shown], is_text=True),
        Column("from beam", [str(c["parent"] + 1) for c in shown]),
        Column("ln p", [f"{c['token_log_prob']:.4f}" for c in shown]),
        Column("sum", [f"{c['log_prob']:.4f}" for c in shown]),
        Column("score", [f"{c['score']:.4f}" for c in shown]),
    ]


def describe_search(num_beams: int, *, length_penalty: float = 1.0, length_norm: str = "power", **_: Any) -> str:
    """How the candidates of a step are ranked and scored."""
    if num_beams == 1:
        return "greedy search: the most likely token is fed back, up to the first EOS"
    norm = "length" if length_norm == "power" else "((5 + length)/6)"
    return f"beam search with {num_beams} beams: ranked by the sum of ln p; score = sum / {norm}^{length_penalty:g}"


def _indented(table: str) -> str:
    return "\n".join(f"  {line}" for line in table.splitlines())
