"""Padding changes nothing: in `forward`, in a padded step, and in the steps after it."""

import torch

from headway.evaluation.contract.probe import Probe
from headway.nn.masks import padding


def check_padding(p: Probe) -> None:
    what = "mask" if p.kind == "encoder" else "lengths"
    for b in p.rows:
        n = int(p.lengths[b])
        if n < p.n_tokens:
            p.compare(
                p.forward(p.ids[b : b + 1], p.lengths[b : b + 1], rows=[b])[:, :n],
                p.forward(p.ids[b : b + 1, :n], rows=[b]),
                f"{n} tokens alone and padded to {p.n_tokens} ({what} given) differ in forward",
                f"Something depends on the padded width. Usual causes: a mean over all positions, positions counted "
                f"from the right, attention to padding. Use `{what}`.",
                rows=[b],
            )
    expected = p.forward(p.ids, p.lengths)
    p.compare(
        p.forward(p.other_padding(p.ids, p.lengths), p.lengths),
        expected,
        f"other tokens in the padding ({what} given) change the output of forward",
        f"Padding is attended to or averaged: mask the positions beyond `{what}`.",
        lengths=p.lengths,
    )
    if p.kind != "encoder":
        _check_padded_steps(p)


def _check_padded_steps(p: Probe) -> None:
    """A padded prefill, then steps with and without padding, against each row alone without any."""
    prompt, one = p.lengths.clamp(max=p.n_tokens - 3), torch.ones_like(p.lengths)
    every_second = (torch.arange(p.batch_size, device=one.device) + 1) % 2
    state, alone = p.start(), [p.start(rows=[b]) for b in p.rows]
    done, previous = torch.zeros_like(prompt), None
    for lengths in (prompt, one, every_second, one):
        width = int(lengths.max())
        index = done[:, None] + torch.arange(width, device=done.device)
        ids = p.other_padding(p.ids.gather(1, index.clamp(max=p.n_tokens - 1)), lengths)
        scores, state = p.step(ids, state, lengths if (lengths < width).any() else None)
        for b, n in enumerate(lengths.tolist()):
            if n:
                expected, alone[b] = p.step(ids[b : b + 1, :n], alone[b])
                what, hint = _padded_step_texts(n, width, None if previous is None else int(previous[b]))
                p.compare(scores[b : b + 1, :n], expected, what, hint, rows=[b], first_position=int(done[b]))
        done, previous = done + lengths, lengths


def _padded_step_texts(n: int, width: int, n_previous: int | None) -> tuple[str, str]:
    """What to say if a row of `n` tokens differs in a step, after one in which the row had `n_previous` tokens."""
    if n_previous is None:
        return (
            f"a step of {n} tokens alone and padded to {width} (lengths given) differ",
            "The step attends to padding, or its positions count it: use `lengths`.",
        )
    if n_previous == 0:
        return (
            "a step after one in which the row had no token (length 0) differs from the row alone",
            "A row of length 0 must keep its state: do not write its padding, and do not move its position.",
        )
    return (
        "a step after a padded one differs from the same row without padding",
        "The padding went into the state: its keys were cached, the recurrent state ran over it, or it was counted as "
        "a position. Keep the state of each row's last real token.",
    )


def check_padding_ids(p: Probe) -> None:
    """Tokenizers and losses often pad with −100."""
    ids = p.ids.masked_fill(~padding(p.lengths, p.n_tokens), -100)
    p.compare(
        p.forward(ids, p.lengths),
        p.forward(p.ids, p.lengths),
        "padding with −100 changes the logits",
        "Replace padding by a valid token before the embedding: ids.masked_fill(is_padding, 0).",
        lengths=p.lengths,
    )
