"""A model laid out for DPVI: its globals in flat vectors, the guide, a row's ELBO.

Two points of view of one step meet here: the guide's parameters φ with the parameters θ
that have no prior, which the optimiser moves, and the unconstrained globals z(φ, ε),
in which rows' gradients are taken.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int, PRNGKeyArray, Shaped
from numpyro.distributions import biject_to
from numpyro.distributions.constraints import Constraint

from numpyro_vips.dpvi.gradients.clipped_gradients import Shared
from numpyro_vips.dpvi.gradients.coordinates import Units
from numpyro_vips.dpvi.gradients.elbo import PublicElbo, RowElbo, constrained
from numpyro_vips.dpvi.guides.automatic_guides import NormalGuide
from numpyro_vips.dpvi.guides.public_ranges import PublicRanges
from numpyro_vips.dpvi.guides.unconstrained import UnconstrainedSpace
from numpyro_vips.dpvi.guides.user_guides import UserGuide
from numpyro_vips.dpvi.iterates import Variational
from numpyro_vips.dpvi.options import Perturb
from numpyro_vips.dpvi.row_latents.locals_of_rows import LocalsOfRows
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.jax_tools.quick_compilation import jit_unoptimized
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.synthetic.prior_centre import initial_params

# Numbers, or keys for a user's guide.
StepDraws = Shaped[Array, "particles ..."]


class GradientInputs(NamedTuple):
    """What rows' gradients depend on beside the rows: public, and the same for all.

    Attributes:
      variational: Where gradients are taken.
      key, draws: Those of the step, see `DpviProgram.draws`.
      units: See `Shared`.
    """

    variational: Variational
    key: PRNGKeyArray
    draws: StepDraws
    units: Units | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """The settings of a fit, each as `DpviEngine` describes it.

    Attributes:
      num_particles: Draws from the guide per step.
      perturb: Which gradient is released.
      averaging: How iterates are weighed; None keeps the last one.
      is_analytic: Whether Kullback-Leibler divergences are taken in closed form.
      has_own_optimizer: Whether the caller gave the optimiser.
      has_norms: Whether the caller gave clipping norms, which are in the globals' own
        units.
      takes_newton_steps: Whether the fit is without noise, by Newton's method.
      num_waiting: How many steps, the first ones, late globals wait.
      num_approaching: How many of them are on the way to where the others are.
    """

    num_particles: int
    perturb: Perturb
    averaging: float | None
    is_analytic: bool
    has_own_optimizer: bool
    has_norms: bool
    takes_newton_steps: bool
    num_waiting: int
    num_approaching: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DpviProgram:
    """What a step does besides reading rows; all of it is public.

    Attributes:
      graph: The model.
      options: The settings of the fit.
      space: The globals and their layout in flat vectors; those that no observation
        depends on come last.
      start: The prior's centre, unconstrained.
      prior_scale: Standard deviations of the prior, in the units of `space`.
      reach: How far a step may go in each global, as a factor on the optimiser's.
      ranges: Where iterates are held.
      is_late: Which coordinates wait in the first steps, see `late_globals.py`.
      guide: The Normal on the unconstrained globals; None beside a user's guide.
      user_guide: The guide that the caller gave, if any.
      locals_of_rows: How a row's continuous latents are dealt with, if there are any.
      row_elbo: A row's part of the ELBO.
      public_elbo: The rest of it, which reads no row.
      constraints: Of the parameters without a prior.
      row: A synthetic row.
    """

    graph: ModelGraph
    options: ProgramOptions
    space: UnconstrainedSpace
    start: Float[Array, " size"]
    prior_scale: Float[np.ndarray, " size"]
    reach: Float[np.ndarray, " size"]
    ranges: PublicRanges
    is_late: Bool[np.ndarray, " size"]
    guide: NormalGuide | None
    user_guide: UserGuide | None
    locals_of_rows: LocalsOfRows | None
    row_elbo: RowElbo
    public_elbo: PublicElbo
    constraints: Mapping[str, Constraint]
    row: Mapping[str, Any]

    @property
    def perturbs_location(self) -> bool:
        """Whether gradients in the globals are released, not those in φ."""
        return self.options.perturb == "location"

    def reach_of_step(self, step: Int[Array, ""]) -> Float[Array, " size"]:
        """How far each coordinate of the globals may move in a step, (size,).

        Args:
          step: The step's number. Globals that wait do not move in the first steps.
        """
        if not self.is_late.any():
            return jnp.asarray(self.reach)
        waits = self.is_late & (step < self.options.num_waiting)
        return jnp.where(waits, 0.0, self.reach)

    def constrained(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters without a prior, as the model takes them."""
        return constrained(params, self.constraints)

    def initial(self, rng_key: PRNGKeyArray) -> Variational:
        """The guide at the prior's centre, slightly jittered, and the parameters."""
        guide_key, params_key = two_keys(rng_key)
        arrays = {}
        if self.guide is not None:
            # Steps are as long, so a start farther off would never be left.
            arrays = self.guide.initial(self.start, guide_key, self.reach)
        params = unconstrained_params(
            self.graph, self.user_guide, self.constraints, params_key
        )
        return Variational(guide=arrays, params=params)

    def narrowed(
        self, variational: Variational, units: Float64[np.ndarray, " read"]
    ) -> Variational:
        """A guide that is as many times closer to the start, and as much surer.

        Args:
          variational: A guide near the start, as `initial` makes it.
          units: Factors of the globals that rows depend on; those above 1 count as 1.
        """
        factors = np.ones(self.space.size)
        factors[: len(units)] = np.minimum(units, 1.0)
        loc, log_scale = variational.guide["loc"], variational.guide["log_scale"]
        start = self.start
        narrowed = {
            "loc": start + jnp.asarray(factors, loc.dtype) * (loc - start),
            "log_scale": log_scale + jnp.asarray(np.log(factors), log_scale.dtype),
        }
        return variational._replace(guide={**variational.guide, **narrowed})

    def draws(self, key: PRNGKeyArray, step: Any) -> tuple[PRNGKeyArray, StepDraws]:
        """A step's key, and its ε, one entry per particle.

        These are numbers, or keys for a user's guide.
        """
        return _draws_of_step(
            key,
            step,
            count=self.options.num_particles,
            size=None if self.guide is None else self.guide.num_draws,
            dtype=self.start.dtype,
        )

    def value(
        self, variational: Variational, draw: Shaped[Array, "..."]
    ) -> Float[Array, " size"]:
        """z(φ, ε): the unconstrained globals that a draw stands for."""
        if self.guide is not None:
            return self.guide.value(variational.guide, draw)
        assert self.user_guide is not None
        params = self.constrained(variational.params)
        values = self.user_guide.draw_globals(params, draw).values
        free = {s.name: s.transform.inv(values[s.name]) for s in self.space.sites}
        return self.space.join(free)

    def tree(
        self, variational: Variational, z: Float[Array | np.ndarray, " size"]
    ) -> tuple[Any, Any]:
        """The arrays in which rows' gradients are taken: the globals or φ, and θ."""
        first = self.space.split(z) if self.perturbs_location else variational.guide
        return first, variational.params

    def arguments(
        self, tree: tuple[Any, Any], draw: Shaped[Array, "..."]
    ) -> tuple[Any, Any]:
        """The globals and parameters at a draw, where the tree is (φ, θ)."""
        guide, params = tree
        z = self.value(Variational(guide=guide, params=params), draw)
        return self.space.split(z), params

    def shared(self, inputs: GradientInputs) -> Shared:
        """What the rows of a step need to know, at the step's key and draws."""
        variational, key, draws, units = inputs
        z = self.start
        if self.perturbs_location:
            z = self.value(variational, draws[0])
        return Shared(self.tree(variational, z), draws, key, units)


def unconstrained_params(
    graph: ModelGraph,
    user_guide: UserGuide | None,
    constraints: Mapping[str, Constraint],
    rng_key: PRNGKeyArray,
) -> dict[str, Any]:
    """Every parameter's initial value, unconstrained.

    Raises:
      UnsafeModelError: One has no gradient.
    """
    params = {}
    if user_guide is not None:
        params = user_guide.initial_params(rng_key)
    params |= initial_params(graph, rng_key)
    for name, tree in params.items():
        for leaf in jax.tree.leaves(tree):
            if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
                raise UnsafeModelError(
                    f"The parameter {name!r} has entries of dtype "
                    f"{jnp.result_type(leaf)}, which have no gradient. Use floats."
                )
    return {
        name: jax.tree.map(
            lambda leaf, name=name: jnp.asarray(
                biject_to(constraints[name]).inv(jnp.asarray(leaf)),
                jnp.result_type(float),
            ),
            tree,
        )
        for name, tree in params.items()
    }


@jit_unoptimized
def two_keys(rng_key: PRNGKeyArray) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """`jax.random.split`, which JAX takes four times as long to compile.

    It cannot be called while JAX is tracing.
    """
    first, second = jax.random.split(rng_key)
    return first, second


@functools.partial(jit_unoptimized, static_argnames=("count", "size", "dtype"))
def _draws_of_step(
    key: PRNGKeyArray,
    step: Int[Array, ""],
    *,
    count: int,
    size: int | None,
    dtype: Any,
) -> tuple[PRNGKeyArray, StepDraws]:
    """See `DpviProgram.draws`.

    A generator of random numbers takes long to compile. So it is a program of its own,
    which all that need the draws, and all engines of one size, share.
    """
    key = jax.random.fold_in(key, step)
    if size is None:
        return key, jax.random.split(key, count)
    return key, jax.random.normal(key, (count, size), dtype)
