"""How many rows a fit needs: intervals under privacy over those without, by rows and ε.

    python benchmarks/rows_needed.py [--rows 300 1000] [--epsilon 1] [--repetitions 3]

Ordinary models of made-up rows, with default settings. Printed is the standard
deviation of a global with privacy over that of the same fit without, as the median over
globals and data sets: 1 is a fit that privacy costs nothing, 2 one whose intervals are
twice as wide.
"""

import argparse
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit

import numpyro_vips as nv

DELTA = 1e-6
Rows = tuple[np.ndarray, ...]


def ages(y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(50.0, 20.0))
    sd = numpyro.sample("sd", dist.HalfNormal(20.0))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, sd), obs=y)


def shares(y: Any) -> None:
    chance = numpyro.sample("chance", dist.Dirichlet(jnp.ones(5)))
    with numpyro.plate("people", y.shape[0]):
        numpyro.sample("y", dist.Categorical(chance), obs=y)


def linear(X: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    sd = numpyro.sample("sd", dist.HalfNormal(1.0))
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, sd), obs=y)


def logistic(X: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def counts(X: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(X @ w)), obs=y)


def _columns(rng: np.random.Generator, num_rows: int, size: int) -> np.ndarray:
    """A constant, and columns between -1 and 1 as of a schema."""
    X = rng.uniform(-1.0, 1.0, size=(num_rows, size))
    X[:, 0] = 1.0
    return X.astype(np.float32)


def draw_ages(rng: np.random.Generator, num_rows: int) -> Rows:
    return (rng.normal(45.0, 15.0, num_rows).astype(np.float32),)


def draw_shares(rng: np.random.Generator, num_rows: int) -> Rows:
    chances = [0.4, 0.25, 0.2, 0.1, 0.05]
    return (rng.choice(5, num_rows, p=chances).astype(np.int32),)


def draw_linear(rng: np.random.Generator, num_rows: int) -> Rows:
    X = _columns(rng, num_rows, 5)
    noise = 0.5 * rng.normal(size=num_rows)
    return X, (X @ rng.normal(size=5) + noise).astype(np.float32)


def draw_logistic(size: int) -> Callable[[np.random.Generator, int], Rows]:
    def draw(rng: np.random.Generator, num_rows: int) -> Rows:
        X = _columns(rng, num_rows, size)
        chances = expit(X @ rng.normal(size=size))
        return X, (rng.uniform(size=num_rows) < chances).astype(np.int32)

    return draw


def draw_counts(rng: np.random.Generator, num_rows: int) -> Rows:
    X = _columns(rng, num_rows, 5)
    return X, rng.poisson(np.exp(X @ (0.5 * rng.normal(size=5)))).astype(np.int32)


CASES: dict[str, tuple[Callable[..., None], Callable[..., Rows]]] = {
    "mean and sd": (ages, draw_ages),
    "shares of 5": (shares, draw_shares),
    "linear, 5 columns": (linear, draw_linear),
    "logistic, 5 columns": (logistic, draw_logistic(5)),
    "logistic, 20 columns": (logistic, draw_logistic(20)),
    "Poisson, 5 columns": (counts, draw_counts),
}


def stddevs(model: Callable[..., None], rows: Rows, epsilon: float) -> np.ndarray:
    """Standard deviations of all globals, one after the other."""
    budget = nv.PrivacyBudget(epsilon, 0.0 if math.isinf(epsilon) else DELTA)
    vi = nv.PrivateVI(
        nv.private(model, unit="people"), budget=budget, progress_bar=False
    )
    with warnings.catch_warnings(action="ignore"):
        result = vi.run(jax.random.key(0), *rows)
    draws = result.sample_posterior(jax.random.key(1), (2000,))
    return np.concatenate([np.std(draws[s], axis=0).ravel() for s in sorted(draws)])


def times_as_wide(
    name: str, num_rows: int, epsilons: list[float], repetitions: int
) -> list[float]:
    """Medians of the ratios, for each ε."""
    model, draw = CASES[name]
    ratios: list[list[np.ndarray]] = [[] for _ in epsilons]
    for seed in range(repetitions):
        rows = draw(np.random.default_rng(seed), num_rows)
        without = stddevs(model, rows, math.inf)
        for found, epsilon in zip(ratios, epsilons, strict=True):
            found.append(stddevs(model, rows, epsilon) / without)
    return [float(np.median(np.concatenate(found))) for found in ratios]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=[], help="of the models")
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[300, 1_000, 3_000, 10_000, 100_000]
    )
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.3, 1.0])
    parser.add_argument("--repetitions", type=int, default=3)
    args = parser.parse_args()
    columns = [f"{n:,}, ε = {e:g}" for n in args.rows for e in args.epsilon]
    print(f"| model | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 1) + "|")
    for name in args.names or CASES:
        cells = [
            f"{ratio:.1f}"
            for num_rows in args.rows
            for ratio in times_as_wide(name, num_rows, args.epsilon, args.repetitions)
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
