"""Log densities of NumPyro's distributions, written in the algebra of forms.

Each is one function, registered for a distribution class: it takes the value and the
parameters as forms with the site's axes and returns the log density per element. What
is conjugate to what follows from the statistics that occur in it; there is no table
of pairs. `docs/adding_a_likelihood.md` shows how to add one.
"""

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy import special as jsp
from scipy import special as ssp

from numpyro_vips.conjugacy.algebra import elementwise, forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.scatters import is_public_number
from numpyro_vips.conjugacy.algebra.terms import Label, Labels, NotInAlgebra
from numpyro_vips.conjugacy.interpreter.indexing_rules import select_by
from numpyro_vips.conjugacy.interpreter.values import (
    Value,
    as_form,
    is_exp,
    is_logsumexp,
    is_sigmoid,
    names_of,
)

LOG_2PI = math.log(2 * math.pi)


class Augment(Protocol):
    """Introduces the auxiliary variables of a site; see `augmentation`.

    `role` is "global" or "local", that of the site.
    """

    role: str

    def auxiliary(
        self,
        kind: str,
        axes: Labels,
        *,
        family: str,
        weight: Form | None = None,
    ) -> Form: ...

    def logistic(self, logits: Form, trials: Form) -> Form: ...

    def log_sum(self, form: Form, weight: Form) -> Form: ...

    def adds_up_to_one(
        self, form: Form, *, logarithms: bool = False
    ) -> bool | None: ...

    def allocate(self, log_terms: Form) -> Form: ...


class Component(Protocol):
    """A distribution inside another, such as a mixture's."""

    kind: type[dist.Distribution]
    parameters: Mapping[str, Value]
    event_dim: int

    def log_density(self, x: Form) -> Form:
        """The log density at `x`, a form over the batch: event axes are summed."""
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
    return elementwise.power(form, 2)


def log_gamma(form: Form) -> Form:
    """log Γ(form); the form must not depend on a latent."""
    require_constant(form, "the log-gamma function")
    return elementwise.map_constant(ssp.gammaln, jsp.gammaln, form)


def require_constant(form: Form, what: str) -> None:
    if not form.is_constant:
        raise NotInAlgebra(f"{what} of {names_of(form.latents)}")


def public_number(form: Form) -> float | None:
    """The public number that a form is everywhere, if it is one."""
    if not form.is_constant:
        return None
    array = forms.constant_array(form)
    return float(array.flat[0]) if is_public_number(array) else None


def at_value(form: Form, value: Form) -> Form:
    """Picks, along the last axis of `form`, the entry that a discrete value names."""
    batch = forms.common_axes(Form(form.axes[:-1], ()), value)
    entries = Label(form.axes[-1].size)
    form = forms.broadcast(form, (*batch, entries))
    value = forms.broadcast(value, batch)
    picked = select_by(form, entries, value, batch)
    return forms.reorder(picked, batch)


def sum_event(form: Form, count: int = 1) -> Form:
    rank = len(form.axes)
    return forms.sum_over(form, range(rank - count, rank))


# --- discrete -----------------------------------------------------------------------


@log_density(dist.BernoulliProbs)
def bernoulli_probs(x: Form, probs: Value, *, augment: Augment) -> Form:
    if is_sigmoid(probs):
        return bernoulli_logits(x, probs.form, augment=augment)
    p = as_form(probs)
    return x * _log_of_chance(p) + (1.0 - x) * elementwise.log1m(p)


def _log_of_chance(p: Form) -> Form:
    """log p; where a discrete latent makes p zero, as in `p * z`, that of NumPyro's
    least probability."""
    if p.is_constant:
        return elementwise.log(p)
    return elementwise.log(p, least=float(jnp.finfo(jnp.result_type(float)).tiny))


@log_density(dist.BernoulliLogits)
def bernoulli_logits(x: Form, logits: Value, *, augment: Augment) -> Form:
    return _logistic(x, as_form(logits), forms.number(1.0), augment)


def _logistic(successes: Form, logits: Form, trials: Form, augment: Augment) -> Form:
    """successes · ψ - trials · log(1 + exp ψ)."""
    if logits.is_constant:
        softplus = elementwise.map_constant(
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
    if is_sigmoid(probs):
        return binomial_logits(x, probs.form, total_count, augment=augment)
    p, n = as_form(probs), as_form(total_count)
    return x * _log_of_chance(p) + (n - x) * elementwise.log1m(p) + _log_choose(n, x)


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
    if is_sigmoid(probs):
        return negative_binomial_logits(x, probs.form, total_count, augment=augment)
    p, r = as_form(probs), as_form(total_count)
    return x * elementwise.log(p) + r * elementwise.log1m(p) + _log_rising(r, x)


@log_density(dist.GammaPoisson, dist.NegativeBinomial2)
def gamma_poisson(
    x: Form, concentration: Value, rate: Value, *, augment: Augment, **_: Value
) -> Form:
    """A negative binomial with logits -log(rate)."""
    r = as_form(concentration)
    require_constant(r, "a concentration that depends on a latent, as a function")
    if is_exp(rate):
        logits = -rate.form
    else:
        b = as_form(rate)
        require_constant(b, "the rate of a GammaPoisson as a function")
        logits = -elementwise.log(b)
    return _logistic(x, logits, x + r, augment) + _log_rising(r, x)


@log_density(dist.GeometricProbs)
def geometric_probs(x: Form, probs: Value, *, augment: Augment) -> Form:
    if is_sigmoid(probs):
        return geometric_logits(x, probs.form, augment=augment)
    p = as_form(probs)
    return x * elementwise.log1m(p) + elementwise.log(p)


@log_density(dist.GeometricLogits)
def geometric_logits(x: Form, logits: Value, *, augment: Augment) -> Form:
    return _logistic(forms.number(1.0), as_form(logits), x + 1.0, augment)


def _log_rising(r: Form, k: Form) -> Form:
    return log_gamma(r + k) - log_gamma(r) - log_gamma(k + 1.0)


@log_density(dist.CategoricalProbs)
def categorical_probs(x: Form, probs: Value, *, augment: Augment) -> Form:
    if is_exp(probs):
        return at_value(log_probabilities(probs.form, augment), x)
    p = _probabilities(probs, augment)
    if p.exclusive and p.terms:
        return at_value(elementwise.log(p), x)
    return augment.log_sum(at_value(p, x), forms.number(1.0))


def _probabilities(probs: Value, augment: Augment) -> Form:
    """Probabilities that NumPyro takes as they are, along the last axis."""
    p = as_form(probs)
    if not p.is_constant and augment.adds_up_to_one(p) is False:
        raise NotInAlgebra(
            f"probabilities of {names_of(p.latents)} that do not add up to one"
        )
    return p


@log_density(dist.CategoricalLogits)
def categorical_logits(x: Form, logits: Value, *, augment: Augment) -> Form:
    return at_value(log_probabilities(as_form(logits), augment), x)


def log_probabilities(logits: Form, augment: Augment) -> Form:
    """Normalised logits: constants, or the logarithms of probabilities."""
    if logits.is_constant:
        return elementwise.map_constant(
            lambda a: a - np.logaddexp.reduce(a, -1, keepdims=True),
            lambda a: a - jsp.logsumexp(a, -1, keepdims=True),
            logits,
        )
    if not augment.adds_up_to_one(logits, logarithms=True):
        raise NotInAlgebra(f"a softmax of {names_of(logits.latents)}")
    return logits


@log_density(dist.DiscreteUniform)
def discrete_uniform(
    x: Form, low: Value, high: Value, *, augment: Augment, **_: Value
) -> Form:
    return 0.0 * x - elementwise.log(as_form(high) - as_form(low) + 1.0)


@log_density(dist.MultinomialProbs)
def multinomial_probs(
    x: Form, probs: Value, total_count: Value, *, augment: Augment
) -> Form:
    if is_exp(probs):
        return multinomial_logits(x, probs.form, total_count, augment=augment)
    p = _probabilities(probs, augment)
    per_state = (
        x * elementwise.log(p) if p.exclusive and p.terms else augment.log_sum(p, x)
    )
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
    return normal_with_precision(
        x, as_form(loc), elementwise.power(as_form(scale), -2.0)
    )


def normal_with_precision(x: Form, loc: Form, precision: Form) -> Form:
    log_precision = elementwise.log(precision)
    return -0.5 * (precision * square(x - loc)) + 0.5 * log_precision - 0.5 * LOG_2PI


@log_density(dist.Gamma)
def gamma(x: Form, concentration: Value, rate: Value, *, augment: Augment) -> Form:
    a, b = as_form(concentration), as_form(rate)
    require_constant(a, "the concentration of a Gamma as a function")
    return (
        (a - 1.0) * elementwise.log(x) - b * x + a * elementwise.log(b) - log_gamma(a)
    )


@log_density(dist.Chi2)
def chi_squared(x: Form, df: Value, *, augment: Augment, **_: Value) -> Form:
    half = forms.number(0.5)
    return gamma(x, as_form(df) * 0.5, half, augment=augment)


@log_density(dist.Pareto)
def pareto(x: Form, scale: Value, alpha: Value, *, augment: Augment) -> Form:
    m, a = as_form(scale), as_form(alpha)
    require_constant(m, "the smallest value of a Pareto as a function")
    return elementwise.log(a) + a * elementwise.log(m) - (a + 1.0) * elementwise.log(x)


@log_density(dist.Weibull)
def weibull(x: Form, scale: Value, concentration: Value, *, augment: Augment) -> Form:
    k = as_form(concentration)
    require_constant(k, "the concentration of a Weibull as a function")
    shape = public_number(k)
    if shape is None:
        raise NotInAlgebra("a concentration of a Weibull that is not one public number")
    rate = elementwise.power(as_form(scale), -shape)
    log_x = elementwise.log(x)
    return (
        math.log(shape)
        + elementwise.log(rate)
        + (shape - 1.0) * log_x
        - rate * elementwise.power(x, shape)
    )


@log_density(dist.Exponential)
def exponential(x: Form, rate: Value, *, augment: Augment) -> Form:
    return elementwise.log(as_form(rate)) - as_form(rate) * x


@log_density(dist.InverseGamma)
def inverse_gamma(
    x: Form, concentration: Value, rate: Value, *, augment: Augment, **_: Value
) -> Form:
    a, b = as_form(concentration), as_form(rate)
    require_constant(a, "the concentration of an InverseGamma as a function")
    return (
        a * elementwise.log(b)
        - log_gamma(a)
        - (a + 1.0) * elementwise.log(x)
        - b * elementwise.power(x, -1.0)
    )


@log_density(dist.Levy)
def levy(x: Form, loc: Value, scale: Value, *, augment: Augment) -> Form:
    """x - loc is InverseGamma(1/2, scale/2)."""
    start = as_form(loc)
    require_constant(start, "the smallest value of a Levy as a function")
    half = forms.number(0.5)
    return inverse_gamma(x - start, half, 0.5 * as_form(scale), augment=augment)


@log_density(dist.LogNormal)
def log_normal(
    x: Form, loc: Value, scale: Value, *, augment: Augment, **_: Value
) -> Form:
    log_x = elementwise.log(x)
    return normal(log_x, loc, scale, augment=augment) - log_x


@log_density(dist.HalfNormal)
def half_normal(x: Form, scale: Value, *, augment: Augment, **_: Value) -> Form:
    precision = elementwise.power(as_form(scale), -2.0)
    return (
        -0.5 * (precision * elementwise.power(x, 2.0))
        + 0.5 * elementwise.log(precision)
        + 0.5 * math.log(2 / math.pi)
    )


@log_density(dist.Beta)
def beta(
    x: Form, concentration1: Value, concentration0: Value, *, augment: Augment
) -> Form:
    a, b = as_form(concentration1), as_form(concentration0)
    if public_number(a) == 1:  # Γ(b + 1) / Γ(b) is b, which may be latent.
        normalizer = elementwise.log(b)
    elif public_number(b) == 1:
        normalizer = elementwise.log(a)
    else:
        normalizer = log_gamma(a + b) - log_gamma(a) - log_gamma(b)
    return (
        (a - 1.0) * elementwise.log(x) + (b - 1.0) * elementwise.log1m(x) + normalizer
    )


@log_density(dist.Kumaraswamy)
def kumaraswamy(
    x: Form, concentration1: Value, concentration0: Value, *, augment: Augment
) -> Form:
    """-log(1 - x^a) is Exponential(b), a and b being the two concentrations."""
    a, b = as_form(concentration1), as_form(concentration0)
    require_constant(x, "the logarithm of one minus a power")
    require_constant(a, "the first concentration of a Kumaraswamy as a function")
    log_rest = elementwise.map_constant(
        lambda x, a: np.log1p(-(x**a)), lambda x, a: jnp.log1p(-(x**a)), x, a
    )
    return (
        elementwise.log(a)
        + elementwise.log(b)
        + (a - 1.0) * elementwise.log(x)
        + (b - 1.0) * log_rest
    )


@log_density(dist.Uniform)
def uniform(x: Form, low: Value, high: Value, *, augment: Augment) -> Form:
    low, high = as_form(low), as_form(high)
    for bound in (low, high):
        require_constant(bound, "the bounds of a Uniform as a function")
    return -elementwise.log(high - low) + 0.0 * x


@log_density(dist.ImproperUniform)
def improper_uniform(x: Form, *, augment: Augment) -> Form:
    """What a flat prior leaves open is for the M-step, see `beside_flat_prior`."""
    if augment.role != "global":
        raise NotInAlgebra("a flat prior of a row's own latent, with nothing to start")
    return forms.number(0.0)


@log_density(dist.Dirichlet)
def dirichlet(x: Form, concentration: Value, *, augment: Augment) -> Form:
    a = as_form(concentration)
    normalizer = log_gamma(sum_event(a)) - sum_event(log_gamma(a))
    return sum_event((a - 1.0) * elementwise.log(x)) + normalizer


# --- factors ------------------------------------------------------------------------


@log_density(dist.Unit)
def unit(x: Form, log_factor: Value, *, augment: Augment) -> Form:
    if is_logsumexp(log_factor):
        return augment.allocate(log_factor.form)
    return as_form(log_factor)
