"""Where a row's statistics lie, and what follows for replacing a row.

The claim behind "nonnegative" and "psd" is that two rows' contributions never have a
negative inner product. It is tried on statistics that are made, of rows that nobody
would send.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import MODELS
from _setups import Setup, setup

from numpyro_vips.conjugacy.structure.statistic import Statistic

pytestmark = pytest.mark.optimized

# Models all of whose statistics may have either sign.
SIGNED = {"gaussian_mean", "gaussian_mean_precision"}


def statistic_of(this: Setup, name: str) -> Statistic:
    return next(s for s in this.program.structure.statistics if s.name == name)


def hostile(rows: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Rows of any sign and size, some of them like the real ones."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, array in rows.items():
        if array.dtype.kind == "f":
            size = 10.0 ** rng.uniform(-2, 3, (len(array), *(1,) * (array.ndim - 1)))
            wild = (size * rng.normal(size=array.shape)).astype(array.dtype)
        else:
            wild = rng.integers(-3, 6, array.shape).astype(array.dtype)
        keep = rng.random(array.shape) < 0.6
        found[name] = np.where(keep, array, wild)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_statistics_of_one_sign_never_point_apart(name: str) -> None:
    this = setup(name)
    kept = [
        block for block in this.scales if statistic_of(this, block).geometry != "signed"
    ]
    assert bool(kept) == (name not in SIGNED)
    for seed in range(2):
        made, norms = this.row_by_row(hostile(this.rows, seed))
        counts = np.isfinite(norms)  # Any other row is counted as zero.
        assert counts.mean() > 0.4
        for block in kept:
            flat = made[block].reshape(len(norms), -1)[counts].astype(np.float64)
            size = np.linalg.norm(flat, axis=1)
            inner = flat @ flat.T
            assert np.all(inner >= -1e-4 * np.outer(size, size) - 1e-12), block


@pytest.mark.parametrize("name", MODELS)
def test_entries_lie_in_the_range_that_is_stated(name: str) -> None:
    this = setup(name)
    for seed in range(2):
        made, norms = this.row_by_row(hostile(this.rows, seed))
        assert made.keys() == this.scales.keys() and np.isfinite(norms).mean() > 0.4
        for block, value in made.items():
            statistic = statistic_of(this, block)
            counts = value[np.isfinite(norms)]
            assert np.all(counts >= statistic.lower), block
            assert np.all(counts <= statistic.upper), block


@pytest.mark.parametrize(
    ("name", "block", "lower", "upper"),
    [
        ("beta_bernoulli", "⟨log p⟩", 0.0, 1.0),
        ("beta_bernoulli", "⟨log(1-p)⟩", 0.0, 1.0),
        ("dirichlet_categorical", "⟨log theta⟩", 0.0, 1.0),
        ("logistic_groups", "⟨a⟩", -math.inf, math.inf),
        ("logistic_groups", "⟨a a⟩", -0.125, 0.0),
        ("mixture", "⟨mu mu⟩⟨tau⟩", -0.5, 0.0),
        ("gamma_poisson", "⟨log rate⟩", -math.inf, math.inf),
        ("linear_regression", "⟨w⟩", -math.inf, math.inf),
    ],
)
def test_ranges_follow_from_labels_and_indicators(
    name: str, block: str, lower: float, upper: float
) -> None:
    statistic = statistic_of(setup(name), block)
    found = (statistic.lower, statistic.upper)
    assert found == pytest.approx((lower, upper), rel=1e-4)


def test_a_sum_over_entries_that_are_picked_does_not_count_their_number() -> None:
    """Five words of one topic each: at most five in any entry, and not five times K."""
    topics = statistic_of(setup("topics"), "⟨log beta⟩")
    assert (topics.lower, topics.upper) == pytest.approx((0.0, 5.0), rel=1e-4)


def geometries(fn: Any, *rows: np.ndarray) -> dict[str, str]:
    this = Setup(fn, rows)
    return {s.name: s.geometry for s in this.program.structure.statistics}


def test_a_regressions_second_moments_are_semidefinite() -> None:
    def logistic(X: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)

    X, y = np.ones((4, 3), np.float32), np.ones(4, np.float32)
    assert geometries(logistic, X, y) == {"⟨w⟩": "signed", "⟨w w⟩": "psd"}


def test_counts_of_words_are_not_negative_and_weights_may_be() -> None:
    def topics(words: Any, counts: Any) -> None:
        with numpyro.plate("topics", 2):
            beta = numpyro.sample("beta", dist.Dirichlet(jnp.ones(5)))
        with numpyro.plate("rows", words.shape[0], dim=-2):
            theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(2)))
            plate = numpyro.plate("words", words.shape[1], dim=-1)
            with plate, numpyro.handlers.scale(scale=counts):
                z = numpyro.sample("z", dist.Categorical(theta))
                numpyro.sample("w", dist.Categorical(beta[z]), obs=words)

    def weighted(words: Any, weights: Any) -> None:
        beta = numpyro.sample("beta", dist.Dirichlet(jnp.ones(5)))
        with numpyro.plate("rows", words.shape[0]):
            share = (jnp.log(beta)[words] * weights).sum(-1)
            numpyro.factor("share", share)

    words = np.zeros((4, 3), np.int32)
    counts = np.ones((4, 3), np.float32)
    assert geometries(topics, words, counts) == {"⟨log beta⟩": "nonnegative"}
    assert geometries(weighted, words, counts) == {"⟨log beta⟩": "signed"}


@pytest.mark.parametrize(
    "observed", [dist.Bernoulli, lambda p: dist.Binomial(5, p)], ids=["one", "five"]
)
def test_what_is_left_of_a_checked_range_is_not_negative(observed: Any) -> None:
    """The coefficient n - y of log(1 - p), also masked and weighted."""

    def coins(y: Any, seen: Any, weight: Any) -> None:
        p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        with (
            numpyro.plate("rows", y.shape[0]),
            numpyro.handlers.mask(mask=seen),
            numpyro.handlers.scale(scale=weight),
        ):
            numpyro.sample("y", observed(p), obs=y)

    y = np.ones(4, np.float32)
    found = geometries(coins, y, y > 0, y)
    assert list(found.values()) == ["nonnegative", "nonnegative"]


def test_a_complement_that_is_not_checked_is_signed() -> None:
    def weighted(y: Any, share: Any) -> None:
        p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.factor("f", (1 - share) * jnp.log1p(-p) + y * jnp.log(p))

    y = np.ones(4, np.float32)
    assert set(geometries(weighted, y, y).values()) == {"signed"}


def test_a_products_sign_is_not_guessed() -> None:
    """x·x' is a square only if both are the same column."""

    def crossed(A: Any, B: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        v = numpyro.sample("v", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("rows", A.shape[0]):
            numpyro.sample("y", dist.Normal(A @ w + B @ v, 1.0), obs=y)

    A = np.ones((4, 2), np.float32)
    found = geometries(crossed, A, A, A[:, 0])
    assert found["⟨w w⟩"] == found["⟨v v⟩"] == "psd"
    assert found["⟨v w⟩"] == "signed"


@pytest.mark.parametrize("name", MODELS)
def test_replacing_a_row_moves_the_sum_by_what_the_mechanism_says(name: str) -> None:
    """Real neighbours, clipped: ‖u − v‖ ≤ the joint sensitivity, block by block."""
    this = setup(name)
    made, norms = this.row_by_row(hostile(this.rows, 7))
    usable = np.isfinite(norms)
    clipping_norm = float(np.median(norms[usable])) if usable.any() else 1.0
    shrink = np.where(
        usable, np.minimum(1.0, clipping_norm / np.maximum(norms, 1e-30)), 0.0
    )
    total = np.zeros((len(norms), len(norms)))
    signed = False
    for block, value in made.items():
        flat = np.nan_to_num(value.reshape(len(norms), -1)) * shrink[:, None]
        flat = np.where(usable[:, None], flat, 0.0) * this.scales[block]
        total += ((flat[:, None] - flat[None]) ** 2).sum(-1)
        signed |= statistic_of(this, block).geometry == "signed"
    limit = (2.0 if signed else math.sqrt(2.0)) * clipping_norm
    assert np.sqrt(total.max()) <= limit * (1 + 1e-3)
