"""Heavy-tailed densities as scale mixtures, one registered function each.

The auxiliary variables have conditional posteriors in an exponential family, so at
fixed values of everything else the bound that they give is exact.
"""

import math
from typing import Any

import numpyro.distributions as dist

from numpyro_vips.conjugacy.algebra import elementwise, forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import NotInAlgebra
from numpyro_vips.conjugacy.densities.log_densities import (
    REGISTRY,
    Augment,
    Component,
    gamma,
    inverse_gamma,
    log_density,
    normal_with_precision,
    public_number,
    require_constant,
)
from numpyro_vips.conjugacy.interpreter.values import Value, as_form


@log_density(dist.StudentT)
def student_t(
    x: Form, df: Value, loc: Value, scale: Value, *, augment: Augment, **_: Value
) -> Form:
    """Normal with precision λ/scale², λ ~ Gamma(df/2, df/2)."""
    loc, degrees = as_form(loc), as_form(df)
    precision = elementwise.power(as_form(scale), -2.0)
    axes = forms.common_axes(x, loc, precision, degrees)
    mixing = augment.auxiliary("scale", axes, family="Gamma")
    return normal_with_precision(x, loc, mixing * precision) + gamma(
        mixing, degrees * 0.5, degrees * 0.5, augment=augment
    )


@log_density(dist.Cauchy)
def cauchy(x: Form, loc: Value, scale: Value, *, augment: Augment, **_: Value) -> Form:
    one = forms.number(1.0)
    return student_t(x, one, loc, scale, augment=augment)


@log_density(dist.Laplace)
def laplace(x: Form, loc: Value, scale: Value, *, augment: Augment) -> Form:
    """Normal with variance τ·scale², τ ~ Exponential(1/2) (Andrews and Mallows)."""
    loc, precision = as_form(loc), elementwise.power(as_form(scale), -2.0)
    axes = forms.common_axes(x, loc, precision)
    tau = augment.auxiliary("scale", axes, family="GeneralizedInverseGaussian")
    inverse = elementwise.power(tau, -1.0)
    conditional = normal_with_precision(x, loc, inverse * precision)
    return conditional - 0.5 * tau - math.log(2.0)


@log_density(dist.AsymmetricLaplace)
def asymmetric_laplace(
    x: Form, loc: Value, scale: Value, asymmetry: Value, *, augment: Augment, **_: Value
) -> Form:
    """The log density of an asymmetric Laplace, as a scale mixture of Normals.

    It is the one that `AsymmetricLaplaceQuantile` has at the quantile κ² / (1 + κ²),
    with the scale σ κ / (1 + κ²).

    Raises:
      NotInAlgebra: The asymmetry κ is not constant.
    """
    kappa = as_form(asymmetry)
    require_constant(kappa, "the asymmetry of an AsymmetricLaplace as a function")

    def quantile(k: Any) -> Any:
        return k**2 / (1.0 + k**2)

    def ratio(k: Any) -> Any:
        return k / (1.0 + k**2)

    p = elementwise.map_constant(quantile, quantile, kappa)
    sigma = as_form(scale) * elementwise.map_constant(ratio, ratio, kappa)
    return _of_quantile(x, as_form(loc), sigma, p, augment)


@log_density(dist.AsymmetricLaplaceQuantile)
def asymmetric_laplace_quantile(
    x: Form, loc: Value, scale: Value, quantile: Value, *, augment: Augment, **_: Value
) -> Form:
    p = as_form(quantile)
    require_constant(p, "the quantile of an AsymmetricLaplaceQuantile as a function")
    return _of_quantile(x, as_form(loc), as_form(scale), p, augment)


def _of_quantile(x: Form, loc: Form, scale: Form, p: Form, augment: Augment) -> Form:
    """x - loc is θσw + τσ√w·z with θ = (1 - 2p)/(p(1 - p)), τ² = 2/(p(1 - p)).

    w ~ Exponential(1), z ~ Normal(0, 1) (Kozumi and Kobayashi, 2011).
    """
    inverse_square = 0.5 * (p * (1.0 - p))
    theta = (0.5 - p) * elementwise.power(inverse_square, -1.0)
    axes = forms.common_axes(x, loc, scale, p)
    w = augment.auxiliary("scale", axes, family="GeneralizedInverseGaussian")
    precision = inverse_square * elementwise.power(scale, -2.0)
    residual = x - loc
    return (
        -0.5
        * (elementwise.power(w, -1.0) * (precision * elementwise.power(residual, 2)))
        + (theta * inverse_square) * (elementwise.power(scale, -1.0) * residual)
        - (0.5 * (elementwise.power(theta, 2) * inverse_square) + 1.0) * w
        + 0.5 * elementwise.log(precision)
        - 0.5 * elementwise.log(w)
        - 0.5 * math.log(2 * math.pi)
    )


@log_density(dist.HalfCauchy)
def half_cauchy(x: Form, scale: Value, *, augment: Augment, **_: Value) -> Form:
    """x² ~ InverseGamma(1/2, 1/a), a ~ InverseGamma(1/2, 1/scale²).

    Wand, Ormerod, Padoan and Frühwirth (2011), result 5.
    """
    rate = elementwise.power(as_form(scale), -2.0)
    axes = forms.common_axes(x, rate)
    mixing = augment.auxiliary("scale", axes, family="InverseGamma")
    half = forms.number(0.5)
    log_x = elementwise.log(x)
    inverse = elementwise.power(mixing, -1.0)
    of_square = (
        0.5 * elementwise.log(inverse)
        - 0.5 * math.log(math.pi)
        - 3.0 * log_x
        - inverse * elementwise.power(x, -2.0)
    )
    # The density of x rather than of x².
    jacobian = log_x + math.log(2.0)
    return of_square + jacobian + inverse_gamma(mixing, half, rate, augment=augment)


@log_density(dist.FoldedDistribution, dist.LeftTruncatedDistribution)
def half(
    x: Form,
    base_dist: Component,
    low: Value | None = None,
    *,
    augment: Augment,
    **_: Value,
) -> Form:
    """The positive half of a density that is symmetric about zero.

    Raises:
      NotInAlgebra: It is another density, or is cut or folded elsewhere.
    """
    kind, parameters = base_dist.kind, base_dist.parameters
    if kind not in _SYMMETRIC:
        raise NotInAlgebra(f"a half of a {kind.__name__}")
    places = [parameters["loc"]] if low is None else [parameters["loc"], low]
    if any(public_number(as_form(place)) != 0 for place in places):
        raise NotInAlgebra(f"a half of a {kind.__name__} that is not about zero")
    return REGISTRY[kind](x, **parameters, augment=augment) + math.log(2.0)


_SYMMETRIC = (dist.Normal, dist.StudentT, dist.Cauchy, dist.Laplace)
