"""The programs of the M-step: posteriors of the globals, from sums over rows."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Float64, PRNGKeyArray

from numpyro_vips.conjugacy.families.family import Family
from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.jax_tools.quick_compilation import jit_of_globals, jit_unoptimized
from numpyro_vips.vips.e_step.evidence_bound import bound_of_globals
from numpyro_vips.vips.m_step import m_step, newton_targets, starts
from numpyro_vips.vips.m_step.absent_columns import Release, with_absent_columns
from numpyro_vips.vips.m_step.expected_curvature import expected_curvatures
from numpyro_vips.vips.m_step.newton_posterior import Natural, shares_of_rows
from numpyro_vips.vips.m_step.sums_of_features import SumsOfFeatures
from numpyro_vips.vips.posterior.posterior import KIND, ConjugatePosterior
from numpyro_vips.vips.program.expectations import expected_natural_of
from numpyro_vips.vips.program.named_arrays import (
    MomentsByFactor,
    NewByStatistic,
    NewMeans,
    NewMomentsByFactor,
    NewSums,
)
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.row_sums.released_blocks import as_block
from numpyro_vips.vips.steps.newton_steps import NewtonTarget, as_targets
from numpyro_vips.vips.steps.released_sums import Unclipped
from numpyro_vips.vips.steps.state import (
    InDouble,
    VipsState,
    as_arrays,
    frames_at,
    numpy_doubles,
)
from numpyro_vips.vips.units.frames import Frame


@functools.partial(jit_unoptimized, static_argnums=0)
def _parameters(
    factors: tuple[tuple[str, Family], ...], natural: MomentsByFactor
) -> NewMomentsByFactor:
    """Standard parameters of each factor, as one program."""
    return {name: family.parameters(natural[name]) for name, family in factors}


class GlobalPrograms:
    """What is compiled of a model to solve for its globals.

    All of it runs in double precision: residual sums are differences of large ones, and
    precisions of scales span many orders of magnitude.

    Args:
      program: The compiled model.
      max_sweeps: See `m_step.update_globals`.
      noise_by_entry: Whether some noise will be given by entry. Then all of it is
        brought into this form, so that one program is compiled.

    Attributes:
      features: What sums say of features.
    """

    def __init__(
        self, program: ConjugateProgram, max_sweeps: int, *, noise_by_entry: bool
    ):
        self.program = program
        self.features = SumsOfFeatures(program)
        self._noise_by_entry = noise_by_entry
        self.max_sweeps = max_sweeps
        # Kept, as a fit starts twice: default clipping norms are read off a start too.
        self._start = jit_unoptimized(functools.partial(starts.start, program))
        self._newton_targets = jit_unoptimized(
            functools.partial(newton_targets.newton_targets, program)
        )
        self._update_globals = jit_of_globals(
            functools.partial(m_step.update_globals, program)
        )

    def start(self, rng_key: PRNGKeyArray) -> starts.Start:
        """The moments from which the globals start; see `starts.start`."""
        return self._start(rng_key)

    def solve(
        self,
        state: VipsState,
        sums: Unclipped,
        noise_read: float,
        *,
        are_held: bool = False,
    ) -> m_step.Solution:
        """The posterior for these sums, from where a state is; see `m_step`.

        Args:
          state: Where to start from, and the points that the sums are about.
          sums: The sums, and their noise.
          noise_read, are_held: See `m_step.GlobalInputs`.
        """
        stddev = sums.noise_for_programs
        if self._noise_by_entry:
            stddev = {
                s.name: np.broadcast_to(stddev[s.name], s.block_shape)
                for s in self.program.structure.statistics
            }
        with double_precision():
            # NumPy's, until the program takes them.
            arrays: dict[str, Any] = {
                "statistics": sums.statistics,
                "noise_stddev": stddev,
                "centre": self.centre_in(state, state.centre),
                "given": self._shares_of_newton(state, sums, noise_read),
            }
            inputs = m_step.GlobalInputs(
                **arrays,
                noise_read=noise_read,
                frames=self.frames_of(state),
                are_held=are_held,
            )
            return self._update_globals(inputs, state.moments, self.max_sweeps)

    def _shares_of_newton(
        self, state: VipsState, sums: Unclipped, noise_read: float
    ) -> dict[str, Natural]:
        """What rows say of the factors that take Newton steps; see `newton_posterior`.

        That depends on the prior, given the state's other globals, by as much as it
        says how large information that noise hides may be.
        """
        structure = self.program.structure
        if not structure.newton:
            return {}
        return shares_of_rows(
            self.newton_targets(state, sums),
            self.centre_in(state, state.centre),
            knows_noise=noise_read > 0,
            # Other globals, such as a precision, are learnt from their squares.
            keeps_squares=any(
                factor.name not in structure.newton
                for factor in structure.posterior_factors_of("global")
            ),
        )

    def natural_of(
        self, state: VipsState, sums: Unclipped, noise_read: float = 1.0
    ) -> InDouble:
        """Natural parameters of the globals, for other sums than the state's."""
        return numpy_doubles(self.solve(state, sums, noise_read).natural)

    def means_of_latents(
        self, state: VipsState, sums: Unclipped, noise_read: float = 1.0
    ) -> NewMeans | None:
        """The means of the globals, for other sums; None if they have none."""
        posterior = self.posterior_of(self.natural_of(state, sums, noise_read))
        if posterior.problems():
            return None  # As of sums of zeros, with which a fit is tried.
        moments = posterior.moments()
        found = {name: np.asarray(of_site.mean) for name, of_site in moments.items()}
        finite = all(np.isfinite(mean).all() for mean in found.values())
        return found if finite else None

    def newton_targets(
        self,
        state: VipsState,
        sums: Unclipped,
        *,
        moments: InDouble | None = None,
        about: Mapping[str, Any] | None = None,
        gain: float = 1.0,
    ) -> dict[str, NewtonTarget]:
        """By factor, what Newton's method needs to know, in double precision.

        It is in the coordinates in which the state's statistics were taken.

        Args:
          state: Whose coordinates these are.
          sums: The sums, and their noise.
          moments: Of the globals; by default those of the state.
          about: By factor, where rows were asked; by default the state's centre.
          gain: See `newton_targets`.
        """
        centre = self.centre_in(state, state.centre if about is None else about)
        frames = self.frames_of(state)
        with double_precision():
            found = self._newton_targets(
                sums.statistics,
                sums.noise_for_programs,
                state.moments if moments is None else moments,
                centre,
                gain,
                frames,
            )
        targets = as_targets(found)
        for name, silent in self.program.silent.items():
            if silent.shape[1]:
                there = frames[name].directions_in(silent) if name in frames else silent
                targets[name] = targets[name].with_silent(centre[name], there)
        return targets

    def with_first_curvature(
        self, state: VipsState, targets: Mapping[str, NewtonTarget]
    ) -> dict[str, NewtonTarget]:
        """Targets of a state, with what the curvature that was released first says.

        That is the information that is expected at its centre, and where it was
        released last, and how probable it is that rows say nothing of a latent.

        Steps go without, and so do other globals that are learnt from coefficients,
        such as their precision: a direction that is expected to have next to nothing is
        left to the prior, which would follow it.
        """
        first = {
            name: Release(*of)
            for name, of in self.features.first_curvature(state).items()
        }
        centre = self.centre_in(state, state.centre)
        places = self.centre_in(state, state.curvature_places)
        frames, found = self.frames_of(state), {}
        for name, target in targets.items():
            if name in first:
                target = target._replace(
                    expected=self._expected(state, name, first[name], centre[name]),
                    expected_there=self._expected(
                        state, name, first[name], places[name]
                    ),
                )
            found[name] = with_absent_columns(
                target,
                None if _is_last(state) else first.get(name),
                frames.get(name),
                intercept=self._intercept(name),
                unlisted=self.program.unlisted.get(name),
            )
        return found

    def _expected(
        self,
        state: VipsState,
        name: str,
        first: Release,
        place: Float64[np.ndarray, "..."],
    ) -> Float64[np.ndarray, "..."]:
        """The curvature to expect at a place in the coordinates of the statistics."""
        return expected_curvatures(
            first.matrix,
            first.noise_stddev,
            place,
            constant=self._intercepts(name),
            num_rows=state.valid_rows.number,
        )

    def _intercept(self, name: str) -> int | None:
        """The coordinate of a factor that every row has one of, times 1."""
        found = self._intercepts(name)
        return found[0] if len(found) == 1 else None

    def _intercepts(self, name: str) -> tuple[int, ...]:
        """The coordinates of a factor of which every row has one, times 1."""
        features = self.program.features.get(name)
        return () if features is None else features.constant

    def frames_of(self, state: VipsState) -> dict[str, Frame]:
        """The coordinates in which the statistics of a state were taken."""
        return frames_at(self.program, state)

    def centre_in(
        self, state: VipsState, centre: Mapping[str, Float64[np.ndarray, "..."]]
    ) -> dict[str, Float64[np.ndarray, "..."]]:
        """Places of the globals, by factor, in the coordinates of the statistics."""
        frames = self.frames_of(state)
        return {
            name: frames[name].place_in(place) if name in frames else place
            for name, place in centre.items()
        }

    def natural_from(
        self, state: VipsState, natural: Mapping[str, Natural]
    ) -> dict[str, Natural]:
        """Natural parameters of factors that take Newton steps, for the model's
        coordinates w, from those for the coordinates of the statistics."""
        frames, found = self.frames_of(state), {}
        for name, of in natural.items():
            found[name] = of
            inverse = frames[name].inverse if name in frames else None
            if inverse is not None:
                back = np.asarray(inverse)
                found[name] = {"x": of["x"] @ back, "xx": back.T @ of["xx"] @ back}
        return found

    def natural_in(
        self, moments: MomentsByFactor, frames: Mapping[str, Frame]
    ) -> NewSums:
        """n̄ of the globals in other coordinates, as blocks."""
        with double_precision():
            found = self._blocks_of_natural(moments, frames)
            return {name: np.asarray(block) for name, block in found.items()}

    @functools.cached_property
    def _blocks_of_natural(self) -> Any:
        def blocks(
            moments: MomentsByFactor, frames: Mapping[str, Frame]
        ) -> NewByStatistic:
            structure = self.program.structure
            there = {n: frame.moments_in(moments[n]) for n, frame in frames.items()}
            natural = expected_natural_of(structure, {**moments, **there})
            return {s.name: as_block(s, natural[s.name]) for s in structure.statistics}

        return jit_unoptimized(blocks)

    def evidence_bound(self, state: VipsState) -> float:
        """The part of the evidence bound that is the globals' own."""
        with double_precision():
            moments, natural = as_arrays(state.moments), as_arrays(state.natural)
            return float(self._bound_of_globals(moments, natural))

    @functools.cached_property
    def _bound_of_globals(self) -> Any:
        return jax.jit(functools.partial(bound_of_globals, self.program))

    def posterior_of(self, natural: MomentsByFactor | InDouble) -> ConjugatePosterior:
        """The posterior with these natural parameters."""
        structure = self.program.structure
        factors, families = [], []
        for factor in structure.posterior_factors_of("global"):
            if structure.latents[factor.latents[0]].family is not None:
                continue  # An auxiliary variable is no part of the user's posterior.
            entry: dict[str, Any] = {"name": factor.name, "family": factor.family.name}
            if factor.family.num_states is not None:
                entry["num_states"] = factor.family.num_states
            if factor.layout is not None:
                entry["layout"] = factor.layout.to_dict()
            factors.append(entry)
            families.append((factor.name, factor.family))
        with double_precision():
            chosen = {name: dict(natural[name]) for name, _ in families}
            parameters = _parameters(tuple(families), chosen)
        params = {
            f"{factor}/{name}": jax.device_put(np.asarray(value))
            for factor, found in parameters.items()
            for name, value in found.items()
        }
        sites = self.program.graph.latents("global")
        site_dims = {site.name: site.dims for site in sites}
        specification = {"kind": KIND, "blocks": factors, "site_dims": site_dims}
        return ConjugatePosterior(specification, params)


def _is_last(state: VipsState) -> bool:
    """Whether the curvature that was released first is that of the last release."""
    first = state.first_curvature
    return first is not None and all(
        np.array_equal(of, state.statistics[name])
        for name, of in first.statistics.items()
    )
