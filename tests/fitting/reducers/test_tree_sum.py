"""Sums in a tree: all terms once, each rounded as rarely as is said."""

import fractions

import numpy as np
import pytest

from numpyro_vips.fitting.reducers.tree_sum import TreeSum, most_roundings


@pytest.mark.quick_with("64", "5", "11")
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 11, 64, 1000, 1023])
def test_every_term_is_in_the_sum_once(count):
    total = TreeSum()
    for number in range(count):
        total.add(number, {"powers": np.eye(count)[number], "count": np.array(1.0)})
    found = total.value()
    np.testing.assert_array_equal(found["powers"], np.ones(count))
    assert found["count"] == count
    assert all(isinstance(array, np.ndarray) for array in found.values())


class _Counted:
    """A number that counts the additions that its terms went through."""

    def __init__(self, depths):
        self.depths = depths

    def __add__(self, other):
        return _Counted([depth + 1 for depth in (*self.depths, *other.depths)])


@pytest.mark.parametrize("count", range(1, 70))
def test_no_term_is_rounded_more_often_than_is_said(count):
    total = TreeSum()
    for number in range(count):
        total.add(number, {"x": np.array(_Counted([0]), object)})
    most = max(total.value()["x"].item().depths)
    assert most <= most_roundings(count) <= most + 1


def test_it_is_closer_to_the_exact_sum_than_one_after_the_other():
    terms = np.random.default_rng(0).uniform(size=100_000)
    total, in_turn = TreeSum(), 0.0
    for number, term in enumerate(terms):
        total.add(number, {"x": np.asarray(term)})
        in_turn += term
    exact = sum(map(fractions.Fraction, terms))
    error = abs(fractions.Fraction(float(total.value()["x"])) - exact)
    assert error <= most_roundings(len(terms)) * 2.0**-53 * exact
    assert 10 * error < abs(fractions.Fraction(in_turn) - exact)


@pytest.mark.parametrize("count", [1, 2, 5, 11, 64, 100])
@pytest.mark.parametrize("limits", [(), (1,), (3,), (32,), (7, 40)])
def test_sums_of_some_terms_each_put_together_have_the_same_bits(count, limits):
    rng = np.random.default_rng(count)
    terms = [{"x": rng.normal(size=3) * 10.0 ** rng.integers(9)} for _ in range(count)]
    whole, together = TreeSum(), TreeSum()
    for number, term in enumerate(terms):
        whole.add(number, term)
    parts = np.split(np.arange(count), [limit for limit in limits if limit < count])
    for numbers in reversed(parts):
        part = TreeSum()
        for number in rng.permutation(numbers):
            part.add(int(number), terms[number])
        together.merge(part.sums)
    np.testing.assert_array_equal(together.value()["x"], whole.value()["x"])
