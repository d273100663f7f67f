"""What DPVI does about the continuous latents of single rows."""

from numpyro_vips.conjugacy.structure.structure import NotConjugate
from numpyro_vips.dpvi.row_latents.conjugate_locals import ConjugateLocals
from numpyro_vips.dpvi.row_latents.integrated_locals import (
    IntegratedLocals,
    not_integrable,
)
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.log_joint import MAX_JOINT_STATES, num_joint_states

LocalsOfRows = ConjugateLocals | IntegratedLocals


def find_locals_of_rows(
    graph: ModelGraph, *, sweeps: int | None = None
) -> LocalsOfRows | None:
    """What solves for the continuous latents of a row; None if a row has none.

    They are solved for where they are conjugate given the globals. Where they are not,
    or only a bound would be, one or two of them are integrated out.

    Args:
      graph: The model.
      sweeps: See `ConjugateLocals`.

    Raises:
      UnsafeModelError: There is no way.
    """
    continuous = [s.name for s in graph.latents("local") if not s.is_discrete]
    if not continuous:
        return None
    reason = not_integrable(graph)
    count = num_joint_states(graph)
    if reason is None and (count is None or count > MAX_JOINT_STATES):
        reason = "its discrete latents have too many joint states to be summed out"
    try:
        conjugate = ConjugateLocals(graph, sweeps=sweeps)
    except NotConjugate as error:
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
