"""Finite mixtures, through the variable that says which component a value is from."""

import numpyro.distributions as dist

from numpyro_vips.conjugacy import forms
from numpyro_vips.conjugacy.forms import Form, Label, NotInAlgebra
from numpyro_vips.conjugacy.interpreter import as_form
from numpyro_vips.conjugacy.log_densities import (
    Augment,
    Component,
    log_density,
    log_probabilities,
)


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
    if "probs" in mixing.parameters:
        log_weights = forms.log(as_form(mixing.parameters["probs"]))
    else:
        log_weights = log_probabilities(as_form(mixing.parameters["logits"]))
    num_event = component.event_dim
    split = len(x.axes) - num_event
    axes = (*x.axes[:split], Label(log_weights.axes[-1].size), *x.axes[split:])
    positions = [*range(split), *range(split + 1, len(axes))]
    densities = component.log_density(forms.place(x, axes, positions))
    if len(densities.axes) != split + 1:
        raise NotInAlgebra("a mixture whose components have no common shape")
    return augment.allocate(log_weights + densities)
