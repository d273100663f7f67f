"""The model's log joint density as symbolic forms, one per site.

The model's program is interpreted once, on one row without values: no rule looks at a
private value. What rows bring is then a program of its own, see `row_constants`, and
the forms are data: `structure` sees in them which statistics occur, and what runs on
rows evaluates them.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import (
    Dense,
    Label,
    NotInAlgebra,
    OneHot,
    Origin,
    same_constant,
)
from numpyro_vips.conjugacy.densities import logistic_bounds
from numpyro_vips.conjugacy.families import supports
from numpyro_vips.conjugacy.interpreter.entries import constant_of
from numpyro_vips.conjugacy.interpreter.interpreter import interpret
from numpyro_vips.conjugacy.interpreter.values import Constant, Opaque, Value, as_form
from numpyro_vips.conjugacy.structure.augmentation import auxiliary_weight
from numpyro_vips.conjugacy.structure.latents import Latents, model_latents
from numpyro_vips.conjugacy.structure.row_constants import RowConstants, with_slots
from numpyro_vips.conjugacy.structure.row_validity import (
    all_valid,
    legal_parameters,
    observed_part,
)
from numpyro_vips.conjugacy.structure.site_densities import (
    SiteLogDensity,
    is_checked,
    symbolic_site_density,
)
from numpyro_vips.model.graph import ModelGraph, Site
from numpyro_vips.model.sparse_rows import SparseRows, dense_rows


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
                checks += legal_parameters(site.distributed, output["parameters"])
            density, auxiliaries, more = symbolic_site_density(
                site, value, output, latents, augmentation
            )
        except NotInAlgebra as error:
            failures[site.name] = str(error)
            continue
        densities.append(density)
        checks += more
        latents |= {latent.name: latent for latent in auxiliaries}
        if is_checked(output):
            checks.append(observed_part(output))
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
    return found, all_valid(densities, checks)


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
    one = forms.broadcast(forms.number(1.0), tuple(map(Label, site.shape)))
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
