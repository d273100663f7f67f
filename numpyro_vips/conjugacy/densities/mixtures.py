"""Finite mixtures, through the variable that says which component a value is from."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

# NumPyro 0.21 does not show it among its distributions.
from numpyro.distributions.discrete import ZeroInflatedProbs

from numpyro_vips.conjugacy.algebra import elementwise, forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import Label, NotInAlgebra
from numpyro_vips.conjugacy.densities.log_densities import (
    Augment,
    Component,
    log_density,
    log_probabilities,
)
from numpyro_vips.conjugacy.interpreter.axis_rules import stacked
from numpyro_vips.conjugacy.interpreter.values import Value, as_form, is_exp


def _mixing_logits(mixing: Component) -> Form:
    """Logits of the components, which NumPyro normalises."""
    if "logits" in mixing.parameters:
        return as_form(mixing.parameters["logits"])
    probs = mixing.parameters["probs"]
    if is_exp(probs):
        return probs.form
    return elementwise.log(as_form(probs))


@log_density(dist.MixtureSameFamily)
def mixture_same_family(
    x: Form,
    *,
    augment: Augment,
    _mixing_distribution: Component,
    _component_distribution: Component,
    **_: object,
) -> Form:
    mixing, component = _mixing_distribution, _component_distribution
    log_weights = log_probabilities(_mixing_logits(mixing), augment)
    num_event = component.event_dim
    split = len(x.axes) - num_event
    axes = (*x.axes[:split], Label(log_weights.axes[-1].size), *x.axes[split:])
    positions = [*range(split), *range(split + 1, len(axes))]
    densities = component.log_density(forms.place(x, axes, positions))
    if len(densities.axes) != split + 1:
        raise NotInAlgebra("a mixture whose components have no common shape")
    return augment.allocate(log_weights + densities)


@log_density(dist.MixtureGeneral)
def mixture_general(
    x: Form,
    *,
    augment: Augment,
    _mixing_distribution: Component,
    **components: Component,
) -> Form:
    log_weights = log_probabilities(_mixing_logits(_mixing_distribution), augment)
    ordered = [components[f"component_{i}"] for i in range(len(components))]
    densities = stacked([component.log_density(x) for component in ordered])
    return augment.allocate(log_weights + densities)


@log_density(ZeroInflatedProbs, dist.ZeroInflatedPoisson)
def zero_inflated(
    x: Form, gate: Value, *, augment: Augment, base_dist: Component, **_: object
) -> Form:
    """A mixture of zeros and of the base distribution."""
    if not x.is_constant:
        raise NotInAlgebra("a zero-inflated distribution of a latent")
    p = as_form(gate)
    log_is_zero = elementwise.map_constant(
        lambda a: np.where(a == 0, 0.0, elementwise.LOG_OF_ZERO),
        lambda a: jnp.where(a == 0, 0.0, elementwise.LOG_OF_ZERO),
        x,
    )
    of_zero = elementwise.log(p) + log_is_zero
    of_base = elementwise.log1m(p) + base_dist.log_density(x)
    return augment.allocate(stacked([of_zero, of_base]))
