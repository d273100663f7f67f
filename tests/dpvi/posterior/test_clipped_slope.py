"""How much clipped differences to redrawn rows move with the globals."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _dpvi_engines import engine_for
from _fits import vi_of
from scipy import stats

import numpyro_vips as nv
from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.dpvi.gradients.clipped_gradients import _PAIRS as PAIRS
from numpyro_vips.dpvi.gradients.redrawn_rows import redrawing
from numpyro_vips.dpvi.iterates import DpviState
from numpyro_vips.dpvi.posterior.clipped_slope import variance_if_gaussian
from numpyro_vips.fitting.bounds.norm_histogram import GRID_FACTOR, norm_grid
from numpyro_vips.fitting.bounds.seen_norms import SeenNorms
from numpyro_vips.handlers import private
from numpyro_vips.jax_tools.random_keys import as_threefry
from numpyro_vips.jax_tools.row_sums import increasing_edges
from numpyro_vips.privacy.releases import INFORMATION
from numpyro_vips.vips.m_step.noisy_information import Information

NUM_ROWS = 70
NORM = 1.5
AT = np.array([0.4, -0.1])


@private(unit="people")
def tailed(x: Any, y: Any) -> None:
    level: Any = numpyro.sample("level", dist.Normal(0.0, 1.0))
    slope: Any = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.StudentT(3.0, level + slope * x, 1.0), obs=y)


def table(num_rows: int = NUM_ROWS, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=num_rows).astype(np.float32)
    y = AT[0] + AT[1] * x + rng.standard_t(3.0, num_rows)
    return {"x": x, "y": y.astype(np.float32)}


def keys_of(rows: dict[str, np.ndarray], seed: int = 1) -> np.ndarray:
    draws = np.random.default_rng(seed)
    return draws.integers(0, 2**32, (len(rows["y"]), 2), np.uint32)


def engine_of(rows: dict[str, np.ndarray]) -> DpviEngine:
    return engine_for(tailed, rows["x"], rows["y"])


def state_of(engine: DpviEngine, norm: float = NORM) -> DpviState:
    """Both the iterate and the average are there, without noise about them."""
    state = engine.initial_state(jax.random.key(0))
    guide = dict(state.average.guide)
    units = np.array([site.unit for site in engine.space.sites])
    guide["loc"] = jnp.asarray(AT / units, jnp.float32)
    guide["log_scale"] = jnp.full(2, -80.0, jnp.float32)
    at = state.average._replace(guide=guide)
    state = state._replace(average=at, variational=at)
    return engine.with_bound(state, {"loc": 2.0}, 2.0 * norm, 1.0)


def summed(
    rows: dict[str, np.ndarray],
    keys: np.ndarray,
    clipping_norm: float = np.inf,
    *,
    name: str = INFORMATION,
    norm: float = NORM,
    mask: Any = None,
) -> np.ndarray:
    engine = engine_of(rows)
    found = engine.bounded_sum(
        state_of(engine, norm),
        rows,
        np.ones(len(keys), bool) if mask is None else mask,
        scales={name: 1.0},
        clipping_norm=clipping_norm,
        row_keys=keys,
    )
    return np.asarray(found[name])


def differences(rows: dict[str, np.ndarray], keys: np.ndarray) -> np.ndarray:
    """d, by row and pair: of the scores of two rows drawn in its place."""
    engine = engine_of(rows)
    redraw: Any = redrawing(engine.program.graph, engine.space)
    state = state_of(engine)
    assert state.coordinates is not None
    tree = (engine.space.split(state.average.guide["loc"]), {})
    coordinates = np.asarray(state.coordinates.units)
    units = np.array([site.unit for site in engine.space.sites])
    level, slope = AT.tolist()

    def score(row: Any) -> np.ndarray:
        x, y = float(row["x"]), float(row["y"])
        away = y - level - slope * x
        by_location = 4.0 * away / (3.0 + away**2)
        in_globals = units * by_location * np.array([1.0, x])
        return in_globals @ coordinates

    drawing = jax.jit(
        lambda row, keys: jax.vmap(lambda key: redraw(tree, row, key))(keys)
    )
    found: list[np.ndarray] = []
    for number, bits in enumerate(keys):
        row = {name: of[number] for name, of in rows.items()}
        pairs: list[Any] = []
        both: Any = jax.random.split(as_threefry(bits), (2, PAIRS))
        for of_pairs in (both[0], both[1]):
            drawn = drawing(row, of_pairs)
            each = zip(np.asarray(drawn["x"]), np.asarray(drawn["y"]), strict=True)
            pairs.append([score({"x": x, "y": y}) for x, y in each])
        found.append(np.subtract(*pairs))
    return np.array(found)


def matrices(d: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(d, axis=-1)
    assert 0.2 < np.mean(lengths > NORM) < 0.8
    weights = 0.5 * np.minimum(1.0, NORM / lengths) / d.shape[1]
    return np.einsum("nk,nki,nkj->nij", weights, d, d)


def test_a_row_adds_half_of_clipped_differences_times_differences() -> None:
    rows = table()
    keys = keys_of(rows)
    of_rows = matrices(differences(rows, keys))
    np.testing.assert_allclose(summed(rows, keys), of_rows.sum(0), rtol=1e-4)
    # And where the matrices are clipped themselves.
    norms = np.linalg.norm(of_rows, axis=(1, 2))
    bound = float(np.median(norms))
    expected = np.einsum("n,nij->ij", np.minimum(1.0, bound / norms), of_rows)
    found = summed(rows, keys, bound)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    np.testing.assert_array_equal(found, found.T)


def test_it_does_not_depend_on_what_a_row_observes() -> None:
    """Data that vary more than the model would make it larger, intervals narrower."""
    rows = table()
    keys = keys_of(rows)
    expected = summed(rows, keys)
    rows["y"] *= 30.0
    np.testing.assert_array_equal(summed(rows, keys), expected)
    rows["y"][4] = np.nan
    without = {name: np.delete(of, 4, 0) for name, of in rows.items()}
    np.testing.assert_allclose(
        summed(rows, keys), summed(without, np.delete(keys, 4, 0)), rtol=1e-12
    )


def test_norms_are_counted_as_they_are_clipped_by() -> None:
    rows = table()
    keys = keys_of(rows)
    norms = np.linalg.norm(matrices(differences(rows, keys)), axis=(1, 2))
    edges = np.geomspace(1e-2, 1e1, 41)
    engine = engine_of(rows)
    found = engine.norm_counts(
        state_of(engine),
        rows,
        np.ones(NUM_ROWS, bool),
        parts={INFORMATION: (INFORMATION,)},
        edges={INFORMATION: increasing_edges(edges)},
        row_keys=keys,
    )
    expected = np.bincount(np.searchsorted(edges, norms), minlength=len(edges) + 1)
    assert np.count_nonzero(expected) > 2
    np.testing.assert_array_equal(found[INFORMATION], [*expected, 0])


@pytest.mark.optimized
def test_a_row_adds_at_most_the_clipping_norm() -> None:
    """Neighbouring data sets: with and without a row, ordinary or absurd."""
    rows, bound, moved = table(), 0.3, []
    keys = keys_of(rows)
    without = {name: np.delete(of, 5, 0) for name, of in rows.items()}
    less = summed(without, np.delete(keys, 5, 0), bound)
    absurd = ((1.0, 9.0), (1e3, 0.0), (1e30, 1e30), (1e20, -1e-20), (0.0, np.inf))
    for x, y in (*absurd, (np.nan, 0.0)):
        rows["x"][5], rows["y"][5] = x, y
        for norm in (NORM, 1e-10, np.inf):
            base = less if norm == NORM else None
            if base is None:
                base = summed(without, np.delete(keys, 5, 0), bound, norm=norm)
            found = summed(rows, keys, bound, norm=norm)
            assert np.isfinite(found).all()
            moved.append(np.linalg.norm(found - base))
    assert max(moved) <= bound
    assert max(moved) > 0.999 * bound


def test_masked_rows_add_nothing() -> None:
    rows = table()
    keys = keys_of(rows)
    mask = np.arange(NUM_ROWS) >= 3
    fewer = {name: of[3:] for name, of in rows.items()}
    np.testing.assert_allclose(
        summed(rows, keys, 0.5, mask=mask), summed(fewer, keys[3:], 0.5), rtol=1e-12
    )


@pytest.mark.thorough
def test_it_is_how_much_clipped_sums_move_with_the_truth() -> None:
    """Data from a truth nearby, with the globals at which rows are redrawn held."""
    count, away = 400_000, 0.05

    def data(shift: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        x = rng.normal(size=count).astype(np.float32)
        level, slope = AT + shift
        y = level + slope * x + rng.standard_t(3.0, count)
        return {"x": x, "y": y.astype(np.float32)}

    rows = data(np.zeros(2), 0)
    slope = summed(rows, keys_of(rows)) / count
    state = state_of(engine_of(rows))
    assert state.coordinates is not None
    # Of the coordinates that gradients are in.
    units = np.diag(state.coordinates.units)
    for axis, shift in enumerate(away * np.eye(2)):
        ends = [data(sign * shift, 1) for sign in (1.0, -1.0)]
        up, down = (summed(r, keys_of(r), NORM, name="loc") / count for r in ends)
        moved = (up - down) / (2.0 * away) * units[axis]
        np.testing.assert_allclose(moved, slope[:, axis], atol=0.01)


def scores_of(case: str) -> np.ndarray:
    """Scores at the truth, by row, draw of what it observes, and coordinate.

    In coordinates in which rows inform as much about each.
    """
    rng = np.random.default_rng(2)
    rows, draws = 1000, 24
    shape = rows, draws
    x = np.stack([np.ones(rows), rng.normal(size=rows)], axis=-1)
    if case == "Gaussian mean":
        by_site = rng.normal(size=(*shape, 1))
    elif case == "three Gaussian means":
        by_site = rng.normal(size=(*shape, 3))
    elif case == "Gaussian mean and scale":
        z = rng.normal(size=shape)
        by_site = np.stack([z, z**2 - 1.0], axis=-1)
    elif case == "Poisson regression":
        mean = np.exp(x @ [1.0, 0.5])[:, None]
        by_site = (rng.poisson(mean, shape) - mean)[..., None] * x[:, None]
    elif case == "logistic regression":
        chance = 1.0 / (1.0 + np.exp(-x @ [0.5, 1.0]))[:, None]
        by_site = ((rng.random(shape) < chance) - chance)[..., None] * x[:, None]
    else:
        assert case == "Student t"
        z = rng.standard_t(4.0, shape)
        location = 5.0 * z / (4.0 + z**2)
        by_site = np.stack([location, location * z - 1.0], axis=-1)
    information = np.einsum("nmi,nmj->ij", by_site, by_site) / (rows * draws)
    return by_site @ np.linalg.cholesky(np.linalg.inv(information))


@pytest.mark.parametrize("share_clipped", [0.0, 0.2, 0.5, 0.9])
@pytest.mark.parametrize(
    "case",
    [
        *("Gaussian mean", "three Gaussian means", "Gaussian mean and scale"),
        *("Poisson regression", "logistic regression", "Student t"),
    ],
)
def test_the_variance_of_clipped_scores_goes_with_their_slope(
    case: str, share_clipped: float
) -> None:
    """κ S stands for B = Cov E[clip(d) | y], so that S⁻¹ B S⁻¹ is about κ S⁻¹."""
    scores = scores_of(case)
    rows, draws, _ = scores.shape
    d = scores[:, :, None] - scores[:, None]
    lengths = np.linalg.norm(d, axis=-1)
    bound = float(np.quantile(lengths[lengths > 0], 1.0 - share_clipped))
    factors = np.minimum(1.0, bound / np.maximum(lengths, 1e-300))
    clipped = factors[..., None] * d
    pairs = rows * draws * (draws - 1)
    slope = 0.5 * np.einsum("nklj,nkli->ij", clipped, d) / pairs
    # Of two redrawn rows each; pairs of one and the same are taken off.
    sums = clipped.sum(axis=2)
    both = np.einsum("nki,nkj->ij", sums, sums)
    both -= np.einsum("nkli,nklj->ij", clipped, clipped)
    variance = both / (pairs * (draws - 2))
    true = np.sort(np.linalg.eigvals(np.linalg.solve(slope, variance)).real)

    edges = norm_grid(1.0)
    uppers = np.append(edges[1:], edges[-1] * GRID_FACTOR)
    bins = np.searchsorted(uppers, lengths[lengths > 0])
    counts = np.bincount(bins, minlength=len(uppers)).astype(float)
    seen = SeenNorms(uppers, counts).kept(bound).variance_per_slope
    gaussian = variance_if_gaussian(Information(rows * slope, 0.0), bound, rows)
    if not share_clipped:
        assert seen == pytest.approx(1.0, abs=0.02)
        assert gaussian == pytest.approx(1.0, abs=0.02)
        np.testing.assert_allclose(true, 1.0, atol=0.02)
        return
    # Intervals are not much too narrow in any direction, nor too wide on average.
    assert np.sqrt(seen / true[-1]) > 0.92
    assert np.sqrt(gaussian / true[-1]) > 0.97
    assert np.sqrt(seen / true.mean()) < 1.25
    assert np.sqrt(gaussian / true.mean()) < 1.35


def test_where_nothing_is_known_of_lengths_the_variance_is_the_slope() -> None:
    hidden = Information(-np.eye(2), 1.0)
    assert variance_if_gaussian(hidden, 1.0, 100) == 1.0
    seen = Information(np.eye(2), 1.0)
    assert variance_if_gaussian(seen, np.inf, 100) == 1.0
    # Hardly any row reaches the norm, or all exceed it by far.
    assert variance_if_gaussian(seen, 1e9, 100) == pytest.approx(1.0)
    assert variance_if_gaussian(seen, 1e-9, 100) == pytest.approx(2.5e-17, rel=0.01)


@pytest.mark.thorough
def test_intervals_of_a_probit_are_not_far_from_those_without_privacy() -> None:
    """With one pair of redrawn rows, in place of 16, they were 4 to 5 times as wide."""

    def probit(X: Any, y: Any) -> None:
        w: Any = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        chance = jnp.clip(jax.scipy.stats.norm.cdf(X @ w), 1e-6, 1.0 - 1e-6)
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Bernoulli(probs=chance), obs=y)

    ratios, of_data, errors = [], [], []
    for seed in range(2, 6):
        rng = np.random.default_rng(seed)
        w, X = rng.normal(size=3), rng.normal(size=(1000, 3)).astype(np.float32)
        y = (X @ w + rng.normal(size=1000) > 0).astype(np.int32)
        result = vi_of(probit, engine="dpvi").run(jax.random.key(seed), X, y)
        eta: Any = X @ w
        weights = stats.norm.pdf(eta) ** 2 / (stats.norm.cdf(eta) * stats.norm.sf(eta))
        exact = np.linalg.inv(np.eye(3) + X.T @ (weights[:, None] * X))
        draws = np.asarray(result.sample_posterior(jax.random.key(1), (1000,))["w"])
        posterior: Any = result.posterior
        parts = posterior.variance_parts()["w"]
        ratios.append(draws.std(axis=0) / np.sqrt(np.diag(exact)))
        of_data.append(np.sqrt(parts.data / np.diag(exact)))
        errors.append((draws.mean(axis=0) - w) / draws.std(axis=0))
    assert 1.0 < np.mean(ratios) < 3.0
    assert 0.7 < np.mean(of_data) < 1.4
    assert np.sqrt(np.mean(np.square(errors))) < 1.8


def heavy(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    sigma: Any = numpyro.sample("sigma", dist.HalfNormal(5.0))
    nu: Any = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.StudentT(nu, mu, sigma), obs=y)


@pytest.mark.thorough
def test_degrees_of_freedom_are_as_uncertain_as_clipping_leaves_them() -> None:
    """Clipping takes most off the rows in the tails, which alone tell of them."""
    errors = []
    for seed in range(4):
        y = 1.0 + 2.0 * np.random.default_rng(seed).standard_t(10.0, 2000)
        budget = nv.PrivacyBudget(epsilon=1.0, delta=1e-6)
        vi = vi_of(heavy, budget=budget, engine="dpvi")
        result = vi.run(jax.random.key(seed), y.astype(np.float32))
        draws = result.sample_posterior(jax.random.key(1), sample_shape=(1000,))
        of = np.log(np.asarray(draws["nu"]))
        errors.append((of.mean() - np.log(10.0)) / of.std())
    # It was about 2 where the information was that of the rows themselves.
    assert np.sqrt(np.mean(np.square(errors))) < 1.4
