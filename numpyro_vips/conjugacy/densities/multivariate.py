"""Log densities of vectors and matrices, in whichever way their spread is spelled."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy import special as jsp
from scipy import special as ssp

from numpyro_vips.conjugacy.algebra import elementwise, forms, matrices
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import (
    Atom,
    Factor,
    Label,
    NotInAlgebra,
    Term,
    is_public,
    labels_of,
)
from numpyro_vips.conjugacy.densities.log_densities import (
    LOG_2PI,
    Augment,
    gamma,
    log_density,
    normal_with_precision,
    require_constant,
    sum_event,
)
from numpyro_vips.conjugacy.families import positive_matrices
from numpyro_vips.conjugacy.interpreter.values import Constant, Value, as_form

# The power of each that is the precision matrix.
_EXPONENTS = {"precision_matrix": 1.0, "covariance_matrix": -1.0, "scale_tril": -2.0}
# Missing from scipy's type stubs.
_multigammaln: Callable[..., float] = getattr(ssp, "multigammaln")  # noqa: B009


@log_density(dist.MultivariateNormal)
def multivariate_normal(
    x: Form, loc: Value, *, augment: Augment, **spellings: Value
) -> Form:
    loc = as_form(loc)
    diagonal = _diagonal_precision(spellings)
    if diagonal is not None:
        return sum_event(normal_with_precision(x, loc, diagonal))
    return _with_precision(x - loc, *precision_of(spellings))


def _with_precision(residual: Form, precision: Form, log_determinant: Form) -> Form:
    """The log density of a Normal, from its residual and its precision matrix."""
    *batch, axis = residual.axes
    other = Label(axis.size)
    rows = forms.place(residual, (*batch, axis, other))
    positions = [*range(len(batch)), len(batch) + 1]
    columns = forms.place(residual, (*batch, axis, other), positions)
    quadratic = sum_event((precision * rows) * columns, 2)
    constant = 0.5 * axis.size * LOG_2PI
    return -0.5 * quadratic + 0.5 * log_determinant - constant


def precision_of(spellings: Mapping[str, Value]) -> tuple[Form, Form]:
    """The precision matrix and its log determinant, from whichever was given."""
    reason = "a covariance that is not constant"
    for name in ("precision_matrix", "covariance_matrix", "scale_tril"):
        if name not in spellings:
            continue
        try:
            matrix = as_form(spellings[name])
        except NotInAlgebra as error:
            reason = str(error)
            continue
        if matrix.is_constant:
            return _constant_precision(name, matrix)
        scaled = _multiple_of_constant(matrix)
        if scaled is not None:
            return _scaled_precision(name, *scaled)
        if name == "precision_matrix":
            return matrix, matrices.log_det(matrix)
        if name == "covariance_matrix":
            return matrices.inverse(matrix), -matrices.log_det(matrix)
    raise NotInAlgebra(reason)


def _diagonal_precision(spellings: Mapping[str, Value]) -> Form | None:
    """The diagonal of a precision matrix that depends on latents and has no more."""
    for name, exponent in _EXPONENTS.items():
        value = spellings.get(name)
        if not isinstance(value, Form) or value.is_constant:
            continue
        diagonal = matrices.diagonal(value)
        if diagonal is not None:
            return elementwise.power(diagonal, exponent)
    return None


def _constant_precision(name: str, matrix: Form) -> tuple[Form, Form]:
    array = forms.constant_array(matrix)
    xp = np if is_public(array) else jnp
    if name == "scale_tril":
        array = array @ xp.swapaxes(array, -1, -2)
    if name != "precision_matrix":
        inverse = np.linalg.inv if is_public(array) else positive_matrices.inverse
        array = inverse(array)
    log_determinant = _log_determinant(array)
    return (
        forms.constant(xp.asarray(array), is_private=matrix.is_private),
        forms.constant(log_determinant, is_private=matrix.is_private),
    )


def _log_determinant(array: Any) -> Any:
    """Log determinant of positive definite matrices (..., n, n); not finite where a
    row's matrix is not one."""
    if not is_public(array):
        return positive_matrices.log_det(array)
    if np.any(np.linalg.eigvalsh(array) <= 0):
        raise NotInAlgebra("a matrix that is not positive definite")
    return np.asarray(np.linalg.slogdet(array)[1])


def _multiple_of_constant(matrix: Form) -> tuple[Form, Form] | None:
    """The number and the constant matrix of which a form is the product."""
    rows, columns = matrix.axes[-2:]
    if len(matrix.terms) != 1 or not matrix.exclusive:
        return None
    (term,) = matrix.terms
    # What is joined to the axes of the matrix belongs to it.
    mine: list[Factor] = []
    labels = {rows, columns}
    rest = list(term.factors)
    while True:
        joined = [f for f in rest if labels & set(labels_of(f))]
        if not joined:
            break
        mine += joined
        rest = [f for f in rest if f not in joined]
        labels |= {x for f in joined for x in labels_of(f) if x in term.bound}
    if any(isinstance(factor, Atom) for factor in mine):
        return None
    inside = frozenset(x for x in term.bound if x in labels)
    number = forms.simplified(
        matrix.axes[:-2],
        [Term(term.scale, tuple(rest), term.bound - inside)],
        True,
    )
    constant = forms.Form(matrix.axes, (Term(1.0, tuple(mine), inside),))
    return number, constant


def _scaled_precision(name: str, number: Form, matrix: Form) -> tuple[Form, Form]:
    """The precision of a latent number times a constant matrix."""
    number = elementwise.power(number, _EXPONENTS[name])
    return _multiplied(number, *_constant_precision(name, matrix))


def _multiplied(
    number: Form, precision: Form, log_determinant: Form
) -> tuple[Form, Form]:
    """A number for each matrix, times the matrix, and the log determinant of that."""
    size = float(precision.axes[-1].size)
    scalar = forms.place(number, (*number.axes, Label(1), Label(1)))
    return scalar * precision, size * elementwise.log(number) + log_determinant


@log_density(dist.Wishart)
def wishart(
    x: Form, concentration: Value, *, augment: Augment, **spellings: Value
) -> Form:
    nu = as_form(concentration)
    require_constant(nu, "the concentration of a Wishart as a function")
    size = x.axes[-1].size
    if "rate_matrix" in spellings:
        renamed = {"precision_matrix": spellings["rate_matrix"]}
    else:
        renamed = {
            new: spellings[old]
            for new, old in (
                ("covariance_matrix", "scale_matrix"),
                ("scale_tril", "scale_tril"),
            )
            if old in spellings
        }
    rate, log_det_rate = precision_of(renamed)
    return (
        0.5 * ((nu - (size + 1.0)) * matrices.log_det(x))
        - 0.5 * sum_event(rate * x, 2)
        + 0.5 * (nu * log_det_rate)
        - (0.5 * size * math.log(2.0)) * nu
        - _log_multigamma(nu, size)
    )


def _log_multigamma(nu: Form, size: int) -> Form:
    return elementwise.map_constant(
        np.vectorize(lambda a: _multigammaln(a / 2, size), otypes=[float]),
        lambda a: jsp.multigammaln(a / 2, size),
        nu,
    )


@log_density(dist.InverseWishart)
def inverse_wishart(
    x: Form, concentration: Value, *, augment: Augment, **spellings: Value
) -> Form:
    nu = as_form(concentration)
    require_constant(nu, "the concentration of an InverseWishart as a function")
    size = x.axes[-1].size
    # NumPyro computes the others from whichever was given.
    if "scale_matrix" in spellings:
        renamed = {"precision_matrix": spellings["scale_matrix"]}
    elif "rate_matrix" in spellings:
        renamed = {"covariance_matrix": spellings["rate_matrix"]}
    else:
        raise NotInAlgebra("a scale matrix given by its Cholesky factor alone")
    scale, log_det_scale = precision_of(renamed)
    return (
        0.5 * (nu * log_det_scale)
        - 0.5 * ((nu + (size + 1.0)) * matrices.log_det(x))
        - 0.5 * sum_event(scale * matrices.inverse(x), 2)
        - (0.5 * size * math.log(2.0)) * nu
        - _log_multigamma(nu, size)
    )


@log_density(dist.LowRankMultivariateNormal)
def low_rank_multivariate_normal(
    x: Form, loc: Value, cov_factor: Value, cov_diag: Value, *, augment: Augment
) -> Form:
    factor, diagonal = as_form(cov_factor), as_form(cov_diag)
    for part in (factor, diagonal):
        require_constant(part, "the covariance of a LowRankMultivariateNormal as one")
    arrays = [forms.constant_array(part) for part in (factor, diagonal)]
    xp = np if all(map(is_public, arrays)) else jnp
    covariance = arrays[0] @ xp.swapaxes(arrays[0], -1, -2)
    covariance = covariance + arrays[1][..., None] * np.eye(x.axes[-1].size)
    given = Constant(covariance, is_private=factor.is_private or diagonal.is_private)
    return multivariate_normal(x, loc, augment=augment, covariance_matrix=given)


@log_density(dist.MultivariateStudentT)
def multivariate_student_t(
    x: Form, df: Value, loc: Value, scale_tril: Value, *, augment: Augment
) -> Form:
    """Normal with precision λ·(L Lᵀ)⁻¹, λ ~ Gamma(df/2, df/2) for the whole vector."""
    degrees, residual = as_form(df), x - as_form(loc)
    precision, log_determinant = precision_of({"scale_tril": scale_tril})
    axes = forms.common_axes(
        Form(residual.axes[:-1], ()), Form(precision.axes[:-2], ()), degrees
    )
    mixing = augment.auxiliary("scale", axes, family="Gamma")
    scaled = _multiplied(mixing, precision, log_determinant)
    return _with_precision(residual, *scaled) + gamma(
        mixing, degrees * 0.5, degrees * 0.5, augment=augment
    )


@log_density(dist.GaussianRandomWalk)
def gaussian_random_walk(
    x: Form, scale: Value, *, augment: Augment, **_: Value
) -> Form:
    """Independent Normal steps from zero."""
    *batch, time = x.axes
    before = Label(time.size)
    # The state before each one; nothing is before the first.
    shift = forms.place(forms.constant(np.eye(time.size, k=-1)), (time, before))
    earlier = forms.place(x, (*batch, before))
    steps = x - forms.product(shift, earlier, x.axes, (before,))
    precision = elementwise.power(as_form(scale), -2.0)
    each = forms.place(precision, (*precision.axes, Label(1)))
    return sum_event(normal_with_precision(steps, forms.number(0.0), each))


@log_density(dist.CAR)
def conditional_autoregression(
    x: Form,
    loc: Value,
    correlation: Value,
    conditional_precision: Value,
    adj_matrix: Value,
    *,
    augment: Augment,
    **_: Value,
) -> Form:
    """Normal with precision τ·(D - ρ·W), where W says who are neighbours."""
    rho, neighbours = as_form(correlation), as_form(adj_matrix)
    require_constant(rho, "the correlation of a CAR as a function")
    require_constant(neighbours, "the neighbours of a CAR as a function")
    W, r = forms.constant_array(neighbours), forms.constant_array(rho)
    xp = np if is_public(W) and is_public(r) else jnp
    degrees = W.sum(-1)[..., None] * np.eye(x.axes[-1].size)
    given = Constant(
        xp.asarray(degrees - r[..., None, None] * W),
        is_private=neighbours.is_private or rho.is_private,
    )
    neighbourhood = precision_of({"precision_matrix": given})
    scaled = _multiplied(as_form(conditional_precision), *neighbourhood)
    return _with_precision(x - as_form(loc), *scaled)
