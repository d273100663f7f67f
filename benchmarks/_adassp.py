"""AdaSSP: private linear regression with a ridge that adapts to the data.

Wang, *Revisiting differentially private linear regression* (2018), algorithm 2. The
least eigenvalue of XᵀX, XᵀX and Xᵀy are each released with a third of ε and δ by the
Gaussian mechanism, for rows added or removed; the ridge is as large as the noise in XᵀX
may be, less what the least eigenvalue is sure to have.
"""

import math
from typing import NamedTuple

import numpy as np

from numpyro_vips import accounting

# With which probability the ridge may be too small, ρ in the paper's experiments.
FAILURE = 0.05


class Noise(NamedTuple):
    """What the three releases of AdaSSP get.

    Attributes:
      multiplier: Standard deviation of each, over its sensitivity.
      margin: What is taken off the least eigenvalue, over its sensitivity.
    """

    multiplier: float
    margin: float


def published_noise(epsilon: float, delta: float) -> Noise:
    """The noise of the paper, by the classical bound on the Gaussian mechanism.

    The bound holds for a third of epsilon below 1.
    """
    logarithm = math.log(6.0 / delta)
    return Noise(math.sqrt(logarithm) / (epsilon / 3), logarithm / (epsilon / 3))


def exact_noise(epsilon: float, delta: float) -> Noise:
    """The least noise with which three Gaussian mechanisms together keep epsilon.

    The paper's margin is √log(6/δ) standard deviations of the noise, and stays that.
    """
    multiplier = accounting.calibrate(
        epsilon=epsilon, delta=delta, sampling_rate=1.0, num_steps=3, sampling="full"
    )
    return Noise(multiplier, math.sqrt(math.log(6.0 / delta)) * multiplier)


def adassp(
    X: np.ndarray,
    y: np.ndarray,
    *,
    row_norm: float,
    response: float,
    noise: Noise,
    rng: np.random.Generator,
) -> np.ndarray:
    """Coefficients of a private linear regression.

    Args:
      X: Rows of norm `row_norm` at most, (number of rows, d).
      y: Numbers of size `response` at most, (number of rows,).
      row_norm, response: Bounds known in advance.
      noise: From `published_noise` or `exact_noise`.
      rng: Draws the noise.
    """
    X = np.asarray(X, np.float64)
    d, gram = X.shape[1], X.T @ X
    stddev = noise.multiplier * row_norm**2
    upper = np.triu(rng.normal(size=(d, d)))
    symmetric = upper + np.triu(upper, 1).T
    least = np.linalg.eigvalsh(gram)[0] + stddev * rng.normal()
    least = max(least - noise.margin * row_norm**2, 0.0)
    noisy_gram = gram + stddev * symmetric
    noisy_moment = X.T @ y + (stddev / row_norm * response) * rng.normal(size=d)
    width = stddev * math.sqrt(d * math.log(2 * d**2 / FAILURE))
    ridge = max(0.0, width - least)
    return np.linalg.solve(noisy_gram + ridge * np.eye(d), noisy_moment)
