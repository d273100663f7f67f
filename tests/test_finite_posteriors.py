"""Whatever the priors and the noise are, a fit ends in a posterior that can be used."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from scipy import stats

import numpyro_vips as nv

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)


def regression(X, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    s = numpyro.sample("s", dist.HalfCauchy(2.5))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, s), obs=y)


def groups(c, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    between = numpyro.sample("between", dist.HalfNormal(1.0))
    within = numpyro.sample("within", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 8):
        a = numpyro.sample("a", dist.Normal(mu, between))
    with numpyro.plate("rows", c.shape[0]):
        numpyro.sample("y", dist.Normal(a[c], within), obs=y)


def wide(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1e4))
    s = numpyro.sample("s", dist.HalfNormal(1e4))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, s), obs=y)


def precise(x, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1e4))
    tau = numpyro.sample("tau", dist.Gamma(1e-3, 1e-3))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(b * x, 1 / jnp.sqrt(tau)), obs=y)


X = RNG.normal(size=(200, 3))
X = (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32)
Y = (X @ [0.3, -0.4, 0.2] + 0.05 * RNG.normal(size=200)).astype(np.float32)
C = np.arange(400) % 8
A = 2 + 0.7 * RNG.normal(size=8)
GROUPED = (A[C] + 0.3 * RNG.normal(size=400)).astype(np.float32)
LINE = RNG.uniform(-1, 1, 300).astype(np.float32)
ON_LINE = (0.5 * LINE + 0.2 * RNG.normal(size=300)).astype(np.float32)

CASES: dict[str, tuple[Any, tuple[np.ndarray, ...]]] = {
    "regression": (regression, (X, Y)),
    "groups": (groups, (C, GROUPED)),
    "wide": (wide, (LINE, ON_LINE)),
    "precise": (precise, (LINE, ON_LINE)),
}
each = pytest.mark.parametrize("name", CASES)


def fitted(name: str, epsilon: float = math.inf, **options: Any) -> nv.PrivateVIResult:
    fn, rows = CASES[name]
    budget = nv.PrivacyBudget(epsilon, 0.0 if math.isinf(epsilon) else 1e-5)
    return vi_of(fn, budget=budget, engine="vips", **options).run(KEY, *rows)


@pytest.mark.quick_with("0.01-precise")
@pytest.mark.usefixtures("without_remarks")
@pytest.mark.filterwarnings("ignore:.*insecure_seed")
@each
@pytest.mark.parametrize(
    "epsilon",
    [0.01, 1.0, *(pytest.param(x, marks=pytest.mark.slow) for x in (0.1, 10))],
)
def test_noise_never_makes_a_posterior_that_is_none(name: str, epsilon: float) -> None:
    for seed in range(3):
        result = fitted(name, epsilon, insecure_seed=seed)
        draws = result.sample_posterior(KEY, (100,))
        for site, values in {**result.params, **draws}.items():
            assert np.isfinite(values).all(), (site, seed)
        positive = {"s", "between", "within", "tau"} & set(draws)
        assert all((draws[site] > 0).all() for site in positive)


@pytest.mark.thorough
def test_a_scale_below_the_noise_is_as_large_as_the_noise_allows() -> None:
    """Rows of residual 0.05: their sum of squares, 0.5, is far below its noise."""
    scales = [
        fitted("regression", 1.0, insecure_seed=seed).sample_posterior(KEY, (200,))["s"]
        for seed in range(6)
    ]
    # The prior is HalfCauchy(2.5), with its median there, and rows are clipped to a
    # norm of its tail.
    medians = np.median(scales, axis=1)
    exact = fitted("regression").sample_posterior(KEY, (200,))["s"].mean()
    assert exact == pytest.approx(0.05, rel=0.15)
    assert (medians > exact).all() and medians.max() < 2 * 2.5


@pytest.mark.thorough
def test_a_hierarchy_without_noise_is_that_of_its_conditionals() -> None:
    result = fitted("groups")
    draws = result.sample_posterior(KEY, (4000,))
    counts = np.bincount(C)
    averages = np.bincount(C, GROUPED) / counts
    np.testing.assert_allclose(draws["a"].mean(0), averages, atol=0.03)
    np.testing.assert_allclose(draws["within"].mean(), 0.3, rtol=0.1)
    # The posterior of the hyper-parameters, on a grid, given the groups' averages.
    variance = 0.3**2 / counts[0]
    mu, tau = np.meshgrid(np.linspace(-1, 5, 400), np.linspace(0.01, 4, 400))
    log = -0.5 * (mu / 10) ** 2 - 0.5 * tau**2
    for average in averages:
        log += stats.norm.logpdf(average, mu, np.sqrt(tau**2 + variance))
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    mean, sd = (weight * tau).sum(), None
    sd = math.sqrt((weight * (tau - mean) ** 2).sum())
    assert abs(draws["between"].mean() - mean) < 0.3 * sd
    assert 0.7 < draws["between"].std() / sd < 1.1
    centre = (weight * mu).sum()
    spread = math.sqrt((weight * (mu - centre) ** 2).sum())
    assert abs(draws["mu"].mean() - centre) < 0.3 * spread
    assert 0.7 < draws["mu"].std() / spread < 1.1


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["wide", "precise"])
def test_wide_priors_leave_least_squares(name: str) -> None:
    draws = fitted(name).sample_posterior(KEY, (4000,))
    slope = (LINE @ ON_LINE) / (LINE @ LINE)
    residual = ((ON_LINE - slope * LINE) ** 2).sum() / 300
    error = math.sqrt(residual / (LINE @ LINE))
    assert abs(draws["b"].mean() - slope) < 0.1 * error
    assert draws["b"].std() == pytest.approx(error, rel=0.06)
    scale = draws["s"] if name == "wide" else draws["tau"] ** -0.5
    assert scale.mean() == pytest.approx(math.sqrt(residual), rel=0.02)


@pytest.mark.thorough
def test_columns_of_large_numbers_are_solved_for() -> None:
    """Years as they are written: the residuals are a millionth of what cancels."""
    year = np.arange(1950, 2012, dtype=np.float32)
    degrees = (0.02 * (year - 1980) + 9 + RNG.normal(size=62)).astype(np.float32)

    def model(year, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1e3).expand([2]).to_event(1))
        s = numpyro.sample("s", dist.HalfNormal(100.0))
        with numpyro.plate("rows", year.shape[0]):
            numpyro.sample("y", dist.Normal(w[0] + w[1] * year, s), obs=y)

    vi = vi_of(model, budget=math.inf)
    draws = vi.run(KEY, year, degrees).sample_posterior(KEY, (4000,))
    found: Any = stats.linregress(year.astype(float), degrees.astype(float))
    slope = np.asarray(draws["w"][:, 1], float)
    assert abs(slope.mean() - found.slope) < 0.1 * found.stderr
    assert slope.std() == pytest.approx(found.stderr, rel=0.1)


@pytest.mark.slow
def test_effects_of_rows_do_not_make_up_for_a_far_start() -> None:
    """Wide priors of the coefficients, and effects of rows of unknown size.

    Effects can take over whatever the coefficients start with. The fit must not end
    there: the counts themselves were drawn with coefficients near one.
    """

    def plates(n, x, r=None):
        a = numpyro.sample("a", dist.Normal(0.0, 1e3))
        b = numpyro.sample("b", dist.Normal(0.0, 1e3))
        tau = numpyro.sample("tau", dist.Gamma(1e-3, 1e-3))
        with numpyro.plate("rows", x.shape[0]):
            effect = numpyro.sample("effect", dist.Normal(0.0, 1 / jnp.sqrt(tau)))
            numpyro.sample("r", dist.Binomial(n, logits=a + b * x + effect), obs=r)

    rng = np.random.default_rng(3)
    x = rng.normal(size=60).astype(np.float32)
    n = rng.integers(5, 60, 60)
    logits = -0.5 + 1.2 * x + 0.3 * rng.normal(size=60)
    r = rng.binomial(n, 1 / (1 + np.exp(-logits)))
    vi = vi_of(plates, budget=math.inf, engine="vips")
    draws = vi.run(KEY, n, x, r).sample_posterior(KEY, sample_shape=(500,))
    assert abs(np.mean(draws["a"]) + 0.5) < 0.2
    assert abs(np.mean(draws["b"]) - 1.2) < 0.3
