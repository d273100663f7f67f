"""From a traced model to what DPVI runs: its layout, its gradients, its information."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64

from numpyro_vips.dpvi.checks import check_derivatives
from numpyro_vips.dpvi.compared_globals import compared_globals
from numpyro_vips.dpvi.feature_columns import FeatureColumns, rows_of_all_sizes
from numpyro_vips.dpvi.gradients.clipped_gradients import Redraw, RowGradients
from numpyro_vips.dpvi.gradients.elbo import PublicElbo
from numpyro_vips.dpvi.gradients.prior_coordinates import prior_coordinates
from numpyro_vips.dpvi.gradients.redrawn_rows import redrawing
from numpyro_vips.dpvi.gradients.released_leaves import ReleasedLeaves
from numpyro_vips.dpvi.gradients.silent_directions import (
    SilentDirections,
    silent_directions,
)
from numpyro_vips.dpvi.guides.automatic_guides import GuideFamily, NormalGuide
from numpyro_vips.dpvi.guides.late_globals import late_globals, waiting_coordinates
from numpyro_vips.dpvi.guides.public_ranges import public_ranges
from numpyro_vips.dpvi.guides.unconstrained import UnconstrainedSpace
from numpyro_vips.dpvi.iterates import Variational
from numpyro_vips.dpvi.posterior.full_batch import FullBatchDensity
from numpyro_vips.dpvi.posterior.kinks import hides_information
from numpyro_vips.dpvi.posterior.noise_aware import MOST_INFORMED, NoiseAware
from numpyro_vips.dpvi.posterior.row_information import Point, RowInformation
from numpyro_vips.dpvi.program import DpviProgram, GradientInputs, ProgramOptions
from numpyro_vips.dpvi.unconstrained_elbo import (
    UnconstrainedElbo,
    may_know_noise,
    unconstrained_elbo,
)
from numpyro_vips.dpvi.units_of_globals import moderate_scales
from numpyro_vips.dpvi.units_of_rows import UnitsOfRows
from numpyro_vips.jax_tools.compared_maxima import with_compared_maxima
from numpyro_vips.jax_tools.jaxprs import with_used_inputs
from numpyro_vips.jax_tools.random_keys import threefry_key
from numpyro_vips.model.facts.loops_of_rows import ProgramOfRows
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.refused_sites import nothing_said
from numpyro_vips.model.synthetic.prior_centre import units_of_prior
from numpyro_vips.model.synthetic.synthetic_rows import (
    rows_of_encodings,
    with_large_floats,
)
from numpyro_vips.privacy.gaussian_mechanism import Block

# Synthetic rows on which directions of which rows say nothing are looked for.
_SILENT_ROWS = 2048
# Those on which kinks of their density are.
_KINKED_ROWS = 64
# And those on which curvatures are looked at.
_CURVED_ROWS = 64


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FirstCoordinates:
    """The coordinates in which gradients are taken until a pilot has found others.

    Attributes:
      of_prior: What they are multiplied with to give the globals that rows depend on,
        see `prior_coordinates`.
      of_rows: What rows say of the globals' units.
      columns: Of features that globals are coefficients of.
    """

    of_prior: Float64[np.ndarray, "read read"]
    of_rows: UnitsOfRows
    columns: FeatureColumns


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CompiledModel:
    """What runs on rows, and the public program beside it.

    Attributes:
      program: The layout, and all that is public of a step.
      read: Names of the globals that observations depend on.
      compared: Those of them without a gradient, see `compared_globals`.
      released: What a step releases, in order.
      row_gradients: The clipped sum of it over rows.
      programs_of_rows: What runs on each of them: its gradient, and that beside a
        redrawn row's where there is one.
      noise_aware: The release for intervals; None where the guide stays as it is.
      first_coordinates: Those of the gradients at first; None where these stay in the
        globals' own units, as where the caller's optimiser or norms are for them.
      log_joint: The density of all rows, for fits without noise.
    """

    program: DpviProgram
    read: tuple[str, ...]
    compared: tuple[str, ...]
    released: tuple[ReleasedLeaves, ...]
    row_gradients: RowGradients
    programs_of_rows: tuple[ProgramOfRows, ...]
    noise_aware: NoiseAware | None
    first_coordinates: FirstCoordinates | None
    log_joint: FullBatchDensity


def compile_model(
    graph: ModelGraph,
    guide: GuideFamily | Callable[..., Any],
    options: ProgramOptions,
    *,
    local_steps: int | None,
) -> CompiledModel:
    """Traces the model on a single synthetic row; no private value is read.

    Args:
      graph: The model.
      guide, options, local_steps: As `DpviEngine` describes them.

    Raises:
      UnsafeModelError: No observation depends on a latent, or for the reason that
        `find_locals_of_rows` gives, or because the guide does not fit the model.
    """
    elbo = unconstrained_elbo(graph, guide, options, local_steps)
    reads_site, reads_param = _reads(elbo.of_synthetic_row, elbo.centres, elbo.params)
    if not any(jax.tree.leaves((reads_site, reads_param))):
        raise nothing_said(graph.unit)
    # What no observation depends on goes last, beyond what is released.
    sites = sorted(elbo.sites, key=lambda site: not reads_site[site.name])
    elbo = dataclasses.replace(elbo, sites=tuple(sites))
    read = UnconstrainedSpace(sites=tuple(s for s in elbo.sites if reads_site[s.name]))
    program = _program(graph, guide, options, elbo, read)
    names = tuple(site.name for site in read.sites)
    released = _released(program, names, reads_param)
    free = program.space.split(np.asarray(program.start))
    traced = jax.make_jaxpr(elbo)(free, elbo.params, elbo.row, threefry_key(0))
    is_noise_aware = (
        may_know_noise(graph, guide, options)
        and read.size > 0
        and program.space.size <= MOST_INFORMED
    )
    columns = _columns(program, elbo, traced, read) if is_noise_aware else None
    redraw = redrawing(graph, program.space) if is_noise_aware else None
    row_gradients, of_rows = _row_gradients(program, traced, released, redraw)
    return CompiledModel(
        program=program,
        read=names,
        compared=compared_globals(traced, free, names),
        released=tuple(released),
        row_gradients=row_gradients,
        programs_of_rows=of_rows,
        noise_aware=None
        if columns is None
        else _noise_aware(program, elbo, traced, read, columns),
        first_coordinates=None
        if columns is None or options.has_own_optimizer or options.has_norms
        else _first_coordinates(program, elbo, traced, read, columns),
        log_joint=FullBatchDensity(
            lambda free, row: elbo(free, {}, row, threefry_key(0)),
            lambda z: program.public_elbo.log_prior(z, {}),
            program.space,
        ),
    )


def _program(
    graph: ModelGraph,
    guide: GuideFamily | Callable[..., Any],
    options: ProgramOptions,
    elbo: UnconstrainedElbo,
    read: UnconstrainedSpace,
) -> DpviProgram:
    """The layout of the globals, the guide in it, and all that is public of a step.

    Args:
      graph, guide, options: See `compile_model`.
      elbo: With the globals in the order of the layout.
      read: Those that observations depend on, which come first.
    """
    space = elbo.space
    start = _flat(space, elbo.centres)
    start = np.where(np.isfinite(start), start, 0.0)
    start = jax.device_put(np.asarray(start, jnp.result_type(float)))
    prior_scale = _flat(space, elbo.scales)
    reach = units_of_prior(_flat(space, moderate_scales(elbo.scales, elbo.logarithms)))
    normal_guide = None
    late: frozenset[str] = frozenset()
    if not callable(guide):
        if not (options.takes_newton_steps or options.has_own_optimizer):
            late = late_globals(read.sites, elbo.centres, elbo.at_values)
        num_rows = graph.arguments.public_num_rows
        normal_guide = NormalGuide(space, guide, num_rows=num_rows)
    user_guide = elbo.row_elbo.user_guide
    used_guide = user_guide if normal_guide is None else normal_guide
    assert used_guide is not None
    return DpviProgram(
        graph=graph,
        options=options,
        space=space,
        start=start,
        prior_scale=prior_scale,
        reach=reach.astype(start.dtype),
        ranges=public_ranges(space, start),
        is_late=waiting_coordinates(space.sites, late),
        guide=normal_guide,
        user_guide=user_guide,
        locals_of_rows=elbo.row_elbo.locals_of_rows,
        row_elbo=elbo.row_elbo,
        public_elbo=PublicElbo(
            graph, space, used_guide, is_analytic=options.is_analytic
        ),
        constraints=elbo.constraints,
        row=elbo.row,
    )


def _flat(
    space: UnconstrainedSpace, values: Mapping[str, Any]
) -> Float[np.ndarray, " size"]:
    """Values by name as one vector, in the layout's order."""
    return np.concatenate(
        [np.zeros(0), *(np.ravel(values[site.name]) for site in space.sites)]
    )


def _row_gradients(
    program: DpviProgram,
    traced: jex_core.ClosedJaxpr,
    released: Sequence[ReleasedLeaves],
    redraw: Redraw | None,
) -> tuple[RowGradients, tuple[ProgramOfRows, ...]]:
    """The clipped sum of what a step releases, whose derivatives are checked.

    With it come the programs of which they are.

    Args:
      program: The model's layout.
      traced: A row's ELBO in globals, parameters, row and key.
      released: What a step releases.
      redraw: Draws rows anew, where they can be.
    """
    found = RowGradients(
        traced,
        released,
        num_particles=program.options.num_particles,
        arguments=None if program.perturbs_location else program.arguments,
        redraw=redraw,
    )
    key = threefry_key(0)
    inputs = GradientInputs(program.initial(key), *program.draws(key, np.int32(0)))
    shared = jax.eval_shape(program.shared, inputs)
    functions: list[tuple[Any, Any]] = [(found.of_row, program.row)]
    if found.of_pair is not None:
        functions.append((found.of_pair, (program.row, np.zeros(2, np.uint32))))
    programs: list[ProgramOfRows] = []
    for function, row in functions:
        checked = check_derivatives(
            function,
            shared,
            row,
            density=traced,
            arguments=program.graph.arguments,
            what="model or guide",
        )
        public, own = len(jax.tree.leaves(shared)), len(jax.tree.leaves(program.row))
        of_row = [public <= n < public + own for n in range(len(checked.in_avals))]
        programs.append(ProgramOfRows(checked, of_row))
    return found, tuple(programs)


def _released(
    program: DpviProgram, read: Sequence[str], reads_param: Any
) -> list[ReleasedLeaves]:
    """What a step releases.

    Args:
      program: The model's layout.
      read: Names of the globals that observations depend on, in order.
      reads_param: The same of every parameter, by leaf.
    """
    variational = program.initial(threefry_key(0))
    free = program.space.split(np.asarray(program.start))
    num_read = sum(math.prod(free[name].shape) for name in read)
    if not program.perturbs_location and program.user_guide is not None and num_read:

        def density(variational: Variational) -> Float[Array, ""]:
            (draw,) = jax.random.split(threefry_key(0), 1)
            z = program.value(variational, draw)
            values = program.space.constrain(z)[0]
            params = program.constrained(variational.params)
            return program.row_elbo(values, params, program.row, threefry_key(0))[0]

        reads_param = _reads(density, variational)[0].params
    reads = iter(jax.tree.leaves(reads_param))
    tree = program.tree(variational, np.asarray(program.start))
    leaf_of, released = {}, []
    for leaf, (path, array) in enumerate(jax.tree.leaves_with_path(tree)):
        if path[0].idx == 0:
            leaf_of[path[1].key] = leaf, array.shape
        elif next(reads):
            keys = (jax.tree_util.keystr((k,), simple=True) for k in path[1:])
            block = Block(name="param " + "/".join(keys), shape=array.shape)
            released.append(ReleasedLeaves(block, (leaf,)))
    if not num_read:
        return released
    if program.perturbs_location:
        leaves = tuple(leaf_of[name][0] for name in read)
        return [ReleasedLeaves(Block(name="loc", shape=(num_read,)), leaves), *released]
    of_guide = [
        ReleasedLeaves(
            Block(name=name, shape=(num_read, *shape[1:])), (leaf,), num_read
        )
        for name, (leaf, shape) in leaf_of.items()
    ]
    return [*of_guide, *released]


def _noise_aware(
    program: DpviProgram,
    elbo: UnconstrainedElbo,
    traced: jex_core.ClosedJaxpr,
    read: UnconstrainedSpace,
    columns: FeatureColumns,
) -> NoiseAware:
    """What makes the posterior know of the noise, see `may_know_noise`.

    Args:
      program: The model's layout.
      elbo: With the globals in the order of the layout.
      traced: A row's ELBO in globals, parameters, row and key.
      read: The globals that observations depend on.
      columns: Of features that they are coefficients of.
    """
    space, num_read = program.space, read.size

    def inputs(point: Point, row: Mapping[str, Any]) -> list[Any]:
        return jax.tree.leaves((space.split(point), row, threefry_key(0)))

    globals_in_program = jax.tree.leaves(space.split(np.asarray(program.start)))
    solved = program.locals_of_rows
    information = RowInformation(
        with_compared_maxima(traced),
        inputs,
        num_read=num_read,
        has_second_derivative=(solved is None or solved.sums_by_messages)
        and not hides_information(
            traced,
            len(globals_in_program),
            inputs,
            program.start,
            lambda: with_large_floats(
                elbo.rows_with_codes(read.sites, _KINKED_ROWS, traced)
            ),
        ),
    )
    check_derivatives(
        information.of_row,
        (program.start, np.eye(num_read, dtype=program.start.dtype)),
        program.row,
        density=traced,
        arguments=program.graph.arguments,
        what="model",
    )
    return NoiseAware(
        information,
        log_prior=lambda z: program.public_elbo.log_prior(z, {}),
        space=space,
        prior_stddev=program.prior_scale,
        silent=_silent(elbo, traced, read),
        linear=columns.linear,
    )


def _first_coordinates(
    program: DpviProgram,
    elbo: UnconstrainedElbo,
    traced: jex_core.ClosedJaxpr,
    read: UnconstrainedSpace,
    columns: FeatureColumns,
) -> FirstCoordinates:
    """Returns the coordinates that the prior suggests, and what synthetic rows say of
    units; see `_noise_aware`."""
    sites = program.space.sites
    return FirstCoordinates(
        of_prior=prior_coordinates(
            lambda z: program.public_elbo.log_prior(z, {}),
            program.start,
            np.repeat(
                [site.is_real for site in sites],
                [site.size for site in sites],
            ),
            read.size,
        ),
        of_rows=UnitsOfRows.of_model(
            elbo.of_row,
            traced,
            elbo.centres,
            read=read,
            widest=moderate_scales(elbo.scales, elbo.logarithms),
            coefficients=columns.coefficients,
            rows=lambda: elbo.rows_with_codes(read.sites, _CURVED_ROWS, traced),
        ),
        columns=columns,
    )


def _columns(
    program: DpviProgram,
    elbo: UnconstrainedElbo,
    traced: jex_core.ClosedJaxpr,
    read: UnconstrainedSpace,
) -> FeatureColumns:
    """The columns of features of the model's rows; see `_noise_aware`."""

    def inputs(place: Mapping[str, Any], row: Mapping[str, Any]) -> list[Any]:
        return jax.tree.leaves((dict(place), row, threefry_key(0)))

    # In NumPy, where splitting compiles nothing.
    place = program.space.split(np.asarray(program.start))
    found = FeatureColumns(
        traced,
        inputs,
        read,
        place,
        rows_of_all_sizes(elbo.rows_with_codes(read.sites, _CURVED_ROWS, traced)),
        program.graph.arguments.encodings.keys(),
    )
    if found.groups:
        check_derivatives(
            found.of_row,
            place,
            program.row,
            density=traced,
            arguments=program.graph.arguments,
            what="model",
        )
    return found


def _silent(
    elbo: UnconstrainedElbo, traced: jex_core.ClosedJaxpr, read: UnconstrainedSpace
) -> SilentDirections:
    """Directions in which synthetic rows have no gradient; see `silent_directions`."""
    rows = with_large_floats(elbo.rows_with_codes(read.sites, _SILENT_ROWS, traced))
    number = len(next(iter(rows.values())))
    encoded = rows_of_encodings(elbo.row_elbo.graph.arguments, number, "any")
    return silent_directions(
        elbo.of_row,
        traced,
        read.sites,
        {site.name: elbo.centres[site.name] for site in read.sites},
        rows | encoded,
        is_encoded=bool(encoded),
    )


def _reads(function: Callable[..., Any], *arguments: Any) -> Any:
    """For every leaf of the arguments, whether the function's value depends on it."""
    _, used = with_used_inputs(jax.make_jaxpr(function)(*arguments))
    return jax.tree.unflatten(jax.tree.structure(arguments), used)
