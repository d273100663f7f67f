"""`VIPS`: how conjugate-exponential models are to be fitted."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from numpyro_vips import _validate
from numpyro_vips._keywords import SETTINGS_OF_FITS, naming_arguments
from numpyro_vips._settings import FrozenMapping, code_of, frozen, keep_integer
from numpyro_vips.conjugacy.densities import logistic_bounds
from numpyro_vips.errors import NotConjugateError
from numpyro_vips.handlers import private
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.refused_sites import nothing_said
from numpyro_vips.vips.compile.compiler import compile_model
from numpyro_vips.vips.engine import VipsEngine


@naming_arguments(**SETTINGS_OF_FITS)
@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class VIPS:
    """Variational Bayes by noisy expected sufficient statistics, with its settings.

    Park, Foulds, Chaudhuri and Welling (2020). For conjugate-exponential models, and
    those that `augmentation` makes conjugate. Settings print as the code that makes
    them.

        >>> VIPS(local_steps=50, structure={"w": "diag"})
        VIPS(local_steps=50, structure={'w': 'diag'})

    Args:
      local_steps: Sweeps of coordinate ascent over the latents of a row, in every step;
        20 by default.
      step_size: Weight in (0, 1] of step t = 0, 1, ... in the running average of
        statistics, as a function of t. By default 2 / (t + 2), after 12 steps of weight
        1 for mixtures and the like, see docs/settings.md; and 1 for full batches
        without noise.
      release_once: Whether statistics that do not depend on the globals are released a
        single time, from all rows (the default), or with the others in every step.
      structure: `{"w": "diag"}` gives every element of `w` a factor of its own. By
        default Normal globals that meet in a predictor have a joint factor.
      augmentation: The bound that makes logistic likelihoods conjugate,
        `"polya-gamma"` (the default; Polson, Scott and Windle, 2013) or
        `"fixed-curvature"` (Böhning and Lindsay, 1988), for all sites or by site
        (`{"y": "fixed-curvature"}`).

    Raises:
      TypeError, ValueError: A setting is not as described.
    """

    local_steps: int | None = None
    step_size: Callable[[int], float] | None = None
    release_once: bool = True
    structure: Mapping[str, str] = FrozenMapping()
    augmentation: str | Mapping[str, str] = logistic_bounds.DEFAULT

    def __post_init__(self) -> None:
        keep_integer(self, "local_steps")
        if self.step_size is not None and not callable(self.step_size):
            raise TypeError(
                f"Expected step_size={self.step_size!r} to be a function of the step's "
                "number 0, 1, ..., such as lambda t: 1 / (t + 1)."
            )
        _validate.boolean(release_once=self.release_once)
        if not isinstance(self.structure, Mapping):
            raise TypeError(
                f"Expected structure={self.structure!r} to be a mapping from latents, "
                "such as {'w': 'diag'}."
            )
        for name, value in self.structure.items():
            _validate.one_of(("diag",), **{f"structure[{name!r}]": value})
        bounds = tuple(logistic_bounds.REGISTRY)
        if isinstance(self.augmentation, Mapping):
            for name, value in self.augmentation.items():
                _validate.one_of(bounds, **{f"augmentation[{name!r}]": value})
        else:
            _validate.one_of(bounds, augmentation=self.augmentation)
        object.__setattr__(self, "structure", frozen(self.structure))
        object.__setattr__(self, "augmentation", frozen(self.augmentation))

    def __repr__(self) -> str:
        return code_of(self)

    def build_engine(
        self,
        model: private,
        graph: ModelGraph,
        *,
        num_steps: int | None,
        until_converged: bool = False,
        has_norms: bool = False,
    ) -> VipsEngine:
        """The engine for a model; reads shapes, not values.

        Args:
          model: The model.
          graph: What `build_graph` found in it.
          num_steps: Number of steps, if the caller fixed it.
          until_converged: Whether the fit is free to run until it has converged; not
            used.
          has_norms: Whether the caller gave clipping norms.

        Raises:
          NotConjugateError: VIPS cannot run the model, with the reasons by site.
          UnsafeModelError: No observation depends on a latent.
          ValueError: `structure` or `augmentation` names what is no site of the model.
        """
        del until_converged
        if graph.params:
            raise NotConjugateError(
                dict.fromkeys(graph.params, "a parameter without a prior")
            )
        program = compile_model(
            model, graph, structure=self.structure, augmentation=self.augmentation
        )
        statistics = program.structure.statistics
        if graph.latents("global") and all(s.release == "public" for s in statistics):
            raise nothing_said(graph.unit)
        return VipsEngine(
            program,
            num_rows=graph.arguments.public_num_rows,
            local_steps=self.local_steps,
            num_steps=num_steps,
            step_size=self.step_size,
            release_once=self.release_once,
            has_norms=has_norms,
        )

    @property
    def for_row_queries(self) -> dict[str, Any]:
        """What a `RowQuery` needs to know, JSON-able."""
        bound = self.augmentation
        return {
            "local_steps": self.local_steps,
            "structure": dict(self.structure),
            "augmentation": bound if isinstance(bound, str) else dict(bound),
        }
