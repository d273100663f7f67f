"""DPVI: private gradient steps on NumPyro's ELBO, for models that are not conjugate.

A step draws the globals once from the guide, z = z(φ, ε) on their unconstrained space,
the same for every row, and releases one vector, the sum over rows of the clipped

    g = ∇ log p(row | z, θ)      in z and in the parameters θ without a prior.

The gradient of that row's part of the ELBO in the guide's parameters φ is (∂z/∂φ)ᵀ·g,
a public function of g that is linear. So only g is perturbed and the rest is rebuilt
from it by the chain rule, for any guide with reparametrised draws ("DPVIm" for the
mean-field Normal: Jälkö, Prediger, Honkela and Kaski, *Improved differentially private
variational inference through gradient aligning*). This leaves the whole clipping norm
to g. `perturb="all"` releases the gradient in φ itself, as in the DPVI paper.

Latents of single rows are drawn by the user's guide from the row (`user_guides.py`); a
row's part of the ELBO is then log p(row, local | z, θ) − log q(local | row, θ), and the
encoder's parameters are among θ. Nothing else of these latents exists.

Without clipping, noise and subsampling, (released gradient) + (gradient of the prior
and the entropy) is the gradient that `numpyro.infer.Trace_ELBO` gives `SVI` with the
same guide. Terms that do not read a row are public; they are added afterwards and never
clipped. Globals that no observation depends on directly, such as the scale of a prior,
get no noise at all, for nothing about them is released.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import optax
from jax.interpreters import partial_eval
from numpyro.distributions import biject_to, kl_divergence
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO

from numpyro_vips import _validate
from numpyro_vips.automatic_guides import FAMILIES, Family, NormalGuide
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.gaussian_mechanism import Block
from numpyro_vips.guides import (
    DrawsPosterior,
    GuideSite,
    UnconstrainedSpace,
    support_to_json,
)
from numpyro_vips.index_ranges import indices_in_range
from numpyro_vips.log_joint import (
    MAX_JOINT_STATES,
    made_up_row,
    num_joint_states,
    row_log_density,
    site_log_density,
)
from numpyro_vips.model_graph import ModelGraph, Site
from numpyro_vips.noisy_adam import LEARNING_RATE, noisy_adam
from numpyro_vips.prior_centre import global_values, initial_params
from numpyro_vips.result import Posterior
from numpyro_vips.user_guides import UserGuide

Perturb = Literal["location", "all"]

# Learning rate of parameters without a prior, such as the weights of a network.
PARAMETER_LEARNING_RATE = 0.02
# Per-row gradients are held for so many numbers at a time.
_MOST_GRADIENT_NUMBERS = 2**23


class Variational(NamedTuple):
    """What is fitted, all on unconstrained spaces.

    Attributes:
      guide: Arrays of an automatic guide, whose leading axis runs over the globals'
        coordinates; empty with a guide of the user's own.
      params: The values of every `numpyro.param` of the model and of the user's guide.
    """

    guide: dict[str, jax.Array]
    params: dict[str, Any]


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


class _Released(NamedTuple):
    """One released block: where it belongs, as a leaf of (z or guide, params).

    `length` is how many leading coordinates are released; None for all.
    """

    block: Block
    leaf: int
    length: int | None


class DpviEngine:
    """Per-row ELBO gradients and public optimiser steps for one model.

    Attributes:
      name: `"dpvi"`.
      blocks: What each step releases: `"loc"`, the gradient in the globals, and
        `"param …"` for every array of parameters without a prior; with
        `perturb="all"` every parameter of the guide in place of `"loc"`. Only what
        observations depend on is released.
      space: The globals and their layout in flat vectors.
    """

    name = "dpvi"

    def __init__(
        self,
        graph: ModelGraph,
        *,
        guide: Family | Callable[..., Any] = "mean_field",
        optimizer: optax.GradientTransformation | None = None,
        loss: Trace_ELBO | TraceMeanField_ELBO | None = None,
        num_particles: int | None = None,
        perturb: Perturb | None = None,
        averaging: float | None = 3.0,
    ) -> None:
        """Traces the model on a single made-up row; no private value is read.

        Args:
          graph: The model.
          guide: `"mean_field"`, `"full_rank"` or `"low_rank"` for a Normal on the
            unconstrained globals, or a NumPyro function, see `user_guides.py`.
          optimizer: Any optax optimiser, for the negative ELBO divided by the public
            number of rows. By default `noisy_adam`.
          loss: NumPyro's `Trace_ELBO` or `TraceMeanField_ELBO`, the second of which
            takes Kullback-Leibler divergences in closed form where there is one. Its
            number of particles is taken over.
          num_particles: Draws from the guide per step; 1 or what `loss` says. From an
            average over several nothing can be rebuilt, so they need `perturb="all"`.
          perturb: Which gradient is released; see the module's docstring. By default
            `"location"`, and `"all"` with several particles.
          averaging: The posterior is the average of the iterates with weights close
            to t^averaging (Shamir and Zhang, 2013), so that early ones fade without a
            horizon to be fixed beforehand. None keeps the last iterate.

        Raises:
          UnsafeModelError: For the reason that `not_supported` gives, or because the
            guide does not fit the model.
        """
        if num_particles is None:
            num_particles = 1 if loss is None else loss.num_particles
        _validate.positive_integer(num_particles=num_particles)
        if perturb is None:
            perturb = "location" if num_particles == 1 else "all"
        check_options(
            guide=guide,
            loss=loss,
            num_particles=num_particles,
            perturb=perturb,
            averaging=averaging,
        )
        reason = not_supported(graph, has_guide=callable(guide))
        if reason is not None:
            raise UnsafeModelError(reason)
        self._graph = graph
        self._num_particles = num_particles
        self._perturb: Perturb = perturb
        self._averaging = averaging
        self._is_analytic = isinstance(loss, TraceMeanField_ELBO)
        self._num_rows = graph.arguments.public_num_rows
        self._row = made_up_row(graph)
        self._user_guide = UserGuide(guide, graph) if callable(guide) else None
        self._constraints = dict(graph.params)
        if self._user_guide is not None:
            self._constraints = self._user_guide.constraints | self._constraints
        self._lay_out(guide)
        if optimizer is None:
            sizes = [math.prod(site.unconstrained_shape) for site in self.space.sites]
            optimizer = _default_optimizer(sizes, self.guide)
        self._optimizer = optimizer
        self._jitted_sum = jax.jit(self._sum)
        self._jitted_update = jax.jit(self._updated)

    def _lay_out(self, guide: Any) -> None:
        """Finds the globals' layout, one row's program and what it reads."""
        graph = self._graph
        found = global_values(graph)
        sites = [
            _guide_site(site, found.supports[site.name])
            for site in graph.latents("global")
        ]
        self._params = params = self._initial_params(jax.random.key(0))
        centres = {s.name: s.transform.inv(found.centres[s.name]) for s in sites}

        def density(free: Mapping[str, Any], params: Any) -> jax.Array:
            values = {s.name: s.transform(free[s.name]) for s in sites}
            return self._row_elbo(values, params, self._row, jax.random.key(0))[0]

        used = _reads(density, centres, params)
        if not any(jax.tree.leaves(used)):
            raise UnsafeModelError(
                f"No observation under the plate {graph.unit!r} depends on a latent, "
                "so the data say nothing about the posterior."
            )
        # What no observation depends on goes last, beyond what is released.
        sites.sort(key=lambda site: not used[0][site.name])
        self.space = space = UnconstrainedSpace(sites=tuple(sites))
        read = UnconstrainedSpace(sites=tuple(s for s in sites if used[0][s.name]))
        start = space.join(centres).astype(jnp.result_type(float))
        self._start = start = jnp.where(jnp.isfinite(start), start, 0.0)
        self.guide = None
        if not callable(guide):
            self.guide = NormalGuide(space, guide, num_rows=self._num_rows)

        self._row_program = jax.make_jaxpr(
            lambda z, params, row, key: self._row_elbo(
                space.constrain(z)[0], params, row, key
            )
        )(start, params, self._row, jax.random.key(0))
        self._released = self._blocks(read.size, used[1])
        self.blocks = tuple(released.block for released in self._released)

    def _initial_params(self, rng_key: jax.Array) -> dict[str, Any]:
        """Every parameter's initial value, unconstrained."""
        params = {}
        if self._user_guide is not None:
            params = self._user_guide.initial_params(rng_key)
        params |= initial_params(self._graph, rng_key)
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
                    biject_to(self._constraints[name]).inv(jnp.asarray(leaf)),
                    jnp.result_type(float),
                ),
                tree,
            )
            for name, tree in params.items()
        }

    def _constrained(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: jax.tree.map(biject_to(self._constraints[name]), tree)
            for name, tree in params.items()
        }

    def _blocks(self, num_read: int, reads_param: Any) -> list[_Released]:
        """What a step releases, by leaf of the contribution's tree."""
        variational = self._initial(jax.random.key(0))
        tree = self._contribution_tree(self._start, variational)
        if self._perturb == "all" and self._user_guide is not None and num_read:

            def density(variational: Variational) -> jax.Array:
                draw = self._draws(variational, jax.random.key(0))
                z, params = self._value(variational, draw[0]), variational.params
                values = self.space.constrain(z)[0]
                return self._row_elbo(values, params, self._row, jax.random.key(0))[0]

            reads_param = _reads(density, variational)[0].params
        reads = iter(jax.tree.leaves(reads_param))
        released = []
        for leaf, (path, array) in enumerate(jax.tree.leaves_with_path(tree)):
            if path[0].idx == 0:
                name = "loc" if self._perturb == "location" else path[1].key
                shape = (num_read, *array.shape[1:])
                if num_read:
                    block = Block(name=name, shape=shape)
                    released.append(_Released(block, leaf, num_read))
            elif next(reads):
                keys = (jax.tree_util.keystr((k,), simple=True) for k in path[1:])
                block = Block(name="param " + "/".join(keys), shape=array.shape)
                released.append(_Released(block, leaf, None))
        return released

    def _contribution_tree(self, z: Any, variational: Variational) -> tuple[Any, Any]:
        """In what the rows' gradients are taken: the globals or φ, and θ."""
        first = z if self._perturb == "location" else variational.guide
        return first, variational.params

    # --- the engine's protocol ------------------------------------------------------

    def initial_state(self, rng_key: jax.Array) -> DpviState:
        """The guide at the prior's centre, slightly jittered, with small scales."""
        start_key, key = jax.random.split(rng_key)
        variational: Any = self._initial(start_key)
        return DpviState(
            variational=variational,
            average=variational,
            optimizer_state=self._optimizer.init(variational),
            key=key,
            step=jnp.zeros((), jnp.int32),
        )

    def _initial(self, rng_key: jax.Array) -> Variational:
        guide_key, params_key = jax.random.split(rng_key)
        arrays = {}
        if self.guide is not None:
            arrays = self.guide.initial(self._start, guide_key)
        return Variational(guide=arrays, params=self._initial_params(params_key))

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
            state.key,
            state.step,
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
        key = self._key_of_step(state)
        draws = self._draws(state.variational, key)

        def norms(row: Any) -> dict[str, jax.Array]:
            gradient, valid = self._row_gradient(state.variational, key, draws, row)
            return {
                name: jnp.where(valid, jnp.linalg.norm(gradient[name]), jnp.nan)
                for name in names
            }

        found = jax.jit(jax.vmap(norms))(dict(rows))
        return {name: np.asarray(found[name]) for name in names}

    def has_posterior(self, state: DpviState) -> bool:
        """Always: a guide has parameters from the start."""
        return True

    def posterior(self, state: DpviState) -> Posterior:
        """The guide at the averaged iterate."""
        average = state.average
        points = self._constrained(average.params)
        if self.guide is not None:
            return self.guide.posterior(average.guide, points)

        def draw(rng_key: jax.Array) -> dict[str, jax.Array]:
            assert self._user_guide is not None
            return self._user_guide.draw_globals(points, rng_key).values

        return DrawsPosterior.of(self.space.sites, points, draw)

    @property
    def captured(self) -> Mapping[str, np.ndarray]:
        """Arrays that the user's guide holds itself; they are treated as public."""
        return {} if self._user_guide is None else self._user_guide.captured

    def describe(self, name: str) -> str:
        """What the posterior of a latent is, for `explain`."""
        if self.guide is None:
            assert self._user_guide is not None
            is_drawn = name in (*self._user_guide.globals, *self._user_guide.locals)
            return "the given guide" if is_drawn else "summed out"
        if self._graph.sites[name].row_axis is not None:
            return "summed out"
        family = self.guide.family.replace("_field", "-field").replace("_rank", "-rank")
        return f"Normal (unconstrained, {family})"

    # --- one row and one chunk --------------------------------------------------------

    def _key_of_step(self, state: DpviState) -> jax.Array:
        return jax.random.fold_in(state.key, state.step)

    def _draws(self, variational: Variational, key: jax.Array) -> jax.Array:
        """The step's ε, one entry per particle: numbers, or keys for a user's guide."""
        if self.guide is None:
            return jax.random.split(key, self._num_particles)
        return self.guide.draws(key, self._num_particles, self._start.dtype)

    def _value(self, variational: Variational, draw: jax.Array) -> jax.Array:
        """z(φ, ε): the unconstrained globals that a draw stands for."""
        if self.guide is not None:
            return self.guide.value(variational.guide, draw)
        assert self._user_guide is not None
        params = self._constrained(variational.params)
        values = self._user_guide.draw_globals(params, draw).values
        free = {s.name: s.transform.inv(values[s.name]) for s in self.space.sites}
        return self.space.join(free)

    def _row_elbo(
        self,
        values: Mapping[str, jax.Array],
        params: Mapping[str, Any],
        row: Mapping[str, Any],
        key: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """A row's part of the ELBO, and whether what it observes lies in the support.

        Args:
          values: The globals.
          params: The parameters without a prior, unconstrained.
          row: One row of every private argument.
          key: Of the draws of the row's own latents.
        """
        graph, guide = self._graph, self._user_guide
        params = self._constrained(params)
        if guide is None or not guide.locals:
            return row_log_density(graph, values, row, params)
        local = guide.draw_locals(row, values, params, key)
        latents = {**values, **local.values}
        counted = set(graph.sites)
        total = jnp.zeros((), jnp.result_type(float))
        priors: Mapping[str, Any] = {}
        if self._is_analytic:
            rows = {name: jnp.asarray(value)[None] for name, value in row.items()}
            priors = graph.run(rows, latents, params=params)
        for name, message in local.messages.items():
            divergence = None
            # Next to discrete latents the prior is a mixture, and has no closed form.
            if self._is_analytic and len(latents) == len(_latent_names(graph)):
                divergence = _divergence(message, priors[name])
            if divergence is None:
                total -= local.log_density(name)
            else:
                total -= divergence
                counted.remove(name)
        density, in_support = row_log_density(graph, latents, row, params, counted)
        return total + density, in_support

    def _row_gradient(
        self,
        variational: Variational,
        key: jax.Array,
        draws: jax.Array,
        row: Mapping[str, Any],
    ) -> tuple[dict[str, jax.Array], jax.Array]:
        """A row's contribution to every block, and whether it may count."""
        # Of the row's content, not its place in the batch: otherwise taking one row
        # away would change what the others contribute.
        row_key = jax.random.fold_in(key, _fingerprint(row))

        def particle(number: Any, draw: jax.Array) -> tuple[Any, jax.Array]:
            local_key = jax.random.fold_in(row_key, number)
            in_range = indices_in_range(
                self._row_program,
                jax.tree.leaves(
                    (self._value(variational, draw), variational.params, row, local_key)
                ),
            )

            def elbo(tree: tuple[Any, Any]) -> tuple[jax.Array, Any]:
                z, params = tree
                if self._perturb == "all":
                    z = self._value(Variational(guide=tree[0], params=params), draw)
                return self._evaluated(z, params, row, local_key)

            z = None
            if self._perturb == "location":
                z = self._value(variational, draw)
            tree = self._contribution_tree(z, variational)
            density = jax.value_and_grad(elbo, has_aux=True)
            (value, in_support), gradient = density(tree)
            return gradient, in_range & in_support & jnp.isfinite(value)

        numbers = jnp.arange(self._num_particles)
        gradients, valid = jax.vmap(particle)(numbers, draws)
        leaves = jax.tree.leaves(gradients)
        contribution = {
            released.block.name: jnp.mean(leaves[released.leaf], 0)[: released.length]
            if released.length is not None
            else jnp.mean(leaves[released.leaf], 0)
            for released in self._released
        }
        return contribution, jnp.all(valid)

    def _evaluated(self, *arguments: Any) -> tuple[jax.Array, jax.Array]:
        program = jex_core.jaxpr_as_fun(self._row_program)
        value, in_support = program(*jax.tree.leaves(arguments))
        return value, in_support

    def _sum(
        self,
        variational: Variational,
        key: jax.Array,
        step: jax.Array,
        rows: Mapping[str, jax.Array],
        mask: jax.Array,
        scales: Mapping[str, Any],
        clipping_norm: Any,
    ) -> dict[str, jax.Array]:
        key = jax.random.fold_in(key, step)
        draws = self._draws(variational, key)
        # The dtypes that the model was traced with.
        shapes = self._graph.arguments.row_shapes()
        rows = {name: jnp.asarray(rows[name], shapes[name].dtype) for name in shapes}

        def contribution(row: Any, present: Any) -> dict[str, jax.Array]:
            gradient, valid = self._row_gradient(variational, key, draws, row)
            return _clipped(gradient, scales, clipping_norm, present & valid)

        def piece_sum(rows: Any, mask: Any) -> dict[str, jax.Array]:
            contributions = jax.vmap(contribution)(rows, mask)
            return jax.tree.map(lambda x: jnp.sum(x, 0), contributions)

        count = mask.shape[0]
        numbers = sum(math.prod(block.shape) for block in self.blocks)
        size = max(1, _MOST_GRADIENT_NUMBERS // max(1, numbers * self._num_particles))
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
        draws = self._draws(state.variational, self._key_of_step(state))
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
        tree = self._contribution_tree(self._start, variational)
        leaves, structure = jax.tree.flatten(jax.tree.map(jnp.zeros_like, tree))
        for entry in self._released:
            value = released[entry.block.name]
            leaves[entry.leaf] = (
                leaves[entry.leaf].at[: len(value)].set(value)
                if (entry.length is not None)
                else value
            )
        first, params = jax.tree.unflatten(structure, leaves)
        public = jax.grad(self._public_elbo)(variational, draws)
        if self._perturb == "location":
            # The chain rule through z(φ, ε), on what is public already.
            _, pull_back = jax.vjp(lambda v: self._value(v, draws[0]), variational)
            (rows,) = pull_back(first)
            rows = Variational(
                guide=rows.guide, params=jax.tree.map(jnp.add, rows.params, params)
            )
        else:
            rows = Variational(guide=first, params=params)
        return jax.tree.map(jnp.add, rows, public)

    def _public_elbo(self, variational: Variational, draws: jax.Array) -> jax.Array:
        """E_q[log p(z) − log q(z)], averaged over the draws."""
        params = self._constrained(variational.params)

        def particle(draw: jax.Array) -> jax.Array:
            if self.guide is not None:
                return self._automatic_terms(variational.guide, params, draw)
            return self._user_terms(params, draw)

        return jnp.mean(jax.vmap(particle)(draws))

    def _automatic_terms(
        self, arrays: Mapping[str, jax.Array], params: Any, draw: jax.Array
    ) -> jax.Array:
        assert self.guide is not None
        z = self.guide.value(arrays, draw)
        values, log_determinant = self.space.constrain(z)
        messages = self._run_model(values, params)
        if not (self._is_analytic and self.guide.family == "mean_field"):
            priors = [site_log_density(messages[s.name]) for s in self.space.sites]
            return sum(priors, log_determinant) + self.guide.entropy(arrays)
        event_dims = {
            s.name: messages[s.name]["fn"].event_dim for s in self.space.sites
        }
        total = jnp.zeros((), z.dtype)
        for name, fn in self.guide.marginals(arrays, event_dims).items():
            message = {"type": "sample", "fn": fn, "value": values[name], "scale": None}
            total += _prior_term(message, messages[name], is_analytic=True)
        return total

    def _user_terms(self, params: Any, draw: jax.Array) -> jax.Array:
        assert self._user_guide is not None
        drawn = self._user_guide.draw_globals(params, draw)
        messages = self._run_model(drawn.values, params)
        total = jnp.zeros((), jnp.result_type(float))
        for name, message in drawn.messages.items():
            total += _prior_term(message, messages[name], self._is_analytic)
        return total

    def _run_model(self, values: Mapping[str, Any], params: Any) -> Mapping[str, Any]:
        """The model's messages for the globals; the made-up row has no effect there."""
        rows = {name: value[None] for name, value in self._row.items()}
        return self._graph.run(rows, values, params=params)


def check_options(
    *,
    guide: Any = None,
    loss: Any = None,
    num_particles: int = 1,
    perturb: Any = None,
    averaging: float | None = None,
) -> None:
    """Refuses options that DPVI cannot follow, whatever the model.

    Raises:
      TypeError, ValueError: An option is not as `DpviEngine` describes.
    """
    if guide is not None and not callable(guide):
        if not isinstance(guide, str):
            raise TypeError(
                f"Expected guide to be one of {list(FAMILIES)} or a NumPyro function, "
                f"got {type(guide).__name__}."
            )
        _validate.one_of(FAMILIES, guide=guide)
    if loss is not None and not isinstance(loss, Trace_ELBO | TraceMeanField_ELBO):
        raise TypeError(
            "Expected loss to be numpyro.infer.Trace_ELBO() or TraceMeanField_ELBO(), "
            f"got {type(loss).__name__}. Other bounds do not split into rows."
        )
    if loss is not None:
        num_particles = max(num_particles, loss.num_particles)
    if perturb is not None:
        _validate.one_of(("location", "all"), perturb=perturb)
    if perturb == "location" and num_particles > 1:
        raise ValueError(
            f"Expected num_particles={num_particles} to be 1 with "
            "perturb='location': the guide's gradient can only be rebuilt for a "
            "single draw. Use perturb='all', or more rows per step."
        )
    if averaging is not None and not averaging >= 0:
        raise ValueError(f"Expected averaging={averaging!r} to be None or at least 0.")


def _default_optimizer(
    sizes: Sequence[int], guide: NormalGuide | None
) -> optax.GradientTransformation:
    """`noisy_adam`, at a rate for every kind of array.

    The columns of a covariance's factor act together, so each gets a share of the rate.
    """
    kinds: dict[Any, optax.GradientTransformation] = {
        "coordinate": noisy_adam(sizes),
        "factor": noisy_adam(
            sizes, learning_rate=LEARNING_RATE / max(1, guide.rank if guide else 1)
        ),
        "param": noisy_adam(learning_rate=PARAMETER_LEARNING_RATE),
    }

    def labels(variational: Any) -> Any:
        arrays: Any = {
            name: "factor" if name == "factor" else "coordinate"
            for name in variational.guide
        }
        params = jax.tree.map(lambda _: "param", variational.params)
        return Variational(guide=arrays, params=params)

    return optax.multi_transform(kinds, labels)


def not_supported(graph: ModelGraph, *, has_guide: bool = False) -> str | None:
    """Why DPVI cannot run the model, and what to do; None if it can.

    Args:
      graph: The model.
      has_guide: Whether the user has given a guide, which may draw latents of rows.
    """
    count = num_joint_states(graph)
    for site in graph.latents("local"):
        if site.is_discrete and "scale" in graph.program_outputs[site.name]:
            # NumPyro sums out before it scales: c · log Σ_z p(z, x).
            return (
                f"DPVI cannot sum out the discrete latent {site.name!r} under "
                "numpyro.handlers.scale. Sum it out by hand, for example with "
                "numpyro.distributions.MixtureSameFamily, and scale the observation."
            )
        if site.is_discrete and count is not None and count <= MAX_JOINT_STATES:
            continue
        if site.is_discrete:
            return (
                f"DPVI sums the discrete latents of a row out one joint state after "
                f"the other, and with {site.name!r} under the plate {graph.unit!r} "
                f"they have more than {MAX_JOINT_STATES}. Sum them out by hand, for "
                "example with numpyro.distributions.MixtureSameFamily."
            )
        if has_guide:
            continue
        return (
            f"DPVI has no guide of its own for latents of single rows, such as "
            f"{site.name!r} under the plate {graph.unit!r}. Pass guide=, a function "
            "that draws them from the row (an amortised guide), integrate them out by "
            "hand, or write the model with conjugate distributions, which VIPS solves "
            "row by row."
        )
    sites = graph.latents("global")
    for site in sites:
        if site.is_discrete:
            return (
                f"DPVI has no gradient for the discrete latent {site.name!r}. Sum it "
                "out by hand, or fit one model for each of its values."
            )
    if not sites and not graph.params:
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
    return None


def _reads(function: Callable[..., Any], *arguments: Any) -> Any:
    """For every leaf of the arguments, whether the function's value depends on it."""
    traced = jax.make_jaxpr(function)(*arguments)
    _, used = partial_eval.dce_jaxpr(traced.jaxpr, [True])
    return jax.tree.unflatten(jax.tree.structure(arguments), used)


def _latent_names(graph: ModelGraph) -> list[str]:
    return [site.name for site in graph.sites.values() if site.is_latent]


def _divergence(
    message: Mapping[str, Any], prior: Mapping[str, Any]
) -> jax.Array | None:
    """KL(q ‖ p) of a site where NumPyro knows it in closed form, else None."""
    if message["type"] != "sample":
        return None
    try:
        divergence = kl_divergence(message["fn"], prior["fn"])
    except NotImplementedError:
        return None
    scale = prior["scale"]
    return jnp.sum(divergence if scale is None else scale * divergence)


def _prior_term(
    message: Mapping[str, Any], prior: Mapping[str, Any], is_analytic: bool
) -> jax.Array:
    """A site's E_q[log p − log q], in closed form or at the draw."""
    divergence = _divergence(message, prior) if is_analytic else None
    if divergence is not None:
        return -divergence
    log_q = site_log_density(message) if message["type"] == "sample" else 0.0
    return site_log_density(prior) - log_q


def _fingerprint(row: Mapping[str, Any]) -> jax.Array:
    """A number made of the bits of a row, to tell the draws of rows apart.

    It need not be secure: draws of single rows protect nothing and are not released.
    """
    total = jnp.zeros((), jnp.uint32)
    rng = np.random.default_rng(0)
    for leaf in jax.tree.leaves(row):
        bits = jax.lax.bitcast_convert_type(
            jnp.ravel(leaf).astype(jnp.float32), jnp.uint32
        )
        factors = rng.integers(0, 2**32, bits.shape, dtype=np.uint32) | np.uint32(1)
        total += jnp.sum(bits * factors, dtype=jnp.uint32)
    return total


def _guide_site(site: Site, support: Any) -> GuideSite:
    dims: list[str] = []
    if site.plates:
        for axis in range(max(site.plates) + 1):
            dims.append(site.plates.get(axis, f"{site.name}_dim_{axis}"))
    return GuideSite(
        name=site.name, support=support, shape=site.shape, dims=tuple(dims)
    )


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
