"""Latents of a row that are conjugate once the globals are given.

DPVI draws the globals. To a row they are then data like its own, and whatever function
of them the model writes is a constant. What is left are the row's own latents; if these
are conjugate, the E-step of the conjugacy layer finds

    max over q of  E_q[log p(row, latents of the row | globals)] + entropy of q.

That is log p(row | globals) itself where the posterior of the row's latents is in the
family, and the best bound of the family elsewhere. Its gradient in the globals is taken
at the q found, held fixed: q is at its best, so to first order moving it changes
nothing. Every row is solved anew in every step, and nothing of it is kept.

A bound is looser the less is known of the latents, and so it pulls the globals to where
they matter less: the scale of what a test measures came out at a quarter of its size.
Where it is a bound, of one or two real latents, it only says where they lie, and the
integral over them is taken by quadrature.

Next to these, discrete latents of the row are summed out one joint state after the
other, with a bound in each; only where they have too many does the layer have them too.
Those of a chain alone are summed out by its messages, and derivatives are exact, of any
order.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float, Shaped

from numpyro_vips.conjugacy.structure.log_joint import symbolic_log_joint
from numpyro_vips.conjugacy.structure.posterior_factors import (
    PosteriorFactor,
    are_summed_exactly,
)
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.dpvi.row_latents.quadrature import (
    NUM_NODES,
    log_integral,
    num_coordinates,
)
from numpyro_vips.errors import NotConjugateError
from numpyro_vips.jax_tools.double_precision import trace_in_double
from numpyro_vips.jax_tools.jaxprs import without_dead_code
from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.jax_tools.random_keys import threefry_key
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.handler_stack import unvalidated
from numpyro_vips.model.log_density import (
    MAX_JOINT_STATES,
    num_joint_states,
    row_log_density,
    site_log_density,
)
from numpyro_vips.model.synthetic.prior_centre import initial_params
from numpyro_vips.model.synthetic.synthetic_rows import (
    synthetic_latents,
    synthetic_rows,
)
from numpyro_vips.model.trace import site_outputs
from numpyro_vips.vips.compile.certificate import row_and_validity
from numpyro_vips.vips.e_step.e_step import DEFAULT_LOCAL_SWEEPS, local_factors
from numpyro_vips.vips.e_step.evidence_bound import row_bound_at
from numpyro_vips.vips.program.named_arrays import LocalFactor
from numpyro_vips.vips.program.program import ConjugateProgram, program_of

Method = Literal["exact", "quadrature", "bound"]

_CERTIFIED_ROWS = 8
_TOLERANCE = 1e-7


class ConjugateLocals:
    """A row's log density, or a bound on it, with its latents solved for.

    Attributes:
      solved: Names of the latents that the layer solves for.
      sums_by_messages: Whether all latents are discrete, and summed over exactly.
      method: What of it stands for log p(row | globals): it is `"exact"`, only a
        `"bound"`, or the middle of the nodes of a `"quadrature"`.
    """

    def __init__(
        self,
        graph: ModelGraph,
        *,
        sweeps: int | None = None,
        lists_states: bool = True,
    ) -> None:
        """Compiles and certifies the rows' latents; no private value is read.

        Args:
          graph: A model with latents of single rows.
          sweeps: Over a row's latents where they act on each other.
          lists_states: Whether joint states of discrete latents are listed, if they
            are few, and summed over one by one.

        Raises:
          NotConjugateError: They are not conjugate given the globals, with the reasons.
        """
        count = num_joint_states(graph)
        is_few = count is not None and count <= MAX_JOINT_STATES
        is_enumerated = lists_states and is_few
        self.solved = tuple(
            site.name
            for site in graph.latents("local")
            if not (site.is_discrete and is_enumerated)
        )
        self._graph = graph
        self._sweeps = sweeps or DEFAULT_LOCAL_SWEEPS
        self._sites = _sites_with(graph, self.solved)
        for name in self._sites:
            if graph.sites[name].distributed.kind is dist.Unit:
                raise NotConjugateError({name: "a numpyro.factor of latents of a row"})
        self._in_single = self._compiled()
        structure = self._in_single.structure
        self.method = _method(structure)
        self.sums_by_messages = are_summed_exactly(
            list(structure.posterior_factors_of("local"))
        )
        with double_precision():
            self._in_double = self._compiled()
            self._certify(self._in_double)

    def __call__(
        self,
        values: Mapping[str, Float[Array, "..."]],
        row: Mapping[str, Any],
        params: Mapping[str, Any],
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        """The bound, and whether the row may count.

        Args:
          values: The globals.
          row: One row of every private argument.
          params: The parameters without a prior.
        """
        graph = self._graph
        is_double = jnp.result_type(float) == jnp.float64
        program = self._in_double if is_double else self._in_single
        # Their values are not read by what is left to NumPyro.
        anything = {
            name: jnp.ones(graph.sites[name].shape, graph.sites[name].dtype)
            for name in self.solved
        }

        def rest(
            latents: Mapping[str, Any],
        ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
            given = _given(row, latents, params, self.solved)
            if self.sums_by_messages:
                return _log_sum(program, given, self._sweeps)
            fixed = jax.lax.stop_gradient(given)
            # For an integral of its own only the place is needed.
            factors = local_factors(
                program,
                {},
                fixed,
                self._sweeps,
                by_quadrature=self.method != "quadrature",
            )
            factors = jax.lax.stop_gradient(factors)
            if self.method != "quadrature":
                bound, is_valid = row_bound_at(program, {}, given, factors)
                is_valid = is_valid & _is_exact(factors) if is_double else is_valid
                return bound, is_valid

            def density(
                mine: Mapping[str, Any],
            ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
                known = {**latents, **mine}
                return row_log_density(graph, known, row, params, self._sites)

            _, is_valid = program.row_constants(given)
            total, in_support = log_integral(
                density, _of_model(program.structure), factors
            )
            return total, in_support & is_valid

        others = set(graph.sites) - set(self._sites)
        latents = {**values, **anything}
        return row_log_density(graph, latents, row, params, others, rest)

    def _compiled(self) -> ConjugateProgram:
        """The program of a row and the globals, in the current precision."""
        graph = _given_globals(self._graph, self.solved, self._sites)
        rows, _ = graph.program_inputs
        # The globals come from a guide, and are legal up to rounding.
        found = symbolic_log_joint(graph, rows, check_parameters=False)
        return program_of(graph, *found)

    def _certify(self, program: ConjugateProgram) -> None:
        """Compares with NumPyro's log density where the row's latents are a point."""
        graph = self._graph
        params = initial_params(graph, threefry_key(0))

        def numpyros(row: Any, latents: Any) -> Float[Array, ""]:
            rows = {name: value[None] for name, value in row.items()}
            messages = graph.run(rows, latents, params=params)
            with unvalidated():
                densities = [site_log_density(messages[name]) for name in self._sites]
            return sum(densities, jnp.zeros(()))

        def compiled(
            row: Any, latents: Any
        ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
            given = _given(row, latents, params, self.solved)
            locals_ = {name: latents[name] for name in self.solved}
            return row_and_validity(program, given, locals_)

        compared = 0
        programs: Any = None
        rows = _certified_rows(graph)
        for number, row in enumerate(rows):
            latents = synthetic_latents(graph, 1, seed=number)
            if programs is None:
                programs = [
                    trace_in_double(f, row, latents) for f in (numpyros, compiled)
                ]
            expected, (found, is_valid) = (
                program(row, latents) for program in programs
            )
            # Unusual rows may be no observations. Of the others the densities agree
            # even where they lie outside the support.
            is_usual = number < len(rows) // 2
            if not ((is_usual or is_valid) and np.isfinite(expected)):
                continue
            compared += 1
            if not abs(found - expected) <= _TOLERANCE * (1 + abs(expected)):
                raise NotConjugateError(
                    {
                        "certificate": "the compiled log density of a synthetic row is "
                        f"{found:.6g}, and NumPyro's is {expected:.6g}"
                    }
                )
        if not compared:
            reason = "the log density of no synthetic row is finite"
            raise NotConjugateError({"certificate": reason})


# By how much the bound on a row may be rounded, in nats.
_MOST_ROUNDED = 1.0


def _is_exact(factors: Mapping[str, LocalFactor]) -> Bool[Array, ""]:
    """Whether the bound on a row is more than what rounding leaves of it.

    Where a latent is known far better than it is large, its terms cancel: at a scale of
    1e-20 what is left is noise, and may be above all else. Fits without noise look for
    the largest value, and in double precision.
    """
    size = jnp.zeros(())
    for moments, natural in factors.values():
        for name in natural.keys() & moments.keys():
            size += jnp.sum(jnp.abs(natural[name] * moments[name]))
    return jnp.finfo(size.dtype).eps * size <= _MOST_ROUNDED


def _log_sum(
    program: ConjugateProgram, given: Mapping[str, Any], sweeps: int
) -> tuple[Float[Array, ""], Bool[Array, ""]]:
    """The logarithm of the sum over a chain's states, and whether the row may count.

    With q exact the bound is log Z(η) + ⟨terms − η, q⟩, where η are the natural
    parameters of q and the terms' own coefficients. The second part is zero, whatever q
    is held fixed at. So what is left is log Z(η), with all of its derivatives.
    """
    factors = {
        name: (jax.lax.stop_gradient(moments), natural)
        for name, (moments, natural) in local_factors(
            program, {}, given, sweeps
        ).items()
    }
    return row_bound_at(program, {}, given, factors)


def _of_model(structure: Structure) -> dict[str, PosteriorFactor]:
    """The factors of latents of the model, not of auxiliary variables."""
    return {
        factor.name: factor
        for factor in structure.posterior_factors_of("local")
        if structure.latents[factor.latents[0]].family is None
    }


def _method(structure: Structure) -> Method:
    factors = _of_model(structure)
    if len(structure.posterior_factors_of("local")) == 1:
        return "exact"
    gaussian = all(factor.layout is not None for factor in factors.values())
    is_small = num_coordinates(factors) <= max(NUM_NODES)
    return "quadrature" if gaussian and is_small else "bound"


def _sites_with(graph: ModelGraph, solved: Collection[str]) -> list[str]:
    """The sites under the unit plate in which any of some latents occurs."""
    found = []
    for name, site in graph.sites.items():
        if site.row_axis is None:
            continue
        _, latents = graph.read_for(lambda other, _, name=name: other == name)
        if name in solved or latents & set(solved):
            found.append(name)
    return found


# --- the globals as data of the row ---------------------------------------------------


def _given(
    row: Mapping[str, Any],
    latents: Mapping[str, Any],
    params: Mapping[str, Any],
    solved: Collection[str],
) -> dict[str, Any]:
    """What the conditional program takes for a row, in one flat dictionary."""
    given = {f"row {name}": value for name, value in row.items()}
    for name, value in latents.items():
        if name not in solved:
            given[f"latent {name}"] = value
    for number, leaf in enumerate(jax.tree.leaves(dict(params))):
        given[f"param {number}"] = leaf
    return given


def _given_globals(
    graph: ModelGraph, solved: Collection[str], sites: Collection[str]
) -> ModelGraph:
    """The model's graph with all but some latents of a row as data of the row."""
    params = initial_params(graph, threefry_key(0))
    structure = jax.tree.structure(params)
    shapes = graph.arguments.row_shapes()
    row = {name: _abstract(x.shape, x.dtype) for name, x in shapes.items()}
    latents = {
        site.name: _abstract(site.shape, site.dtype)
        for site in graph.sites.values()
        if site.is_latent
    }
    given = {
        name: jax.ShapeDtypeStruct((1, *x.shape), x.dtype)
        for name, x in _given(
            row,
            latents,
            jax.tree.map(lambda x: _abstract(x.shape, x.dtype), params),
            solved,
        ).items()
    }
    mine = {name: latents[name] for name in solved}

    def program(given: Mapping[str, Any], mine: Mapping[str, Any]) -> dict[str, Any]:
        rows = {name: given[f"row {name}"] for name in row}
        values = {
            name: given[f"latent {name}"][0] for name in latents if name not in solved
        }
        leaves = [given[f"param {i}"][0] for i in range(structure.num_leaves)]
        params = jax.tree.unflatten(structure, leaves)
        messages = graph.run(rows, {**values, **mine}, params=params)
        outputs = {}
        for name in sites:
            _, outputs[name] = site_outputs(messages[name])
            if graph.sites[name].is_latent and name not in solved:
                outputs[name]["value"] = values[name]
        return outputs

    closed, outputs = jax.make_jaxpr(program, return_shape=True)(given, mine)

    def kept(name: str) -> Any:
        site = graph.sites[name]
        return site if name in solved else dataclasses.replace(site, role="observed")

    return dataclasses.replace(
        graph,
        sites={name: kept(name) for name in sites},
        program=without_dead_code(closed),
        program_outputs=outputs,
        program_inputs=(given, mine),
        params={},
    )


def _abstract(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    """An array of this kind, floats in the current precision."""
    if jnp.issubdtype(dtype, jnp.floating):
        dtype = jnp.result_type(float)
    return jax.ShapeDtypeStruct(shape, dtype)


def _certified_rows(graph: ModelGraph) -> list[dict[str, Shaped[np.ndarray, "..."]]]:
    """Usual rows, then as many with numbers of either sign, which may choose others."""
    arguments = graph.arguments
    usual = synthetic_rows(arguments, _CERTIFIED_ROWS, 0, dtype=np.dtype(np.float64))
    rows = [
        # A number of a row is an array, too.
        {name: np.asarray(values[i]) for name, values in usual.items()}
        for i in range(_CERTIFIED_ROWS // 2)
    ]
    rng = np.random.default_rng(0)
    for _ in range(_CERTIFIED_ROWS - len(rows)):
        row = {}
        for name, like in arguments.row_shapes().items():
            drawn = rng.normal(0.0, 2.0, like.shape)
            if not np.issubdtype(like.dtype, np.floating):
                drawn = rng.integers(0, 3, like.shape).astype(like.dtype)
            row[name] = np.asarray(drawn)
        rows.append(row)
    return rows
