"""Heavy tails: with its auxiliary variable integrated out each is NumPyro's density."""

from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from _densities import Density
from _fits import vi_of
from _scales import assert_posterior_is_that_of_a_grid, noise_about_zero
from scipy import special, stats

import numpyro_vips as nv
from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.terms import NotInAlgebra

pytestmark = pytest.mark.usefixtures("x64")

LOC, SCALE = 0.7, 1.3
LATENTS = {"m": LOC, "s": SCALE}
# The auxiliary variable's logarithm.
LOGS = np.linspace(-40.0, 25.0, 2601)


def latent(name: str) -> Any:
    return forms.latent(name, (), signed=name == "m")


def marginal(
    kind: type[dist.Distribution], x: float, parameters: dict[str, Any]
) -> float:
    """log ∫ p(x, λ) dλ, by a sum over log λ: one element for each."""
    density = Density.of(kind, np.full(LOGS.shape, x), **parameters)
    assert list(density.auxiliaries) == ["y:scale"]
    joint = density.at(scale=np.exp(LOGS), **LATENTS)
    return float(special.logsumexp(joint + LOGS) + np.log(LOGS[1] - LOGS[0]))


CASES: dict[str, tuple[type[dist.Distribution], dict[str, Any], dist.Distribution]] = {
    "StudentT": (
        dist.StudentT,
        {"df": 3.5, "loc": latent("m"), "scale": latent("s")},
        dist.StudentT(3.5, LOC, SCALE),
    ),
    "Cauchy": (
        dist.Cauchy,
        {"loc": latent("m"), "scale": latent("s")},
        dist.Cauchy(LOC, SCALE),
    ),
    "Laplace": (
        dist.Laplace,
        {"loc": latent("m"), "scale": latent("s")},
        dist.Laplace(LOC, SCALE),
    ),
    "AsymmetricLaplace": (
        dist.AsymmetricLaplace,
        {"loc": latent("m"), "scale": latent("s"), "asymmetry": 1.6},
        dist.AsymmetricLaplace(LOC, SCALE, 1.6),
    ),
    "AsymmetricLaplaceQuantile": (
        dist.AsymmetricLaplaceQuantile,
        {"loc": latent("m"), "scale": latent("s"), "quantile": 0.2},
        dist.AsymmetricLaplaceQuantile(LOC, SCALE, 0.2),
    ),
    "HalfCauchy": (dist.HalfCauchy, {"scale": latent("s")}, dist.HalfCauchy(SCALE)),
}


@pytest.mark.parametrize("x", [0.1, 0.9, 6.0])
@pytest.mark.parametrize("name", CASES)
def test_the_marginal_is_numpyros(name: str, x: float) -> None:
    kind, parameters, expected = CASES[name]
    wanted = float(np.asarray(expected.log_prob(x)))
    assert marginal(kind, x, parameters) == pytest.approx(wanted, abs=2e-5)


@pytest.mark.parametrize(
    ("kind", "parameters", "reason"),
    [
        (
            dist.AsymmetricLaplace,
            {"loc": 0.0, "scale": 1.0, "asymmetry": latent("s")},
            "the asymmetry",
        ),
        (
            dist.AsymmetricLaplaceQuantile,
            {"loc": 0.0, "scale": 1.0, "quantile": latent("s")},
            "the quantile",
        ),
        (
            dist.StudentT,
            {"df": latent("s"), "loc": 0.0, "scale": 1.0},
            "the concentration",
        ),
    ],
)
def test_a_shape_that_is_a_latent_is_refused(
    kind: type[dist.Distribution], parameters: dict[str, Any], reason: str
) -> None:
    with pytest.raises(NotInAlgebra, match=reason):
        Density.of(kind, 0.5, **parameters)


# Halves of densities about zero, NumPyro's and SciPy's.
HALVES = {
    "Normal": (dist.TruncatedNormal(0.0, 2.0, low=0.0), stats.halfnorm(scale=2.0)),
    "Cauchy": (dist.TruncatedCauchy(0.0, 2.0, low=0.0), stats.halfcauchy(scale=2.0)),
    "StudentT": (
        dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 2.0)),
        stats.t(3.0, scale=2.0),
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", HALVES)
def test_half_a_density_is_a_prior_of_a_scale(name: str):
    with jax.enable_x64(False):
        assert_posterior_is_that_of_a_grid(*HALVES[name])


@pytest.mark.parametrize(
    "prior",
    [
        dist.TruncatedNormal(1.0, 1.0, low=0.0),
        dist.TruncatedNormal(0.0, 1.0, low=0.5),
        dist.FoldedDistribution(dist.Logistic(0.0, 1.0)),
    ],
    ids=["about one", "from a half on", "another density"],
)
def test_what_is_no_half_about_zero_is_not_in_the_algebra(prior: Any):
    budget = nv.PrivacyBudget(epsilon=1.0, delta=1e-5)
    vi = vi_of(noise_about_zero(prior), budget=budget, engine="vips")
    with jax.enable_x64(False), pytest.raises(nv.NotConjugateError, match=r"a half"):
        vi.explain(np.ones(50, np.float32))
