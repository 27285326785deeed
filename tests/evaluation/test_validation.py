"""A number that means nothing is an error: no targets, losses that are no numbers."""

import math

import pytest

from headway.errors import DataError
from headway.evaluation.validation import NonFiniteLossError, exp_or_inf, mean_loss


def test_a_mean_over_no_targets_is_refused():
    with pytest.raises(DataError, match=r"^nothing to predict$"):
        mean_loss(0.0, 0, no_targets="nothing to predict")


@pytest.mark.parametrize("nats", [math.nan, -math.inf, -1.0])
def test_a_loss_that_no_probabilities_give_is_refused(nats):
    with pytest.raises(NonFiniteLossError, match=f"the loss is {nats / 4:.4g} nats per target.*another checkpoint"):
        mean_loss(nats, 4, no_targets="")


def test_a_loss_may_be_zero_but_for_rounding_or_infinite():
    assert mean_loss(-1e-7, 4, no_targets="") == 0.0
    assert mean_loss(math.inf, 4, no_targets="") == math.inf


def test_perplexity_is_infinite_only_where_it_overflows():
    assert exp_or_inf(705.0) == math.exp(705.0)
    assert exp_or_inf(710.0) == math.inf
    assert exp_or_inf(math.inf) == math.inf
