"""Noise as the mechanism adds it to a symmetric matrix."""

import math

import numpy as np


def symmetric_noise(rng: np.random.Generator, size: int, stddev: float) -> np.ndarray:
    """`stddev` on the diagonal, less by √2 off it."""
    noise = np.triu(rng.normal(size=(size, size)), 1) / math.sqrt(2.0)
    return stddev * (noise + noise.T + np.diag(rng.normal(size=size)))
