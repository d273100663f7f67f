"""Released sums: how their rows were clipped, and what they would be without it."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from numpyro_vips.vips.program.named_arrays import NewSums


class Bound(NamedTuple):
    """How the rows of a release were clipped.

    Attributes:
      scales: Scale of each block of the joint vector that was clipped.
      clipping_norm: Bound on its norm.
      sampling_rate: Expected share of the rows that were in it.
      release: Number of the release. Of the bounds that a state holds, those with one
        number are those of one release.
    """

    scales: Mapping[str, float]
    clipping_norm: float
    sampling_rate: float = 1.0
    release: int = 0


class Unclipped(NamedTuple):
    """Sums as they would have been without clipping, as far as it is known.

    Attributes:
      statistics: The corrected sums.
      noise_stddev: Standard deviation of what the noise has become in them, and of what
        clipping has hidden of the rows.
    """

    statistics: NewSums
    noise_stddev: Mapping[str, Float[np.ndarray, "..."] | float]
