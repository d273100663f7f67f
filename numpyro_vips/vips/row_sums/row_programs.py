"""The programs that see rows: clipped sums, norms and evidence bounds."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64

from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.jax_tools.quick_compilation import jit_of_rows, jit_unoptimized
from numpyro_vips.jax_tools.row_sums import (
    DIAGNOSTICS,
    counts_in_bins,
    counts_of_parts,
    equal_chunks,
)
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.row_queries import map_rows
from numpyro_vips.model.synthetic.simulated_rows import RowSimulator
from numpyro_vips.privacy.releases import COVARIATES
from numpyro_vips.vips.e_step.evidence_bound import row_bound
from numpyro_vips.vips.program.expectations import (
    by_latent,
    expected_natural_of,
    means_of,
)
from numpyro_vips.vips.program.features import Standards
from numpyro_vips.vips.program.named_arrays import (
    ByStatistic,
    InDouble,
    MomentsByFactor,
    NewByStatistic,
    NewSums,
    Rows,
)
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.row_sums.bounded_sum import bounded_sum
from numpyro_vips.vips.row_sums.contributions import RowInputs
from numpyro_vips.vips.row_sums.covariates import (
    MOST_COVARIATES,
    CovariatePlaces,
    CovariateUnits,
    bounded_moments,
    covariate_units,
    covariates_that_are_features,
    moment_norms,
    positive_covariates,
)
from numpyro_vips.vips.row_sums.public_statistics import public_statistics
from numpyro_vips.vips.row_sums.scattered import additions_of_rows
from numpyro_vips.vips.row_sums.sizes_of_rows import (
    columns_of_rows,
    features_of_rows,
    norms_of_rows,
)
from numpyro_vips.vips.steps.state import VipsState, as_arrays
from numpyro_vips.vips.units.feature_units import FeatureGroup
from numpyro_vips.vips.units.frames import frames_of
from numpyro_vips.vips.units.whitening import zero_origins

# Names of joint norms, each with its blocks.
NormParts = tuple[tuple[str, tuple[str, ...]], ...]


class NormInputs(NamedTuple):
    """What norms of rows depend on beside the rows.

    Attributes:
      of_statistics: What those of statistics do.
      of_covariates: The units of covariates.
    """

    of_statistics: RowInputs
    of_covariates: CovariateUnits


class RowPrograms:
    """What is compiled of a model to work on rows.

    Args:
      program: The compiled model.
      num_rows: Public number of rows.
      local_steps: Sweeps over the latents of a row.
      columns_of_features: By the name of a block, the features that are its columns.

    Attributes:
      norms, column_counts: The methods below, compiled.
    """

    def __init__(
        self,
        program: ConjugateProgram,
        num_rows: int,
        local_steps: int,
        columns_of_features: Mapping[str, FeatureGroup],
    ):
        self.program = program
        self.num_rows = num_rows
        self.local_steps = local_steps
        self.columns_of_features = columns_of_features
        self._expected_natural_of = jax.jit(
            functools.partial(expected_natural_of, program.structure)
        )
        self._public_contributions = jax.jit(
            functools.partial(public_statistics, program, sweeps=local_steps)
        )
        num_numbers = program.graph.arguments.num_numbers
        self._jit = functools.partial(jit_of_rows, num_numbers=num_numbers)
        self._bounded_sum = self._jit(
            functools.partial(bounded_sum, program, sweeps=local_steps)
        )
        self.norms = jit_unoptimized(self._norms, static_argnums=2)
        self._entries_of_rows = jit_unoptimized(
            lambda inputs, rows, names: {
                name: self._columns_of_rows(inputs, rows, name) for name in names
            },
            static_argnums=2,
        )
        self._counts_of_parts = self._jit(self._counts, static_argnums=(4, 5))
        # By the parts of each such program, edges of theirs; public, as edges are.
        self._edges_of: dict[NormParts, Mapping[str, Float[Array, " _edges"]]] = {}
        self.column_counts = self._jit(self._column_counts)
        self._row_bounds = jax.jit(
            jax.vmap(
                lambda natural, row: row_bound(program, natural, row, local_steps),
                in_axes=(None, 0),
            )
        )

    def expected_natural_of(
        self, moments: MomentsByFactor | InDouble
    ) -> NewByStatistic:
        """n̄ of the globals, in the precision in which programs of rows run."""
        return self._expected_natural_of(as_arrays(moments))

    def public_sums(self, expected_natural: ByStatistic, number: float) -> NewSums:
        """What needs no release: sums over rows to which every row adds the same.

        Args:
          expected_natural: n̄ of the globals.
          number: Of rows that do not count as zero, as is public.
        """
        if all(s.release != "public" for s in self.program.structure.statistics):
            return {}
        contributions = self._public_contributions(expected_natural)
        return {
            name: np.asarray(number * np.asarray(each, dtype=np.float64))
            for name, each in contributions.items()
        }

    def sum_of_rows(
        self,
        state: VipsState,
        rows: Rows,
        mask: Bool[Array | np.ndarray, " rows"],
        *,
        scales: Mapping[str, float],
        clipping_norm: float,
    ) -> NewSums:
        """A chunk's clipped sum of every block in `scales`, about `state.origins` and
        of features as by `state.standards`.

        Rows are clipped in the units of `state.units`; the sums are as if there were
        none. The covariates' moments are summed alone.

        Not yet private; see `fitting.engine.Engine.bounded_sum`. How often this is
        asked depends on what was released; how often that is, of private rows, depends
        on public facts alone.
        """
        if COVARIATES in scales:
            found = self._bounded_moments(
                dict(rows),
                mask,
                units=self.units_of_covariates(state.standards),
                scale=float(scales[COVARIATES]),
                clipping_norm=clipping_norm,
            )
            return {COVARIATES: np.asarray(found)}
        expected_natural, moments = state.expected_natural, state.visited
        if self.program.refreshed.issuperset(set(scales).difference(DIAGNOSTICS)):
            # Rarely released, so at the best globals that there are.
            expected_natural = self.expected_natural_of(state.moments)
            moments = state.moments
        inputs = RowInputs(
            expected_natural=expected_natural,
            means=self._means(moments, state.origins, state.standards),
            units={
                name: jax.device_put(of)
                for name, of in state.units.items()
                if name in scales
            },
            standards=jax.device_put(state.standards),
        )
        found = self._bounded_sum(
            inputs=inputs,
            rows=dict(rows),
            mask=mask,
            scales={s: float(scales[s]) for s in scales if s not in DIAGNOSTICS},
            clipping_norm=clipping_norm,
        )
        return {name: np.asarray(found[name]) for name in scales}

    @functools.cached_property
    def additions(self) -> Mapping[str, int]:
        """By statistic, how many numbers of a row are added to an entry at most."""
        return additions_of_rows(self.program)

    @functools.cached_property
    def simulator(self) -> RowSimulator | None:
        """What draws rows of the model; None where nothing can."""
        return RowSimulator.of(self.program.graph)

    @property
    def covariates(self) -> CovariatePlaces:
        """Where rows have covariates, if their moments are all that a simulation lacks.

        Empty if it lacks nothing, or more.
        """
        simulator = self.simulator
        if (
            simulator is None
            or simulator.num_covariates > MOST_COVARIATES
            or self.program.graph.arguments.widths
        ):
            return {}
        return simulator.covariates

    @functools.cached_property
    def covariates_that_are_features(self) -> dict[int, tuple[str, int]]:
        """Which covariates are features, and of which factor; see `covariates`."""
        return covariates_that_are_features(self.program, self.covariates)

    @functools.cached_property
    def positive_covariates(self) -> Bool[np.ndarray, " covariates"]:
        """Which covariates of a row must be positive, or else it counts as zero."""
        return positive_covariates(self.program, self.covariates)

    def units_of_covariates(self, standards: Standards) -> CovariateUnits:
        """The units that covariates have when features are standardised like this."""
        number = sum(map(len, self.covariates.values()))
        return covariate_units(number, self.covariates_that_are_features, standards)

    @functools.cached_property
    def _bounded_moments(self) -> Any:
        return self._jit(functools.partial(bounded_moments, places=self.covariates))

    def moments_of_covariates(
        self, arguments: ModelArguments
    ) -> Float64[np.ndarray, "one_more one_more"]:
        """The sum of the covariates' moments of all rows; for fits without privacy."""
        units = self.units_of_covariates({})
        parts = map_rows(
            arguments,
            lambda rows: bounded_moments(
                rows,
                jnp.ones(len(jax.tree.leaves(rows)[0]), bool),
                self.covariates,
                units,
                1.0,
                math.inf,
            )[None],
        )
        return np.sum([np.asarray(part, np.float64) for part in parts], axis=(0, 1))

    def _means(
        self,
        moments: InDouble,
        origins: Mapping[str, Float64[np.ndarray, "..."]],
        standards: Standards,
    ) -> NewByStatistic:
        """The points about which rows' statistics are taken, by latent."""
        # In NumPy, where no shape needs a program of its own.
        means = as_arrays({"x": means_of(self.program.structure, moments)})["x"]
        # Statistics of factors without origins are taken about the means themselves.
        places = {name: of["x"] for name, of in moments.items() if name in standards}
        origins_of_all = zero_origins(standards, origins, places)
        frames = frames_of(self.program.features, origins_of_all, standards)
        points = {
            name: frame.origin_in if name in origins else frame.place_in(places[name])
            for name, frame in frames.items()
        }
        return means | self.by_latent(points)

    def by_latent(
        self, points: Mapping[str, Float[np.ndarray, "..."]]
    ) -> NewByStatistic:
        """Points of recentred factors, by latent in the latents' shapes."""
        return as_arrays({"x": by_latent(self.program.structure, points)})["x"]

    def inputs(self, state: VipsState) -> NormInputs:
        """What norms of rows depend on beside the rows."""
        means = self._means(state.visited, state.next_origins, state.next_standards)
        units = {name: jax.device_put(of) for name, of in state.units.items()}
        standards = state.next_standards
        inputs = RowInputs(
            expected_natural=state.expected_natural,
            means=means,
            units=units,
            standards=jax.device_put(standards),
        )
        return NormInputs(inputs, self.units_of_covariates(standards))

    def entries_of_rows(
        self, state: VipsState, rows: Rows, names: Sequence[str]
    ) -> dict[str, Float64[np.ndarray, "_entries rows"]]:
        """Absolute values of the entries of vectors, for rows that the caller may see.

        They are in units, and not finite where a row counts as zero.
        """
        inputs = self.inputs(state).of_statistics
        found = self._entries_of_rows(inputs, dict(rows), tuple(names))
        return {name: np.asarray(of) for name, of in found.items()}

    def _norms(
        self,
        inputs: NormInputs,
        rows: Rows,
        names: Sequence[str],
        in_any_state: bool = True,
    ) -> dict[str, Float[Array, " rows"]]:
        norms = norms_of_rows(
            self.program,
            inputs.of_statistics,
            rows,
            [name for name in names if name != COVARIATES],
            self.local_steps,
            in_any_state=in_any_state,
        )
        if COVARIATES in names:
            norms[COVARIATES] = moment_norms(
                rows, self.covariates, inputs.of_covariates
            )
        return norms

    def counts(
        self,
        inputs: NormInputs,
        rows: Rows,
        mask: Bool[Array | np.ndarray, " rows"],
        edges: Mapping[str, Float[Array, " _edges"]],
        parts: NormParts,
        in_any_state: bool,
    ) -> dict[str, Float[Array | np.ndarray, " _one_more"]]:
        """The number of rows in each bin of every part's norm, and of those that count
        as zero, not yet private.

        If there is a program that counts these parts and others, it is asked, and the
        others are left out: to compile one more takes longer than to count more.

        Args:
          inputs, rows, mask: See `_norms` and `counts_of_parts`.
          edges: By part, where bins end.
          parts: Each with its blocks.
          in_any_state: See `norms_of_rows`.
        """
        # Another thread may add a program meanwhile.
        known = (of for of in tuple(self._edges_of) if set(parts) <= set(of))
        program = next(known, parts)
        edges = {**self._edges_of.setdefault(program, edges), **edges}
        found = self._counts_of_parts(inputs, rows, mask, edges, program, in_any_state)
        return {name: found[name] for name, _ in parts}

    def _counts(
        self,
        inputs: NormInputs,
        rows: Rows,
        mask: Bool[Array, " rows"],
        edges: Mapping[str, Float[Array, " _edges"]],
        parts: NormParts,
        in_any_state: bool,
    ) -> dict[str, Float[Array, " _one_more"]]:
        names = sorted({name for _, blocks in parts for name in blocks})
        norms = self._norms(inputs, rows, names, in_any_state)
        return counts_of_parts(norms, mask, parts, edges)

    def _column_counts(
        self,
        inputs: NormInputs,
        rows: Rows,
        mask: Bool[Array, " rows"],
        edges: Mapping[str, Float[Array, " _edges"]],
    ) -> dict[str, Float[Array, "_columns _bins"]]:
        found = {}
        for name, of_name in edges.items():
            sizes = self._columns_of_rows(inputs.of_statistics, rows, name)
            with double_precision():
                found[name] = jax.lax.map(
                    lambda size, of=of_name: counts_in_bins(size, mask, of), sizes
                )
        return found

    def _columns_of_rows(
        self, inputs: RowInputs, rows: Rows, name: str
    ) -> Float[Array, "_columns _rows"]:
        """Absolute values of what a statistic's columns hold."""
        if name not in self.columns_of_features:
            return columns_of_rows(self.program, inputs, rows, name, self.local_steps)
        columns = self.columns_of_features[name]
        found = features_of_rows(self.program, inputs, rows, columns.factor)
        return found[np.array(columns.indices)]

    def information(self, state: VipsState, arguments: ModelArguments) -> NewSums:
        """The sums that the information is made of, of all rows as they are.

        For fits without privacy. See `bounded_sum` for what is asked for.
        """
        _, size = equal_chunks(arguments.num_rows)
        names = sorted(self.program.refreshed)
        total: NewSums = {
            name: np.zeros(state.statistics[name].shape) for name in names
        }
        with arguments.all_chunks(size) as chunks:
            for chunk in chunks:
                found = self.sum_of_rows(
                    state,
                    chunk.rows(),
                    chunk.mask,
                    scales=dict.fromkeys(names, 1.0),
                    clipping_norm=math.inf,
                )
                total = {name: np.asarray(total[name] + found[name]) for name in names}
        return total

    def evidence_bound(
        self, expected_natural: ByStatistic, arguments: ModelArguments
    ) -> float:
        """The evidence bound of all rows; that of rows that do not count is none.

        For fits without privacy: it is a sum over rows as they are.
        """
        parts = map_rows(
            arguments, lambda rows: self._row_bounds(expected_natural, dict(rows))
        )
        return sum(float(np.nansum(np.asarray(part, np.float64))) for part in parts)
