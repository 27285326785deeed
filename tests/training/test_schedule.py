import pytest

from headway.training.schedule import warmup_cosine

RUN = {"lr": 1.0, "min_lr": 0.1, "warmup_steps": 10}


def test_rises_linearly_then_falls_as_half_a_cosine():
    flat = {**RUN, "min_lr": 1.0}
    assert [warmup_cosine(s, s / 100, **flat) for s in (0, 4, 9, 50)] == pytest.approx([0.1, 0.5, 1.0, 1.0])
    assert warmup_cosine(50, 0.5, **RUN) == pytest.approx(0.55)
    assert warmup_cosine(100, 1.0, **RUN) == pytest.approx(0.1)
    assert warmup_cosine(300, 3.0, **RUN) == pytest.approx(0.1)  # a run past its end stays at the floor
    rates = [warmup_cosine(s, s / 100, **RUN) for s in range(10, 100)]
    assert rates == sorted(rates, reverse=True)
