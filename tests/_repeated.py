"""Two measurements of the level of each row: all that is asked has a closed form."""

from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
from _engine_fit import EngineFit

ROWS = 400
BETWEEN, WITHIN = 0.5, 1.5
PRIOR = 20.0
# Precision of a level about the mean, and what both measurements say of it.
COMPLETE = 1.0 / BETWEEN**2
OF_LEVEL = 2.0 / WITHIN**2
# What a row says of the mean: y₀ + y₁ is Normal about twice of it.
SEEN = 1.0 / (BETWEEN**2 + WITHIN**2 / 2.0)

Y = np.random.default_rng(0).normal(3.0, 1.6, (ROWS, 2)).astype(np.float32)


def repeated(y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, PRIOR))
    with numpyro.plate("rows", y.shape[0]):
        level = numpyro.sample("level", dist.Normal(mean, BETWEEN))
        for k in range(2):
            numpyro.sample(f"y{k}", dist.Normal(level, WITHIN), obs=y[:, k])


def levels(y: Any, mean: float) -> np.ndarray:
    """The posterior mean of each row's level."""
    of_rows = OF_LEVEL * np.asarray(y, np.float64).mean(1)
    return (COMPLETE * mean + of_rows) / (COMPLETE + OF_LEVEL)


def fit() -> EngineFit:
    return EngineFit(repeated, (Y,))


def mean_of(sums: float) -> float:
    """The posterior mean that a sum of levels over BETWEEN² leads to."""
    return sums / (ROWS * COMPLETE + PRIOR**-2)
