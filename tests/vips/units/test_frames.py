"""Coordinates in which statistics are released, and the way back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.conjugacy.families.gaussian import Normal
from numpyro_vips.vips.units.frames import Frame

SIZE, BATCH = 3, 2
FAMILY = Normal()


def frame(*, turned: bool) -> Frame:
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(SIZE, SIZE)) + 2.0 * np.eye(SIZE)
    return Frame.of(rng.normal(size=(BATCH, SIZE)), matrix if turned else None)


def gaussian() -> dict[str, jax.Array]:
    """Natural parameters of one for each entry of a batch."""
    rng = np.random.default_rng(1)
    root = rng.normal(size=(BATCH, SIZE, SIZE))
    precision = root @ np.swapaxes(root, 1, 2) + np.eye(SIZE)
    linear = jnp.asarray(rng.normal(size=(BATCH, SIZE)))
    return {"x": linear, "xx": jnp.asarray(-0.5 * precision)}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("turned", [False, True])
def test_a_gaussian_in_a_frame_is_one_of_what_the_model_speaks_of(turned: bool) -> None:
    there, natural = frame(turned=turned), gaussian()
    moments = FAMILY.moments(natural)
    inside = FAMILY.moments(there.natural_in(natural))
    for statistic, value in there.moments_in(moments).items():
        np.testing.assert_allclose(inside[statistic], value, rtol=1e-9, atol=1e-12)
    mean = there.origin + moments["x"] * 0.0
    if there.matrix is not None:
        mean = mean + inside["x"] @ np.asarray(there.matrix).T
    else:
        mean = mean + inside["x"]
    np.testing.assert_allclose(mean, moments["x"], rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("turned", [False, True])
def test_ways_in_and_out_are_inverse(turned: bool) -> None:
    there, natural = frame(turned=turned), gaussian()
    again = there.natural_from(there.natural_in(natural))
    moments = FAMILY.moments(natural)
    back = there.moments_from(there.moments_in(moments))
    for statistic, value in natural.items():
        np.testing.assert_allclose(again[statistic], value, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(back[statistic], moments[statistic], rtol=1e-9)


@pytest.mark.usefixtures("x64")
def test_half_of_a_product_counts_like_both_halves() -> None:
    """What a prior says of two latents may stand on one side of the diagonal alone."""
    there, natural = frame(turned=True), gaussian()
    upper = jnp.triu(natural["xx"], 1)
    one_sided = natural["xx"] + upper - jnp.swapaxes(upper, -1, -2)
    whole = there.natural_in(natural)
    found = there.natural_in({"x": natural["x"], "xx": one_sided})
    for statistic, value in whole.items():
        np.testing.assert_allclose(found[statistic], value, rtol=1e-9)
    out = there.natural_from({"x": natural["x"], "xx": one_sided})
    for statistic, value in there.natural_from(natural).items():
        np.testing.assert_allclose(out[statistic], value, rtol=1e-9)
