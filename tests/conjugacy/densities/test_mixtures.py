"""Mixtures: summed over which component a value is from, each is NumPyro's density."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from _densities import Density, Inner, constant, inner
from numpyro.distributions.discrete import ZeroInflatedProbs
from scipy import special

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import Label, NotInAlgebra
from numpyro_vips.conjugacy.interpreter.values import Transformed, Value

pytestmark = pytest.mark.usefixtures("x64")

X = np.array([-1.0, 0.4, 2.5])
MEANS, SHARES = np.array([-0.8, 1.9]), np.array([0.3, 0.7])


def summed(density: Density, shape: tuple[int, ...], **latents: Any) -> np.ndarray:
    """log Σ_z p(x, z): elements choose apart from each other."""
    by_state = [
        density.at(allocation=np.full(shape, state), **latents) for state in (0, 1)
    ]
    return special.logsumexp(by_state, axis=0)


def means() -> Form:
    return forms.latent("m", (2,), signed=True)


WEIGHTS: dict[str, dict[str, Value]] = {
    "probabilities": {"probs": constant(SHARES)},
    "logits that add up to one": {"logits": constant(np.log(SHARES))},
    "logits": {"logits": constant(np.log(SHARES) + 1.5)},
    "exponentials": {"probs": Transformed("exp", forms.constant(np.log(SHARES)))},
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_mixture_of_one_family_is_numpyros(name: str) -> None:
    density = Density.of(
        dist.MixtureSameFamily,
        X,
        _mixing_distribution=Inner(WEIGHTS[name]),
        _component_distribution=inner(
            dist.Normal, loc=means(), scale=constant(np.array(0.6))
        ),
    )
    expected = dist.MixtureSameFamily(
        dist.Categorical(jnp.asarray(SHARES)), dist.Normal(jnp.asarray(MEANS), 0.6)
    )
    found = summed(density, X.shape, m=MEANS)
    np.testing.assert_allclose(found, expected.log_prob(X), rtol=1e-6)


def test_a_mixture_of_different_families_is_numpyros() -> None:
    density = Density.of(
        dist.MixtureGeneral,
        np.abs(X),
        _mixing_distribution=Inner({"probs": constant(SHARES)}),
        component_0=inner(
            dist.Normal, loc=forms.latent("m", (), signed=True), scale=constant(0.6)
        ),
        component_1=inner(dist.Exponential, rate=forms.latent("r", ())),
    )
    expected = dist.MixtureGeneral(
        dist.Categorical(jnp.asarray(SHARES)),
        [dist.Normal(0.8, 0.6), dist.Exponential(2.0)],
        support=dist.constraints.real,
    )
    found = summed(density, X.shape, m=0.8, r=2.0)
    np.testing.assert_allclose(found, expected.log_prob(np.abs(X)), rtol=1e-6)


COUNTS = np.array([0.0, 0.0, 3.0])


@pytest.mark.parametrize("kind", [ZeroInflatedProbs, dist.ZeroInflatedPoisson])
def test_zeros_come_from_the_gate_or_from_the_base(
    kind: type[dist.Distribution],
) -> None:
    density = Density.of(
        kind,
        COUNTS,
        gate=forms.latent("g", ()),
        base_dist=inner(dist.Poisson, rate=forms.latent("r", ())),
    )
    expected = dist.ZeroInflatedPoisson(0.25, 1.7).log_prob(COUNTS)
    np.testing.assert_allclose(
        summed(density, (3,), g=0.25, r=1.7), expected, rtol=1e-6
    )


def test_a_count_that_is_no_zero_cannot_come_from_the_gate() -> None:
    density = Density.of(
        dist.ZeroInflatedPoisson,
        COUNTS,
        gate=forms.latent("g", ()),
        base_dist=inner(dist.Poisson, rate=forms.latent("r", ())),
    )
    of_gate = density.at(allocation=np.zeros(3), g=0.25, r=1.7)
    np.testing.assert_allclose(of_gate[:2], np.log(0.25), rtol=1e-9)
    # Finite, as a weight of zero times minus infinity would be no number.
    assert np.isfinite(of_gate[2]) and of_gate[2] < -1e15


def test_a_zero_inflated_latent_is_refused() -> None:
    base = inner(dist.Poisson, rate=constant(1.0))
    with pytest.raises(NotInAlgebra, match="of a latent"):
        Density.of(
            dist.ZeroInflatedPoisson, forms.latent("y", (3,)), gate=0.3, base_dist=base
        )


def test_components_that_have_no_common_shape_are_refused() -> None:
    def by_row(x: Form) -> Form:
        return forms.place(x, (*x.axes, Label(1)))

    with pytest.raises(NotInAlgebra, match="no common shape"):
        Density.of(
            dist.MixtureSameFamily,
            X,
            _mixing_distribution=Inner({"probs": constant(SHARES)}),
            _component_distribution=Inner({}, by_row),
        )
