"""Models whose private intervals are known to be far too wide, or to miss the truth.

    python benchmarks/hard_models.py [names ...] [--epsilon 1] [--repetitions 4]

The models that `docs/intervals.md` names under "Where they fail". Rows are drawn at
globals that are written down here, and fitted by default settings at δ = 1e-5. Over all
globals and fits the table has the median and the largest ratio of a standard deviation
to that of the fit without noise to the first data set; the root mean square and the
largest of the errors of posterior means, in standard deviations of the posterior; the
global of the largest; and how many fits warned. Noise is new in every run.
"""

import argparse
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers

import numpyro_vips as nv

DELTA = 1e-5
VISITS = jnp.arange(6.0)


def normal(name: str, scale: float, *shape: int) -> Any:
    return numpyro.sample(name, dist.Normal(0.0, scale).expand(shape).to_event())


def positive(name: str, scale: float, *shape: int) -> Any:
    return numpyro.sample(name, dist.HalfNormal(scale).expand(shape).to_event())


def rows_of(like: Any) -> Any:
    return numpyro.plate("people", like.shape[0])


def degrees_of_freedom(n: Any, y: Any = None) -> None:
    nu: Any = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
    loc, s = normal("loc", 5.0), positive("s", 5.0)
    with rows_of(n):
        numpyro.sample("y", dist.StudentT(nu, loc, s), obs=y)


def t_regression(X: Any, y: Any = None) -> None:
    nu: Any = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
    a, b, s = normal("a", 5.0), normal("b", 2.0, 3), positive("s", 2.0)
    with rows_of(X):
        numpyro.sample("y", dist.StudentT(nu, a + X @ b, s), obs=y)


def factor_means(n: Any, y: Any = None) -> None:
    mean, s = normal("mean", 10.0, 4), positive("s", 1.0, 4)
    loading = positive("loading", 1.0, 4)
    with rows_of(n):
        z: Any = numpyro.sample("z", dist.Normal(0.0, 1.0))
        loc = mean + z[:, None] * loading
        numpyro.sample("y", dist.Normal(loc, s).to_event(1), obs=y)


def inefficiency(X: Any, y: Any = None) -> None:
    b0, b, s = normal("b0", 2.0), normal("b", 1.0, 2), positive("s", 1.0)
    su = positive("su", 1.0)
    with rows_of(X):
        u: Any = numpyro.sample("u", dist.HalfNormal(su))
        numpyro.sample("y", dist.Normal(b0 + X @ b - u, s), obs=y)


def knot(x: Any, y: Any = None) -> None:
    a, b, c = normal("a", 5.0), normal("b", 5.0), normal("c", 5.0)
    place: Any = numpyro.sample("place", dist.Uniform(0.0, 10.0))
    s = positive("s", 2.0)
    with rows_of(x):
        loc = a + b * x + c * jnp.maximum(x - place, 0.0)
        numpyro.sample("y", dist.Normal(loc, s), obs=y)


def growth(n: Any, y: Any = None) -> None:
    top: Any = numpyro.sample("top", dist.LogNormal(2.0, 1.0))
    rate: Any = numpyro.sample("rate", dist.LogNormal(0.0, 1.0))
    middle, s = normal("middle", 5.0), positive("s", 1.0)
    with rows_of(n):
        loc = top * jax.nn.sigmoid(rate * (VISITS - middle))
        numpyro.sample("y", dist.Normal(loc, s).to_event(1), obs=y)


def two_responses(x: Any, y: Any = None) -> None:
    a, b, s = normal("a", 20.0, 2), normal("b", 5.0, 2), positive("s", 5.0, 2)
    root: Any = numpyro.sample("root", dist.LKJCholesky(2, 1.0))
    with rows_of(x):
        loc = a + b * x[:, None]
        tril = s[:, None] * root
        numpyro.sample("y", dist.MultivariateNormal(loc, scale_tril=tril), obs=y)


def correlations(n: Any, y: Any = None) -> None:
    mean, s = normal("mean", 5.0, 3), positive("s", 3.0, 3)
    root: Any = numpyro.sample("root", dist.LKJCholesky(3, 1.0))
    with rows_of(n):
        tril = s[:, None] * root
        numpyro.sample("y", dist.MultivariateNormal(mean, scale_tril=tril), obs=y)


def zeros_and_counts(x: Any, y: Any = None) -> None:
    gate: Any = numpyro.sample("gate", dist.Beta(1.0, 1.0))
    a, b = normal("a", 3.0), normal("b", 1.0)
    with rows_of(x):
        rate = jnp.exp(a + b * x)
        numpyro.sample("y", dist.ZeroInflatedPoisson(gate, rate), obs=y)


def uniform_scale(x: Any, y: Any = None) -> None:
    a, b = normal("a", 100.0), normal("b", 10.0)
    s: Any = numpyro.sample("s", dist.Uniform(0.0, 50.0))
    with rows_of(x):
        numpyro.sample("y", dist.Normal(a + b * x, s), obs=y)


def positive_slope(x: Any, y: Any = None) -> None:
    a = normal("a", 100.0)
    b: Any = numpyro.sample("b", dist.LogNormal(0.0, 1.0))
    s: Any = numpyro.sample("s", dist.Uniform(0.0, 50.0))
    with rows_of(x):
        numpyro.sample("y", dist.Normal(a + b * x, s), obs=y)


def wages(school: Any, years: Any, y: Any = None) -> None:
    a, b, c = normal("a", 20.0), normal("b", 5.0), normal("c", 5.0)
    s = positive("s", 10.0)
    with rows_of(school):
        numpyro.sample("y", dist.Normal(a + b * school + c * years, s), obs=y)


def lapses(x: Any, y: Any = None) -> None:
    lapse: Any = numpyro.sample("lapse", dist.Beta(1.0, 10.0))
    slope: Any = numpyro.sample("slope", dist.LogNormal(0.0, 1.0))
    middle = normal("middle", 2.0)
    with rows_of(x):
        chance = lapse / 2 + (1 - lapse) * jax.nn.sigmoid(slope * (x - middle))
        numpyro.sample("y", dist.Bernoulli(chance), obs=y)


def change(day: Any, y: Any = None) -> None:
    a, b, s = normal("a", 5.0), normal("b", 5.0), positive("s", 2.0)
    place: Any = numpyro.sample("place", dist.Uniform(0.0, 100.0))
    with rows_of(day):
        loc = a + b * jax.nn.sigmoid(day - place)
        numpyro.sample("y", dist.Normal(loc, s), obs=y)


def labels(X: Any, y: Any = None) -> None:
    w = normal("w", 2.0, X.shape[1])
    with rows_of(X):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


Columns = Callable[[np.random.Generator, int], tuple[np.ndarray, ...]]


def none(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    return (np.zeros(n, np.float32),)


def uniform(low: float, high: float) -> Columns:
    return lambda rng, n: (rng.uniform(low, high, n).astype(np.float32),)


def normals(mean: float, sd: float) -> Columns:
    return lambda rng, n: (rng.normal(mean, sd, n).astype(np.float32),)


def encoded(left_out: int) -> Columns:
    """Three numbers between -1 and 1, an intercept, and indicators of six jobs, of
    which the first ones may be left out."""

    def columns(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
        jobs = np.eye(6)[rng.choice(6, n, p=[0.4, 0.25, 0.15, 0.1, 0.06, 0.04])]
        numbers = rng.uniform(-1, 1, (3, n))
        X = np.column_stack([*numbers, np.ones(n), jobs[:, left_out:]])
        return (X.astype(np.float32),)

    return columns


class Case(NamedTuple):
    model: Callable[..., None]
    rows: int
    columns: Columns
    truth: Mapping[str, Any]
    engine: str = "auto"


WEIGHTS = np.array([1.0, -2.0, 0.5, -0.5, 1.0, -1.0, 0.0, 2.0, -1.0, 0.5])
CASES: dict[str, Case] = {
    "degrees of freedom": Case(
        degrees_of_freedom, 1_000, none, {"nu": 4.0, "loc": 1.0, "s": 2.0}
    ),
    "t regression": Case(
        t_regression,
        1_000,
        lambda rng, n: (rng.normal(size=(n, 3)).astype(np.float32),),
        {"nu": 4.0, "a": 1.0, "b": np.array([0.5, -1.0, 0.3]), "s": 1.0},
    ),
    "factor means": Case(
        factor_means,
        2_000,
        none,
        {
            "mean": np.array([3.0, 4.0, 5.0, 6.0]),
            "loading": np.array([1.0, 0.8, 0.6, 0.9]),
            "s": np.array([0.5, 0.6, 0.7, 0.5]),
        },
    ),
    "inefficiency": Case(
        inefficiency,
        1_000,
        lambda rng, n: (rng.normal(size=(n, 2)).astype(np.float32),),
        {"b0": 1.0, "b": np.array([0.5, -0.5]), "s": 0.4, "su": 1.0},
    ),
    "knot": Case(
        knot,
        2_000,
        uniform(0.0, 10.0),
        {"a": 1.0, "b": 1.0, "c": -1.5, "place": 6.0, "s": 1.0},
    ),
    "growth": Case(
        growth, 800, none, {"top": 10.0, "rate": 1.0, "middle": 3.0, "s": 1.0}
    ),
    "two responses": Case(
        two_responses,
        1_500,
        normals(20.0, 6.0),
        {
            "a": np.array([5.0, -3.0]),
            "b": np.array([1.0, 0.5]),
            "s": np.array([3.0, 2.0]),
            "root": np.array([[1.0, 0.0], [0.5, 0.75**0.5]]),
        },
    ),
    "correlations": Case(
        correlations,
        1_000,
        none,
        {
            "mean": np.array([1.0, -1.0, 2.0]),
            "s": np.array([1.0, 2.0, 0.5]),
            "root": np.linalg.cholesky(0.5 * np.eye(3) + 0.5),
        },
    ),
    "zeros and counts": Case(
        zeros_and_counts, 1_000, normals(0.0, 1.0), {"gate": 0.3, "a": 3.0, "b": 0.5}
    ),
    "uniform scale": Case(
        uniform_scale, 2_000, normals(170.0, 10.0), {"a": -60.0, "b": 0.8, "s": 8.0}
    ),
    "positive slope": Case(
        positive_slope, 1_000, normals(45.0, 6.5), {"a": 10.0, "b": 1.2, "s": 6.0}
    ),
    "wages": Case(
        wages,
        1_000,
        lambda rng, n: (
            rng.normal(12.0, 3.0, n).astype(np.float32),
            rng.uniform(0.0, 40.0, n).astype(np.float32),
        ),
        {"a": 2.0, "b": 1.0, "c": 0.2, "s": 5.0},
    ),
    "lapses": Case(
        lapses, 2_000, normals(0.0, 2.0), {"lapse": 0.04, "slope": 1.5, "middle": 0.5}
    ),
    "change": Case(
        change,
        3_000,
        uniform(0.0, 100.0),
        {"a": 1.0, "b": 2.0, "place": 60.0, "s": 1.0},
    ),
    "encoded labels": Case(labels, 4_000, encoded(1), {"w": WEIGHTS[:-1]}),
    "encoded labels by DPVI": Case(
        labels, 4_000, encoded(1), {"w": WEIGHTS[:-1]}, engine="dpvi"
    ),
    "all indicators": Case(labels, 4_000, encoded(0), {"w": WEIGHTS}),
}


def fitted(case: Case, budget: nv.PrivacyBudget, seed: int, rows: Any) -> Any:
    """Means and standard deviations of all globals, and how often the fit warned."""
    vi = nv.PrivateVI(
        nv.private(case.model, unit="people"),
        budget=budget,
        engine=case.engine,
        progress_bar=False,
    )
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        result = vi.run(jax.random.key(seed), *rows)
    draws = result.sample_posterior(jax.random.key(1), sample_shape=(4000,))
    flat = {name: np.asarray(draws[name]).reshape(4000, -1) for name in case.truth}
    mean = np.concatenate([flat[name].mean(0) for name in case.truth])
    sd = np.concatenate([flat[name].std(0) for name in case.truth])
    return mean, sd, bool(warned), result.engine


def measure(name: str, epsilon: float, repetitions: int) -> str:
    """One line of the table; see the module."""
    case = CASES[name]
    known = handlers.condition(
        case.model, data={k: jnp.asarray(v) for k, v in case.truth.items()}
    )
    truth = np.concatenate([np.ravel(v) for v in case.truth.values()])
    labels_of = [k for k, v in case.truth.items() for _ in np.ravel(v)]
    # What is the same in all draws, as the zeros of a triangle, is no global.
    alone = np.ones_like(truth)
    widths, errors, warned, engine = [], [], 0, ""
    for seed in range(repetitions):
        columns = case.columns(np.random.default_rng(seed), case.rows)
        seeded = handlers.seed(known, jax.random.key(seed))
        y = np.asarray(handlers.trace(seeded).get_trace(*columns)["y"]["value"])
        if not seed:
            budget = nv.PrivacyBudget(float("inf"))
            _, alone, _, _ = fitted(case, budget, seed, (*columns, y))
        budget = nv.PrivacyBudget(epsilon, DELTA)
        mean, sd, has_warned, engine = fitted(case, budget, seed, (*columns, y))
        widths.append(sd[alone > 0] / alone[alone > 0])
        errors.append((mean - truth) / np.where(alone > 0, sd, np.inf))
        warned += has_warned
    worst = np.unravel_index(np.argmax(np.abs(errors)), np.shape(errors))[1]
    rms = np.sqrt(np.mean(np.square(errors)[:, alone > 0]))
    return (
        f"| {name} | {case.rows:,} | {engine} | {np.median(widths):.1f} "
        f"| {np.max(widths):.1f} | {rms:.1f} | {np.max(np.abs(errors)):.1f}, "
        f"{labels_of[worst]} | {warned} of {repetitions} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=[], help=f"of {list(CASES)}")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--repetitions", type=int, default=4)
    args = parser.parse_args()
    unknown = set(args.names) - set(CASES)
    if unknown:
        parser.error(f"there is no model {sorted(unknown)}; there are {list(CASES)}")
    print(
        "| model | rows | engine | median width | largest width | error "
        "| largest error | fits that warn |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in args.names or CASES:
        print(measure(name, args.epsilon, args.repetitions), flush=True)


if __name__ == "__main__":
    main()
