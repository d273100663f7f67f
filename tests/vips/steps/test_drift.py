"""Under noise, sums that still move in the last step are a warning; noise is none."""

import warnings
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of

import numpyro_vips as nv
from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.vips.steps.drift import drift_of, largest_drift

BLOCKS = [
    Block(name="s", shape=()),
    Block(name="s", shape=(7,)),
    Block(name="s", shape=(3, 5, 5), symmetric=True),
    Block(name="s", shape=(3, 5, 5), symmetric=True, hollow=True),
    Block(name="s", shape=(2000,)),
]


def noise_in(block: Block, rng: np.random.Generator) -> np.ndarray:
    """Standard noise in isometric coordinates; a hollow diagonal is another's."""
    noise = rng.normal(size=block.shape)
    if not block.symmetric:
        return noise
    noise = (noise + noise.swapaxes(-1, -2)) / 2.0
    # The diagonal has variance 1, and a pair of entries 1/2 each.
    eye = np.eye(block.shape[-1])
    return noise + 100.0 * eye if block.hollow else noise


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: f"{b.shape}{b.hollow}")
def test_the_limit_is_just_above_what_noise_makes(block: Block) -> None:
    rng, limit = np.random.default_rng(0), largest_drift(block)
    found = [
        drift_of(block, np.asarray(noise_in(block, rng)), np.ones(()))
        for _ in range(2000)
    ]
    # One in ten thousand is above the limit,
    assert np.mean(np.array(found) > limit) <= 2e-3
    # which is not far above what noise makes.
    assert limit < 1.25 * max(found)


def groups(x: Any, y: Any) -> None:
    """Groups that overlap, so that a step leads a part of the way.

    The model does not say how `x` is distributed, so nothing tells how far.
    """
    share = numpyro.sample("share", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(share), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(x + 2.0 * z, 1.0), obs=y)


def fit(**options: Any) -> Any:
    rng = np.random.default_rng(0)
    x = np.zeros(4000, np.float32)
    y = 2.0 * (rng.uniform(size=4000) < 0.95) + rng.normal(size=4000)
    vi = vi_of(
        groups,
        **{"engine": "vips", "budget": nv.PrivacyBudget(8.0, 1e-5), **options},
        clipping_norm=1.0,
        insecure_seed=0,
    )
    with warnings.catch_warnings(action="ignore"):
        return vi.run(jax.random.key(0), x, y.astype(np.float32))


@pytest.mark.thorough
def test_a_fit_under_noise_says_that_its_sums_still_move() -> None:
    found = fit(num_steps=3).diagnostics
    assert found["converged"] is False
    assert found["moving"] == ["share"]
    (text,) = [w for w in found["warnings"] if "not converged" in w]
    assert "'share'" in text and "num_steps=" in text and "step_size=" in text


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {
            "num_steps": 40,
            "engine": nv.VIPS(step_size=lambda t: min(1.0, 6 / (t + 6))),
        },
        {"num_steps": 3, "budget": nv.PrivacyBudget(0.02, 1e-5)},
        {"num_steps": 3, "sampling": nv.Poisson(rate=0.1)},
    ],
    ids=["at rest", "hidden by noise", "minibatches"],
)
def test_nothing_is_said_where_noise_explains_the_drift(options: Any) -> None:
    found = fit(**options).diagnostics
    assert found["drift"]
    assert found["converged"] is None
    assert found["moving"] == []
    assert not any("not converged" in text for text in found["warnings"])
