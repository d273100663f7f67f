"""A row's part of the ELBO, as a function of the globals' unconstrained numbers.

Each global is measured from its prior's centre, in units of how far steps go. Effects
of groups that occur in rows only times their scale are represented by these products.
What has to be known of the model before a fit begins is tried out with this function,
on synthetic rows.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import numpy as np
from jaxtyping import Array, Float, Shaped

from numpyro_vips.dpvi.centred_effects import centred_effects
from numpyro_vips.dpvi.gradients.elbo import RowElbo, constrained
from numpyro_vips.dpvi.gradients.trial_gradients import picks_entries
from numpyro_vips.dpvi.guides.automatic_guides import GuideFamily
from numpyro_vips.dpvi.guides.unconstrained import GuideSite, UnconstrainedSpace
from numpyro_vips.dpvi.guides.user_guides import UserGuide
from numpyro_vips.dpvi.logarithmic_globals import logarithmic_globals
from numpyro_vips.dpvi.posterior.noise_aware import MOST_INFORMED
from numpyro_vips.dpvi.program import ProgramOptions, unconstrained_params
from numpyro_vips.dpvi.row_latents.locals_of_rows import find_locals_of_rows
from numpyro_vips.dpvi.units_of_globals import moderate_scales, unit_of
from numpyro_vips.jax_tools.double_precision import (
    evaluate_in_double,
    evaluate_in_numpy,
)
from numpyro_vips.jax_tools.index_ranges import indices_in_range
from numpyro_vips.jax_tools.random_keys import threefry_key
from numpyro_vips.model.graph import ModelGraph, Site
from numpyro_vips.model.synthetic.prior_centre import (
    WIDE_LOGARITHM,
    global_values,
    unconstrained_scale,
)
from numpyro_vips.model.synthetic.synthetic_rows import rows_with_codes, synthetic_row

# Synthetic rows on which it is tried whether effects are known only times their scale.
_PRODUCT_ROWS = 256


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class UnconstrainedElbo:
    """A row's part of the ELBO, as a function of numbers without constraints.

    Attributes:
      row_elbo: The same as a function of values.
      sites: The globals.
      centres, scales: Of their priors, by name, unconstrained.
      logarithms: Names of those with wide priors whose exponential is taken, see
        `logarithmic_globals`.
      params: The parameters without a prior, where they start, unconstrained.
      constraints: Of these parameters.
      row: A synthetic row.
    """

    row_elbo: RowElbo
    sites: tuple[GuideSite, ...]
    centres: Mapping[str, Any]
    scales: Mapping[str, Any]
    params: Mapping[str, Any]
    constraints: Mapping[str, Any]
    row: Mapping[str, Any]
    logarithms: frozenset[str] = frozenset()

    @property
    def space(self) -> UnconstrainedSpace:
        """The globals and their layout in flat vectors."""
        return UnconstrainedSpace(sites=self.sites)

    def __call__(self, free: Any, params: Any, row: Any, key: Any) -> Any:
        """The bound, and whether what the row observes lies in the support.

        A row knows effects only times their scale, if they are fitted as such products.
        So it does not matter what the scale is, and none depends on it.
        """
        scales = {x for s in self.sites for x in (s.over, s.correlated_by) if x}
        fixed = {name: self.centres[name] for name in scales}
        values = self.space.values({**free, **fixed})
        return self.row_elbo(values, constrained(params, self.constraints), row, key)

    def of_row(
        self, free: Mapping[str, Any], row: Mapping[str, Any]
    ) -> Float[Array, ""]:
        """The bound at some globals, with others at their centres."""
        return self({**self.centres, **free}, {}, row, threefry_key(0))[0]

    def of_synthetic_row(
        self, free: Mapping[str, Any], params: Any
    ) -> Float[Array, ""]:
        """The bound of the synthetic row."""
        return self(free, params, self.row, threefry_key(0))[0]

    def at_values(self, values: Mapping[str, Any]) -> Float[Array, ""]:
        """The bound of that row at values of some globals, others at their centres."""
        others = self.space.values(self.centres)
        params = constrained(self.params, self.constraints)
        return self.row_elbo({**others, **values}, params, self.row, threefry_key(0))[0]

    def rows_with_codes(
        self,
        sites: Sequence[GuideSite],
        count: int,
        traced: jex_core.ClosedJaxpr | None = None,
    ) -> dict[str, Shaped[np.ndarray, "rows ..."]]:
        """Synthetic rows, some of whose integers number the entries of these globals.

        Those whose indices lie in their arrays; others count as zero in every fit.
        Where groups of two kinds differ in number, a code of the one may be none of the
        other. JAX then takes the last entry, and its derivative in that is zero.

        Args:
          sites: Globals.
          count: About how many rows.
          traced: The bound in globals, parameters, row and key, if it has been traced.
        """
        sizes = {size for site in sites for size in site.shape if size > 1}
        arguments = self.row_elbo.graph.arguments
        rows = rows_with_codes(arguments, count, sorted(sizes))

        def inputs(row: Mapping[str, Any]) -> tuple[Any, ...]:
            return self.centres, self.params, row, threefry_key(0)

        program = traced or jax.make_jaxpr(self)(*inputs(self.row))
        if not picks_entries(program):
            return rows

        def are_in_range(rows: Mapping[str, Any]) -> Any:
            def is_in_range(row: Mapping[str, Any]) -> Any:
                return indices_in_range(program, jax.tree.leaves(inputs(row)))

            return jax.vmap(is_in_range)(rows)

        (kept,) = evaluate_in_numpy(
            jax.make_jaxpr(are_in_range)(rows), *jax.tree.leaves(rows)
        )
        # Of rows that no index suits, indices are as good as any.
        return {n: of[kept] for n, of in rows.items()} if np.any(kept) else rows


def unconstrained_elbo(
    graph: ModelGraph,
    guide: GuideFamily | Callable[..., Any],
    options: ProgramOptions,
    local_steps: int | None,
) -> UnconstrainedElbo:
    """The bound of a model, with the globals in the order of the model.

    Args:
      graph, guide, options, local_steps: See `compiler.compile_model`.
    """
    user_guide = UserGuide(guide, graph) if callable(guide) else None
    locals_of_rows = None
    if user_guide is None:
        locals_of_rows = find_locals_of_rows(graph, sweeps=local_steps)
    row = synthetic_row(graph)
    constraints = dict(graph.params)
    if user_guide is not None:
        constraints = user_guide.constraints | constraints
    sites, centres, scales, priors = _sites(graph)
    elbo = UnconstrainedElbo(
        row_elbo=RowElbo(
            graph=graph,
            user_guide=user_guide,
            locals_of_rows=locals_of_rows,
            is_analytic=options.is_analytic,
        ),
        sites=tuple(sites),
        centres=centres,
        scales=scales,
        params=unconstrained_params(graph, user_guide, constraints, threefry_key(0)),
        constraints=constraints,
        row=row,
    )
    has_units = _has_units(graph, guide, options)
    knows_noise = may_know_noise(graph, guide, options)
    # Marginals of single globals are those of their own numbers.
    if has_units and knows_noise and not options.is_analytic:
        elbo = _with_centred_effects(elbo, priors)
    elbo = dataclasses.replace(elbo, logarithms=_wide_logarithms(elbo))
    return _in_units(elbo) if has_units else elbo


def may_know_noise(graph: ModelGraph, guide: Any, options: ProgramOptions) -> bool:
    """Whether the posterior knows of the noise, if globals are few; else the guide
    stays.

    It stays where gradients in the globals are not what is released, where the caller
    asks for a guide or an iterate as it is, and next to parameters without a prior,
    with which the rows' density changes.
    """
    return (
        isinstance(guide, str)
        and guide != "low_rank"
        and options.perturb == "location"
        and options.averaging is not None
        and not options.takes_newton_steps
        and not graph.params
    )


def _with_centred_effects(
    elbo: UnconstrainedElbo, priors: Mapping[str, Any]
) -> UnconstrainedElbo:
    """The bound with effects of groups times their scale, see `centred_effects`.

    Args:
      elbo: In units of 1.
      priors: Of the globals.
    """

    def density(values: Mapping[str, Any], row: Mapping[str, Any]) -> Float[Array, ""]:
        return elbo.row_elbo(values, {}, row, threefry_key(0))[0]

    found = centred_effects(
        density,
        lambda: jax.make_jaxpr(elbo.of_synthetic_row)(elbo.centres, elbo.params),
        elbo.space,
        priors,
        elbo.centres,
        lambda: elbo.rows_with_codes(elbo.sites, _PRODUCT_ROWS),
    )
    if not found:
        return elbo
    values = evaluate_in_double(elbo.space.values, elbo.centres)
    sites, widths = [], dict(elbo.scales)
    for site in elbo.sites:
        product = found.get(site.name)
        if product is None:
            sites.append(site)
            continue
        sites.append(product.of(site))
        scale = values[product.scale]
        if product.correlated_by and scale.shape != site.shape[-1:]:
            scale = scale[:, None]  # A row of effects for each kind.
        widths[site.name] = widths[site.name] * scale
    return dataclasses.replace(elbo, sites=tuple(sites), scales=widths)


def _wide_logarithms(elbo: UnconstrainedElbo) -> frozenset[str]:
    """See `UnconstrainedElbo.logarithms`; traces nothing where no prior is wide."""
    wide = {name for name, of in elbo.scales.items() if np.any(of > WIDE_LOGARITHM)}
    if not wide:
        return frozenset()
    traced = jax.make_jaxpr(elbo.of_synthetic_row)(elbo.centres, elbo.params)
    return logarithmic_globals(traced, elbo.centres) & wide


def _sites(
    graph: ModelGraph,
) -> tuple[list[GuideSite], dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The globals, with their priors' unconstrained centres and scales, and these."""
    found = global_values(graph)
    sites = [
        _guide_site(site, found.supports[site.name]) for site in graph.latents("global")
    ]
    scales = {s.name: unconstrained_scale(found.priors[s.name]) for s in sites}
    centres = evaluate_in_double(
        lambda: {s.name: s.transform.inv(found.centres[s.name]) for s in sites}
    )
    return sites, centres, scales, found.priors


def _in_units(elbo: UnconstrainedElbo) -> UnconstrainedElbo:
    """The bound as a function of numbers in units of steps; see `unit_of`."""
    moderate, centres = moderate_scales(elbo.scales, elbo.logarithms), elbo.centres
    sites = tuple(
        dataclasses.replace(
            s,
            unit=unit_of(s, moderate[s.name], np.asarray(centres[s.name])),
        )
        for s in elbo.sites
    )
    return dataclasses.replace(
        elbo,
        sites=sites,
        centres={s.name: centres[s.name] / s.units for s in sites},
        scales={s.name: elbo.scales[s.name] / s.units for s in sites},
    )


def _has_units(graph: ModelGraph, guide: Any, options: ProgramOptions) -> bool:
    """Whether globals are in units of how far their steps go.

    Rows' gradients are clipped, and get their noise, in these: a mean whose prior has a
    standard deviation of 50 would be hidden by what its scale adds. Networks stay as
    they are, for a matrix that is scaled is no longer one that is known from its inputs
    and outputs (`factored_gradients.py`).
    """
    return (
        isinstance(guide, str)
        and not options.takes_newton_steps
        and not options.has_own_optimizer
        and graph.num_globals <= MOST_INFORMED
    )


def _guide_site(site: Site, support: Any) -> GuideSite:
    dims: list[str] = []
    if site.plates:
        for axis in range(max(site.plates) + 1):
            dims.append(site.plates.get(axis, f"{site.name}_dim_{axis}"))
    return GuideSite(
        name=site.name, support=support, shape=site.shape, dims=tuple(dims)
    )
