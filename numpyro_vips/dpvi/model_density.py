"""A model's own log joint density, for whoever weighs draws by it.

It is DPVI's: latents of single rows are summed or integrated out. It reads rows as they
are, so it is only for fits without privacy.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Float64, Shaped

from numpyro_vips.dpvi.checks import not_supported
from numpyro_vips.dpvi.gradients.elbo import PublicElbo
from numpyro_vips.dpvi.guides.automatic_guides import NormalGuide
from numpyro_vips.dpvi.posterior.full_batch import FullBatchDensity
from numpyro_vips.dpvi.posterior.variational_newton import Target
from numpyro_vips.dpvi.program import ProgramOptions
from numpyro_vips.dpvi.unconstrained_elbo import unconstrained_elbo
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.jax_tools.random_keys import threefry_key
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.graph import ModelGraph

# Of a fit without noise, of which nothing but the density is asked for.
_OPTIONS = ProgramOptions(
    num_particles=1,
    perturb="location",
    averaging=None,
    is_analytic=False,
    has_own_optimizer=False,
    has_norms=False,
    takes_newton_steps=True,
    num_waiting=0,
    num_approaching=0,
)


class ModelDensity:
    """The globals' log joint density with any rows, on their unconstrained space.

    Attributes:
      size: How many numbers the globals are.
      is_exact: Whether rows have their own density, at most by quadrature, and no
        bound.
    """

    def __init__(self, graph: ModelGraph) -> None:
        """Traces the model on a single synthetic row; no private value is read.

        Raises:
          UnsafeModelError: DPVI cannot run the model.
        """
        reason = not_supported(graph, has_guide=False)
        if reason is not None:
            raise UnsafeModelError(reason)
        elbo = unconstrained_elbo(graph, "full_rank", _OPTIONS, local_steps=None)
        locals_of_rows = elbo.row_elbo.locals_of_rows
        self.is_exact: bool = locals_of_rows is None or locals_of_rows.method != "bound"
        self._space = elbo.space
        self.size: int = self._space.size
        guide = NormalGuide(
            self._space, "full_rank", num_rows=graph.arguments.public_num_rows
        )
        prior = PublicElbo(graph, self._space, guide, is_analytic=False)
        self._log_joint = FullBatchDensity(
            lambda free, row: elbo(free, {}, row, threefry_key(0)),
            lambda z: prior.log_prior(z, {}),
            self._space,
        )

    def unconstrained(
        self, draws: Mapping[str, Shaped[Array, "draws ..."]]
    ) -> tuple[Float[Array, "draws size"], Float[Array, " draws"]]:
        """Draws of the globals as vectors.

        Returns:
          The vectors, and what the log density of a draw lacks to that of its vector.
        """

        def of_draw(
            values: Mapping[str, Any],
        ) -> tuple[Float[Array, " size"], Float[Array, ""]]:
            free = {s.name: s.transform.inv(values[s.name]) for s in self._space.sites}
            vector = self._space.join(free)
            return vector, self._space.constrain(vector)[1]

        return jax.vmap(of_draw)(dict(draws))

    def with_rows(
        self, arguments: ModelArguments, tried: Float64[np.ndarray, "points size"]
    ) -> tuple[Target, int, float]:
        """The density of rows and globals, and its gradient; only without privacy.

        Args:
          arguments: The model's, with rows that may be looked at.
          tried: Points. A row that is invalid at all of them counts as zero.

        Returns:
          The density, at how many points it takes about a second, and which share of
          the rows counts as zero.
        """
        return self._log_joint.with_rows(arguments, tried)
