"""`DPVI`: how models are to be fitted by private gradients."""

import dataclasses
from typing import Any

from numpyro_vips._keywords import SETTINGS_OF_FITS, naming_arguments
from numpyro_vips._settings import code_of
from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.dpvi.options import DpviOptions
from numpyro_vips.handlers import private
from numpyro_vips.model.graph import ModelGraph


@naming_arguments(
    **SETTINGS_OF_FITS,
    learning_rate="optimizer=optax.adam(0.01)",
    optim="optimizer=optax.adam(0.01)",
)
@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class DPVI(DpviOptions):
    """Variational inference by clipped and noisy gradients, with its settings.

    Jälkö, Dikmen and Honkela (2017), with gradients that are rebuilt from those in the
    globals (see `engine.py`). For models that need not be conjugate.

        >>> DPVI(guide="full_rank")
        DPVI(guide='full_rank')

    Args:
      guide: `"mean_field"`, `"full_rank"` or `"low_rank"`, a Normal on the
        unconstrained globals, or a NumPyro function of the model's arguments or of
        none. By default `"full_rank"` where a fit without noise runs until it has
        converged, and `"mean_field"` elsewhere.
      optimizer: Any optimiser of optax (not of `numpyro.optim`), for the negative ELBO
        divided by the public number of rows; by default an Adam whose steps allow for
        the noise.
      loss: `numpyro.infer.Trace_ELBO` (the default) or `TraceMeanField_ELBO`, with
        their number of particles.
      perturb: `"location"` releases the gradient in the globals and rebuilds that of
        the guide, `"all"` releases the latter, as in the DPVI paper. By default
        `"location"`, and `"all"` with several particles.
      averaging: The power of t, by default 3, with which iterates count in the average
        that becomes the posterior (Shamir and Zhang, 2013). None takes the last
        iterate, whose intervals do not allow for the noise.
      local_steps: Sweeps of coordinate ascent over the latents of a row, where they are
        conjugate given the globals; 20 by default.

    Raises:
      TypeError, ValueError: A setting is not as described.
    """

    def __repr__(self) -> str:
        if self.loss is None:
            return code_of(self)
        loss = f"{type(self.loss).__name__}(num_particles={self.loss.num_particles})"
        return code_of(self, loss=loss)

    def build_engine(
        self,
        model: private,
        graph: ModelGraph,
        *,
        num_steps: int | None,
        until_converged: bool = False,
        has_norms: bool = False,
    ) -> DpviEngine:
        """The engine for a model; reads shapes, not values.

        Args:
          model: The model.
          graph: What `build_graph` found in it.
          num_steps: Number of steps, if the caller fixed it.
          until_converged: Whether the fit is free to run until it has converged.
          has_norms: Whether the caller gave clipping norms.

        Raises:
          UnsafeModelError: DPVI cannot run the model, or not with this guide.
        """
        del model  # The graph says it all.
        return DpviEngine(
            graph,
            self,
            num_steps=num_steps,
            until_converged=until_converged,
            has_norms=has_norms,
        )

    @property
    def for_row_queries(self) -> dict[str, Any]:
        """What a `RowQuery` needs to know, JSON-able."""
        return {"local_steps": self.local_steps}
