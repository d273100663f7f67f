"""Private Poisson regression of counts, such as visits to a doctor.

    python examples/poisson_regression.py
    python examples/poisson_regression.py --num-rows 100000 --epsilon 0.1

The rows are generated: each person's number of visits in a year is Poisson with a rate
log-linear in four features and an intercept. The Poisson likelihood with a log link is
not conjugate to anything, so DPVI fits it.

The features have public ranges and are scaled to [-1, 1], and rows are divided by
the largest norm that a row can have: scaling computes nothing from the rows.
The guarantee covers the posterior and all that follows from it. The likelihood is of
test rows, which are drawn anew and are nobody's.
"""

import argparse
import math
import time
from collections.abc import Sequence
from typing import Any

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import stats

import numpyro_vips as nv
from _fit_options import (
    add_fit_options,
    budget,
    epsilon_for_json,
    fit_settings,
    write_json,
)

# Public ranges, and the generator's coefficients of the features scaled to [-1, 1].
FEATURES = {
    "age": ((18.0, 90.0), 0.5),
    "income": ((0.0, 200.0), -0.3),
    "chronic illnesses": ((0.0, 4.0), 0.6),
    "distance to doctor": ((0.0, 50.0), -0.2),
}
INTERCEPT = 1.2
NUM_TEST_ROWS = 5000
NUM_DRAWS = 500


@nv.private(unit="patients")
def model(X, visits=None):
    """Poisson regression; weights are on the scale of rows of norm at most 1."""
    with numpyro.plate("feature", X.shape[1]):
        w = numpyro.sample("w", dist.Normal(0.0, 3.0))
    with numpyro.plate("patients", X.shape[0]):
        numpyro.sample("visits", dist.Poisson(jnp.exp(X @ w)), obs=visits)


def generate(num_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of norm at most 1, the last column being the intercept, and counts."""
    rng = np.random.default_rng(seed)
    columns = []
    for (low, high), _ in FEATURES.values():
        raw = low + (high - low) * rng.beta(2, 2, num_rows)
        columns.append(2 * (raw - low) / (high - low) - 1)
    X = np.column_stack([*columns, np.ones(num_rows)])
    visits = rng.poisson(np.exp(X @ coefficients()))
    return (X / largest_norm()).astype(np.float32), visits.astype(np.int32)


def coefficients() -> np.ndarray:
    """The generator's coefficients of features in [-1, 1] and of the intercept."""
    return np.array([*(slope for _, slope in FEATURES.values()), INTERCEPT])


def largest_norm() -> float:
    """Of a row with every feature in [-1, 1] and an intercept of 1."""
    return math.sqrt(len(FEATURES) + 1)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the example and returns what `--json` writes."""
    args = _parser().parse_args(arguments)
    X, visits = generate(args.num_rows, seed=0)
    vi = nv.PrivateVI(
        model,
        budget=budget(args),
        **fit_settings(args),
    )
    print(vi.explain(X, visits))
    start = time.perf_counter()
    result = vi.run(jax.random.key(0), X, visits)
    seconds = time.perf_counter() - start

    names = [*FEATURES, "intercept"]
    idata: Any = result.to_arviz(
        jax.random.key(1), num_samples=NUM_DRAWS, coords={"feature": names}
    )
    args.output.mkdir(parents=True, exist_ok=True)
    idata.to_netcdf(str(args.output / "posterior.nc"))
    found = idata.posterior["w"].to_numpy()[0]

    test = generate(NUM_TEST_ROWS, seed=1)
    report = {
        "engine": result.engine,
        "epsilon": epsilon_for_json(args),
        "delta": result.privacy.delta,
        "log_likelihood": mean_log_likelihood(found.mean(0), *test),
        "log_likelihood_truth": mean_log_likelihood(
            coefficients() * largest_norm(), *test
        ),
        "seconds": seconds,
        "num_rows": len(X),
        "insecure_seed": args.insecure_seed,
    }
    print(az.summary(idata, kind="stats").to_string())
    print("coefficients of features in [-1, 1], found and true:")
    for name, mean, true in zip(
        names, found.mean(0) / largest_norm(), coefficients(), strict=True
    ):
        print(f"  {name:<20} {mean:6.2f} {true:6.2f}")
    print(result.privacy)
    print(
        f"mean log likelihood of test rows: {report['log_likelihood']:.4f}, with the "
        f"true coefficients {report['log_likelihood_truth']:.4f}\n"
        f"{seconds:.1f} s for the fit; posterior.nc is in {args.output}"
    )
    write_json(report, args)
    return report


def mean_log_likelihood(w: np.ndarray, X: np.ndarray, visits: np.ndarray) -> float:
    """Mean over rows of log p(visits | w)."""
    return float(np.mean(stats.poisson.logpmf(visits, np.exp(X @ w))))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-rows", type=int, default=10_000)
    add_fit_options(parser)
    return parser


if __name__ == "__main__":
    main()
