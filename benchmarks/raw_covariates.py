"""Intervals of regressions by DPVI on covariates as they are: ages, and incomes.

    python benchmarks/raw_covariates.py [--rows 10000] [--epsilon 1] [--repetitions 8]

Ages are between 18 and 80, so intercept and slope are nearly one direction, and incomes
are about 30,000; see docs/dpvi.md#coordinates. The table has the median width of
intervals over that of the fit without noise on the first data set, the widest, the root
mean square error in standard deviations of that fit, and how many of the 90 % intervals
hold the truth. Noise is new in every run.
"""

import argparse
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy import stats
from numpyro import handlers

import numpyro_vips as nv


def coefficients(width: float) -> tuple[jax.Array, jax.Array]:
    intercept: Any = numpyro.sample("intercept", dist.Normal(0.0, 5.0))
    slope: Any = numpyro.sample("slope", dist.Normal(0.0, width))
    return intercept, slope


def counts(age: Any, y: Any = None) -> None:
    a, b = coefficients(1.0)
    with numpyro.plate("people", age.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(a + b * age)), obs=y)


def times(age: Any, y: Any = None) -> None:
    a, b = coefficients(0.5)
    shape: Any = numpyro.sample("shape", dist.Gamma(2.0, 1.0))
    with numpyro.plate("people", age.shape[0]):
        numpyro.sample("y", dist.Weibull(jnp.exp(a + b * age), shape), obs=y)


def labels(age: Any, y: Any = None) -> None:
    a, b = coefficients(0.5)
    with numpyro.plate("people", age.shape[0]):
        chance = stats.norm.cdf(a + b * age)
        numpyro.sample("y", dist.Bernoulli(chance), obs=y)


def events(age: Any, income: Any, y: Any = None) -> None:
    a, b = coefficients(1.0)
    c: Any = numpyro.sample("income", dist.Normal(0.0, 1.0))
    with numpyro.plate("people", age.shape[0]):
        chance = 1.0 - jnp.exp(-jnp.exp(a + b * age + c * income))
        numpyro.sample("y", dist.Bernoulli(chance), obs=y)


MODELS: dict[str, tuple[Callable[..., None], dict[str, float]]] = {
    "Poisson": (counts, {"intercept": -1.0, "slope": 0.03}),
    "Weibull": (times, {"intercept": 1.0, "slope": 0.02, "shape": 1.5}),
    "probit": (labels, {"intercept": -2.0, "slope": 0.03}),
    "events": (events, {"intercept": -3.0, "slope": 0.03, "income": 2e-5}),
}


def draws_of(
    model: Callable[..., None], budget: nv.PrivacyBudget, seed: int, *rows: np.ndarray
) -> dict[str, np.ndarray]:
    vi = nv.PrivateVI(
        nv.private(model, unit="people"), budget=budget, progress_bar=False
    )
    result = vi.run(jax.random.key(seed), *rows)
    draws = result.sample_posterior(jax.random.key(1), sample_shape=(2000,))
    return {name: np.asarray(value) for name, value in draws.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--repetitions", type=int, default=8)
    options = parser.parse_args()
    print("| model | global | width | widest | error | in 90 % |")
    print("|---|---|---|---|---|---|")
    for label, (model, truth) in MODELS.items():
        known = handlers.condition(model, data=dict(truth))
        alone: dict[str, float] = {}
        widths, errors, inside = ({name: [] for name in truth} for _ in range(3))
        for seed in range(options.repetitions):
            rng = np.random.default_rng(seed)
            age = rng.uniform(18.0, 80.0, options.rows).astype(np.float32)
            income = np.exp(rng.normal(10.3, 0.5, options.rows)).astype(np.float32)
            rows = (age, income) if "income" in truth else (age,)
            seeded = handlers.seed(known, jax.random.key(seed))
            y = np.asarray(handlers.trace(seeded).get_trace(*rows)["y"]["value"])
            fit = functools.partial(draws_of, model)
            if not alone:
                found = fit(nv.PrivacyBudget(float("inf")), seed, *rows, y)
                alone = {name: float(np.std(found[name])) for name in truth}
            found = fit(nv.PrivacyBudget(options.epsilon, 1e-5), seed, *rows, y)
            for name, value in truth.items():
                low, high = np.quantile(found[name], [0.05, 0.95])
                widths[name].append(np.std(found[name]) / alone[name])
                errors[name].append((np.mean(found[name]) - value) / alone[name])
                inside[name].append(low <= value <= high)
        for name in truth:
            error = np.sqrt(np.mean(np.square(errors[name])))
            print(
                f"| {label} | {name} | {np.median(widths[name]):.2f} | "
                f"{max(widths[name]):.2f} | {error:.2f} | "
                f"{sum(inside[name])} of {options.repetitions} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
