"""What DPVI does about latents of single rows, beside listing their states."""

from numpyro_vips.dpvi.row_latents.conjugate_locals import ConjugateLocals
from numpyro_vips.dpvi.row_latents.integrated_locals import (
    IntegratedLocals,
    not_integrable,
)
from numpyro_vips.errors import NotConjugateError, UnsafeModelError
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.log_density import MAX_JOINT_STATES, num_joint_states

LocalsOfRows = ConjugateLocals | IntegratedLocals


# The most joint states of discrete latents that are listed where the conjugacy layer
# can sum over them, too: of a chain by messages, in as many steps as the chain has.
MOST_LISTED = 64


def find_locals_of_rows(
    graph: ModelGraph, *, sweeps: int | None = None
) -> LocalsOfRows | None:
    """What solves for a row's latents; None if it has none, or few joint states.

    Continuous ones are solved for where they are conjugate given the globals. Where
    they are not, or only a bound would be, one or two of them are integrated out.

    Args:
      graph: The model.
      sweeps: See `ConjugateLocals`.

    Raises:
      UnsafeModelError: There is no way.
    """
    continuous = [s.name for s in graph.latents("local") if not s.is_discrete]
    if not continuous:
        return _summed_by_messages(graph, sweeps)
    reason = not_integrable(graph)
    count = num_joint_states(graph)
    if reason is None and (count is None or count > MAX_JOINT_STATES):
        reason = "its discrete latents have too many joint states to be summed out"
    try:
        conjugate = ConjugateLocals(graph, sweeps=sweeps)
    except NotConjugateError as error:
        if reason is None:
            return IntegratedLocals(graph)
        raise UnsafeModelError(
            f"DPVI has no guide of its own for latents of single rows, such as "
            f"{continuous[0]!r} under the plate {graph.unit!r}, unless they are "
            f"conjugate given the globals, or can be integrated out. They are not "
            f"conjugate: {error}. They cannot be integrated out by quadrature: "
            f"{reason}. Pass guide=, a function that draws them from the row (an "
            "amortised guide), integrate them out by hand, or change the model there."
        ) from None
    if conjugate.method == "bound" and reason is None:
        return IntegratedLocals(graph)
    return conjugate


def _summed_by_messages(graph: ModelGraph, sweeps: int | None) -> LocalsOfRows | None:
    """What sums over latents that are all discrete, where they have many joint states.

    Raises:
      UnsafeModelError: They are too many to be listed, and the sum is not known.
    """
    count = num_joint_states(graph)
    if count is None or count <= MOST_LISTED:
        return None
    try:
        found = ConjugateLocals(graph, sweeps=sweeps, lists_states=False)
    except NotConjugateError:
        found = None
    if found is not None and found.sums_by_messages:
        return found
    if count <= MAX_JOINT_STATES:
        return None
    name = next(site.name for site in graph.latents("local"))
    raise UnsafeModelError(
        f"DPVI sums the discrete latents of a row out one joint state after the other, "
        f"or along a chain, and with {name!r} under the plate {graph.unit!r} they have "
        f"more than {MAX_JOINT_STATES} and are no chain. Sum them out by hand, for "
        "example with numpyro.distributions.MixtureSameFamily."
    )
