"""The caller's choices about a schedule of steps."""

import dataclasses
from collections.abc import Mapping

from numpyro_vips import _validate
from numpyro_vips._settings import frozen, keep_integer
from numpyro_vips.privacy.sampling import RowSampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """The caller's choices about the schedule; None leaves a choice to the planner.

    Two equal ones plan the same steps, and they are hashable.

    Attributes:
      sampling: How adaptive steps draw their rows.
      num_steps: Steps that release what depends on the globals.
      clipping_norm: Bound on the norm of one row's joint vector; or, by name, a typical
        norm of each statistic, which then is its unit.
      noise_multiplier: Fixed noise, in place of what the budget affords.
      private: Whether there is noise and clipping at all.
      diagnostics: Whether the last steps report how many rows were clipped.
      max_batch_size: Most rows that are worked on at a time.

    Raises:
      TypeError, ValueError: A number is out of range.
    """

    sampling: RowSampling
    num_steps: int | None = None
    clipping_norm: float | Mapping[str, float] | None = None
    noise_multiplier: float | None = None
    private: bool = True
    diagnostics: bool = True
    max_batch_size: int | None = None

    def __post_init__(self) -> None:
        keep_integer(self, "num_steps")
        keep_integer(self, "max_batch_size")
        if self.noise_multiplier is not None:
            _validate.positive(noise_multiplier=self.noise_multiplier)
            object.__setattr__(self, "noise_multiplier", float(self.noise_multiplier))
        norms = self.clipping_norm
        if isinstance(norms, Mapping):
            for name, norm in norms.items():
                _validate.moderate(**{f"clipping_norm[{name!r}]": norm})
            norms = frozen({name: float(norm) for name, norm in norms.items()})
        elif norms is not None:
            _validate.moderate(clipping_norm=norms)
            norms = float(norms)
        object.__setattr__(self, "clipping_norm", norms)

    @property
    def until_converged(self) -> bool:
        """Whether a fit is free to end when it has converged: there is no noise, and
        the caller has said nothing on steps and minibatches."""
        is_open = self.num_steps is None and self.sampling.scheme == "full"
        return is_open and not self.private
