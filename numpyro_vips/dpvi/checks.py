"""Models that DPVI cannot run, reported before anything else, with the remedy."""

from typing import Any

import jax.extend.core as jex_core

from numpyro_vips.dpvi.guides.supports import support_to_json
from numpyro_vips.jax_tools.program_constants import (
    Declared,
    constants_of,
    refuse_program_constants,
)
from numpyro_vips.jax_tools.separate_rows import row_program
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.synthetic.prior_centre import global_values, moved_supports


def not_supported(graph: ModelGraph, *, has_guide: bool = False) -> str | None:
    """Why DPVI cannot run the model, and what to do; None if nothing is in the way.

    Args:
      graph: The model. Without a guide, `find_locals_of_rows` says more of its latents
        of single rows.
      has_guide: Whether the user has given a guide.
    """
    local = graph.latents("local")
    is_solved = not has_guide and not all(site.is_discrete for site in local)
    for site in local:
        if site.is_discrete and "scale" in graph.program_outputs[site.name]:
            # NumPyro sums out before it scales: c · log Σ_z p(z, x).
            return (
                f"DPVI cannot sum out the discrete latent {site.name!r} under "
                "numpyro.handlers.scale. Sum it out by hand, for example with "
                "numpyro.distributions.MixtureSameFamily, and scale the observation."
            )
        # Next to continuous ones the conjugacy layer may have them too.
        if site.is_discrete and site.num_states is None and not is_solved:
            return (
                f"DPVI sums the discrete latents of a row out, and does not know which "
                f"states {site.name!r} under the plate {graph.unit!r} has. It knows "
                "those of Bernoulli, of Categorical, and of DiscreteUniform from 0 to "
                "a public Python int. Use one of these, or sum it out by hand, for "
                "example with numpyro.distributions.MixtureSameFamily."
            )
    sites = graph.latents("global")
    for site in sites:
        if site.is_discrete:
            return (
                f"DPVI has no gradient for the discrete latent {site.name!r}. Sum it "
                "out by hand, or fit one model for each of its values."
            )
    if not sites and not graph.params:
        return (
            "The model has no latent that all rows share, so there is nothing to fit."
        )
    supports = global_values(graph).supports
    described = {s.name: support_to_json(supports[s.name]) for s in sites}
    # Other supports are the same wherever latents are.
    is_bounded = any("bounds" in str(description) for description in described.values())
    moved = moved_supports(graph) if is_bounded else supports
    for site in sites:
        first, second = supports[site.name], moved[site.name]
        description = described[site.name]
        if description is None:
            return (
                f"DPVI knows no smooth map from the real numbers to the support of "
                f"{site.name!r}, {first}. Write the latent as a function of others "
                "with a usual support."
            )
        if description != support_to_json(second):
            return (
                f"The support of {site.name!r} depends on another latent. Sample it on "
                "a fixed support, such as (0, 1), and rescale it in the model."
            )
    return None


def check_derivatives(
    of_row: Any,
    shared: Any,
    row: Any,
    *,
    density: jex_core.ClosedJaxpr,
    arguments: Declared,
    what: str,
) -> jex_core.ClosedJaxpr:
    """Refuses derivatives by which rows could meet, leave or enter unseen.

    Args:
      of_row: A compiled function of what rows share and one row, which takes
        derivatives.
      shared, row: Its arguments, of which only shapes and types are looked at.
      density: What it takes derivatives of. The arrays in it were looked at with the
        model.
      arguments: The model's.
      what: Whose derivatives they are, for the message.

    Returns:
      The function's program, of the leaves of its arguments.

    Raises:
      UnsafeModelError: See `separate_rows.check_row_program`, or a derivative that the
        author gave holds an array that is as long as the data.
    """
    program, _ = row_program(of_row, shared, row)
    refuse_program_constants(program, arguments, what, looked_at=constants_of(density))
    return program
