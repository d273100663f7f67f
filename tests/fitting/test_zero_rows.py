"""Rows that count as zero: how many there are, and that the posterior goes without."""

import math
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to, vi_of
from _plain_engine import step_of
from scipy import integrate, stats

import numpyro_vips as nv
from numpyro_vips.fitting.bounds.norm_parts import NormPart
from numpyro_vips.fitting.private_step import release
from numpyro_vips.fitting.step import Step
from numpyro_vips.fitting.zero_rows import combined, shares_counted, valid_rows
from numpyro_vips.jax_tools.row_sums import ZERO_ROWS
from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.privacy.releases import COVARIATES, VALID_ROWS
from numpyro_vips.privacy.secure_random import SecureRandom
from numpyro_vips.privacy.statement import NoisyShare

NUM_ROWS, NUM_ZERO = 2000, 300
RNG = np.random.default_rng(0)
X = RNG.normal(size=(NUM_ROWS, 2)).astype(np.float32)
LINE = (4.0 + X @ [1.0, -1.0] + 2.0 * RNG.normal(size=NUM_ROWS)).astype(np.float32)
COUNTS = RNG.poisson(6.0, NUM_ROWS)


def share(found: float, stddev: float) -> NoisyShare:
    return NoisyShare(share=found, stddev=stddev)


@pytest.mark.parametrize("stddev", [0.003, 0.05])
@pytest.mark.parametrize("found", [-0.01, 0.0, 0.006, 0.012, 0.1, 0.9, 1.01])
def test_the_valid_rows_are_those_to_expect(found: float, stddev: float) -> None:
    """By quadrature, of a share that is zero or anything with equal probability."""

    def likelihood(of: float) -> float:
        return float(stats.norm.pdf(found, of, stddev))

    near = np.clip([found - 9 * stddev, found, found + 9 * stddev], 0.0, 1.0)
    of_any = integrate.quad(likelihood, 0, 1, points=near, limit=200)[0]
    first = integrate.quad(lambda x: x * likelihood(x), 0, 1, points=near, limit=200)[0]
    expected = first / (of_any + likelihood(0.0))
    valid = valid_rows(share(found, stddev), 1000)
    assert valid.number == pytest.approx(1000 * (1 - expected), abs=1e-3)
    # What more probably is noise is taken for that.
    is_any = of_any > likelihood(0.0)
    assert valid.stddev == pytest.approx(1000 * stddev if is_any else 0.0)


def test_without_noise_the_share_is_known() -> None:
    assert valid_rows(share(0.15, 0.0), 2000) == (1700.0, 0.0)


@pytest.mark.parametrize("found", [-1e3, -1.0, 1.0, 2.0, 1e3])
def test_extreme_noise_leaves_a_number_of_rows(found: float) -> None:
    number = valid_rows(share(found, 1e-3), 10).number
    assert 0.0 <= number <= 10.0
    assert number == pytest.approx(10.0 if found < 0 else 0.0, abs=0.1)


def test_releases_count_by_their_precision() -> None:
    found = combined([share(0.1, 0.01), share(0.2, 0.02)])
    assert found.share == pytest.approx((4 * 0.1 + 0.2) / 5)
    assert found.stddev == pytest.approx(1 / math.sqrt(1e4 + 2.5e3))
    exact = share(0.3, 0.0)
    assert combined([share(0.1, 0.01), exact]) == exact


def test_moments_of_covariates_tell_of_no_rows() -> None:
    """A row whose observation alone is missing has a norm there."""
    parts = tuple(
        NormPart(name=name, blocks=(name,), reference=1.0) for name in ("a", COVARIATES)
    )
    blocks = tuple(Block(name=part.name, shape=(3,)) for part in parts)
    step = step_of(nv.FullBatch(), 2.0, blocks=blocks, counted=parts)
    counts = {"a": np.array([80.0, 0.0, 20.0]), COVARIATES: np.array([100.0, 0, 0])}
    (found,) = shares_counted(step, counts, 100)
    assert found.share == pytest.approx(0.2)
    assert found.stddev == pytest.approx(step.mechanism.block_noise_stddev("a") / 100)


def mean_of(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 2.0), obs=y)


def line(x: Any, y: Any) -> None:
    start = numpyro.sample("start", dist.Normal(0.0, 3.0))
    w = numpyro.sample("w", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(3.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(start + x @ w, spread), obs=y)


def rate_of(y: Any) -> None:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def chance_of(y: Any) -> None:
    chance = numpyro.sample("chance", dist.Beta(2.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Binomial(20, chance), obs=y)


def labels_of(y: Any) -> None:
    chance = numpyro.sample("chance", dist.Beta(2.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(chance), obs=y)


def with_zeros(y: np.ndarray) -> np.ndarray:
    invalid = np.nan if y.dtype == np.float32 else -1
    return np.where(np.arange(NUM_ROWS) < NUM_ZERO, invalid, y).astype(y.dtype)


MODELS = {
    "mean": (mean_of, (), LINE),
    "line": (line, (X,), LINE),
    "rate": (rate_of, (), COUNTS),
    "chance": (chance_of, (), COUNTS),
}


@pytest.mark.parametrize("name", MODELS)
def test_without_noise_the_posterior_is_that_of_the_other_rows(name: str) -> None:
    model, x, y = MODELS[name]
    options: dict[str, Any] = {"budget": math.inf, "engine": "vips"}
    with pytest.warns(UserWarning, match="15 % of the rows counted as zero"):
        found = fit_to(model, *x, with_zeros(y), **options)
    rest = fit_to(model, *(of[NUM_ZERO:] for of in (*x, y)), **options)
    for site, expected in rest.posterior.moments().items():
        moments = found.posterior.moments()[site]
        np.testing.assert_allclose(moments.mean, expected.mean, rtol=1e-4)
        np.testing.assert_allclose(moments.stddev, expected.stddev, rtol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_under_noise_the_posterior_is_that_of_the_other_rows(name: str) -> None:
    """By the public number of rows a mean would be off by 15 %: many deviations."""
    model, x, y = MODELS[name]
    with pytest.warns(UserWarning, match="counted as zero"):
        found = fit_to(
            model, *x, with_zeros(y), budget=8.0, engine="vips", insecure_seed=0
        )
    zeros = found.privacy.shares[ZERO_ROWS]
    assert abs(zeros.share - NUM_ZERO / NUM_ROWS) < 4 * zeros.stddev < 0.05
    rest = fit_to(
        model, *(of[NUM_ZERO:] for of in (*x, y)), budget=math.inf, engine="vips"
    )
    for site, expected in rest.posterior.moments().items():
        moments = found.posterior.moments()[site]
        away = (moments.mean - expected.mean) / moments.stddev
        assert np.max(np.abs(away)) < 4.0


def test_what_reports_say_counts_as_well() -> None:
    """Where the structure bounds all norms there is no histogram."""
    y = with_zeros((COUNTS > 4).astype(np.int32))
    with pytest.warns(UserWarning, match="counted as zero"):
        found = fit_to(labels_of, y, budget=8.0, insecure_seed=1)
    (event,) = found.privacy.events
    assert "histogram" not in event.label
    chance = found.posterior.moments()["chance"]
    assert abs(chance.mean - np.mean(COUNTS[NUM_ZERO:] > 4)) < 4 * chance.stddev


# --- a number of rows that the caller declares ----------------------------------------


def counting_step(fit: Any) -> Step:
    (step,) = (step for step in fit.steps if step.counts_rows)
    return step


def counted(fit: Any, y: np.ndarray, mask: Any = True) -> float:
    """The valid rows of a chunk, before noise."""
    state = fit.engine.initial_state(jax.random.key(0))
    rows, mask = {"y": y}, np.broadcast_to(mask, len(y))
    return fit.engine.valid_count(state, rows, mask)


def test_rows_are_counted_one_by_one() -> None:
    """On every pair of neighbours of these rows, for both relations."""
    y = np.array([0, 3, -1, 6, 10**6, -7, 2, 5], np.int32)
    fit = vi_of(rate_of, num_rows=10)._prepare_fit((y,), {})[0]
    mechanism = counting_step(fit).mechanism
    whole = counted(fit, y)
    assert whole == 6
    moved: dict[Any, float] = {"add_or_remove": 0.0, "replace_one": 0.0}
    for number in range(len(y)):
        without = counted(fit, y, np.arange(len(y)) != number)
        moved["add_or_remove"] = max(moved["add_or_remove"], abs(whole - without))
        for other in y:
            replaced = y.copy()
            replaced[number] = other
            change = abs(whole - counted(fit, replaced))
            moved["replace_one"] = max(moved["replace_one"], change)
    for relation, most in moved.items():
        assert most == 1.0 <= mechanism.sensitivity(relation)
    assert mechanism.sensitivity("add_or_remove") == 1.0


def test_the_count_has_the_noise_that_is_stated() -> None:
    y = np.array([0, 3, -1, 6, 2, 5], np.int32)
    vi = vi_of(rate_of, num_rows=10, noise_multiplier=2.0)
    fit = vi._prepare_fit((y,), {})[0]
    step, state = counting_step(fit), fit.engine.initial_state(jax.random.key(0))
    stated = step.mechanism.block_noise_stddev(VALID_ROWS)
    assert stated > 1.0
    random = SecureRandom()

    def count() -> float:
        found = release(fit.arguments, fit.engine, step, state, random, None)
        return float(found[VALID_ROWS])

    found = np.array([count() for _ in range(400)])
    # By chance one in a million times.
    assert abs(np.mean(found) - 5.0) < 5 * stated / math.sqrt(400)
    assert np.std(found) / stated == pytest.approx(1.0, abs=5 / math.sqrt(800))


@pytest.mark.parametrize("declared", [1700, 2400])
@pytest.mark.parametrize("options", [{}, {"clipping_norm": 15.0}])
def test_a_declared_number_need_not_be_right(declared: int, options: Any) -> None:
    """By that number a rate would be off by a sixth: many deviations."""
    options = {"budget": 4.0, "engine": "vips", "insecure_seed": 0, **options}
    found = fit_to(rate_of, COUNTS, num_rows=declared, **options)
    rate = found.posterior.moments()["rate"]
    assert abs(rate.mean - 6.0) < 4 * rate.stddev < 0.8
    (count,) = (e for e in found.privacy.events if e.label == VALID_ROWS)
    assert count.sensitivity == 1.0 and count.noise_stddev > 1.0


def test_without_noise_the_rows_are_counted_as_they_are() -> None:
    options: dict[str, Any] = {"budget": math.inf, "engine": "vips"}
    expected = fit_to(rate_of, COUNTS[NUM_ZERO:], **options)
    with pytest.warns(UserWarning, match="counted as zero"):
        found = fit_to(rate_of, with_zeros(COUNTS), num_rows=2400, **options)
    for of in (found, expected):
        np.testing.assert_allclose(
            of.posterior.moments()["rate"].mean, COUNTS[NUM_ZERO:].mean(), rtol=1e-3
        )
    np.testing.assert_allclose(
        found.posterior.moments()["rate"], expected.posterior.moments()["rate"]
    )


@pytest.mark.parametrize(
    ("model", "y", "options"),
    [
        (rate_of, COUNTS, {"engine": "vips"}),
        (rate_of, COUNTS, {"engine": "dpvi", "num_rows": 2400}),
        (labels_of, (COUNTS > 4).astype(np.int32), {"num_rows": 2400}),
    ],
    ids=["a public number", "gradients", "no public sums"],
)
def test_rows_are_counted_only_where_that_is_needed(
    model: Any, y: np.ndarray, options: Any
) -> None:
    fit = vi_of(model, **options)._prepare_fit((y,), {})[0]
    assert not any(step.counts_rows for step in fit.steps)
