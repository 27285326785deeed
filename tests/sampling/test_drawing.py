"""Drawing: the right distribution, each row on its own, and numbers that are as random as they should be.

Seeds are fixed, so what passes once passes always.
"""

import math

import pytest
import torch
from scipy import stats

from headway.errors import InputError
from headway.sampling import Pipeline, draw, greedy
from headway.sampling.rng import TOKEN, XTC, seeds, uniform

ROW = torch.tensor([2.0, 1.0, 1.0, 0.0, -math.inf, -1.0, -3.0, 2.5, -6.0])


def drawn(pipe, row, n, seed=0):
    """n tokens from one row: n texts with one seed each."""
    state = pipe.start(n, [seed * 10_000_019 + i for i in range(n)])
    return pipe.draw(row.expand(n, -1), state=state)[0]


def chi2(tokens, p):
    """Pearson's test, cells with expectation below 5 merged."""
    expected, observed = p * len(tokens), torch.bincount(tokens, minlength=len(p)).double()
    big = expected >= 5
    e, o = (
        torch.cat((expected[big], expected[~big].sum()[None])),
        torch.cat((observed[big], observed[~big].sum()[None])),
    )
    if e[-1] < 5:
        e, o = torch.cat((e[:-2], e[-2:].sum()[None])), torch.cat((o[:-2], o[-2:].sum()[None]))
    return stats.chisquare(o.numpy(), e.numpy()).pvalue


def test_greedy_takes_the_best_and_the_lower_id_of_equals():
    assert greedy(torch.tensor([[1.0, 3.0, 3.0], [0.0, -1.0, -torch.inf]])).tolist() == [1, 0]


def test_draws_follow_the_distribution():
    """200,000 draws, p > 1e-4; and over 20 seeds the p-values are themselves uniform."""
    p = ROW.double().softmax(-1)
    assert chi2(drawn(Pipeline(), ROW, 200_000), p) > 1e-4
    values = [chi2(drawn(Pipeline(), ROW, 20_000, seed), p) for seed in range(20)]
    assert stats.kstest(values, "uniform").pvalue > 1e-3


def test_one_row_draws_as_well_along_its_positions():
    pipe, p = Pipeline(), ROW.double().softmax(-1)
    state, tokens = pipe.start(50, 3), []
    for _ in range(1000):
        ids, state = pipe.draw(ROW.expand(50, -1), state=state)
        tokens.append(ids)
    assert chi2(torch.cat(tokens), p) > 1e-4


def test_a_long_row_is_drawn_in_two_looks():
    """The same tokens as by one sum over the whole row, its uneven end and long removed stretches included."""
    row = 3 * torch.randn(1, 20_045, generator=torch.Generator().manual_seed(2))
    row[:, 3000:12_000] = -math.inf
    row[:, -40:] += 4
    points = torch.rand(4000, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    points[:3] = torch.tensor([0.0, 1 - 2.0**-53, 0.5], dtype=torch.float64)
    mass = row.double().softmax(-1).cumsum(-1)
    expected = torch.searchsorted(mass, points[None] * mass[:, -1:], right=True)[0]
    found = torch.cat([draw(row.expand(100, -1), some) for some in points.split(100)])
    assert torch.equal(found, expected)
    assert (found >= 20_005).sum() > 100
    assert row[0, found].isfinite().all()


def test_removed_tokens_are_never_drawn():
    pipe = Pipeline([{"stage": "top_k", "k": 3}])
    row = torch.randn(50, generator=torch.Generator().manual_seed(1))
    found = set(drawn(pipe, row, 1_000_000).unique().tolist())
    assert found == set(row.topk(3).indices.tolist())


def test_xtc_acts_as_often_as_it_should():
    """Its share within four standard deviations, and the marginal is the mixture."""
    share, n = 0.3, 20_000
    pipe = Pipeline([{"stage": "xtc", "threshold": 0.15, "probability": share}])
    row = torch.tensor([2.0, 1.0, 1.0, 0.0, -1.0, -3.0])
    state = pipe.start(n, 5)
    rows = pipe.apply(row.expand(n, -1), state=state)
    acted = (~rows[:, 0].isfinite()).double().mean().item()
    assert abs(acted - share) < 4 * math.sqrt(share * (1 - share) / n)
    removed = row.clone()
    removed[:2] = -math.inf
    mixture = share * removed.double().softmax(-1) + (1 - share) * row.double().softmax(-1)
    assert chi2(pipe.draw(row.expand(n, -1), state=state)[0], mixture) > 1e-4


def test_heat_raises_entropy_to_the_uniform_limit():
    row = (20 * torch.rand(1, 40, generator=torch.Generator().manual_seed(0)) - 10).double()
    last = -1.0
    for heat in (0.05, 0.2, 0.5, 1.0, 2.0, 10.0, 1e4):
        p = Pipeline([{"stage": "temperature", "temperature": heat}]).apply(row).softmax(-1)
        entropy = torch.special.entr(p).sum().item()
        assert entropy >= last - 1e-9
        last = entropy
    assert 0.5 * (p - 1 / 40).abs().sum() < 1e-3


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tau", [2.0, 3.0, 5.0])
def test_mirostat_holds_the_surprise(version, tau):
    """Zipf rows of an exponent that changes with every token."""
    pipe = Pipeline([{"stage": f"mirostat_v{version}", "tau": tau, "eta": 0.1}])
    rng = torch.Generator().manual_seed(4)
    rank = torch.arange(1, 5001).double().log()
    state, surprise = pipe.start(1, 9), []
    for step in range(1500):
        exponent = 0.9 + 0.4 * torch.rand(1, generator=rng, dtype=torch.float64)
        logits = -exponent * rank[None]
        before = state.mu
        ids, state = pipe.draw(logits, state=state)
        kept = pipe.apply(logits, mu=before)
        surprise.append(-kept.log_softmax(-1)[0, ids[0]].item() / math.log(2))
        if step == 0:
            assert before.item() == 2 * tau
    assert sum(surprise[200:]) / 1300 == pytest.approx(tau, abs=0.05)


def test_a_row_depends_on_its_own_seed_and_position_alone():
    pipe = Pipeline([{"stage": "xtc", "probability": 0.5}, {"stage": "mirostat_v2", "tau": 2.0}])
    logits = torch.randn(8, 50)
    state = pipe.start(8, 100)
    first, state = pipe.draw(logits, state=state)
    second, _ = pipe.draw(logits, state=state)
    order = torch.tensor([5, 2, 7, 0])
    moved = pipe.start(4, [105, 102, 107, 100])
    ids, moved = pipe.draw(logits[order], state=moved)
    assert torch.equal(ids, first[order])
    assert torch.equal(pipe.draw(logits[order], state=moved)[0], second[order])
    assert torch.equal(pipe.draw(logits[order], state=state.reorder(order))[0], second[order])


def test_uniform_numbers():
    """Uniform along positions and along seeds; neighbours and streams are uncorrelated."""
    n = 100_000
    along = uniform(seeds(n, [7] * n), torch.arange(n), TOKEN)
    across = uniform(seeds(n, 0), torch.zeros(n).long(), TOKEN)
    other = uniform(seeds(n, [8] * n), torch.arange(n), TOKEN)
    coin = uniform(seeds(n, [7] * n), torch.arange(n), XTC)
    for numbers in (along, across, other, coin):
        assert 0 <= numbers.min() < numbers.max() < 1
        assert stats.kstest(numbers.numpy(), "uniform").pvalue > 1e-3
    for a, b in [(along, other), (along, coin), (across[1:], across[:-1]), (along[1:], along[:-1])]:
        assert abs(torch.corrcoef(torch.stack((a, b)))[0, 1]) < 4 / math.sqrt(n)


def test_seeds_of_any_size():
    assert seeds(2, 2**64 + 3).tolist() == seeds(2, 3).tolist()
    assert seeds(1, -1).tolist() == [-1]
    assert seeds(3, None).unique().numel() == 3


def test_without_a_state_every_call_is_new():
    row = torch.zeros(1, 1000)
    assert len({Pipeline().draw(row)[0].item() for _ in range(5)}) > 1


@pytest.mark.parametrize("row", [[1.0, float("nan")], [1.0, float("inf")], [-float("inf")] * 2])
def test_broken_rows_are_named(row):
    logits = torch.tensor([[0.0, 1.0], row])
    with pytest.raises(InputError, match="row 1 of the logits"):
        greedy(logits)
    with pytest.raises(InputError, match="row 1 of the logits"):
        draw(logits, torch.tensor([0.5, 0.5]))
