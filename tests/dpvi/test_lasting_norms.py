"""Which gradients of rows stay as large as they were at the start."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of

OBSERVATIONS: dict[str, Any] = {
    "logits": lambda w: dist.Bernoulli(logits=w),
    "probit": lambda w: dist.Bernoulli(probs=0.5 * (1 + jnp.tanh(w))),
    "classes": lambda w: dist.Categorical(logits=jnp.stack([0 * w, w], -1)),
    "counts": lambda w: dist.Poisson(jnp.exp(w)),
    "numbers": lambda w: dist.StudentT(3.0, w, 1.0),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_gradients_of_labels_last(kind: str):
    def model(x: Any, y: Any = None) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", OBSERVATIONS[kind](w * x), obs=y)

    x = np.ones(50, np.float32)
    y = np.zeros(50, np.float32 if kind == "numbers" else np.int32)
    prepared, _ = vi_of(model, engine="dpvi")._prepare_fit((x, y), {})
    are_labels = kind in ("logits", "probit", "classes")
    assert prepared.engine.lasting == (
        prepared.engine.balanced if are_labels else frozenset()
    )
