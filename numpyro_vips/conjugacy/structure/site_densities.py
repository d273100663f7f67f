"""The log density of a single site as a symbolic form."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from numpyro_vips.conjugacy.algebra import elementwise, forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import (
    Dense,
    Label,
    NotInAlgebra,
    OneHot,
    is_public,
)
from numpyro_vips.conjugacy.densities import log_densities, logistic_bounds
from numpyro_vips.conjugacy.families import supports
from numpyro_vips.conjugacy.interpreter.values import (
    Constant,
    Opaque,
    Value,
    as_form,
    latents_of,
)
from numpyro_vips.conjugacy.structure.augmentation import (
    Augmentation,
    augmented,
    auxiliary_weight,
)
from numpyro_vips.conjugacy.structure.latents import Latent, Latents
from numpyro_vips.errors import quoted
from numpyro_vips.model.distributions import Distributed
from numpyro_vips.model.graph import Site


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiteLogDensity:
    """The log density of one site as a form, summed over its elements.

    `mask` and `scale` are what it has been multiplied by already; `unweighted` is the
    form without them, of a `numpyro.factor`.
    """

    site: str
    is_row: bool
    form: Form
    unweighted: Form | None = None
    mask: Form | None = None
    scale: Form | None = None

    def with_arrays(self, replace: Callable[[Dense | OneHot], Any]) -> "SiteLogDensity":
        """The densities with other arrays for constants that are not public."""
        return dataclasses.replace(
            self,
            form=self.form.with_arrays(replace),
            unweighted=self.unweighted and self.unweighted.with_arrays(replace),
            mask=None,
            scale=None,
        )


def is_checked(output: Mapping[str, Any]) -> bool:
    """Whether it is checked that what a site observes lies in its support."""
    return isinstance(output.get("in_support"), Constant)


def symbolic_site_density(
    site: Site,
    value: Value,
    output: Mapping[str, Any],
    latents: Latents,
    choice: logistic_bounds.Choice,
) -> tuple[SiteLogDensity, list[Latent], list[Any]]:
    """The log density of one site, masked and scaled, summed over its elements.

    Args:
      site: The site.
      value: Its value.
      output: What the model's program returns of it.
      latents: The latents that are known, by name.
      choice: The bound for logistic likelihoods, by site or for all.

    Returns:
      The density, the auxiliary variables that it adds, and what must hold of the
      row's numbers.

    Raises:
      NotInAlgebra: It is not a form.
    """
    x = as_form(value)
    lowest, highest = supports.bounds(site.support)
    if is_checked(output) and lowest >= 0:
        x = forms.within(x, 0.0, highest)
    form, auxiliaries = augmented(
        lambda augment: _density(
            site.distributed, output["parameters"], x, latents, augment
        ),
        site.name,
        "global" if site.row_axis is None else "local",
        latents,
        choice,
    )
    mask = scale = None
    checks = []
    if site.distributed.masked:
        mask = as_form(output["parameters"]["mask"])
        if not mask.is_constant:
            raise NotInAlgebra("a mask that depends on a latent")
        mask = forms.within(mask, 0.0, math.inf)
    if "scale" in output:
        scale = as_form(output["scale"])
        if not scale.is_constant:
            raise NotInAlgebra("a scale that depends on a latent")
        array = forms.constant_array(scale)
        if not is_public(array):
            checks.append(jnp.asarray(array) >= 0)
        elif np.any(np.asarray(array) < 0):
            raise NotInAlgebra("a negative scale")
        # A scale has the batch axes of the site, event axes excluded.
        ones = (Label(1) for _ in range(site.distributed.reinterpreted))
        axes = (*scale.axes, *ones)
        scale = forms.place(scale, axes)
        scale = forms.within(scale, 0.0, math.inf)
    factors = [factor for factor in (mask, scale) if factor is not None]
    form = elementwise.expanded(form)
    rank = len(site.shape) - site.distributed.event_dim
    batch = tuple(Label(size) for size in site.shape[:rank])
    form = unweighted = forms.broadcast(form, batch)
    for factor in factors:
        form = form * forms.broadcast(factor, batch)
    added = [
        dataclasses.replace(
            latent, weight=auxiliary_weight(latent.weight, factors, rank, places)
        )
        for latent, places in auxiliaries
    ]
    is_factor = site.distributed.kind is dist.Unit
    density = SiteLogDensity(
        site=site.name,
        is_row=site.row_axis is not None,
        form=forms.sum_over(form, range(rank)),
        unweighted=forms.sum_over(unweighted, range(rank)) if is_factor else None,
        mask=mask,
        scale=scale,
    )
    return density, added, checks


def _density(
    distributed: Distributed,
    parameters: Mapping[str, Any],
    x: Form,
    model_latents: Latents,
    augmentation: Augmentation,
) -> Form:
    """The registered log density of a distribution, per element."""
    is_factor = distributed.kind is dist.Unit
    kind = "numpyro.factor" if is_factor else distributed.kind.__name__
    function = log_densities.REGISTRY.get(distributed.kind)
    latents = _latents_in(distributed, parameters) | x.latents
    about = f" ({quoted(sorted(latents))})" if latents else ""
    if function is None:
        raise NotInAlgebra(f"no log density is registered for {kind}{about}")
    values: dict[str, Any] = {}
    for name in distributed.parameters:
        value = parameters[name]
        if type(value) is Opaque:
            # A factor has nothing else.
            where = "" if is_factor else f" in {name!r}"
            value = dataclasses.replace(value, reason=f"{value.reason}{where}")
        values[name] = value
    for name, component in distributed.components.items():
        values[name] = _Component(component, parameters[name], model_latents)
    try:
        return function(x, augment=augmentation, **values)
    except NotInAlgebra as error:
        named = "'" in str(error)
        raise NotInAlgebra(f"{error} of {kind}{'' if named else about}") from None


def _latents_in(distributed: Distributed, parameters: Mapping[str, Any]) -> set[str]:
    """The latents in a distribution's parameters and in those of its parts."""
    found = set().union(*(latents_of(parameters[n]) for n in distributed.parameters))
    for name, part in distributed.components.items():
        found |= _latents_in(part, parameters[name])
    return found


class _Component:
    """A distribution inside another one."""

    def __init__(
        self,
        distributed: Distributed,
        parameters: Mapping[str, Any],
        latents: Latents,
    ) -> None:
        self._latents = latents
        self._distributed = distributed
        self.kind = distributed.kind
        self.parameters = parameters
        self.event_dim = distributed.event_dim + distributed.reinterpreted

    def log_density(self, x: Form) -> Form:
        form, auxiliaries = augmented(
            lambda inner: _density(
                self._distributed, self.parameters, x, self._latents, inner
            ),
            site="",
            role="",
            model_latents=self._latents,
        )
        if auxiliaries:
            raise NotInAlgebra(
                "an augmented density inside another (sample which component it is, "
                "as in z ~ Categorical, and index the parameters with z)"
            )
        if self._distributed.masked:
            raise NotInAlgebra("a mask inside a mixture")
        rank = len(form.axes)
        return forms.sum_over(form, range(rank - self._distributed.reinterpreted, rank))
