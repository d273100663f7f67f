"""What is read off noisy counts of norms."""

import math
from typing import Any

import numpy as np
import pytest

from numpyro_vips.fitting.bounds.norm_histogram import GRID_FACTOR, THRESHOLD, norm_grid
from numpyro_vips.fitting.bounds.seen_norms import (
    UNBALANCED,
    UNBALANCED_EXPOSED,
    Hidden,
    SeenNorms,
    middle_of_all,
    seen_norms,
)


def counts_of(norms: np.ndarray, edges: np.ndarray) -> np.ndarray:
    bins = np.searchsorted(edges, norms)
    return np.bincount(bins, minlength=len(edges) + 1).astype(float)


def norm_from_counts(
    counts: np.ndarray,
    edges: np.ndarray,
    *,
    relative_noise: float,
    alignment: float = 1.0,
    **settings: Any,
) -> float | None:
    """The norm that does least harm, where a histogram shows one."""
    seen = seen_norms(counts, edges, **settings)
    return None if seen is None else seen.least_harm(relative_noise, alignment)


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5, 1e18])
def test_without_noise_the_largest_norm_is_kept(scale):
    rng = np.random.default_rng(0)
    edges = norm_grid(1.0)
    norms = scale * rng.uniform(0.5, 3.0, 1000)
    found = norm_from_counts(
        counts_of(norms, edges),
        edges,
        noise_stddev=0.0,
        relative_noise=0.0,
        num_rows=1000,
    )
    assert found is not None
    assert norms.max() <= found <= norms.max() * GRID_FACTOR


def test_little_is_clipped_where_noise_is_dear():
    """The harm that is stated is least, by brute force."""
    rng = np.random.default_rng(1)
    edges = norm_grid(1.0)
    norms = rng.lognormal(0.0, 1.0, 10_000)
    found = [
        norm_from_counts(
            counts_of(norms, edges),
            edges,
            noise_stddev=1.0,
            relative_noise=noise,
            num_rows=10_000,
        )
        for noise in (1.0, 1e3, 1e5, 1e6)
    ]
    assert found == sorted(found, reverse=True)  # type: ignore[type-var]
    assert found[0] != found[-1]
    uppers = edges[np.searchsorted(edges, norms)]
    for noise, norm in zip((1e3, 1e5), found[1:3], strict=True):
        harm = [
            math.hypot(3.0 * np.maximum(uppers - c, 0.0).sum(), noise * c)
            for c in edges
        ]
        assert norm is not None
        least = edges[np.argmin(harm)]
        # Bins with few rows are lost in the noise.
        assert least / GRID_FACTOR**2 <= norm <= least * GRID_FACTOR * 1.001


def test_empty_bins_far_above_are_noise():
    """Some hundred empty bins: none of them may decide."""
    edges = norm_grid(1.0)
    norms = np.full(2000, 0.9)
    largest = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        noisy = counts_of(norms, edges) + rng.normal(0.0, 20.0, len(edges) + 1)
        found = norm_from_counts(
            noisy, edges, noise_stddev=20.0, relative_noise=10.0, num_rows=2000
        )
        assert found is not None
        largest.append(found)
    # Above the rows' own by the margin at most, but for a bin in some thousands.
    assert np.mean(np.array(largest) > 2.01) < 0.02
    assert min(largest) >= 0.9


@pytest.mark.parametrize("places", [15, 30])
@pytest.mark.parametrize("height", [6.0, 8.0])
def test_far_from_all_others_a_bin_has_to_stand_out_more(places: int, height: float):
    """Six standard deviations next to the others are rows, and far above them noise."""
    edges = norm_grid(1.0)
    counts = np.zeros(len(edges) + 1)
    one = int(np.searchsorted(edges, 1.0))
    counts[one] = 5_000.0
    counts[one + places] = height * 40.0
    found = norm_from_counts(
        counts, edges, noise_stddev=40.0, relative_noise=1.0, num_rows=10_000
    )
    assert found is not None
    assert (found > 100.0) == (places <= 20 or height > 7.0)


def test_few_rows_are_found_together_or_not_at_all():
    edges = norm_grid(1.0)
    rng = np.random.default_rng(2)
    stddev = 10.0
    # Spread over four bins, none of which stands out alone.
    norms = 2 ** rng.uniform(0.0, 2.0, int(3.2 * THRESHOLD * stddev))
    assert counts_of(norms, edges).max() < THRESHOLD * stddev
    found = norm_from_counts(
        counts_of(norms, edges),
        edges,
        noise_stddev=stddev,
        relative_noise=0.1,
        num_rows=200,
    )
    assert found is not None
    assert 2.0 <= found <= 16.01
    few = counts_of(norms[:20], edges)
    assert (
        norm_from_counts(
            few, edges, noise_stddev=stddev, relative_noise=1.0, num_rows=100
        )
        is None
    )


def test_rows_that_add_nothing_say_nothing():
    edges = norm_grid(1.0)
    counts = counts_of(np.zeros(1000), edges)
    assert (
        norm_from_counts(
            counts, edges, noise_stddev=1.0, relative_noise=1.0, num_rows=1000
        )
        is None
    )


def test_fewer_rows_than_the_noise_say_nothing():
    """A bin that stands out of such noise is noise."""
    edges = norm_grid(1.0)
    counts = np.zeros(len(edges) + 1)
    counts[10] = 1000.0
    found = norm_from_counts(
        counts, edges, noise_stddev=200.0, relative_noise=1.0, num_rows=8
    )
    assert found is None


def test_norms_spread_over_many_bins_are_seen_beside_one_that_stands_out():
    edges, stddev = norm_grid(1.0), 30.0
    counts = np.zeros(len(edges) + 1)
    one = int(np.searchsorted(edges, 0.9))
    counts[one] = 400.0
    # Twice as large and more, and 2.7 standard deviations each.
    counts[one + 1 : one + 9] = 80.0
    found = norm_from_counts(
        counts, edges, noise_stddev=stddev, relative_noise=0.1, num_rows=1040
    )
    assert found == pytest.approx(edges[one + 8])


def test_spread_out_norms_of_a_thousand_rows_cost_little():
    """How much worse it is than the best norm, in the geometric mean over fits."""
    edges, ratios = norm_grid(1.0), []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        norms = rng.lognormal(0.0, 1.0, 1000)
        counts = counts_of(norms, edges) + rng.normal(0.0, 31.0, len(edges) + 1)
        found = norm_from_counts(
            counts, edges, noise_stddev=31.0, relative_noise=14.0, num_rows=1000
        )
        assert found is not None
        harm = [
            math.hypot(3.0 * np.maximum(norms - c, 0.0).sum(), 14.0 * c)
            for c in (found, *edges)
        ]
        ratios.append(harm[0] / min(harm))
    assert np.exp(np.mean(np.log(ratios))) < 3.4


@pytest.mark.parametrize(("seen", "replaces"), [(500, False), (900, True)])
def test_a_later_histogram_replaces_a_norm_only_if_it_shows_most_rows(seen, replaces):
    edges = norm_grid(1.0)
    counts = counts_of(np.full(seen, 0.9), edges)
    assert (
        norm_from_counts(
            counts,
            edges,
            noise_stddev=20.0,
            relative_noise=1.0,
            num_rows=1000,
            is_known=True,
        )
        is not None
    ) == replaces


@pytest.mark.thorough
def test_a_known_norm_is_not_lost_to_chance():
    """Where rows are hidden, a wide window of noise may hold as much as all of them."""
    rng, edges = np.random.default_rng(0), norm_grid(1.0)
    rows = counts_of(rng.lognormal(0.0, 2.0, 1_000), edges)
    taken = []
    for _ in range(3_000):
        found = norm_from_counts(
            rows + 65.0 * rng.normal(size=len(rows)),
            edges,
            noise_stddev=65.0,
            relative_noise=10.0,
            num_rows=1_000,
            is_known=True,
            reference=1.0,
        )
        taken += [] if found is None else [found]
    assert max(taken, default=1.0) < 1e4


def test_a_tail_under_the_noise_is_expected_but_not_where_all_rows_are_seen():
    """Its sum was clipped by a third, without a sign of it."""
    edges = norm_grid(1.0)

    def found(norms: np.ndarray) -> float:
        counts = counts_of(norms, edges)
        # All but the largest ones are hidden; noise has left nothing of these.
        counts[counts < 60.0] = 0.0
        norm = norm_from_counts(
            counts, edges, noise_stddev=20.0, relative_noise=5.0, num_rows=5000
        )
        assert norm is not None
        return norm

    squares = np.random.default_rng(0).standard_t(4, 5000) ** 2
    seen = np.flatnonzero(counts_of(squares, edges) >= 60.0)[-1]
    assert found(squares) > 1.4 * edges[seen]
    assert found(np.full(5000, 0.9)) == pytest.approx(1.0, rel=1e-4)


def test_rows_that_add_nothing_are_seen_too():
    edges = norm_grid(1.0)
    counts = counts_of(np.repeat([0.9, 0.0], [300, 700]), edges)
    found = norm_from_counts(
        counts,
        edges,
        noise_stddev=20.0,
        relative_noise=1.0,
        num_rows=1000,
        is_known=True,
    )
    assert found == pytest.approx(1.0, rel=1e-4)


def test_pure_noise_says_nothing():
    edges = norm_grid(1.0)
    alarms = 0
    for seed in range(1000):
        counts = np.random.default_rng(seed).normal(0.0, 30.0, len(edges) + 1)
        alarms += (
            norm_from_counts(
                counts, edges, noise_stddev=30.0, relative_noise=10.0, num_rows=10_000
            )
            is not None
        )
    assert alarms <= 10


def test_near_the_norm_of_synthetic_rows_less_is_enough() -> None:
    """Few rows at a small budget: what is found is better than what is assumed."""
    edges, found, missed = norm_grid(1.0), [], 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        norms = 5.0 * rng.normal(size=(300, 3)) ** 2
        counts = counts_of(norms.sum(1), edges)
        counts += rng.normal(0.0, 31.0, len(edges) + 1)
        of = {"noise_stddev": 31.0, "relative_noise": 14.0, "num_rows": 300}
        missed += norm_from_counts(counts, edges, **of) is None
        found.append(norm_from_counts(counts, edges, reference=1.0, **of))
    assert missed > 30
    # Most rows are between 5 and 50, and those of unit size at 1.
    assert np.mean([norm is not None and 5.0 < norm < 100.0 for norm in found]) > 0.5


def test_pure_noise_rarely_says_something_near_the_norm_of_synthetic_rows() -> None:
    edges, found = norm_grid(1.0), []
    for seed in range(1000):
        counts = np.random.default_rng(seed).normal(0.0, 30.0, len(edges) + 1)
        norm = norm_from_counts(
            counts,
            edges,
            noise_stddev=30.0,
            relative_noise=10.0,
            num_rows=10_000,
            reference=1.0,
        )
        found += [] if norm is None else [norm]
    assert len(found) < 40


def test_noise_far_above_is_not_taken_for_a_tail():
    """Also where rows in the bins below stand out."""
    rng = np.random.default_rng(2)
    edges, stddev = norm_grid(1.0), 37.0
    found = []
    for _ in range(200):
        counts = counts_of(np.exp(0.8 * rng.normal(size=1000)), edges)
        noisy = counts + stddev * rng.normal(size=len(counts))
        norm = norm_from_counts(
            noisy,
            edges,
            noise_stddev=stddev,
            relative_noise=7.0,
            num_rows=1000,
            alignment=0.4,
        )
        found.append(norm)
    # 99.9 % of the norms are below 12.
    assert sum(norm > 12.0 for norm in found) <= 4


def _of_residuals(share: float, hidden: Hidden | None) -> float:
    """A norm of residuals of labels of which this share is 1, with chances right."""
    rng, rows, noise = np.random.default_rng(5), 10_000, 40.0
    edges = norm_grid(1.0)
    size = rng.lognormal(0.0, 0.3, rows)
    label = rng.random(rows) < share
    norms = size * np.where(label, 1 - share, share)
    counts = counts_of(norms, edges)
    found = norm_from_counts(
        counts + noise * rng.normal(size=counts.shape),
        edges,
        noise_stddev=noise,
        relative_noise=40.0,
        num_rows=rows,
        alignment=0.5,
        is_known=True,
        hidden=hidden,
    )
    assert found is not None
    return found


def test_rows_that_the_noise_hides_are_not_clipped_to_the_norm_of_the_others():
    """As many as the squares of the rows that are seen lack; see `Hidden`."""
    share = 0.01
    squares = 10_000 * share * (1 - share) * math.exp(2 * 0.3**2)
    assert _of_residuals(share, None) < 0.1
    assert _of_residuals(share, Hidden(squares, 2.0)) >= 1.0


def test_what_is_seen_is_not_looked_for_elsewhere():
    share = 0.4
    squares = 10_000 * share * (1 - share) * math.exp(2 * 0.3**2)
    without = _of_residuals(share, None)
    assert _of_residuals(share, Hidden(squares, 20.0)) == without
    assert _of_residuals(share, Hidden(0.0, 20.0)) == without


def test_noise_below_what_rows_leave_open_is_worth_no_clipping():
    """Gradients of a Gaussian mean; nobody redraws rows."""
    edges, number = norm_grid(1.0), 20_000
    gradients = np.abs(np.random.default_rng(0).normal(size=number))
    counts = counts_of(gradients, edges)
    found = seen_norms(counts, edges, noise_stddev=0.0, num_rows=number)
    assert found is not None
    sampling = math.sqrt(np.sum(gradients**2))
    noises = sampling * np.array([0.02, 20.0])
    harms = np.array([found.least_harm(noise, 1.0) for noise in noises])
    errors = np.array([found.least_error(noise, 1.0, 1) for noise in noises])
    # Intervals are wider by an eighth at most.
    width = math.hypot(sampling, noises[0] * errors[0])
    assert width < 1.13 * math.hypot(sampling, noises[0] * harms[0])
    # Gradients that are a little longer later on are not clipped.
    assert errors[0] == pytest.approx(2.0 * harms[0], rel=1e-3)
    # Where noise is all there is, the norm is near the one of least harm.
    assert errors[1] <= 2.0 * harms[1]


@pytest.mark.parametrize(("num_directions", "longest"), [(1, 5.0), (4, 3.0), (64, 1.5)])
def test_norms_have_room_for_gradients_that_noise_hides(num_directions, longest):
    """A histogram that shows rows of one norm alone says nothing of longer ones."""
    edges = norm_grid(1.0)
    counts = np.zeros(len(edges) + 1)
    place = np.searchsorted(edges, 1.0)
    counts[place] = 500.0
    found = seen_norms(counts, edges, noise_stddev=5.0, num_rows=500)
    assert found is not None
    # Of 500 gradients of length 1 the sum varies by 22.
    norm = found.least_error(5.0, 1.0, num_directions)
    assert norm / found.middle >= 0.99 * longest / math.sqrt(2)
    assert norm / found.middle <= max(longest, 2.001)
    # Much noise is not made larger than twice as much.
    norm = found.least_error(500.0, 1.0, num_directions)
    assert norm <= 2.001 * found.least_harm(500.0, 1.0)


def test_the_norm_of_redrawn_steps_has_the_least_variance():
    """Of a Gaussian mean, by brute force: simulated sums, at many norms."""
    rng = np.random.default_rng(0)
    edges, number, repetitions = norm_grid(1.0), 400, 1_000
    rows = rng.normal(size=(20_000, 2)) @ np.array([1.0, -1.0])
    counts = counts_of(np.abs(rows), edges)
    noise = 30.0
    found = seen_norms(counts, edges, noise_stddev=0.0, num_rows=len(rows))
    assert found is not None
    # Of so many rows as there are in a simulated sum.
    few = SeenNorms(found.uppers, found.rows * number / len(rows))
    chosen = few.least_variance(noise, unbalanced=0.0)  # The model is right.

    # The same ones for all norms, so that they differ by these alone.
    own, other = rng.normal(size=(2, repetitions, number))

    def variance(norm: float) -> float:
        def sums(shift: float) -> np.ndarray:
            # Redrawn rows are drawn anew in every step, and average out.
            difference = own[:, :, None] + shift - other[:50].T[None, :, :8]
            return np.clip(difference, -norm, norm).mean(2).sum(1)

        slope = np.mean(sums(0.05) - sums(-0.05)) / 0.1
        return float((np.var(sums(0.0)) + (noise * norm) ** 2) / slope**2)

    least = min(variance(norm) for norm in 2.0 ** np.arange(-3.0, 3.0, 0.5))
    assert variance(chosen) < 1.03 * least
    # Much noise makes it small, and none makes it large; small ones are nearly alike.
    small, large = (few.least_variance(n, unbalanced=0.0) for n in (1e4, 1e-3))
    assert small < 0.3 < 2.5 < large


def test_with_many_rows_redrawn_steps_clip_next_to_nothing():
    """No model is quite right, and a bias does not become smaller with more rows."""
    edges = norm_grid(1.0)
    rows = np.random.default_rng(0).lognormal(0.0, 1.0, 20_000)
    found = seen_norms(
        counts_of(rows, edges), edges, noise_stddev=0.0, num_rows=len(rows)
    )
    assert found is not None
    clipped = []
    for factor in (0.01, 1.0, 100.0):
        many = SeenNorms(found.uppers, factor * found.rows)
        clipped.append(np.mean(rows > many.least_variance(30.0)))
    assert clipped[0] > 0.3 > 0.05 > clipped[1] > clipped[2]
    assert clipped[2] < 0.001


def test_where_redrawn_rows_may_be_unlike_the_data_fewer_rows_are_clipped():
    edges = norm_grid(1.0)
    rows = np.random.default_rng(0).lognormal(0.0, 0.5, 20_000)
    found = seen_norms(
        counts_of(rows, edges), edges, noise_stddev=0.0, num_rows=len(rows)
    )
    assert found is not None
    sure, unsure = (
        np.mean(rows > found.least_variance(100.0, unbalanced))
        for unbalanced in (UNBALANCED, UNBALANCED_EXPOSED)
    )
    assert unsure < 0.5 * sure


@pytest.mark.parametrize("number", [3, 20])
@pytest.mark.parametrize("noise", [0.1, 30.0, 1e3, 1e6])
def test_the_norm_of_least_loss_is_that_by_hand(noise, number):
    """Nine rows in ten say one of one coordinate, the others 100 of another."""
    edges = norm_grid(1.0)
    norms = np.repeat([0.9, 90.0], [9_000, 1_000])
    counts = counts_of(norms, edges)
    found = seen_norms(counts, edges, noise_stddev=0.0, num_rows=10_000)
    assert found is not None
    chosen = found.least_loss(noise, number)

    def loss(norm: float) -> float:
        clipped = np.maximum(norms - norm, 0.0).sum() / norms.sum()
        hidden = 8.0 * noise * norm / (10_000 * 0.9)
        return float(clipped + hidden * min(1.0, max(hidden, number / 14)))

    # On a grid, whose norms are rounded up.
    best = min(loss(norm) for norm in edges if norm > 1.8)
    assert loss(chosen) < best + 0.1 * abs(best) + 0.02
    assert (chosen > 50.0) == (noise < 10.0) and 1.8 < chosen < 200.0


def test_what_clipping_keeps():
    edges = norm_grid(1.0)
    uppers = np.append(edges[1:], edges[-1] * GRID_FACTOR)
    rows = np.zeros(len(uppers))
    one = int(np.argmin(abs(uppers - 1.0)))
    middle = uppers[one] / math.sqrt(GRID_FACTOR)
    rows[[one, one + 4]] = 30.0, 10.0  # Four bins above norms are four times as long.
    rows[one - 20] = -3.0  # Noise.
    kept = SeenNorms(uppers, rows).kept(middle)
    assert kept.slope == pytest.approx((30.0 + 10.0 / 4.0) / 40.0)
    assert kept.square == pytest.approx((30.0 + 10.0 / 16.0) / 40.0)
    # Of the long ones, 16 times the square, a quarter is left of the slope.
    slopes, squares = 30.0 + 10.0 * 16.0 / 4.0, 30.0 + 10.0 * 16.0 / 16.0
    assert kept.variance_per_slope == pytest.approx(squares / slopes)
    assert SeenNorms(uppers, rows).kept(1e6) == pytest.approx((1.0, 1.0, 1.0))
    assert SeenNorms(uppers, rows).middle == pytest.approx(uppers[one])


def test_the_middle_of_norms_that_are_spread_over_all_bins():
    """No bin stands out of the noise, nor do eight; half of the bins do."""
    rng = np.random.default_rng(0)
    edges, number, noise = norm_grid(1.0), 4_000, 40.0
    norms = 10.0 ** rng.uniform(-6.0, 18.0, number)
    exact = counts_of(norms, edges)
    found = []
    for _ in range(100):
        counts = exact + rng.normal(0.0, noise, len(exact))
        settings = {"noise_stddev": noise, "num_rows": number}
        assert seen_norms(counts, edges, is_known=True, **settings) is None
        middle = middle_of_all(counts, edges, **settings)
        assert middle is not None
        found.append(float(np.mean(norms <= middle)))
    assert 0.4 < np.mean(found) < 0.55
    assert np.quantile(found, [0.02, 0.98]) == pytest.approx(0.5, abs=0.25)
    # With a fourth of the rows the noise hides this, too.
    counts = exact / 4.0 + rng.normal(0.0, noise, len(exact))
    assert middle_of_all(counts, edges, noise_stddev=noise, num_rows=1_000) is None


def test_rows_that_add_nothing_are_not_in_the_middle():
    edges = norm_grid(1.0)
    counts = counts_of(np.array([0.0] * 3_000 + [2.0] * 1_000), edges)
    middle = middle_of_all(counts, edges, noise_stddev=1.0, num_rows=4_000)
    assert middle is not None
    assert 2.0 <= middle <= 2.0 * GRID_FACTOR


def test_rows_that_are_near_win_over_noise_that_is_far() -> None:
    """Of rows that stand out of the noise in wide windows alone.

    In the bins of a billion times their norm the noise stands out a little more.
    """
    edges, noise = norm_grid(1.0), 70.0
    uppers = np.append(edges[1:], edges[-1] * GRID_FACTOR)
    counts = np.zeros(len(edges) + 1)
    near, far = (1 + int(np.argmin(abs(uppers - place))) for place in (1.0, 1e9))
    counts[near : near + 8] = 1.5 * noise  # 1.5 √8 = 4.2 standard deviations.
    counts[far : far + 8] = 1.7 * noise
    settings = {"noise_stddev": noise, "num_rows": 1_000}
    assert seen_norms(counts, edges, **settings) is None
    seen = seen_norms(counts, edges, reference=1.0, **settings)
    assert seen is not None and seen.middle < 30.0
    # What is far needs to stand out by one standard deviation more,
    counts[near : near + 8] = 1.3 * noise
    seen = seen_norms(counts, edges, reference=1.0, **settings)
    assert seen is not None and seen.middle > 1e8
    # and does so by itself with nothing near.
    counts[near : near + 8] = 0.0
    seen = seen_norms(counts, edges, reference=1.0, **settings)
    assert seen is not None and seen.middle > 1e8
    assert seen_norms(counts, edges, reference=1.0, is_known=True, **settings) is None


@pytest.mark.parametrize("draw", ["standard_normal", "standard_exponential"])
def test_squares_are_as_a_histogram_of_their_own_shows_them(draw):
    norms = np.abs(getattr(np.random.default_rng(0), draw)(100_000))
    edges = norm_grid(1.0)
    settings: Any = {"noise_stddev": 0.0, "num_rows": len(norms)}
    found = seen_norms(counts_of(norms, edges), edges, **settings)
    assert found is not None
    squares = found.of_squares(0.5)
    direct = 0.5 * norms**2
    ratios = squares.uppers[1:] / squares.uppers[:-1]
    np.testing.assert_allclose(ratios, GRID_FACTOR, rtol=1e-6)
    assert squares.rows.sum() == pytest.approx(found.rows.sum())
    # How many rows are larger than an edge is known at every other one.
    larger = np.array([np.sum(direct > upper) for upper in squares.uppers])
    read = np.array([squares.rows[i + 1 :].sum() for i in range(len(larger))])
    np.testing.assert_allclose(read[1::2], larger[1::2], atol=2.0)
    np.testing.assert_allclose(read, larger, rtol=0.1, atol=0.003 * len(norms))
    for noise in (1e2, 1e4):
        exact = seen_norms(counts_of(direct, edges), edges, **settings)
        assert exact is not None
        assert 0.49 < squares.least_harm(noise) / exact.least_harm(noise) < 2.01
