"""Draws of generalised inverse Gaussian (GIG) variables."""

import math

import numpy as np
from jaxtyping import Float

from numpyro_vips.conjugacy.families.gig_moments import TINY
from numpyro_vips.jax_tools.host_calls import runs_on_host

# Of a draw. About half of them are accepted whatever the parameters are: the end is for
# arithmetic that fails.
_MOST_PROPOSALS = 1000


@runs_on_host
def draws_on_host(
    seed: Float[np.ndarray, "4"],
    p: Float[np.ndarray, "*batch"],
    a: Float[np.ndarray, "*batch"],
    b: Float[np.ndarray, "*batch"],
    *,
    shape: tuple[int, ...],
) -> Float[np.ndarray, "..."]:
    rng = np.random.default_rng(seed.view(np.uint32))
    a, b = (np.maximum(value, TINY, dtype=np.float64) for value in (a, b))
    draws = gig_draws(
        rng,
        np.broadcast_to(p, shape).ravel().astype(np.float64),
        np.broadcast_to(np.sqrt(a * b), shape).ravel(),
    )
    return draws.reshape(shape) * np.sqrt(b / a)


def gig_draws(
    rng: np.random.Generator,
    p: Float[np.ndarray, " draws"],
    omega: Float[np.ndarray, " draws"],
) -> Float[np.ndarray, " draws"]:
    """One draw each from the densities ∝ x^(p-1) exp(-omega·(x + 1/x)/2).

    Devroye (2014), *Random variate generation for the generalized inverse Gaussian
    distribution*: rejection from a density that is flat in the middle and exponential
    on both sides of the mode of log x, with a rejection constant that is bounded
    whatever the parameters are. All draws of one call are made together, those that
    are rejected again until none is. What is no parameter gives not a number.
    """
    usable = np.isfinite(p) & np.isfinite(omega) & (omega > 0)
    p, omega = np.where(usable, p, 1.0), np.where(usable, omega, 1.0)
    order = np.abs(p)
    # √(omega² + order²) - order without cancellation.
    alpha = omega * (omega / (np.hypot(omega, order) + order))

    def psi(
        x: Float[np.ndarray, " draws"],
        alpha: Float[np.ndarray, " draws"],
        order: Float[np.ndarray, " draws"],
    ) -> Float[np.ndarray, " draws"]:
        """Logarithm of the density of log x at a distance x from its mode."""
        return -alpha * (np.cosh(x) - 1.0) - order * (np.expm1(x) - x)

    def slope(x: Float[np.ndarray, " draws"]) -> Float[np.ndarray, " draws"]:
        return -alpha * np.sinh(x) - order * np.expm1(x)

    with np.errstate(all="ignore"):
        one = np.ones_like(alpha)
        drop = -psi(one, alpha, order)
        wide, narrow = np.log(4.0 / (alpha + 2.0 * order)), np.sqrt(2 / (alpha + order))
        right = np.where(drop > 2.0, narrow, np.where(drop < 0.5, wide, 1.0))
        drop = -psi(-one, alpha, order)
        wide = np.log1p(1.0 / alpha + np.sqrt(1.0 / alpha**2 + 2.0 / alpha))
        wide = np.minimum(1.0 / order, wide)
        narrow = np.sqrt(4.0 / (alpha * math.cosh(1.0) + order))
        left = np.where(drop > 2.0, narrow, np.where(drop < 0.5, wide, 1.0))
    eta, zeta = -psi(right, alpha, order), -slope(right)
    theta, xi = -psi(-left, alpha, order), slope(-left)
    from_right, from_left = right - eta / zeta, left - theta / xi
    middle = from_right + from_left
    total = middle + 1.0 / zeta + 1.0 / xi

    # The mode, if all else fails.
    x = np.zeros_like(alpha)
    todo = np.arange(alpha.size)
    for _ in range(_MOST_PROPOSALS):
        part, height, level = rng.random((3, todo.size))
        part = part * total[todo]
        # A uniform number in (0, 1], whose logarithm is finite.
        tail = np.log1p(-height)
        in_middle = part < middle[todo]
        on_right = ~in_middle & (part < (middle + 1.0 / zeta)[todo])
        proposed = np.where(
            in_middle,
            -from_left[todo] + middle[todo] * height,
            np.where(
                on_right,
                from_right[todo] - tail / zeta[todo],
                -from_left[todo] + tail / xi[todo],
            ),
        )
        envelope = np.where(
            in_middle,
            0.0,
            np.where(
                on_right,
                -eta[todo] - zeta[todo] * (proposed - right[todo]),
                -theta[todo] + xi[todo] * (proposed + left[todo]),
            ),
        )
        density = psi(proposed, alpha[todo], order[todo])
        accepted = np.log1p(-level) + envelope <= density
        x[todo[accepted]] = proposed[accepted]
        todo = todo[~accepted]
        if not todo.size:
            break
    mode = order / omega + np.hypot(1.0, order / omega)
    drawn = mode * np.exp(x)
    drawn = np.where(p < 0, 1.0 / drawn, drawn)
    return np.where(usable, drawn, np.nan)
