"""Whatever noise is released, the iterates stay where a posterior is one.

No row is read here: steps get noise alone, of any size, as at any ε.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from _fits import vi_of

import numpyro_vips as nv

STEPS = 200


def horseshoe(x, y=None):
    local = numpyro.sample("local", dist.HalfCauchy(jnp.ones(6)))
    overall = numpyro.sample("overall", dist.HalfCauchy(1.0))
    unscaled = numpyro.sample("unscaled", dist.Normal(0.0, jnp.ones(6)))
    precision = numpyro.sample("precision", dist.Gamma(3.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        mean = x @ (overall * local * unscaled)
        numpyro.sample("y", dist.Normal(mean, precision**-0.5), obs=y)


def of_every_support(x, y=None):
    wide = numpyro.sample("wide", dist.Cauchy(0.0, 1e4))
    heavy = numpyro.sample("heavy", dist.HalfCauchy(100.0))
    skewed = numpyro.sample("skewed", dist.LogNormal(3.0, 5.0))
    share = numpyro.sample("share", dist.Beta(0.5, 0.5))
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
    cuts = numpyro.sample(
        "cuts",
        dist.TransformedDistribution(
            dist.Normal(0.0, 1.0).expand([3]).to_event(1),
            dist.transforms.OrderedTransform(),
        ),
    )
    between = numpyro.sample("between", dist.TruncatedNormal(0.0, 1.0, low=-2.0))
    factor = numpyro.sample("factor", dist.LKJCholesky(2, 2.0))
    with numpyro.plate("rows", x.shape[0]):
        mean = wide + share * x[:, 0] + x[:, :3] @ (shares + cuts) + factor[1, 0]
        scale = heavy + skewed + jnp.exp(between)
        numpyro.sample("y", dist.Normal(mean, scale), obs=y)


# With the number of seeds: at one in three the scales of a horseshoe used to be lost.
MODELS = {"horseshoe": (horseshoe, 3), "of every support": (of_every_support, 1)}
ROWS = np.ones((8, 6), np.float32), np.ones(8, np.float32)


def engine_of(model: Any, settings: nv.DPVI) -> Any:
    vi = vi_of(model, engine=settings, clipping_norm=1.0)
    prepared, _ = vi._prepare_fit(ROWS, {})
    return prepared.engine


def noise_of(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Any:
    """Noise of very different sizes, entry by entry, or of one size and one sign."""
    if kind == "one way":
        return np.full(shape, 1e3)
    sizes = 10.0 ** rng.uniform(-3.0, 36.0, shape) if kind == "any size" else 1e3
    return sizes * rng.normal(size=shape)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["any size", "Gaussian", "one way"])
@pytest.mark.parametrize(
    "settings",
    [
        nv.DPVI(),
        nv.DPVI(guide="full_rank"),
        nv.DPVI(guide="low_rank"),
        nv.DPVI(perturb="all"),
        nv.DPVI(optimizer=optax.sgd(10.0)),
    ],
    ids=["default", "full rank", "low rank", "all", "own optimiser"],
)
@pytest.mark.parametrize("name", MODELS)
def test_noise_alone_leads_to_a_posterior(name: str, settings: Any, kind: str):
    model, seeds = MODELS[name]
    engine = engine_of(model, settings)
    rng = np.random.default_rng(0)
    for seed in range(seeds):
        state = engine.initial_state(jax.random.key(seed))
        blocks = engine.blocks("adaptive")
        for _ in range(STEPS):
            noise = {b.name: noise_of(rng, kind, b.shape) for b in blocks}
            state = engine.update(state, noise, dict.fromkeys(noise, 1e3), 1.0)
        posterior = engine.posterior(state)
        assert not posterior.problems()
        assert engine.diagnostics(state)
        draws = posterior.sample(jax.random.key(seed), (500,))
        for site, values in draws.items():
            assert np.isfinite(values).all(), (site, seed)
        positive = {"local", "overall", "precision", "heavy", "skewed"} & draws.keys()
        for site in positive:
            assert (np.asarray(draws[site]) > 0).all(), (site, seed)


@pytest.mark.thorough
@pytest.mark.parametrize("guide", ["mean_field", "full_rank", "low_rank"])
def test_inside_the_ranges_nothing_is_changed(guide: Any):
    """Means thousands of units away, and scales from a millionth to the prior's."""
    engine = engine_of(of_every_support, nv.DPVI(guide=guide))
    ranges, guide = engine.program.ranges, engine.program.guide
    rng = np.random.default_rng(0)
    for seed in range(20):
        arrays = guide.initial(engine.program.start, jax.random.key(seed))
        size = len(arrays["loc"])
        away = 0.4 * rng.uniform(-1.0, 1.0, size) * np.minimum(ranges.distance, 1e4)
        arrays["loc"] = jnp.asarray(ranges.centre + away, jnp.float32)
        log_scale = np.log(np.maximum(1e-3 * abs(arrays["loc"]), 1e-6))
        arrays["log_scale"] = jnp.asarray(log_scale - rng.uniform(0, 3, size))
        arrays["log_scale"] = jnp.asarray(arrays["log_scale"], jnp.float32)
        held = ranges.holding(arrays)
        assert held.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(held[name], array)


def test_ranges_end_where_numbers_do():
    """e^88 is the largest number in single precision, about; a real one has no end."""
    engine = engine_of(horseshoe, nv.DPVI())
    sites = engine.program.space.sites
    ends = engine.program.space.split(jnp.asarray(engine.program.ranges.distance))
    for site in sites:
        end = site.unit * np.asarray(ends[site.name])
        if site.name == "unscaled":
            assert (end > 1e14).all()
        else:
            assert (end > 70.0).all() and (end < 89.0).all()
