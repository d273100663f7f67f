"""Log densities of NumPyro's distributions, written in the algebra of forms.

Each is one function, registered for a distribution class: it takes the value and the
parameters as forms with the site's axes and returns the log density per element. What
is conjugate to what follows from the statistics that occur in it; there is no table
of pairs. `docs/adding_a_likelihood.md` shows how to add one.
"""

import math
from collections.abc import Callable, Mapping
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
    """Introduces the auxiliary variables of a site; see `energy`."""

    def auxiliary(
        self,
        kind: str,
        axes: forms.Labels,
        *,
        family: str,
        weight: Form | None = None,
        support: Any = None,
        num_states: int | None = None,
    ) -> Form: ...

    def logistic(self, logits: Form, trials: Form) -> Form: ...

    def log_sum(self, form: Form, weight: Form) -> Form: ...

    def adds_up_to_one(
        self, form: Form, *, logarithms: bool = False
    ) -> bool | None: ...

    def allocate(self, log_terms: Form, weight: Form | None = None) -> Form: ...


class Component(Protocol):
    """A distribution inside another, such as a mixture's."""

    parameters: Mapping[str, Value]
    event_dim: int

    def log_density(self, x: Form) -> Form:
        """Per batch element, event axes summed."""
        ...


LogDensity = Callable[..., Form]
REGISTRY: dict[type[dist.Distribution], LogDensity] = {}
# What is said of distributions that no registered function could be for.
WITHOUT_UPDATE: dict[type[dist.Distribution], str] = {
    dist.ImproperUniform: (
        "a flat prior, which has no member of a family to start from (a proper one, "
        "such as a wide Normal, has)"
    ),
}


def log_density(*kinds: type[dist.Distribution]) -> Callable[[LogDensity], LogDensity]:
    """Registers the log density of distribution classes."""

    def register(function: LogDensity) -> LogDensity:
        for kind in kinds:
            REGISTRY[kind] = function
        return function

    return register


def square(form: Form) -> Form:
    return forms.power(form, 2)


# Missing from scipy's type stubs.
_multigammaln: Callable[..., float] = getattr(ssp, "multigammaln")  # noqa: B009


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
    # An auxiliary variable per observation, also where all have the same logits: they
    # may be masked or scaled one by one.
    each = forms.broadcast(logits, forms.common_axes(successes, logits, trials))
    return (successes - trials * 0.5) * logits + augment.logistic(each, trials)


@log_density(dist.BinomialProbs)
def binomial_probs(
    x: Form, probs: Value, total_count: Value, *, augment: Augment
) -> Form:
    if isinstance(probs, Transformed) and probs.function == "sigmoid":
        return binomial_logits(x, probs.form, total_count, augment=augment)
    p, n = as_form(probs), as_form(total_count)
    return x * forms.log(p) + (n - x) * forms.log1m(p) + _log_choose(n, x)


@log_density(dist.BinomialLogits)
def binomial_logits(
    x: Form, logits: Value, total_count: Value, *, augment: Augment
) -> Form:
    n = as_form(total_count)
    return _logistic(x, as_form(logits), n, augment) + _log_choose(n, x)


def _log_choose(n: Form, k: Form) -> Form:
    return log_gamma(n + 1.0) - log_gamma(k + 1.0) - log_gamma(n - k + 1.0)


@log_density(dist.NegativeBinomialLogits)
def negative_binomial_logits(
    x: Form, logits: Value, total_count: Value, *, augment: Augment, **_: Value
) -> Form:
    r = as_form(total_count)
    return _logistic(x, as_form(logits), x + r, augment) + _log_rising(r, x)


@log_density(dist.NegativeBinomialProbs)
def negative_binomial_probs(
    x: Form, probs: Value, total_count: Value, *, augment: Augment, **_: Value
) -> Form:
    if isinstance(probs, Transformed) and probs.function == "sigmoid":
        return negative_binomial_logits(x, probs.form, total_count, augment=augment)
    p, r = as_form(probs), as_form(total_count)
    return x * forms.log(p) + r * forms.log1m(p) + _log_rising(r, x)


@log_density(dist.GammaPoisson, dist.NegativeBinomial2)
def gamma_poisson(
    x: Form, concentration: Value, rate: Value, *, augment: Augment, **_: Value
) -> Form:
    """A negative binomial with logits -log(rate)."""
    r = as_form(concentration)
    _require_constant(r, "a concentration that depends on a latent, as a function")
    if isinstance(rate, Transformed) and rate.function == "exp":
        logits = -rate.form
    else:
        b = as_form(rate)
        _require_constant(b, "the rate of a GammaPoisson as a function")
        logits = -forms.log(b)
    return _logistic(x, logits, x + r, augment) + _log_rising(r, x)


def _log_rising(r: Form, k: Form) -> Form:
    return log_gamma(r + k) - log_gamma(r) - log_gamma(k + 1.0)


@log_density(dist.CategoricalProbs)
def categorical_probs(x: Form, probs: Value, *, augment: Augment) -> Form:
    if isinstance(probs, Transformed) and probs.function == "exp":
        return at_value(log_probabilities(probs.form, augment), x)
    p = _probabilities(probs, augment)
    if p.exclusive and p.terms:
        return at_value(forms.log(p), x)
    return augment.log_sum(at_value(p, x), forms.as_form(1.0))


def _probabilities(probs: Value, augment: Augment) -> Form:
    """Probabilities that NumPyro takes as they are, along the last axis."""
    p = as_form(probs)
    if not p.is_constant and augment.adds_up_to_one(p) is False:
        raise NotInAlgebra(f"probabilities of {_named(p)} that do not add up to one")
    return p


def _named(form: Form) -> str:
    return ", ".join(repr(name) for name in sorted(form.latents))


@log_density(dist.CategoricalLogits)
def categorical_logits(x: Form, logits: Value, *, augment: Augment) -> Form:
    return at_value(log_probabilities(as_form(logits), augment), x)


def log_probabilities(logits: Form, augment: Augment) -> Form:
    """Normalised logits: constants, or the logarithms of probabilities."""
    if logits.is_constant:
        return forms.map_constant(
            lambda a: a - np.logaddexp.reduce(a, -1, keepdims=True),
            lambda a: a - jsp.logsumexp(a, -1, keepdims=True),
            logits,
        )
    if not augment.adds_up_to_one(logits, logarithms=True):
        raise NotInAlgebra(f"a softmax of {_named(logits)}")
    return logits


@log_density(dist.MultinomialProbs)
def multinomial_probs(
    x: Form, probs: Value, total_count: Value, *, augment: Augment
) -> Form:
    if isinstance(probs, Transformed) and probs.function == "exp":
        return multinomial_logits(x, probs.form, total_count, augment=augment)
    p = _probabilities(probs, augment)
    per_state = x * forms.log(p) if p.exclusive and p.terms else augment.log_sum(p, x)
    coefficient = log_gamma(as_form(total_count) + 1.0)
    return sum_event(per_state - log_gamma(x + 1.0)) + coefficient


@log_density(dist.MultinomialLogits)
def multinomial_logits(
    x: Form, logits: Value, total_count: Value, *, augment: Augment
) -> Form:
    per_state = x * log_probabilities(as_form(logits), augment)
    coefficient = log_gamma(as_form(total_count) + 1.0)
    return sum_event(per_state - log_gamma(x + 1.0)) + coefficient


@log_density(dist.Poisson)
def poisson(x: Form, rate: Value, *, augment: Augment) -> Form:
    rate = as_form(rate)
    return augment.log_sum(rate, x) - rate - log_gamma(x + 1.0)


# --- continuous ---------------------------------------------------------------------


@log_density(dist.Normal)
def normal(x: Form, loc: Value, scale: Value, *, augment: Augment) -> Form:
    return normal_with_precision(x, as_form(loc), forms.power(as_form(scale), -2.0))


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


@log_density(dist.InverseGamma)
def inverse_gamma(
    x: Form, concentration: Value, rate: Value, *, augment: Augment, **_: Value
) -> Form:
    a, b = as_form(concentration), as_form(rate)
    _require_constant(a, "the concentration of an InverseGamma as a function")
    return (
        a * forms.log(b)
        - log_gamma(a)
        - (a + 1.0) * forms.log(x)
        - b * forms.power(x, -1.0)
    )


@log_density(dist.LogNormal)
def log_normal(
    x: Form, loc: Value, scale: Value, *, augment: Augment, **_: Value
) -> Form:
    log_x = forms.log(x)
    return normal(log_x, loc, scale, augment=augment) - log_x


@log_density(dist.HalfNormal)
def half_normal(x: Form, scale: Value, *, augment: Augment, **_: Value) -> Form:
    precision = forms.power(as_form(scale), -2.0)
    return (
        -0.5 * (precision * forms.power(x, 2.0))
        + 0.5 * forms.log(precision)
        + 0.5 * math.log(2 / math.pi)
    )


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
    x: Form, loc: Value, *, augment: Augment, **spellings: Value
) -> Form:
    precision, log_determinant = _precision(spellings)
    residual = x - as_form(loc)
    *batch, axis = residual.axes
    other = forms.Label(axis.size)
    rows = forms.place(residual, (*batch, axis, other), range(len(batch) + 1))
    positions = [*range(len(batch)), len(batch) + 1]
    columns = forms.place(residual, (*batch, axis, other), positions)
    quadratic = sum_event((precision * rows) * columns, 2)
    constant = 0.5 * axis.size * _LOG_2PI
    return -0.5 * quadratic + 0.5 * log_determinant - constant


def _precision(spellings: Mapping[str, Value]) -> tuple[Form, Form]:
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
            return matrix, forms.log_det(matrix)
    raise NotInAlgebra(reason)


def _constant_precision(name: str, matrix: Form) -> tuple[Form, Form]:
    array = forms.constant_array(matrix)
    xp = np if forms.is_known(array) else jnp
    if name == "scale_tril":
        array = array @ xp.swapaxes(array, -1, -2)
    if name != "precision_matrix":
        array = xp.linalg.inv(array)
    log_determinant = _log_determinant(array)
    return (
        forms.constant(xp.asarray(array), row=matrix.row),
        forms.constant(log_determinant, row=matrix.row),
    )


def _log_determinant(array: Any) -> Any:
    """Of a positive definite matrix; not finite where a row brings another one."""
    if not forms.is_known(array):
        diagonal = jnp.diagonal(jnp.linalg.cholesky(array), axis1=-2, axis2=-1)
        return 2.0 * jnp.log(diagonal).sum(-1)
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
    mine: list[forms.Factor] = []
    labels = {rows, columns}
    rest = list(term.factors)
    while True:
        joined = [f for f in rest if labels & set(forms.labels_of(f))]
        if not joined:
            break
        mine += joined
        rest = [f for f in rest if f not in joined]
        labels |= {x for f in joined for x in forms.labels_of(f) if x in term.bound}
    if any(isinstance(factor, forms.Atom) for factor in mine):
        return None
    inside = frozenset(x for x in term.bound if x in labels)
    number = forms.simplified(
        matrix.axes[:-2],
        [forms.Term(term.scale, tuple(rest), term.bound - inside)],
        True,
    )
    constant = forms.Form(matrix.axes, (forms.Term(1.0, tuple(mine), inside),))
    return number, constant


def _scaled_precision(name: str, number: Form, matrix: Form) -> tuple[Form, Form]:
    """The precision of a latent number times a constant matrix."""
    exponent = {"precision_matrix": 1.0, "covariance_matrix": -1.0, "scale_tril": -2.0}
    number = forms.power(number, exponent[name])
    precision, log_determinant = _constant_precision(name, matrix)
    axes = (*number.axes, forms.Label(1), forms.Label(1))
    scalar = forms.place(number, axes, range(len(number.axes)))
    size = float(matrix.axes[-1].size)
    return scalar * precision, size * forms.log(number) + log_determinant


@log_density(dist.Wishart)
def wishart(
    x: Form, concentration: Value, *, augment: Augment, **spellings: Value
) -> Form:
    nu = as_form(concentration)
    _require_constant(nu, "the concentration of a Wishart as a function")
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
    rate, log_det_rate = _precision(renamed)
    log_gammas = forms.map_constant(
        np.vectorize(lambda a: _multigammaln(a / 2, size), otypes=[float]),
        lambda a: jsp.multigammaln(a / 2, size),
        nu,
    )
    return (
        0.5 * ((nu - (size + 1.0)) * forms.log_det(x))
        - 0.5 * sum_event(rate * x, 2)
        + 0.5 * (nu * log_det_rate)
        - (0.5 * size * math.log(2.0)) * nu
        - log_gammas
    )


# --- factors ------------------------------------------------------------------------


@log_density(dist.Unit)
def unit(x: Form, log_factor: Value, *, augment: Augment) -> Form:
    if isinstance(log_factor, Transformed) and log_factor.function == "logsumexp":
        return augment.allocate(log_factor.form)
    return as_form(log_factor)
