"""Rows simulated from posteriors, and what clipping takes off their sums."""

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import numpy as np
from jaxtyping import Float64

from numpyro_vips.jax_tools.row_sums import CLIPPED_ROWS, equal_chunks
from numpyro_vips.model.synthetic.simulated_rows import RowSimulator, seed_of
from numpyro_vips.vips.corrections.clipping_bias import Lost
from numpyro_vips.vips.program.named_arrays import Means, NewMeans, NewSums, Sums
from numpyro_vips.vips.row_sums.covariates import Covariates
from numpyro_vips.vips.steps.released_sums import Bound

# Rows that are simulated for one of a fit, where they show what clipping takes off, so
# many at least and at most,
_SIMULATED, FEWEST_SIMULATED, _MOST_SIMULATED = 8, 16_384, 65_536
# and at most where rows have latents of their own to be solved for.
_MOST_WITH_LATENTS = 16_384
# How often they are worked on at most: chunks are as short as a fit has few rows.
_MOST_CHUNKS = 16
# Groups of them whose sums show how much clipped sums vary with whole ones, and how
# little these are taken to do so.
_GROUPS = 48
_LEAST_CORRELATION = 0.1


OneSum = Float64[np.ndarray, "..."]


class RowSimulation:
    """Rows that are simulated from the posteriors of some sums, and clipped."""

    def __init__(
        self,
        simulator: RowSimulator,
        means_of_latents: Callable[[Sums], NewMeans | None],
        sum_of_rows: Callable[..., Sums],
        *,
        bounds: Mapping[str, Bound],
        released: Sums,
        num_rows: int,
        valid_rows: float,
        has_locals: bool,
        units: Sums = MappingProxyType({}),
        covariates: Callable[[Sums], Covariates | None] | None = None,
    ):
        """Simulates nothing yet.

        Args:
          simulator: What draws rows.
          means_of_latents: The means of the globals, for some sums; None if they
            have none.
          sum_of_rows: See `RowPrograms.sum_of_rows`, at the state of the last step.
          bounds: By statistic, how rows are clipped.
          released: By statistic, the sums as they were released.
          num_rows: Public number of rows, which decides how many are simulated.
          valid_rows: How many of them do not count as zero.
          has_locals: Whether rows have latents of their own.
          units: By statistic, what its entries are multiplied by where noise is added;
            1 if left out.
          covariates: Those of the rows, for some sums; None if rows have none.
        """
        self._simulator = simulator
        self._means_of_latents = means_of_latents
        self._sum_of_rows = sum_of_rows
        self._covariates = covariates
        self._units = units
        self._bounds = bounds
        self._valid_rows = valid_rows
        self._releases = {bound.release: bound for bound in bounds.values()}
        _, self._size = equal_chunks(num_rows)
        most = _MOST_WITH_LATENTS if has_locals else _MOST_SIMULATED
        wanted = max(FEWEST_SIMULATED, _SIMULATED * num_rows)
        self._number = min(math.ceil(min(wanted, most) / self._size), _MOST_CHUNKS)
        self._seed = seed_of(released)

    def _sums(
        self, latents: Means, covariates: Covariates | None, num_groups: int
    ) -> Iterator[dict[str, tuple[OneSum, OneSum]]]:
        """The whole and the clipped sum of groups of rows, by statistic.

        Groups have equally many rows: what all rows add alike would vary with their
        number, in both sums together.
        """
        counted = np.arange(self._size) < self._size // num_groups * num_groups
        for number in range(self._number):
            seed = self._seed + number
            given = covariates and covariates.drawn(self._size, seed)
            rows = self._simulator.rows(latents, self._size, seed, given)
            for group in range(num_groups):
                mask = (np.arange(self._size) % num_groups == group) & counted
                found = {}
                for release, bound in self._releases.items():
                    whole, clipped = (
                        self._sum_of_rows(
                            rows,
                            mask,
                            scales=bound.scales,
                            clipping_norm=norm,
                        )
                        for norm in (math.inf, bound.clipping_norm)
                    )
                    for name in bound.scales:
                        if (
                            name in self._bounds
                            and self._bounds[name].release == release
                        ):
                            found[name] = whole[name], clipped[name]
                yield found

    def missing(self, sums: Sums) -> NewSums | None:
        """How much clipped sums fall short of whole ones, by statistic.

        Args:
          sums: Those whose posterior rows are simulated from.

        Returns:
          None if these have no posterior, or what is missing is not finite.
        """
        latents, covariates = self._means_of_latents(sums), None
        if latents is None:
            return None
        if self._covariates is not None:
            covariates = self._covariates(sums)
            if covariates is None:
                return None
        factor = self._valid_rows / (self._number * self._size)
        found = {name: np.zeros(np.shape(sums[name])) for name in self._bounds}
        for of_group in self._sums(latents, covariates, 1):
            for name, (whole, clipped) in of_group.items():
                found[name] += factor * (whole - clipped)
        finite = all(np.isfinite(value).all() for value in found.values())
        return found if finite else None

    def share_clipped(self, sums: Sums, bound: Bound) -> float | None:
        """The share of rows that are clipped, by what the model says of them.

        Args:
          sums: Those whose posterior rows are simulated from.
          bound: How they are clipped.

        Returns:
          None if the sums have no posterior.
        """
        latents = self._means_of_latents(sums)
        covariates = self._covariates and self._covariates(sums)
        if latents is None or (self._covariates is not None and covariates is None):
            return None
        given = covariates and covariates.drawn(self._size, self._seed)
        found = self._sum_of_rows(
            self._simulator.rows(latents, self._size, self._seed, given),
            np.ones(self._size, bool),
            scales={**bound.scales, CLIPPED_ROWS: 1.0},
            clipping_norm=bound.clipping_norm,
        )
        return float(found[CLIPPED_ROWS]) / self._size

    def lost(self, sums: Sums) -> dict[str, Lost]:
        """What clipping hides of the rows, by statistic in its units; see `Lost`.

        Args:
          sums: As of `missing`, for which it was not None.
        """
        latents = self._means_of_latents(sums)
        assert latents is not None  # So it was for `missing`.
        covariates = self._covariates and self._covariates(sums)
        num_groups = math.ceil(_GROUPS / self._number)
        pairs = list(self._sums(latents, covariates, num_groups))
        rows_per_group = self._size // num_groups
        found = {}
        for name in self._bounds:
            unit = self._units.get(name, 1.0)
            parts = (unit * np.stack([pair[name][i] for pair in pairs]) for i in (0, 1))
            whole, clipped = (part - part.mean(0) for part in parts)
            variances = (whole**2).sum(), (clipped**2).sum()
            product = variances[0] * variances[1]
            # Clipped sums that do not vary say nothing of whole ones.
            squared = (whole * clipped).sum() ** 2 / product if product > 0 else 0.0
            variance = variances[0] / (len(pairs) - 1) / whole[0].size
            excess = 1.0 / max(float(squared), _LEAST_CORRELATION**2) - 1.0
            missing = ((whole - clipped) ** 2).sum() / (len(pairs) - 1) / whole[0].size
            num_rows, simulated = self._valid_rows, self._number * self._size
            found[name] = Lost(
                of_rows=float(excess * variance * num_rows / rows_per_group),
                of_simulation=float(missing / rows_per_group * num_rows**2 / simulated),
            )
        return found
