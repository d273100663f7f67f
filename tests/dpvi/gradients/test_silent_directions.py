"""Directions of the globals that rows say nothing of are found, and hold no noise."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _dpvi_engines import engine_of_graph
from _fits import fit_to
from _models import graph_of

from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.dpvi.gradients.coordinates import GradientCoordinates
from numpyro_vips.vips.m_step.noisy_information import Information

GROUPS = 5
NUM_ROWS = 400


def effects(name: str, scale: Any = 1.0, mean: Any = 0.0) -> Any:
    with numpyro.plate(f"{name}s", GROUPS):
        return numpyro.sample(name, dist.Normal(mean, scale))


def beside_a_mean(g: Any, h: Any, x: Any, y: Any) -> None:
    # Priors of other widths are other units.
    mean = numpyro.sample("mean", dist.Normal(0.0, 40.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    a = effects("a", 0.3)
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Poisson(jnp.exp(mean + a[g] + slope * x)), obs=y)


def crossed(g: Any, h: Any, x: Any, y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    a, b = effects("a"), effects("b")
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.StudentT(4.0, mean + a[g] + b[h], 1.0), obs=y)


def crossed_with_others(g: Any, h: Any, x: Any, y: Any) -> None:
    """A code of the one kind may be none of the other, and is tried as one."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    a = effects("a")
    with numpyro.plate("others", 2 * GROUPS):
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.StudentT(4.0, mean + a[g] + b[h], 1.0), obs=y)


DISTRICT_OF = np.array([0, 0, 1, 1, 1])


def nested(g: Any, h: Any, x: Any, y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("districts", 2):
        d = numpyro.sample("d", dist.Normal(0.0, 1.0))
    a = effects("a")
    with numpyro.plate("rows", len(y)):
        centre = mean + d[DISTRICT_OF][g] + a[g]
        numpyro.sample("y", dist.StudentT(4.0, centre, 1.0), obs=y)


def half_of_the_time(g: Any, h: Any, x: Any, y: Any) -> None:
    """Some rows know the mean alone."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    a = effects("a")
    with numpyro.plate("rows", len(y)):
        centre = mean + jnp.where(h > 2, a[g], 0.0)
        numpyro.sample("y", dist.StudentT(4.0, centre, 1.0), obs=y)


DOSES = np.array([0.0, 10.0, 33.0, 100.0, 333.0])


def nearly_one_direction(g: Any, h: Any, x: Any, y: Any) -> None:
    """Over a short way the logarithm is a line."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    c = numpyro.sample("c", dist.Normal(0.0, 1.0))
    dose = jnp.asarray(DOSES)[g] + jnp.abs(x)
    with numpyro.plate("rows", len(y)):
        centre = a + b * jnp.log(dose + 10.0) + c * dose / 1000.0
        numpyro.sample("y", dist.StudentT(4.0, centre, 1.0), obs=y)


def log_of_a_column(g: Any, h: Any, x: Any, y: Any) -> None:
    """Salm of the BUGS examples, with the dose as a column; the code is of no group."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    c = numpyro.sample("c", dist.Normal(0.0, 1.0))
    e = effects("e")
    with numpyro.plate("rows", len(y)):
        rate = a + b * jnp.log(x + 10.0) + c * x + e[g] * x**2
        numpyro.sample("y", dist.StudentT(4.0, rate, 1.0), obs=y)


def slopes(g: Any, h: Any, x: Any, y: Any) -> None:
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    a = effects("a")
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.StudentT(4.0, slope * x + a[g] * x, 1.0), obs=y)


def without_a_mean(g: Any, h: Any, x: Any, y: Any) -> None:
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    a = effects("a")
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.StudentT(4.0, slope * x + a[g], 1.0), obs=y)


def not_centred(g: Any, h: Any, x: Any, y: Any) -> None:
    """Effects times more than a scale alone, see `dpvi/centred_effects.py`."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    scale = 1.0 + numpyro.sample("scale", dist.HalfNormal(1.0))
    a = effects("a")
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.StudentT(4.0, mean + scale * a[g], 1.0), obs=y)


def rows(num_rows: int = NUM_ROWS) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    g, h = rng.integers(0, GROUPS, (2, num_rows)).astype(np.int32)
    x = rng.normal(size=num_rows).astype(np.float32)
    return g, h, x, rng.poisson(3.0, num_rows).astype(np.float32)


def engine_of(fn: Any) -> DpviEngine:
    return engine_of_graph(graph_of(fn, rows())[1])


@pytest.mark.thorough_with("crossed_with_others*", "log_of*", "slopes*")
@pytest.mark.parametrize(
    ("fn", "number"),
    [
        (beside_a_mean, 1),
        (crossed, 2),
        (crossed_with_others, 2),
        (nested, 3),
        (half_of_the_time, 0),
        (nearly_one_direction, 0),
        (log_of_a_column, 0),
        (slopes, 1),
        (without_a_mean, 0),
    ],
)
def test_rows_have_no_gradient_along_them_whatever_they_hold(
    fn: Any, number: int
) -> None:
    engine = engine_of(fn)
    noise_aware = engine.compiled.noise_aware
    assert noise_aware is not None
    silent = noise_aware.silent
    assert silent.shape == (noise_aware.num_read, number)
    np.testing.assert_allclose(silent.T @ silent, np.eye(number), atol=1e-9)
    assert not noise_aware.turning
    state = engine.initial_state(jax.random.key(0))
    held: dict[str, Any] = dict(zip("ghxy", map(jnp.asarray, rows(32)), strict=True))
    found = engine.bounded_sum(
        state, held, np.ones(32, bool), scales={"loc": 1.0}, clipping_norm=np.inf
    )
    coordinates = state.coordinates
    assert coordinates is not None
    of_globals = found["loc"] @ coordinates.inverse
    left = np.linalg.norm(silent.T @ of_globals)
    assert left <= 1e-4 * np.linalg.norm(of_globals)


def test_a_direction_that_turns_is_none_but_is_told() -> None:
    noise_aware = engine_of(not_centred).compiled.noise_aware
    assert noise_aware is not None
    assert noise_aware.silent.shape[1] == 0
    assert noise_aware.turning == (("mean", "a"),)
    with pytest.warns(UserWarning, match="Write the effects themselves"):
        result = fit_to(not_centred, *rows(), num_steps=20)
    warnings = result.diagnostics["warnings"]
    assert any("'mean' can be made up for by one of 'a'" in text for text in warnings)


def test_what_is_noise_for_certain_is_taken_out() -> None:
    silent = np.array([[1.0], [-1.0], [0.0]]) / np.sqrt(2.0)
    units = np.diag([1.0, 2.0, 1.0])
    coordinates = GradientCoordinates.of_globals(units, silent, np.float64)
    noise = jnp.asarray(np.random.default_rng(1).normal(size=3))
    left = np.asarray(coordinates.without_silent(noise))
    # In the globals: g = (Uᵀ)⁻¹ of the gradient in the coordinates.
    np.testing.assert_allclose(silent.T @ coordinates.inverse @ left, 0.0, atol=1e-6)
    matrix = np.eye(3)
    found = coordinates.of_rows(Information(matrix, 1.0))
    there = coordinates.inverse @ found.matrix @ coordinates.inverse
    np.testing.assert_allclose(there @ silent, 0.0, atol=1e-12)
    assert found.silent is not None
    # The one of before has nothing more to lose.
    again = coordinates.of_rows(found)
    np.testing.assert_allclose(again.matrix, found.matrix, atol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("num_rows", [2_000, 20_000])
def test_the_prior_decides_along_them(num_rows: int) -> None:
    """The mean of twelve groups, of which rows know the mean of all effects alone."""

    def model(g: Any, x: Any, y: Any) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
        scale = numpyro.sample("scale", dist.HalfNormal(2.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(3.0))
        with numpyro.plate("groups", 12):
            a = numpyro.sample("a", dist.Normal(0.0, scale))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(mean + slope * x + a[g], sigma), obs=y)

    rng = np.random.default_rng(3)
    g = rng.integers(0, 12, num_rows)
    x = rng.normal(size=num_rows)
    a = rng.normal(size=12)
    a -= a.mean()
    y = 5.0 + x + a[g] + 1.5 * rng.normal(size=num_rows)
    result = fit_to(model, g, x, y, engine="dpvi")
    moments = result.posterior.moments()
    mean, effect = moments["mean"], moments["a"]
    assert abs(float(mean.mean) - 5.0) < 0.45
    assert 0.15 < float(mean.stddev) < 0.7
    # Rows do know what they add up to.
    draws = result.sample_posterior(jax.random.key(1), (2000,))
    total = np.asarray(draws["mean"]) + np.asarray(draws["a"]).mean(1)
    assert abs(total.mean() - 5.0) < 4.0 * total.std() + 0.02
    assert total.std() < 0.75 * float(mean.stddev)
    assert np.all(np.asarray(effect.stddev) < 1.0)
    assert abs(float(moments["sigma"].mean) - 1.5) < 0.3
