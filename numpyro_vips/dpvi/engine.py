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

Continuous latents of single rows are solved for where they are conjugate given the
globals (`conjugate_locals.py`), integrated out where there are one or two of another
kind (`integrated_locals.py`), or drawn by the user's guide from the row
(`user_guides.py`). A row's part of the ELBO is then log p(row, local | z, θ) −
log q(local | row, θ), and the encoder's parameters are among θ. Nothing else of these
latents exists.

Without clipping, noise and subsampling, (released gradient) + (gradient of the prior
and the entropy) is the gradient that `numpyro.infer.Trace_ELBO` gives `SVI` with the
same guide. Terms that do not read a row are public; they are added afterwards and never
clipped. Globals that no observation depends on directly, such as the scale of a prior,
get no noise at all, for nothing about them is released.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Float64, Int, PRNGKeyArray, Shaped
from numpyro.distributions import biject_to
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO

from numpyro_vips import _validate
from numpyro_vips.dpvi.automatic_guides import LARGEST_SCALE, Family, NormalGuide
from numpyro_vips.dpvi.checks import check_options, not_supported
from numpyro_vips.dpvi.elbo import PublicElbo, RowElbo, constrained
from numpyro_vips.dpvi.full_batch import LogJoint
from numpyro_vips.dpvi.guides import DrawsPosterior, GuideSite, UnconstrainedSpace
from numpyro_vips.dpvi.iterates import (
    DpviState,
    Variational,
    drift_of_iterates,
    for_program,
    with_drift,
)
from numpyro_vips.dpvi.locals_of_rows import find_locals_of_rows
from numpyro_vips.dpvi.noise_aware import MOST_INFORMED, NoiseAware
from numpyro_vips.dpvi.noisy_adam import default_optimizer
from numpyro_vips.dpvi.row_gradients import Released, RowGradients, Shared
from numpyro_vips.dpvi.row_information import Point, has_edges
from numpyro_vips.dpvi.score_likelihood import NoiseAwareNormal
from numpyro_vips.dpvi.user_guides import UserGuide
from numpyro_vips.dpvi.variational_newton import Normal, Target
from numpyro_vips.dpvi.without_noise import MOST_GLOBALS, fit_normal
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.jax_tools.compiling_ahead import jit_ahead
from numpyro_vips.jax_tools.double_precision import evaluate_in_double
from numpyro_vips.jax_tools.jaxprs import with_used_inputs
from numpyro_vips.jax_tools.program_constants import listed
from numpyro_vips.jax_tools.quick_compilation import jit_of_globals, jit_unoptimized
from numpyro_vips.jax_tools.random_keys import as_threefry, threefry_key
from numpyro_vips.jax_tools.row_sums import counts_of_parts
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.graph import ModelGraph, Site
from numpyro_vips.model.log_joint import synthetic_row
from numpyro_vips.model.prior_centre import (
    global_values,
    initial_params,
    unconstrained_scale,
)
from numpyro_vips.model.sparse_rows import dense_rows
from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.privacy.releases import INFORMATION, Release, Together
from numpyro_vips.result import Posterior
from numpyro_vips.vips.noisy_information import Information

Perturb = Literal["location", "all"]
# Numbers, or keys for a user's guide.
Draws = Shaped[Array, "particles ..."]

DEFAULT_STEPS = 200
# Without noise a gradient step costs no budget, only time.
DEFAULT_STEPS_WITHOUT_NOISE = 500
# Fewer steps are longer ones, up to this factor, and more are shorter.
LONGEST_STEP = 2.0
# Newton's method has all rows in memory.
MOST_ROW_NUMBERS = 2**27
NUM_STARTS = 6
# How often the globals are moved to where rows have a gradient.
MOVES = 8
# Standard deviation of a prior from which on steps at the default rate are too short to
# reach where its mass is, within the default number of steps.
WIDE_PRIOR = 10.0
_NOT_NOISE_AWARE = (
    "The posterior is the guide, whose intervals know nothing of the noise: with the "
    "released information the posterior would not be finite. A larger epsilon, more "
    "rows or priors that are less wide help."
)


class DpviEngine:
    """Per-row ELBO gradients and public optimiser steps for one model.

    Attributes:
      name: `"dpvi"`.
      space: The globals and their layout in flat vectors.
    """

    name = "dpvi"
    is_one_vector = True

    def __init__(
        self,
        graph: ModelGraph,
        *,
        guide: Family | Callable[..., Any] | None = None,
        optimizer: optax.GradientTransformation | None = None,
        loss: Trace_ELBO | TraceMeanField_ELBO | None = None,
        num_particles: int | None = None,
        perturb: Perturb | None = None,
        averaging: float | None = 3.0,
        local_steps: int | None = None,
        until_converged: bool = False,
    ) -> None:
        """Traces the model on a single synthetic row; no private value is read.

        Args:
          graph: The model.
          guide: `"mean_field"`, `"full_rank"` or `"low_rank"` for a Normal on the
            unconstrained globals, or a NumPyro function, see `user_guides.py`. By
            default `"full_rank"` where `until_converged` finds it by Newton's method,
            else `"mean_field"`.
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
          local_steps: Sweeps over the latents of a row, where the conjugacy layer
            solves for them.
          until_converged: Whether the fit is without noise and free to run until it has
            converged. With few globals, no parameters beside them and no settings that
            say how to go, this is by Newton's method, see `without_noise.py`.

        Raises:
          UnsafeModelError: For the reason that `not_supported` or
            `find_locals_of_rows`
            gives, or because the guide does not fit the model.
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
        self._takes_newton_steps = (
            until_converged
            and (guide is None or guide in ("mean_field", "full_rank"))
            and (optimizer, loss) == (None, None)
            and (num_particles, perturb) == (1, "location")
            and not graph.params
            and _num_numbers(graph) <= MOST_ROW_NUMBERS
            and _num_globals(graph) <= MOST_GLOBALS
        )
        if guide is None:
            guide = "full_rank" if self._takes_newton_steps else "mean_field"
        self._num_rows = graph.arguments.public_num_rows
        self._row = synthetic_row(graph)
        self._user_guide = UserGuide(guide, graph) if callable(guide) else None
        self._locals = None
        if self._user_guide is None:
            self._locals = find_locals_of_rows(graph, sweeps=local_steps)
        self._row_elbo = RowElbo(
            graph=graph,
            user_guide=self._user_guide,
            locals_of_rows=self._locals,
            is_analytic=self._is_analytic,
        )
        self._constraints = dict(graph.params)
        if self._user_guide is not None:
            self._constraints = self._user_guide.constraints | self._constraints
        self._has_own_optimizer = optimizer is not None
        self._lay_out(guide)
        if optimizer is None:
            sizes = [math.prod(site.unconstrained_shape) for site in self.space.sites]
            optimizer = default_optimizer(sizes, self.guide.rank if self.guide else 0)
        self._optimizer = optimizer
        self._jitted_sum = jit_ahead(self._sum)
        self._jitted_information = jit_ahead(self._information)
        self._jitted_norms = jit_unoptimized(self._norms)
        self._jitted_counts = jit_ahead(self._counts, static_argnums=6)
        self._jitted_update = jit_of_globals(self._updated)

    def _lay_out(self, guide: Any) -> None:
        """Finds the globals' layout, one row's program and what it reads."""
        graph = self._graph
        found = global_values(graph)
        sites = [
            _guide_site(site, found.supports[site.name])
            for site in graph.latents("global")
        ]
        scales = {s.name: unconstrained_scale(found.priors[s.name]) for s in sites}
        if self._has_units(guide):
            sites = [
                dataclasses.replace(site, unit=_unit(scales[site.name]))
                for site in sites
            ]
            scales = {site.name: scales[site.name] / site.unit for site in sites}
        params = self._initial_params(threefry_key(0))
        centres = evaluate_in_double(
            lambda: {s.name: s.transform.inv(found.centres[s.name]) for s in sites}
        )

        def row_elbo(free: Any, params: Any, row: Any, key: Any) -> Any:
            values = {s.name: s.transform(free[s.name]) for s in sites}
            return self._row_elbo(values, self._constrained(params), row, key)

        def density(free: Mapping[str, Any], params: Any) -> Float[Array, ""]:
            return row_elbo(free, params, self._row, threefry_key(0))[0]

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
        start = np.concatenate(
            [np.zeros(0), *(np.ravel(centres[site.name]) for site in space.sites)]
        )
        start = np.where(np.isfinite(start), start, 0.0)
        self._start = start = jnp.asarray(start, jnp.result_type(float))
        self._prior_scale = np.concatenate(
            [np.zeros(0), *(np.ravel(scales[site.name]) for site in space.sites)]
        )
        # How far a step may go, as a factor on the optimiser's: the prior is public.
        self._reach = _reach(self._prior_scale).astype(start.dtype)
        self.guide = None
        if not callable(guide):
            self.guide = NormalGuide(space, guide, num_rows=self._num_rows)
        used_guide = self._user_guide if self.guide is None else self.guide
        assert used_guide is not None
        self._public_elbo = PublicElbo(
            graph, space, used_guide, is_analytic=self._is_analytic
        )
        self._released = self._find_released(
            [site.name for site in read.sites], used[1]
        )
        program = jax.make_jaxpr(row_elbo)(
            space.split(start), params, self._row, threefry_key(0)
        )
        self._log_joint = LogJoint(
            lambda free, row: row_elbo(free, {}, row, threefry_key(0)),
            lambda z: self._public_elbo.log_prior(z, {}),
            space,
        )
        self._row_gradients = RowGradients(
            program,
            self._released,
            num_particles=self._num_particles,
            arguments=None if self._perturb == "location" else self._arguments,
        )
        key = threefry_key(0)
        shared = jax.eval_shape(
            self._shared, self._initial(key), *self._draws_at(key, np.int32(0))
        )
        self._row_gradients.check(shared, self._row, graph.arguments)
        self._noise_aware = self._find_noise_aware(program, read.size)

    def _has_units(self, guide: Any) -> bool:
        """Whether globals are in units of how far their steps go.

        Rows' gradients are clipped, and get their noise, in these: a mean whose prior
        has a standard deviation of 50 would be hidden by what its scale adds. Networks
        stay as they are, for a matrix that is scaled is no longer one that is told by
        its inputs and outputs (`factored_gradients.py`).
        """
        return (
            isinstance(guide, str)
            and not self._takes_newton_steps
            and not self._has_own_optimizer
            and _num_globals(self._graph) <= MOST_INFORMED
        )

    def _find_noise_aware(
        self, program: jex_core.ClosedJaxpr, num_read: int
    ) -> NoiseAware | None:
        """What makes the posterior know of the noise; None where the guide stays.

        It stays where there are many globals, where gradients in the globals are not
        what is released, where the caller asks for a guide or an iterate as it is, and
        next to parameters without a prior, with which the rows' density changes.
        """
        if (
            self.guide is None
            or self.guide.family == "low_rank"
            or self._perturb == "all"
            or self._averaging is None
            or self._takes_newton_steps
            or self._graph.params
            or not num_read
            or self.space.size > MOST_INFORMED
        ):
            return None

        def inputs(point: Point, row: Mapping[str, Any]) -> list[Any]:
            return jax.tree.leaves((self.space.split(point), row, threefry_key(0)))

        globals_in_program = jax.tree.leaves(self.space.split(self._start))
        found = NoiseAware(
            program,
            inputs,
            log_prior=lambda z: self._public_elbo.log_prior(z, {}),
            space=self.space,
            num_read=num_read,
            prior_stddev=self._prior_scale,
            has_second_derivative=self._locals is None
            and not has_edges(program, len(globals_in_program)),
        )
        found.check(self._start, self._row, self._graph.arguments)
        return found

    def _initial_params(self, rng_key: PRNGKeyArray) -> dict[str, Any]:
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
        return constrained(params, self._constraints)

    def _find_released(self, read: Sequence[str], reads_param: Any) -> list[Released]:
        """What a step releases.

        Args:
          read: Names of the globals that observations depend on, in order.
          reads_param: The same of every parameter, by leaf.
        """
        variational = self._initial(threefry_key(0))
        free = self.space.split(self._start)
        num_read = sum(math.prod(free[name].shape) for name in read)
        if self._perturb == "all" and self._user_guide is not None and num_read:

            def density(variational: Variational) -> Float[Array, ""]:
                (draw,) = jax.random.split(threefry_key(0), 1)
                z, params = self._value(variational, draw), variational.params
                values = self.space.constrain(z)[0]
                params = self._constrained(params)
                return self._row_elbo(values, params, self._row, threefry_key(0))[0]

            reads_param = _reads(density, variational)[0].params
        reads = iter(jax.tree.leaves(reads_param))
        tree = self._tree(variational, self._start)
        leaf_of, released = {}, []
        for leaf, (path, array) in enumerate(jax.tree.leaves_with_path(tree)):
            if path[0].idx == 0:
                leaf_of[path[1].key] = leaf, array.shape
            elif next(reads):
                keys = (jax.tree_util.keystr((k,), simple=True) for k in path[1:])
                block = Block(name="param " + "/".join(keys), shape=array.shape)
                released.append(Released(block, (leaf,)))
        if not num_read:
            return released
        if self._perturb == "location":
            leaves = tuple(leaf_of[name][0] for name in read)
            return [Released(Block(name="loc", shape=(num_read,)), leaves), *released]
        of_guide = [
            Released(Block(name=name, shape=(num_read, *shape[1:])), (leaf,), num_read)
            for name, (leaf, shape) in leaf_of.items()
        ]
        return [*of_guide, *released]

    def _tree(
        self, variational: Variational, z: Float[Array, " size"]
    ) -> tuple[Any, Any]:
        """The arrays in which rows' gradients are taken: the globals or φ, and θ."""
        is_location = self._perturb == "location"
        first = self.space.split(z) if is_location else variational.guide
        return first, variational.params

    def _arguments(
        self, tree: tuple[Any, Any], draw: Shaped[Array, "..."]
    ) -> tuple[Any, Any]:
        """The globals and parameters at a draw, where the tree is (φ, θ)."""
        guide, params = tree
        z = self._value(Variational(guide=guide, params=params), draw)
        return self.space.split(z), params

    # --- the engine's protocol ------------------------------------------------------

    @property
    def balanced(self) -> frozenset[str]:
        """All blocks: gradients add up to zero at the optimum."""
        return frozenset(released.block.name for released in self._released)

    @property
    def growing(self) -> frozenset[str]:
        """None: a gradient's norm is never taken for the structure's."""
        return frozenset()

    @property
    def recentred(self) -> frozenset[str]:
        """None: gradients are taken where the globals are, in every step."""
        return frozenset()

    @property
    def together(self) -> tuple[Together, ...]:
        """None: all blocks are one vector anyway."""
        return ()

    def recentre(self, state: DpviState) -> DpviState:
        """The state as it is."""
        return state

    def stretched(self, state: DpviState) -> Mapping[str, float]:
        """None."""
        return {}

    def blocks(self, release: Release) -> tuple[Block, ...]:
        """What each step releases, and the information for the posterior.

        `"loc"` is the gradient in the globals, and `"param …"` that in an array of
        parameters without a prior; with `perturb="all"` there is every parameter of the
        guide in place of `"loc"`. Only what observations depend on is released.
        """
        if release == "information" and self._noise_aware is not None:
            return (self._noise_aware.block,)
        if release != "adaptive":
            return ()
        return tuple(released.block for released in self._released)

    def default_num_steps(self, *, is_private: bool, until_converged: bool) -> int:
        if self._takes_newton_steps:
            return 0  # It is not known beforehand how many there will be.
        return DEFAULT_STEPS if is_private else DEFAULT_STEPS_WITHOUT_NOISE

    def step_sizes(
        self, num_steps: int, *, is_private: bool, is_full: bool
    ) -> tuple[float, ...]:
        """Factors on the learning rate, all alike.

        Under noise all steps together should go a fixed distance: the noise of a step
        grows like the root of the number of steps, so that with more steps each is
        shorter. An optimiser of the caller's own goes as far as it says.
        """
        if not is_private or self._has_own_optimizer:
            return (1.0,) * num_steps
        return (min(LONGEST_STEP, DEFAULT_STEPS / num_steps),) * num_steps

    def initial_state(self, rng_key: PRNGKeyArray) -> DpviState:
        """The guide at the prior's centre, slightly jittered, with small scales."""
        start_key, key = jax.random.split(as_threefry(rng_key))
        variational: Any = self._initial(start_key)
        return DpviState(
            variational=variational,
            average=variational,
            optimizer_state=self._optimizer.init(variational),
            key=key,
            step=jnp.zeros((), jnp.int32),
            score=None
            if self._noise_aware is None
            else self._noise_aware.no_score(self._start.dtype),
        )

    def _initial(self, rng_key: PRNGKeyArray) -> Variational:
        guide_key, params_key = jax.random.split(rng_key)
        arrays = {}
        if self.guide is not None:
            # Steps are as long, so a start farther off would never be left.
            arrays = self.guide.initial(self._start, guide_key, self._reach)
        return Variational(guide=arrays, params=self._initial_params(params_key))

    def bounded_sum(
        self,
        state: DpviState,
        rows: Mapping[str, Any],
        mask: Any,
        *,
        scales: Mapping[str, float],
        clipping_norm: float,
    ) -> dict[str, Float64[np.ndarray, "..."]]:
        """Sums the rows' clipped gradients over one chunk of the step's batch.

        Guarantees:
          Adding or removing one row changes the sum, its blocks times `scales` joined
          into one vector, by at most `clipping_norm` in L2 norm up to the rounding of a
          sum in double precision, whatever the rows hold. Each row's gradient comes
          from a program of that row alone.

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
          The sum of every block in `scales`, not yet private.
        """
        if INFORMATION in scales and self._noise_aware is not None:
            # The joint vector is this block, at scale 1.
            point = state.average.guide["loc"]
            found = self._jitted_information(
                point, dict(rows), mask, float(clipping_norm)
            )
            return {INFORMATION: np.asarray(found)}
        key, draws = self._draws(state)
        found = self._jitted_sum(
            state.variational,
            key,
            draws,
            dict(rows),
            mask,
            {b.name: float(scales[b.name]) for b in self.blocks("adaptive")},
            float(clipping_norm),
        )
        return {name: np.asarray(found[name]) for name in scales}

    def update(
        self,
        state: DpviState,
        released: Mapping[str, Any],
        noise_stddev: Mapping[str, float],
        step_size: float,
    ) -> DpviState:
        """One optimiser step on the negative ELBO, from public quantities alone.

        Args:
          state: The state that was given to `bounded_sum`.
          released: Noisy sums of every block over the sampling rate, so that they
            estimate the sums over all rows. The information is kept for the posterior.
          noise_stddev: Standard deviation of the noise in the entries of `released`;
            not used by the optimiser, but for the posterior. Whether there is any
            decides what drift counts as convergence.
          step_size: Factor on the optimiser's update.
        """
        if INFORMATION in released:
            information = Information(
                np.asarray(released[INFORMATION], np.float64), noise_stddev[INFORMATION]
            )
            return state._replace(information=information)
        dtype = self._start.dtype
        arrays = {name: np.asarray(value, dtype) for name, value in released.items()}
        _, draws = self._draws(state)
        variance = noise_stddev.get("loc", 0.0) ** 2
        updated = self._jitted_update(
            for_program(state), draws, arrays, float(step_size), variance
        )
        is_noisy = any(stddev > 0 for stddev in noise_stddev.values())
        return with_drift(updated, state, is_noisy=is_noisy)

    def row_norms(
        self, state: DpviState, rows: Mapping[str, Any], names: Sequence[str]
    ) -> dict[str, Float[np.ndarray, " rows"]]:
        """Norms of unclipped contributions of rows that the caller may see.

        Such as synthetic ones: from their sizes a clipping norm can be chosen. Where no
        row has a gradient, as of `jnp.clip(w, 0, 1)` at a negative w, the globals move
        away from the state, as far as their prior is wide.

        Returns:
          For every named block one norm per row; NaN where the row would count as zero.
        """
        key, draws = self._draws(state)
        variational, rows = state.variational, dict(rows)
        found = self._jitted_norms(variational, key, draws, rows)
        if "loc" in variational.guide:
            loc = variational.guide["loc"]
            for noise in np.random.default_rng(0).normal(size=(MOVES, len(loc))):
                if any(np.any(np.asarray(found[name]) > 0) for name in names):
                    break
                moved = loc + jnp.asarray(self._prior_scale * noise, loc.dtype)
                at = variational._replace(guide={**variational.guide, "loc": moved})
                found = self._jitted_norms(at, key, draws, rows)
        return {name: np.asarray(found[name]) for name in names}

    def norm_counts(
        self,
        state: DpviState,
        rows: Mapping[str, Any],
        mask: Any,
        *,
        parts: Mapping[str, Sequence[str]],
        edges: Mapping[str, Float64[np.ndarray, " _edges"]],
    ) -> dict[str, Float64[np.ndarray, " _bins"]]:
        """In how many of the chunk's rows each norm lies in which bin, not yet private.

        See `fitting.engine.Engine.norm_counts`.
        """
        key, draws = self._draws(state)
        names = tuple((part, tuple(blocks)) for part, blocks in parts.items())
        with jax.enable_x64(True):
            double = {part: jnp.asarray(edges[part]) for part in parts}
        found = self._jitted_counts(
            state.variational, key, draws, dict(rows), mask, double, names
        )
        return {name: np.asarray(counts) for name, counts in found.items()}

    def has_posterior(self, state: DpviState) -> bool:
        """Always: a guide has parameters from the start."""
        return True

    def released(self, state: DpviState) -> dict[str, np.ndarray]:
        """The last iterate's arrays, which released gradients have made."""
        return {
            jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)
            for path, leaf in jax.tree.leaves_with_path(state.variational)
        }

    def diagnostics(self, state: DpviState) -> dict[str, Any]:
        """What is known of how good the posterior is."""
        if state.diagnostics is not None:
            return dict(state.diagnostics)
        if self._takes_newton_steps:
            return {}
        sizes = {x.name: math.prod(x.unconstrained_shape) for x in self.space.sites}
        found = self._noise_aware_normal(state)
        if found is not None:
            normal = found.normal
            return drift_of_iterates(state, sizes, normal.stddev, normal.loc)
        log_scale = state.average.guide.get("log_scale", np.zeros(0))
        stddev = np.exp(np.asarray(log_scale, np.float64))
        diagnostics = drift_of_iterates(state, sizes, stddev)
        if state.information is not None:
            found = [*diagnostics.get("warnings", ()), _NOT_NOISE_AWARE]
            diagnostics = {**diagnostics, "warnings": found}
        return diagnostics

    def until_converged(
        self, state: DpviState, arguments: ModelArguments
    ) -> Iterator[DpviState] | None:
        """Newton steps on the ELBO of all rows, where they are asked for."""
        return (
            self._newton_states(state, arguments) if self._takes_newton_steps else None
        )

    def has_converged(self, state: DpviState) -> bool:
        """Gradient steps are as many as were planned; Newton's end by themselves."""
        return False

    def other_starts(self, rng_key: PRNGKeyArray) -> list[DpviState]:
        """None: Newton's method tries several by itself."""
        return []

    def best(self, states: Sequence[DpviState], arguments: ModelArguments) -> DpviState:
        """The first; there are no others."""
        return states[0]

    def informed(self, state: DpviState, arguments: ModelArguments) -> DpviState:
        """The same: the guide is fitted to its own width."""
        return state

    # --- the model's density, for posteriors that others have found -------------------

    @property
    def integrates_exactly(self) -> bool:
        """Whether rows have their own density, at most by quadrature, and no bound."""
        return self._locals is None or self._locals.method != "bound"

    def unconstrained(
        self, draws: Mapping[str, Shaped[Array, "draws ..."]]
    ) -> tuple[Float[Array, "draws size"], Float[Array, " draws"]]:
        """Draws of the globals as vectors.

        Returns:
          The vectors, and what the log density of a draw lacks to that of its vector.
        """

        def of_draw(values: Mapping[str, Any]) -> tuple[Array, Array]:
            free = {s.name: s.transform.inv(values[s.name]) for s in self.space.sites}
            vector = self.space.join(free)
            return vector, self.space.constrain(vector)[1]

        return jax.vmap(of_draw)(dict(draws))

    def log_joint(
        self, arguments: ModelArguments, tried: Float64[np.ndarray, "points size"]
    ) -> tuple[Target, int]:
        """See `full_batch.LogJoint.with_rows`; only where rows may be looked at."""
        return self._log_joint.with_rows(arguments, tried)

    def _newton_states(
        self, state: DpviState, arguments: ModelArguments
    ) -> Iterator[DpviState]:
        assert self.guide is not None
        # The key decides about starts and draws, as it does about jitter elsewhere.
        rng = np.random.default_rng(np.asarray(jax.random.key_data(state.key)))
        starts = self._newton_starts(state.variational.guide["loc"], rng)
        tried = np.stack([start.loc for start in starts])
        target, per_second = self._log_joint.with_rows(arguments, tried)
        for fit in fit_normal(
            target,
            starts,
            rng,
            diagonal=self.guide.family == "mean_field",
            most_points=per_second,
        ):
            arrays = self.guide.arrays_of(fit.normal.loc, fit.normal.tril)
            variational = Variational(guide=arrays, params={})
            yield state._replace(
                variational=variational,
                average=variational,
                step=jnp.asarray(fit.num_steps),
                diagnostics=fit.diagnostics,
            )

    def _newton_starts(
        self, loc: Float[Array, " size"], rng: np.random.Generator
    ) -> list[Normal]:
        """Narrow Normals at a place, and as far from it as the prior is wide."""
        centre = np.asarray(loc, np.float64)
        scale = self._prior_scale
        tril = np.diag(LARGEST_SCALE * scale)
        others = rng.normal(size=(NUM_STARTS - 1, len(centre)))
        return [Normal(at, tril) for at in (centre, *(centre + scale * others))]

    def posterior(self, state: DpviState) -> Posterior:
        """The guide at the averaged iterate."""
        average = state.average
        points = self._constrained(average.params)
        found = self._noise_aware_normal(state)
        if found is not None and self._noise_aware is not None:
            return self._noise_aware.posterior(found)
        if self.guide is not None:
            return self.guide.posterior(average.guide, points)

        return DrawsPosterior.of(self.space.sites, points, self._drawing(points))

    def _noise_aware_normal(self, state: DpviState) -> NoiseAwareNormal | None:
        """The posterior that knows of the noise.

        None before what it needs is known, or where it is not finite.
        """
        if self._noise_aware is None or state.information is None:
            return None
        assert state.score is not None
        arrays = state.average.guide
        start = Normal(
            np.asarray(arrays["loc"], np.float64),
            np.diag(np.exp(np.asarray(arrays["log_scale"], np.float64))),
        )
        try:
            found = self._noise_aware.normal(state.score, state.information, start)
        except np.linalg.LinAlgError:
            return None
        # As wide as noise makes it, a scale may overflow.
        if found is None or self._noise_aware.posterior(found).problems():
            return None
        return found

    def _drawing(self, points: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
        """Draws the globals by the user's guide from a key.

        It is a program by itself: a result that held the guide would hold the graph
        that it was checked with, and with that the rows.
        """
        assert self._user_guide is not None
        guide = self._user_guide

        def draw(rng_key: PRNGKeyArray) -> dict[str, Float[Array, "..."]]:
            return guide.draw_globals(points, rng_key).values

        program, shapes = jax.make_jaxpr(draw, return_shape=True)(threefry_key(0))
        structure = jax.tree.structure(shapes)
        return functools.partial(_drawn, jex_core.jaxpr_as_fun(program), structure)

    @property
    def captured(self) -> Mapping[str, Shaped[np.ndarray, "..."]]:
        """Arrays that the user's guide holds itself; they are treated as public."""
        return {} if self._user_guide is None else self._user_guide.captured

    def describe_site(self, name: str) -> dict[str, Any]:
        """The posterior of a latent, for `explain`."""
        is_latent = self._graph.sites[name].is_latent
        return {"posterior": self._describe_posterior(name)} if is_latent else {}

    def describe_statistics(self) -> list[dict[str, Any]]:
        """Name, shape and release label of what a row adds to."""
        kinds: tuple[Release, ...] = ("adaptive", "information")
        return [
            {"statistic": b.name, "shape": list(b.shape), "released": kind}
            for kind in kinds
            for b in self.blocks(kind)
        ]

    def notes(self) -> Iterable[str]:
        """What else to know, for `explain`."""
        method = None if self._locals is None else self._locals.method
        if self._locals is not None and method == "integral":
            names = ", ".join(map(repr, self._locals.solved))
            yield (
                f"{names}, which every row has its own of, is integrated out by "
                "Gauss-Hermite quadrature about where the row's density of it lies. "
                "Of a density with several modes far apart a part may be missed."
            )
        if self._locals is not None and method == "bound":
            names = ", ".join(map(repr, self._locals.solved))
            yield (
                f"Of {names}, which every row has its own of, the log density is "
                "replaced by a bound. It is looser the less a row says of them, and "
                "makes them matter less: globals that scale them come out too small."
            )
        if self._takes_newton_steps:
            yield "Newton steps until fresh draws leave the posterior where it is."
        if self.captured:
            names = ", ".join(listed(sorted(self.captured)))
            yield f"Treated as public because the guide holds them: {names}."

    def describe_sparse_rows(self, name: str) -> str:
        """How an argument whose rows store few entries is worked on."""
        return ". DPVI writes the row out again"

    def _describe_posterior(self, name: str) -> str:
        if self.guide is None:
            assert self._user_guide is not None
            is_drawn = name in (*self._user_guide.globals, *self._user_guide.locals)
            return "the given guide" if is_drawn else "summed out"
        if self._locals is not None and name in self._locals.solved:
            return {
                "exact": "conjugate, solved per row",
                "quadrature": "quadrature, per row",
                "integral": "quadrature, per row",
                "bound": "a bound, solved per row",
            }[self._locals.method]
        if self._graph.sites[name].row_axis is not None:
            return "summed out"
        family = self.guide.family.replace("_field", "-field").replace("_rank", "-rank")
        return f"Normal (unconstrained, {family})"

    # --- one row and one chunk --------------------------------------------------------

    def _draws(self, state: DpviState) -> tuple[PRNGKeyArray, Draws]:
        """The step's key, and its ε, one entry per particle.

        These are numbers, or keys for a user's guide.
        """
        return self._draws_at(state.key, state.step)

    def _draws_at(self, key: PRNGKeyArray, step: Any) -> tuple[PRNGKeyArray, Draws]:
        size = None if self.guide is None else self.guide.num_draws
        return _draws_of_step(
            key,
            step,
            count=self._num_particles,
            size=size,
            dtype=self._start.dtype,
        )

    def _value(
        self, variational: Variational, draw: Shaped[Array, "..."]
    ) -> Float[Array, " size"]:
        """z(φ, ε): the unconstrained globals that a draw stands for."""
        if self.guide is not None:
            return self.guide.value(variational.guide, draw)
        assert self._user_guide is not None
        params = self._constrained(variational.params)
        values = self._user_guide.draw_globals(params, draw).values
        free = {s.name: s.transform.inv(values[s.name]) for s in self.space.sites}
        return self.space.join(free)

    def _shared(
        self, variational: Variational, key: PRNGKeyArray, draws: Draws
    ) -> Shared:
        """What the rows of a step need to know, at the step's key and draws."""
        z = self._start
        if self._perturb == "location":
            z = self._value(variational, draws[0])
        return Shared(self._tree(variational, z), draws, key)

    def _sum(
        self,
        variational: Variational,
        key: PRNGKeyArray,
        draws: Draws,
        rows: Mapping[str, Any],
        mask: Bool[Array, " rows"],
        scales: Mapping[str, Any],
        clipping_norm: Any,
    ) -> dict[str, Float[Array, "..."]]:
        shared = self._shared(variational, key, draws)
        return self._row_gradients.clipped_sum(
            shared, self._as_traced(rows), mask, scales, clipping_norm
        )

    def _information(
        self,
        point: Point,
        rows: Mapping[str, Any],
        mask: Bool[Array, " rows"],
        clipping_norm: Any,
    ) -> Float[Array, "read read"]:
        assert self._noise_aware is not None
        return self._noise_aware.clipped_sum(
            point, self._as_traced(rows), mask, clipping_norm
        )

    def _norms(
        self,
        variational: Variational,
        key: PRNGKeyArray,
        draws: Draws,
        rows: Mapping[str, Any],
    ) -> dict[str, Float[Array, " rows"]]:
        shared = self._shared(variational, key, draws)
        return self._row_gradients.norms(shared, self._as_traced(rows))

    def _counts(
        self,
        variational: Variational,
        key: PRNGKeyArray,
        draws: Draws,
        rows: Mapping[str, Any],
        mask: Bool[Array, " rows"],
        edges: Mapping[str, Any],
        parts: tuple[tuple[str, tuple[str, ...]], ...],
    ) -> dict[str, Float[Array, " _bins"]]:
        norms = self._norms(variational, key, draws, rows)
        return counts_of_parts(norms, mask, parts, edges)

    def _as_traced(self, rows: Mapping[str, Any]) -> dict[str, Shaped[Array, "..."]]:
        """Dense rows of the dtypes that the model was traced with."""
        shapes = self._graph.arguments.row_shapes()
        rows = dense_rows(rows)
        return {name: jnp.asarray(rows[name], shapes[name].dtype) for name in shapes}

    # --- the public side --------------------------------------------------------------

    def _updated(
        self,
        state: DpviState,
        draws: Draws,
        released: Mapping[str, Float[Array, "..."]],
        step_size: Any,
        noise_variance: Any,
    ) -> DpviState:
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
        if self.guide is not None and not self._has_own_optimizer:
            loc = self._reach * updates.guide["loc"]
            updates = updates._replace(guide={**updates.guide, "loc": loc})
        variational: Any = optax.apply_updates(params, updates)
        step = state.step + 1
        weight = jnp.ones((), self._start.dtype)
        if self._averaging is not None:
            weight = (self._averaging + 1) / (self._averaging + step)
        average = jax.tree.map(
            lambda old, new: old + weight * (new - old), state.average, variational
        )
        score = state.score
        if score is not None:
            z = self._value(state.variational, draws[0])
            score = score.after(step, released["loc"], z, noise_variance)
        return DpviState(
            variational, average, optimizer_state, state.key, step, score=score
        )

    def _elbo_gradient(
        self,
        variational: Variational,
        draws: Draws,
        released: Mapping[str, Float[Array, "..."]],
    ) -> Variational:
        """Ascent direction for the ELBO of all rows."""
        tree = jax.tree.map(jnp.zeros_like, self._tree(variational, self._start))
        leaves, structure = jax.tree.flatten(tree)
        for entry in self._released:
            entry.place(leaves, released[entry.block.name])
        first, params = jax.tree.unflatten(structure, leaves)

        def public_elbo(variational: Variational) -> Float[Array, ""]:
            params = self._constrained(variational.params)
            return self._public_elbo(variational.guide, params, draws)

        public = jax.grad(public_elbo)(variational)
        if self._perturb == "location":
            # The chain rule through z(φ, ε), on what is public already.
            _, pull_back = jax.vjp(lambda v: self._value(v, draws[0]), variational)
            (rows,) = pull_back(self.space.join(first))
            rows = Variational(
                guide=rows.guide, params=jax.tree.map(jnp.add, rows.params, params)
            )
        else:
            rows = Variational(guide=first, params=params)
        return jax.tree.map(jnp.add, rows, public)


def _drawn(
    program: Any, structure: Any, rng_key: PRNGKeyArray
) -> dict[str, Float[Array, "..."]]:
    # A constant comes as a number of JAX's own, which is no array.
    values = [jnp.asarray(value) for value in program(as_threefry(rng_key))]
    return jax.tree.unflatten(structure, values)


@functools.partial(jit_unoptimized, static_argnames=("count", "size", "dtype"))
def _draws_of_step(
    key: PRNGKeyArray,
    step: Int[Array, ""],
    *,
    count: int,
    size: int | None,
    dtype: Any,
) -> tuple[PRNGKeyArray, Draws]:
    """See `DpviEngine._draws`.

    A generator of random numbers takes long to compile. So it is a program of its own,
    which all that need the draws, and all engines of one size, share.
    """
    key = jax.random.fold_in(key, step)
    if size is None:
        return key, jax.random.split(key, count)
    return key, jax.random.normal(key, (count, size), dtype)


def _reads(function: Callable[..., Any], *arguments: Any) -> Any:
    """For every leaf of the arguments, whether the function's value depends on it."""
    _, used = with_used_inputs(jax.make_jaxpr(function)(*arguments))
    return jax.tree.unflatten(jax.tree.structure(arguments), used)


def _num_globals(graph: ModelGraph) -> int:
    return sum(math.prod(site.shape) for site in graph.latents("global"))


def _num_numbers(graph: ModelGraph) -> int:
    """How many numbers the rows are made of."""
    shapes = graph.arguments.row_shapes().values()
    return graph.arguments.num_rows * sum(math.prod(row.shape) for row in shapes)


def _reach(prior_scale: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """How far a step may go, as a factor on the optimiser's."""
    wide = np.maximum(1.0, prior_scale / WIDE_PRIOR)
    return np.where(prior_scale < 1.0, prior_scale, wide)


def _unit(prior_scale: Any) -> float:
    """What the numbers of a global are multiples of: how far its steps go, about.

    A power of two, as the scales of priors are read off draws.
    """
    reach = _reach(np.ravel(prior_scale))
    return float(2.0 ** np.round(np.log2(np.median(reach)))) if reach.size else 1.0


def _guide_site(site: Site, support: Any) -> GuideSite:
    dims: list[str] = []
    if site.plates:
        for axis in range(max(site.plates) + 1):
            dims.append(site.plates.get(axis, f"{site.name}_dim_{axis}"))
    return GuideSite(
        name=site.name, support=support, shape=site.shape, dims=tuple(dims)
    )
