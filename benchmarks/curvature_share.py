"""How wide intervals are, by what of the budget shows the curvature.

    python benchmarks/curvature_share.py [--share 0.04 0.07 0.1]

Logistic regressions of generated rows with a constant and Normal columns, at ε = 1 and
δ = 1e-5. The curvature of their Newton steps is released twice, each time for a share
of the budget, which is fixed here. Printed are the median standard deviation of the
posterior, the root mean square error, and the coverage of 90 % intervals. All shares
have the same rows, and noise of the same seeds.
"""

import argparse
import itertools
import warnings
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_vips as nv
from numpyro_vips.fitting import prepare
from numpyro_vips.fitting.prepared_fits import forget_prepared_fits

EPSILON, DELTA = 1.0, 1e-5
# Of a Normal's central 90 %.
ENDS = 1.645


class Case(NamedTuple):
    """A generated regression: its size, the scales of prior and truth, repetitions."""

    columns: int
    rows: int
    prior: float
    truth: float
    repetitions: int


CASES = (
    Case(columns=3, rows=1_000, prior=10.0, truth=0.8, repetitions=8),
    Case(columns=10, rows=3_000, prior=10.0, truth=0.8, repetitions=8),
    Case(columns=20, rows=10_000, prior=1.0, truth=1.0, repetitions=7),
)


def measure(case: Case) -> tuple[float, float, float]:
    """Median standard deviation, root mean square error, and coverage."""

    def model(X: Any, y: Any) -> None:
        prior = dist.Normal(0.0, case.prior).expand([case.columns]).to_event(1)
        w = numpyro.sample("w", prior)
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)

    errors, stddevs = [], []
    for seed in range(case.repetitions):
        rng = np.random.default_rng(100 + seed)
        X = rng.normal(size=(case.rows, case.columns))
        X[:, 0] = 1.0
        truth = case.truth * rng.normal(size=case.columns)
        y = rng.uniform(size=case.rows) < 1.0 / (1.0 + np.exp(-X @ truth))
        vi = nv.PrivateVI(
            nv.private(model, unit="rows"),
            budget=nv.PrivacyBudget(EPSILON, DELTA),
            engine="vips",
            progress_bar=False,
            insecure_seed=seed,
        )
        result = vi.run(jax.random.key(0), X.astype(np.float32), y.astype(np.int32))
        found = result.posterior.moments()["w"]
        errors.append(np.asarray(found.mean) - truth)
        stddevs.append(np.asarray(found.stddev))
    error, stddev = np.array(errors), np.array(stddevs)
    return (
        float(np.median(np.median(stddev, axis=1))),
        float(np.sqrt(np.mean(error**2))),
        float(np.mean(np.abs(error) < ENDS * stddev)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--share", type=float, nargs="+", default=[0.04, 0.07, 0.1])
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| columns | rows | share | sd | RMSE | coverage |")
    print("|---|---|---|---|---|---|")
    for case, share in itertools.product(CASES, args.share):
        forget_prepared_fits()  # They have the share of before.
        with mock.patch.object(prepare, "curvature_share", return_value=share):
            stddev, error, coverage = measure(case)
        print(
            f"| {case.columns} | {case.rows:,} | {share} | {stddev:.3f} "
            f"| {error:.3f} | {coverage:.0%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
