"""Vectors and matrices: each spelling of each density, against NumPyro's."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from _densities import Density, constant
from scipy import special

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.terms import NotInAlgebra
from numpyro_vips.conjugacy.densities.multivariate import precision_of

pytestmark = pytest.mark.usefixtures("x64")

RNG = np.random.default_rng(3)
X = RNG.normal(size=(4, 3))
LOC = RNG.normal(size=3)
ROOT = np.tril(RNG.normal(size=(3, 3)) + 2 * np.eye(3))
COVARIANCE = ROOT @ ROOT.T
PRECISION = np.linalg.inv(COVARIANCE)
SPELLINGS = {
    "covariance_matrix": COVARIANCE,
    "precision_matrix": PRECISION,
    "scale_tril": np.linalg.cholesky(COVARIANCE),
}


def loc() -> forms.Form:
    return forms.latent("m", (3,), signed=True)


def number() -> forms.Form:
    return forms.latent("t", ())


def matrix() -> forms.Form:
    return forms.latent("S", (3, 3))


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("factor", [None, 1.7], ids=["constant", "a latent's multiple"])
def test_a_normal_is_numpyros_in_every_spelling(
    name: str, factor: float | None
) -> None:
    spread: Any = SPELLINGS[name]
    given = spread if factor is None else number() * forms.constant(spread)
    density = Density.of(dist.MultivariateNormal, X, loc=loc(), **{name: given})
    expected = dist.MultivariateNormal(
        LOC, **{name: jnp.asarray(spread * (factor or 1.0))}
    )
    found = density.at(m=LOC, t=factor)
    np.testing.assert_allclose(found, expected.log_prob(X), rtol=1e-8)


@pytest.mark.parametrize(
    ("name", "value"),
    [("precision_matrix", PRECISION), ("covariance_matrix", COVARIANCE)],
)
def test_a_matrix_may_be_a_latent(name: str, value: np.ndarray) -> None:
    density = Density.of(dist.MultivariateNormal, X, loc=loc(), **{name: matrix()})
    expected = dist.MultivariateNormal(LOC, **{name: jnp.asarray(value)})
    found = density.at(m=LOC, S=value)
    np.testing.assert_allclose(found, expected.log_prob(X), rtol=1e-8)


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_diagonal_of_latents_is_independent_normals(name: str) -> None:
    entries = np.array([0.5, 1.5, 2.0])
    form = forms.place(
        forms.latent("d", (3,)), (forms.Label(3), forms.Label(3))
    ) * forms.constant(np.eye(3))
    density = Density.of(dist.MultivariateNormal, X, loc=loc(), **{name: form})
    expected = dist.MultivariateNormal(LOC, **{name: jnp.diag(jnp.asarray(entries))})
    found = density.at(m=LOC, d=entries)
    np.testing.assert_allclose(found, expected.log_prob(X), rtol=1e-8)


def test_a_covariance_that_is_none_is_refused() -> None:
    with pytest.raises(NotInAlgebra, match="not positive definite"):
        precision_of({"covariance_matrix": constant(np.diag([1.0, -1.0]))})
    with pytest.raises(NotInAlgebra, match="a covariance that is not constant"):
        precision_of({"scale_tril": matrix()})


@pytest.mark.parametrize("name", ["rate_matrix", "scale_matrix", "scale_tril"])
def test_a_wishart_is_numpyros(name: str) -> None:
    given = {
        "rate_matrix": PRECISION,
        "scale_matrix": COVARIANCE,
        "scale_tril": SPELLINGS["scale_tril"],
    }[name]
    density = Density.of(dist.Wishart, matrix(), concentration=5.5, **{name: given})
    value = np.array([[2.0, 0.3, 0.1], [0.3, 1.5, -0.4], [0.1, -0.4, 0.9]])
    expected = dist.Wishart(5.5, **{name: jnp.asarray(given)}).log_prob(value)
    assert float(density.at(S=value)) == pytest.approx(float(expected), rel=1e-8)


@pytest.mark.parametrize("name", ["scale_matrix", "rate_matrix"])
def test_an_inverse_wishart_is_numpyros(name: str) -> None:
    given = {"scale_matrix": COVARIANCE, "rate_matrix": PRECISION}[name]
    density = Density.of(
        dist.InverseWishart, matrix(), concentration=5.5, **{name: given}
    )
    value = np.array([[2.0, 0.3, 0.1], [0.3, 1.5, -0.4], [0.1, -0.4, 0.9]])
    expected = dist.InverseWishart(5.5, **{name: jnp.asarray(given)}).log_prob(value)
    assert float(density.at(S=value)) == pytest.approx(float(expected), rel=1e-8)


def test_the_rest_are_numpyros() -> None:
    factor, diagonal = RNG.normal(size=(3, 1)), np.array([0.5, 0.8, 1.2])
    found = Density.of(
        dist.LowRankMultivariateNormal,
        X,
        loc=loc(),
        cov_factor=factor,
        cov_diag=diagonal,
    ).at(m=LOC)
    expected = dist.LowRankMultivariateNormal(LOC, factor, diagonal).log_prob(X)
    np.testing.assert_allclose(found, expected, rtol=1e-8)

    found = Density.of(dist.GaussianRandomWalk, X, scale=number()).at(t=0.4)
    expected = dist.GaussianRandomWalk(0.4, num_steps=3).log_prob(X)
    np.testing.assert_allclose(found, expected, rtol=1e-8)

    neighbours = np.array([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]])
    found = Density.of(
        dist.CAR,
        X,
        loc=loc(),
        correlation=0.6,
        conditional_precision=number(),
        adj_matrix=neighbours,
    ).at(m=LOC, t=2.5)
    expected = dist.CAR(LOC, 0.6, 2.5, jnp.asarray(neighbours)).log_prob(X)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_students_t_has_one_scale_for_the_whole_vector() -> None:
    density = Density.of(
        dist.MultivariateStudentT,
        X[0],
        df=4.0,
        loc=loc(),
        scale_tril=SPELLINGS["scale_tril"],
    )
    logs = np.linspace(-20.0, 5.0, 801)
    each = [float(density.at(scale=np.exp(u), m=LOC)) + u for u in logs]
    found = special.logsumexp(each) + np.log(logs[1] - logs[0])
    expected = dist.MultivariateStudentT(
        4.0, LOC, jnp.asarray(SPELLINGS["scale_tril"])
    ).log_prob(X[0])
    assert float(found) == pytest.approx(float(expected), rel=1e-6)
