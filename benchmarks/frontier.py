"""Error against ε, for default fits and for baselines.

    python benchmarks/frontier.py linear [names ...] [--epsilon .1 1] [--repeats 10]
    python benchmarks/frontier.py logistic [names ...] [--data FOLDER]

All fits run through the public API with ε and δ alone, each with a budget of its own,
and known bounds where that is said. With `--records FILE` the tables can be made in
parts.

`linear`: ten generated regressions, in units in which columns and response have about
the size 1. Printed is the excess mean squared error of predictions, beyond that of the
true coefficients, averaged over repetitions: of AdaSSP as published and with its noise
accounted for exactly; of fits that know the same bounds (`clipping_norm=`); and of fits
that know none. Ratios are over AdaSSP as published.

`logistic`: test AUC on generated tables, and on Adult with `--data`, of default VIPS
and DPVI, of the one-shot optimum (`_one_shot.py`), and without noise.
"""

import argparse
import functools
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from _adassp import Noise, adassp, exact_noise, published_noise
from _finished import Finished
from _generated_tables import (
    LOGISTIC_TABLES,
    REGRESSIONS,
    LogisticTable,
    Regression,
    logistic_table,
    regression,
)
from _one_shot import oracle_auc, perturbed_optimum
from scipy.special import expit
from sklearn.metrics import roc_auc_score

import numpyro_vips as nv

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from _datasets import load

DELTA = {"linear": 1e-6, "logistic": 1e-5}
ADULT = "Adult"
NUM_DRAWS = 1000
# The prior's precision, for what is fitted without noise.
RIDGE = 1.0


# --- linear regression ----------------------------------------------------------------


@nv.private(unit="rows")
def linear(X: Any, y: Any = None) -> None:
    """The strength of the prior and the size of the noise are learnt."""
    alpha = numpyro.sample("alpha", dist.Gamma(1.0, 1.0))
    precision = numpyro.sample("precision", dist.Gamma(1.0, 1.0))
    w = numpyro.sample(
        "w", dist.Normal(0.0, 1 / jnp.sqrt(alpha)).expand([X.shape[1]]).to_event(1)
    )
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, 1 / jnp.sqrt(precision)), obs=y)


def bounds_of(table: Regression) -> dict[str, float]:
    """The largest norm of each statistic of a row: −y²/2, yx and −xxᵀ/2."""
    return {
        "⟨precision⟩": table.response**2 / 2,
        "⟨precision⟩⟨w⟩": table.response * table.row_norm,
        "⟨precision⟩⟨w w⟩": table.row_norm**2 / 2,
    }


def linear_fit(
    table: Regression, epsilon: float, seed: int, *, knows_bounds: bool
) -> float:
    """Excess error of the posterior mean of one default fit."""
    result = _fit(
        linear,
        table.X,
        table.y,
        epsilon=epsilon,
        delta=DELTA["linear"],
        seed=seed,
        clipping_norm=bounds_of(table) if knows_bounds else None,
    )
    return table.excess(np.asarray(result.params["w/loc"], np.float64))


def adassp_fit(table: Regression, noise: Noise, seed: int) -> float:
    """Excess error of AdaSSP."""
    found = adassp(
        table.X,
        table.y,
        row_norm=table.row_norm,
        response=table.response,
        noise=noise,
        rng=np.random.default_rng(seed),
    )
    return table.excess(found)


def measure_linear(name: str, epsilon: float, repeats: int) -> dict[str, float]:
    """Mean excess error of each way to fit a regression."""
    table, delta = regression(name), DELTA["linear"]
    ways: dict[str, Callable[[int], float]] = {
        "adassp": lambda seed: adassp_fit(table, published_noise(epsilon, delta), seed),
        "adassp, exact": lambda seed: adassp_fit(
            table, exact_noise(epsilon, delta), seed
        ),
        "bounds": lambda seed: linear_fit(table, epsilon, seed, knows_bounds=True),
        "default": lambda seed: linear_fit(table, epsilon, seed, knows_bounds=False),
    }
    return {
        way: float(np.mean([fit(seed) for seed in range(repeats)]))
        for way, fit in ways.items()
    }


def print_linear(args: argparse.Namespace, finished: Finished) -> None:
    print(
        "| regression | ε | AdaSSP | exact | bounds | default "
        "| exact / AdaSSP | bounds / AdaSSP | default / AdaSSP |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for epsilon in args.epsilon:
        logarithms = []
        for name in args.names or REGRESSIONS:
            found = finished.get(
                f"linear, {name}, {epsilon:g}, {args.repeats}",
                functools.partial(measure_linear, name, epsilon, args.repeats),
            )
            errors = np.array([found[way] for way in LINEAR_WAYS])
            ratios = errors[1:] / errors[0]
            logarithms.append(np.log(ratios))
            _print_row(
                [name, f"{epsilon:g}"],
                [f"{error:.3g}" for error in errors],
                [f"{ratio:.2f}" for ratio in ratios],
            )
        means = np.exp(np.mean(logarithms, axis=0))
        _print_row(
            ["geometric mean", f"{epsilon:g}"],
            [""] * len(LINEAR_WAYS),
            [f"{mean:.2f}" for mean in means],
        )


LINEAR_WAYS = ("adassp", "adassp, exact", "bounds", "default")


# --- logistic regression --------------------------------------------------------------


@nv.private(unit="rows")
def logistic(X: Any, y: Any = None) -> None:
    """The strength of the prior is learnt."""
    alpha = numpyro.sample("alpha", dist.Gamma(1.0, 1.0))
    w = numpyro.sample(
        "w", dist.Normal(0.0, 1 / jnp.sqrt(alpha)).expand([X.shape[1]]).to_event(1)
    )
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def logistic_fit(table: LogisticTable, epsilon: float, seed: int, engine: str) -> float:
    """Test AUC of the posterior predictive of one default fit."""
    result = _fit(
        logistic,
        table.X,
        table.y,
        epsilon=epsilon,
        delta=DELTA["logistic"],
        seed=seed,
        engine=engine,
    )
    draws = result.sample_posterior(jax.random.key(2), sample_shape=(NUM_DRAWS,))
    chances = expit(table.test_X @ np.asarray(draws["w"]).T).mean(1)
    return float(roc_auc_score(table.test_y, chances))


def auc_without_noise(table: LogisticTable) -> float:
    """Test AUC of the optimum of all rows."""
    w = perturbed_optimum(table.X.astype(np.float64), table.y, ridge=RIDGE)
    return float(roc_auc_score(table.test_y, table.test_X @ w))


LOGISTIC_WAYS = ("vips", "dpvi", "one-shot optimum", "no noise")


def measure_logistic(
    table: LogisticTable, way: str, epsilon: float, repeats: int
) -> dict[str, Any]:
    """Test AUCs by repetition, and what the oracle chose."""
    seeds = range(repeats)
    if way == "no noise":
        return {"auc": [auc_without_noise(table)]}
    if way == "one-shot optimum":
        best = oracle_auc(
            *(table.X, table.y, table.test_X, table.test_y),
            epsilon=epsilon,
            delta=DELTA["logistic"],
            seeds=seeds,
        )
        return {"auc": [best.auc], "clip": best.clip, "ridge": best.ridge}
    return {"auc": [logistic_fit(table, epsilon, seed, way) for seed in seeds]}


def print_logistic(args: argparse.Namespace, finished: Finished) -> None:
    print("| table | ε | VIPS | DPVI | one-shot optimum | no noise |")
    print("|---|---|---|---|---|---|")
    names = args.names or (*([ADULT] if args.data else []), *LOGISTIC_TABLES)
    for name in names:
        table = functools.cache(functools.partial(_logistic_table, name, args.data))
        for epsilon in args.epsilon:
            cells = []
            for way in LOGISTIC_WAYS:
                at = math.inf if way == "no noise" else epsilon
                found = finished.get(
                    f"logistic, {name}, {way}, {at:g}, {args.repeats}",
                    lambda way=way, epsilon=epsilon, table=table: measure_logistic(
                        table(), way, epsilon, args.repeats
                    ),
                )
                cells.append(_mean_with_error(found["auc"]))
            _print_row([name, f"{epsilon:g}"], cells)


def _logistic_table(name: str, data: str | None) -> LogisticTable:
    if name != ADULT:
        return logistic_table(name)
    if data is None:
        raise SystemExit("Adult needs --data, the folder of its files.")
    found = load(data)
    return LogisticTable(
        X=found.train_features,
        y=found.train_labels,
        test_X=found.test_features,
        test_y=found.test_labels,
    )


def _mean_with_error(values: Sequence[float]) -> str:
    mean = f"{np.mean(values):.4f}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {np.std(values, ddof=1) / math.sqrt(len(values)):.4f}"


# --- both -----------------------------------------------------------------------------


def _fit(
    model: nv.private,
    X: np.ndarray,
    y: np.ndarray,
    *,
    epsilon: float,
    delta: float,
    seed: int,
    engine: str = "auto",
    clipping_norm: dict[str, float] | None = None,
) -> nv.PrivateVIResult:
    """A fit with defaults, whose noise can be repeated as the tables are generated."""
    with warnings.catch_warnings(action="ignore"):
        vi = nv.PrivateVI(
            model,
            budget=nv.PrivacyBudget(epsilon, delta),
            engine=engine,
            clipping_norm=clipping_norm,
            progress_bar=False,
            insecure_seed=seed,
        )
        return vi.run(jax.random.key(seed), X, y)


def _print_row(*cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cell for part in cells for cell in part)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=("linear", "logistic"))
    parser.add_argument("names", nargs="*", default=[], help="of the tables")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--data", help="folder of the UCI files of Adult")
    parser.add_argument("--records", type=Path, help="keeps what has been measured")
    args = parser.parse_args()
    known = {"linear": REGRESSIONS, "logistic": (ADULT, *LOGISTIC_TABLES)}[args.kind]
    unknown = set(args.names) - set(known)
    if unknown:
        parser.error(f"there is no table {sorted(unknown)}; there are {list(known)}")
    printed = {"linear": print_linear, "logistic": print_logistic}[args.kind]
    printed(args, Finished(args.records))


if __name__ == "__main__":
    main()
