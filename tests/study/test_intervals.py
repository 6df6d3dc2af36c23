import numpy as np
import pytest
from scipy import stats

from posenc.study.intervals import interval


@pytest.mark.parametrize("count", [2, 3, 5, 10, 30, 31])
def test_the_interval_is_scipys(count):
    values = np.random.default_rng(count).normal(0.3, 2.0, count)
    wanted = stats.t.interval(0.9, count - 1, loc=values.mean(), scale=stats.sem(values))
    assert interval(list(values)) == pytest.approx(wanted, rel=1e-5)


def test_beyond_thirty_degrees_of_freedom_the_quantile_is_normal():
    values = np.random.default_rng(0).normal(size=40)
    assert interval(list(values)) == pytest.approx(
        stats.norm.interval(0.9, loc=values.mean(), scale=stats.sem(values)), rel=1e-5
    )


@pytest.mark.parametrize("values", [[], [1.0]])
def test_fewer_than_two_differences_have_none(values):
    assert interval(values) is None


def test_equal_differences_have_no_width():
    assert interval([0.5, 0.5, 0.5]) == (0.5, 0.5)
