"""The Normals of automatic guides, against the covariance that each is said to have."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints
from scipy import stats

from numpyro_vips.dpvi.guides.automatic_guides import (
    FAMILIES,
    LARGEST_SCALE,
    GuideFamily,
    NormalGuide,
)
from numpyro_vips.dpvi.guides.posteriors import JointNormalPosterior, NormalPosterior
from numpyro_vips.dpvi.guides.unconstrained import GuideSite, UnconstrainedSpace

pytestmark = pytest.mark.usefixtures("x64")

SPACE = UnconstrainedSpace(
    sites=(
        GuideSite(name="w", support=constraints.real, shape=(3,), dims=("",)),
        GuideSite(name="s", support=constraints.positive, shape=(), dims=()),
    )
)
SIZE = 4


def guide(family: GuideFamily, num_rows: int = 400) -> NormalGuide:
    return NormalGuide(SPACE, family, num_rows=num_rows)


def arrays_of(family: GuideFamily, seed: int = 0) -> dict[str, jax.Array]:
    rng = np.random.default_rng(seed)
    made = guide(family)
    arrays = {"loc": rng.normal(size=SIZE), "log_scale": rng.normal(size=SIZE)}
    if made.rank:
        arrays["factor"] = rng.normal(size=(SIZE, made.rank))
    return {name: jnp.asarray(array) for name, array in arrays.items()}


def covariance(family: GuideFamily, arrays: Any) -> np.ndarray:
    """s (I + F)(I + F)ᵀ s, or s (I + F Fᵀ) s where F has draws of its own."""
    scale = np.diag(np.exp(arrays["log_scale"]))
    inner = np.eye(SIZE)
    if family == "full_rank":
        root = inner + np.tril(arrays["factor"], -1)
        inner = root @ root.T
    if family == "low_rank":
        inner = inner + arrays["factor"] @ arrays["factor"].T
    return scale @ inner @ scale


@pytest.mark.parametrize("family", FAMILIES)
def test_a_draw_is_linear_in_numbers_that_give_it_its_covariance(
    family: GuideFamily,
) -> None:
    made, arrays = guide(family), arrays_of(family)
    noise = jnp.asarray(np.random.default_rng(1).normal(size=made.num_draws))
    root = np.asarray(jax.jacobian(lambda e: made.value(arrays, e))(noise))
    np.testing.assert_allclose(made.value(arrays, noise), arrays["loc"] + root @ noise)
    np.testing.assert_allclose(root @ root.T, covariance(family, arrays))


@pytest.mark.parametrize("family", FAMILIES)
def test_entropies_differ_as_those_of_normals(family: GuideFamily) -> None:
    found, expected = [], []
    for seed in (0, 1):
        arrays = arrays_of(family, seed)
        spread: Any = covariance(family, arrays)
        found.append(float(guide(family).entropy(arrays)))
        expected.append(stats.multivariate_normal(cov=spread).entropy())
    assert found[0] - found[1] == pytest.approx(expected[0] - expected[1])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("num_rows", "scale"), [(4, LARGEST_SCALE), (10_000, 0.01)])
def test_a_start_is_narrow_and_near_to_where_it_should_be(
    family: GuideFamily, num_rows: int, scale: float
) -> None:
    start, unit = jnp.arange(4.0), np.array([1.0, 1.0, 100.0, 1.0])
    arrays = guide(family, num_rows).initial(start, jax.random.key(0), unit)
    np.testing.assert_allclose(np.exp(arrays["log_scale"]), scale * unit)
    away = np.abs(arrays["loc"] - start) / unit
    assert np.all(away > 0) and np.all(away < 0.5)
    assert ("factor" in arrays) == (family != "mean_field")
    if family == "full_rank":
        assert not np.any(arrays["factor"])
    if family == "low_rank":
        # There would be no gradient at zero.
        assert arrays["factor"].shape == (SIZE, 2) and np.all(arrays["factor"])


@pytest.mark.parametrize("family", ["mean_field", "full_rank"])
def test_arrays_of_a_normal_have_its_mean_and_covariance(family: GuideFamily) -> None:
    rng = np.random.default_rng(3)
    loc, tril = rng.normal(size=SIZE), np.tril(rng.normal(size=(SIZE, SIZE)))
    np.fill_diagonal(tril, rng.uniform(0.5, 2.0, SIZE))
    if family == "mean_field":
        tril = np.diag(np.diag(tril))
    arrays = guide(family).arrays_of(loc, tril)
    np.testing.assert_allclose(arrays["loc"], loc)
    np.testing.assert_allclose(covariance(family, arrays), tril @ tril.T)


def test_marginals_are_the_sites_own_distributions() -> None:
    arrays = arrays_of("mean_field")
    found = guide("mean_field").marginals(arrays, {"w": 1, "s": 0})
    loc, scale = np.asarray(arrays["loc"]), np.exp(arrays["log_scale"])
    w = np.array([0.1, -0.4, 2.0])
    expected = stats.norm.logpdf(w, loc[:3], scale[:3]).sum()
    assert float(found["w"].log_prob(w)) == pytest.approx(expected)
    expected = stats.lognorm.logpdf(1.7, s=scale[3], scale=math.exp(loc[3]))
    assert float(found["s"].log_prob(1.7)) == pytest.approx(expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_posterior_has_the_guides_mean_and_covariance(family: GuideFamily) -> None:
    arrays = arrays_of(family)
    found = guide(family).posterior(arrays, {"net": jnp.ones(2)})
    assert set(found.points) == {"net"}
    if family == "mean_field":
        assert isinstance(found, NormalPosterior)
        np.testing.assert_allclose(found.loc["w"], arrays["loc"][:3])
        np.testing.assert_allclose(found.scale["s"], np.exp(arrays["log_scale"][3]))
        assert found.scale["s"].shape == ()
        return
    assert isinstance(found, JointNormalPosterior)
    spread = found.factor @ found.factor.T
    if found.diagonal is not None:
        spread = spread + np.diag(found.diagonal**2)
    np.testing.assert_allclose(found.loc, arrays["loc"])
    np.testing.assert_allclose(spread, covariance(family, arrays))
