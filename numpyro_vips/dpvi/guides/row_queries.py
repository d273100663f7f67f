"""The latents of rows that the caller may see, under a posterior that DPVI has made.

DPVI sums or integrates them out. Where the model is conjugate, VIPS has their posterior
at any moments of the globals, and DPVI's posterior has these as averages over draws.
"""

from collections.abc import Mapping

import numpyro.distributions as dist
from jaxtyping import Array, Shaped

from numpyro_vips.errors import NotConjugateError
from numpyro_vips.model.row_queries import RowQuery
from numpyro_vips.vips.posterior.row_queries import RowQueryProgram

# Draws of the globals over which their statistics, such as log p of shares, are
# averaged.
NUM_GLOBAL_DRAWS = 500

NO_POSTERIOR = (
    "DPVI has no posterior of its own for latents of single rows. With an "
    "amortised guide, run Predictive(guide, params=result.posterior.points, "
    "num_samples=...) on the rows; discrete latents follow from "
    "numpyro.infer.infer_discrete at draws of the globals."
)


def local_posterior(
    query: RowQuery, draws: Mapping[str, Shaped[Array, "draws ..."]]
) -> dict[str, dist.Distribution]:
    """The posterior of each latent with one entry per row.

    Args:
      query: The rows, and the model.
      draws: Of the globals, along a first axis.

    Raises:
      ValueError: The model is not conjugate, so that VIPS has none either.
    """
    try:
        program = query.program("conjugate", lambda: RowQueryProgram(query))
    except NotConjugateError:
        raise ValueError(NO_POSTERIOR) from None
    return program.local_posterior(query.arguments, program.moments_of(draws))
