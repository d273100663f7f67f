"""Conjugate models whose vectors have covariances."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from _cases import (
    Cases,
    gammas,
    inverse_wishart,
    normals,
    observe,
    simplices,
    wide_normals,
)
from _models import UNIT
from _rows import grouped, linear, points

CASES = Cases()
conjugate, observed = CASES.of, CASES.observed


SHAPE = np.array([[1.0, 0.3, 0.1], [0.3, 2.0, 0.2], [0.1, 0.2, 1.5]])


@conjugate(linear)
def multiple_of_a_precision(X: Any, y: Any) -> None:
    tau = gammas("tau")
    prior = dist.MultivariateNormal(jnp.zeros(3), precision_matrix=tau * SHAPE)
    w = numpyro.sample("w", prior)
    observe(dist.Normal(X @ w, tau**-0.5), y)


@conjugate(linear)
def multiple_of_a_covariance(X: Any, y: Any) -> None:
    variance = numpyro.sample("variance", dist.InverseGamma(2.0, 1.0))
    prior = dist.MultivariateNormal(jnp.zeros(3), variance * jnp.asarray(SHAPE))
    observe(dist.Normal(X @ numpyro.sample("w", prior), 0.5), y)


@conjugate(linear)
def multiple_of_a_cholesky_factor(X: Any, y: Any) -> None:
    factor = jnp.linalg.cholesky(jnp.asarray(SHAPE)) / jnp.sqrt(gammas("tau"))
    prior = dist.MultivariateNormal(jnp.zeros(3), scale_tril=factor)
    observe(dist.Normal(X @ numpyro.sample("w", prior), 0.5), y)


@conjugate(points)
def isotropic_noise(y: Any) -> None:
    mu, tau = normals("mu", 3), gammas("tau")
    observe(dist.MultivariateNormal(mu, covariance_matrix=jnp.eye(3) / tau), y)


@conjugate(points)
def precision_chosen_by_class(y: Any) -> None:
    mu, tau = normals("mu", 2, 3, scale=3.0), gammas("tau", 2)
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.3, 0.7])))
        precision = tau[z][:, None, None] * SHAPE
        noise = dist.MultivariateNormal(mu[z], precision_matrix=precision)
        numpyro.sample("y", noise, obs=y)


@conjugate(points)
def gaussian_process_with_amplitude(y: Any) -> None:
    times = np.arange(3.0)
    kernel = np.exp(-0.5 * (times[:, None] - times) ** 2) + 0.01 * np.eye(3)
    amplitude = numpyro.sample("amplitude", dist.InverseGamma(2.0, 1.0))
    prior = dist.MultivariateNormal(jnp.zeros(3), amplitude * kernel)
    f = numpyro.sample("f", prior)
    observe(dist.Normal(f, 0.5).to_event(1), y)


NEIGHBOURS = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0.0]])


def _shared_covariance(y: Any) -> Any:
    S = inverse_wishart(3)
    mu = numpyro.sample("mu", dist.MultivariateNormal(jnp.zeros(3), S / 0.1))
    return dist.MultivariateNormal(mu, S)


def of_vector(*args: Any, **spread: Any) -> Any:
    return dist.MultivariateNormal(*args, **spread)


for _name, _density in {
    "normal inverse Wishart": _shared_covariance,
    "diagonal precision": lambda y: of_vector(
        wide_normals("mu", 3), precision_matrix=jnp.diag(gammas("t", 3))
    ),
    "diagonal covariance": lambda y: of_vector(
        jnp.zeros(3), covariance_matrix=jnp.diag(1 / gammas("t", 3))
    ),
    "diagonal Cholesky factor": lambda y: of_vector(
        jnp.zeros(3), scale_tril=jnp.diag(gammas("t", 3) ** -0.5)
    ),
    "scaled rows of the identity": lambda y: of_vector(
        jnp.ones(3), precision_matrix=gammas("t", 3)[:, None] * jnp.eye(3)
    ),
    "low rank": lambda y: dist.LowRankMultivariateNormal(
        wide_normals("mu", 3), jnp.ones((3, 1)), 0.5 * jnp.ones(3)
    ),
    "multivariate t": lambda y: dist.MultivariateStudentT(
        4.0, wide_normals("mu", 3), 0.7 * jnp.eye(3)
    ),
    "random walk": lambda y: dist.Normal(
        numpyro.sample("w", dist.GaussianRandomWalk(gammas("t") ** -0.5, 3)), 0.5
    ).to_event(1),
}.items():
    observed(_name, points, _density)


@conjugate(grouped)
def areas_with_neighbours(x: Any, y: Any, g: Any) -> None:
    prior = dist.CAR(0.3, 0.5, gammas("t"), NEIGHBOURS)
    phi = numpyro.sample("phi", prior)
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.sample("y", dist.Normal(phi[g], 0.5), obs=y)


@conjugate(points)
def gaussian_mixture_with_covariances(y: Any) -> None:
    pi, mu, S = simplices("pi", 2), wide_normals("mu", 2, 3), inverse_wishart(3, 2)
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(pi))
        numpyro.sample("y", dist.MultivariateNormal(mu[z], S[z]), obs=y)
