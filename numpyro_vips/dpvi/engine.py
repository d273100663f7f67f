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

import functools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, PRNGKeyArray, Shaped, UInt32
from numpyro.infer import TraceMeanField_ELBO

from numpyro_vips.abilities import Abilities
from numpyro_vips.dpvi.checks import not_supported
from numpyro_vips.dpvi.compiler import compile_model
from numpyro_vips.dpvi.description import (
    describe_site,
    describe_statistics,
    notes,
    on_compared,
)
from numpyro_vips.dpvi.gradient_step import stepped
from numpyro_vips.dpvi.gradients.coordinates import GradientCoordinates, Units
from numpyro_vips.dpvi.gradients.noisy_adam import default_optimizer
from numpyro_vips.dpvi.guides.late_globals import WAITING
from numpyro_vips.dpvi.iterates import DpviState, for_program, with_drift
from numpyro_vips.dpvi.newton_fit import may_take_newton_steps, newton_states
from numpyro_vips.dpvi.options import DpviOptions
from numpyro_vips.dpvi.posterior.information_equality import SecondMoments
from numpyro_vips.dpvi.posterior.noise_aware import APPROACH
from numpyro_vips.dpvi.program import GradientInputs, ProgramOptions, two_keys
from numpyro_vips.dpvi.reading import diagnostics_of, posterior_of
from numpyro_vips.dpvi.row_programs import DpviRowPrograms, Place
from numpyro_vips.dpvi.step_sizes import DEFAULT_STEPS, default_num_steps, step_sizes
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.jax_tools.quick_compilation import jit_of_globals
from numpyro_vips.jax_tools.random_keys import as_threefry
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.facts.loops_of_rows import ProgramOfRows
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.posterior import Posterior
from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.privacy.releases import (
    INFORMATION,
    SECOND_MOMENTS,
    SQUARES,
    WHOLE_VECTOR,
    ClippingEffect,
    Columns,
    Kept,
    Release,
)
from numpyro_vips.vips.m_step.noisy_information import Information

# After which part of them rows are redrawn, when norms have just been counted again, by
# `REFRESHED_WHERE_REDRAWN` of the schedule. Without it the first steps follow gradients
# to where they add up to zero clipped, which may be far off, as where few rows have an
# event.
REDRAWN_AFTER = 0.2
# How many pilots there are of the second moments of rows' gradients.
NUM_PILOTS = 2
# How often the globals are moved to where rows have a gradient.
MOVES = 8


class DpviEngine(Abilities):
    """Per-row ELBO gradients and public optimiser steps for one model.

    The structure of a model bounds no gradient, and coordinates have units of their
    own, so no block's norms grow or are suited to rows.

    Attributes:
      name: `"dpvi"`.
      compiled, program: The model as DPVI runs it.
      space: The globals and their layout in flat vectors.
    """

    name = "dpvi"
    is_one_vector = True

    def __init__(
        self,
        graph: ModelGraph,
        options: DpviOptions,
        *,
        num_steps: int | None = None,
        until_converged: bool = False,
        has_norms: bool = False,
    ) -> None:
        """Traces the model on a single synthetic row; no private value is read.

        Args:
          graph: The model.
          options: How the caller wants it to be fitted, see `DPVI`.
          num_steps: Number of steps, if the caller fixed it. Late globals wait for a
            part of them.
          until_converged: Whether the fit is without noise and free to run until it has
            converged. With few globals, no parameters beside them and no settings that
            say how to go, this is by Newton's method, see `without_noise.py`, and the
            default guide is full-rank.
          has_norms: Whether the caller gave clipping norms. Gradients then stay in the
            globals' own units.

        Raises:
          UnsafeModelError: For the reason that `not_supported` or
            `find_locals_of_rows` gives, or because the guide does not fit the model.
        """
        guide, optimizer, loss = options.guide, options.optimizer, options.loss
        perturb = options.perturb
        if perturb is None:
            # From an average over several draws nothing can be rebuilt.
            perturb = "location" if options.num_particles == 1 else "all"
        reason = not_supported(graph, has_guide=callable(guide))
        if reason is not None:
            raise UnsafeModelError(reason)
        takes_newton_steps = (
            until_converged
            and (guide is None or guide in ("mean_field", "full_rank"))
            and (optimizer, loss, perturb) == (None, None, "location")
            and may_take_newton_steps(graph)
        )
        if guide is None:
            guide = "full_rank" if takes_newton_steps else "mean_field"
        num_planned = num_steps or DEFAULT_STEPS
        settings = ProgramOptions(
            num_particles=options.num_particles,
            perturb=perturb,
            averaging=options.averaging,
            is_analytic=isinstance(loss, TraceMeanField_ELBO),
            has_own_optimizer=optimizer is not None,
            has_norms=has_norms,
            takes_newton_steps=takes_newton_steps,
            num_waiting=math.floor(WAITING * num_planned),
            num_approaching=math.ceil(APPROACH * num_planned),
        )
        self._num_before_redrawing = math.ceil(REDRAWN_AFTER * num_planned)
        self.compiled = compile_model(
            graph, guide, settings, local_steps=options.local_steps
        )
        self.program = self.compiled.program
        self.space = self.program.space
        if optimizer is None:
            sizes = [site.size for site in self.space.sites]
            normal_guide = self.program.guide
            optimizer = default_optimizer(
                sizes, 0 if normal_guide is None else normal_guide.rank
            )
        self._optimizer = optimizer
        self._rows = DpviRowPrograms(self.compiled)
        self._stepped = jit_of_globals(
            functools.partial(stepped, self.compiled, optimizer)
        )

    # --- the engine's protocol ------------------------------------------------------

    @property
    def balanced(self) -> frozenset[str]:
        """All blocks: gradients add up to zero at the optimum."""
        return frozenset(released.block.name for released in self.compiled.released)

    @property
    def pilots(self) -> int:
        """How many pilots find coordinates; no statistics are "refreshed"."""
        return NUM_PILOTS if self._has_coordinates else 0

    @property
    def lasting(self) -> frozenset[str]:
        """All blocks, if what is observed are labels; else none.

        A label that the globals find improbable moves them by as much as any did at the
        start, where each label is probable.
        """
        sites = self.program.graph.sites.values()
        observed = [site for site in sites if not site.is_latent]
        of_labels = bool(observed) and all(site.num_states for site in observed)
        return self.balanced if of_labels else frozenset()

    @property
    def columns(self) -> Mapping[str, Columns]:
        """Features of rows, by which they multiply the globals; see
        `feature_columns.py`."""
        first = self.compiled.first_coordinates
        number = 0 if first is None else len(first.columns.groups)
        # Each is one in rows of unit size.
        return {WHOLE_VECTOR: Columns(number, math.sqrt(number))} if number else {}

    @property
    def redrawn_after(self) -> int | None:
        """When norms have been found again for the first time, if rows can be drawn.

        At the start, where the model is far from the data, differences to redrawn rows
        are long, and clipping them leaves little of the rows' own gradients.
        """
        if self.compiled.row_gradients.of_pair is None:
            return None
        return self._num_before_redrawing

    @property
    def recentred(self) -> frozenset[str]:
        """The gradient in the globals, whose coordinates pilots find; see
        `coordinates.py`."""
        return self.balanced if self._has_coordinates else frozenset()

    @property
    def _has_coordinates(self) -> bool:
        """Whether gradients are in coordinates that pilots find."""
        return self.compiled.first_coordinates is not None

    def recentre(self, state: DpviState) -> DpviState:
        """The state whose gradients are taken in coordinates that a pilot has found.

        What the optimiser knows of gradients in the coordinates before is forgotten.
        """
        if state.pilot is None or state.coordinates is None:
            return state
        num_rows = self.program.graph.arguments.public_num_rows
        variational: Any = state.variational
        units = state.coordinates.units
        return state._replace(
            coordinates=state.coordinates.whitened(state.pilot, num_rows),
            optimizer_state=self._optimizer.init(variational),
            pilot=None,
            second=SecondMoments(
                state.pilot,
                units,
                np.asarray(variational.guide["loc"], np.float64)[: len(units)],
            ),
        )

    def before_norms(self, state: DpviState, names: Collection[str]) -> DpviState:
        """The state whose globals are in units that rows' density tells apart.

        What the optimiser knows of gradients in other units is forgotten. Units that
        need not grow stay, and so does all else.
        """
        first = self.compiled.first_coordinates
        if first is None or state.coordinates is None or "loc" not in names:
            return state
        if not first.of_rows.names:
            return state
        factors = first.of_rows.at(state.variational.guide["loc"], state.column_units)
        variational: Any = state.variational
        return state._replace(
            coordinates=state.coordinates.grown(first.of_prior, factors),
            optimizer_state=self._optimizer.init(variational),
        )

    def stretched(self, state: DpviState) -> Mapping[str, float]:
        """By block, the factor by which its norms grow in the new coordinates."""
        if state.coordinates is None:
            return {}
        growth = float(state.coordinates.growth)
        return {"loc": growth, SECOND_MOMENTS: growth**2}

    def blocks(self, release: Release) -> tuple[Block, ...]:
        """What each step releases, and the information for the posterior.

        `"loc"` is the gradient in the globals, and `"param …"` that in an array of
        parameters without a prior; with `perturb="all"` there is every parameter of the
        guide in place of `"loc"`. Only what observations depend on is released.
        """
        noise_aware = self.compiled.noise_aware
        if release == "information" and noise_aware is not None:
            return (noise_aware.information.block,)
        if release == "pilot" and self._has_coordinates and noise_aware is not None:
            return (noise_aware.second_moments.block,)
        if release != "adaptive":
            return ()
        return tuple(released.block for released in self.compiled.released)

    def default_num_steps(self, *, is_private: bool, until_converged: bool) -> int:
        if self.program.options.takes_newton_steps:
            return 0  # It is not known beforehand how many there will be.
        return default_num_steps(is_private=is_private)

    def step_sizes(
        self, num_steps: int, *, is_private: bool, is_full: bool
    ) -> tuple[float, ...]:
        """Factors on the learning rate; an optimiser of the caller's own has none."""
        if self.program.options.has_own_optimizer:
            return (1.0,) * num_steps
        return step_sizes(num_steps, is_private=is_private)

    def forgotten_steps(
        self, num_steps: int, *, is_private: bool, is_full: bool
    ) -> int:
        """How many first steps count for nothing; see `fitting.engine.Engine`.

        The posterior is made of the scores of the others. Where no posterior is made
        of scores it is the average of the iterates, which lose their weight by and by.
        """
        if not is_private or self.compiled.noise_aware is None:
            return 0
        return self.program.options.num_approaching

    def initial_state(self, rng_key: PRNGKeyArray) -> DpviState:
        """The guide at the prior's centre, slightly jittered, with small scales."""
        start_key, key = two_keys(as_threefry(rng_key))
        variational: Any = self.program.initial(start_key)
        dtype = self.program.start.dtype
        noise_aware = self.compiled.noise_aware
        first = self.compiled.first_coordinates
        return DpviState(
            variational=variational,
            average=variational,
            optimizer_state=self._optimizer.init(variational),
            key=key,
            step=jax.device_put(np.int32(0)),
            score=None if noise_aware is None else noise_aware.no_score(dtype),
            coordinates=None
            if first is None or noise_aware is None
            else GradientCoordinates.of_globals(
                first.of_prior, noise_aware.silent, dtype
            ),
        )

    def bounded_sum(
        self,
        state: DpviState,
        rows: Mapping[str, Any],
        mask: Any,
        *,
        scales: Mapping[str, float],
        clipping_norm: float,
        row_keys: UInt32[np.ndarray, "rows 2"] | None = None,
    ) -> dict[str, Float64[np.ndarray, "..."]]:
        """Sums the rows' clipped gradients over one chunk of the step's batch.

        Guarantees:
          Adding or removing one row changes the sum, its blocks times `scales` joined
          into one vector, by at most `clipping_norm` in L2 norm up to the rounding of a
          sum in double precision, whatever the rows hold. Each row's contribution comes
          from a program of that row and its key alone.

        | row                                             | contributes              |
        |-------------------------------------------------|--------------------------|
        | masked                                          | zero                     |
        | observation outside its support                 | zero                     |
        | index out of range (`index_ranges.py`)          | zero                     |
        | log density or gradient not finite              | zero                     |
        | joint norm above `clipping_norm`                | the gradient, shortened  |

        With `row_keys` the gradient of a redrawn row is taken off the row's own before
        it is shortened, see `clipped_gradients.py`.

        Args:
          state: The same for every chunk of a step.
          rows: Private arrays with the rows along the leading axis.
          mask: True where a row is meant, false for padding.
          scales: Factor of each block in the joint vector.
          clipping_norm: Bound on the norm of a row's joint vector; infinity clips
            nothing.
          row_keys: 64 secret bits for each row, where it is to be redrawn.

        Returns:
          The sum of every block in `scales`, not yet private.
        """
        if squares := SQUARES & scales.keys():
            # The joint vector is this block, at scale 1.
            (name,) = squares
            found = self._rows.bounded_matrix(
                name,
                self._place(state, name),
                dict(rows),
                mask,
                float(clipping_norm),
                row_keys,
            )
            return {name: np.asarray(found)}
        found = self._rows.bounded_sum(
            self._inputs(state),
            dict(rows),
            mask,
            {b.name: float(scales[b.name]) for b in self.blocks("adaptive")},
            float(clipping_norm),
            row_keys,
        )
        return {name: np.asarray(found[name]) for name in scales}

    def compile_update(self, state: DpviState) -> None:
        """Starts to compile the optimiser's step; see `Engine.compile_update`."""
        blocks = self.blocks("adaptive")
        self._after(state, {b.name: np.zeros(b.shape) for b in blocks}, 1.0, 0.0)

    def _after(
        self,
        state: DpviState,
        released: Mapping[str, Any],
        step_size: float,
        noise_stddev: float,
    ) -> DpviState:
        """The state that the optimiser makes of released sums; see `update`."""
        dtype = self.program.start.dtype
        arrays = {name: np.asarray(value, dtype) for name, value in released.items()}
        _, draws = self.program.draws(state.key, state.step)
        return self._stepped(for_program(state), draws, arrays, step_size, noise_stddev)

    def with_kept(self, state: DpviState, kept: Mapping[str, Kept]) -> DpviState:
        """The state that knows what clipping leaves of the scores."""
        return state._replace(kept=kept.get("loc", state.kept))

    def with_bound(
        self,
        state: DpviState,
        scales: Mapping[str, float],
        clipping_norm: float,
        sampling_rate: float,
    ) -> DpviState:
        """The state that knows how far rows are clipped; see `Information.limit` and
        `clipped_slope.py`."""
        if "loc" in scales:
            return state._replace(gradient_norm=clipping_norm / scales["loc"])
        if INFORMATION not in scales:
            return state
        num_rows = self.program.graph.arguments.public_num_rows
        limit = num_rows * clipping_norm / scales[INFORMATION]
        return state._replace(information_limit=limit)

    def update(
        self,
        state: DpviState,
        released: Mapping[str, Any],
        noise_stddev: Mapping[str, float],
        step_size: float,
        *,
        is_pilot: bool = False,
        redraws: bool = False,
    ) -> DpviState:
        """One optimiser step on the negative ELBO, from public quantities alone.

        Args:
          state: The state that was given to `bounded_sum`.
          released: Noisy sums of every block over the sampling rate, so that they
            estimate the sums over all rows. The information is kept for the posterior.
          noise_stddev: Standard deviation of the noise in the entries of `released`,
            for the posterior, and in whose units the package's own optimiser takes
            gradients. Whether there is any decides what drift counts as convergence.
          step_size: Factor on the optimiser's update.
          is_pilot: Not needed: the block of pilots has a name of its own.
          redraws: Whether rows were redrawn, so that the information is that of clipped
            differences; see `clipped_slope.py`.
        """
        if SECOND_MOMENTS in released:
            pilot = Information(
                np.asarray(released[SECOND_MOMENTS], np.float64),
                noise_stddev[SECOND_MOMENTS],
            )
            return state._replace(pilot=_of_rows(state, pilot))
        if INFORMATION in released:
            limit = state.information_limit
            information = Information(
                np.asarray(released[INFORMATION], np.float64),
                noise_stddev[INFORMATION],
                math.inf if limit is None else limit,
            )
            return state._replace(
                information=_of_rows(state, information), is_slope=redraws
            )
        stddev = noise_stddev.get("loc", 0.0)
        updated = self._after(state, released, float(step_size), stddev)
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
        inputs, rows = self._inputs(state), dict(rows)
        found = self._rows.norms(inputs, rows)
        guide = inputs.variational.guide
        if "loc" in guide:
            loc = guide["loc"]
            for noise in np.random.default_rng(0).normal(size=(MOVES, len(loc))):
                if any(np.any(np.asarray(found[name]) > 0) for name in names):
                    break
                moved = loc + jnp.asarray(self.program.prior_scale * noise, loc.dtype)
                at = inputs.variational._replace(guide={**guide, "loc": moved})
                found = self._rows.norms(inputs._replace(variational=at), rows)
        return {name: np.asarray(found[name]) for name in names}

    def norm_counts(
        self,
        state: DpviState,
        rows: Mapping[str, Any],
        mask: Any,
        *,
        parts: Mapping[str, Sequence[str]],
        edges: Mapping[str, Float64[Array, " _edges"]],
        row_keys: UInt32[np.ndarray, "rows 2"] | None = None,
    ) -> Mapping[str, Any]:
        """The number of the chunk's rows in each bin of every norm, not yet private.

        See `abilities.ClippingNorms.norm_counts`.
        """
        if squares := SQUARES & parts.keys():
            (name,) = squares
            found = self._rows.matrix_counts(
                name, self._place(state, name), dict(rows), mask, edges[name], row_keys
            )
            return {name: found}
        names = tuple((part, tuple(blocks)) for part, blocks in parts.items())
        return self._rows.counts(
            self._inputs(state), dict(rows), mask, dict(edges), row_keys, names
        )

    def column_counts(
        self,
        state: DpviState,
        rows: Mapping[str, Any],
        mask: Any,
        *,
        edges: Mapping[str, Float64[Array, " _edges"]],
    ) -> Mapping[str, Any]:
        """The number of the chunk's rows in each bin of every feature, not yet private;
        see `abilities.ColumnUnits.column_counts`.

        It depends on the rows alone, not on the state.
        """
        return self._rows.column_counts(dict(rows), mask, dict(edges))

    def with_column_sizes(
        self, state: DpviState, sizes: Mapping[str, Float64[np.ndarray, " _columns"]]
    ) -> DpviState:
        """The state whose coefficients are in units of one over their features' sizes.

        The guide starts closer to the prior's centre, and more surely, by as much.
        """
        first = self.compiled.first_coordinates
        if first is None or state.coordinates is None or not sizes:
            return state
        # No unit is longer than the prior is wide.
        most = np.maximum(1.0, self.program.prior_scale[: len(first.of_prior)])
        units = np.minimum(first.columns.units(sizes[WHOLE_VECTOR]), most)
        variational: Any = self.program.narrowed(state.variational, units)
        return state._replace(
            variational=variational,
            average=variational,
            optimizer_state=self._optimizer.init(variational),
            coordinates=state.coordinates.grown(first.of_prior, units),
            column_units=units,
        )

    def has_posterior(self, state: DpviState) -> bool:
        """Always: a guide has parameters from the start."""
        return True

    def released(self, state: DpviState) -> dict[str, Shaped[np.ndarray, "..."]]:
        """The last iterate's arrays, which released gradients have made."""
        return {
            jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf)
            for path, leaf in jax.tree.leaves_with_path(state.variational)
        }

    def diagnostics(self, state: DpviState) -> dict[str, Any]:
        """What is known of how good the posterior is."""
        return diagnostics_of(self.compiled, state)

    def clipping_effect(self, state: DpviState, names: Sequence[str]) -> ClippingEffect:
        """Rows whose gradient was shortened weigh less, in all globals alike."""
        params = [n.removeprefix("param ") for n in names if n.startswith("param ")]
        sites = [*self.compiled.read, *params]
        return ClippingEffect(dict.fromkeys(sites, "towards the other rows"))

    def until_converged(
        self, state: DpviState, arguments: ModelArguments
    ) -> Iterator[DpviState] | None:
        """Newton steps on the ELBO of all rows, where they are asked for."""
        if not self.program.options.takes_newton_steps:
            return None
        return newton_states(self.compiled, state, arguments)

    def posterior(self, state: DpviState) -> Posterior:
        """The guide at the averaged iterate, or a Normal that knows of the noise."""
        return posterior_of(self.compiled, state)

    def _place(self, state: DpviState, name: str) -> Place:
        """Where rows are asked for a matrix: on the way at the last iterate, near the
        end at the average."""
        at = state.variational if name == SECOND_MOMENTS else state.average
        norm = math.inf if state.gradient_norm is None else state.gradient_norm
        return Place(self._inputs(state)._replace(variational=at), norm)

    def _inputs(self, state: DpviState) -> GradientInputs:
        """Where, and in which coordinates, rows are asked for gradients."""
        key, draws = self.program.draws(state.key, state.step)
        return GradientInputs(state.variational, key, draws, self._units(state))

    def _units(self, state: DpviState) -> Units | None:
        """What coordinates are multiplied with in which rows are asked; None where they
        are the globals' own."""
        return None if state.coordinates is None else state.coordinates.units

    @property
    def captured(self) -> Mapping[str, Shaped[np.ndarray, "..."]]:
        """Arrays that the user's guide holds itself; they are treated as public."""
        user_guide = self.program.user_guide
        return {} if user_guide is None else user_guide.captured

    @property
    def programs_of_rows(self) -> Sequence[ProgramOfRows]:
        """What rows' gradients come from; see `CompiledModel.programs_of_rows`."""
        return self.compiled.programs_of_rows

    def describe_site(self, name: str) -> dict[str, Any]:
        """What a row of `Plan.sites` says of a site; see `description`."""
        return describe_site(self.program, name)

    def describe_statistics(self) -> list[dict[str, Any]]:
        """The rows of `Plan.statistics`, one for each block; see `description`."""
        kinds: tuple[Release, ...] = ("adaptive", "pilot", "information")
        return describe_statistics({kind: self.blocks(kind) for kind in kinds})

    def notes(self) -> Iterable[str]:
        """What else `explain` says of the guide and of the model; see `description`."""
        yield from on_compared(self.compiled.compared)
        yield from notes(self.program, self.captured)

    def describe_sparse_rows(self, name: str) -> str:
        """How a sparse argument is worked on, as the end of a sentence."""
        return ". DPVI makes the row dense again"


def _of_rows(state: DpviState, information: Information) -> Information:
    """A released matrix without what is noise for certain; see `of_rows`."""
    if state.coordinates is None:
        return information
    return state.coordinates.of_rows(information)
