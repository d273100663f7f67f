"""A fit of data in other units, under priors in these units, is the same fit.

Clipping norms lie on a grid of powers of the root of two, so the noise of a fit in
other units is about one step of it larger or smaller at most.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of

import numpyro_vips as nv

NUM_ROWS = 4000
SEEDS = range(5)
RNG = np.random.default_rng(0)
AGES = RNG.normal(45.0, 10.0, NUM_ROWS)
X = RNG.normal(size=(NUM_ROWS, 2))
RENT = X @ np.array([1.0, -0.5]) + RNG.normal(0.0, 0.7, NUM_ROWS)
EXPOSURE = RNG.uniform(0.1, 5.0, NUM_ROWS)
CLAIMS = RNG.poisson(0.8 * EXPOSURE)


def gaussian(unit: float) -> tuple[Any, tuple[np.ndarray, ...]]:
    def model(y: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(50.0 * unit, 20.0 * unit))
        tau = numpyro.sample("tau", dist.Gamma(3.0, 300.0 * unit**2))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu, 1 / jnp.sqrt(tau)), obs=y)

    return model, (AGES * unit,)


def response(unit: float) -> tuple[Any, tuple[np.ndarray, ...]]:
    def model(X: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(2), unit).to_event(1))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(X @ w, 0.7 * unit), obs=y)

    return model, (X, RENT * unit)


def features(unit: float) -> tuple[Any, tuple[np.ndarray, ...]]:
    def model(X: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1 / unit).to_event(1))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(X @ w, 0.7), obs=y)

    return model, (X * unit, RENT)


def exposures(unit: float) -> tuple[Any, tuple[np.ndarray, ...]]:
    def model(exposure: Any, y: Any) -> None:
        rate = numpyro.sample("rate", dist.Gamma(2.0, 2.0 * unit))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Poisson(rate * exposure), obs=y)

    return model, (EXPOSURE * unit, CLAIMS)


class Case(NamedTuple):
    """A model in some unit, and the power of the unit that each global has."""

    of_unit: Callable[[float], tuple[Any, tuple[np.ndarray, ...]]]
    powers: dict[str, int]


CASES = {
    "gaussian": Case(gaussian, {"mu": 1, "tau": -2}),
    "response": Case(response, {"w": 1}),
    "features": Case(features, {"w": -1}),
    "exposures": Case(exposures, {"rate": -1}),
}


def means(
    name: str, engine: str, unit: float, seeds: range = SEEDS
) -> dict[str, np.ndarray]:
    """Posterior means by seed of the noise, written back to the unit 1."""
    case = CASES[name]
    model, rows = case.of_unit(unit)
    marked = nv.private(model, unit="rows")
    found: dict[str, list[np.ndarray]] = {site: [] for site in case.powers}
    for seed in seeds:
        vi = vi_of(marked, engine=engine, insecure_seed=seed)
        with warnings.catch_warnings():
            # DPVI's iterates may be said to go to and fro, in some units sooner.
            kind = "insecure_seed" if engine == "vips" else ""
            warnings.filterwarnings("ignore", kind, UserWarning)
            result = vi.run(jax.random.key(0), *rows)
        if engine == "vips":
            assert result.diagnostics["warnings"] == []
        for site, moments in result.posterior.moments().items():
            found[site].append(moments.mean / unit ** case.powers[site])
    return {site: np.array(values) for site, values in found.items()}


@functools.cache
def plain(name: str) -> dict[str, np.ndarray]:
    return means(name, "vips", 1.0)


def in_units(**fast: float) -> Any:
    """Every case in both units, of which one runs fast."""
    slow = pytest.mark.slow
    return pytest.mark.parametrize(
        ("name", "unit"),
        [
            pytest.param(name, unit, marks=() if unit == own else slow)
            for name, own in fast.items()
            for unit in (1000.0, 1e-3)
        ],
    )


@pytest.mark.thorough
@in_units(gaussian=1000.0, response=1e-3, features=1000.0, exposures=1e-3)
def test_vips_in_other_units_is_one_step_of_the_grid_away(name, unit):
    scaled = means(name, "vips", unit)
    for site, values in plain(name).items():
        noise, other = (np.std(v, axis=0, ddof=1) for v in (values, scaled[site]))
        shift = np.abs(np.mean(scaled[site], axis=0) - np.mean(values, axis=0))
        assert np.all(shift < 4 * np.hypot(noise, other) / len(SEEDS) ** 0.5), site
        # A step of the grid, and chance.
        assert np.all(other < 4 * noise), site
        assert np.all(noise < 4 * other), site


@pytest.mark.thorough
@in_units(response=1000.0, features=1e-3, exposures=1e-3)
def test_dpvi_finds_the_same_in_other_units(name, unit):
    """A start in the data's unit is hundreds of a narrow prior's deviations away."""
    scaled = means(name, "dpvi", unit, range(2))
    for site, values in plain(name).items():
        expected = np.mean(values, axis=0)
        np.testing.assert_allclose(np.mean(scaled[site], axis=0), expected, rtol=0.05)
