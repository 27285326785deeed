"""Drawing: the right distribution, rows independent of each other, and uniform random numbers.

Seeds are fixed, so a test that passes once always passes.
"""

import math

import pytest
import torch
from scipy import stats

from headway.errors import InputError
from headway.sampling import Pipeline, SamplerState, draw, greedy
from headway.sampling.rng import TOKEN, XTC, seeds, uniform

ROW = torch.tensor([2.0, 1.0, 1.0, 0.0, -math.inf, -1.0, -3.0, 2.5, -6.0])


def draws(pipe, row, n, seed=0):
    """n tokens from one row, as a batch of n rows with one seed each."""
    zeros = torch.zeros(n, dtype=torch.long)
    state = SamplerState(seed * 10_000_019 + torch.arange(n), zeros, zeros.double())
    return pipe.draw(row.expand(n, -1), state=state)[0]


def chi2(tokens, p):
    """The p-value of Pearson's test; cells with an expectation below 5 are merged."""
    expected, observed = p * len(tokens), torch.bincount(tokens, minlength=len(p)).double()
    is_big = expected >= 5
    e, o = (torch.cat((counts[is_big], counts[~is_big].sum()[None])) for counts in (expected, observed))
    if e[-1] < 5:
        e, o = (torch.cat((counts[:-2], counts[-2:].sum()[None])) for counts in (e, o))
    return stats.chisquare(o.numpy(), e.numpy()).pvalue


def test_greedy_takes_the_best_token_and_the_lower_id_among_ties():
    assert greedy(torch.tensor([[1.0, 3.0, 3.0], [0.0, -1.0, -torch.inf]])).tolist() == [1, 0]


def test_draws_follow_the_distribution():
    """200,000 draws with p > 1e-4; over 20 seeds the p-values themselves are uniform."""
    p = ROW.double().softmax(-1)
    assert chi2(draws(Pipeline(), ROW, 200_000), p) > 1e-4
    p_values = [chi2(draws(Pipeline(), ROW, 20_000, seed), p) for seed in range(20)]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


def test_draws_follow_the_distribution_along_the_positions_of_a_row():
    pipe, p = Pipeline(), ROW.double().softmax(-1)
    state, tokens = pipe.start(250, 3), []
    for _ in range(200):
        ids, state = pipe.draw(ROW.expand(250, -1), state=state)
        tokens.append(ids)
    assert chi2(torch.cat(tokens), p) > 1e-4


def test_long_rows_drawn_in_two_steps_match_one_cumulative_sum():
    """The row has an uneven end and a long stretch of removed tokens."""
    row = 3 * torch.randn(1, 20_045, generator=torch.Generator().manual_seed(2))
    row[:, 3000:12_000] = -math.inf
    row[:, -40:] += 4
    points = torch.rand(1500, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    points[:3] = torch.tensor([0.0, 1 - 2.0**-53, 0.5], dtype=torch.float64)
    mass = row.double().softmax(-1).cumsum(-1)
    expected = torch.searchsorted(mass, points[None] * mass[:, -1:], right=True)[0]
    tokens = torch.cat([draw(row.expand(len(chunk), -1), chunk) for chunk in points.split(100)])
    assert torch.equal(tokens, expected)
    assert (tokens >= 20_005).sum() > 40
    assert row[0, tokens].isfinite().all()


def test_removed_tokens_are_never_drawn():
    """In a million draws from a filtered row, and in 20,000 through the whole pipeline."""
    pipe = Pipeline([{"stage": "top_k", "k": 3}])
    row = torch.randn(50, generator=torch.Generator().manual_seed(1))
    kept = set(row.topk(3).indices.tolist())
    assert set(draws(pipe, row, 20_000).tolist()) == kept
    short = torch.tensor([-math.inf, 1.0, -math.inf, -math.inf, 0.0, -8.0, -math.inf])
    points = uniform(torch.arange(1_000_000), torch.zeros(1_000_000, dtype=torch.long), TOKEN)
    points[:2] = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    assert set(draw(short.expand(1_000_000, -1), points).unique().tolist()) == {1, 4, 5}


def test_xtc_acts_with_its_probability():
    """Its rate is within four standard deviations, and the marginal distribution is the mixture."""
    rate, n = 0.3, 20_000
    pipe = Pipeline([{"stage": "xtc", "threshold": 0.15, "probability": rate}])
    row = torch.tensor([2.0, 1.0, 1.0, 0.0, -1.0, -3.0])
    state = pipe.start(n, 5)
    rows = pipe.apply(row.expand(n, -1), state=state)
    measured = (~rows[:, 0].isfinite()).double().mean().item()
    assert abs(measured - rate) < 4 * math.sqrt(rate * (1 - rate) / n)
    truncated = row.clone()
    truncated[:2] = -math.inf
    mixture = rate * truncated.double().softmax(-1) + (1 - rate) * row.double().softmax(-1)
    assert chi2(pipe.draw(row.expand(n, -1), state=state)[0], mixture) > 1e-4


def test_temperature_raises_entropy_up_to_uniform():
    row = (20 * torch.rand(1, 40, generator=torch.Generator().manual_seed(0)) - 10).double()
    last_entropy = -1.0
    for temperature in (0.05, 0.2, 0.5, 1.0, 2.0, 10.0, 1e4):
        p = Pipeline([{"stage": "temperature", "temperature": temperature}]).apply(row).softmax(-1)
        entropy = torch.special.entr(p).sum().item()
        assert entropy >= last_entropy - 1e-9
        last_entropy = entropy
    assert 0.5 * (p - 1 / 40).abs().sum() < 1e-3


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_holds_the_average_surprise_at_tau(version):
    """Zipf rows with a new exponent at every step; 6 rows for each tau, 120 steps after a warm-up of 60.

    The surprise comes from mu ← mu − eta (surprise − tau); some steps check it against the filtered row.
    """
    taus = torch.tensor([2.0, 3.0, 5.0]).repeat_interleave(6)
    pipe = Pipeline([{"stage": f"mirostat_v{version}", "tau": taus.tolist(), "eta": 0.1}])
    rng = torch.Generator().manual_seed(4)
    log_rank = torch.arange(1, 5001).double().log()
    state, surprise = pipe.start(18, 9), []
    assert torch.equal(state.mu, 2 * taus.double())
    for step in range(180):
        logits = -(0.9 + 0.4 * torch.rand(18, 1, generator=rng, dtype=torch.float64)) * log_rank
        mu = state.mu
        ids, state = pipe.draw(logits, state=state)
        surprise.append(taus - (state.mu - mu) / 0.1)
        if step % 20 == 0:
            filtered = pipe.apply(logits, mu=mu)
            bits = -filtered.log_softmax(-1).gather(1, ids[:, None])[:, 0] / math.log(2)
            torch.testing.assert_close(surprise[-1], bits)
    mean = torch.stack(surprise[60:]).view(120, 3, 6).mean(dim=(0, 2))
    assert mean.tolist() == pytest.approx([2.0, 3.0, 5.0], abs=0.05)


def test_a_row_depends_only_on_its_seed_and_position():
    pipe = Pipeline([{"stage": "xtc", "probability": 0.5}, {"stage": "mirostat_v2", "tau": 2.0}])
    logits = torch.randn(8, 50)
    state = pipe.start(8, 100)
    first, state = pipe.draw(logits, state=state)
    second, _ = pipe.draw(logits, state=state)
    order = torch.tensor([5, 2, 7, 0])
    reordered = pipe.start(4, [105, 102, 107, 100])
    ids, reordered = pipe.draw(logits[order], state=reordered)
    assert torch.equal(ids, first[order])
    assert torch.equal(pipe.draw(logits[order], state=reordered)[0], second[order])
    assert torch.equal(pipe.draw(logits[order], state=state.reorder(order))[0], second[order])


def test_random_numbers_are_uniform_and_uncorrelated():
    """Along positions, along seeds, between neighbours and between streams."""
    n = 100_000
    along = uniform(seeds(n, [7] * n), torch.arange(n), TOKEN)
    across = uniform(seeds(n, 0), torch.zeros(n).long(), TOKEN)
    other_seed = uniform(seeds(n, [8] * n), torch.arange(n), TOKEN)
    other_stream = uniform(seeds(n, [7] * n), torch.arange(n), XTC)
    for numbers in (along, across, other_seed, other_stream):
        assert 0 <= numbers.min() < numbers.max() < 1
        assert stats.kstest(numbers.numpy(), "uniform").pvalue > 1e-3
    for a, b in [(along, other_seed), (along, other_stream), (across[1:], across[:-1]), (along[1:], along[:-1])]:
        assert abs(torch.corrcoef(torch.stack((a, b)))[0, 1]) < 4 / math.sqrt(n)


def test_seeds_may_have_any_size():
    assert seeds(2, 2**64 + 3).tolist() == seeds(2, 3).tolist()
    assert seeds(1, -1).tolist() == [-1]
    assert seeds(3, None).unique().numel() == 3


def test_draws_without_a_state_use_new_seeds():
    row = torch.zeros(1, 1000)
    assert len({Pipeline().draw(row)[0].item() for _ in range(5)}) > 1


@pytest.mark.parametrize("row", [[1.0, float("nan")], [1.0, float("inf")], [-float("inf")] * 2])
def test_errors_name_the_broken_row(row):
    logits = torch.tensor([[0.0, 1.0], row])
    with pytest.raises(InputError, match="row 1 of the logits"):
        greedy(logits)
    with pytest.raises(InputError, match="row 1 of the logits"):
        draw(logits, torch.tensor([0.5, 0.5]))
