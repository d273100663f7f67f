"""What clipping takes off released sums is told by simulated rows and added back."""

import warnings
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to, vi_of

import numpyro_vips as nv
from numpyro_vips.vips.corrections import reading
from numpyro_vips.vips.corrections.clipping_bias import Lost, without_clipping


def durations(n: int, y: Any = None) -> None:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 2.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Exponential(rate), obs=y)


def line(x: Any, y: Any = None) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 10.0))
    b = numpyro.sample("b", dist.Normal(0.0, 10.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(a + b * x, sigma), obs=y)


def test_a_sum_that_lost_half_is_doubled_and_its_noise_too() -> None:
    found = without_clipping(
        {"s": np.asarray(50.0), "other": np.ones(3)},
        {"s": 2.0, "other": 1.0},
        lambda sums: {"s": np.asarray(0.5 * sums["s"])},
        lambda sums: {"s": Lost(of_rows=9.0, of_simulation=5.0)},
    )
    assert found is not None
    assert found.statistics["s"] == pytest.approx(100.0, abs=0.2)
    variance = 2.0**2 * (2.0**2 + 5.0) + 9.0
    assert found.noise_stddev["s"] ** 2 == pytest.approx(variance, rel=1e-3)
    np.testing.assert_array_equal(found.statistics["other"], np.ones(3))
    assert found.noise_stddev["other"] == 1.0


def test_blocks_that_depend_on_each_other_come_to_an_end_together() -> None:
    """x = r + A x, for slopes A with which plain iteration takes hundreds of rounds."""
    slopes = np.array([[0.6, 0.3], [0.2, 0.7]])

    def missing(sums: Any) -> dict[str, np.ndarray]:
        return {"s": slopes @ sums["s"]}

    released = np.array([100.0, -30.0])
    found = without_clipping(
        {"s": released}, {"s": 1.0}, missing, lambda sums: {"s": Lost(0.0, 0.0)}
    )
    assert found is not None
    exact = np.linalg.solve(np.eye(2) - slopes, released)
    np.testing.assert_allclose(found.statistics["s"], exact, atol=1.0)


def test_nothing_changes_where_nothing_is_missing_or_nothing_is_known() -> None:
    sums, noise = {"s": np.ones(2)}, {"s": 1.0}
    nothing = {"s": np.full(2, 0.01)}
    lost = {"s": Lost(0.0, 0.0)}
    assert without_clipping(sums, noise, lambda _: nothing, lambda _: lost) is None
    assert without_clipping(sums, noise, lambda _: None, lambda _: lost) is None


@pytest.mark.thorough
@pytest.mark.usefixtures("without_remarks")
@pytest.mark.parametrize(
    "clipping_norm", [pytest.param(2.0, marks=pytest.mark.slow), 0.7]
)
def test_a_rate_of_clipped_durations_lies_in_its_interval(clipping_norm: float) -> None:
    rng, inside, means = np.random.default_rng(0), [], []
    for seed in range(6):
        y = rng.exponential(1.0, 4000).astype(np.float32)
        with warnings.catch_warnings(action="ignore"):
            result = vi_of(
                nv.private(durations, unit="rows", public=("n",)),
                budget=2.0,
                clipping_norm=clipping_norm,
                insecure_seed=seed,
            ).run(jax.random.key(seed), len(y), y)
        draws = result.sample_posterior(jax.random.key(1), (2000,))["rate"]
        low, high = np.quantile(np.asarray(draws), [0.05, 0.95])
        inside.append(low <= 1.0 <= high)
        means.append(np.mean(np.asarray(draws)))
    # Clipped sums without correction say 1.16 and 1.99.
    assert np.mean(means) == pytest.approx(1.0, abs=0.03)
    assert np.mean(inside) > 0.7


def clipped_line() -> dict[str, Any]:
    """Draws after a fit of a line in which two rows of three are clipped."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=4000).astype(np.float32)
    y = (0.3 * x + rng.normal(size=4000)).astype(np.float32)
    with warnings.catch_warnings(action="ignore"):
        result = fit_to(line, x, y, budget=2.0, clipping_norm=1.0, insecure_seed=0)
    return result.sample_posterior(jax.random.key(1), (2000,))


@pytest.mark.thorough
@pytest.mark.usefixtures("without_remarks")
def test_a_line_through_clipped_points_has_its_slope_and_its_residuals() -> None:
    """The model says nothing of x, and the regression's own sums do."""
    draws = clipped_line()
    # Without correction these are 0.67 and 0.20.
    assert np.mean(np.asarray(draws["sigma"])) == pytest.approx(1.0, abs=0.06)
    assert np.mean(np.asarray(draws["b"])) == pytest.approx(0.3, abs=0.06)


@pytest.mark.thorough
@pytest.mark.usefixtures("without_remarks")
def test_more_sums_than_simulated_rows_stay_as_they_are_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The line above, with a limit below its few sums."""
    monkeypatch.setattr(reading, "_MOST_CORRECTED", 1)
    draws = clipped_line()
    assert np.mean(np.asarray(draws["sigma"])) == pytest.approx(0.67, abs=0.06)
