"""Finite mixtures, through the variable that says which component a value is from."""

import numpyro.distributions as dist

from numpyro_vips.conjugacy import forms
from numpyro_vips.conjugacy.forms import Form, Label, NotInAlgebra
from numpyro_vips.conjugacy.interpreter import Transformed, as_form
from numpyro_vips.conjugacy.log_densities import (
    Augment,
    Component,
    log_density,
    log_probabilities,
)


def _mixing_logits(mixing: Component) -> Form:
    """Logits of the components, which NumPyro normalises."""
    if "logits" in mixing.parameters:
        return as_form(mixing.parameters["logits"])
    probs = mixing.parameters["probs"]
    if isinstance(probs, Transformed) and probs.function == "exp":
        return probs.form
    return forms.log(as_form(probs))


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
