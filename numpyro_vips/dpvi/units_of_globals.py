"""The units in which the globals' numbers are: about as far as a step should go.

Rows' gradients are clipped, and get their noise, in these units, and steps are as many
of them. The prior says what they are. Where it says little, rows' density does so
later, see `units_of_rows.py`.
"""

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Float64

from numpyro_vips.dpvi.guides.unconstrained import GuideSite
from numpyro_vips.model.synthetic.prior_centre import WIDE_LOGARITHM, units_of_prior

# A prior whose centre is so many standard deviations from zero is somebody's knowledge
# of the quantity. About zero a wide one, such as Normal(0, 10), only says that there is
# little.
_AWAY = 2.0
# Numbers of one global whose units differ by no more than this share one. Where they go
# to one place together, as the levels of a random walk do, those with shorter steps
# would be left behind, and noise hides the rest of their way.
_ALIKE = 4.0


def moderate_scales(
    scales: Mapping[str, Any], logarithms: Set[str]
) -> dict[str, Float64[np.ndarray, "..."]]:
    """Standard deviations of priors, those of logarithms cut short.

    Args:
      scales: By global.
      logarithms: See `logarithmic_globals`.
    """
    most = {name: WIDE_LOGARITHM if name in logarithms else np.inf for name in scales}
    return {
        name: np.asarray(np.minimum(scale, most[name]), np.float64)
        for name, scale in scales.items()
    }


def unit_of(
    site: GuideSite,
    prior_scale: Float64[np.ndarray, "..."],
    centre: Float[np.ndarray | Array, "..."],
) -> float | tuple[float, ...]:
    """What the numbers of a global are multiples of.

    That is the prior's standard deviation if the global may be any number and its prior
    is away from zero, and else what `units_of_prior` says. Powers of two, as the scales
    of priors are read off draws; one for all numbers, in between, where they are much
    alike.

    Args:
      site: The global, in units of 1.
      prior_scale: Standard deviations of its unconstrained numbers under the prior.
      centre: The prior's, unconstrained.
    """
    units = units_of_prior(prior_scale)
    if site.is_real:
        is_away = np.abs(centre) >= _AWAY * prior_scale
        units = np.where(is_away, prior_scale, units)
    powers = np.round(np.log2(np.ravel(units)))
    if not powers.size:
        return 1.0
    if np.ptp(powers) <= np.log2(_ALIKE):
        return float(2.0 ** np.round(np.mean(powers)))
    return tuple(map(float, 2.0**powers))
