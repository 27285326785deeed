"""The noisy channel's arithmetic: the score is the formula, the order its order, tuning never loses on what it saw."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.generation.noisy_channel import ChannelScores, ChannelWeights, tune_weights

NUMBERS = st.floats(-20, 0)
TERMS = st.builds(ChannelScores, NUMBERS, NUMBERS, NUMBERS, st.floats(0.1, 3))
WEIGHTS = st.builds(ChannelWeights, *[st.floats(0, 3)] * 3, st.floats(-3, 3))


@given(TERMS, WEIGHTS)
def test_the_score_is_the_formula(t, w):
    wanted = w.direct * t.direct + w.channel * t.channel + w.lm * t.lm + w.length * t.length
    assert w.score(t) == pytest.approx(wanted)


@given(st.lists(TERMS, min_size=1, max_size=8), WEIGHTS)
def test_the_best_is_the_first_with_the_highest_score(candidates, w):
    scores = [w.score(t) for t in candidates]
    assert w.best(candidates) == scores.index(max(scores))


def test_a_weight_of_nothing_leaves_out_what_is_infinite():
    impossible = ChannelScores(-1.0, -math.inf, -1.0, 1.0)
    assert ChannelWeights(1.0, 0.0, 0.0).score(impossible) == -1.0
    assert ChannelWeights(1.0, 0.5, 0.0).best([impossible, ChannelScores(-9.0, -9.0, -9.0, 1.0)]) == 1


@pytest.mark.parametrize("seed", range(20))
def test_tuning_finds_what_the_judge_goes_by_and_never_loses(seed):
    """Of each list one candidate is right, and the channel knows it, more or less."""
    rng = random.Random(seed)
    lists = [
        [
            ChannelScores(rng.uniform(-2, 0), rng.uniform(-6, -2) + 3 * (i == 2), rng.uniform(-3, -1), 1.0)
            for i in range(5)
        ]
        for _ in range(60)
    ]

    def judge(chosen):
        return sum(i == 2 for i in chosen) / len(chosen)

    weights, found = tune_weights(lists, judge)
    direct = judge([ChannelWeights(1, 0, 0, 0).best(some) for some in lists])
    assert found == judge([weights.best(some) for some in lists]) > 0.7 > direct
    assert weights.channel > 0
    assert tune_weights(lists, judge, terms=["lm"])[0].channel == 0


def test_weights_are_read_from_a_line_and_written_to_one():
    assert ChannelWeights.parse("channel=0.3, lm=0") == ChannelWeights(1.0, 0.3, 0.0, 0.0)
    assert ChannelWeights.parse(str(ChannelWeights(0.5, 1.0, 0.25, -1.0))) == ChannelWeights(0.5, 1.0, 0.25, -1.0)
    assert ChannelWeights.parse("channel = 0.3") == ChannelWeights(1.0, 0.3)
    with pytest.raises(ConfigError, match="'lm=nan' is not"):
        ChannelWeights.parse("lm=nan")
    with pytest.raises(ConfigError, match=r"no term 'chanel'.*Did you mean 'channel'"):
        ChannelWeights.parse("chanel=1")
    with pytest.raises(ConfigError, match=r"'lm=much' is not of the form lm=0\.5"):
        ChannelWeights.parse("lm=much")
    with pytest.raises(ConfigError, match="lm is named twice"):
        ChannelWeights.parse("lm=1,lm=2")
