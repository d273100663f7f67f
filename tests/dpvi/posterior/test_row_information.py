"""The rows' observed information and its clipped sum."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _dpvi_engines import engine_for, new_engine
from scipy.special import expit

from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.handlers import private
from numpyro_vips.jax_tools.row_sums import increasing_edges
from numpyro_vips.privacy.releases import INFORMATION, SECOND_MOMENTS

NUM_ROWS = 70


@private(unit="people")
def logistic(X: Any, y: Any = None):
    scale: Any = numpyro.sample("scale", dist.HalfNormal(1.0))
    w: Any = numpyro.sample(
        "w", dist.Normal(0.0, scale).expand([X.shape[1]]).to_event(1)
    )
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


@private(unit="people")
def with_local(y: Any):
    """A latent of each row, which is solved for."""
    mean: Any = numpyro.sample("mean", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    with numpyro.plate("people", y.shape[0]):
        own: Any = numpyro.sample("own", dist.Normal(mean, 1.0).to_event(1))
        numpyro.sample("y", dist.Normal(own, 0.5).to_event(1), obs=y)


def table(num_rows: int = NUM_ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(num_rows, 3)).astype(np.float32)
    return X, (rng.uniform(size=num_rows) < 0.4).astype(np.float32)


def state_at(engine: DpviEngine, loc: Any) -> Any:
    """A state whose average has this place, which is given in units of 1."""
    state = engine.initial_state(jax.random.key(0))
    units = np.repeat(
        [site.unit for site in engine.space.sites],
        [math.prod(site.unconstrained_shape) for site in engine.space.sites],
    )
    loc = np.asarray(loc) / units
    guide = {**state.average.guide, "loc": jnp.asarray(loc, jnp.float32)}
    return state._replace(average=state.average._replace(guide=guide))


def everyone(rows: dict[str, np.ndarray]) -> np.ndarray:
    """The mask with which every row counts."""
    return np.ones(len(next(iter(rows.values()))), bool)


def summed(
    engine: DpviEngine,
    loc: Any,
    rows: dict[str, np.ndarray],
    clipping_norm: float,
    mask: Any = None,
) -> np.ndarray:
    found = engine.bounded_sum(
        state_at(engine, loc),
        rows,
        everyone(rows) if mask is None else mask,
        scales={INFORMATION: 1.0},
        clipping_norm=clipping_norm,
    )
    return np.asarray(found[INFORMATION])


LOC = (0.5, -1.0, 0.3, 0.2)


def test_it_is_the_hessian_in_what_rows_depend_on():
    X, y = table()
    engine = engine_for(logistic, X, y)
    (block,) = engine.blocks("information")
    assert (block.name, block.shape, block.symmetric) == (INFORMATION, (3, 3), True)
    chance = expit(X @ np.array(LOC[:3]))
    (unit, *_) = (
        float(np.max(site.units)) for site in engine.space.sites if site.name == "w"
    )
    expected = unit**2 * (X.T * (chance * (1 - chance))) @ X
    found = summed(engine, LOC, {"X": X, "y": y}, np.inf)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_row_adds_at_most_the_clipping_norm():
    """Neighbouring data sets: with and without a row, ordinary or absurd."""
    X, y = table()
    engine = engine_for(logistic, X, y)
    bound, moved = 0.3, []
    for row in (np.ones(3), np.full(3, 1e3), np.array([1e-3, 0, 0]), np.full(3, 1e30)):
        X[5] = row
        rows = {"X": X, "y": y}
        # Of the far rows the density is all but flat: at zero it is not.
        at = np.zeros(4)
        without = {"X": np.delete(X, 5, 0), "y": np.delete(y, 5, 0)}
        difference = summed(engine, at, rows, bound) - summed(
            engine, at, without, bound
        )
        moved.append(np.linalg.norm(difference))
    assert max(moved) <= bound
    assert max(moved) > 0.999 * bound
    unit = float(np.max(engine.space.sites[0].units))
    assert moved[2] == pytest.approx(0.25e-6 * unit**2, rel=1e-3)


def test_invalid_and_masked_rows_add_nothing():
    X, y = table()
    engine = engine_for(logistic, X, y)
    expected = summed(engine, LOC, {"X": X[4:], "y": y[4:]}, 0.5)
    X[0], y[1], X[2, 0] = np.inf, 3.0, np.nan
    mask = np.arange(NUM_ROWS) != 3
    found = summed(engine, LOC, {"X": X, "y": y}, 0.5, mask)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


# Edges in whose bins the rows' norms lie, and some beyond.
EDGES = np.geomspace(1e-4, 1e4, 33)


def counted(
    engine: DpviEngine, loc: Any, rows: dict[str, np.ndarray], mask: Any = None
) -> np.ndarray:
    found = engine.norm_counts(
        state_at(engine, loc),
        rows,
        everyone(rows) if mask is None else mask,
        parts={INFORMATION: (INFORMATION,)},
        edges={INFORMATION: increasing_edges(EDGES)},
    )
    return np.asarray(found[INFORMATION])


def test_its_norms_are_counted_row_by_row():
    X, y = table()
    engine = engine_for(logistic, X, y)
    norms = [
        np.linalg.norm(summed(engine, LOC, {"X": X[[i]], "y": y[[i]]}, np.inf))
        for i in range(NUM_ROWS)
    ]
    bins = np.searchsorted(EDGES, norms)
    expected = np.bincount(bins, minlength=len(EDGES) + 1)
    assert np.count_nonzero(expected) > 3
    found = counted(engine, LOC, {"X": X, "y": y})
    np.testing.assert_array_equal(found, [*expected, 0])


def test_a_row_is_in_one_bin_or_counts_as_zero():
    """Neighbouring data sets: with and without a row, ordinary or absurd."""
    X, y = table()
    engine = engine_for(logistic, X, y)
    others = counted(engine, LOC, {"X": np.delete(X, 5, 0), "y": np.delete(y, 5)})
    ordinary = (np.ones(3), np.full(3, 1e3), np.zeros(3), np.full(3, 1e-20))
    for row in ordinary:
        X[5] = row
        change = counted(engine, LOC, {"X": X, "y": y}) - others
        assert sorted(change)[-2:] == [0.0, 1.0] and change.min() == 0.0
    for row in (np.full(3, np.nan), np.full(3, np.inf)):
        X[5] = row
        change = counted(engine, LOC, {"X": X, "y": y}) - others
        assert change[-1] == 1.0 and not change[:-1].any()
    X[5] = 1.0
    mask = np.arange(NUM_ROWS) != 5
    assert not (counted(engine, LOC, {"X": X, "y": y}, mask) - others).any()


def test_where_latents_of_rows_are_solved_for_it_is_the_scores_square():
    y = np.random.default_rng(1).normal(size=(NUM_ROWS, 2)).astype(np.float32)
    engine = engine_for(with_local, y)
    at = np.array([0.4, -0.2])
    score = (y - at) / (1.0 + 0.25)
    found = summed(engine, at, {"y": y}, np.inf)
    np.testing.assert_allclose(found, score.T @ score, rtol=1e-4)


def test_a_pass_of_many_rows_is_the_sum_over_its_rows(monkeypatch):
    from numpyro_vips.dpvi.posterior import row_matrices

    X, y = table(320)  # Chunks are multiples of 64.
    whole = summed(engine_for(logistic, X, y), LOC, {"X": X, "y": y}, 0.2)
    monkeypatch.setattr(row_matrices, "_MOST_NUMBERS", 64 * 9)
    pieces = summed(new_engine(logistic, X, y), LOC, {"X": X, "y": y}, 0.2)
    np.testing.assert_allclose(pieces, whole, rtol=1e-6)


@jax.custom_vjp
def halved(x: Any) -> Any:
    """Half of a number, whose derivative its author wrote for one direction alone."""
    return 0.5 * x


halved.defvjp(lambda x: (0.5 * x, None), lambda _, cotangent: (0.5 * cotangent,))


@private(unit="people")
def with_own_derivative(X: Any, y: Any = None):
    w: Any = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.Normal(halved(X @ w), 1.0), obs=y)


def test_functions_with_a_reverse_derivative_alone_have_a_second_one():
    X, y = table()
    engine = engine_for(with_own_derivative, X, y)
    found = summed(engine, (0.4, -0.2, 1.0), {"X": X, "y": y}, np.inf)
    np.testing.assert_allclose(found, 0.25 * X.T @ X, rtol=1e-4)


# --- densities with kinks -------------------------------------------------------------


@private(unit="people")
def laplace(X: Any, y: Any = None):
    w: Any = numpyro.sample("w", dist.Normal(0.0, 5.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.Laplace(X @ w, 0.5), obs=y)


def test_a_kink_has_the_information_of_its_slopes():
    X, _ = table(2_000)
    truth = np.array([1.0, -0.5, 0.0])
    y = X @ truth + np.random.default_rng(1).laplace(0.0, 0.5, len(X))
    engine = engine_for(laplace, X, y.astype(np.float32))
    rows = {"X": X, "y": y.astype(np.float32)}
    found = summed(engine, truth, rows, 1e9)
    # A row's score is ± x / scale, wherever it is.
    np.testing.assert_allclose(found, X.T @ X / 0.25, rtol=1e-4)


def by_factor(loss: Any) -> private:
    """Each row's log density is minus a loss of its residual."""

    def model(X: Any, y: Any = None):
        normal = dist.Normal(0.0, 5.0).expand([X.shape[1]]).to_event(1)
        w: Any = numpyro.sample("w", normal)
        with numpyro.plate("people", X.shape[0]):
            numpyro.factor("loss", -loss(y - X @ w))

    return private(model, unit="people")


@by_factor
def check_loss(r: Any) -> Any:
    return jnp.where(r > 0, 0.9 * r, -0.1 * r)


@by_factor
def hinge_loss(r: Any) -> Any:
    return jnp.maximum(0.0, 0.1 + r)


@by_factor
def huber_loss(r: Any) -> Any:
    return jnp.where(abs(r) < 0.7, 0.5 * r**2, 0.7 * (abs(r) - 0.35))


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        (check_loss, lambda r: np.where(r > 0, 0.81, 0.01)),
        (hinge_loss, lambda r: r > -0.1),
        (huber_loss, lambda r: abs(r) < 0.7),
    ],
)
def test_losses_have_the_information_of_slopes_or_of_curvature(model, weights):
    """A row's slope in its residual, squared, where it has a kink."""
    X, _ = table(500)
    at = np.array([1.0, -0.5, 0.0])
    residuals = np.random.default_rng(1).normal(size=len(X))
    y = (X @ at + residuals).astype(np.float32)
    engine = engine_for(model, X, y)
    unit = float(np.max(engine.space.sites[0].units))
    found = summed(engine, at, {"X": X, "y": y}, 1e9)
    expected = unit**2 * (X.T * weights(residuals)) @ X
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


@private(unit="people")
def seen_or_absent(y: Any):
    """Capture and recapture: who is not there is never seen, at log p = -∞."""
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    p: Any = numpyro.sample("p", dist.Beta(2.0, 2.0))
    with numpyro.plate("people", y.shape[0]):
        z: Any = numpyro.sample(
            "z", dist.Bernoulli(share), infer={"enumerate": "parallel"}
        )
        numpyro.sample("y", dist.Bernoulli(p * z[:, None]).to_event(1), obs=y)


def test_a_state_in_which_a_row_cannot_be_takes_no_information_away():
    """Where it has no second derivative, the square of the score stands in."""
    y = np.array([[0, 1, 1], [0, 0, 0], [1, 1, 1]], np.int32)
    engine = engine_for(seen_or_absent, y)
    loc = np.array([0.4, -0.3])
    units = np.array([site.unit for site in engine.space.sites])

    def density(loc: Any, row: Any) -> Any:
        share, p = jax.nn.sigmoid(loc)
        seen = jnp.log(share) + jnp.sum(jnp.where(row, jnp.log(p), jnp.log1p(-p)))
        absent = jnp.where(row.any(), -jnp.inf, jnp.log1p(-share))
        return jnp.logaddexp(seen, absent)

    for row in y:
        (score, hessian) = (
            np.asarray(f(density)(jnp.asarray(loc), row))
            for f in (jax.grad, jax.hessian)
        )
        found = summed(engine, loc, {"y": row[None]}, math.inf)
        possible = [np.outer(score, score), -hessian]
        assert any(
            np.allclose(found, one * np.outer(units, units), rtol=1e-4)
            for one in possible
        )


def test_in_coordinates_it_is_the_hessian_there_and_a_row_adds_as_much_at_most():
    X, y = table()
    engine = engine_for(logistic, X, y)
    rows, bound = {"X": X, "y": y}, 0.05
    units = np.array([[1.0, 0.3, 0.0], [0.3, 0.2, 0.1], [0.0, 0.1, 0.7]], np.float32)
    own = state_at(engine, LOC)
    assert own.coordinates is not None
    state = own._replace(coordinates=own.coordinates._replace(units=units))

    def sum_at(state, rows, norm):
        found = engine.bounded_sum(
            state,
            rows,
            everyone(rows),
            scales={INFORMATION: 1.0},
            clipping_norm=norm,
        )
        return np.asarray(found[INFORMATION])

    np.testing.assert_allclose(
        sum_at(state, rows, np.inf),
        units.T @ sum_at(own, rows, np.inf) @ units,
        rtol=1e-4,
        atol=1e-4,
    )
    without = {"X": np.delete(X, 5, 0), "y": np.delete(y, 5, 0)}
    X[5] = 1.0
    difference = sum_at(state, rows, bound) - sum_at(state, without, bound)
    assert 0.999 * bound < np.linalg.norm(difference) <= bound


def test_pilots_release_outer_products_of_gradients():
    X, y = table()
    engine = engine_for(logistic, X, y)
    (block,) = engine.blocks("pilot")
    assert (block.name, block.shape, block.symmetric) == (SECOND_MOMENTS, (3, 3), True)
    state = engine.initial_state(jax.random.key(0))
    loc = np.asarray(state.variational.guide["loc"], np.float64)[:3]
    unit = float(np.max(engine.space.sites[0].units))
    residuals = y - expit(X @ (unit * loc))
    expected = unit**2 * (X.T * residuals**2) @ X
    found = engine.bounded_sum(
        state,
        {"X": X, "y": y},
        np.ones(len(y), bool),
        scales={SECOND_MOMENTS: 1.0},
        clipping_norm=np.inf,
    )
    np.testing.assert_allclose(found[SECOND_MOMENTS], expected, rtol=1e-4)
    assert engine_for(logistic, X, y, has_norms=True).blocks("pilot") == ()
