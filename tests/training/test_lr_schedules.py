"""Learning-rate schedules, computed by hand and as the papers print them."""

import pytest

from headway.config import TrainConfig
from headway.errors import ConfigError
from headway.training.lr_schedules import SCHEDULES, learning_rate


def rates_of(config, n=100):
    return [learning_rate(config, step, step / n) for step in range(n + 1)]


def test_inverse_sqrt_peaks_at_699e_4_after_4000_steps():
    """Vaswani et al. 2017, eq. 3, base model: d_model = 512."""
    config = TrainConfig(schedule="inverse-sqrt", lr=(512 * 4000) ** -0.5, warmup_steps=4000)

    def paper(step):
        return 512**-0.5 * min(step**-0.5, step * 4000**-1.5)

    assert learning_rate(config, 3999, 0.1) == pytest.approx(6.99e-4, rel=1e-3)
    for step in (1, 10, 3999, 4000, 4001, 100_000):
        assert learning_rate(config, step - 1, 0.5) == pytest.approx(paper(step), rel=1e-9)


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_cosine_and_linear_fall_from_lr_to_min_lr(name):
    rates = rates_of(TrainConfig(schedule=name, lr=1.0, min_lr=0.1, warmup_steps=0))
    assert rates[0] == pytest.approx(1.0)
    assert rates[50] == pytest.approx(0.55)
    assert rates[-1] == pytest.approx(0.1)
    assert rates == sorted(rates, reverse=True)


def test_wsd_warms_up_stays_and_decays():
    rates = rates_of(TrainConfig(schedule="wsd", lr=1.0, warmup_steps=10, decay_fraction=0.25))
    assert rates[:3] == pytest.approx([0.1, 0.2, 0.3])
    assert rates[10:75] == pytest.approx([1.0] * 65)
    assert rates[88] == pytest.approx(0.48)
    assert rates[-1] == 0.0


def test_step_decay_is_that_of_zaremba():
    """Zaremba et al. 2014, §4.1, in epochs of 10 steps: rate 1, and after epoch 6 divided by 1.2 after each."""
    config = TrainConfig(schedule="step", lr=1.0, warmup_steps=0, decay_from=60, decay_every=10, decay_factor=1 / 1.2)
    assert learning_rate(config, 59, 0) == 1.0
    assert learning_rate(config, 60, 0) == pytest.approx(1 / 1.2)
    assert learning_rate(config, 70, 0) == pytest.approx(1 / 1.44)


@pytest.mark.parametrize("name", [n for n in SCHEDULES if n != "inverse-sqrt"])
def test_the_warm_up_is_linear_for_every_schedule(name):
    config = TrainConfig(schedule=name, lr=1.0, warmup_steps=10, decay_from=1000)
    no_warmup = config.replace(warmup_steps=0)
    for step in range(10):
        assert learning_rate(config, step, 0.0) == pytest.approx(learning_rate(no_warmup, step, 0.0) * (step + 1) / 10)


def test_impossible_schedules_are_refused():
    with pytest.raises(ConfigError, match=r"set train\.warmup_steps"):
        TrainConfig(schedule="inverse-sqrt", warmup_steps=0)
    with pytest.raises(ConfigError, match=r"decay_fraction=0"):
        TrainConfig(schedule="wsd", decay_fraction=0)
