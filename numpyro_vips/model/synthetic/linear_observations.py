"""Observations that a model computes from its arguments, as far as they are linear.

To simulate a row, what a site has drawn must get into the arguments. Where the site
observes an entry as it is, that is a matter of copying; see `copied_entries`. Where it
observes `y.sum(-1)`, `(y - 50) / 10` or so, an entry is solved for, and others of a sum
are zero: the model sees nothing of them but the sum. Of the data only shapes and types
are used.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.synthetic.prior_predictive import TriedRows, columns_of

# Entries of a row beyond which nothing is looked for: there have to be fewer than rows
# that are tried.
_MOST_ENTRIES = 60
# Single precision leaves this of a number that is zero.
_TOLERANCE = 1e-4


class SolvedEntries(NamedTuple):
    """Entries of one argument that follow from what a site observes, all flat.

    The entry at `there` is the site's value at `here`, less `intercept`, over `slope`;
    those at `zeros` are zero.
    """

    argument: str
    here: Int64[np.ndarray, " solved"]
    there: Int64[np.ndarray, " solved"]
    slope: Float64[np.ndarray, " solved"]
    intercept: Float64[np.ndarray, " solved"]
    zeros: Int64[np.ndarray, " _zeros"]


class _Entry(NamedTuple):
    """One entry of a site's value, as a sum of entries of an argument."""

    site: str
    here: int
    argument: str
    places: Int64[np.ndarray, " places"]
    slopes: Float64[np.ndarray, " places"]
    intercept: float


def linear_observations(
    graph: ModelGraph, tried: TriedRows, copies: Mapping[str, Any]
) -> dict[str, list[SolvedEntries]]:
    """The entries of arguments that are linear functions of what sites observe.

    Args:
      graph: The model.
      tried: From `observed_in_random_rows`.
      copies: See `copied_entries`; what they have is left out.

    Returns:
      By observed site, such entries with their slopes and intercepts.
    """
    entries = _linear_entries(graph, tried, copies)
    met = {
        (argument, int(place))
        for of_site in copies.values()
        for argument, _, there in of_site
        for place in np.atleast_1d(there)
    }
    found: dict[str, dict[str, list[_Entry]]] = {}
    for entry in entries:
        mine = {(entry.argument, int(place)) for place in entry.places}
        is_sum = len(mine) > 1
        if met & mine or (is_sum and _is_seen_elsewhere(graph, entry)):
            continue
        met |= mine
        of_site = found.setdefault(entry.site, {})
        of_site.setdefault(entry.argument, []).append(entry)
    return {
        site: [_solved(argument, mine) for argument, mine in by_argument.items()]
        for site, by_argument in found.items()
    }


def _solved(argument: str, entries: list[_Entry]) -> SolvedEntries:
    return SolvedEntries(
        argument=argument,
        here=np.array([entry.here for entry in entries]),
        there=np.array([entry.places[0] for entry in entries]),
        slope=np.array([entry.slopes[0] for entry in entries]),
        intercept=np.array([entry.intercept for entry in entries]),
        zeros=np.concatenate([entry.places[1:] for entry in entries]),
    )


def _linear_entries(
    graph: ModelGraph, tried: TriedRows, copies: Mapping[str, Any]
) -> list[_Entry]:
    """What is linear in entries of one argument, and no copy."""
    sizes = {
        name: int(np.prod(like.shape, dtype=int))
        for name, like in graph.arguments.row_shapes().items()
    }
    if sum(sizes.values()) > _MOST_ENTRIES:
        return []
    found = []
    for site, value in tried.observed.items():
        copied = [here for _, here, _ in copies.get(site, ())]
        known = set(np.concatenate(copied).tolist()) if copied else set()
        for here, column in enumerate(columns_of(value)):
            if here in known or np.ptp(column) == 0:
                continue
            entry = _as_sum(column, tried.rows)
            if entry is None:
                continue
            found_entry = _Entry(site, here, *entry)
            if _can_be_solved(graph, found_entry):
                found.append(found_entry)
    return found


def _as_sum(
    column: Float64[np.ndarray, " rows"], rows: Mapping[str, np.ndarray]
) -> (
    tuple[str, Int64[np.ndarray, " places"], Float64[np.ndarray, " places"], float]
    | None
):
    """A value over many rows as a sum of entries of one argument; None if it is none.

    Returns:
      The argument, the entries' places and slopes, and the intercept.
    """
    by_argument = {name: columns_of(value).T for name, value in rows.items()}
    table = np.concatenate([np.ones((len(column), 1)), *by_argument.values()], axis=1)
    slopes, *_ = np.linalg.lstsq(table, column, rcond=None)
    size = np.abs(column).max()
    if np.abs(table @ slopes - column).max() > _TOLERANCE * size:
        return None
    intercept, start = _rounded(slopes[:1])[0], 1
    used: dict[str, Any] = {}
    for name, mine in by_argument.items():
        of_mine = _rounded(slopes[start : start + mine.shape[1]])
        start += mine.shape[1]
        places = np.flatnonzero(
            np.abs(of_mine) * np.abs(mine).max() > _TOLERANCE * size
        )
        if len(places):
            used[name] = places, of_mine[places]
    if len(used) != 1:
        return None
    ((name, (places, of_places)),) = used.items()
    return name, places, of_places, float(intercept)


def _rounded(numbers: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """Whole numbers where they are whole but for rounding."""
    whole = np.rint(numbers)
    return np.where(np.abs(numbers - whole) < _TOLERANCE, whole, numbers)


def _can_be_solved(graph: ModelGraph, entry: _Entry) -> bool:
    """Whether the first entry of the argument can take the number that it has to."""
    dtype = graph.arguments.row_shapes()[entry.argument].dtype
    if np.issubdtype(dtype, np.floating):
        return True
    is_whole = abs(entry.slopes[0]) == 1 and entry.intercept == round(entry.intercept)
    return bool(np.issubdtype(dtype, np.integer) and is_whole)


def _is_seen_elsewhere(graph: ModelGraph, entry: _Entry) -> bool:
    """Whether the model uses the argument for anything but this site's value."""
    arguments, _ = graph.read_for(
        lambda name, output: name != entry.site or output not in ("value", "in_support")
    )
    return entry.argument in arguments
