"""What sums of rows say of features: their products, and how far these are known."""

import functools
from collections.abc import Collection
from typing import Any

import numpy as np
from jaxtyping import Float64

from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.jax_tools.quick_compilation import jit_unoptimized
from numpyro_vips.vips.m_step import shares
from numpyro_vips.vips.m_step.known_steps import known_part
from numpyro_vips.vips.program.feature_detection import (
    weight_of_features,
    weight_of_intercepts,
)
from numpyro_vips.vips.program.features import Standardisation
from numpyro_vips.vips.program.named_arrays import Means, NewMeans, as_rows_know
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.steps.released_sums import Unclipped
from numpyro_vips.vips.steps.state import InDouble, VipsState, frames_at, is_noisy
from numpyro_vips.vips.units.whitening import of_the_same_size

# How many times its noise a direction needs for coefficients that rows are simulated
# with: noise in these is made up for as if it were rows'.
_WELL_KNOWN = 3.0


class SumsOfFeatures:
    """Reads the second moments of what coordinates are multiplied by off sums.

    Args:
      program: The compiled model.
    """

    def __init__(self, program: ConjugateProgram) -> None:
        self.program = program

    def first_curvature(
        self, state: VipsState
    ) -> dict[str, tuple[Float64[np.ndarray, "..."], Float64[np.ndarray, "..."]]]:
        """The curvature that was released first, with coefficients near zero.

        Returns:
          By factor that takes Newton steps, the curvature and standard deviations of
          its noise; empty if none was released.
        """
        if state.first_curvature is None:
            return {}
        sums = Unclipped(
            {**state.statistics, **state.first_curvature.statistics},
            {**state.noise_stddev, **state.first_curvature.noise_stddev},
        )
        return self.products(state, sums, tuple(sorted(self.program.structure.newton)))

    def standards(
        self, state: VipsState, sums: Unclipped, names: Collection[str]
    ) -> dict[str, Standardisation]:
        """What sums say of how to standardise the features of some factors.

        Args:
          state: How they were standardised for the sums.
          sums: The sums, and their noise.
          names: The factors. In those that take Newton steps each feature keeps its
            size; see `whitening`.
        """
        program, chosen = self.program, tuple(sorted(names & state.standards.keys()))
        if not chosen:
            return {}
        standards = {}
        for name, of_rows in self.products(state, sums, chosen).items():
            moments, noise_stddev = of_rows
            features, before = program.features[name], state.standards[name]
            standard = features.standardisation(
                before,
                moments,
                noise_stddev,
                self._squared_intercepts(name, state),
            )
            if name in program.structure.newton:
                standard = of_the_same_size(
                    features,
                    state.first_standards[name],
                    before,
                    standard,
                    moments,
                    noise_stddev,
                    alone=self._alone(name),
                )
            standards[name] = standard.as_rows_know()
        return standards

    def _alone(self, name: str) -> list[int]:
        """The features of a factor that are multiplied by a latent of their own."""
        layout = self.program.structure.posterior_factors[name].layout
        assert layout is not None
        of_latents = map(layout.places, layout.shapes)
        single = {own[0] for own in of_latents if len(own) == 1}
        places = self.program.features[name].places
        return [index for index, place in enumerate(places) if place in single]

    def known_origins(
        self, state: VipsState, sums: Unclipped, places: InDouble
    ) -> dict[str, Float64[np.ndarray, "..."]]:
        """The points about which statistics are taken next, by recentred factor.

        They are where the globals are. Of a regression's coefficients under a flat
        prior they are only as far from the last points as noise lets it be known, see
        `known_steps`: under a proper one the prior holds them.

        Args:
          state: About which points the sums were taken.
          sums: The sums, and their noise.
          places: Moments of the globals.
        """
        origins = {name: places[name]["x"] for name in state.origins}
        structure = self.program.structure
        flat = sorted(origins.keys() & self.program.features.keys() & structure.flat)
        chosen = tuple(
            name for name in flat if len(structure.posterior_factors[name].shape) == 1
        )
        if chosen and is_noisy(state.noise_stddev):
            for name in chosen:
                origins[name] = self._known_place(state, sums, name, origins[name])
        return {name: as_rows_know(place) for name, place in origins.items()}

    def _known_place(
        self,
        state: VipsState,
        sums: Unclipped,
        name: str,
        place: Float64[np.ndarray, " size"],
        margin: float = 1.0,
    ) -> Float64[np.ndarray, " size"]:
        """Coefficients, only as far from the origin as noise lets them be known."""
        frames = frames_at(self.program, state)
        if name not in frames:
            return place
        products, noise_stddev = self.products(state, sums, (name,))[name]
        step = frames[name].place_in(place)
        known = known_part(step, products, noise_stddev, margin=margin)
        return frames[name].place_from(known)

    def known_coefficients(
        self, state: VipsState, sums: Unclipped, name: str, means: Means
    ) -> NewMeans:
        """The means of a regression's coefficients by latent, as far as they are known.

        Args:
          state: About which points the sums were taken.
          sums: The sums, and their noise.
          name: The factor, with a single vector of coefficients.
          means: Those of all globals, see `means_of_latents`.
        """
        layout = self.program.structure.posterior_factors[name].layout
        assert layout is not None
        mean = np.zeros(layout.size)
        for latent in layout.shapes:
            mean[layout.span(latent)] = np.ravel(means[latent])
        place = self._known_place(state, sums, name, mean, _WELL_KNOWN)
        return {
            latent: place[layout.span(latent)].reshape(shape)
            for latent, shape in layout.shapes.items()
        }

    def moments_of_features(
        self, state: VipsState, sums: Unclipped, name: str
    ) -> Float64[np.ndarray, "one_more one_more"] | None:
        """What sums say of the mean of (1, x)(1, x)ᵀ over rows, x being features.

        Args:
          state: How they were standardised for the sums.
          sums: The sums, and their noise.
          name: A factor, with a single vector of coefficients.

        Returns:
          It, of features as they are. Without intercepts the sums say nothing of means,
          which are zero then. None if rows have weights of their own.
        """
        program, features = self.program, self.program.features[name]
        of_row = weight_of_features(
            program.structure, name, features, program.row_terms, state.moments
        )
        if not of_row or not of_row > 0:
            return None
        products, _ = self.products(state, sums, (name,))[name]
        second = products / (of_row * state.valid_rows.number)
        places = [*features.places]
        moments = np.eye(len(places) + 1)
        if features.constant:
            means = second[np.ix_([*features.constant], places)].sum(0)
            moments[0, 1:] = moments[1:, 0] = means
        moments[1:, 1:] = second[np.ix_(places, places)]
        back = np.eye(len(places) + 1)
        if name in state.standards:
            back[1:, 1:] = np.linalg.inv(state.standards[name].matrix)
            back[1:, 0] = state.standards[name].means
        return back @ moments @ back.T

    def _squared_intercepts(self, name: str, state: VipsState) -> float | None:
        """What they add up to over all rows, where that is public; of a factor."""
        program = self.program
        if not program.features[name].constant:
            return None
        terms = program.row_terms
        of_row = weight_of_intercepts(
            program.structure, name, program.features[name], terms, state.moments
        )
        return None if of_row is None else state.valid_rows.number * of_row

    def products(
        self, state: VipsState, sums: Unclipped, names: tuple[str, ...]
    ) -> dict[str, tuple[Float64[np.ndarray, "..."], Float64[np.ndarray, "..."]]]:
        """By factor, the products of what coordinates are multiplied by, and the noise.

        See `shares.second_moments`.
        """
        with double_precision():
            found = self._second_moments(
                sums.statistics, sums.noise_for_programs, state.moments, names=names
            )
        return {
            name: (np.asarray(products), np.asarray(noise_stddev))
            for name, (products, noise_stddev) in found.items()
        }

    @functools.cached_property
    def _second_moments(self) -> Any:
        second_moments = functools.partial(shares.second_moments, self.program)
        return jit_unoptimized(second_moments, static_argnames="names")
