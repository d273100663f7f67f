"""How long a fit takes to start, the first time and when there was one like it.

    python benchmarks/repeated_fits.py

A logistic regression on 569 generated rows of 30 columns, that of `make demo`, by both
engines, each several times on rows of its own. For each fit: seconds from the call to
the end, how many of them went into planning, compiling and running, and those of
processors, on all cores together, which other programs on the machine change little.
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_vips as nv


@nv.private(unit="patients")
def model(X: Any, y: Any = None) -> None:
    alpha: Any = numpyro.sample("alpha", dist.Gamma(1.0, 1.0))
    with numpyro.plate("feature", X.shape[1]):
        w: Any = numpyro.sample("w", dist.Normal(0.0, 1 / jnp.sqrt(alpha)))
    with numpyro.plate("patients", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fits", type=int, default=4, help="by each engine")
    args = parser.parse_args()
    for engine in ("vips", "dpvi"):
        for number in range(args.fits):
            rng = np.random.default_rng(number)
            X = rng.normal(size=(569, 30))
            X /= np.linalg.norm(X, axis=1, keepdims=True)
            y = (rng.random(569) < 0.5).astype(float)
            vi = nv.PrivateVI(
                model,
                budget=nv.PrivacyBudget(1.0, 1e-6),
                engine=engine,
                progress_bar=False,
            )
            started, worked = time.perf_counter(), time.process_time()
            result = vi.run(jax.random.key(number), X, y)
            worked = time.process_time() - worked
            seconds = {"all": time.perf_counter() - started, **result.seconds}
            seconds["processors"] = worked
            listed = ", ".join(f"{name} {value:.3f}" for name, value in seconds.items())
            print(f"{engine}, fit {number + 1}: {listed}")


if __name__ == "__main__":
    main()
