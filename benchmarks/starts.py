"""How far from the prior the Gaussian globals of a fit should start.

    python benchmarks/starts.py mixture
    python benchmarks/starts.py belief-network --data FOLDER

`mixture` fits three clusters from random starts and prints how often all three are
found, by the displacement of the components' means from the prior's mean, in its
standard deviations. `belief-network` takes ten steps of 400 images of MNIST with 50
hidden units and prints pixel accuracy, by the variance of the weights at the start, in
the prior's. Both set constants of `vips/m_step/starts.py` that users do not
see; the comments there quote what this prints. All fits are without noise.
"""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_vips as nv
import sigmoid_belief_network as belief_network
from numpyro_vips.fitting.prepared_fits import forget_prepared_fits
from numpyro_vips.vips.m_step import starts

CENTRES = np.array([[-4.0, 0.0], [4.0, 0.0], [0.0, 5.0]])
DISPLACEMENTS = (1.0, 0.3, 0.1, 0.03)
VARIANCES = (1.0, 0.1, 0.01, 0.001)


def main() -> None:
    args = _parse()
    if args.part == "mixture":
        for size in DISPLACEMENTS:
            starts._COMPONENT_DISPLACEMENT = size
            forget_prepared_fits()  # They start where they were compiled to.
            found = sum(_finds_all(seed) for seed in range(args.starts))
            print(f"displacement {size:g}: {found} of {args.starts}", flush=True)
        return
    images = belief_network.load(args.data)
    for variance in VARIANCES:
        starts._STARTING_VARIANCE = variance
        forget_prepared_fits()
        parsed = belief_network._parser().parse_args(
            [
                *("--num-units", "50", "--prior", "tpbn", "--no-progress"),
                *("--paper", "400", "--sigma", "inf", "--seed", str(args.seed)),
            ]
        )
        result = belief_network.fit(images.train[:4000], parsed)
        accuracies, _ = belief_network.evaluate(result, images.test, 10)
        print(f"variance {variance:g}: {np.mean(accuracies):.3f}", flush=True)


@nv.private(unit="rows")
def _mixture(x):
    weight: Any = numpyro.sample("weight", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("components", 3):
        prior: Any = dist.Normal(0.0, 5.0).expand([2]).to_event(1)
        mean: Any = numpyro.sample("mean", prior)
    with numpyro.plate("rows", x.shape[0]):
        z: Any = numpyro.sample(
            "z", dist.CategoricalProbs(weight), infer={"enumerate": "parallel"}
        )
        of_row: Any = dist.Normal(mean[z], 1.0).to_event(1)
        numpyro.sample("x", of_row, obs=x)


def _finds_all(seed: int) -> bool:
    """Whether each cluster has a component of its own after 20 full steps."""
    rng = np.random.default_rng(seed)
    centres = CENTRES[rng.integers(0, 3, 300)]
    x = (centres + rng.normal(size=centres.shape)).astype(np.float32)
    vi = nv.PrivateVI(
        _mixture,
        budget=nv.PrivacyBudget(math.inf),
        engine="vips",
        num_steps=20,
        progress_bar=False,
    )
    result: Any = vi.run(jax.random.key(seed), x)
    means = np.asarray(result.params["mean/loc"]).reshape(3, 2)
    distances = np.linalg.norm(means[:, None] - CENTRES, axis=-1)
    return len(set(distances.argmin(1).tolist())) == 3


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    one = parts.add_parser("mixture")
    one.add_argument("--starts", type=int, default=50)
    one = parts.add_parser("belief-network")
    one.add_argument("--data", required=True, help="folder of MNIST's idx files")
    one.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
