"""A model's log joint density, against NumPyro's own and against an integral."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import log_density
from scipy import stats

import numpyro_vips as nv
from numpyro_vips.dpvi.model_density import ModelDensity
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph

Y = np.array([0.3, 2.1, -1.4, 0.9], np.float32)
DRAWS = {"mu": np.array([0.2, -1.0, 3.0]), "sd": np.array([0.5, 1.5, 2.5])}


def plain(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    sd = numpyro.sample("sd", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, sd), obs=y)


def with_effects(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    sd = numpyro.sample("sd", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        effect = numpyro.sample("effect", dist.Normal(mu, sd))
        numpyro.sample("y", dist.Normal(effect, 0.5), obs=y)


def density_at_draws(fn) -> tuple[ModelDensity, np.ndarray]:
    """log p of `DRAWS` and of Y, in the globals' own coordinates."""
    model = nv.private(fn, unit="rows")
    arguments = bind_arguments(model, (), {"y": Y})
    density = ModelDensity(build_graph(model, arguments))
    with jax.enable_x64(True):
        points, volumes = density.unconstrained(jax.tree.map(jnp.asarray, DRAWS))
    target, *_ = density.with_rows(arguments, np.asarray(points))
    values, _ = target(np.asarray(points))
    return density, values - np.asarray(volumes)


@pytest.mark.thorough
def test_without_latents_of_rows_it_is_numpyros() -> None:
    density, found = density_at_draws(plain)
    assert density.size == 2 and density.is_exact
    for number, value in enumerate(found):
        at = {name: draws[number] for name, draws in DRAWS.items()}
        with jax.enable_x64(True):
            expected, _ = log_density(plain, (), {"y": Y.astype(float)}, at)
        np.testing.assert_allclose(value, expected, rtol=1e-6)


@pytest.mark.thorough
def test_latents_of_rows_are_integrated_out() -> None:
    density, found = density_at_draws(with_effects)
    assert density.is_exact
    mu, sd = DRAWS["mu"], DRAWS["sd"]
    prior = stats.norm.logpdf(mu, 0, 2) + stats.lognorm.logpdf(sd, 1.0)
    spread = np.sqrt(sd**2 + 0.25)
    rows = stats.norm.logpdf(Y[:, None].astype(float), mu, spread).sum(0)
    np.testing.assert_allclose(found, prior + rows, rtol=1e-6)
