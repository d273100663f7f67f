"""`result.local_posterior` and `result.elbo`: rows that the caller may see."""

import functools
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to, vi_of
from _models import rates as rates_of_rows
from scipy import special

import numpyro_vips as nv

NUM_TOPICS, NUM_WORDS = 3, 12


def fit(model: Any, *args: Any, num_steps: int = 15, **options: Any) -> Any:
    return fit_to(model, *args, budget=math.inf, num_steps=num_steps, **options)


# --- topics ---------------------------------------------------------------------------


def topics() -> Any:
    with numpyro.plate("topics", NUM_TOPICS):
        return numpyro.sample("beta", dist.Dirichlet(jnp.full(NUM_WORDS, 0.3)))


@nv.private(unit="docs")
def tokens(words: Any) -> None:
    beta = topics()
    with numpyro.plate("docs", words.shape[0], dim=-2):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.full(NUM_TOPICS, 0.5)))
        with numpyro.plate("words", words.shape[1], dim=-1):
            z = numpyro.sample("z", dist.Categorical(theta))
            numpyro.sample("w", dist.Categorical(beta[z]), obs=words)


@nv.private(unit="docs")
def counted(ids: Any, counts: Any) -> None:
    beta = topics()
    with numpyro.plate("docs", ids.shape[0], dim=-2):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.full(NUM_TOPICS, 0.5)))
        with (
            numpyro.plate("distinct", ids.shape[1], dim=-1),
            numpyro.handlers.mask(mask=counts > 0),
            numpyro.handlers.scale(scale=jnp.maximum(counts, 1.0)),
        ):
            z = numpyro.sample("z", dist.Categorical(theta))
            numpyro.sample("w", dist.Categorical(beta[z]), obs=ids)


@nv.private(unit="docs")
def bag(counts: Any) -> None:
    beta = topics()
    with numpyro.plate("docs", counts.shape[0]):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.full(NUM_TOPICS, 0.5)))
        total = counts.sum(-1).astype(int)
        numpyro.sample("x", dist.Multinomial(total, probs=theta @ beta), obs=counts)


def documents(count: int = 20, length: int = 15) -> tuple[np.ndarray, ...]:
    """The same documents as tokens, as ids with counts, and as bags."""
    rng = np.random.default_rng(0)
    beta = rng.dirichlet(np.full(NUM_WORDS, 0.2), NUM_TOPICS)
    words = np.stack(
        [
            rng.choice(NUM_WORDS, length, p=rng.dirichlet(np.full(3, 0.5)) @ beta)
            for _ in range(count)
        ]
    )
    bags = np.stack([np.bincount(row, minlength=NUM_WORDS) for row in words])
    longest = int((bags > 0).sum(1).max()) + 2
    ids, counts = np.zeros((2, count, longest))
    for row, contents in enumerate(bags):
        present = np.flatnonzero(contents)
        ids[row, : len(present)] = present
        counts[row, : len(present)] = contents[present]
    return (
        words.astype(np.int32),
        ids.astype(np.int32),
        counts.astype(np.float32),
        bags.astype(np.float32),
    )


def reference_e_step(
    lam: np.ndarray, bag: np.ndarray, sweeps: int
) -> tuple[np.ndarray, float]:
    """Blei, Ng and Jordan (2003): γ of a document and its part of the bound."""
    log_beta = special.digamma(lam) - special.digamma(lam.sum(1, keepdims=True))
    alpha = np.full(NUM_TOPICS, 0.5)
    gamma = alpha.copy()
    present = np.flatnonzero(bag)
    phi = np.zeros((NUM_TOPICS, len(present)))
    for _ in range(sweeps):
        log_theta = special.digamma(gamma) - special.digamma(gamma.sum())
        logits = log_theta[:, None] + log_beta[:, present]
        phi = special.softmax(logits, axis=0)
        gamma = alpha + phi @ bag[present]
    log_theta = special.digamma(gamma) - special.digamma(gamma.sum())
    words = phi * (log_theta[:, None] + log_beta[:, present] - np.log(phi))
    bound = words.sum(0) @ bag[present]
    bound += special.gammaln(alpha.sum()) - special.gammaln(alpha).sum()
    bound -= special.gammaln(gamma.sum()) - special.gammaln(gamma).sum()
    return gamma, bound + (alpha - gamma) @ log_theta


@functools.cache
def fit_of_counts() -> nv.PrivateVIResult:
    _, ids, counts, _ = documents()
    return fit(counted, ids, counts)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "spelling",
    [
        pytest.param("tokens", marks=pytest.mark.slow),
        "counted",
        pytest.param("bag", marks=pytest.mark.slow),
    ],
)
def test_topic_models_agree_with_the_textbook_in_every_spelling(spelling: str) -> None:
    words, ids, counts, bags = documents()
    model, args = {
        "tokens": (tokens, (words,)),
        "counted": (counted, (ids, counts)),
        "bag": (bag, (bags,)),
    }[spelling]
    result = fit_of_counts() if spelling == "counted" else fit(model, *args)
    lam = np.asarray(result.params["beta/concentration"], np.float64)
    theta = result.local_posterior(*args)["theta"]
    found = np.asarray(theta.concentration).reshape(len(bags), -1)
    bound = result.elbo(*args)
    for row, contents in enumerate(bags):
        gamma, expected = reference_e_step(lam, contents, 20)
        if spelling == "bag":  # The multinomial coefficient.
            total = special.gammaln(contents.sum() + 1)
            expected += total - special.gammaln(contents + 1).sum()
        np.testing.assert_allclose(found[row], gamma, rtol=1e-3)
        np.testing.assert_allclose(bound[row], expected, rtol=1e-4)


@pytest.mark.slow
def test_all_spellings_of_a_topic_model_give_one_posterior() -> None:
    words, ids, counts, bags = documents()
    lam = fit(tokens, words).params["beta/concentration"]
    for model, args in ((counted, (ids, counts)), (bag, (bags,))):
        other = fit(model, *args).params["beta/concentration"]
        np.testing.assert_allclose(other, lam, rtol=2e-3)


@pytest.mark.thorough
def test_padding_says_nothing() -> None:
    _, ids, counts, _ = documents()
    result = fit_of_counts()
    padding = np.full((len(ids), 4), 7)
    longer = np.hstack([ids, padding]).astype(np.int32)
    more = np.hstack([counts, 0 * padding]).astype(np.float32)
    np.testing.assert_allclose(
        result.elbo(longer, more), result.elbo(ids, counts), rtol=1e-5
    )


@pytest.mark.thorough
@pytest.mark.usefixtures("coordinate_ascent")
def test_a_scaled_latent_is_so_many_copies() -> None:
    """c · log Σ_z p(z, x), as NumPyro enumerates, and not a sharper posterior."""

    @nv.private(unit="rows")
    def mixture(x: Any, copies: Any) -> None:
        with numpyro.plate("components", 2):
            mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        with (
            numpyro.plate("rows", x.shape[0]),
            numpyro.handlers.scale(scale=copies),
        ):
            z = numpyro.sample("z", dist.Categorical(jnp.array([0.4, 0.6])))
            numpyro.sample("x", dist.Normal(mu[z], 1.0), obs=x)

    x = np.array([-1.0, 0.2, 0.9, 2.0], np.float32)
    ones = np.ones(4, np.float32)
    copies = np.array([1.0, 3.0, 2.0, 5.0], np.float32)
    result = fit(mixture, x, ones)
    once, several = result.elbo(x, ones), result.elbo(x, copies)
    np.testing.assert_allclose(several, copies * once, rtol=1e-5)
    probabilities = [result.local_posterior(x, c)["z"].probs for c in (ones, copies)]
    np.testing.assert_allclose(*probabilities, rtol=1e-5)
    # And the fit to repeated rows is the fit to the rows repeated.
    repeated = np.repeat(x, copies.astype(int))
    long = fit(mixture, repeated, np.ones(len(repeated), np.float32))
    short = fit(mixture, x, copies)
    for name, value in long.params.items():
        np.testing.assert_allclose(short.params[name], value, rtol=1e-4, atol=1e-5)


def test_what_depends_on_copies_must_be_copied() -> None:
    @nv.private(unit="rows")
    def mixture(x: Any, copies: Any) -> None:
        with numpyro.plate("components", 2):
            mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        with numpyro.plate("rows", x.shape[0]):
            with numpyro.handlers.scale(scale=copies):
                z = numpyro.sample("z", dist.Categorical(jnp.array([0.4, 0.6])))
            numpyro.sample("x", dist.Normal(mu[z], 1.0), obs=x)

    x = np.zeros(5, np.float32)
    with pytest.raises(nv.NotConjugateError, match="'z' and 'x' do not share"):
        vi_of(mixture, budget=math.inf, engine="vips").explain(x, x)


# --- other latents --------------------------------------------------------------------


@pytest.mark.thorough
def test_polya_gamma_has_the_tilt_of_the_expected_squared_logit() -> None:
    @nv.private(unit="rows")
    def logistic(X: Any, y: Any) -> None:
        with numpyro.plate("features", X.shape[1]):
            w = numpyro.sample("w", dist.Normal(0.0, 2.0))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Binomial(4, logits=X @ w), obs=y)

    rng = np.random.default_rng(1)
    X = rng.normal(size=(30, 3)).astype(np.float32)
    y = rng.binomial(4, 0.5, 30).astype(np.float32)
    result = fit(logistic, X, y)
    q = result.local_posterior(X, y)["y:polya_gamma"]
    mean, covariance = result.params["w/loc"], result.params["w/covariance_matrix"]
    second = covariance + jnp.outer(mean, mean)
    assert isinstance(q, nv.PolyaGamma)
    np.testing.assert_allclose(q.b, 4.0)
    np.testing.assert_allclose(q.c**2, ((X @ second) * X).sum(1), rtol=1e-4)
    # The bound of Jaakkola and Jordan (2000) at its optimum, which c is.
    c = np.sqrt(((X @ second) * X).sum(1))
    kappa = (y - 2.0) * (X @ mean)
    expected = kappa - 4.0 * np.logaddexp(c / 2, -c / 2)
    expected += special.gammaln(5) - special.gammaln(y + 1) - special.gammaln(5 - y)
    np.testing.assert_allclose(result.elbo(X, y), expected, rtol=1e-4)


@pytest.mark.slow
def test_factors_of_a_factor_analysis_have_their_closed_form() -> None:
    @nv.private(unit="rows")
    def factors(x: Any) -> None:
        W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([4, 2]).to_event(2))
        with numpyro.plate("rows", x.shape[0]):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
            numpyro.sample("x", dist.Normal(z @ W.T, 0.5).to_event(1), obs=x)

    x = np.random.default_rng(2).normal(size=(25, 4)).astype(np.float32)
    result = fit(factors, x)
    q = result.local_posterior(x)["z"]
    mean = np.asarray(result.params["W/loc"]).reshape(4, 2)
    covariance = np.asarray(result.params["W/covariance_matrix"]).reshape(4, 2, 2)
    precision = np.eye(2) + 4.0 * (mean.T @ mean + covariance.sum(0))
    assert q.batch_shape == (25,)
    np.testing.assert_allclose(
        q.covariance_matrix[3], np.linalg.inv(precision), rtol=1e-4, atol=1e-6
    )
    expected = np.linalg.solve(precision, 4.0 * mean.T @ x.T).T
    np.testing.assert_allclose(q.loc, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_a_hidden_chain_is_summed_out_exactly() -> None:
    length = 4

    @nv.private(unit="rows")
    def chain(x: Any) -> None:
        with numpyro.plate("states", 2):
            A = numpyro.sample("A", dist.Dirichlet(jnp.ones(2)))
            mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
        with numpyro.plate("rows", x.shape[0]):
            z: Any = 0
            for t in range(length):
                z = numpyro.sample(f"z{t}", dist.Categorical(A[z]))
                numpyro.sample(f"x{t}", dist.Normal(mu[z], 1.0), obs=x[:, t])

    x = np.random.default_rng(3).normal(size=(6, length)).astype(np.float32)
    result = fit(chain, x)
    concentration = np.asarray(result.params["A/concentration"])
    log_a = special.digamma(concentration)
    log_a -= special.digamma(concentration.sum(1, keepdims=True))
    loc = np.asarray(result.params["mu/loc"]).reshape(2)
    variance = np.asarray(result.params["mu/covariance_matrix"]).reshape(2)

    def log_weight(row: np.ndarray, path: tuple[int, ...]) -> float:
        total, before = 0.0, 0
        for value, state in zip(row, path, strict=True):
            square = (value - loc[state]) ** 2 + variance[state]
            total += log_a[before, state] - 0.5 * square - 0.5 * math.log(2 * math.pi)
            before = state
        return total

    paths = list(itertools.product(range(2), repeat=length))
    weights = np.array([[log_weight(row, path) for path in paths] for row in x])
    np.testing.assert_allclose(
        result.elbo(x), special.logsumexp(weights, axis=1), rtol=1e-4
    )
    shares = special.softmax(weights, axis=1)
    posterior = result.local_posterior(x)
    for t in range(length):
        ones = shares @ np.array([path[t] for path in paths])
        np.testing.assert_allclose(posterior[f"z{t}"].probs[:, 1], ones, rtol=1e-3)


@pytest.mark.slow
def test_binary_latents_come_as_bernoulli_in_the_models_shape() -> None:
    @nv.private(unit="rows")
    def network(y: Any) -> None:
        W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([5, 2]).to_event(2))
        with numpyro.plate("rows", y.shape[0]):
            z = numpyro.sample("z", dist.Bernoulli(0.4).expand([2]).to_event(1))
            numpyro.sample("y", dist.Bernoulli(logits=z @ W.T).to_event(1), obs=y)

    y = (np.random.default_rng(4).random((9, 5)) < 0.5).astype(np.float32)
    q = fit(network, y, num_steps=3).local_posterior(y)
    assert isinstance(q["z"], dist.BernoulliProbs)
    assert q["z"].probs.shape == (9, 2)
    draws = q["z"].sample(jax.random.key(0), (50,))
    assert set(np.unique(draws)) <= {0, 1}


# --- what is not a number, and files --------------------------------------------------

rates = nv.private(rates_of_rows, unit="rows")


def expected_poisson(concentration: float, rate: float, y: np.ndarray) -> np.ndarray:
    mean_log = special.digamma(concentration) - math.log(rate)
    return y * mean_log - concentration / rate - special.gammaln(y + 1)


@pytest.mark.thorough
def test_rows_without_latents_have_their_expected_log_density(tmp_path: Path) -> None:
    y = np.array([0, 2, 5, 1], np.int32)
    result = fit(rates, y)
    concentration = float(result.params["rate/concentration"])
    expected = expected_poisson(concentration, float(result.params["rate/rate"]), y)
    np.testing.assert_allclose(result.elbo(y), expected, rtol=1e-5)
    assert result.local_posterior(y) == {}

    result.save(tmp_path / "fit.nc")
    without = nv.load(tmp_path / "fit.nc")
    with pytest.raises(ValueError, match=r"load\(path, model=model\)"):
        without.elbo(y)
    again = nv.load(tmp_path / "fit.nc", model=rates)
    np.testing.assert_allclose(again.elbo(y), expected, rtol=1e-5)


@pytest.mark.thorough
def test_more_rows_than_fit_in_one_pass() -> None:
    y = np.arange(1300, dtype=np.int32) % 7
    result = fit(rates, y[:20])
    bound = result.elbo(y)
    assert bound.shape == (1300,)
    np.testing.assert_allclose(bound[:7], bound[1295 - 1295 % 7 - 7 :][:7], rtol=1e-6)


def test_an_invalid_row_has_no_bound() -> None:
    y = np.array([1, -3, 2], np.int32)
    result = fit(rates, np.array([1, 2, 3], np.int32))
    bound = result.elbo(y)
    np.testing.assert_array_equal(np.isnan(bound), [False, True, False])


FAMILIES: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "Gamma": (lambda: dist.Gamma(2.0, 1.0), dist.Poisson, "theta"),
    "Beta": (lambda: dist.Beta(2.0, 3.0), dist.Bernoulli, "theta"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("family", FAMILIES)
def test_local_latents_with_conjugate_priors(family: str) -> None:
    """A latent of every row's own, whose posterior follows from its row alone."""
    prior, child, site = FAMILIES[family]

    @nv.private(unit="rows")
    def model(y: Any) -> None:
        with numpyro.plate("rows", y.shape[0], dim=-2):
            theta = numpyro.sample(site, prior())
            with numpyro.plate("times", y.shape[1], dim=-1):
                numpyro.sample("y", child(theta), obs=y)

    y = np.array([[0, 1, 1], [1, 1, 1], [0, 0, 0], [1, 0, 0]], np.int32)
    q = fit(model, y, num_steps=2).local_posterior(y)[site]
    total = y.sum(1, keepdims=True)
    if family == "Gamma":
        np.testing.assert_allclose(q.concentration, 2.0 + total)
        np.testing.assert_allclose(q.rate, np.full((4, 1), 4.0))
    else:
        np.testing.assert_allclose(q.concentration1, 2.0 + total)
        np.testing.assert_allclose(q.concentration0, 3.0 + 3 - total)


@pytest.mark.thorough
def test_gradient_fits_average_the_log_density_over_draws() -> None:
    y = np.array([0, 2, 5, 1], np.int32)
    result = fit(rates, y, engine="dpvi", num_steps=300)
    draws = result.sample_posterior(jax.random.key(0), (100,))["rate"]
    expected = dist.Poisson(draws[:, None]).log_prob(y).mean(0)
    np.testing.assert_allclose(result.elbo(y), expected, rtol=1e-4)


@pytest.mark.thorough
def test_gradient_fits_sum_discrete_latents_out() -> None:
    @nv.private(unit="rows")
    def mixture(x: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        with numpyro.plate("rows", x.shape[0]):
            z = numpyro.sample("z", dist.Categorical(jnp.array([0.3, 0.7])))
            numpyro.sample("x", dist.Normal(mu[z], 1.0), obs=x)

    x = np.array([-1.0, 0.5, 2.0], np.float32)
    result = fit(mixture, x, engine="dpvi", num_steps=5)
    mu = result.sample_posterior(jax.random.key(0), (100,))["mu"]
    each = dist.Normal(mu[:, None], 1.0).log_prob(x[:, None]) + np.log([0.3, 0.7])
    expected = special.logsumexp(each, axis=-1).mean(0)
    np.testing.assert_allclose(result.elbo(x), expected, rtol=1e-4)
