"""Scores spread with √d and saturate the softmax; divided by √d they do not."""

import pytest

from headway.analysis import score_scaling
from headway.analysis.dot_product_scaling import plot, render_text
from headway.errors import InputError


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_the_standard_deviation_is_the_root_of_the_width_times_the_variance(sigma):
    """16,000 scores of 2,000 queries: the error of the standard deviation is about 1 %; the tolerance is 5 %."""
    for row in score_scaling([4, 64, 256], sigma=sigma):
        assert row.std == pytest.approx(row.d**0.5 * sigma**2)
        assert row.measured_std == pytest.approx(row.std, rel=0.05)


def test_without_the_scale_softmax_saturates_and_its_gradient_vanishes():
    rows = score_scaling()
    assert [row.d for row in rows] == [4, 16, 64, 256, 1024]
    largest, gradients = [row.largest_weight for row in rows], [row.gradient for row in rows]
    assert largest == sorted(largest)
    assert largest[-1] > 0.95
    assert gradients == sorted(gradients, reverse=True)
    assert gradients[-1] < 0.06
    for row in rows:
        assert row.largest_weight_scaled < 0.4
        assert row.gradient_scaled > 0.3
    assert score_scaling([16])[0] == rows[1]  # by the seed alone


def test_the_table_and_the_picture_have_every_width(tmp_path):
    rows = score_scaling([4, 16])
    assert [line.split()[:2] for line in render_text(rows).splitlines()[1:]] == [["4", "2"], ["16", "4"]]
    assert plot(rows, tmp_path / "scaling.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": [0]}, r"widths=\[0\]: choose widths of a head from 1 to 16,384"),
        ({"widths": []}, "choose widths"),
        ({"sigma": 0.0}, "sigma=0.0: a standard deviation is above 0"),
        ({"sigma": float("nan")}, "sigma=nan"),
        ({"n_keys": 1}, "n_keys=1: softmax compares at least 2 keys"),
    ],
)
def test_wrong_values_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        score_scaling(**options)
