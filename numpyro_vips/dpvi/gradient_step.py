"""The public side of a step: from noisy sums to the ELBO's gradient, and along it."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Float64

from numpyro_vips.dpvi.compiler import CompiledModel
from numpyro_vips.dpvi.gradients.coordinates import Units
from numpyro_vips.dpvi.gradients.noisy_adam import LEARNING_RATE
from numpyro_vips.dpvi.iterates import DpviState, Variational
from numpyro_vips.dpvi.program import DpviProgram, StepDraws


def stepped(
    compiled: CompiledModel,
    optimizer: optax.GradientTransformation,
    state: DpviState,
    draws: StepDraws,
    released: Mapping[str, Float[Array, "..."]],
    step_size: Any,
    noise_stddev: Any,
) -> DpviState:
    """The state after one step of the optimiser on the negative ELBO.

    Args:
      compiled: The model.
      optimizer: For the negative ELBO, divided by the public number of rows; or, where
        it is the package's own, by the standard deviation of the gradient's noise, if
        there is any.
      state: That before the step.
      draws: The step's ε.
      released: Noisy estimates of the sums over all rows.
      step_size: Factor on the optimiser's update.
      noise_stddev: Of the noise in the gradient in the globals.
    """
    program = compiled.program
    unit = program.graph.arguments.public_num_rows
    if not program.options.has_own_optimizer:
        # The optimiser's averages go back over many steps. With another clipping norm
        # gradients are of another size, but not so in units of their noise.
        unit = jnp.where(noise_stddev > 0, noise_stddev, unit)
    coordinates = state.coordinates
    in_globals = released
    if coordinates is not None:
        released = {**released, "loc": coordinates.without_silent(released["loc"])}
        in_globals = {**released, "loc": released["loc"] @ coordinates.inverse}
    gradient = elbo_gradient(compiled, state.variational, draws, in_globals)
    # Noise may have led where the prior overflows: such coordinates stay put.
    loss_gradient = jax.tree.map(
        lambda g: _squarable(jnp.where(jnp.isfinite(g), -g / unit, 0.0)), gradient
    )
    if coordinates is not None:
        loss_gradient = _with_loc(loss_gradient, coordinates.units)
    params: Any = state.variational  # optax's types know no named tuples.
    updates, optimizer_state = optimizer.update(
        loss_gradient, state.optimizer_state, params
    )
    # Where an optimiser of the caller's overflows it is no longer on its way, and where
    # it would be held is no posterior either: the fit ends in an error.
    instead = jnp.nan if program.options.has_own_optimizer else 0.0
    updates = jax.tree.map(
        lambda u: step_size * jnp.where(jnp.isfinite(u), u, instead), updates
    )
    if program.guide is not None and not program.options.has_own_optimizer:
        if coordinates is not None:
            updates = _with_loc(updates, coordinates.units)
        loc = program.reach_of_step(state.step) * updates.guide["loc"]
        loc = loc - _pull_of_prior(program, state, step_size, noise_stddev)
        updates = updates._replace(guide={**updates.guide, "loc": loc})
    variational: Any = optax.apply_updates(params, updates)
    if compiled.noise_aware is not None and compiled.noise_aware.silent.size:
        silent = compiled.noise_aware.silent
        variational = _at_prior_along(program, variational, draws, silent)
    if program.guide is not None:
        held = program.ranges.holding(variational.guide)
        variational = variational._replace(guide=held)
    step = state.step + 1
    weight = jnp.ones((), program.start.dtype)
    if program.options.averaging is not None:
        averaging = program.options.averaging
        weight = (averaging + 1) / (averaging + step.astype(weight.dtype))
    average = jax.tree.map(
        lambda old, new: old + weight * (new - old), state.average, variational
    )
    if program.guide is not None:
        average = average._replace(guide=program.ranges.holding(average.guide))
    score = state.score
    if score is not None:
        z = program.value(state.variational, draws[0])
        score = score.after(
            step,
            released["loc"],
            z,
            noise_stddev,
            approach=program.options.num_approaching,
        )
    return DpviState(
        variational,
        average,
        optimizer_state,
        state.key,
        step,
        score=score,
        coordinates=coordinates,
    )


def _at_prior_along(
    program: DpviProgram,
    variational: Variational,
    draws: StepDraws,
    silent: Float64[np.ndarray, "read directions"],
) -> Variational:
    """The iterate moved to where the prior wants it in directions that rows leave open.

    No noise is in the way, and gradient steps as long as others need would take
    thousands: where rows say much of all other directions these are far steeper. It is
    a Newton step, or none where the prior is no peak.

    Args:
      program, variational, draws: Those of the step.
      silent: The directions, as orthonormal columns.
    """
    loc = variational.guide["loc"]
    directions = jnp.zeros((len(loc), silent.shape[1]), loc.dtype)
    directions = directions.at[: len(silent)].set(silent)
    params = program.constrained(variational.params)

    def moved(by: Float[Array, " directions"]) -> dict[str, Any]:
        return {**variational.guide, "loc": loc + directions @ by}

    def bound(by: Float[Array, " directions"]) -> Float[Array, ""]:
        return program.public_elbo(moved(by), params, draws)

    here = jnp.zeros(silent.shape[1], loc.dtype)
    root = jnp.linalg.cholesky(-jax.hessian(bound)(here))
    by = jax.scipy.linalg.cho_solve((root, True), jax.grad(bound)(here))
    by = jnp.where(jnp.all(jnp.isfinite(by)), by, 0.0)
    return variational._replace(guide=moved(by))


def _with_loc(found: Variational, matrix: Units) -> Variational:
    """What belongs to the globals that rows depend on, times a symmetric matrix."""
    loc = found.guide["loc"]
    read = loc[: len(matrix)] @ matrix
    return found._replace(
        guide={**found.guide, "loc": jnp.concatenate([read, loc[len(matrix) :]])}
    )


def _pull_of_prior(
    program: DpviProgram, state: DpviState, step_size: Any, noise_stddev: Any
) -> Float[Array, " size"]:
    """What takes globals back towards the prior's centre while they follow noise.

    Where rows have no gradient that noise does not hide, the optimiser's steps are a
    random walk, by one learning rate each. A pull of half of its square, over the
    prior's variance, keeps such a walk as wide as the prior. Where rows have a gradient
    it moves the globals by little, and only on the way to where the scores count.
    """
    walk = LEARNING_RATE * step_size * program.reach_of_step(state.step)
    if state.coordinates is not None:
        units = state.coordinates.units
        lengths = jnp.sqrt(jnp.sum(units**2, axis=1)).astype(walk.dtype)
        walk = walk.at[: len(units)].multiply(lengths)
    pull = 0.5 * (walk / program.prior_scale) ** 2
    is_on_its_way = state.step < program.options.num_approaching
    pull = jnp.where((noise_stddev > 0) & is_on_its_way, jnp.minimum(pull, 1.0), 0.0)
    away = state.variational.guide["loc"] - program.start
    return pull.astype(away.dtype) * away


def _squarable(gradient: Float[Array, "..."]) -> Float[Array, "..."]:
    """The gradient, as far as optimisers can square it and add it up."""
    most = 1e-3 * jnp.sqrt(jnp.finfo(gradient.dtype).max)
    return jnp.clip(gradient, -most, most)


def elbo_gradient(
    compiled: CompiledModel,
    variational: Variational,
    draws: StepDraws,
    released: Mapping[str, Float[Array, "..."]],
) -> Variational:
    """Ascent direction for the ELBO of all rows, in φ and θ.

    Args:
      compiled: The model.
      variational: Where the gradient is taken.
      draws: The step's ε.
      released: Estimates of the sums over all rows, by block.
    """
    program = compiled.program
    tree = jax.tree.map(jnp.zeros_like, program.tree(variational, program.start))
    leaves, structure = jax.tree.flatten(tree)
    for entry in compiled.released:
        entry.place(leaves, released[entry.block.name])
    first, params = jax.tree.unflatten(structure, leaves)

    def public_elbo(variational: Variational) -> Float[Array, ""]:
        params = program.constrained(variational.params)
        return program.public_elbo(variational.guide, params, draws)

    public = jax.grad(public_elbo)(variational)
    if program.perturbs_location:
        # The chain rule through z(φ, ε), on what is public already.
        _, pull_back = jax.vjp(lambda v: program.value(v, draws[0]), variational)
        (rows,) = pull_back(program.space.join(first))
        rows = Variational(
            guide=rows.guide, params=jax.tree.map(jnp.add, rows.params, params)
        )
    else:
        rows = Variational(guide=first, params=params)
    return jax.tree.map(jnp.add, rows, public)
