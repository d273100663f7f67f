"""Log densities of NumPyro's distributions, written in the algebra of forms.

Each is one function, registered for a distribution class: it takes the value and the
parameters as forms with the site's axes and returns the log density per element. What
is conjugate to what follows from the statistics that occur in it; there is no table
of pairs. `docs/adding_a_likelihood.md` shows how to add one.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy import special as jsp
from scipy import special as ssp

from numpyro_vips.conjugacy import forms
from numpyro_vips.conjugacy.forms import Form, NotInAlgebra
from numpyro_vips.conjugacy.interpreter import (
    Transformed,
    Value,
    as_form,
    index_alternatives,
    select_by,
)

_LOG_2PI = math.log(2 * math.pi)


class Augment(Protocol):
    """Introduces the auxiliary variables of a site."""

    def polya_gamma(self, logits: Form, trials: Form) -> Form:
        """-trials · log(2 cosh(logits / 2)), as its tight lower bound."""
        ...


LogDensity = Callable[..., Form]
REGISTRY: dict[type[dist.Distribution], LogDensity] = {}


def log_density(*kinds: type[dist.Distribution]) -> Callable[[LogDensity], LogDensity]:
    """Registers the log density of distribution classes."""

    def register(function: LogDensity) -> LogDensity:
        for kind in kinds:
            REGISTRY[kind] = function
        return function

    return register


def square(form: Form) -> Form:
    return forms.power(form, 2)


def _log_gamma(form: Form) -> Form:
    return forms.map_constant(ssp.gammaln, jsp.gammaln, form)


def log_gamma(form: Form) -> Form:
    """log Γ(form); the form must not depend on a latent."""
    _require_constant(form, "the log-gamma function")
    return _log_gamma(form)


def _require_constant(form: Form, what: str) -> None:
    if not form.is_constant:
        names = ", ".join(repr(name) for name in sorted(form.latents))
        raise NotInAlgebra(f"{what} of {names}")


def at_value(form: Form, value: Form) -> Form:
    """Picks, along the last axis of `form`, the entry that a discrete value names."""
    batch = forms.common_axes(Form(form.axes[:-1], ()), value)
    entries = forms.Label(form.axes[-1].size)
    form = forms.broadcast(form, (*batch, entries))
    value = forms.broadcast(value, batch)
    picked = select_by(form, entries, index_alternatives(value), batch)
    return forms.reorder(picked, batch)


def sum_event(form: Form, count: int = 1) -> Form:
    rank = len(form.axes)
    return forms.sum_over(form, range(rank - count, rank))


# --- discrete -----------------------------------------------------------------------


@log_density(dist.BernoulliProbs)
def bernoulli_probs(x: Form, probs: Value, *, augment: Augment) -> Form:
    if isinstance(probs, Transformed) and probs.function == "sigmoid":
        return bernoulli_logits(x, probs.form, augment=augment)
    p = as_form(probs)
    return x * forms.log(p) + (1.0 - x) * forms.log1m(p)


@log_density(dist.BernoulliLogits)
def bernoulli_logits(x: Form, logits: Value, *, augment: Augment) -> Form:
    return _logistic(x, as_form(logits), forms.as_form(1.0), augment)


def _logistic(successes: Form, logits: Form, trials: Form, augment: Augment) -> Form:
    """successes · ψ - trials · log(1 + exp ψ)."""
    if logits.is_constant:
        softplus = forms.map_constant(
            lambda a: np.logaddexp(a, 0.0), lambda a: jnp.logaddexp(a, 0.0), logits
        )
        return successes * logits - trials * softplus
    return (successes - trials * 0.5) * logits + augment.polya_gamma(logits, trials)


@log_density(dist.CategoricalProbs)
def categorical_probs(x: Form, probs: Value, *, augment: Augment) -> Form:
    return at_value(forms.log(as_form(probs)), x)


# --- continuous ---------------------------------------------------------------------


@log_density(dist.Normal)
def normal(x: Form, loc: Value, scale: Value, *, augment: Augment) -> Form:
    return normal_with_precision(
        x, as_form(loc), forms.power(as_form(scale), -2.0)
    )


def normal_with_precision(x: Form, loc: Form, precision: Form) -> Form:
    log_precision = forms.log(precision)
    return -0.5 * (precision * square(x - loc)) + 0.5 * log_precision - 0.5 * _LOG_2PI


@log_density(dist.Gamma)
def gamma(x: Form, concentration: Value, rate: Value, *, augment: Augment) -> Form:
    a, b = as_form(concentration), as_form(rate)
    _require_constant(a, "the concentration of a Gamma as a function")
    return (a - 1.0) * forms.log(x) - b * x + a * forms.log(b) - log_gamma(a)


@log_density(dist.Exponential)
def exponential(x: Form, rate: Value, *, augment: Augment) -> Form:
    return forms.log(as_form(rate)) - as_form(rate) * x


@log_density(dist.Poisson)
def poisson(x: Form, rate: Value, *, augment: Augment) -> Form:
    rate = as_form(rate)
    return x * forms.log(rate) - rate - log_gamma(x + 1.0)


@log_density(dist.Beta)
def beta(
    x: Form, concentration1: Value, concentration0: Value, *, augment: Augment
) -> Form:
    a, b = as_form(concentration1), as_form(concentration0)
    normalizer = log_gamma(a + b) - log_gamma(a) - log_gamma(b)
    return (a - 1.0) * forms.log(x) + (b - 1.0) * forms.log1m(x) + normalizer


@log_density(dist.Uniform)
def uniform(x: Form, low: Value, high: Value, *, augment: Augment) -> Form:
    low, high = as_form(low), as_form(high)
    for bound in (low, high):
        _require_constant(bound, "the bounds of a Uniform as a function")
    return -forms.log(high - low) + 0.0 * x


@log_density(dist.Dirichlet)
def dirichlet(x: Form, concentration: Value, *, augment: Augment) -> Form:
    a = as_form(concentration)
    normalizer = log_gamma(sum_event(a)) - sum_event(log_gamma(a))
    return sum_event((a - 1.0) * forms.log(x)) + normalizer


@log_density(dist.MultivariateNormal)
def multivariate_normal(
    x: Form, loc: Value, *, augment: Augment, **spellings: Any
) -> Form:
    precision, log_det = _constant_precision(spellings)
    residual = x - as_form(loc)
    column = forms.place(
        residual, (*residual.axes, forms.Label(1)), range(len(residual.axes))
    )
    row_axes = (*residual.axes[:-1], forms.Label(1), residual.axes[-1])
    positions = [*range(len(residual.axes) - 1), len(residual.axes)]
    row = forms.place(residual, row_axes, positions)
    quadratic = sum_event(column * (row * precision), 2)
    size = x.axes[-1].size
    return -0.5 * quadratic + 0.5 * log_det - 0.5 * size * _LOG_2PI


def _constant_precision(spellings: dict[str, Any]) -> tuple[Form, Form]:
    """The precision matrix and its log determinant, from whichever was given."""
    for name in ("precision_matrix", "covariance_matrix", "scale_tril"):
        try:
            matrix = as_form(spellings[name])
        except (NotInAlgebra, KeyError):
            continue
        if not matrix.is_constant:
            continue
        array = forms.constant_array(matrix)
        xp = np if forms.is_known(array) else jnp
        if name == "scale_tril":
            array = array @ xp.swapaxes(array, -1, -2)
        if name != "precision_matrix":
            array = xp.linalg.inv(array)
        log_det = xp.linalg.slogdet(array)[1]
        return (
            forms.constant(xp.asarray(array), row=matrix.row),
            forms.constant(xp.asarray(log_det), row=matrix.row),
        )
    raise NotInAlgebra("a covariance that is not constant")


# --- factors ------------------------------------------------------------------------


@log_density(dist.Delta)
def delta(x: Form, *, augment: Augment, **_: Value) -> Form:
    raise NotInAlgebra("a Delta distribution")


@log_density(dist.Unit)
def unit(x: Form, log_factor: Value, *, augment: Augment) -> Form:
    return as_form(log_factor)
