"""Private Bayesian logistic regression, from a data file to a posterior in ArviZ.

    python examples/logistic_regression.py
    python examples/logistic_regression.py --data adult_folder --epsilon 0.1
    python examples/logistic_regression.py --data mine.csv --label ill \\
        --range age 0 120 --range weight 0 250

Without options it reads the breast cancer data bundled with scikit-learn. A folder
with the UCI files `adult.data` and `adult.test` is read as the Adult data, one with
`abalone.data` as the Abalone data. A CSV file needs a range for each column, known
without looking at the rows.

The guarantee covers the posterior and all that follows from it. The two AUCs and
the reference fit without noise are printed for the holder of the data: they are
computed from the rows as they are, so publish them only where the rows are public.
"""

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import arviz as az
import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit

import numpyro_vips as nv
from _datasets import Dataset, auc, load
from _fit_options import add_run_options, budget, given, sampling_of, write_json

LONGEST_TABLE = 40
NUM_DRAWS = 1000


@nv.private(unit="individuals")
def model(X, y=None):
    """Logistic regression; the strength of the prior on the weights is learnt."""
    alpha = numpyro.sample("alpha", dist.Gamma(1.0, 1.0))
    with numpyro.plate("feature", X.shape[1]):
        w = numpyro.sample("w", dist.Normal(0.0, 1 / jnp.sqrt(alpha)))
    with numpyro.plate("individuals", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the example and returns what `--json` writes."""
    parser = _parser()
    args = parser.parse_args(arguments)
    try:
        ranges = [(name, float(low), float(high)) for name, low, high in args.range]
        dataset = load(args.data, label=args.label, ranges=ranges)
        sampling = sampling_of(args.sampling, args.sampling_rate)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    features, labels = dataset.train_features, dataset.train_labels
    print(
        f"{dataset.name}: {len(features)} rows to train on, "
        f"{len(dataset.test_features)} to test on, {features.shape[1]} columns"
    )

    vi = nv.PrivateVI(
        model,
        budget=budget(args),
        engine=args.engine,
        insecure_seed=args.insecure_seed,
        progress_bar=not args.no_progress,
        **given(
            sampling=sampling,
            num_steps=args.num_steps,
            clipping_norm=args.clipping_norm,
        ),
    )
    print(vi.explain(features, labels))
    start = time.perf_counter()
    result = vi.run(jax.random.key(0), features, labels)
    seconds = time.perf_counter() - start

    if math.isinf(args.epsilon):
        reference = result
    else:
        reference = nv.PrivateVI(
            model,
            budget=nv.PrivacyBudget(math.inf),
            engine=args.engine,
            progress_bar=False,
        ).run(jax.random.key(0), features, labels)

    idata = result.to_arviz(
        jax.random.key(1),
        num_samples=NUM_DRAWS,
        coords={"feature": list(dataset.feature_names)},
    )
    args.output.mkdir(parents=True, exist_ok=True)
    idata.to_netcdf(str(args.output / "posterior.nc"))
    _plot(idata, args.output / "posterior.png")

    report = {
        "data": dataset.name,
        "engine": result.engine,
        # JSON has no infinity.
        "epsilon": "inf" if math.isinf(args.epsilon) else args.epsilon,
        "delta": result.privacy.delta,
        "auc": held_out_auc(result, dataset),
        "auc_nonprivate": held_out_auc(reference, dataset),
        "seconds": seconds,
        "num_rows": len(features),
        "num_columns": features.shape[1],
        "insecure_seed": args.insecure_seed,
    }
    print(_table(idata))
    print(result.privacy)
    print(
        f"test AUC: private {report['auc']:.4f}, "
        f"non-private {report['auc_nonprivate']:.4f}\n"
        f"{seconds:.1f} s for the private fit; "
        f"posterior.nc and posterior.png are in {args.output}"
    )
    write_json(report, args)
    return report


def held_out_auc(result: nv.PrivateVIResult, dataset: Dataset) -> float:
    """AUC of the posterior predictive probability on the test rows."""
    samples = result.sample_posterior(jax.random.key(2), sample_shape=(NUM_DRAWS,))
    logits = dataset.test_features @ np.asarray(samples["w"]).T
    return auc(dataset.test_labels, expit(logits).mean(axis=1))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        default="breast_cancer",
        help="breast_cancer, a folder with adult.data and adult.test or with "
        "abalone.data, or a CSV file",
    )
    parser.add_argument(
        "--label", help="0/1 column of the CSV file (default: its last column)"
    )
    parser.add_argument(
        "--range",
        nargs=3,
        action="append",
        default=[],
        metavar=("COLUMN", "LOW", "HIGH"),
        help="public range of a column of the CSV file; '*' for all not named",
    )
    parser.add_argument("--epsilon", type=float, default=1.0, help="inf: not private")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--engine", choices=("auto", "vips", "dpvi"), default="auto")
    parser.add_argument(
        "--sampling", choices=("poisson", "full", "without_replacement")
    )
    parser.add_argument("--num-steps", type=int)
    parser.add_argument("--sampling-rate", type=float)
    parser.add_argument("--clipping-norm", type=float)
    add_run_options(parser)
    return parser


def _largest(idata: Any, count: int) -> list[str]:
    """Names of the weights whose posterior means are largest in size."""
    mean = abs(idata.posterior["w"].mean(("chain", "draw")))
    order = np.argsort(-mean.to_numpy())[:count]
    return [str(name) for name in mean["feature"].to_numpy()[order]]


def _table(idata: Any) -> str:
    """`az.summary`, shortened to the largest weights where they are many."""
    names = idata.posterior["feature"].to_numpy()
    if len(names) <= LONGEST_TABLE:
        return az.summary(idata, kind="stats").to_string()
    shown = az.summary(
        idata, kind="stats", coords={"feature": _largest(idata, LONGEST_TABLE // 2)}
    )
    return (
        f"{shown.to_string()}\n"
        f"(the {LONGEST_TABLE // 2} largest of {len(names)} weights; "
        "posterior.nc holds all)"
    )


def _plot(idata: Any, path: Path) -> None:
    matplotlib.use("Agg")
    coords = {"feature": _largest(idata, LONGEST_TABLE // 2)}
    plot = az.plot_forest(idata, var_names=["w"], combined=True, coords=coords)
    # ArviZ 1 returns a collection that saves itself, earlier versions axes.
    figure = plot if hasattr(plot, "savefig") else plot.ravel()[0].figure
    figure.savefig(str(path), bbox_inches="tight")


if __name__ == "__main__":
    main()
