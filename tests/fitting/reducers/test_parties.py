"""Simulated parties: whose rows, whose noise, and what is left without some of it."""

import math
import warnings
from typing import Any

import jax
import numpy as np
import pytest
from _models import logistic
from scipy import stats

import numpyro_vips as nv
from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.privacy.exact_gaussian import grid_spacing
from numpyro_vips.privacy.gaussian_mechanism import Block, GaussianMechanism

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(1001, 3)).astype(np.float32)
Y = (X[:, 0] + RNG.logistic(size=1001) > 0).astype(np.int32)


def fit(X: np.ndarray, y: np.ndarray, **options: Any) -> nv.PrivateVIResult:
    settings: dict[str, Any] = {
        "budget": nv.PrivacyBudget(1.0, 1e-5),
        "across": nv.SimulatedParties(5, colluding=1),
        "num_steps": 3,
        **options,
    }
    vi = nv.PrivateVI(nv.private(logistic, unit="rows"), progress_bar=False, **settings)
    with warnings.catch_warnings(action="ignore"):
        return vi.run(KEY, X, y)


@pytest.fixture
def sums(monkeypatch) -> list[tuple[GaussianMechanism, list[dict[str, np.ndarray]]]]:
    """The mechanism and the parties' sums of every release."""
    found = []
    add_noise = GaussianMechanism.add_noise_of_parties

    def watched(self, sums_of_parties, rngs):
        found.append((self, [dict(of_party) for of_party in sums_of_parties]))
        return add_noise(self, sums_of_parties, rngs)

    monkeypatch.setattr(GaussianMechanism, "add_noise_of_parties", watched)
    return found


def joint(mechanism: GaussianMechanism, sums: dict[str, np.ndarray]) -> np.ndarray:
    """The vector whose norm the mechanism bounds."""
    parts = []
    for block in mechanism.blocks:
        value = np.asarray(sums[block.name], float) * block.scale
        if block.symmetric:
            rows, columns = block.triangle
            value = value[..., rows, columns] * np.where(
                rows == columns, 1, math.sqrt(2)
            )
        parts.append(value.ravel())
    return np.concatenate(parts)


@pytest.mark.quick_with("full-dpvi")
@pytest.mark.parametrize("engine", ["vips", "dpvi"])
@pytest.mark.parametrize("sampling", ["full", nv.Poisson(0.5)])
def test_one_row_moves_the_sums_of_one_party_within_the_bound(engine, sampling, sums):
    # The first release is looked at: later ones depend on it.
    options: dict[str, Any] = {"engine": engine, "sampling": sampling}
    options |= {"insecure_seed": 3, "clipping_norm": 0.7, "diagnostics": False}
    fit(X, Y, **options)
    (mechanism, before), sums[:] = sums[0], []
    moved = np.zeros(5, bool)
    for row in (0, 199, 200, 600, 1000):
        changed = X.copy()
        changed[row] = np.nan  # It counts as zero: the row is removed.
        fit(changed, Y, **options)
        (_, after), sums[:] = sums[0], []
        changes = [
            float(np.linalg.norm(joint(mechanism, one) - joint(mechanism, other)))
            for one, other in zip(before, after, strict=True)
        ]
        party = sum(row >= len(X) * k // 5 for k in range(1, 5))
        assert max(changes) <= mechanism.sensitivity()
        assert sum(changes) == changes[party]
        moved[party] |= changes[party] > 0
    assert moved.sum() >= 2  # Not every row is drawn.


def test_no_two_rows_have_the_same_key(monkeypatch):
    """Also where they belong to different parties, and in different steps."""
    found = []
    bounded_sum = DpviEngine.bounded_sum

    def watched(self, state, rows, mask, *, row_keys=None, **options):
        if row_keys is not None:
            found.append(np.asarray(row_keys)[np.asarray(mask)])
        return bounded_sum(self, state, rows, mask, row_keys=row_keys, **options)

    monkeypatch.setattr(DpviEngine, "bounded_sum", watched)
    fit(X, Y, engine="dpvi", num_steps=4, max_batch_size=64)
    keys = np.concatenate(found)
    # All steps but the first, and what is released for intervals.
    assert len(keys) == 4 * len(X)
    assert len(np.unique(keys, axis=0)) == len(keys)


def test_their_sums_add_up_to_those_of_one_process(sums, monkeypatch):
    fit(X, Y, insecure_seed=3, clipping_norm=0.7)
    (mechanism, of_parties), *_ = sums
    alone = []
    add_noise = GaussianMechanism.add_noise

    def watched(self, found, rng):
        alone.append(dict(found))
        return add_noise(self, found, rng)

    monkeypatch.setattr(GaussianMechanism, "add_noise", watched)
    fit(X, Y, insecure_seed=3, clipping_norm=0.7, across=None)
    total = sum(joint(mechanism, of_party) for of_party in of_parties)
    np.testing.assert_allclose(total, joint(mechanism, alone[0]), rtol=1e-12)


MECHANISM = GaussianMechanism(
    blocks=(
        Block(name="a", shape=(4, 500)),
        Block(name="b", shape=(200, 3, 3), symmetric=True, scale=0.5),
    ),
    clipping_norm=2.0,
    noise_multiplier=3.0,
    relation="add_or_remove",
)
ZEROS = {"a": np.zeros((4, 500)), "b": np.zeros((200, 3, 3))}


def variance_of(noisy: dict[str, np.ndarray], stddev: float) -> tuple[float, float]:
    """Where the sum of squares lies in the chi-square distribution, both tails."""
    z = joint(MECHANISM, noisy) / stddev
    square = float(z @ z)
    return float(stats.chi2.cdf(square, len(z))), float(stats.chi2.sf(square, len(z)))


@pytest.mark.parametrize("number", [2, 3, 10])
def test_together_they_add_the_noise_of_the_mechanism(number):
    rngs = [np.random.default_rng(seed) for seed in range(number)]
    noisy = MECHANISM.add_noise_of_parties([ZEROS] * number, rngs)
    assert min(variance_of(noisy, MECHANISM.noise_stddev)) > 1e-4
    np.testing.assert_array_equal(noisy["b"], noisy["b"].swapaxes(-1, -2))
    for name, stddev in (("a", 6.0), ("b", 12.0 * math.sqrt(0.5))):
        steps = noisy[name] / grid_spacing(stddev)
        np.testing.assert_array_equal(steps, np.rint(steps))


@pytest.mark.parametrize("number, colluding", [(5, 1), (10, 2), (2, 0)])
def test_enough_is_left_if_some_take_off_their_own(number, colluding):
    parties = nv.SimulatedParties(number, colluding)
    priced = MECHANISM.noise_stddev / parties.reducer().noise_excess
    known = colluding + 1

    def noisy(others: int) -> dict[str, np.ndarray]:
        # Those who collude know their noise: it is the same both times.
        rngs = [np.random.default_rng(seed) for seed in range(known)]
        rngs += [np.random.default_rng(others + seed) for seed in range(number - known)]
        return MECHANISM.add_noise_of_parties([ZEROS] * number, rngs)

    one, other = noisy(1000), noisy(2000)
    left = {name: (one[name] - other[name]) / math.sqrt(2.0) for name in one}
    assert min(variance_of(left, priced)) > 1e-4


@pytest.mark.parametrize("t", [0.4, 0.5, 0.7])
@pytest.mark.parametrize("means", [(0.0, 0.0), (0.5, 0.0), (0.3, 0.7)])
def test_rounding_by_parties_is_all_but_rounding_of_the_total(t, means):
    """The claim of docs/parties.md about grids, where it is large enough to be seen."""

    def rounded(mean: float) -> np.ndarray:
        edges = np.arange(-30, 32) - 0.5
        return np.diff(stats.norm.cdf((edges - mean) / t))

    of_parties = np.convolve(rounded(means[0]), rounded(means[1]))
    # Two uniform numbers in a step: a triangle.
    sums = np.linspace(-1.0, 1.0, 4001)
    weights = (1.0 - abs(sums)) * (sums[1] - sums[0])
    places = np.arange(-60, 61)[:, None] - sums - sum(means)
    of_total = stats.norm.pdf(places, scale=t * math.sqrt(2.0)) @ weights
    assert 0.5 * abs(of_parties - of_total).sum() < 2.0 * math.exp(
        -((math.pi * t) ** 2)
    )


def test_sums_far_above_the_noise_add_up_without_an_error():
    large = {name: np.full_like(zeros, 2.0**75) for name, zeros in ZEROS.items()}
    opposite = {name: -value for name, value in large.items()}
    rngs = [np.random.default_rng(seed) for seed in range(3)]
    # A number of this size leaves no room for the noise: what is sent is rounded.
    noisy = MECHANISM.add_noise_of_parties([large, opposite, ZEROS], rngs)
    assert all(np.isfinite(value).all() for value in noisy.values())
    same = MECHANISM.add_noise_of_parties([large, large, ZEROS], rngs)
    np.testing.assert_allclose(same["a"], 2.0**76, rtol=1e-12)


def test_the_ledger_prices_what_is_left_and_the_posterior_knows_of_all_noise():
    parties = fit(X, Y, insecure_seed=1, engine="vips", clipping_norm=1.0)
    alone = fit(X, Y, insecure_seed=1, engine="vips", clipping_norm=1.0, across=None)
    assert parties.privacy.events == alone.privacy.events
    assert "5 simulated parties adds 1/3 of the variance" in str(parties.privacy)
    draws = [
        r.sample_posterior(KEY, sample_shape=(4000,))["w"].std(0)
        for r in (parties, alone)
    ]
    assert np.all(draws[0] > draws[1])


def test_what_parties_cannot_do_is_refused_before_the_charge():
    budget = nv.PrivacyBudget(1.0, 1e-5)
    with pytest.raises(ValueError, match="draw their rows by themselves"):
        fit(X[:1000], Y[:1000], budget=budget, sampling=nv.WithoutReplacement(0.1))
    assert not budget.charges
    with pytest.raises(ValueError, match="nothing to divide"):
        fit(X, Y, budget=nv.PrivacyBudget(math.inf))
    with pytest.raises(ValueError, match="noise for parties to divide"):
        quiet = GaussianMechanism(
            blocks=MECHANISM.blocks,
            clipping_norm=1.0,
            noise_multiplier=0.0,
            relation="add_or_remove",
        )
        quiet.add_noise_of_parties([ZEROS], [np.random.default_rng()])


@pytest.mark.parametrize("number, colluding", [(1, 0), (3, 2), (0, 0), (3, -1)])
def test_too_few_parties_are_refused(number, colluding):
    with pytest.raises(ValueError):
        nv.SimulatedParties(number, colluding=colluding)
