"""What is inverse Gamma or inverse Wishart, against SciPy and its own inverse."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from numpyro_vips.conjugacy.families.family import Family
from numpyro_vips.conjugacy.families.gamma import InverseGamma
from numpyro_vips.conjugacy.families.wishart import InverseWishart

pytestmark = pytest.mark.usefixtures("x64")

A, B = 3.5, 2.0
NU, SCALE = 6.0, np.array([[2.0, 0.6], [0.6, 1.5]])


def of_numbers() -> dict[str, Any]:
    natural = {"concentration": jnp.asarray(A), "rate": jnp.asarray(B)}
    return InverseGamma().from_parameters(natural)


def of_matrices() -> dict[str, Any]:
    natural = {"concentration": jnp.asarray(NU), "scale_matrix": jnp.asarray(SCALE)}
    return InverseWishart().from_parameters(natural)


def test_the_density_of_natural_parameters_is_scipys() -> None:
    natural = of_numbers()
    normalizer = float(InverseGamma().log_normalizer(natural))
    for x in (0.2, 1.0, 7.0):
        found = natural["1/x"] / x + natural["log"] * np.log(x) - normalizer
        wanted = stats.invgamma.logpdf(x, A, scale=B)
        assert float(found) == pytest.approx(float(wanted), rel=1e-9)
    natural = of_matrices()
    normalizer = float(InverseWishart().log_normalizer(natural))
    for X in (np.eye(2), np.array([[0.5, -0.2], [-0.2, 3.0]])):
        found = np.sum(natural["inv"] * np.linalg.inv(X)) - normalizer
        found += natural["logdet"] * np.linalg.slogdet(X)[1]
        wanted = stats.invwishart.logpdf(X, NU, SCALE)
        assert float(found) == pytest.approx(float(wanted), rel=1e-9)


def test_moments_are_the_closed_forms() -> None:
    """E[1/x] = a/b, E[log x] = log b - ψ(a); E[X⁻¹] = ν·scale⁻¹."""
    found = InverseGamma().moments(of_numbers())
    assert float(found["1/x"]) == pytest.approx(A / B, rel=1e-9)
    wanted = np.log(B) - special.digamma(A)
    assert float(found["log"]) == pytest.approx(wanted, rel=1e-8)
    found = InverseWishart().moments(of_matrices())
    np.testing.assert_allclose(found["inv"], NU * np.linalg.inv(SCALE), rtol=1e-9)
    wanted = np.linalg.slogdet(SCALE)[1] - 2 * np.log(2)
    wanted -= special.digamma((NU - np.arange(2)) / 2).sum()
    assert float(found["logdet"]) == pytest.approx(wanted, rel=1e-8)


@pytest.mark.parametrize(
    ("family", "example"),
    [(InverseGamma(), of_numbers), (InverseWishart(), of_matrices)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_parameters_are_read_back(
    family: Family, example: Callable[[], dict[str, Any]]
) -> None:
    natural = example()
    parameters = family.parameters(natural)
    concentration = {"InverseGamma": A, "InverseWishart": NU}[family.name]
    np.testing.assert_allclose(parameters["concentration"], concentration, rtol=1e-12)
    again = family.from_parameters(parameters)
    for statistic, value in natural.items():
        np.testing.assert_allclose(again[statistic], value, rtol=1e-12)


@pytest.mark.parametrize("family", [InverseGamma(), InverseWishart()])
def test_a_flat_prior_gets_what_makes_it_a_density(family: Family) -> None:
    shape = (2, 2) if family.event_dim else ()
    flat = {s: jnp.zeros(own) for s, own in family.moment_shapes(shape).items()}
    assert not np.isfinite(float(family.log_normalizer(flat)))
    found = family.beside_flat_prior(flat, shape)
    assert np.isfinite(float(family.log_normalizer(found)))


def test_what_noise_hides_of_counts_it_hides_of_their_inverse() -> None:
    """Of n rows with the sum s of 1/x, noise leaves a shape a with a/b = n/s."""
    data = {"1/x": jnp.asarray(-100.0), "log": jnp.asarray(-400.0)}
    noise = {"1/x": jnp.asarray(4.0), "log": jnp.asarray(15.0)}
    share = InverseGamma().widened(data, noise)
    assert float(share["log"] / share["1/x"]) == pytest.approx(4.0, rel=1e-6)
    shape = -float(share["log"])
    wanted = 1 / 400 + (15 / 400) ** 2 + (4 / 100) ** 2
    assert special.polygamma(1, shape) == pytest.approx(wanted, rel=0.02)
