"""How often the truth lies in the intervals of private posteriors.

    python benchmarks/coverage.py [names ...] [--rows 1000] [--epsilon 1]

A repetition draws the globals from the prior and the rows from the model, fits with
defaults, and looks whether each global lies in its interval of 90 %. Printed for each
model: the share that does, with its standard error over the repetitions; how wide the
intervals are, over those of a Gaussian with the root mean square of the error (1 is
calibrated); the root mean square itself; and how many fits warned. With `--records
FILE` the table can be made in parts. Where the prior does not tell components apart,
they are sorted (`SORTED_BY`), in the truth and in every draw. Where globals are not
identified otherwise, intervals are those of functions of them (`FUNCTIONS`).
"""

import argparse
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from _finished import Finished
from natural_scales import CASES as ON_NATURAL_SCALES
from natural_scales import Case, none, raw, standardised

import numpyro_vips as nv

DELTA = 1e-5
LEVEL = 0.9
# Half the width of a Gaussian interval at this level, in standard deviations.
HALF_WIDTH = 1.645


def gaussian_mean(n: int, y: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def gaussian(n: int, y: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    precision = numpyro.sample("precision", dist.Gamma(3.0, 3.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Normal(mean, 1 / jnp.sqrt(precision)), obs=y)


def covariance(n: int, y: Any = None) -> None:
    """Three measurements with any covariance."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    precision = numpyro.sample(
        "precision", dist.Wishart(6.0, rate_matrix=6.0 * jnp.eye(3))
    )
    with numpyro.plate("rows", n):
        of_rows = dist.MultivariateNormal(mean, precision_matrix=precision)
        numpyro.sample("y", of_rows, obs=y)


def known_noise(n: int, X: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Normal(X @ w, 0.5), obs=y)


def unknown_noise(n: int, X: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    precision = numpyro.sample("precision", dist.Gamma(3.0, 3.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Normal(X @ w, 1 / jnp.sqrt(precision)), obs=y)


def wide_logistic(n: int, X: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def probit(n: int, X: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    chance = jax.scipy.stats.norm.cdf(X @ w)
    with numpyro.plate("rows", n):
        numpyro.sample(
            "y", dist.Bernoulli(probs=jnp.clip(chance, 1e-6, 1 - 1e-6)), obs=y
        )


def logistic_groups(n: int, X: Any, group: Any, y: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("groups", 8):
        effect = numpyro.sample("effect", dist.Normal(mean, scale))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Bernoulli(logits=effect[group] + X @ w), obs=y)


def zero_inflated(n: int, X: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 0.5).expand([3]).to_event(1))
    gate = numpyro.sample("gate", dist.Beta(2.0, 2.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.ZeroInflatedPoisson(gate, jnp.exp(X @ w)), obs=y)


def raw_columns(n: int, X: Any, y: Any = None) -> None:
    """A constant, ages and incomes, with priors that know nothing of their units."""
    w = numpyro.sample("w", dist.Normal(0.0, 100.0).expand([3]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(300.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Normal(X @ w, sigma), obs=y)


def columns_apart(n: int, X: Any, y: Any = None) -> None:
    """As `raw_columns`, with a latent for each of them."""
    a, b, c = (numpyro.sample(name, dist.Normal(0.0, 100.0)) for name in "abc")
    sigma = numpyro.sample("sigma", dist.HalfNormal(300.0))
    with numpyro.plate("rows", n):
        loc = a + b * X[:, 1] + c * X[:, 2]
        numpyro.sample("y", dist.Normal(loc, sigma), obs=y)


def logistic_apart(n: int, X: Any, y: Any = None) -> None:
    """As the raw logistic regression, with a latent for each column."""
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    b, c = (numpyro.sample(name, dist.Normal(0.0, 0.03)) for name in "bc")
    with numpyro.plate("rows", n):
        logits = a + b * X[:, 1] + c * X[:, 2]
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def textbook(n: int, X: Any, y: Any = None) -> None:
    """With the priors of McElreath's book."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    b = numpyro.sample("b", dist.Normal(0.0, 0.5).expand([3]).to_event(1))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Normal(a + X @ b, sigma), obs=y)


def unequal_noise(n: int, X: Any, y: Any = None) -> None:
    """The logarithm of the noise's scale has a regression of its own."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    v = numpyro.sample("v", dist.Normal(0.0, 0.3).expand([3]).to_event(1))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Normal(X @ w, jnp.exp(X @ v)), obs=y)


def lifetimes(n: int, X: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 0.5).expand([3]).to_event(1))
    shape = numpyro.sample("shape", dist.LogNormal(0.5, 0.3))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Weibull(jnp.exp(X @ w), shape), obs=y)


def robust(n: int, X: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.StudentT(4.0, X @ w, scale), obs=y)


def ordinal(n: int, X: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    wide = dist.Normal(0.0, 1.5).expand([3]).to_event(1)
    ordered = dist.transforms.OrderedTransform()
    cuts = numpyro.sample("cuts", dist.TransformedDistribution(wide, ordered))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.OrderedLogistic(X @ w, cuts), obs=y)


def misreported(n: int, y: Any = None) -> None:
    """One answer in five is not the true one."""
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    with numpyro.plate("rows", n):
        true = numpyro.sample(
            "true", dist.Bernoulli(share), infer={"enumerate": "parallel"}
        )
        numpyro.sample("y", dist.Bernoulli(jnp.where(true == 1, 0.8, 0.2)), obs=y)


def clusters(n: int, y: Any = None) -> None:
    """Two that overlap."""
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.full(2, 5.0)))
    means = numpyro.sample("means", dist.Normal(jnp.array([-1.5, 1.5]), 0.5))
    with numpyro.plate("rows", n):
        z = numpyro.sample(
            "z", dist.Categorical(weights), infer={"enumerate": "parallel"}
        )
        numpyro.sample("y", dist.Normal(means[z], 1.0), obs=y)


def two_durations(n: int, y: Any = None) -> None:
    """Of a known shape, as the times of services in four stages."""
    share = numpyro.sample("share", dist.Dirichlet(jnp.full(2, 5.0)))
    with numpyro.plate("kinds", 2):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", n):
        kinds = dist.MixtureSameFamily(dist.Categorical(share), dist.Gamma(4.0, rate))
        numpyro.sample("y", kinds, obs=y)


def latent_classes(n: int, y: Any = None) -> None:
    """Two classes of people, and six questions."""
    share = numpyro.sample("share", dist.Dirichlet(jnp.full(2, 5.0)))
    with numpyro.plate("classes", 2):
        yes = numpyro.sample("yes", dist.Beta(jnp.ones(6), 1.0).to_event(1))
    with numpyro.plate("rows", n):
        z = numpyro.sample(
            "z", dist.Categorical(share), infer={"enumerate": "parallel"}
        )
        numpyro.sample("y", dist.Bernoulli(yes[z]).to_event(1), obs=y)


def annotators(n: int, y: Any = None) -> None:
    """Dawid and Skene (1979), with two classes."""
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.full(2, 5.0)))
    with numpyro.plate("annotators", 4):
        said = numpyro.sample(
            "said", dist.Dirichlet(jnp.array([[8.0, 2.0], [2.0, 8.0]])).to_event(1)
        )
    with numpyro.plate("rows", n):
        z = numpyro.sample(
            "z", dist.Categorical(shares), infer={"enumerate": "parallel"}
        )
        for k in range(4):
            seen = None if y is None else y[:, k]
            numpyro.sample(f"y{k}", dist.Categorical(said[k][z]), obs=seen)


def hidden_chain(n: int, y: Any = None) -> None:
    """Eight steps between two states."""
    moves = numpyro.sample(
        "moves", dist.Dirichlet(jnp.array([[8.0, 2.0], [2.0, 8.0]])).to_event(1)
    )
    shows = numpyro.sample(
        "shows",
        dist.Dirichlet(jnp.array([[6.0, 2.0, 2.0], [2.0, 2.0, 6.0]])).to_event(1),
    )
    with numpyro.plate("rows", n):
        z = 0
        for t in range(8):
            z = numpyro.sample(
                f"z{t}", dist.Categorical(moves[z]), infer={"enumerate": "parallel"}
            )
            seen = None if y is None else y[:, t]
            numpyro.sample(f"y{t}", dist.Categorical(shows[z]), obs=seen)


def repeated(n: int, y: Any = None) -> None:
    """Three measurements of everybody."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    between = numpyro.sample("between", dist.Gamma(3.0, 3.0))
    within = numpyro.sample("within", dist.Gamma(3.0, 3.0))
    with numpyro.plate("rows", n):
        level = numpyro.sample("level", dist.Normal(mean, 1 / jnp.sqrt(between)))
        for k in range(3):
            seen = None if y is None else y[:, k]
            numpyro.sample(f"y{k}", dist.Normal(level, 1 / jnp.sqrt(within)), obs=seen)


def intercepts(n: int, X: Any, y: Any = None) -> None:
    """Four visits of everybody."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    between = numpyro.sample("between", dist.HalfNormal(1.0))
    within = numpyro.sample("within", dist.HalfNormal(1.0))
    with numpyro.plate("rows", n, dim=-2):
        effect = numpyro.sample("effect", dist.Normal(0.0, between))
        with numpyro.plate("visits", 4, dim=-1):
            about = mean + effect + X @ w
            numpyro.sample("y", dist.Normal(about, within), obs=y)


def slopes(n: int, X: Any, y: Any = None) -> None:
    """Four visits, and a slope of everybody's own."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    of_means = numpyro.sample("of_means", dist.HalfNormal(1.0))
    of_slopes = numpyro.sample("of_slopes", dist.HalfNormal(1.0))
    within = numpyro.sample("within", dist.HalfNormal(1.0))
    with numpyro.plate("rows", n, dim=-2):
        effect = numpyro.sample("effect", dist.Normal(0.0, of_means))
        own = numpyro.sample("own", dist.Normal(0.0, of_slopes))
        with numpyro.plate("visits", 4, dim=-1):
            about = mean + effect + X[..., 0] * (slope + own)
            numpyro.sample("y", dist.Normal(about, within), obs=y)


def components(n: int, y: Any = None) -> None:
    """Two that all five measurements have in common."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0).expand([5]).to_event(1))
    loadings = numpyro.sample("loadings", dist.Normal(0.0, 1.0).expand([5, 2]))
    precision = numpyro.sample("precision", dist.Gamma(3.0, 3.0))
    with numpyro.plate("rows", n):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        of_rows = dist.Normal(mean + z @ loadings.T, 1 / jnp.sqrt(precision))
        numpyro.sample("y", of_rows.to_event(1), obs=y)


def head(n: int, X: Any, y: Any = None) -> None:
    """Four hidden units on three public features."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([3, 4]))
    biases = numpyro.sample("biases", dist.Normal(0.0, 1.0).expand([4]))
    out = numpyro.sample("out", dist.Normal(0.0, 1.0).expand([4]))
    offset = numpyro.sample("offset", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", n):
        logits = jnp.tanh(X @ weights + biases) @ out + offset
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def exposures(n: int, X: Any, y: Any = None) -> None:
    """Counts over known times, at rates that differ between rows."""
    rate = numpyro.sample("rate", dist.Gamma(4.0, 2.0))
    with numpyro.plate("rows", n):
        own = numpyro.sample("own", dist.Gamma(3.0, rate))
        numpyro.sample("y", dist.Poisson(X * own), obs=y)


def many_columns(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    return (rng.normal(size=(n, 20)).astype(np.float32),)


def four_visits(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    return ((0.6 * rng.normal(size=(n, 4, 2))).astype(np.float32),)


def times(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    return (rng.uniform(0.5, 3.0, n).astype(np.float32),)


def with_groups(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    return (*standardised(rng, n), rng.integers(0, 8, n))


def sites(name: str, number: int) -> tuple[str, ...]:
    return tuple(f"{name}{k}" for k in range(number))


def in_unit_ball(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    X = rng.normal(size=(n, 10))
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)
    return (X.astype(np.float32),)


CASES = {
    "Gaussian mean": Case(gaussian_mean, none),
    "Gaussian": Case(gaussian, none),
    "covariance": Case(covariance, none),
    "regression, known noise": Case(known_noise, standardised),
    "regression, unknown noise": Case(unknown_noise, standardised),
    "regression, raw columns": Case(raw_columns, raw),
    "regression, columns apart": Case(columns_apart, raw),
    "raw logistic, columns apart": Case(logistic_apart, raw),
    "logistic, 10 columns": Case(wide_logistic, in_unit_ball),
    "logistic, strong effects": Case(wide_logistic, many_columns),
    "logistic, groups": Case(logistic_groups, with_groups),
    "probit": Case(probit, standardised),
    "zero-inflated": Case(zero_inflated, standardised),
    "regression, Exponential scale": Case(textbook, standardised),
    "regression, unequal noise": Case(unequal_noise, standardised),
    "Weibull regression": Case(lifetimes, standardised),
    "robust regression": Case(robust, standardised),
    "ordinal": Case(ordinal, standardised),
    "misreported answers": Case(misreported, none),
    "overlapping clusters": Case(clusters, none),
    "durations of two kinds": Case(two_durations, none),
    "latent classes": Case(latent_classes, none),
    "annotators": Case(annotators, none, sites("y", 4)),
    "hidden Markov chain": Case(hidden_chain, none, sites("y", 8)),
    "repeated measurements": Case(repeated, none, sites("y", 3)),
    "random intercepts": Case(intercepts, four_visits),
    "random slopes": Case(slopes, four_visits),
    "exposures": Case(exposures, times),
    "principal components": Case(components, none),
    "network head": Case(head, standardised),
    **{
        name: ON_NATURAL_SCALES[name]
        for name in (
            "answers",
            "choices",
            "visits",
            "regression",
            "logistic",
            "rare labels",
            "raw logistic",
            "count regression",
            "overdispersed",
            "group means",
            "durations",
            "exam",
            "two groups",
        )
    },
}

# Draws of sites, of shape (draws, ...), and functions of them.
Draws = dict[str, np.ndarray]


def covariances(draws: Draws) -> Draws:
    """What principal components imply, which may be turned among themselves."""
    loadings, precision = draws["loadings"], draws["precision"]
    own = np.eye(5) / precision[:, None, None]
    covariance = loadings @ np.swapaxes(loadings, 1, 2) + own
    return {"mean": draws["mean"], "covariance": covariance[:, *np.triu_indices(5)]}


def predictions(draws: Draws) -> Draws:
    """Logits of a network at twenty points, as units may change places and signs."""
    (points,) = standardised(np.random.default_rng(0), 20)
    hidden = np.tanh(points @ draws["weights"] + draws["biases"][:, None])
    return {"logits": hidden @ draws["out"][..., None] + draws["offset"][:, None, None]}


# Where globals are not identified, coverage is that of these functions of them.
FUNCTIONS: dict[str, Callable[[Draws], Draws]] = {
    "principal components": covariances,
    "network head": predictions,
}

# By the mean of this site's values the components of a model are sorted.
SORTED_BY = {"durations of two kinds": "rate", "latent classes": "yes"}


def with_sorted_components(name: str, values: Draws) -> Draws:
    """Draws of sites, of which each may have its components in another order.

    Args:
      name: Of the model.
      values: By site, of shape `(draws, components, ...)` if the components are sorted.
    """
    if name not in SORTED_BY:
        return values
    by = values[SORTED_BY[name]]
    order = np.argsort(by.reshape(*by.shape[:2], -1).mean(-1), axis=1)
    return {
        site: np.take_along_axis(v, order.reshape(*order.shape, *[1] * (v.ndim - 2)), 1)
        for site, v in values.items()
    }


def identified(name: str, values: Draws) -> Draws:
    """What the rows of a model can tell of draws of its sites."""
    function = FUNCTIONS.get(name)
    return (
        with_sorted_components(name, values) if function is None else function(values)
    )


def observed_rows(case: Case, drawn: dict[str, np.ndarray]) -> np.ndarray:
    """What a row observes: the value of a site, or one column for each of several."""
    if isinstance(case.observed, str):
        return drawn[case.observed]
    return np.stack([drawn[site] for site in case.observed], axis=-1)


def measure(
    name: str, rows: int, epsilon: float, repetitions: int, engine: str
) -> dict[str, Any]:
    """Coverage, widths and errors over repetitions; see the module."""
    case = CASES[name]
    model = nv.private(case.model, unit="rows", public=("n",))
    predictive = numpyro.infer.Predictive(case.model, num_samples=1)
    draw = jax.jit(
        lambda key, n, covariates: predictive(key, n, *covariates), static_argnums=1
    )
    hits: list[np.ndarray] = []
    errors: list[np.ndarray] = []
    widths: list[np.ndarray] = []
    warned, used = 0, ""
    for seed in range(repetitions):
        covariates = case.covariates(np.random.default_rng(seed), rows)
        found = {
            site: np.asarray(value[0], float)
            for site, value in draw(jax.random.key(seed), rows, covariates).items()
        }
        observed = observed_rows(case, found)
        if np.all(observed == np.round(observed)):
            observed = observed.astype(np.int32)
        vi = nv.PrivateVI(
            model,
            budget=nv.PrivacyBudget(epsilon, DELTA),
            engine=engine,
            progress_bar=False,
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = vi.run(jax.random.key(seed), rows, *covariates, observed)
        warned += bool(caught)
        used = result.engine
        # A key of its own: what all repetitions shared would look like a bias.
        drawn = jax.random.fold_in(jax.random.key(seed), 1)
        draws = result.sample_posterior(drawn, sample_shape=(2000,))
        values = {site: np.asarray(draws[site], float) for site in sorted(draws)}
        true = {site: found[site][None] for site in values}
        values, true = (identified(name, of) for of in (values, true))
        truth = np.concatenate([np.ravel(true[site]) for site in values])
        table = np.concatenate([v.reshape(len(v), -1) for v in values.values()], 1)
        low, high = np.quantile(table, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        hits.append((low <= truth) & (truth <= high))
        errors.append(table.mean(0) - truth)
        widths.append(high - low)
    rmse = np.sqrt(np.mean(np.square(errors), axis=0))
    return {
        "engine": used,
        "coverage": float(np.mean(hits)),
        "stderr": float(np.mean(hits, axis=1).std() / math.sqrt(repetitions)),
        "width": float(np.mean(np.mean(widths, axis=0) / (2 * HALF_WIDTH * rmse))),
        "rmse": float(np.mean(rmse)),
        "warned": warned / repetitions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=[], help=f"of {list(CASES)}")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--engine", choices=["auto", "vips", "dpvi"], default="auto")
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--records", type=Path, help="keeps what has been measured")
    args = parser.parse_args()
    unknown = set(args.names) - set(CASES)
    if unknown:
        parser.error(f"there is no model {sorted(unknown)}; there are {list(CASES)}")
    finished = Finished(args.records)
    asked = "" if args.engine == "auto" else f", {args.engine}"
    print("| model | rows | ε | engine | coverage | width | RMSE | fits that warn |")
    print("|---|---|---|---|---|---|---|---|")
    for rows in args.rows:
        for epsilon in args.epsilon:
            for name in args.names or CASES:
                found = finished.get(
                    f"{name}, {rows}, {epsilon:g}, {args.repetitions}{asked}",
                    lambda name=name, rows=rows, epsilon=epsilon: measure(
                        name, rows, epsilon, args.repetitions, args.engine
                    ),
                )
                print(
                    f"| {name} | {rows:,} | {epsilon:g} | {found['engine']} "
                    f"| {100 * found['coverage']:.0f} ± {100 * found['stderr']:.0f} % "
                    f"| {found['width']:.2f} | {found['rmse']:.3g} "
                    f"| {100 * found['warned']:.0f} % |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
