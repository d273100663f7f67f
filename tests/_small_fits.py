"""Fits to a few patients, and the models that they fit."""

import math
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_vips as nv

KEY = jax.random.key(0)
NUM_ROWS = 60


def coin(y):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("patients", y.shape[0]):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


def marked(fn: Any, **options: Any) -> nv.private:
    return nv.private(fn, unit="patients", **options)


def rows(count: int = NUM_ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(count, 3)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = (rng.random(count) < 1 / (1 + np.exp(-X @ [3.0, -2.0, 0.5]))).astype(np.float32)
    return X, y


def fitted(fn: Any, *args: Any, budget: Any = None, **options: Any) -> Any:
    if budget is None:
        budget = nv.PrivacyBudget(math.inf)
    model = fn if isinstance(fn, nv.private) else marked(fn)
    vi = nv.PrivateVI(model, budget=budget, progress_bar=False, **options)
    return vi.run(KEY, *args)


X, Y = rows()
