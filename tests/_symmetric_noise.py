"""Noise as the mechanism adds it to a symmetric matrix."""

import math

import numpy as np

from numpyro_vips.vips.m_step.noisy_information import Information


def symmetric_noise(rng: np.random.Generator, size: int, stddev: float) -> np.ndarray:
    """`stddev` on the diagonal, less by √2 off it."""
    noise = np.triu(rng.normal(size=(size, size)), 1) / math.sqrt(2.0)
    return stddev * (noise + noise.T + np.diag(rng.normal(size=size)))


def noisy_information(
    matrix: np.ndarray, stddev: float, rng: np.random.Generator, factor: float = 1.0
) -> Information:
    """A multiple of a matrix as it is released, with noise in all entries."""
    size = len(matrix)
    return Information(
        factor * matrix + symmetric_noise(rng, size, stddev),
        np.where(np.eye(size) > 0, stddev, stddev / math.sqrt(2.0)),
    )
