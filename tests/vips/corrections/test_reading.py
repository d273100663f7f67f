"""Released sums as a posterior, where the exact one is known."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _engine_fit import EngineFit
from _fits import fit_to
from _repeated import (
    COMPLETE,
    OF_LEVEL,
    PRIOR,
    ROWS,
    SEEN,
    Y,
    fit,
)

from numpyro_vips.vips.corrections import reading as module
from numpyro_vips.vips.corrections.reading import Reading

NOISE = 10.0
NAME = "⟨mean⟩"
# Of the released sum of levels over BETWEEN², what answers to the rows' own means.
SLOPE = ROWS * COMPLETE * OF_LEVEL / (COMPLETE + OF_LEVEL)


@pytest.fixture(scope="module")
def made() -> EngineFit:
    return fit()


def reading_of(made: EngineFit) -> Reading:
    engine = made.engine
    return Reading(engine.on_rows, engine.on_globals, engine._roles)


def released(made: EngineFit, noise: float) -> Any:
    """The state after a release in which noise has happened to be nothing."""
    sums = made.sums(made.start, 1e15)
    return made.engine.update(made.start, sums, dict.fromkeys(sums, noise), 1.0)


def exact(noise: float) -> tuple[float, float]:
    """Mean and variance of the global mean: of all rows, and of the noise."""
    precision = ROWS * SEEN + PRIOR**-2
    mean = ROWS * SEEN * np.mean(Y, dtype=np.float64) / precision
    return mean, 1.0 / precision + (noise / SLOPE) ** 2


def test_under_noise_it_is_the_exact_posterior_with_the_noise_in_it(
    made: EngineFit,
) -> None:
    state = released(made, NOISE)
    found = reading_of(made).posterior(state)
    moments = found.moments()["mean"]
    mean, variance = exact(NOISE)
    assert float(moments.mean) == pytest.approx(mean, abs=0.02)
    assert float(moments.stddev) == pytest.approx(math.sqrt(variance), rel=0.02)
    parts: Any = found.variance_parts()["mean"]
    assert float(parts.data) == pytest.approx(exact(0.0)[1], rel=0.03)
    assert float(parts.privacy) == pytest.approx((NOISE / SLOPE) ** 2, rel=0.03)


def test_how_much_is_missing_is_what_rows_keep_to_themselves(made: EngineFit) -> None:
    _, seen = reading_of(made).sums_of(released(made, NOISE))
    assert seen is not None
    assert seen.missing == pytest.approx(1.0 - SEEN / COMPLETE, abs=0.01)
    # The sum in which rows know the mean is that about which they were asked.
    whole = float(seen.with_noise.statistics[NAME])
    assert whole / (ROWS * COMPLETE) == pytest.approx(exact(0.0)[0], abs=0.02)


def test_without_noise_only_the_width_is_that_of_what_rows_know(
    made: EngineFit,
) -> None:
    state = released(made, 0.0)
    found = reading_of(made).posterior(state).moments()["mean"]
    # Coordinate ascent is where it is: one step in.
    assert float(found.mean) == pytest.approx(
        float(state.moments["mean"]["x"][0]), rel=1e-4
    )
    assert float(found.stddev) ** 2 == pytest.approx(exact(0.0)[1], rel=0.02)


def test_a_state_is_asked_about_once(
    made: EngineFit, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, asked = reading_of(made), []
    observed = module.observed
    monkeypatch.setattr(
        module, "observed", lambda *a, **k: asked.append(a) or observed(*a, **k)
    )
    state = released(made, NOISE)
    assert reading.sums_of(state) is reading.sums_of(state)
    reading.posterior(state)
    assert len(asked) == 1
    reading.sums_of(released(made, 2 * NOISE))
    assert len(asked) == 2


def test_a_large_posterior_is_not_taken_apart(
    made: EngineFit, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = released(made, NOISE)
    parted = reading_of(made).posterior(state)
    monkeypatch.setattr(module, "_MOST_IN_PARTS", 0)
    whole = reading_of(made).posterior(state)
    assert set(parted.params) - set(whole.params) == {"mean/stddev_without_privacy"}
    np.testing.assert_allclose(whole.params["mean/loc"], parted.params["mean/loc"])


def test_rows_without_places_have_nothing_to_say(made: EngineFit) -> None:
    state = released(made, NOISE)._replace(asked=())
    sums, seen = reading_of(made).sums_of(state)
    assert seen is None
    assert sums.statistics is state.statistics


def coefficients() -> tuple[Any, Any]:
    a = numpyro.sample("a", dist.Normal(0.0, 5.0))
    return a, numpyro.sample("w", dist.Normal(0.0, 5.0).expand([2]).to_event(1))


def line(x: Any, y: Any) -> None:
    a, w = coefficients()
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a + w[0] * x, 1.0), obs=y)


def parabola(x: Any, y: Any) -> None:
    a, w = coefficients()
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a + w[0] * x + w[1] * x**2, 1.0), obs=y)


def logistic(x: Any, y: Any) -> None:
    a, w = coefficients()
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=a + w[0] * x), obs=y > 0)


@pytest.mark.quick_with("line-*", "parabola-*")
@pytest.mark.parametrize(
    ("model", "is_told"), [(line, True), (parabola, False), (logistic, False)]
)
def test_sums_tell_of_covariates_that_are_all_features_of_a_regression(
    model: Callable[..., None], is_told: bool
) -> None:
    """Of x alone, if x is a feature: of x and its square noise hides how they go on."""
    rng = np.random.default_rng(0)
    x = (40.0 + 10.0 * rng.normal(size=200)).astype(np.float32)
    made = EngineFit(model, (x, np.where(x > 40.0, 1.0, -1.0).astype(np.float32)))
    state, reading = released(made, 1e-6), reading_of(made)
    found = reading._covariates(state, state.statistics)
    assert (found is not None) == is_told
    if found is not None:
        np.testing.assert_allclose(found.mean, x.mean(), rtol=1e-3)
        np.testing.assert_allclose(np.abs(found.root), x.std(), rtol=1e-2)


AFTER = np.array([0.0, 0.0, 1.0, 1.0], np.float32)


def jumps(y: Any) -> None:
    """Every row's mean jumps at a known time, by an amount of its own."""
    before = numpyro.sample("before", dist.Normal(0.0, 10.0))
    jump = numpyro.sample("jump", dist.Normal(0.0, 10.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(2.5))
    with numpyro.plate("rows", y.shape[0]):
        own = numpyro.sample("own", dist.Normal(jump, spread))
        mean = before + own[..., None] * AFTER
        numpyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)


@pytest.mark.thorough
def test_a_fit_without_noise_is_tried_on_sums_that_have_no_posterior() -> None:
    """Sums of zeros, of which no variance is one, are not simulated from."""
    rng = np.random.default_rng(0)
    y = 1.0 + rng.normal(2.0, 0.7, (300, 1)) * AFTER + rng.normal(size=(300, 4))
    found = fit_to(jumps, y.astype(np.float32), budget=math.inf).posterior.moments()
    for name, true in {"before": 1.0, "jump": 2.0, "spread": 0.7}.items():
        assert abs(found[name].mean - true) < 4.0 * found[name].stddev
