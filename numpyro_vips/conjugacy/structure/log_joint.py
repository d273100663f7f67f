"""The model's log joint density as symbolic forms, one per site.

Two callers: `structure` runs it on abstract rows to see which statistics occur, and
`program` runs it on the traced rows of a minibatch to evaluate them. It makes the
same terms both times, because no rule looks at a private value.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_vips.conjugacy.algebra import elementwise, forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import (
    Atom,
    Dense,
    Factor,
    Label,
    NotInAlgebra,
    OneHot,
    Origin,
    is_public,
)
from numpyro_vips.conjugacy.densities import log_densities, logistic_bounds
from numpyro_vips.conjugacy.families import supports
from numpyro_vips.conjugacy.interpreter.entries import constant_of
from numpyro_vips.conjugacy.interpreter.interpreter import interpret
from numpyro_vips.conjugacy.interpreter.values import (
    Constant,
    Opaque,
    Value,
    as_form,
    latents_of,
)
from numpyro_vips.conjugacy.structure.augmentation import Augmentation, auxiliary_weight
from numpyro_vips.conjugacy.structure.latents import Latent, model_latents
from numpyro_vips.model.distributions import Distributed
from numpyro_vips.model.graph import ModelGraph, Site
from numpyro_vips.model.sparse_rows import SparseRows


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiteLogDensity:
    """The expected log density of one site, summed over its elements.

    `mask` and `scale` are what it has been multiplied by already.
    """

    site: str
    is_row: bool
    form: Form
    mask: Form | None = None
    scale: Form | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogJoint:
    """A model's log joint density: one form per site, and what else was found.

    `valid` is whether the row may count; `failures` says what is not in the algebra, by
    site; `densified`, for each sparse argument, the operations that need it dense.
    """

    densities: list[SiteLogDensity]
    latents: dict[str, Latent]
    valid: Any
    failures: dict[str, str]
    densified: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)


def symbolic_log_joint(
    graph: ModelGraph,
    rows: Mapping[str, Any],
    *,
    weighted: bool = True,
    augmentation: logistic_bounds.Choice = logistic_bounds.DEFAULT,
    check_parameters: bool = True,
) -> LogJoint:
    """Writes the log joint density of one row and of the globals as forms.

    Args:
      graph: The model.
      rows: Its private arguments, with a leading axis of length 1; traced. Sparse
        arguments (`SparseRows`) stay sparse where that is possible.
      weighted: Whether masks and scales are applied.
      augmentation: The bound for logistic likelihoods, by site or for all.
      check_parameters: Whether a row is valid only if the parameters that it brings lie
        where NumPyro wants them.
    """
    latents = model_latents(graph)
    inputs: list[Value] = []
    row_inputs, latent_inputs = graph.program_inputs
    failures: dict[str, str] = {}
    origins: list[Origin] = []
    for name in sorted(row_inputs):
        value = rows[name]
        if isinstance(value, SparseRows):
            origins.append(Origin(name))
            inputs.append(constant_of(value, origins[-1]))
        else:
            inputs.append(Constant(value, is_private=True))
    for name in sorted(latent_inputs):
        latent = latents[name]
        if graph.sites[name].is_discrete and latent.states is None:
            failures[name] = "a discrete latent without finitely many known states"
            inputs.append(Opaque(failures[name], {name}, latent.shape))
        else:
            signed = not supports.is_positive(latent.support)
            inputs.append(
                forms.latent(name, latent.shape, latent.states, signed=signed)
            )
    checks: list[Any] = []
    leaves = interpret(graph.program, inputs, checks)
    tree = jax.tree.structure(graph.program_outputs)
    outputs = jax.tree.unflatten(tree, leaves)
    latent_values = dict(
        zip(sorted(latent_inputs), inputs[len(row_inputs) :], strict=True)
    )
    densities = []
    for site in graph.sites.values():
        output = outputs[site.name]
        value = output.get("value", latent_values.get(site.name))
        role = "global" if site.row_axis is None else "local"
        augment = Augmentation(site.name, role, latents, augmentation)
        try:
            if check_parameters:
                checks += _legal_parameters(site.distributed, output["parameters"])
            density = _symbolic_site_density(
                site, value, output, augment, weighted=weighted, checks=checks
            )
        except NotInAlgebra as error:
            failures[site.name] = str(error)
            continue
        densities.append(density)
        for latent in augment.latents:
            latents[latent.name] = latent
        if _checked(output):
            checks.append(_observed_part(site, output))
    for name, latent in latents.items():
        if latent.states is None or latent.role != "local" or latent.family is not None:
            continue
        try:
            weight = _copies(graph.sites[name], densities)
        except NotInAlgebra as error:
            failures[name] = str(error)
            continue
        latents[name] = dataclasses.replace(latent, weight=weight)
    return LogJoint(
        densities=densities,
        latents=latents,
        valid=_all_valid(densities, checks),
        failures=failures,
        densified={origin.name: tuple(origin.densified) for origin in origins},
    )


def _checked(output: Mapping[str, Any]) -> bool:
    """Whether it is checked that what a site observes lies in its support."""
    return isinstance(output.get("in_support"), Constant)


def _observed_part(site: Site, output: Mapping[str, Any]) -> Any:
    """Whether the observation lies in its support, where it is not masked out."""
    in_support = output["in_support"]
    mask = output["parameters"].get("mask")
    if not isinstance(mask, Constant):
        entries = in_support.entries
        if entries is not None:
            return jnp.all(entries.values) & bool(entries.elsewhere)
        return in_support.array
    inside, seen = in_support.dense("a mask"), mask.dense("a mask")
    rank, shape = np.ndim(inside), np.shape(seen)
    if shape[:rank] == np.shape(inside) and set(shape[rank:]) <= {1}:
        seen = jnp.reshape(seen, np.shape(inside))
        inside = jnp.logical_or(inside, jnp.logical_not(seen))
    return inside


def _unmasked(output: Mapping[str, Any], legal: Any) -> Any:
    """What has to hold of a site's parameters, where they are not masked out."""
    mask = output.get("mask")
    if not isinstance(mask, Constant):
        return legal
    try:
        return jnp.logical_or(legal, jnp.logical_not(mask.dense("a mask")))
    except TypeError:  # Shapes that do not match; then every entry has to be legal.
        return legal


def _legal_parameters(
    distributed: Distributed, parameters: Mapping[str, Any]
) -> list[Any]:
    """Whether the parameters that rows bring lie where NumPyro wants them."""
    checks = []
    for name in distributed.parameters:
        value = parameters[name]
        constraint = distributed.kind.arg_constraints.get(name)
        if (
            not isinstance(value, Constant)
            or not value.is_private
            or constraint is None
        ):
            continue
        try:
            legal = constraint(value.dense("a check of parameters"))
        except NotImplementedError:  # It depends on the other parameters.
            continue
        checks.append(_unmasked(parameters, legal))
    for name, component in distributed.components.items():
        checks += _legal_parameters(component, parameters[name])
    return checks


def _symbolic_site_density(
    site: Site,
    value: Value,
    output: Mapping[str, Any],
    augmentation: Augmentation,
    *,
    weighted: bool,
    checks: list[Any],
) -> SiteLogDensity:
    """The log density of one site, masked and scaled, summed over its elements.

    `checks` gets what must hold of the row's numbers.
    """
    x = as_form(value)
    if _checked(output) and supports.is_nonnegative(site.support):
        x = forms.within(x, 0.0, supports.upper_bound(site.support))
    form = _density(site.distributed, output["parameters"], x, augmentation)
    mask = scale = None
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
        scale = forms.place(scale, axes, range(len(scale.axes)))
        scale = forms.within(scale, 0.0, math.inf)
    factors = [factor for factor in (mask, scale) if factor is not None]
    form = elementwise.expanded(form)
    rank = len(site.shape) - site.distributed.event_dim
    batch = tuple(Label(size) for size in site.shape[:rank])
    form = forms.broadcast(form, batch)
    for factor in factors if weighted else ():
        form = form * forms.broadcast(factor, batch)
    augmentation.latents = [
        dataclasses.replace(
            latent,
            weight=auxiliary_weight(
                latent, factors, rank, augmentation.places.get(latent.name)
            ),
        )
        for latent in augmentation.latents
    ]
    return SiteLogDensity(
        site=site.name,
        is_row=site.row_axis is not None,
        form=forms.sum_over(form, range(rank)),
        mask=mask,
        scale=scale,
    )


def _copies(site: Site, densities: list[SiteLogDensity]) -> Form | None:
    """How many copies a discrete latent of a row stands for, if masks or scales say.

    NumPyro sums a discrete latent out before it scales, and asks that all it has to do
    with share the scale: c · log Σ_z p(z, x). So a scaled latent is c copies, each with
    an observation of its own, and not one with a sharper posterior.

    Raises:
      NotInAlgebra: The latent and what depends on it are scaled differently.
    """
    mine = [density for density in densities if site.name in density.form.latents]
    own = [density for density in mine if density.site == site.name]
    if not own or all(p.mask is None and p.scale is None for p in mine):
        return None
    if len({(_identity(p.mask), _identity(p.scale)) for p in mine}) > 1:
        # One copy whose observation is weighted is what the log joint says it is.
        if own[0].scale is not None:
            others = ", ".join(sorted({repr(p.site) for p in mine} - {repr(site.name)}))
            raise NotInAlgebra(
                f"a scale that {site.name!r} and {others} do not share; put them under "
                "the same scale and mask"
            )
        return None
    rank = len(site.shape)
    axes = tuple(map(Label, site.shape))
    one = Latent(
        name=site.name,
        role="local",
        shape=site.shape,
        support=site.support,
        weight=forms.broadcast(forms.as_form(1.0), axes),
    )
    factors = [f for f in (own[0].mask, own[0].scale) if f is not None]
    return auxiliary_weight(one, factors, rank)


def _identity(form: Form | None) -> Any:
    """Equal for masks or scales that are the same array in the traced program."""
    if form is None:
        return None

    def of(factor: Factor) -> Any:
        assert not isinstance(factor, Atom)
        array = factor.array if isinstance(factor, Dense) else factor.indices
        return array.tobytes() if is_public(array) else id(array)

    return tuple((term.scale, *map(of, term.factors)) for term in form.terms)


def _density(
    distributed: Distributed,
    parameters: Mapping[str, Any],
    x: Form,
    augmentation: "Augmentation",
) -> Form:
    """The registered log density of a distribution, per element."""
    kind = distributed.kind.__name__
    function = log_densities.REGISTRY.get(distributed.kind)
    latents = _latents_in(distributed, parameters) | x.latents
    about = f" ({', '.join(map(repr, sorted(latents)))})" if latents else ""
    if distributed.kind in log_densities.WITHOUT_UPDATE:
        raise NotInAlgebra(f"{log_densities.WITHOUT_UPDATE[distributed.kind]}{about}")
    if function is None:
        raise NotInAlgebra(f"no log density is registered for {kind}{about}")
    values: dict[str, Any] = {}
    for name in distributed.parameters:
        value = parameters[name]
        if type(value) is Opaque:
            where = f"{value.reason} in {name!r}"
            value = dataclasses.replace(value, reason=where)
        values[name] = value
    for name, component in distributed.components.items():
        values[name] = _Component(
            component, parameters[name], augmentation.model_latents
        )
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
        latents: Mapping[str, Latent],
    ) -> None:
        self._latents = latents
        self._distributed = distributed
        self.parameters = parameters
        self.event_dim = distributed.event_dim + distributed.reinterpreted

    def log_density(self, x: Form) -> Form:
        inner = Augmentation("", "", self._latents)
        form = _density(self._distributed, self.parameters, x, inner)
        if inner.latents:
            raise NotInAlgebra(
                "an augmented density inside another (sample which component it is, "
                "as in z ~ Categorical, and index the parameters with z)"
            )
        if self._distributed.masked:
            raise NotInAlgebra("a mask inside a mixture")
        rank = len(form.axes)
        return forms.sum_over(form, range(rank - self._distributed.reinterpreted, rank))


def _all_valid(densities: list[SiteLogDensity], checks: list[Any]) -> Any:
    """Whether everything that the row brings is finite, in range and in support."""
    results = [jnp.all(check) for check in checks]
    seen: set[int] = set()
    all_forms = [density.form for density in densities if density.is_row]
    for form in all_forms:
        for term in form.terms:
            for factor in term.factors:
                if isinstance(factor, Atom) or not factor.is_private:
                    continue
                array = factor.array if isinstance(factor, Dense) else factor.indices
                if id(array) in seen:
                    continue
                seen.add(id(array))
                if isinstance(factor, OneHot):
                    inside = (array >= 0) & (array < factor.target.size)
                    results.append(jnp.all(inside))
                elif jnp.issubdtype(array.dtype, jnp.floating):
                    results.append(jnp.all(jnp.isfinite(array)))
    valid = jnp.ones((), bool)
    for result in results:
        valid = valid & result
    return valid
