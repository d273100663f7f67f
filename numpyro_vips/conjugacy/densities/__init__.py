"""One log density per distribution, and bounds where none is conjugate.

Importing anything from here registers all of them. A new file is added to the
imports below. Open `log_densities.py` first: it has the registry and the
simplest densities.
"""

from numpyro_vips.conjugacy.densities import (
    log_densities,
    logistic_bounds,
    mixtures,
    multivariate,
    scale_mixtures,
)

__all__ = [
    "log_densities",
    "logistic_bounds",
    "mixtures",
    "multivariate",
    "scale_mixtures",
]
