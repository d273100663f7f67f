"""DPVI: private gradient steps on NumPyro's ELBO, for models that are not conjugate.

The guide is a mean-field Normal on the unconstrained globals z (`guides.py`), with
means m and standard deviations s. One step draws ε ~ N(0, I), the same for every row,
puts z = m + s·ε and releases one vector, the sum over rows of the clipped gradients

    g = ∇_z log p(row | z).

The gradient of that row's part of the ELBO is (g, g·s·ε) in (m, log s): the second
half is a public function of the first. So only g is perturbed and the rest is rebuilt
from it ("DPVIm": Jälkö, Prediger, Honkela and Kaski, *Improved differentially private
variational inference through gradient aligning*), which halves the noisy coordinates
and leaves the whole clipping norm to g. `perturb="all"` releases both halves, as in the
DPVI paper.

Without clipping, noise and subsampling, (released gradient) + (gradient of the prior
and the entropy) is the gradient that `numpyro.infer.Trace_ELBO` gives `SVI` with
`AutoNormal`: E_q[log p(rows, z) − log q(z)], one draw per particle, reparametrised.
Terms that do not read a row are public; they are added afterwards and never clipped.
Globals that no observation depends on directly, such as the scale of a prior, get no
noise at all, for nothing about them is released.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import optax

from numpyro_vips import _validate
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.gaussian_mechanism import Block
from numpyro_vips.guides import (
    GuideSite,
    NormalPosterior,
    UnconstrainedSpace,
    support_to_json,
)
from numpyro_vips.index_ranges import indices_in_range
from numpyro_vips.log_joint import (
    MAX_JOINT_STATES,
    made_up_row,
    num_joint_states,
    prior_log_density,
    read_by_rows,
    row_log_density,
)
from numpyro_vips.model_graph import ModelGraph, Site
from numpyro_vips.noisy_adam import noisy_adam
from numpyro_vips.prior_centre import global_values

Perturb = Literal["location", "all"]

INITIAL_SCALE = 0.1
# Of the start around the prior's centre. It tells hidden units of a network apart.
_JITTER = 0.1
# Per-row gradients are held for so many numbers at a time.
_MOST_GRADIENT_NUMBERS = 2**23


class Variational(NamedTuple):
    """Parameters of the guide, flat over the globals' unconstrained coordinates."""

    loc: jax.Array
    log_scale: jax.Array


class DpviState(NamedTuple):
    """What a step needs; all of it public.

    Attributes:
      variational: The current iterate.
      average: Running average of the iterates, what the posterior is read from.
      optimizer_state: State of the optax optimiser.
      key: Key of the guide's draws, combined with `step`.
      step: Number of updates so far.
    """

    variational: Variational
    average: Variational
    optimizer_state: Any
    key: jax.Array
    step: jax.Array


class DpviEngine:
    """Per-row ELBO gradients and public optimiser steps for one model.

    Attributes:
      name: `"dpvi"`.
      blocks: What each step releases: `"loc"`, and with `perturb="all"` also
        `"log_scale"`, over the coordinates that observations depend on.
      space: The globals and their layout in flat vectors.
    """

    name = "dpvi"

    def __init__(
        self,
        graph: ModelGraph,
        *,
        optimizer: optax.GradientTransformation | None = None,
        num_particles: int = 1,
        perturb: Perturb = "location",
        averaging: float | None = 3.0,
    ) -> None:
        """Traces the model on a single made-up row; no private value is read.

        Args:
          graph: The model.
          optimizer: Any optax optimiser, for the negative ELBO divided by the public
            number of rows. By default `noisy_adam`.
          num_particles: Draws from the guide per step. More than one needs
            `perturb="all"`: from an average over draws nothing can be rebuilt.
          perturb: Which part of the gradient is released; see the module's docstring.
          averaging: The posterior is the average of the iterates with weights close
            to t^averaging (Shamir and Zhang, 2013), so that early ones fade without a
            horizon to be fixed beforehand. None keeps the last iterate.

        Raises:
          UnsafeModelError: For the reason that `not_supported` gives.
        """
        _validate.positive_integer(num_particles=num_particles)
        _validate.one_of(("location", "all"), perturb=perturb)
        if perturb == "location" and num_particles > 1:
            raise ValueError(
                f"Expected num_particles={num_particles} to be 1 with "
                "perturb='location': the scales' gradient can only be rebuilt for a "
                "single draw. Use perturb='all', or more rows per step."
            )
        if averaging is not None and not averaging >= 0:
            raise ValueError(
                f"Expected averaging={averaging!r} to be None or at least 0."
            )
        reason = not_supported(graph)
        if reason is not None:
            raise UnsafeModelError(reason)
        self._graph = graph
        self._num_particles = num_particles
        self._perturb = perturb
        self._averaging = averaging
        self._num_rows = graph.arguments.public_num_rows
        self._trace_model()
        sizes = [math.prod(site.unconstrained_shape) for site in self.space.sites]
        self._optimizer = noisy_adam(sizes) if optimizer is None else optimizer
        shape = (self._num_released,)
        names = ("loc",) if perturb == "location" else ("loc", "log_scale")
        self.blocks = tuple(Block(name=name, shape=shape) for name in names)
        self._jitted_sum = jax.jit(self._sum)
        self._jitted_update = jax.jit(self._updated)

    def _trace_model(self) -> None:
        """Finds the layout and the two log densities as programs, once."""
        graph = self._graph
        found = global_values(graph)
        sites = [
            _guide_site(site, found.supports[site.name])
            for site in graph.latents("global")
        ]
        start = {
            site.name: site.transform.inv(found.centres[site.name]) for site in sites
        }
        # What no observation depends on goes last, beyond what is released.
        used = read_by_rows(graph, found.centres)
        sites.sort(key=lambda site: not used[site.name])
        self.space = space = UnconstrainedSpace(sites=tuple(sites))
        released = UnconstrainedSpace(sites=tuple(s for s in sites if used[s.name]))
        self._num_released = released.size
        start = space.join(start).astype(jnp.result_type(float))
        self._start = start = jnp.where(jnp.isfinite(start), start, 0.0)

        row = made_up_row(graph)
        self._row_program = jax.make_jaxpr(
            lambda z, row: row_log_density(graph, space.constrain(z)[0], row)
        )(start, row)
        self._prior_program = jax.make_jaxpr(
            lambda z: _unconstrained_prior(graph, space, z, row)
        )(start)

    # --- the engine's protocol ------------------------------------------------------

    def initial_state(self, rng_key: jax.Array) -> DpviState:
        """The guide at the prior's centre, slightly jittered, with small scales."""
        start_key, key = jax.random.split(rng_key)
        jitter = jax.random.normal(start_key, self._start.shape, self._start.dtype)
        variational: Any = Variational(
            loc=self._start + _JITTER * jitter,
            log_scale=jnp.full_like(self._start, np.log(INITIAL_SCALE)),
        )
        return DpviState(
            variational=variational,
            average=variational,
            optimizer_state=self._optimizer.init(variational),
            key=key,
            step=jnp.zeros((), jnp.int32),
        )

    def bounded_sum(
        self,
        state: DpviState,
        rows: Mapping[str, Any],
        mask: Any,
        *,
        scales: Mapping[str, float],
        clipping_norm: float,
    ) -> dict[str, jax.Array]:
        """Sums the rows' clipped gradients over one chunk of the step's batch.

        Guarantees:
          Adding or removing one row changes the sum, its blocks times `scales` joined
          into one vector, by at most `clipping_norm` in L2 norm up to the rounding of
          the sum, whatever the rows hold. Each row's gradient comes from a program of
          that row alone.

        | row                                             | contributes              |
        |-------------------------------------------------|--------------------------|
        | masked                                          | zero                     |
        | observation outside its support                 | zero                     |
        | index out of range (`index_ranges.py`)          | zero                     |
        | log density or gradient not finite              | zero                     |
        | joint norm above `clipping_norm`                | the gradient, shortened  |

        Args:
          state: The same for every chunk of a step.
          rows: Private arrays with the rows along the leading axis.
          mask: True where a row is meant, false for padding.
          scales: Factor of each block in the joint vector.
          clipping_norm: Bound on the norm of a row's joint vector; infinity clips
            nothing.

        Returns:
          The sum of every block, not yet private.
        """
        return self._jitted_sum(
            state.variational,
            self._key_of_step(state),
            dict(rows),
            mask,
            {block.name: float(scales[block.name]) for block in self.blocks},
            float(clipping_norm),
        )

    def update(
        self,
        state: DpviState,
        released: Mapping[str, Any],
        noise_stddev: Mapping[str, float],
        step_size: float,
    ) -> DpviState:
        """One optimiser step on the negative ELBO, from public quantities alone.

        Args:
          state: As given to `bounded_sum`.
          released: Noisy sums of every block over the sampling rate, so that they
            estimate the sums over all rows.
          noise_stddev: Of the entries of `released`; the optimiser does not use it.
          step_size: Factor on the optimiser's update.
        """
        dtype = self._start.dtype
        arrays = {name: np.asarray(value, dtype) for name, value in released.items()}
        return self._jitted_update(state, arrays, float(step_size))

    def row_norms(
        self, state: DpviState, rows: Mapping[str, Any], names: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """Norms of unclipped contributions of rows that the caller may see.

        Such as made-up ones: from their sizes a clipping norm can be chosen.

        Returns:
          For every named block one norm per row; NaN where the row would count as zero.
        """
        draws = self._draws(self._key_of_step(state))

        def norms(row: Any) -> dict[str, jax.Array]:
            gradient, valid = self._row_gradient(state.variational, draws, row)
            return {
                name: jnp.where(valid, jnp.linalg.norm(gradient[name]), jnp.nan)
                for name in names
            }

        found = jax.jit(jax.vmap(norms))(dict(rows))
        return {name: np.asarray(found[name]) for name in names}

    def posterior(self, state: DpviState) -> NormalPosterior:
        """The guide at the averaged iterate."""
        average = state.average
        return NormalPosterior(
            sites=self.space.sites,
            loc=self.space.split(average.loc),
            scale=self.space.split(jnp.exp(average.log_scale)),
        )

    # --- one row and one chunk --------------------------------------------------------

    def _key_of_step(self, state: DpviState) -> jax.Array:
        return jax.random.fold_in(state.key, state.step)

    def _draws(self, key: jax.Array) -> jax.Array:
        """The step's ε, one row per particle."""
        shape = (self._num_particles, self.space.size)
        return jax.random.normal(key, shape, self._start.dtype)

    def _row_gradient(
        self, variational: Variational, draws: jax.Array, row: Mapping[str, Any]
    ) -> tuple[dict[str, jax.Array], jax.Array]:
        """A row's contribution to every block, and whether it may count."""
        scale = jnp.exp(variational.log_scale)
        leaves = jax.tree.leaves(row)
        density = jax.value_and_grad(self._row_log_density, has_aux=True)

        def particle(noise: jax.Array) -> tuple[Any, ...]:
            z = variational.loc + scale * noise
            in_range = indices_in_range(self._row_program, (z, *leaves))
            (log_density, in_support), gradient = density(z, leaves)
            valid = in_range & in_support & jnp.isfinite(log_density)
            return gradient, gradient * scale * noise, valid

        loc, log_scale, valid = jax.vmap(particle)(draws)
        gradients = {"loc": loc, "log_scale": log_scale}
        contribution = {
            block.name: jnp.mean(gradients[block.name], 0)[: self._num_released]
            for block in self.blocks
        }
        return contribution, jnp.all(valid)

    def _row_log_density(self, z: jax.Array, leaves: list) -> tuple[jax.Array, Any]:
        log_density, in_support = jex_core.jaxpr_as_fun(self._row_program)(z, *leaves)
        return log_density, in_support

    def _sum(
        self,
        variational: Variational,
        key: jax.Array,
        rows: Mapping[str, jax.Array],
        mask: jax.Array,
        scales: Mapping[str, Any],
        clipping_norm: Any,
    ) -> dict[str, jax.Array]:
        draws = self._draws(key)
        # The dtypes that the model was traced with.
        shapes = self._graph.arguments.row_shapes()
        rows = {name: jnp.asarray(rows[name], shapes[name].dtype) for name in shapes}

        def contribution(row: Any, present: Any) -> dict[str, jax.Array]:
            gradient, valid = self._row_gradient(variational, draws, row)
            return _clipped(gradient, scales, clipping_norm, present & valid)

        def piece_sum(rows: Any, mask: Any) -> dict[str, jax.Array]:
            contributions = jax.vmap(contribution)(rows, mask)
            return jax.tree.map(lambda x: jnp.sum(x, 0), contributions)

        count = mask.shape[0]
        numbers = max(1, self.space.size * self._num_particles)
        size = max(1, _MOST_GRADIENT_NUMBERS // numbers)
        if count <= size:
            return piece_sum(rows, mask)
        pieces = -(-count // size)

        def pieced(array: jax.Array) -> jax.Array:
            padding = [(0, pieces * size - count)] + [(0, 0)] * (array.ndim - 1)
            return jnp.pad(array, padding).reshape(pieces, size, *array.shape[1:])

        def add_piece(total: Any, piece: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, piece_sum(*piece)), None

        sums, _ = jax.lax.scan(
            add_piece,
            {b.name: jnp.zeros(b.shape, self._start.dtype) for b in self.blocks},
            (jax.tree.map(pieced, dict(rows)), pieced(mask)),
        )
        return sums

    # --- below the wall ---------------------------------------------------------------

    def _updated(
        self, state: DpviState, released: Mapping[str, jax.Array], step_size: Any
    ) -> DpviState:
        draws = self._draws(self._key_of_step(state))
        gradient = self._elbo_gradient(state.variational, draws, released)
        # Noise may have led where the prior overflows: such coordinates stay put.
        loss_gradient = jax.tree.map(
            lambda g: jnp.where(jnp.isfinite(g), -g / self._num_rows, 0.0), gradient
        )
        params: Any = state.variational  # optax's types know no named tuples.
        updates, optimizer_state = self._optimizer.update(
            loss_gradient, state.optimizer_state, params
        )
        updates = jax.tree.map(lambda u: step_size * u, updates)
        variational: Any = optax.apply_updates(params, updates)
        step = state.step + 1
        weight = jnp.ones((), self._start.dtype)
        if self._averaging is not None:
            weight = (self._averaging + 1) / (self._averaging + step)
        average = jax.tree.map(
            lambda old, new: old + weight * (new - old), state.average, variational
        )
        return DpviState(variational, average, optimizer_state, state.key, step)

    def _elbo_gradient(
        self,
        variational: Variational,
        draws: jax.Array,
        released: Mapping[str, jax.Array],
    ) -> Variational:
        """Ascent direction for the ELBO of all rows."""
        scale = jnp.exp(variational.log_scale)
        prior = jax.vmap(jax.grad(self._prior_log_density))(
            variational.loc + scale * draws
        )
        rest = self.space.size - self._num_released
        rows = {name: jnp.pad(value, (0, rest)) for name, value in released.items()}
        if self._perturb == "location":
            rows["log_scale"] = rows["loc"] * scale * draws[0]
        # −log q(m + s·ε) = Σ log s + const, so that the entropy's gradient is 1.
        return Variational(
            loc=rows["loc"] + jnp.mean(prior, 0),
            log_scale=rows["log_scale"] + jnp.mean(prior * draws, 0) * scale + 1.0,
        )

    def _prior_log_density(self, z: jax.Array) -> jax.Array:
        return jex_core.jaxpr_as_fun(self._prior_program)(z)[0]


def not_supported(graph: ModelGraph) -> str | None:
    """Why DPVI cannot run the model, and what to do; None if it can."""
    count = num_joint_states(graph)
    for site in graph.latents("local"):
        if site.is_discrete and count is not None and count <= MAX_JOINT_STATES:
            continue
        if site.is_discrete:
            return (
                f"DPVI sums the discrete latents of a row out one joint state after "
                f"the other, and with {site.name!r} under the plate {graph.unit!r} "
                f"they have more than {MAX_JOINT_STATES}. Sum them out by hand, for "
                "example with numpyro.distributions.MixtureSameFamily."
            )
        return (
            f"DPVI does not support latents of single rows, such as {site.name!r} "
            f"under the plate {graph.unit!r}. Integrate it out by hand, or write the "
            "model with conjugate distributions, which VIPS solves row by row."
        )
    sites = graph.latents("global")
    for site in sites:
        if site.is_discrete:
            return (
                f"DPVI has no gradient for the discrete latent {site.name!r}. Sum it "
                "out by hand, or fit one model for each of its values."
            )
    if not sites:
        return (
            "The model has no latent that all rows share, so there is nothing to fit."
        )
    found = global_values(graph)
    for site in sites:
        first, second = found.supports[site.name], found.moved_supports[site.name]
        description = support_to_json(first)
        if description is None:
            return (
                f"DPVI knows no smooth map from the real numbers to the support of "
                f"{site.name!r}, {first}. Write the latent as a function of others "
                "with a usual support."
            )
        if description != support_to_json(second):
            return (
                f"The support of {site.name!r} depends on another latent. Sample it on "
                "a fixed support, such as (0, 1), and rescale it in the model."
            )
    if not any(read_by_rows(graph, found.centres).values()):
        return (
            f"No observation under the plate {graph.unit!r} depends on a latent, so "
            "the data say nothing about the posterior."
        )
    return None


def _guide_site(site: Site, support: Any) -> GuideSite:
    dims: list[str] = []
    if site.plates:
        for axis in range(max(site.plates) + 1):
            dims.append(site.plates.get(axis, f"{site.name}_dim_{axis}"))
    return GuideSite(
        name=site.name, support=support, shape=site.shape, dims=tuple(dims)
    )


def _unconstrained_prior(
    graph: ModelGraph, space: UnconstrainedSpace, z: jax.Array, row: Mapping[str, Any]
) -> jax.Array:
    latents, log_determinant = space.constrain(z)
    return prior_log_density(graph, latents, row) + log_determinant


def _clipped(
    contribution: Mapping[str, jax.Array],
    scales: Mapping[str, Any],
    clipping_norm: Any,
    valid: Any,
) -> dict[str, jax.Array]:
    """Shortens a contribution to the clipping norm; zero where it may not count."""
    joint = jnp.concatenate(
        [scales[name] * jnp.ravel(value) for name, value in contribution.items()]
    )
    valid = valid & jnp.all(jnp.isfinite(joint))
    precision = jnp.finfo(joint.dtype)
    # Room for the rounding of the norm itself.
    bound = clipping_norm * (1 - precision.eps * (8 + joint.size**0.5))
    # Squares of large entries would overflow, and a division by a very large number
    # underflows where XLA multiplies by the inverse: then the norm would come out as
    # zero and nothing be clipped. A fixed power of two keeps clear of both.
    is_large = jnp.max(jnp.abs(joint), initial=0.0) > 2.0 ** (precision.maxexp // 4)
    shrink = jnp.where(is_large, 2.0 ** -(5 * precision.maxexp // 8), 1.0)
    norm = jnp.sqrt(jnp.sum((shrink * joint) ** 2))
    fits = norm <= shrink * bound
    factor = bound / jnp.where(fits, 1.0, norm)
    return {
        name: jnp.where(valid, jnp.where(fits, value, (shrink * value) * factor), 0.0)
        for name, value in contribution.items()
    }
