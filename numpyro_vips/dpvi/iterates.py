"""The states of a fit by DPVI, and what is kept of how they move.

How iterates move is added up beside the program of a step, which is compiled without.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Float64, Int, PRNGKeyArray

from numpyro_vips.dpvi.drift import Drift, drift_diagnostics
from numpyro_vips.dpvi.gradients.coordinates import GradientCoordinates
from numpyro_vips.dpvi.posterior.information_equality import SecondMoments
from numpyro_vips.dpvi.posterior.noise_aware import RunningScore
from numpyro_vips.dpvi.posterior.variational_newton import VectorNormal
from numpyro_vips.privacy.releases import Kept
from numpyro_vips.vips.m_step.noisy_information import Information

# How many iterates wait until they are looked at, all together.
MOST_RECENT = 16


class Variational(NamedTuple):
    """What is fitted, all on unconstrained spaces.

    Attributes:
      guide: Arrays of an automatic guide, whose leading axis runs over the globals'
        coordinates; empty with a guide of the user's own.
      params: The values of every `numpyro.param` of the model and of the user's guide.
    """

    guide: dict[str, Float[Array, "size ..."]]
    params: dict[str, Any]


class DpviState(NamedTuple):
    """What a step needs; all of it public.

    Attributes:
      variational: The current iterate.
      average: Running average of the iterates, what the posterior is read from.
      optimizer_state: State of the optax optimiser.
      key: Key of the guide's draws, combined with `step`.
      step: Number of updates so far.
      drift: How iterates have moved; None before the first ones.
      recent: Iterates that are not in `drift` yet: to look at one is to wait for it.
      is_noisy: Whether there was noise in what was released.
      diagnostics: What a fit by Newton's method knows of how good it is.
      score: Averages of what the steps released; None where no posterior is made of it.
      coordinates: Those that rows' gradients are taken in; None where they are always
        the globals' own.
      column_units: What the sizes of features have made of the globals' units; None
        where none were counted.
      pilot: The information that the next coordinates are to be found by; None where
        none was released since the last ones.
      second: What the last pilot has released; None before.
      information: The release near the end, see `noise_aware.py`; None before.
      information_limit: See `Information.limit`, of the next release of it; None before
        its bound is known.
      is_slope: Whether the information is that of clipped gradients, see
        `clipped_slope.py`.
      gradient_norm: What the rows' gradients were clipped to in the last step; None
        before the first.
      kept: What clipping leaves of differences to redrawn rows; None where nothing is
        known of it.
    """

    variational: Variational
    average: Variational
    optimizer_state: Any
    key: PRNGKeyArray
    step: Int[Array, ""]
    drift: Drift | None = None
    recent: tuple[Variational, ...] = ()
    is_noisy: bool = False
    diagnostics: Mapping[str, Any] | None = None
    score: RunningScore | None = None
    coordinates: GradientCoordinates | None = None
    column_units: Float64[np.ndarray, " read"] | None = None
    pilot: Information | None = None
    second: SecondMoments | None = None
    information: Information | None = None
    information_limit: float | None = None
    is_slope: bool = False
    gradient_norm: float | None = None
    kept: Kept | None = None


# What only Python reads of a state, and what compiled steps have in its place.
_IN_PYTHON = {
    name: default
    for name, default in DpviState._field_defaults.items()
    if name not in ("score", "coordinates")
}
# What of it steps leave as it is.
_KEPT = (
    *("column_units", "pilot", "second", "information", "is_slope"),
    *("gradient_norm", "kept"),
)


def for_program(state: DpviState) -> DpviState:
    """The state without what only Python reads, as compiled steps take it."""
    return state._replace(**_IN_PYTHON)


def with_drift(updated: DpviState, before: DpviState, *, is_noisy: bool) -> DpviState:
    """The state after a step, with its iterate added to those before.

    Args:
      updated: What the program of the step has made of `for_program(before)`.
      before: The state before the step.
      is_noisy: Whether there was noise in what the step released.
    """
    drift, recent = before.drift, (*before.recent, updated.variational)
    if len(recent) == MOST_RECENT:
        drift, recent = _with_iterates(drift, recent), ()
    return updated._replace(
        drift=drift,
        recent=recent,
        is_noisy=is_noisy,
        **{name: getattr(before, name) for name in _KEPT},
    )


def drift_of_iterates(
    state: DpviState,
    sizes: Mapping[str, int],
    stddev: Float64[np.ndarray, " size"],
    normal: VectorNormal | None = None,
    *,
    unseen: Float64[np.ndarray, "size directions"] | None = None,
    has_components: bool = False,
) -> dict[str, Any]:
    """What the iterates say of how good the posterior is; nothing before the first.

    Args:
      state: The state after the last step.
      sizes: How many unconstrained numbers each global is, in the guide's order.
      stddev: The posterior's, of these numbers; empty with a guide of the user's own.
      normal: The posterior, where its mean is not the average of the iterates.
      unseen: Directions in which no distance counts, as rows may say nothing of them
        and iterates follow noise; as columns.
      has_components: See `drift_diagnostics`.
    """
    drift = _with_iterates(state.drift, state.recent)
    if drift is None:
        return {}
    r_hat = drift.r_hat()
    fluctuation, apart = np.zeros(0), np.zeros(0)
    if r_hat is not None:
        # Parameters without a prior have no standard deviation.
        unit = np.full(len(r_hat), np.inf)
        unit[: len(stddev)] = stddev
        fluctuation, apart = drift.fluctuation() / unit, drift.apart() / unit
    distance = None
    if normal is not None:
        assert state.score is not None
        asked = (state.average.guide["loc"], state.score.place)
        if unseen is None:
            unseen = np.zeros((len(stddev), 0))
        places = np.stack([np.asarray(x, np.float64) for x in asked])
        away = _away(normal, places, unseen)
        distance = largest_by_name(state.variational, sizes, away)
    return drift_diagnostics(
        None if r_hat is None else largest_by_name(state.variational, sizes, r_hat),
        largest_by_name(state.variational, sizes, fluctuation),
        largest_by_name(state.variational, sizes, apart),
        num_steps=int(state.step),
        is_private=state.is_noisy,
        distance=distance,
        has_components=has_components,
    )


def _away(
    normal: VectorNormal,
    places: Float64[np.ndarray, "places size"],
    unseen: Float64[np.ndarray, "size directions"],
) -> Float64[np.ndarray, " size"]:
    """How far the furthest of some places is from the mean, in standard deviations.

    Distances are along the principal directions of the posterior's correlations, as an
    intercept and its slope may each be near, and both together far. They are turned
    back into the coordinates, by the symmetric root of the correlations.

    Args:
      normal: The posterior.
      places: They.
      unseen: Directions in which no distance counts, as columns.
    """
    stddev = normal.stddev
    axes, values, _ = np.linalg.svd(normal.tril / stddev[:, None])
    roots = np.maximum(values, 1e-6 * np.max(values, initial=0.0))

    def along(vectors: Float64[np.ndarray, "vectors size"]) -> Any:
        return (vectors / stddev) @ axes / roots

    away, basis = along(places - normal.loc), np.linalg.qr(along(unseen.T).T)[0]
    away = (away - away @ basis @ basis.T) @ axes.T
    return np.max(abs(away), axis=0)


def largest_by_name(
    variational: Variational,
    sizes: Mapping[str, int],
    values: Float64[np.ndarray, " numbers"],
) -> dict[str, float]:
    """The largest of `_places`, by name of the global or parameter."""
    counts = dict(sizes) if "loc" in variational.guide else {}
    for name, tree in variational.params.items():
        counts[name] = sum(leaf.size for leaf in jax.tree.leaves(tree))
    stops = np.cumsum(list(counts.values()))[:-1]
    return {
        name: float(np.max(part, initial=0.0))
        for name, part in zip(counts, np.split(values, stops), strict=True)
    }


def _with_iterates(
    drift: Drift | None, iterates: Sequence[Variational]
) -> Drift | None:
    for variational in iterates:
        iterate = _places(variational)
        drift = (drift or Drift.of(iterate)).with_iterate(iterate)
    return drift


def _places(variational: Variational) -> Float64[np.ndarray, " numbers"]:
    """What a fit is about: the guide's means and the parameters, one after the other.

    Standard deviations follow these, and are worth no second look.
    """
    leaves = [variational.guide["loc"]] if "loc" in variational.guide else []
    for name in variational.params:
        leaves += jax.tree.leaves(variational.params[name])
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in leaves])
