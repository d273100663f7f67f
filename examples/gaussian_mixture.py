"""A private Gaussian mixture, with its discrete latents summed out in the likelihood.

    python examples/gaussian_mixture.py
    python examples/gaussian_mixture.py --num-rows 1000 --epsilon inf
    python examples/gaussian_mixture.py --num-components 8 --guide full_rank

The data are generated: five round Gaussians of variance 1 around (0, 0) and (±2, ±2),
in the manner of the DPVI paper, which has 1,000 rows. No conjugate form is needed: the
model is NumPyro's `MixtureSameFamily`, and DPVI takes private gradient steps on it.

The guarantee covers the posterior and all that follows from it. The predictive
likelihood is of test rows, which are drawn anew and are nobody's.
"""

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import logsumexp

import numpyro_vips as nv
from _fit_options import (
    add_fit_options,
    budget,
    epsilon_for_json,
    fit_settings,
    write_json,
)

CENTRES = np.array([[0, 0], [2, 2], [2, -2], [-2, 2], [-2, -2]], float)
NUM_TEST_ROWS = 2000
NUM_DRAWS = 500
LATENTS = ("weight", "mean", "variance")


def mixture(num_components: int) -> nv.private:
    """The model of the DPVI paper, for points in the rows of `x`."""

    @nv.private(unit="rows")
    def model(x):
        weight = numpyro.sample("weight", dist.Dirichlet(jnp.ones(num_components)))
        with numpyro.plate("component", num_components):
            prior = dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1)
            mean = numpyro.sample("mean", prior)
            variance = numpyro.sample("variance", dist.InverseGamma(1.0, 1.0))
        components = dist.Normal(mean, jnp.sqrt(variance)[:, None]).to_event(1)
        with numpyro.plate("rows", x.shape[0]):
            chosen = dist.CategoricalProbs(weight)
            numpyro.sample("x", dist.MixtureSameFamily(chosen, components), obs=x)

    return model


def generate(num_rows: int, seed: int) -> np.ndarray:
    """Points from the five Gaussians, in equal shares."""
    rng = np.random.default_rng(seed)
    centres = CENTRES[rng.integers(0, len(CENTRES), num_rows)]
    return (centres + rng.normal(size=centres.shape)).astype(np.float32)


def predictive_log_likelihood(samples: Mapping[str, Any], x: np.ndarray) -> float:
    """Mean over rows of log p(row), the density averaged over the draws.

    Args:
      samples: `weight` (draws, K), `mean` (draws, K, 2) and `variance` (draws, K).
      x: Test rows.
    """
    weight, mean, variance = (np.asarray(samples[name], float) for name in LATENTS)
    distances = ((x[:, None, None] - mean) ** 2).sum(-1)
    terms = np.log(weight) - distances / (2 * variance)
    terms -= 0.5 * x.shape[1] * np.log(2 * np.pi * variance)
    densities = np.asarray(logsumexp(terms, axis=(1, 2)))
    return float(np.mean(densities)) - math.log(len(weight))


def truth() -> dict[str, np.ndarray]:
    """The mixture that `generate` draws from, as a single posterior draw."""
    count = len(CENTRES)
    return {
        "weight": np.full((1, count), 1 / count),
        "mean": CENTRES[None],
        "variance": np.ones((1, count)),
    }


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the example and returns what `--json` writes."""
    args = _parser().parse_args(arguments)
    x = generate(args.num_rows, seed=0)
    test = generate(NUM_TEST_ROWS, seed=1)
    vi = nv.PrivateVI(
        mixture(args.num_components),
        budget=budget(args),
        **fit_settings(args),
    )
    print(vi.explain(x))
    start = time.perf_counter()
    result = vi.run(jax.random.key(0), x)
    seconds = time.perf_counter() - start

    idata: Any = result.to_arviz(jax.random.key(1), num_samples=NUM_DRAWS)
    args.output.mkdir(parents=True, exist_ok=True)
    idata.to_netcdf(str(args.output / "posterior.nc"))
    samples = {name: idata.posterior[name].to_numpy()[0] for name in LATENTS}
    _plot(samples, args.output / "components.png")

    report = {
        "engine": result.engine,
        "epsilon": epsilon_for_json(args),
        "delta": result.privacy.delta,
        "predictive": predictive_log_likelihood(samples, test),
        "predictive_truth": predictive_log_likelihood(truth(), test),
        "seconds": seconds,
        "num_rows": len(x),
        "insecure_seed": args.insecure_seed,
    }
    weights, means = (np.mean(samples[name], 0) for name in ("weight", "mean"))
    print("weight  mean")
    for component in np.argsort(-weights):
        centre = ", ".join(f"{value:5.2f}" for value in means[component])
        print(f"{weights[component]:6.3f}  ({centre})")
    print(result.privacy)
    print(
        f"log predictive likelihood per test row: {report['predictive']:.3f}, "
        f"of the true mixture {report['predictive_truth']:.3f}\n"
        f"{seconds:.1f} s for the fit; posterior.nc and components.png are in "
        f"{args.output}"
    )
    write_json(report, args)
    return report


def draw_components(axis: Any, samples: Mapping[str, Any], title: str) -> None:
    """Each component's standard-deviation circle, darker where it weighs more."""
    from matplotlib.patches import Circle

    weight, mean, variance = (np.mean(samples[name], 0) for name in LATENTS)
    for share, centre, spread in zip(weight, mean, variance, strict=True):
        strength = float(min(1.0, 0.1 + 3 * share))
        axis.add_patch(
            Circle(tuple(centre), math.sqrt(spread), fill=False, alpha=strength)
        )
        axis.plot(*centre, "k.", alpha=strength)
    axis.plot(*CENTRES.T, "rx")
    axis.set(xlim=(-5, 5), ylim=(-5, 5), aspect="equal", title=title)


def _plot(samples: Mapping[str, Any], path: Path) -> None:
    # No rows are drawn: they are private.
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots()
    draw_components(axis, samples, "posterior mean (circles) and truth (crosses)")
    figure.savefig(str(path), bbox_inches="tight")
    pyplot.close(figure)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-rows", type=int, default=20_000)
    parser.add_argument("--num-components", type=int, default=len(CENTRES))
    add_fit_options(parser)
    return parser


if __name__ == "__main__":
    main()
