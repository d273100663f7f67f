"""What noisy counts say together: against known priors, and in the limits."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from numpyro_vips.conjugacy.families import noisy_counts
from numpyro_vips.conjugacy.families.dirichlet import Dirichlet
from numpyro_vips.conjugacy.families.noisy_counts import expected_counts

read = jax.jit(expected_counts)


def expected(noisy: np.ndarray, noise_stddev: np.ndarray | float) -> np.ndarray:
    """As an M-step reads counts: compiled, in double precision."""
    with jax.enable_x64(True):
        stddev = np.broadcast_to(noise_stddev, noisy.shape)
        return np.asarray(read(jnp.asarray(noisy), jnp.asarray(stddev)))


def with_noise(
    counts: np.ndarray, noise_stddev: np.ndarray | float, seed: int = 0
) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=counts.shape)
    return counts + noise_stddev * noise


def error(found: np.ndarray, counts: np.ndarray) -> float:
    return float(np.mean((found - counts) ** 2))


def topics(rows: int = 12, cells: int = 1500, total: float = 4e5) -> np.ndarray:
    """Counts of words in topics: few words are frequent, and few topics large."""
    rng = np.random.default_rng(3)
    frequencies = 1.0 / np.arange(3.0, cells + 3.0)
    weights = rng.gamma(0.3, size=(rows, cells)) * frequencies
    sizes = rng.gamma(0.7, size=(rows, 1))
    weights *= sizes / weights.sum(1, keepdims=True)
    return np.asarray(rng.poisson(total * weights / weights.sum()), float)


# --- against known priors ---------------------------------------------------------


# Ratios of counts to what their totals let expect: none, or a log-normal number.
NONE = 0.4


def ratios(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.where(rng.random(shape) < NONE, 0.0, np.exp(rng.normal(size=shape)))


def oracle(noisy: np.ndarray, levels: np.ndarray, noise_stddev: float) -> np.ndarray:
    """The posterior means under that prior, by quadrature over the logarithm."""
    logs = np.linspace(-4.5, 4.5, 1501)
    counts = levels[:, None] * np.exp(logs)
    density = stats.norm.pdf(logs)
    weights = (1.0 - NONE) * density / density.sum()
    joint = weights * np.exp(-0.5 * ((noisy[:, None] - counts) / noise_stddev) ** 2)
    nothing = NONE * np.exp(-0.5 * (noisy / noise_stddev) ** 2)
    return (joint * counts).sum(1) / (joint.sum(1) + nothing)


@pytest.mark.thorough
@pytest.mark.parametrize("noise_stddev", [3.0, 12.0, 50.0])
def test_one_row_is_read_as_well_as_with_its_prior(noise_stddev: float) -> None:
    level = 25.0
    counts = level * ratios(np.random.default_rng(1), (4000,))
    noisy = with_noise(counts, noise_stddev)
    best = oracle(noisy, np.full(4000, level), noise_stddev)
    found = expected(noisy, noise_stddev)
    assert error(found, counts) < 1.02 * error(best, counts)
    # So are they one by one, near the noise and above it.
    assert np.sqrt(error(found, best)) < 0.15 * noise_stddev
    assert error(found, counts) < 0.95 * error(np.maximum(noisy, 0.0), counts)


@pytest.mark.thorough
@pytest.mark.parametrize("noise_stddev", [1.0, 4.0, 16.0])
def test_a_batch_is_read_nearly_as_well_as_with_its_prior(noise_stddev: float) -> None:
    rng = np.random.default_rng(2)
    sizes = 6.0 * np.geomspace(0.2, 5.0, 15)[:, None]
    levels = sizes * np.geomspace(5.0, 0.1, 800)
    counts = levels * ratios(rng, levels.shape)
    noisy = with_noise(counts, noise_stddev)
    rows = zip(noisy, levels, strict=True)
    best = np.array([oracle(*row, noise_stddev) for row in rows])
    # The prior knows the backgrounds, which are found here from totals with noise.
    assert error(expected(noisy, noise_stddev), counts) < 1.15 * error(best, counts)


def test_the_mixture_is_the_one_that_counts_are_from() -> None:
    rng, background = np.random.default_rng(4), 20.0
    counts = background * rng.choice([0.0, 1.0, 10.0], p=[0.6, 0.3, 0.1], size=20_000)
    level = jnp.asarray(with_noise(counts, 1.0), jnp.float32)
    place = jnp.full_like(level, background)
    density, _ = noisy_counts._components(level, place, level.max())
    weights = np.asarray(noisy_counts._mixture(density))
    grid = np.geomspace(
        noisy_counts._LEAST_RATIO, noisy_counts._LARGEST_RATIO, noisy_counts._POINTS
    )
    ratios = np.array([0.0, *grid])
    assert weights.shape == (len(ratios) + 1,) and weights.sum() == pytest.approx(1.0)
    below, about, above = np.split(weights[:-1], np.searchsorted(ratios, [0.25, 3.0]))
    np.testing.assert_allclose(below.sum(), 0.6, atol=0.02)
    np.testing.assert_allclose(about.sum(), 0.3, atol=0.02)
    np.testing.assert_allclose(above.sum(), 0.1, atol=0.02)
    # A ratio of one has its weight next to one.
    near = np.abs(np.log(grid)) < 0.5
    np.testing.assert_allclose(weights[1:-1][near].sum(), 0.3, atol=0.03)
    assert weights[-1] < 0.01


@pytest.mark.parametrize("level", [-3.0, -0.4, 0.0, 1.3, 6.0, 9.0])
def test_components_are_those_of_bayes_rule(level: float) -> None:
    background, widest = 2.5, 50.0
    density, towards = noisy_counts._components(
        jnp.array([level], jnp.float32),
        jnp.array([background], jnp.float32),
        jnp.asarray(widest, jnp.float32),
    )
    assert float(density[0, 0]) == pytest.approx(np.exp(-0.5 * level**2), rel=1e-4)
    assert float(towards[0, 0]) == pytest.approx(level)
    grid = np.geomspace(
        noisy_counts._LEAST_RATIO, noisy_counts._LARGEST_RATIO, noisy_counts._POINTS
    )
    centres = np.array([*(background * grid), 0.0])
    widths = np.array([*(noisy_counts._WIDTH * background * grid), widest])
    for number, (centre, width) in enumerate(zip(centres, widths, strict=True), 1):
        # Where the product of both Gaussians has its mass.
        spread = width / np.hypot(1.0, width)
        about = centre + (level - centre) * spread**2
        counts = about + spread * np.linspace(-10.0, 10.0, 2001)
        joint = stats.norm.pdf(level, counts, 1.0) * stats.norm.pdf(
            counts, centre, width
        )
        of_read = integrate.trapezoid(joint, counts)
        mean = integrate.trapezoid(joint * counts, counts) / of_read
        found = float(density[0, number]) / np.sqrt(2 * np.pi)
        np.testing.assert_allclose(found, of_read, rtol=1e-3, atol=1e-30)
        np.testing.assert_allclose(level - float(towards[0, number]), mean, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize(("size", "groups"), [(500, 1), (4000, 1), (120_000, 24)])
def test_cells_to_learn_from_are_spread_over_all(size: int, groups: int) -> None:
    rng = np.random.default_rng(10)
    place = jnp.asarray(rng.gamma(0.3, size=size), jnp.float32)
    members = np.asarray(noisy_counts._grouped(place, groups))
    chosen = np.unique(members)
    number = min(size, groups * noisy_counts._MOST_TO_LEARN_FROM)
    assert members.shape[0] == groups and len(chosen) == number
    share = np.histogram(chosen, bins=10, range=(0, size))[0] / number
    np.testing.assert_allclose(share, 0.1, atol=0.02)
    backgrounds = np.asarray(place)[members]
    assert (np.diff(backgrounds.ravel()) >= 0).all()


# --- on topics ----------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("noise_stddev", "share"), [(2.0, 0.85), (8.0, 0.65), (40.0, 0.35)]
)
def test_topics_are_read_better_than_without_negative_counts(
    noise_stddev: float, share: float
) -> None:
    counts = topics()
    noisy = with_noise(counts, noise_stddev)
    found = expected(noisy, noise_stddev)
    assert error(found, counts) < share * error(np.maximum(noisy, 0.0), counts)
    # Half of all empty cells read as the noise: what a topic would be made of.
    total = counts.sum()
    assert abs(found.sum() / total - 1) < 0.3 * (np.maximum(noisy, 0).sum() / total - 1)


def test_backgrounds_tell_more_than_a_prior_common_to_all_cells() -> None:
    counts = topics()
    noisy = with_noise(counts, 8.0)
    alone = expected(noisy.reshape(1, -1), 8.0).reshape(noisy.shape)
    assert error(expected(noisy, 8.0), counts) < 0.95 * error(alone, counts)


def test_noise_may_differ_by_cell() -> None:
    counts = topics()
    stddev = np.random.default_rng(5).choice([0.0, 2.0, 30.0], size=counts.shape)
    noisy = with_noise(counts, stddev)
    found = expected(noisy, stddev)
    np.testing.assert_array_equal(found[stddev == 0], counts[stddev == 0])
    for size in (2.0, 30.0):
        here = stddev == size
        projected = np.maximum(noisy[here], 0.0)
        assert error(found[here], counts[here]) < 0.85 * error(projected, counts[here])
    # One level for all is a worse account of the noise.
    same = expected(noisy, np.sqrt(np.mean(stddev**2)))
    assert error(found, counts) < 0.8 * error(same, counts)


# --- limits -------------------------------------------------------------------------


def test_without_noise_counts_are_what_they_are() -> None:
    counts = topics()
    np.testing.assert_array_equal(expected(counts, 0.0), counts)
    np.testing.assert_array_equal(
        expected(counts - 5.0, 0.0), np.maximum(counts - 5, 0)
    )


def test_less_and_less_noise_leaves_the_counts() -> None:
    counts = topics()
    before = np.inf
    for noise_stddev in (1.0, 1e-1, 1e-2, 1e-4, 1e-8, 1e-12):
        found = expected(with_noise(counts, noise_stddev), noise_stddev)
        largest = np.abs(found - counts).max()
        assert largest < min(before, 8.0 * noise_stddev)
        before = largest


def test_what_is_far_above_the_noise_is_what_was_read() -> None:
    counts = topics()
    noisy = with_noise(counts, 8.0)
    noisy[3, 700], noisy[5, 1400] = 1e5, 1e9
    found = expected(noisy, 8.0)
    np.testing.assert_allclose(found[3, 700], 1e5, atol=8.0)
    np.testing.assert_allclose(found[5, 1400], 1e9, atol=8.0)
    clear = noisy > 200 * 8.0
    assert clear.sum() > 20
    assert (np.abs(found - noisy)[clear] < 3 * 8.0).all()


@pytest.mark.thorough
def test_where_all_is_noise_counts_are_the_background() -> None:
    """The totals of rows and columns stand out of the noise, and no cell does."""
    rng = np.random.default_rng(6)
    shares = rng.dirichlet(np.full(40, 50.0))
    background = 3e3 * np.geomspace(1.0, 3.0, 400)[:, None] * shares
    noise_stddev = 600.0
    assert (background < noise_stddev).all()
    found = expected(with_noise(background, noise_stddev), noise_stddev)
    # What is left is of the totals, which have noise of their own.
    assert abs((found / background).mean() - 1) < 0.1
    assert np.sqrt(error(found, background)) < 0.2 * noise_stddev


@pytest.mark.thorough
def test_units_do_not_matter() -> None:
    counts = topics(rows=6, cells=300)
    noisy = with_noise(counts, 8.0)
    found = expected(noisy, 8.0)
    for unit in (1e-6, 2.0**9):
        other = expected(unit * noisy, unit * 8.0)
        np.testing.assert_allclose(other, unit * found, rtol=1e-3, atol=1e-3 * unit)


def test_rows_and_columns_may_come_in_any_order() -> None:
    rng, counts = np.random.default_rng(7), topics(rows=6, cells=300)
    noisy = with_noise(counts, 8.0)
    rows, columns = rng.permutation(6), rng.permutation(300)
    other = expected(noisy[rows][:, columns], 8.0)
    np.testing.assert_allclose(
        other, expected(noisy, 8.0)[rows][:, columns], rtol=1e-3, atol=1e-3
    )
    # Axes of the batch are rows, whichever they are.
    folded = expected(noisy.reshape(2, 3, 300), 8.0)
    np.testing.assert_allclose(folded.reshape(6, 300), expected(noisy, 8.0), rtol=1e-6)


# --- in the family ------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("in_double", [True, False])
@pytest.mark.parametrize("shape", [(100,), (3, 90), (2, 2, 400)])
def test_posteriors_are_legal_at_every_scale(
    shape: tuple[int, ...], in_double: bool
) -> None:
    rng, family = np.random.default_rng(8), Dirichlet()
    powers = (-30, -8, 0, 8, 30) if in_double else (-15, -4, 0, 4, 15)
    with jax.enable_x64(in_double):
        project = jax.jit(family.project)
        for size, noise in itertools.product(powers, repeat=2):
            stddev = 10.0**noise * rng.choice([0.0, 1.0, 30.0], size=shape)
            counts = 10.0**size * rng.choice([-1.0, 0.0, 1.0, 7.0], size=shape)
            data = counts + stddev * rng.standard_t(2, size=shape)
            prior = jnp.full(shape, 0.01 - 1.0)
            natural = project(
                {"log": prior}, {"log": jnp.asarray(data)}, {"log": jnp.asarray(stddev)}
            )
            concentration = np.asarray(family.parameters(natural)["concentration"])
            assert np.isfinite(concentration).all()
            assert (concentration > 0.009).all()
            assert (
                concentration.max()
                < 1.01 * (np.abs(data).max() + 30 * stddev.max()) + 1
            )


@pytest.mark.thorough
def test_many_cells_are_read_so_and_few_by_themselves() -> None:
    family, rng = Dirichlet(), np.random.default_rng(9)
    for cells in (64, 65):
        counts = rng.poisson(rng.gamma(0.3, 40.0, size=(8, cells))).astype(float)
        noisy = with_noise(counts, 10.0)
        zero = np.zeros_like(noisy)
        with jax.enable_x64(True):
            of = [{"log": jnp.asarray(v)} for v in (zero, noisy, zero + 10.0)]
            found = np.asarray(family.project(*of)["log"])
            kept = np.asarray(family.widened(of[1], of[2])["log"])
        is_many = cells > 64
        wanted = expected(noisy, 10.0) if is_many else np.maximum(noisy, 0.0)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        # One factor for all cells of a row goes with the reading by themselves alone.
        assert np.array_equal(kept, noisy) == is_many
