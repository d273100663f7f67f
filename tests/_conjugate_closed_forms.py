"""Closed forms of posteriors, and conjugate models that have one."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from _cases import Cases, inverse_wishart, wide_normals
from _rows import coins, counts, numbers, points

CASES = Cases()
observed = CASES.observed


def _weibull(y: np.ndarray) -> dict[str, Any]:
    return {"rate/concentration": 2 + len(y), "rate/rate": 1 + (y**1.5).sum()}


def _levy(y: np.ndarray) -> dict[str, Any]:
    rate = 1 + (0.5 / (y + 0.5)).sum()
    return {"c/concentration": 2 + len(y) / 2, "c/rate": rate}


def _kumaraswamy(y: np.ndarray) -> dict[str, Any]:
    return {"b/concentration": 2 + len(y), "b/rate": 1 - np.log1p(-(y**2)).sum()}


def _known_mean(y: Any) -> Any:
    return dist.MultivariateNormal(jnp.zeros(3), inverse_wishart(3))


def _scatter(y: np.ndarray) -> dict[str, Any]:
    return {"S/concentration": 5 + len(y), "S/scale_matrix": np.eye(3) + y.T @ y}


observed("known mean", points, _known_mean)


def _pulled_mean(y: Any) -> Any:
    mean = wide_normals("mean")
    numpyro.factor("pull", -2.0 * (mean - 1.0) ** 2)
    return dist.Normal(mean, 1.0)


def _pulled(y: np.ndarray) -> dict[str, Any]:
    precision = 1 / 4 + 4 + len(y)
    return {
        "mean/loc": [(4 + y.sum()) / precision],
        "mean/covariance_matrix": [[1 / precision]],
    }


observed("factor of a global", numbers, _pulled_mean)


def flat(name: str, support: Any = dist.constraints.real) -> Any:
    return numpyro.sample(name, dist.ImproperUniform(support, (), ()))


def _flat_mean(y: np.ndarray) -> dict[str, Any]:
    return {"mean/loc": [y.mean()], "mean/covariance_matrix": [[1 / (4 * len(y))]]}


def _flat_scale(y: np.ndarray) -> dict[str, Any]:
    # Those of its square: p(s) = 1 is p(s²) ∝ 1 / s.
    return {"s/concentration": (len(y) - 1) / 2, "s/rate": (y**2).sum() / 2}


def _flat_rate(y: np.ndarray) -> dict[str, Any]:
    return {"r/concentration": 1 + y.sum(), "r/rate": len(y)}


def _flat_variance(y: np.ndarray) -> dict[str, Any]:
    return {"v/concentration": len(y) / 2 - 1, "v/rate": (y**2).sum() / 2}


def _flat_chance(y: np.ndarray) -> dict[str, Any]:
    return {"p/concentration1": 1 + y.sum(), "p/concentration0": 1 + (1 - y).sum()}


POSITIVE = dist.constraints.positive


observed("flat mean", numbers, lambda y: dist.Normal(flat("mean"), 0.5))


observed("flat scale", numbers, lambda y: dist.Normal(0.0, flat("s", POSITIVE)))


observed("flat rate", counts, lambda y: dist.Poisson(flat("r", POSITIVE)))


observed(
    "flat variance",
    numbers,
    lambda y: dist.Normal(0.0, jnp.sqrt(flat("v", POSITIVE))),
)


observed(
    "flat chance",
    coins,
    lambda y: dist.Bernoulli(flat("p", dist.constraints.unit_interval)),
)


# By the name of a model, the parameters of its posterior, as a function of its rows.
POSTERIORS: dict[str, Callable[..., dict[str, Any]]] = {
    "Kumaraswamy": _kumaraswamy,
    "Levy": _levy,
    "Weibull": _weibull,
    "known mean": _scatter,
    "factor of a global": _pulled,
    "flat mean": _flat_mean,
    "flat scale": _flat_scale,
    "flat rate": _flat_rate,
    "flat variance": _flat_variance,
    "flat chance": _flat_chance,
}
