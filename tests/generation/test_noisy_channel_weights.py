"""Weights of the noisy channel: the score is the formula, and tuning never lowers the rating it optimises."""

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
    expected = w.direct * t.direct + w.channel * t.channel + w.lm * t.lm + w.length * t.length
    assert w.score(t) == pytest.approx(expected)


@given(st.lists(TERMS, min_size=1, max_size=8), WEIGHTS)
def test_the_best_is_the_first_with_the_highest_score(candidates, w):
    scores = [w.score(t) for t in candidates]
    assert w.best(candidates) == scores.index(max(scores))


def test_a_weight_of_0_drops_an_infinite_term():
    impossible = ChannelScores(-1.0, -math.inf, -1.0, 1.0)
    assert ChannelWeights(1.0, 0.0, 0.0).score(impossible) == -1.0
    assert ChannelWeights(1.0, 0.5, 0.0).best([impossible, ChannelScores(-9.0, -9.0, -9.0, 1.0)]) == 1


@pytest.mark.parametrize("seed", range(20))
def test_tuning_finds_the_informative_term(seed):
    """One candidate of each sentence is right, and the channel score tells, with noise."""
    rng = random.Random(seed)
    sentences = [
        [
            ChannelScores(rng.uniform(-2, 0), rng.uniform(-6, -2) + 3 * (i == 2), rng.uniform(-3, -1), 1.0)
            for i in range(5)
        ]
        for _ in range(60)
    ]

    def judge(choices):
        return sum(i == 2 for i in choices) / len(choices)

    weights, rating = tune_weights(sentences, judge)
    direct_only = judge([ChannelWeights(1, 0, 0, 0).best(sentence) for sentence in sentences])
    assert rating == judge([weights.best(sentence) for sentence in sentences]) > 0.7 > direct_only
    assert weights.channel > 0
    assert tune_weights(sentences, judge, terms=["lm"])[0].channel == 0


def test_weights_are_parsed_and_printed():
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
