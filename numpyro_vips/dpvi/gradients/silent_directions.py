"""Directions of the globals of which no row says anything, whatever it holds.

In a predictor μ + a[group] any number may be added to μ and taken from all of a: rows
know their sums alone, and the prior the rest. Noise knows nothing of that. In a
released gradient it points along such a direction, too, and iterates follow it.

In μ + τ z[group] there is such a direction at each place, another one where τ is
another. Nothing is made of it, but a fit can tell that the model may be written so that
there is one: with a[group] for τ z[group].

That a row's gradient has nothing there is not assumed: it is tried, on random rows and
at random places of the globals. No private value is read. So there may be one for each
district, too, where schools in districts have effects of both. VIPS, which has the
row's density as a sum of terms, tries the same with these, in
`vips/program/silent_directions.py`.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.extend.core as jex_core
import numpy as np
from jaxtyping import Array, Float, Float64

from numpyro_vips.dpvi.gradients.trial_gradients import picks_entries, trial_gradients
from numpyro_vips.dpvi.guides.unconstrained import GuideSite

# Globals beyond which nobody looks.
_MOST_GLOBALS = 12
# Places at which gradients are looked at, each on rows of its own.
_TRIALS = 4
# What is left of a sum that is zero, in single precision, relative to its parts.
_ROUNDING = 1e-5


class SilentDirections(NamedTuple):
    """What rows say nothing of, in the globals that they depend on.

    Attributes:
      directions: An orthonormal basis of directions that are the same everywhere, as
        columns.
      turning: Pairs of globals between which there is a direction at each place of the
        globals, but not the same one.
    """

    directions: Float64[np.ndarray, "read directions"]
    turning: tuple[tuple[str, str], ...] = ()


def silent_directions(
    density: Callable[[Mapping[str, Any], Mapping[str, Any]], Float[Array, ""]],
    program: jex_core.ClosedJaxpr,
    sites: Sequence[GuideSite],
    start: Mapping[str, Any],
    rows: Mapping[str, Any],
    *,
    is_encoded: bool = False,
) -> SilentDirections:
    """The directions that are found, of real globals of which rows pick all entries.

    Nobody looks where a row takes no entry of an array by its number, as that of its
    group, and no schema has encoded a category by indicators, which add up to one.

    Args:
      density: A row's log density, of the globals that it depends on and of the row.
      program: The same, traced.
      sites: These globals, in the order of the layout.
      start: Where the trials are, about.
      rows: Synthetic rows, several for each global.
      is_encoded: Whether some of what they hold is as a schema encodes it.
    """
    size = sum(site.size for site in sites)
    if (
        not (picks_entries(program) or is_encoded)
        or sum(site.is_real for site in sites) < 2
    ):
        return SilentDirections(np.zeros((size, 0)))
    found: list[Float64[np.ndarray, "rows size"]] = []
    number = len(next(iter(rows.values())))
    for _, of_rows in trial_gradients(density, start, rows, number=_TRIALS, seed=3):
        parts = [np.reshape(of_rows[site.name], (number, -1)) for site in sites]
        gradient = np.concatenate(parts, axis=1).astype(np.float64)
        found.append(gradient[np.isfinite(gradient).all(1)])
    return SilentDirections(
        _null_space(np.concatenate(found), sites), _turning(found, sites)
    )


def _spans(sites: Sequence[GuideSite]) -> dict[str, slice]:
    """Where the real globals are in the flat vector of all of these."""
    sizes = [site.size for site in sites]
    ends = np.cumsum(sizes).tolist()
    return {
        site.name: slice(end - size, end)
        for site, size, end in zip(sites, sizes, ends, strict=True)
        if site.is_real
    }


def _null_space(
    gradients: Float64[np.ndarray, "rows size"], sites: Sequence[GuideSite]
) -> Float64[np.ndarray, "size directions"]:
    """An orthonormal basis of the directions in which no gradient goes."""
    seen = np.any(gradients != 0, axis=0)
    kept = [np.r_[span] for span in _spans(sites).values() if seen[span].all()]
    places = np.concatenate([np.zeros(0, int), *kept])
    mine = gradients[:, places]
    norms = np.linalg.norm(mine, axis=1)
    mine = mine[norms > 0] / norms[norms > 0, None]
    if len(mine) < 2 * len(places) or len(places) < 2:
        return np.zeros((gradients.shape[1], 0))
    _, values, axes = np.linalg.svd(mine, full_matrices=False)
    silent = axes[values <= _ROUNDING * values[0]]
    basis = np.zeros((gradients.shape[1], len(silent)))
    basis[places] = silent.T
    return basis


def _turning(
    gradients: Sequence[Float64[np.ndarray, "rows size"]], sites: Sequence[GuideSite]
) -> tuple[tuple[str, str], ...]:
    """See `SilentDirections.turning`.

    Args:
      gradients: Of rows, at several places of the globals.
      sites: The globals.
    """
    found = []
    for one, other in _pairs(sites):
        ratios = [_ratio(of_place, one.moved, other.moved) for of_place in gradients]
        # A sum that is not finite is not larger.
        if np.ptp(ratios) > _ROUNDING * np.max(np.abs(ratios)):
            found.append((one.name, other.name))
    return tuple(found)


class _Whole(NamedTuple):
    """A global of which all entries are moved by one."""

    name: str
    moved: Float64[np.ndarray, " size"]


def _pairs(sites: Sequence[GuideSite]) -> Iterator[tuple[_Whole, _Whole]]:
    """Two real globals at a time."""
    spans, moved = _spans(sites), []
    size = sum(site.size for site in sites)
    for site in sites:
        if site.name in spans:
            whole = np.zeros(size)
            whole[spans[site.name]] = 1.0 / np.ravel(site.units)
            moved.append(_Whole(site.name, whole))
    if len(moved) <= _MOST_GLOBALS:
        yield from itertools.combinations(moved, 2)


def _ratio(
    gradients: Float64[np.ndarray, "rows size"],
    one: Float64[np.ndarray, " size"],
    other: Float64[np.ndarray, " size"],
) -> float:
    """The multiple of a second direction that undoes a first one in every row; NaN if
    there is none, or no row depends on one of them."""
    first, second = gradients @ one, gradients @ other
    total = np.sum(second**2)
    if not total > 0:
        return math.nan
    ratio = np.sum(first * second) / total
    sizes = np.abs(gradients) @ np.abs(one) + abs(ratio) * np.abs(gradients) @ np.abs(
        other
    )
    is_undone = np.all(np.abs(first - ratio * second) <= _ROUNDING * sizes)
    return float(ratio) if is_undone and ratio != 0 else math.nan
