"""Beams that share a cache: each attends to its own text, regardless of the other beams."""

import random

import pytest
import torch

from headway.errors import InputError
from tests.models.variants import GPTS, TRANSFORMERS, gpt, name, transformer

SOURCE = torch.tensor([[5, 9, 3, 7], [8, 2, 30, 0]])
MASK = torch.tensor([[True] * 4, [True, True, True, False]])


def prefill(model, prompts):
    """The state after the prompts, which may have different lengths."""
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(prompt) for prompt in prompts], batch_first=True)
    source = {"source": SOURCE, "source_mask": MASK} if hasattr(model, "encoder") else {"batch_size": len(prompts)}
    return model.step(ids, model.start(**source), lengths)[1]


def logits_after(model, row, tokens):
    """The logits after a row's text, computed without a cache."""
    source = {}
    if hasattr(model, "encoder"):
        source = {"source": SOURCE[row : row + 1, : int(MASK[row].sum())]}
    return model(torch.tensor([tokens]), **source)[0, -1]


VARIANTS = [(gpt, c) for c in GPTS] + [(transformer, c) for c in TRANSFORMERS]


@pytest.mark.parametrize(("make", "config"), VARIANTS, ids=[f"{make.__name__}-{name(c)}" for make, c in VARIANTS])
def test_every_beam_attends_to_its_own_text(make, config):
    """Random parents, prompts of two lengths, a dropped row and pruned slots."""
    model = make(**config)
    rng = random.Random(name(config))
    texts = {0: [[4, 11, 6]] * 3, 1: [[17]] * 3}
    state = prefill(model, [texts[0][0], texts[1][0]]).branch(3)
    rows = [0, 1]
    with torch.no_grad():
        for step in range(9):
            if step == 6:
                state, rows = state.reorder([1]), [1]
            if step in (3, 7):
                state = state.pruned()
            parents = [[rng.randrange(3) if step != 4 else 0 for _ in range(3)] for _ in rows]
            tokens = [[rng.randrange(41) for _ in range(3)] for _ in rows]
            state = state.follow(torch.tensor(parents))
            logits, state = model.step(torch.tensor(tokens), state)
            for i, row in enumerate(rows):
                texts[row] = [[*texts[row][p], token] for p, token in zip(parents[i], tokens[i], strict=True)]
                for j in range(3):
                    expected = logits_after(model, row, texts[row][j])
                    torch.testing.assert_close(logits[i, j], expected, rtol=1e-4, atol=1e-4)
    assert state.length.tolist() == [10]


def test_slots_that_no_beam_continues_are_pruned():
    model = gpt()
    state = prefill(model, [[4, 11, 6]]).branch(4)
    for _ in range(6):
        state = state.follow(torch.zeros(1, 4, dtype=torch.long))  # all continue the first beam
        _, state = model.step(torch.tensor([[1, 2, 3, 4]]), state)
    assert state.visible.shape[2] == 3 + 6 * 4
    assert state.pruned().visible.shape[2] == 3 + 5 + 4


def test_beams_end_at_the_context():
    model = gpt(positions="learned", context=6)
    state = prefill(model, [[4, 11, 6]]).branch(2)
    for _ in range(3):
        _, state = model.step(torch.tensor([[1, 2]]), state)
    with pytest.raises(InputError, match="7 tokens are longer than the context of 6"):
        model.step(torch.tensor([[1, 2]]), state)
    with pytest.raises(InputError, match="3 tokens for 2 beams"):
        model.step(torch.tensor([[1, 2, 3]]), prefill(model, [[4]]).branch(2))
