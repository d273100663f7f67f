"""Private logistic regressions with an intercept, on rows that are drawn anew."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from _fits import vi_of


def with_intercept(X: Any, y: Any = None) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=b + X @ w), obs=y)


def posterior_draws(
    X: Any, b: float, w: np.ndarray, rng: np.random.Generator, *, fits: int
) -> Iterator[Mapping[str, Any]]:
    """Draws of the posterior of each fit, to responses with these coefficients."""
    for seed in range(fits):
        y = rng.random(len(X)) < 1.0 / (1.0 + np.exp(-(b + np.asarray(X) @ w)))
        vi = vi_of(with_intercept, insecure_seed=seed)
        result = vi.run(jax.random.key(seed), X, y.astype(np.int32))
        yield result.sample_posterior(jax.random.key(1), (2000,))
