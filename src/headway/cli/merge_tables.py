"""Merges as tables: those that training learned, and how a tokenizer splits words (`headway tokenizer`)."""

import json
import shutil
from collections import Counter
from typing import TYPE_CHECKING

from headway.cli.generation_output import PLAIN_WIDTH
from headway.tables import Column, render_table

if TYPE_CHECKING:
    from headway.tokenizers import Tokenizer
    from headway.tokenizers.bpe import LearnedMerge
    from headway.tokenizers.segmentation import WordSegmentation

MAX_WORDS_EXPLAINED = 40


def n_learned_merges(tokenizer: "Tokenizer") -> int:
    return len(json.loads(tokenizer.backend.to_str())["model"]["merges"])


def print_learned_merges(merges: "list[LearnedMerge]", n_learned: int, tokenizer: "Tokenizer") -> None:
    """Print the first merges in the order of training, with the counts of their pairs."""
    print(f"\nthe first {len(merges)} of {n_learned:,} merges: each time, the most frequent pair of neighbours")
    columns = [
        Column("rank", [str(rank) for rank in range(len(merges))]),
        Column("merge", [_merge(merge.left, merge.right, tokenizer) for merge in merges], is_text=True),
        Column("piece", [_label(merge.left + merge.right, tokenizer) for merge in merges], is_text=True),
        Column("count", [f"{merge.count:,}" for merge in merges]),
    ]
    print(render_table(columns) + "\n")


def print_segmentations(words: "list[WordSegmentation]", tokenizer: "Tokenizer") -> None:
    """Print the steps of each different word, in the order of the text."""
    counts = Counter(word.text for word in words)
    distinct = list({word.text: word for word in words}.values())
    for word in distinct[:MAX_WORDS_EXPLAINED]:
        repeated = f", {counts[word.text]} times" if counts[word.text] > 1 else ""
        print(f"{word.text!r}{repeated}")
        print(_indented(_render_steps(word, tokenizer)) + "\n")
    if len(distinct) > MAX_WORDS_EXPLAINED:
        print(f"… and {len(distinct) - MAX_WORDS_EXPLAINED:,} more words; --json has all of them\n")


def _render_steps(word: "WordSegmentation", tokenizer: "Tokenizer") -> str:
    width = shutil.get_terminal_size((PLAIN_WIDTH, 1)).columns - 2
    steps = word.steps
    pieces = [" ".join(_label(piece, tokenizer) for piece in step.pieces) for step in steps]
    if tokenizer.kind == "BPE":
        start = " ".join(_label(piece, tokenizer) for piece in word.start)
        if not steps:
            return f"no merge applies: {start}"
        merged = [_merge(*step.merged, tokenizer) for step in steps if step.merged is not None]
        columns = [
            Column("rank", ["", *(str(step.rank) for step in steps)]),
            Column("merge", ["start", *merged], is_text=True),
            Column("pieces", [start, *pieces], is_text=True),
        ]
    elif tokenizer.kind == "WordPiece":
        columns = [
            Column("step", [str(i) for i in range(1, len(steps) + 1)]),
            Column("longest match", [_label(step.piece, tokenizer) for step in steps], is_text=True),
            Column("longer ones tried", [str(step.n_tried) for step in steps]),
            Column("pieces", pieces, is_text=True),
        ]
    else:
        scores = [step.score or 0.0 for step in steps]
        columns = [
            Column("piece", [*(_label(step.piece, tokenizer) for step in steps), "sum"], is_text=True),
            Column("ln p", [f"{score:.4f}" for score in [*scores, sum(scores)]]),
        ]
    return render_table(columns, width)


def _merge(left: str, right: str, tokenizer: "Tokenizer") -> str:
    return f"{_label(left, tokenizer)} + {_label(right, tokenizer)}"


def _label(piece: str, tokenizer: "Tokenizer") -> str:
    """A piece with visible spaces; in byte-level BPE, the text of its bytes."""
    from headway.analysis.token_labels import token_labels, visible

    id = tokenizer.token_id(piece)
    is_spelled = tokenizer.kind != "BPE" or id is None  # "##ing" and "▁the" say more than the text they decode to
    return visible(piece) if is_spelled or id is None else token_labels(tokenizer, [id])[0]


def _indented(table: str) -> str:
    return "\n".join(f"  {line}" for line in table.splitlines())
