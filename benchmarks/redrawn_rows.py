"""What it does to errors and intervals of DPVI that steps redraw rows.

    python benchmarks/redrawn_rows.py [--repetitions 10] [--cases poisson/20/5000/1 ...]

A case is a likelihood, the number of columns and of rows, and ε. Each data set is
fitted twice, with no step that redraws rows and with all that can, whatever
`fitting/redrawing_steps.py` predicts. The table has the ratio by which that module
decides; the root mean squared errors of posterior means, of the coefficients and of
the intercept (of the log scale where noise is unequal); and the share of 90 %
intervals that hold the truth. Numbers without redrawn rows come first. Noise is new in
every run.
"""

import argparse
import math
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_vips as nv
from numpyro_vips.fitting import redrawing_steps

DELTA = 1e-5
# Of the steps, which all have the same noise, the later ones may redraw rows.
MAY_REDRAW = 0.8
DEFAULT = (
    *("logit/20/5000/1", "poisson/20/5000/1", "exponential/20/5000/1"),
    *("unequal/20/5000/1", "probit/20/2000/1", "probit/5/2000/0.3"),
    *("unequal/20/5000/0.3", "poisson/50/10000/0.3", "probit/50/10000/0.3"),
)
HEAD = """\
| likelihood | columns | rows | ε | ratio | coefficients | intercept | inside |
|---|---|---|---|---|---|---|---|"""
LIKELIHOODS = {
    "logit": lambda X, b, eta: dist.Bernoulli(logits=b + eta),
    "probit": lambda X, b, eta: dist.Bernoulli(
        probs=jnp.clip(jax.scipy.stats.norm.cdf(b + eta), 1e-6, 1 - 1e-6)
    ),
    "poisson": lambda X, b, eta: dist.Poisson(jnp.exp(b + 0.5 * eta)),
    "exponential": lambda X, b, eta: dist.Exponential(jnp.exp(b + eta)),
    "unequal": lambda X, b, eta: dist.Normal(eta, jnp.exp(b + 0.5 * X[:, 0])),
}


class Case(NamedTuple):
    likelihood: str
    columns: int
    rows: int
    epsilon: float

    @classmethod
    def parse(cls, text: str) -> "Case":
        likelihood, columns, rows, epsilon = text.split("/")
        if likelihood not in LIKELIHOODS:
            known = ", ".join(LIKELIHOODS)
            raise ValueError(f"Expected {likelihood!r} to be one of {known}.")
        return cls(likelihood, int(columns), int(rows), float(epsilon))


class Errors(NamedTuple):
    coefficients: float
    intercept: float
    inside: float


def model_of(likelihood: str) -> nv.private:
    @nv.private(unit="rows")
    def model(X: Any, y: Any = None) -> None:
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("columns", X.shape[1]):
            w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", LIKELIHOODS[likelihood](X, b, X @ w), obs=y)

    return model


def private_vi(case: Case, model: nv.private) -> nv.PrivateVI:
    budget = nv.PrivacyBudget(case.epsilon, DELTA)
    return nv.PrivateVI(model, budget=budget, engine="dpvi", progress_bar=False)


def drawn(case: Case, seed: int) -> tuple[Any, Any, dict[str, Any]]:
    """Columns, responses, and the globals that they were drawn by."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(case.rows, case.columns)).astype("f4")
    w = rng.normal(size=case.columns) / math.sqrt(case.columns)
    b = 0.5 * rng.normal()
    law = LIKELIHOODS[case.likelihood](jnp.asarray(X), b, jnp.asarray(X @ w))
    y = np.asarray(law.sample(jax.random.key(seed)))
    return X, y, {"w": w, "b": b}


def ratio(case: Case, model: nv.private) -> float:
    """That of `fitting/redrawing_steps.py`."""
    X, y, _ = drawn(case, 0)
    schedule = private_vi(case, model).explain(X, y).schedule
    share = sum(step["share"] for step in schedule if step["releases"] == "loc")
    alone = nv.accounting.calibrate(
        epsilon=case.epsilon,
        delta=DELTA,
        sampling_rate=1.0,
        num_steps=1,
        sampling="full",
    )
    noise = alone / math.sqrt(MAY_REDRAW * share)
    return noise * (case.columns + 1) ** 1.25 / case.rows


def errors(case: Case, model: nv.private, repetitions: int) -> Errors:
    squares: dict[str, list[float]] = {"w": [], "b": []}
    inside: list[bool] = []
    for seed in range(repetitions):
        X, y, truth = drawn(case, seed)
        with warnings.catch_warnings(action="ignore"):
            result = private_vi(case, model).run(jax.random.key(seed), X, y)
        draws = result.sample_posterior(jax.random.key(1), (2000,))
        for site, value in truth.items():
            values = np.asarray(draws[site])
            squares[site] += np.ravel((values.mean(0) - value) ** 2).tolist()
            low, high = np.quantile(values, [0.05, 0.95], axis=0)
            inside += np.ravel((low <= value) & (value <= high)).tolist()
    w, b = (math.sqrt(np.mean(squares[site])) for site in ("w", "b"))
    return Errors(w, b, float(np.mean(inside)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=Case.parse, nargs="+", default=None)
    parser.add_argument("--repetitions", type=int, default=10)
    args = parser.parse_args()
    print(HEAD)
    for case in args.cases or [Case.parse(text) for text in DEFAULT]:
        model = model_of(case.likelihood)
        found = []
        # Nothing hides what clipping does, and everything does.
        for hidden in (0.0, math.inf):
            redrawing_steps.HIDDEN = hidden
            found.append(errors(case, model, args.repetitions))
        pairs = [
            f"{never:.3f}, {always:.3f}" for never, always in zip(*found, strict=True)
        ]
        print(
            f"| {case.likelihood} | {case.columns} | {case.rows:,} | {case.epsilon:g} "
            f"| {ratio(case, model):.2f} | {' | '.join(pairs)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
