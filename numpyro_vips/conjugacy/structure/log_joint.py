"""The model's log joint density as symbolic forms, one per site.

The model's program is interpreted once, on one row without values: no rule looks at a
private value. What rows bring is then a program of its own, see `row_constants`, and
the forms are data: `structure` sees in them which statistics occur, and what runs on
rows evaluates them.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
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
    Origin,
    is_public,
    same_constant,
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
from numpyro_vips.conjugacy.structure.augmentation import (
    Augmentation,
    augmented,
    auxiliary_weight,
)
from numpyro_vips.conjugacy.structure.latents import Latent, Latents, model_latents
from numpyro_vips.conjugacy.structure.row_constants import RowConstants, with_slots
from numpyro_vips.model.distributions import Distributed
from numpyro_vips.model.graph import ModelGraph, Site
from numpyro_vips.model.sparse_rows import SparseRows, dense_rows


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


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LogJoint:
    """A model's log joint density: one form per site, and what else was found.

    Attributes:
      densities: Those of all sites that are in the algebra.
      latents: All latents, auxiliary ones included.
      failures: What is not in the algebra, by site.
      densified: For each sparse argument, the operations that need it dense.
    """

    densities: tuple[SiteLogDensity, ...]
    latents: Latents
    failures: Mapping[str, str]
    densified: Mapping[str, tuple[str, ...]]

    def with_arrays(self, replace: Callable[[Dense | OneHot], Any]) -> "LogJoint":
        """A copy in which `replace` has given another array to each constant.

        Constants whose values are public stay.
        """
        latents = {
            name: dataclasses.replace(
                latent, weight=latent.weight and latent.weight.with_arrays(replace)
            )
            for name, latent in self.latents.items()
        }
        densities = tuple(density.with_arrays(replace) for density in self.densities)
        return dataclasses.replace(self, densities=densities, latents=latents)

    def simplified(self) -> "LogJoint":
        """The log joint in normal form, once equal constants have equal tokens.

        Products of indicators of one index then collapse: of effects a[g] and b[g] a
        row has products in its own group g alone, and not for each pair of groups.
        """
        densities = tuple(
            dataclasses.replace(
                density,
                form=forms.simplified(
                    density.form.axes, density.form.terms, density.form.exclusive
                ),
            )
            for density in self.densities
        )
        return dataclasses.replace(self, densities=densities)


def symbolic_log_joint(
    graph: ModelGraph,
    rows: Mapping[str, Any],
    *,
    dense: Iterable[str] = (),
    augmentation: logistic_bounds.Choice = logistic_bounds.DEFAULT,
    check_parameters: bool = True,
    level_means: Mapping[str, str] | None = None,
) -> tuple[LogJoint, RowConstants]:
    """Writes the log joint density of one row and of the globals as forms.

    Args:
      graph: The model.
      rows: Its private arguments, with a leading axis of length 1, of which only
        shapes and types are looked at. Sparse arguments (`SparseRows`) stay sparse
        where that is possible.
      dense: Sparse arguments that become dense arrays beforehand.
      augmentation: The bound for logistic likelihoods, by site or for all.
      check_parameters: Whether a row is valid only if the parameters that it brings lie
        where NumPyro wants them.
      level_means: Effects of rows in whose place their levels are, which have the same
        names, and the means of these; see `level_means.py`.

    Returns:
      The density, whose constants are public or slots, and the program that makes what
      these stand for of a row.
    """

    def of_rows(rows: Mapping[str, Any]) -> tuple[LogJoint, Any]:
        whole = dense_rows(rows, dense)
        return _interpreted(
            graph, whole, augmentation, check_parameters, level_means or {}
        )

    found, constants = with_slots(of_rows, rows)
    return found.simplified(), constants


def _interpreted(
    graph: ModelGraph,
    rows: Mapping[str, Any],
    augmentation: logistic_bounds.Choice,
    check_parameters: bool,
    level_means: Mapping[str, str],
) -> tuple[LogJoint, Any]:
    """The density of a row that is traced, and whether the row may count."""
    latents = model_latents(graph)
    of_rows, origins = _inputs_of_rows(graph, rows)
    of_latents, failures = _inputs_of_latents(graph, latents)
    for effect, mean in level_means.items():
        level, about = as_form(of_latents[effect]), as_form(of_latents[mean])
        of_latents[effect] = level - forms.broadcast(about, level.axes)
    leaves, checks = interpret(graph.program, [*of_rows, *of_latents.values()])
    tree = jax.tree.structure(graph.program_outputs)
    outputs = jax.tree.unflatten(tree, leaves)
    densities = []
    for site in graph.sites.values():
        output = outputs[site.name]
        value = output.get("value", of_latents.get(site.name))
        try:
            if check_parameters:
                checks += _legal_parameters(site.distributed, output["parameters"])
            density, auxiliaries, more = _symbolic_site_density(
                site, value, output, latents, augmentation
            )
        except NotInAlgebra as error:
            failures[site.name] = str(error)
            continue
        densities.append(density)
        checks += more
        latents |= {latent.name: latent for latent in auxiliaries}
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
    found = LogJoint(
        densities=tuple(densities),
        latents=latents,
        failures=failures,
        densified={origin.name: tuple(origin.densified) for origin in origins},
    )
    return found, _all_valid(densities, checks)


def _inputs_of_rows(
    graph: ModelGraph, rows: Mapping[str, Any]
) -> tuple[list[Value], list[Origin]]:
    """A row's arrays, in the order of the program, and where sparse ones come from."""
    inputs: list[Value] = []
    origins: list[Origin] = []
    for name in sorted(graph.program_inputs[0]):
        value = rows[name]
        if isinstance(value, SparseRows):
            origins.append(Origin(name))
            inputs.append(constant_of(value, origins[-1]))
        else:
            inputs.append(Constant(value, is_private=True))
    return inputs, origins


def _inputs_of_latents(
    graph: ModelGraph, latents: Latents
) -> tuple[dict[str, Value], dict[str, str]]:
    """The latents by name, in the order of the program, and why some are opaque."""
    inputs: dict[str, Value] = {}
    failures: dict[str, str] = {}
    for name in sorted(graph.program_inputs[1]):
        latent = latents[name]
        if graph.sites[name].is_discrete and latent.states is None:
            failures[name] = "a discrete latent without finitely many known states"
            inputs[name] = Opaque(failures[name], {name}, latent.shape)
        else:
            signed = supports.bounds(latent.support)[0] < 0
            inputs[name] = forms.latent(
                name, latent.shape, latent.states, signed=signed
            )
    return inputs, failures


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
    if _checked(output) and lowest >= 0:
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
    shared = [
        _same_array(p.mask, own[0].mask) and _same_array(p.scale, own[0].scale)
        for p in mine
    ]
    if not all(shared):
        # One copy whose observation is weighted is what the log joint says it is.
        if own[0].scale is not None:
            others = ", ".join(sorted({repr(p.site) for p in mine} - {repr(site.name)}))
            raise NotInAlgebra(
                f"a scale that {site.name!r} and {others} do not share; put them under "
                "the same scale and mask"
            )
        return None
    one = forms.broadcast(forms.as_form(1.0), tuple(map(Label, site.shape)))
    factors = [f for f in (own[0].mask, own[0].scale) if f is not None]
    return auxiliary_weight(one, factors, len(site.shape))


def _same_array(a: Form | None, b: Form | None) -> bool:
    """Whether masks or scales are the same array in the traced program."""
    if a is None or b is None:
        return a is b
    return len(a.terms) == len(b.terms) and all(
        x.scale == y.scale
        and len(x.factors) == len(y.factors)
        and all(map(same_constant, *([f.array for f in t.constants] for t in (x, y))))
        for x, y in zip(a.terms, b.terms, strict=True)
    )


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
    about = f" ({', '.join(map(repr, sorted(latents)))})" if latents else ""
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


def _all_valid(densities: Sequence[SiteLogDensity], checks: list[Any]) -> Any:
    """Whether everything that the row brings is finite, in range and in support."""
    results = [jnp.all(check) for check in checks]
    seen: list[tuple[Any, int | None]] = []
    terms = [t for density in densities if density.is_row for t in density.form.terms]
    for factor in (f for term in terms for f in term.constants if f.is_private):
        array = factor.array
        size = factor.target.size if isinstance(factor, OneHot) else None
        if any(size == other and same_constant(array, x) for x, other in seen):
            continue
        seen.append((array, size))
        if size is not None:
            results.append(jnp.all((array >= 0) & (array < size)))
        elif jnp.issubdtype(array.dtype, jnp.floating):
            results.append(jnp.all(jnp.isfinite(array)))
    return functools.reduce(jnp.logical_and, results, jnp.ones((), bool))
