"""A private Bayesian neural network: a hidden layer with a posterior over its weights.

    python examples/bayesian_neural_network.py
    python examples/bayesian_neural_network.py --data adult_folder --num-units 16

Data are read as in `logistic_regression.py`: by default the breast cancer data bundled
with scikit-learn, or a folder with the UCI files of Adult or Abalone. The network is
plain JAX; networks of flax and equinox work through `numpyro.contrib.module`.

The guarantee covers the posterior and all that follows from it. The test AUC is
computed from the test rows as they are, for the holder of the data.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit

import numpyro_vips as nv
from _datasets import auc, load
from _fit_options import (
    add_fit_options,
    budget,
    epsilon_for_json,
    fit_settings,
    write_json,
)

NUM_DRAWS = 200
LATENTS = ("inner", "outer", "bias")


@nv.private(unit="individuals")
def model(X, y=None, *, num_units=8):
    """One hidden layer of tanh units over rows of norm 1."""
    wide = dist.Normal(0.0, 2.0)
    inner = numpyro.sample("inner", wide.expand([X.shape[1], num_units]).to_event(2))
    outer = numpyro.sample("outer", wide.expand([num_units]).to_event(1))
    bias = numpyro.sample("bias", dist.Normal(0.0, 1.0))
    with numpyro.plate("individuals", X.shape[0]):
        logits = numpyro.deterministic("logits", jnp.tanh(X @ inner) @ outer + bias)
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the example and returns what `--json` writes."""
    parser = _parser()
    args = parser.parse_args(arguments)
    try:
        dataset = load(args.data)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    X, y = dataset.train_features, dataset.train_labels
    vi = nv.PrivateVI(
        model,
        budget=budget(args),
        **fit_settings(args),
    )
    print(vi.explain(X, y, num_units=args.num_units))
    start = time.perf_counter()
    result = vi.run(jax.random.key(0), X, y, num_units=args.num_units)
    seconds = time.perf_counter() - start

    idata: Any = result.to_arviz(jax.random.key(1), num_samples=NUM_DRAWS)
    args.output.mkdir(parents=True, exist_ok=True)
    idata.to_netcdf(str(args.output / "posterior.nc"))
    samples = {name: idata.posterior[name].to_numpy()[0] for name in LATENTS}
    predictive = numpyro.infer.Predictive(model, samples, return_sites=["logits"])
    logits = predictive(
        jax.random.key(2), dataset.test_features, num_units=args.num_units
    )["logits"]
    report = {
        "data": dataset.name,
        "engine": result.engine,
        "epsilon": epsilon_for_json(args),
        "delta": result.privacy.delta,
        "auc": auc(dataset.test_labels, expit(np.asarray(logits)).mean(0)),
        "num_weights": sum(int(np.size(value[0])) for value in samples.values()),
        "seconds": seconds,
        "num_rows": len(X),
        "insecure_seed": args.insecure_seed,
    }
    print(result.privacy)
    print(
        f"{dataset.name}: {report['num_weights']} weights, test AUC "
        f"{report['auc']:.4f}\n"
        f"{seconds:.1f} s for the fit; posterior.nc is in {args.output}"
    )
    write_json(report, args)
    return report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        default="breast_cancer",
        help="breast_cancer, or a folder with the UCI files of Adult or Abalone",
    )
    parser.add_argument("--num-units", type=int, default=8)
    add_fit_options(parser)
    return parser


if __name__ == "__main__":
    main()
