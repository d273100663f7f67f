"""Steps without noise go on until further ones would change nothing."""

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to
from scipy import special

from numpyro_vips.conjugacy.families.gaussian import Normal
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.vips.steps.convergence import TOLERANCE, Trail
from numpyro_vips.vips.steps.step_sizes import DEFAULT_STEPS_TO_FORGET

SD = 0.01
FACTORS = {
    "w": PosteriorFactor(
        name="w", role="global", family=Normal(), latents=("w",), shape=(1,)
    )
}


def places(means: Iterator[float]) -> Iterator[tuple[Any, Any]]:
    """Natural parameters and moments of Normals with one standard deviation."""
    for mean in means:
        natural = {"x": np.array([mean / SD**2]), "xx": np.array([[-0.5 / SD**2]])}
        yield (
            {"w": natural},
            {"w": {"x": np.array([mean]), "xx": np.array([[mean**2 + SD**2]])}},
        )


def trail(mean_at: Callable[[int], float], num_steps: int) -> Trail:
    found = None
    for number, place in enumerate(places(map(mean_at, range(num_steps)))):
        if found is None:
            found = Trail.starting(*place, number)
        else:
            found = found.after(*place, number, FACTORS)
    assert found is not None
    return found


def test_a_stretch_is_measured_in_standard_deviations():
    found = trail(lambda t: 5.0 + SD * (3.0 if t >= 15 else 1.0 if t >= 5 else 0.0), 21)
    assert found.moved == pytest.approx((2.0, 1.0))
    assert not trail(lambda t: 0.0, 20).is_long


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9, 0.99, 0.995])
@pytest.mark.parametrize("num_steps", [21, 60, 200, 1000, 3000])
def test_what_remains_is_never_less_than_it_is(rate: float, num_steps: int):
    found = trail(lambda t: 2.0 + rate**t, num_steps)
    at_end = rate**found.ends / SD
    assert found.remaining >= at_end - 1e-6


def test_a_place_that_is_reached_counts_as_reached():
    assert trail(lambda t: 0.5**t, 70).remaining < TOLERANCE
    assert trail(lambda t: 0.97**t, 2000).remaining < TOLERANCE


@pytest.mark.parametrize(
    "mean_at",
    [
        lambda t: 1e-5 * t,
        lambda t: 1e-6 * 1.05**t,  # From a saddle.
        lambda t: math.log(1 + t),
        lambda t: SD * math.sin(t),
    ],
)
def test_what_moves_on_has_not_converged(mean_at: Callable[[int], float]):
    for num_steps in (50, 200, 400):
        assert trail(mean_at, num_steps).remaining > 0.01


# --- end to end -----------------------------------------------------------------------

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=500) + 0.4 * (RNG.uniform(size=500) < 0.8)


def overlapping(y: Any) -> None:
    """How many rows are of which of two known groups that can hardly be told apart."""
    share = numpyro.sample("share", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        group = numpyro.sample(
            "group", dist.Bernoulli(share), infer={"enumerate": "parallel"}
        )
        numpyro.sample("y", dist.Normal(0.4 * group, 1.0), obs=y)


def fit(fn: Any, *rows: Any, **options: Any) -> Any:
    with warnings.catch_warnings(action="ignore"):
        return fit_to(fn, *rows, budget=math.inf, engine="vips", **options)


def limit_of_overlapping() -> tuple[float, float]:
    """The Beta posterior that coordinate ascent comes to, written out for the model."""
    a = b = 1.0
    for _ in range(4000):
        logits = special.digamma(a) - special.digamma(b) + 0.4 * ROWS - 0.08
        of_group = np.sum(special.expit(logits))
        a, b = 1.0 + of_group, 1.0 + len(ROWS) - of_group
    return a, b


def moved(result: Any, limit: tuple[float, float]) -> float:
    """How far a Beta posterior is from another, in standard deviations of the other."""
    (a, b), (c, d) = (result.params[f"share/concentration{i}"] for i in (1, 0)), limit
    mean, where = float(a) / (float(a) + float(b)), c / (c + d)
    return abs(mean - where) / math.sqrt(c * d / (c + d) ** 2 / (c + d + 1))


@pytest.mark.thorough
@pytest.mark.usefixtures("coordinate_ascent")
def test_a_fit_without_noise_goes_on_until_it_has_converged():
    limit = limit_of_overlapping()
    found = fit(overlapping, ROWS)
    short = fit(overlapping, ROWS, num_steps=100)
    assert moved(found, limit) < 0.05
    assert found.diagnostics["converged"] and not found.diagnostics["warnings"]
    assert 100 < found.diagnostics["num_steps"] <= 2000
    assert found.settings["num_steps"] is None
    # The model is one for which a fixed number of steps would not have been enough,
    assert moved(short, limit) > 0.2
    # and that is said, with about how far there is to go.
    assert not short.diagnostics["converged"]
    assert any("not converged" in text for text in short.diagnostics["warnings"])
    assert short.diagnostics["remaining"] is None or (
        short.diagnostics["remaining"] > 0.5 * moved(short, limit)
    )


@pytest.mark.thorough
def test_a_fit_ends_when_it_has_converged():
    def logistic(X: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)

    X = RNG.normal(size=(200, 2))
    y = (RNG.uniform(size=200) < 1 / (1 + np.exp(-X @ np.ones(2)))).astype(int)
    found = fit(logistic, jnp.asarray(X), jnp.asarray(y))
    assert found.diagnostics["converged"]
    assert found.diagnostics["num_steps"] < 60


@pytest.mark.quick_with("options1")
@pytest.mark.parametrize("options", [{"noise_multiplier": 30.0}, {"epsilon": 1.0}])
def test_no_fit_under_noise_ends_by_what_it_finds(options: dict[str, Any]):
    with warnings.catch_warnings(action="ignore"):
        result = fit_to(overlapping, ROWS, budget=2.0, engine="vips", **options)
    assert result.diagnostics["num_steps"] == DEFAULT_STEPS_TO_FORGET
    assert result.diagnostics["remaining"] is None
