"""Whether default fits are right on ordinary scales, or say that they are not.

    python benchmarks/natural_scales.py [names ...] [--rows 10000] [--epsilon 1]

Ordinary models, each in the units that its data come in, with no setting but ε and δ.
A repetition draws the globals from the prior and the rows from the model, fits, and
takes the posterior means. Printed for each model: the largest bias over its globals in
units of the standard deviation of the error over the repetitions (below 0.5 nobody can
see it), the share of fits that warned, and seconds per fit; at the end the share of
needless warnings, where the bias is below 0.2. With `--records FILE` the table can be
made in parts.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from _finished import Finished

import numpyro_vips as nv


def delta_for(rows: int) -> float:
    """1e-5, or a tenth of 1/rows where that is less: a larger one has a warning."""
    return min(1e-5, 0.1 / rows)


# --- models: of public numbers of rows, covariates, and rows that may be left out -----


def visits(n: int, y: Any = None) -> None:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 0.5))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def ages(n: int, y: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(50.0, 20.0))
    precision = numpyro.sample("precision", dist.Gamma(3.0, 300.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Normal(mean, 1 / jnp.sqrt(precision)), obs=y)


def incomes(n: int, y: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(4e4, 1.5e4))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Normal(mean, 2e4), obs=y)


def log_prices(n: int, y: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(12.0, 1.0))
    precision = numpyro.sample("precision", dist.Gamma(4.0, 1.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Normal(mean, 1 / jnp.sqrt(precision)), obs=y)


def durations(n: int, y: Any = None) -> None:
    rate = numpyro.sample("rate", dist.Gamma(3.0, 30.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Exponential(rate), obs=y)


def waiting_times(n: int, y: Any = None) -> None:
    rate = numpyro.sample("rate", dist.Gamma(3.0, 3.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Gamma(2.0, rate), obs=y)


def exam(n: int, y: Any = None) -> None:
    chance = numpyro.sample("chance", dist.Beta(2.0, 2.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Binomial(10, chance), obs=y)


def answers(n: int, y: Any = None) -> None:
    chance = numpyro.sample("chance", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Bernoulli(chance), obs=y)


def choices(n: int, y: Any = None) -> None:
    chances = numpyro.sample("chances", dist.Dirichlet(jnp.ones(5)))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Categorical(chances), obs=y)


def baskets(n: int, y: Any = None) -> None:
    chances = numpyro.sample("chances", dist.Dirichlet(jnp.ones(4)))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Multinomial(20, chances), obs=y)


def claims_with_exposure(n: int, exposure: Any, y: Any = None) -> None:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 4.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Poisson(rate * exposure), obs=y)


def successes_of_totals(n: int, total: Any, y: Any = None) -> None:
    chance = numpyro.sample("chance", dist.Beta(2.0, 3.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Binomial(total, chance), obs=y)


def regression(n: int, X: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Normal(X @ w, 0.7), obs=y)


def regression_on_raw_columns(n: int, X: Any, y: Any = None) -> None:
    """Rent on a constant, age and income in thousands."""
    scale = jnp.array([300.0, 10.0, 10.0])
    w = numpyro.sample("w", dist.Normal(0.0, scale).to_event(1))
    precision = numpyro.sample("precision", dist.Gamma(4.0, 4e4))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Normal(X @ w, 1 / jnp.sqrt(precision)), obs=y)


def logistic(n: int, X: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def logistic_with_priors(*stddev: float) -> Callable[..., None]:
    """A column for each of these prior standard deviations."""

    def model(n: int, X: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, jnp.array(stddev)).to_event(1))
        with numpyro.plate("rows", n):
            numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)

    return model


def count_regression(n: int, X: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 0.5).expand([3]).to_event(1))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Poisson(jnp.exp(1.0 + X @ w)), obs=y)


def group_means(n: int, group: Any, y: Any = None) -> None:
    with numpyro.plate("groups", 8):
        mean = numpyro.sample("mean", dist.Normal(170.0, 10.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Normal(mean[group], 7.0), obs=y)


def overdispersed(n: int, y: Any = None) -> None:
    logit = numpyro.sample("logit", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.NegativeBinomialLogits(5.0, logit), obs=y)


def censored(n: int, time: Any, event: Any = None) -> None:
    """Exponential survival: whether the event came in the time of observation."""
    rate = numpyro.sample("rate", dist.Gamma(3.0, 60.0))
    with numpyro.plate("rows", n):
        numpyro.sample("event", dist.Poisson(rate * time), obs=event)


def outliers(n: int, y: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(120.0, 20.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.StudentT(4.0, mean, 15.0), obs=y)


def two_groups(n: int, y: Any = None) -> None:
    """Components whose places tell them apart."""
    share = numpyro.sample("share", dist.Beta(5.0, 5.0))
    with numpyro.plate("components", 2):
        mean = numpyro.sample("mean", dist.Normal(jnp.array([20.0, 80.0]), 5.0))
    with numpyro.plate("rows", n):
        chances = jnp.stack([1 - share, share])
        z = numpyro.sample("z", dist.Categorical(chances))
        numpyro.sample("y", dist.Normal(mean[z], 8.0), obs=y)


class Case(NamedTuple):
    """A model, its covariates for n rows, and the names of its observed sites."""

    model: Callable[..., None]
    covariates: Callable[[np.random.Generator, int], tuple[np.ndarray, ...]]
    observed: str | tuple[str, ...] = "y"


def none(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    return ()


def standardised(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    return (rng.normal(size=(n, 3)).astype(np.float32),)


def raw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    age, income = rng.normal(45.0, 15.0, n), rng.lognormal(3.5, 0.5, n)
    return (np.stack([np.ones(n), age, income], 1).astype(np.float32),)


def skewed(rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    """As `raw`, with the columns standardised."""
    (X,) = raw(rng, n)
    means, scale = np.array([0.0, 45.0, 37.5]), np.array([1.0, 15.0, 20.0])
    return (((X - means) / scale).astype(np.float32),)


CASES = {
    "visits": Case(visits, none),
    "ages": Case(ages, none),
    "incomes": Case(incomes, none),
    "log prices": Case(log_prices, none),
    "durations": Case(durations, none),
    "waiting times": Case(waiting_times, none),
    "exam": Case(exam, none),
    "answers": Case(answers, none),
    "choices": Case(choices, none),
    "baskets": Case(baskets, none),
    "claims with exposure": Case(
        claims_with_exposure,
        lambda rng, n: (rng.uniform(0.1, 5.0, n).astype(np.float32),),
    ),
    "successes of totals": Case(
        successes_of_totals, lambda rng, n: (rng.integers(1, 40, n),)
    ),
    "regression": Case(regression, standardised),
    "raw regression": Case(regression_on_raw_columns, raw),
    "logistic": Case(logistic, standardised),
    # One label in a hundred may be the other one.
    "rare labels": Case(logistic_with_priors(2.0, 0.5, 0.5), skewed),
    "raw logistic": Case(logistic_with_priors(2.0, 0.03, 0.03), raw),
    "count regression": Case(count_regression, standardised),
    "group means": Case(group_means, lambda rng, n: (rng.integers(0, 8, n),)),
    "overdispersed": Case(overdispersed, none),
    "censored survival": Case(
        censored,
        lambda rng, n: (rng.uniform(1.0, 60.0, n).astype(np.float32),),
        "event",
    ),
    "outliers": Case(outliers, none),
    "two groups": Case(two_groups, none),
}


# A bias, in standard deviations of the error, of which no warning should speak.
_NOTHING = 0.2


def measure(name: str, rows: int, epsilon: float, repetitions: int) -> dict[str, Any]:
    """Errors of the posterior means over repetitions; see the module."""
    case = CASES[name]
    model = nv.private(case.model, unit="rows", public=("n",))
    draw = jax.jit(
        lambda key, n, covariates: numpyro.infer.Predictive(case.model, num_samples=1)(
            key, n, *covariates
        ),
        static_argnums=1,
    )
    errors: list[np.ndarray] = []
    warned, engine, started = 0, "", time.perf_counter()
    for seed in range(repetitions):
        rng = np.random.default_rng(seed)
        covariates = case.covariates(rng, rows)
        found = {
            site: np.asarray(value[0])
            for site, value in draw(jax.random.key(seed), rows, covariates).items()
        }
        vi = nv.PrivateVI(
            model,
            budget=nv.PrivacyBudget(epsilon, delta_for(rows)),
            progress_bar=False,
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = vi.run(
                jax.random.key(seed), rows, *covariates, found[case.observed]
            )
        warned += bool(result.diagnostics["warnings"] or caught)
        engine = result.engine
        # A key of its own: what all repetitions shared would look like a bias.
        drawn = jax.random.fold_in(jax.random.key(seed), 1)
        draws = result.sample_posterior(drawn, sample_shape=(400,))
        parts = [
            np.ravel(np.mean(np.asarray(draws[site], float), 0) - found[site])
            for site in sorted(draws)
        ]
        errors.append(np.concatenate(parts))
    table = np.array(errors)
    return {
        "engine": engine,
        "bias": float(np.max(np.abs(table.mean(0)) / table.std(0))),
        "warned": warned / repetitions,
        "seconds": (time.perf_counter() - started) / repetitions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=[], help=f"of {list(CASES)}")
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0])
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--records", type=Path, help="keeps what has been measured")
    args = parser.parse_args()
    unknown = set(args.names) - set(CASES)
    if unknown:
        parser.error(f"there is no model {sorted(unknown)}; there are {list(CASES)}")
    finished = Finished(args.records)
    print("| model | rows | ε | engine | bias / sd | fits that warn | seconds a fit |")
    print("|---|---|---|---|---|---|---|")
    fine = total = 0
    needless = []
    for rows in args.rows:
        for epsilon in args.epsilon:
            for name in args.names or CASES:
                key = f"{name}, {rows}, {epsilon:g}, {args.repetitions}"
                found = finished.get(
                    key,
                    lambda name=name, rows=rows, epsilon=epsilon: measure(
                        name, rows, epsilon, args.repetitions
                    ),
                )
                total += 1
                fine += found["bias"] < 0.5 or found["warned"] > 0.5
                if found["bias"] < _NOTHING:
                    needless.append(found["warned"])
                print(
                    f"| {name} | {rows:,} | {epsilon:g} | {found['engine']} "
                    f"| {found['bias']:.2f} | {100 * found['warned']:.0f} % "
                    f"| {found['seconds']:.2f} |",
                    flush=True,
                )
    print(f"\nUnbiased, or warned about: {fine} of {total}.")
    if needless:
        print(
            f"Of fits with a bias below {_NOTHING} sd, {100 * np.mean(needless):.1f} % "
            f"warned ({len(needless)} lines)."
        )


if __name__ == "__main__":
    main()
