"""The log density of independent Normals, as posteriors of DPVI ask for a prior's."""

import numpy as np

from numpyro_vips.dpvi.posterior.variational_newton import Target


def gaussian_prior(mean: np.ndarray, stddev: np.ndarray) -> Target:
    def log_prior(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        away = (points - mean) / stddev
        return -0.5 * np.sum(away**2, axis=1), -away / stddev

    return log_prior
