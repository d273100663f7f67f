"""Columns of features, by which rows multiply the globals.

In a + b age + c income a row's gradient is as large in c as its income, in b as its
age, and in a as one. It is clipped, and gets its noise, as a whole: that of incomes
hides what rows say of the others, and steps that suit a are far too long for c. So
each feature is a column, whose size a private histogram finds before all else, see
`fitting.bounds.column_histogram`. Coefficients are then in units of one over it.

Which globals these are is tried on synthetic rows. Features that all such rows have
alike, as the 1 of an intercept and that of a row's group, need no histogram. Others are
measured by these, as the model may divide all of them, such as by the scale of a
residual. A feature that multiplies one of many effects, each row another one's, is a
single column, and so is one that stands in several predictors.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int, Shaped

from numpyro_vips.dpvi.guides.unconstrained import UnconstrainedSpace
from numpyro_vips.dpvi.linear_predictors import linear_predictors
from numpyro_vips.dpvi.posterior.unseen_globals import LinearGlobals
from numpyro_vips.jax_tools.double_precision import evaluate_in_numpy
from numpyro_vips.jax_tools.jaxprs import with_used_inputs
from numpyro_vips.jax_tools.precision import Precision, double_precision
from numpyro_vips.jax_tools.row_sums import (
    counts_in_bins,
    in_double,
    map_over_rows,
    piece_length,
)
from numpyro_vips.jax_tools.separate_rows import over_rows
from numpyro_vips.model.synthetic.synthetic_rows import with_large_floats

# Differences of two numbers that single precision makes.
_ROUNDING = 1e-5
# Jacobians of rows are held for so many numbers at a time.
_MOST_NUMBERS = 2**20
# Above the largest integers of synthetic rows, which fit any type of integer.
_LARGE = 100


class FeatureColumns:
    """The columns of features of a model's rows.

    Attributes:
      groups: Of each column the globals that it multiplies, by their places in the
        vector of those that rows depend on.
      linear: Which of these globals are real ones that linear predictors add, and
        which of them stand before numbers that rows may have or not. A row may be of
        one group or another, too.
      of_row: The program of one row, of the place of all globals, by name, and of the
        row: the absolute value of its entry in every column.
    """

    def __init__(
        self,
        program: jex_core.ClosedJaxpr,
        inputs: Callable[[Mapping[str, Any], Mapping[str, Any]], list[Any]],
        read: UnconstrainedSpace,
        place: Mapping[str, Any],
        rows: Mapping[str, Shaped[np.ndarray, "rows ..."]],
        encoded: Collection[str],
    ) -> None:
        """Tries synthetic rows; no private value is read.

        Args:
          program: A row's log density, of inputs that begin with the leaves of `place`.
          inputs: The program's inputs at a place and a row.
          read: The globals that rows depend on.
          place: A place of all globals, unconstrained.
          rows: Synthetic rows, of several sizes.
          encoded: Arguments whose sizes a schema says.
        """
        self._inputs, self._read = inputs, read
        self._predictors = linear_predictors(program, place)
        row = {name: values[0] for name, values in rows.items()}
        features = jax.make_jaxpr(self._features)(place, row)
        self.groups: tuple[np.ndarray, ...] = ()
        nowhere = np.zeros(read.size, bool)
        self.linear = LinearGlobals(nowhere, nowhere)
        known = []
        used = _rows_used(features, rows)
        tried = _tried(features, place, rows) if used else np.zeros((0, read.size))
        owners = _owners(read)
        are_real = {site.name: site.is_real for site in read.sites}
        if len(tried):
            largest = np.max(tried, axis=0)
            added = (largest > 0) & [are_real[owner] for owner in owners]
            varies = np.ptp(tried, axis=0) > _ROUNDING * largest
            self.linear = LinearGlobals(varies & added, added)
        if any(rows[name].dtype.kind != "b" and name not in encoded for name in used):
            for group, sizes in _grouped(tried, owners):
                if len(sizes) and np.ptp(sizes) > _ROUNDING * np.max(sizes):
                    self.groups += (group,)
                elif len(sizes) and are_real[owners[group[0]]]:
                    known.append(float(sizes[0]))
        self._intercept = max(known, default=1.0)
        self.of_row = jax.jit(self._sizes)
        self._of_rows = over_rows(self.of_row)

    @property
    def coefficients(self) -> frozenset[str]:
        """The globals that columns multiply."""
        owners = _owners(self._read)
        return frozenset(owners[place] for group in self.groups for place in group)

    def counts(
        self,
        place: Mapping[str, Any],
        rows: Mapping[str, Any],
        mask: Bool[Array, " rows"],
        edges: Float[Array, " _edges"],
    ) -> Float[Array, "_columns _bins"]:
        """The number of rows in each bin of every column; not yet private.

        A row's bins are its own, whatever other rows hold. An entry that is not finite
        is in none.

        Args:
          place: See above. Where it is matters to features that a row divides by
            what depends on a global; it is public, and the same for all rows.
          rows: Private rows, as the model takes them.
          mask: Which of them are counted.
          edges: Where bins end, see `counts_in_bins`.
        """

        def of_piece(rows: Any) -> Float[Array, "piece _columns"]:
            with callers.restored():
                found = self._of_rows(place, rows)
            return in_double(found)

        callers = Precision.of_caller()
        # Jacobians of predictors, of which there are few.
        at_a_time = piece_length(self._read.size**2, _MOST_NUMBERS)
        with double_precision():
            sizes = map_over_rows(of_piece, rows, at_a_time)
            return jax.lax.map(
                lambda of_column: counts_in_bins(of_column, mask, edges), sizes.T
            )

    def units(
        self, sizes: Float64[np.ndarray, " _columns"]
    ) -> Float64[np.ndarray, " read"]:
        """Units of globals once columns' sizes are known, in multiples of those before.

        A narrow prior may be that of somebody who knows how large the feature is. So it
        is the unit of one, or of a wide prior, that becomes as many times shorter.

        Args:
          sizes: Of each column.
        """
        units = np.ones(self._read.size)
        of_prior = [
            np.broadcast_to(site.units, site.unconstrained_shape).ravel()
            for site in self._read.sites
        ]
        narrow = np.minimum(np.concatenate(of_prior), 1.0)
        for group, size in zip(self.groups, sizes, strict=True):
            units[group] = self._intercept / size / narrow[group]
        return units

    def _features(
        self, place: Mapping[str, Any], row: Mapping[str, Any]
    ) -> Float[Array, " read"]:
        """What the row multiplies each global with, the largest absolute value.

        Of what the global is in units of one.
        """
        others = self._inputs(place, row)[len(place) :]
        values = jex_core.jaxpr_as_fun(self._predictors.program)

        def predictors(place: Mapping[str, Any]) -> list[Any]:
            return values(*jax.tree.leaves(place), *others)

        slopes = jax.jacfwd(predictors)(dict(place))
        features = []
        for site in self._read.sites:
            found = [
                jnp.abs(jnp.reshape(slope[site.name], (-1, site.size)))
                for predictor, slope in zip(self._predictors.found, slopes, strict=True)
                if site.name in predictor.linear_in
            ]
            none = jnp.zeros((1, site.size), jnp.result_type(float))
            largest = jnp.max(jnp.concatenate([none, *found]), axis=0)
            features.append(largest / jnp.asarray(np.ravel(site.units), none.dtype))
        return jnp.concatenate(features)

    def _sizes(
        self, place: Mapping[str, Any], row: Mapping[str, Any]
    ) -> Float[Array, " _columns"]:
        features = self._features(place, row)
        return jnp.stack([jnp.max(features[group]) for group in self.groups])


def _rows_used(
    features: jex_core.ClosedJaxpr,
    rows: Mapping[str, Shaped[np.ndarray, "rows ..."]],
) -> list[str]:
    """Names of the arguments that features depend on.

    Args:
      features: Of a place and a row, the program of `FeatureColumns`.
      rows: Synthetic rows.
    """
    _, used = with_used_inputs(features)
    return [
        name
        for name, is_used in zip(sorted(rows), used[-len(rows) :], strict=True)
        if is_used
    ]


def _tried(
    features: jex_core.ClosedJaxpr,
    place: Mapping[str, Any],
    rows: Mapping[str, Shaped[np.ndarray, "rows ..."]],
) -> Float64[np.ndarray, "rows read"]:
    """What synthetic rows multiply each global with; see `_rows_used`."""
    of_row = jex_core.jaxpr_as_fun(features)
    of_rows = jax.make_jaxpr(
        lambda place, rows: jax.vmap(
            lambda row: of_row(*jax.tree.leaves((place, row)))[0]
        )(rows)
    )(place, rows)
    (found,) = evaluate_in_numpy(of_rows, *jax.tree.leaves((place, rows)))
    return found[np.isfinite(found).all(1)]


def _owners(read: UnconstrainedSpace) -> list[str]:
    """By coordinate, the global that it belongs to."""
    return [site.name for site in read.sites for _ in range(site.size)]


def _grouped(
    features: Float64[np.ndarray, "rows read"], owners: Sequence[str]
) -> Iterator[tuple[Int[np.ndarray, " places"], Float64[np.ndarray, " present"]]]:
    """Globals that have a feature in common.

    Args:
      features: Of synthetic rows.
      owners: By coordinate, the global that it is an entry of.

    Yields:
      Their coordinates, and the feature in those rows that have it.
    """
    groups: list[tuple[str, list[int], np.ndarray]] = []
    for place, (owner, feature) in enumerate(zip(owners, features.T, strict=True)):
        for name, places, largest in groups:
            # Each row has another one's: of a row one of them at most is not zero.
            if name == owner and not np.any((largest > 0) & (feature > 0)):
                places.append(place)
                np.maximum(largest, feature, out=largest)
                break
        else:
            groups.append((owner, [place], feature.copy()))
    columns: list[tuple[list[int], np.ndarray]] = []
    for _, places, largest in groups:
        for others, of_others in columns:
            if np.allclose(largest, of_others, rtol=_ROUNDING, atol=0.0):
                others += places
                break
        else:
            columns.append((places, largest))
    for places, largest in columns:
        yield np.array(places), largest[largest > 0]


def rows_of_all_sizes(
    rows: Mapping[str, Shaped[np.ndarray, "rows ..."]],
) -> dict[str, Shaped[np.ndarray, "twice_as_many ..."]]:
    """Synthetic rows, of which half have large numbers.

    Many of them are no valid observations. What they multiply globals with is looked
    at, and no density.
    """
    rng = np.random.default_rng(7)
    return {
        name: np.concatenate([rows[name], _large(values, rng)])
        for name, values in with_large_floats(rows).items()
    }


def _large(
    values: Shaped[np.ndarray, "*shape"], rng: np.random.Generator
) -> Shaped[np.ndarray, "*shape"]:
    if values.dtype.kind in "iu":
        return rng.integers(0, _LARGE, values.shape).astype(values.dtype)
    return values
