"""Heavy tails: with its auxiliary variable integrated out each is NumPyro's density."""

from typing import Any

import numpy as np
import numpyro.distributions as dist
import pytest
from _densities import Density
from scipy import special

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
