"""What clipping takes off simulated rows, against Exponential numbers' own moments.

Rows are a column of Exponential numbers here, and sums of them are made by NumPy.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from numpyro_vips.jax_tools.row_sums import CLIPPED_ROWS
from numpyro_vips.vips.corrections.row_simulation import RowSimulation
from numpyro_vips.vips.steps.released_sums import Bound

NUM_ROWS = 960
NORM = 1.0


class Exponential:
    """Simulates rows, and counts which seeds it was asked for."""

    def __init__(self, least: float = 0.0) -> None:
        self.least, self.seeds = least, []

    def rows(
        self,
        latents: Mapping[str, Any],
        count: int,
        seed: int,
        covariates: np.ndarray | None = None,
    ) -> dict[str, Any]:
        self.seeds.append(seed)
        self.covariates = covariates
        drawn = np.random.default_rng(seed).exponential(latents["mean"], count)
        return {"x": self.least + drawn}


def sum_of_rows(
    rows: Mapping[str, Any],
    mask: np.ndarray,
    *,
    scales: Mapping[str, float],
    clipping_norm: float,
) -> dict[str, np.ndarray]:
    """Sums of x and of (x, −x), each clipped by itself in units of its scale."""
    x = rows["x"][mask]
    if CLIPPED_ROWS in scales:
        (scale,) = (of for name, of in scales.items() if name != CLIPPED_ROWS)
        return {CLIPPED_ROWS: np.asarray(np.sum(x * scale > clipping_norm))}
    clipped = {name: np.minimum(x, clipping_norm / scales[name]) for name in scales}
    found = {name: np.asarray(array.sum()) for name, array in clipped.items()}
    return {n: np.stack([s, -s]) if n == "both" else s for n, s in found.items()}


def means_of_latents(sums: Mapping[str, Any]) -> dict[str, np.ndarray] | None:
    mean = float(sums["one"]) / NUM_ROWS
    return {"mean": np.asarray(mean)} if mean > 0 else None


BOUNDS = {
    "one": Bound({"one": 1.0, "unread": 1.0}, NORM, release=0),
    "both": Bound({"both": 2.0}, 4.0 * NORM, release=1),
}


def simulation_of(simulator: Any, number: int = 0, **options: Any) -> RowSimulation:
    settings = {"num_rows": NUM_ROWS, "valid_rows": NUM_ROWS, "has_locals": False}
    settings |= options
    released = {"one": np.asarray(float(number)), "both": np.zeros(2)}
    return RowSimulation(
        simulator,
        means_of_latents,
        sum_of_rows,
        bounds=BOUNDS,
        released=released,
        **settings,
    )


def sums_of(mean: float) -> dict[str, np.ndarray]:
    return {"one": np.asarray(NUM_ROWS * mean), "both": np.zeros(2)}


@pytest.mark.parametrize("mean", [0.5, 1.0, 2.0])
def test_what_is_missing_is_that_of_all_rows(mean: float) -> None:
    """E[(x − c)⁺] = m exp(−c/m) for an Exponential number of mean m."""
    simulator = Exponential()
    found = simulation_of(simulator).missing(sums_of(mean))
    assert found is not None and found.keys() == BOUNDS.keys()
    simulated = NUM_ROWS * len(simulator.seeds)
    for name, bound in BOUNDS.items():
        c = bound.clipping_norm / bound.scales[name]
        lost = math.exp(-c / mean)
        variance = mean**2 * (2.0 * lost - lost**2)
        error = 4.0 * NUM_ROWS * math.sqrt(variance / simulated)
        sign = np.array([1.0, -1.0]) if name == "both" else 1.0
        expected = NUM_ROWS * mean * lost
        np.testing.assert_allclose(sign * found[name], expected, atol=error)
        assert error < 0.2 * expected or name == "both"


@pytest.mark.parametrize("mean", [0.5, 1.0])
def test_the_share_that_is_clipped_is_that_beyond_the_norm(mean: float) -> None:
    found = simulation_of(Exponential()).share_clipped(sums_of(mean), BOUNDS["both"])
    beyond = math.exp(-2.0 * NORM / mean)
    assert found == pytest.approx(beyond, abs=5.0 * math.sqrt(beyond / NUM_ROWS))


def test_where_sums_have_no_posterior_nothing_is_known() -> None:
    assert simulation_of(Exponential()).missing(sums_of(-1.0)) is None
    found = simulation_of(Exponential()).share_clipped(sums_of(-1.0), BOUNDS["one"])
    assert found is None

    class NotFinite(Exponential):
        def rows(
            self,
            latents: Mapping[str, Any],
            count: int,
            seed: int,
            covariates: np.ndarray | None = None,
        ) -> dict[str, Any]:
            return {"x": np.full(count, np.inf)}

    assert simulation_of(NotFinite()).missing(sums_of(1.0)) is None


def test_rows_are_the_same_for_one_release_and_others_for_another() -> None:
    """A correction is a function of what was released, and of nothing else."""
    simulators = [Exponential() for _ in range(3)]
    for simulator, number in zip(simulators, (0, 0, 1), strict=True):
        simulation_of(simulator, number).missing(sums_of(1.0))
    first, second, other = (simulator.seeds for simulator in simulators)
    assert first == second
    assert set(first).isdisjoint(other)
    assert len(set(first)) == len(first)


def lost_by(simulator: Any, name: str, mean: float = 1.0, count: int = 40) -> Any:
    """Averages over releases, as a correlation is estimated from few groups."""
    found = [
        simulation_of(simulator, number).lost(sums_of(mean))[name]
        for number in range(count)
    ]
    return np.mean([tuple(each) for each in found], axis=0)


def test_what_clipping_hides_of_rows() -> None:
    """Against variances and covariances of x, min(x, 1) and (x − 1)⁺."""
    simulator = Exponential()
    of_rows, of_simulation = lost_by(simulator, "one")
    e = math.exp(-NORM)
    clipped = 1.0 - e**2 - 2.0 * NORM * e
    covariance = 1.0 - e * (NORM + 1.0)
    expected = NUM_ROWS * (clipped / covariance**2 - 1.0)
    # The reciprocal of what is estimated from 48 groups is larger by some per cent.
    assert expected * 0.9 < of_rows < expected * 1.25
    simulated = NUM_ROWS * len(simulator.seeds) / 40
    missing = NUM_ROWS**2 / simulated * (2.0 * e - e**2)
    assert of_simulation == pytest.approx(missing, rel=0.15)


def test_what_is_not_clipped_hides_nothing() -> None:
    of_rows, of_simulation = lost_by(Exponential(), "one", mean=0.01, count=1)
    assert of_rows == pytest.approx(0.0, abs=1e-9)
    assert of_simulation == 0.0


def test_sums_of_which_every_row_is_cut_say_nothing() -> None:
    """All rows are clipped to the same number, and sums hide how large they are."""
    of_rows, _ = lost_by(Exponential(least=5.0), "one", count=4)
    # As much as for the least correlation that is taken, 0.1.
    assert of_rows == pytest.approx(99.0 * NUM_ROWS, rel=0.3)


class DrawnFromASeed:
    """Covariates that say which seed they were drawn with."""

    def drawn(self, count: int, seed: int) -> np.ndarray:
        return np.full((count, 1), seed)


def test_rows_have_covariates_of_the_sums_that_are_asked_about() -> None:
    simulator, asked = Exponential(), []

    def covariates(sums: Mapping[str, Any]) -> Any:
        asked.append(float(sums["one"]))
        return DrawnFromASeed()

    simulation = simulation_of(simulator, covariates=covariates)
    assert simulation.missing(sums_of(1.0)) is not None
    assert asked == [NUM_ROWS]
    assert simulator.covariates is not None
    np.testing.assert_array_equal(simulator.covariates, simulator.seeds[-1])


def test_nothing_is_said_where_nothing_is_known_of_covariates() -> None:
    simulation = simulation_of(Exponential(), covariates=lambda sums: None)
    assert simulation.missing(sums_of(1.0)) is None
