"""Latents of rows that divide the rows' variance, and the steps that they need."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from _models import uncertified

VISITS = 4


def visits(x: Any, y: Any = None, *, latents: int, learnt: bool) -> None:
    """An intercept of everybody's own, and a slope if there are two latents."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    within = numpyro.sample("within", dist.HalfNormal(1.0))
    scales = [
        numpyro.sample(f"scale_{i}", dist.HalfNormal(1.0)) if learnt else 1.0
        for i in range(latents)
    ]
    with numpyro.plate("rows", x.shape[0], dim=-2):
        own = [
            numpyro.sample(f"own_{i}", dist.Normal(0.0, scale))
            for i, scale in enumerate(scales)
        ]
        with numpyro.plate("visits", VISITS, dim=-1):
            about = own[0] + x * (slope + (own[1] if latents == 2 else 0.0))
            numpyro.sample("y", dist.Normal(about, within), obs=y)


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """3,000 people whose slopes hardly differ."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, VISITS))
    own = rng.normal(size=(3000, 2)) * [0.8, 0.2]
    y = own[:, :1] + x * (0.5 + own[:, 1:]) + rng.normal(size=x.shape)
    return x.astype(np.float32), y.astype(np.float32)


@pytest.mark.parametrize(
    ("latents", "learnt", "expected"),
    [
        (2, True, {"own_0", "own_1"}),
        (1, True, set()),  # It has all of the variance that rows share.
        (2, False, set()),  # Their scales are known.
    ],
)
def test_latents_whose_scales_are_learnt_together_divide_the_variance(
    rows: tuple[np.ndarray, np.ndarray],
    latents: int,
    learnt: bool,
    expected: set[str],
) -> None:
    def model(x: Any, y: Any) -> None:
        visits(x, y, latents=latents, learnt=learnt)

    program = uncertified(model, tuple(array[:4] for array in rows))
    assert program.dividing == expected


@pytest.mark.thorough
def test_small_scales_of_slopes_are_found_under_noise(
    rows: tuple[np.ndarray, np.ndarray],
) -> None:
    """Ten steps that are all averaged end at more than twice the scale, 0.2."""

    def model(x: Any, y: Any) -> None:
        visits(x, y, latents=2, learnt=True)

    vi = vi_of(model, budget=20.0)
    plan = vi.explain(*rows)
    assert "own_0, own_1 divide the rows' variance" in str(plan)
    draws = vi.run(jax.random.key(0), *rows).sample_posterior(
        jax.random.key(1), sample_shape=(1000,)
    )
    assert 0.1 < float(jnp.median(draws["scale_1"])) < 0.35
    assert 0.7 < float(jnp.median(draws["scale_0"])) < 0.9
