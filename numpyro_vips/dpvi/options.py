"""What the caller may choose of DPVI, whatever the model."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import optax
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO

from numpyro_vips import _validate
from numpyro_vips._settings import keep_integer
from numpyro_vips.dpvi.guides.automatic_guides import FAMILIES, GuideFamily

Perturb = Literal["location", "all"]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class DpviOptions:
    """The settings that `DPVI` describes; they check themselves.

    Raises:
      TypeError, ValueError: A setting is not as described.
    """

    guide: GuideFamily | Callable[..., Any] | None = None
    optimizer: optax.GradientTransformation | None = None
    loss: Trace_ELBO | TraceMeanField_ELBO | None = None
    perturb: Perturb | None = None
    averaging: float | None = 3.0
    local_steps: int | None = None

    def __post_init__(self) -> None:
        if self.guide is not None and not callable(self.guide):
            if not isinstance(self.guide, str):
                raise TypeError(
                    f"Expected guide to be one of {list(FAMILIES)} or a NumPyro "
                    f"function, got {type(self.guide).__name__}."
                )
            _validate.one_of(FAMILIES, guide=self.guide)
        if not isinstance(self.optimizer, optax.GradientTransformation | None):
            raise TypeError(
                "Expected optimizer to be one of optax, such as optax.adam(0.01), got "
                f"{type(self.optimizer).__name__}."
            )
        if not isinstance(self.loss, Trace_ELBO | TraceMeanField_ELBO | None):
            raise TypeError(
                "Expected loss to be numpyro.infer.Trace_ELBO() or "
                f"TraceMeanField_ELBO(), got {type(self.loss).__name__}. Other bounds "
                "do not split into rows."
            )
        _validate.positive_integer(num_particles=self.num_particles)
        if self.perturb is not None:
            _validate.one_of(("location", "all"), perturb=self.perturb)
        if self.perturb == "location" and self.num_particles > 1:
            raise ValueError(
                f"Expected num_particles={self.num_particles} to be 1 with "
                "perturb='location': the guide's gradient can only be rebuilt for a "
                "single draw. Use perturb='all', or more rows per step."
            )
        if self.averaging is not None:
            _validate.nonnegative(averaging=self.averaging)
            object.__setattr__(self, "averaging", float(self.averaging))
        keep_integer(self, "local_steps")

    @property
    def num_particles(self) -> int:
        """How many draws from the guide a step takes: one, unless a loss says more."""
        return 1 if self.loss is None else self.loss.num_particles
