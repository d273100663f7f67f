"""The batches are those that the event prices."""

import collections
import itertools
from typing import Any

import numpy as np
import pytest
from scipy import stats

from numpyro_vips.accounting import GaussianEvent
from numpyro_vips.privacy import batch_selection
from numpyro_vips.privacy.batch_selection import (
    fixed_batch_size,
    select_rows,
    split_batch,
)
from numpyro_vips.privacy.secure_random import SecureRandom


def event(sampling, rate):
    return GaussianEvent(
        noise_stddev=1.0,
        sensitivity=1.0,
        relation="replace_one"
        if sampling == "without_replacement"
        else "add_or_remove",
        sampling=sampling,
        sampling_rate=rate,
    )


def test_full_batches_hold_every_row():
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(select_rows(event("full", 1.0), 5, rng), range(5))


def test_poisson_rows_are_independent_coin_flips():
    """All 2³ batches of three rows, with their exact probabilities."""
    rng = np.random.default_rng(1)
    rate, num_draws = 0.3, 20_000
    counts = collections.Counter(
        tuple(select_rows(event("poisson", rate), 3, rng)) for _ in range(num_draws)
    )
    batches = [b for size in range(4) for b in itertools.combinations(range(3), size)]
    assert set(counts) == set(batches)
    observed = [counts[batch] for batch in batches]

    def pvalue(p):
        expected = [p ** len(b) * (1 - p) ** (3 - len(b)) for b in batches]
        return stats.chisquare(observed, num_draws * np.array(expected)).pvalue

    assert pvalue(rate) > 1e-3
    # The test has power: a rate that is off by 5 % would be rejected.
    assert pvalue(1.05 * rate) < 1e-3


def test_poisson_sizes_are_binomial():
    rng = np.random.default_rng(2)
    sizes = [len(select_rows(event("poisson", 0.02), 500, rng)) for _ in range(4000)]
    assert np.mean(sizes) == pytest.approx(10, abs=4 * np.sqrt(9.8 / 4000))
    assert np.var(sizes) == pytest.approx(9.8, rel=4 * np.sqrt(2 / 4000))
    assert 0 in [len(select_rows(event("poisson", 1e-3), 10, rng)) for _ in range(5)]


class ConstantUniforms:
    """Stands in for a generator whose uniforms all have one value."""

    def __init__(self, value):
        self.value = value

    def random(self, size):
        return np.full(size, self.value)


def test_poisson_never_exceeds_the_rate_by_rounding():
    """Of the 2⁵³ possible uniforms at most rate·2⁵³ select a row."""
    rate = 1e-5 * (1 + 1e-13)
    largest = np.floor(rate * 2.0**53)
    for steps, chosen in ((-1, True), (0, False)):
        uniform = (largest + steps) / 2.0**53
        stand_in: Any = ConstantUniforms(uniform)
        rows = select_rows(event("poisson", rate), 1, stand_in)
        assert (len(rows) == 1) == chosen


def test_without_replacement_is_uniform_over_subsets():
    rng = np.random.default_rng(3)
    num_draws = 12_000
    counts = collections.Counter(
        tuple(select_rows(event("without_replacement", 0.4), 5, rng))
        for _ in range(num_draws)
    )
    subsets = list(itertools.combinations(range(5), 2))
    assert set(counts) == set(subsets)
    observed = [counts[subset] for subset in subsets]
    assert stats.chisquare(observed).pvalue > 1e-3


@pytest.mark.parametrize(("rate", "num_rows", "size"), [(1 / 3, 9, 3), (0.1, 70, 7)])
def test_fixed_sizes_survive_rounding_of_the_rate(rate, num_rows, size):
    rows = select_rows(
        event("without_replacement", rate), num_rows, np.random.default_rng(0)
    )
    assert len(rows) == len(set(rows)) == size


def test_every_quotient_of_two_numbers_of_rows_is_a_rate():
    for num_rows in (*range(1, 300), 10**6 + 3, 2**31 - 1):
        sizes = {1, num_rows // 3 + 1, num_rows // 2 + 1, max(1, num_rows - 1)}
        for size in sizes if num_rows > 300 else range(1, num_rows + 1):
            assert fixed_batch_size(size / num_rows, num_rows) == size


@pytest.mark.parametrize(
    ("rate", "num_rows"),
    # The last is the price of 99.99999999 rows, and 100 would be drawn.
    [(0.1, 15), (0.01, 10), (0.999, 10), (0.3333333333, 300)],
)
def test_fixed_sizes_must_be_whole(rate, num_rows):
    with pytest.raises(ValueError, match=r"whole number of rows.*Replacement\(\d"):
        select_rows(
            event("without_replacement", rate), num_rows, np.random.default_rng(0)
        )


@pytest.mark.parametrize("num_rows", [0, 1, 4, 5, 11])
@pytest.mark.parametrize("of", [range, np.arange])
def test_pieces_hold_each_row_once(num_rows, of):
    pieces = split_batch(of(100, 100 + num_rows), 4)
    assert len(pieces) == max(1, -(-num_rows // 4))
    assert all(len(piece) == 4 for piece in pieces[:-1])
    assert len(pieces[-1]) <= 4
    seen = np.concatenate(pieces)
    np.testing.assert_array_equal(seen, 100 + np.arange(num_rows))
    assert all(isinstance(piece, type(of(0))) for piece in pieces)


def test_coins_are_the_same_however_many_are_flipped_at_a_time(monkeypatch):
    def drawn():
        rng = SecureRandom(insecure_seed=0).sampling
        return select_rows(event("poisson", 0.3), 1000, rng)

    with pytest.warns(UserWarning, match="insecure_seed"):
        together = drawn()
        monkeypatch.setattr(batch_selection, "_COINS", 64)
        np.testing.assert_array_equal(drawn(), together)


@pytest.mark.parametrize(("num_rows", "number"), [(0, 3), (4, 3), (12, 3), (13, 4)])
def test_short_batches_take_as_many_chunks_as_the_longest_likely_one(num_rows, number):
    indices = 100 + np.arange(num_rows)
    pieces = split_batch(indices, 4, at_least=3)
    assert len(pieces) == number
    np.testing.assert_array_equal(np.concatenate(pieces), indices)


@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_chunk_sizes_are_positive_integers(size):
    with pytest.raises(ValueError, match="chunk_size"):
        split_batch(np.arange(3), size)
