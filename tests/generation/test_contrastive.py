"""Contrastive search: its definition, greedy as a special case, and what it refuses."""

import pytest
import torch

import headway
from headway.errors import ConfigError, InputError
from headway.generation.contrastive import contrastive_pick, contrastive_search
from tests.models.variants import gpt
from tests.reference import search as reference

PROMPTS = [[1, 2, 3, 4], [7], [5, 5, 9, 2, 8, 1]]


@pytest.mark.parametrize("k", [1, 3, 6])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_it_equals_the_definition(k, alpha):
    model = gpt(n_layers=2)
    hypotheses = contrastive_search(model, PROMPTS, k=k, alpha=alpha, max_new_tokens=8, eos_ids=[11])
    for prompt, h in zip(PROMPTS, hypotheses, strict=True):
        assert h.tokens == reference.contrastive(model, prompt, k=k, alpha=alpha, L=8, eos=[11])


@pytest.mark.parametrize("options", [{"k": 1, "alpha": 0.6}, {"k": 5, "alpha": 0.0}])
def test_one_candidate_or_alpha_0_is_greedy(options):
    model, text = gpt(n_layers=2), [1, 2, 3]
    for _ in range(7):
        text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
    [h] = contrastive_search(model, [1, 2, 3], max_new_tokens=7, **options)
    assert h.tokens == text[3:]


def test_a_pick_by_hand():
    """p = (.5, .3, .2); the most likely candidate points along the context, the second is orthogonal to it."""
    logits = torch.tensor([0.5, 0.3, 0.2]).log()
    context = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    candidates = torch.tensor([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]])
    assert contrastive_pick(logits, candidates, context, k=3, alpha=0.0) == 0
    assert contrastive_pick(logits, candidates, context, k=3, alpha=0.6) == 1
    assert contrastive_pick(logits, candidates, torch.tensor([[1.0, 0.0]]), k=3, alpha=0.6) == 2  # cosine −1
    assert contrastive_pick(logits, candidates, context, k=1, alpha=0.6) == 0
    assert contrastive_pick(logits, torch.zeros(3, 2), context, k=3, alpha=0.6) == 0  # zero vectors: cosine 0


def test_of_equal_scores_the_more_likely_token_wins():
    logits = torch.tensor([1.0, 1.0, 1.0])
    same = torch.ones(3, 2)
    assert contrastive_pick(logits, same, same, k=3, alpha=0.5) == 0


def test_wrong_requests_are_refused():
    with pytest.raises(InputError, match="a 3-gram has no hidden states"):
        contrastive_search(headway.create("ngram", vocab_size=5), [1], max_new_tokens=2)
    model = gpt()
    with pytest.raises(ConfigError, match=r"alpha=1.5 must be a number from 0 \(greedy\) to 1"):
        contrastive_search(model, [1], alpha=1.5, max_new_tokens=2)
    with pytest.raises(ConfigError, match="k=0"):
        contrastive_search(model, [1], k=0, max_new_tokens=2)
    with pytest.raises(ConfigError, match="temperature with contrastive search"):
        contrastive_search(model, [1], max_new_tokens=2, pipeline=[{"stage": "temperature", "temperature": 0.5}])


def test_penalties_apply():
    model = gpt(n_layers=2)
    [plain] = contrastive_search(model, [1, 2, 3], max_new_tokens=10)
    [h] = contrastive_search(model, [1, 2, 3], max_new_tokens=10, pipeline=[{"stage": "no_repeat_ngram", "n": 1}])
    assert len(set(h.tokens)) == 10
    assert h.tokens[0] == plain.tokens[0] or plain.tokens[0] in (1, 2, 3)


def test_a_probability_that_underflows_does_not_remove_a_candidate():
    """Only −inf does."""
    logits, candidates = torch.tensor([1e4, 0.0]), torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert contrastive_pick(logits, candidates, torch.tensor([[1.0, 0.0]]), k=2, alpha=0.6) == 1
    removed = torch.tensor([1e4, -torch.inf])
    assert contrastive_pick(removed, candidates, torch.tensor([[1.0, 0.0]]), k=2, alpha=0.6) == 0
