"""What one Gaussian perturbation of a logistic regression's optimum costs at least.

The optimum of  Σ loss(xₙᵀw, yₙ) + ridge |w|² / 2 − ξᵀw  over w is found exactly, where
the loss is logistic up to a residual of `clip` and goes on as a line with that slope.
The gradient of a row of norm 1 then has at most the norm `clip`, and ξ is the noise
that releasing it a single time would need. It is no private method, as nobody knows
the optimum before the release. `clip` and `ridge` are an oracle's, who takes those with
the best AUC on the test rows. So it is an optimistic bound for noise that is equal in
all directions.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from numpyro_vips import accounting

CLIPS = (0.2, 0.4, 1.0)
RIDGES = (1.0, 3.0, 10.0, 30.0)


class Best(NamedTuple):
    """The oracle's choice."""

    auc: float
    clip: float
    ridge: float


def oracle_noise(epsilon: float, delta: float) -> float:
    """Standard deviation over sensitivity of a single Gaussian mechanism; exact."""
    return accounting.calibrate(
        epsilon=epsilon, delta=delta, sampling_rate=1.0, num_steps=1, sampling="full"
    )


def perturbed_optimum(
    X: np.ndarray,
    y: np.ndarray,
    *,
    ridge: float,
    clip: float = 1.0,
    noise: np.ndarray | None = None,
    start: np.ndarray | None = None,
) -> np.ndarray:
    """The weights that minimise the objective in the module's docstring.

    Args:
      X: Rows, (n, d).
      y: Labels 0 and 1, (n,).
      ridge, clip: See there.
      noise: ξ, (d,); none by default.
      start: Where to start, (d,).
    """
    signs = np.where(np.asarray(y) == 1, 1.0, -1.0)
    noise = np.zeros(X.shape[1]) if noise is None else noise
    # The margin below which the residual of the logistic loss is larger than `clip`.
    edge = math.inf if clip >= 1 else math.log(clip / (1 - clip))

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        lacking = -signs * (X @ w)
        inside = np.minimum(lacking, edge)
        loss = np.logaddexp(0, inside).sum() + clip * (lacking - inside).sum()
        slope = -signs * np.minimum(expit(lacking), clip)
        value = loss + ridge * w @ w / 2 - noise @ w
        return float(value), X.T @ slope + ridge * w - noise

    first = np.zeros(X.shape[1]) if start is None else start
    found = optimize.minimize(
        objective,
        first,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 2000, "maxcor": 30, "ftol": 1e-13, "gtol": 1e-3},
    )
    return found.x


def oracle_auc(
    X: np.ndarray,
    y: np.ndarray,
    test_X: np.ndarray,
    test_y: np.ndarray,
    *,
    epsilon: float,
    delta: float,
    seeds: Sequence[int],
    clips: Sequence[float] = CLIPS,
    ridges: Sequence[float] = RIDGES,
) -> Best:
    """Mean test AUC over draws of the noise, at the best clip and ridge."""
    X = np.asarray(X, np.float64)
    multiplier = 0.0 if math.isinf(epsilon) else oracle_noise(epsilon, delta)
    best = Best(0.0, math.nan, math.nan)
    for clip in clips:
        start = None
        for ridge in ridges:
            start = perturbed_optimum(X, y, ridge=ridge, clip=clip, start=start)
            aucs = []
            for seed in seeds:
                draw = np.random.default_rng(seed).normal(size=X.shape[1])
                noise = multiplier * clip * draw
                w = perturbed_optimum(
                    X, y, ridge=ridge, clip=clip, noise=noise, start=start
                )
                aucs.append(roc_auc_score(test_y, test_X @ w))
            found = Best(float(np.mean(aucs)), clip, ridge)
            best = max(best, found)
    return best
