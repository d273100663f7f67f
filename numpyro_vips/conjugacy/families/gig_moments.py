"""Moments and the normaliser of generalised inverse Gaussian (GIG) densities."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from numpyro_vips.conjugacy.families.family import NewElementwise
from numpyro_vips.jax_tools.separate_rows import treats_rows_alone

# Below this, a and b are taken for this: the density is a Gamma's or inverse Gamma's.
TINY = 1e-30
# At most so many points of the trapezoidal rule, in single and in double precision.
_SINGLE_POINTS, _DOUBLE_POINTS = 128, 256


def _proper(
    p: Float[Array, "*batch"], a: Float[Array, "*batch"], b: Float[Array, "*batch"]
) -> tuple[Float[Array, "*batch"], ...]:
    """Parameters of a member whose moments are finite, next to those given.

    The one of a and b that the density can do without is made large enough for √(ab),
    and what is computed of it, to be a normal number.
    """
    a, b = jnp.maximum(a, TINY), jnp.maximum(b, TINY)
    # Products of a and b themselves may underflow.
    least = 1e-16 * jnp.sqrt(jnp.maximum(jnp.abs(p), 1.0))
    missing = jnp.maximum(least / (jnp.sqrt(a) * jnp.sqrt(b)), 1.0) ** 2
    return p, jnp.where(p < 0, a * missing, a), jnp.where(p < 0, b, b * missing)


def gig_moments(
    p: Float[Array, "*batch"], a: Float[Array, "*batch"], b: Float[Array, "*batch"]
) -> NewElementwise:
    """E[x], E[1/x], E[log x] and the log normaliser, log 2 (b/a)^(p/2) K_p(√(ab)).

    By the trapezoidal rule for the density of log x, which falls off twice
    exponentially on both sides; for such functions the rule is exact to rounding with
    few points (Trefethen and Weideman, 2014). SciPy's Bessel functions would have to be
    called back from XLA, which waits for Python then, and are slower.
    """
    p, a, b = _proper(*jnp.broadcast_arrays(p, a, b))
    omega, order = jnp.sqrt(a) * jnp.sqrt(b), jnp.abs(p)
    log_scale = 0.5 * (jnp.log(b) - jnp.log(a))
    # For u = log(x √(a/b)), its sign turned round where p is negative, the log density
    # is order·u - omega·cosh u. At a distance x from its mode it is lower by
    # alpha (cosh x - 1) + order (exp x - 1 - x), in which no digits cancel.
    curvature = jnp.hypot(order, omega)
    alpha = omega * (omega / (curvature + order))
    mode = jnp.log((curvature + order) / omega)
    total, up, down, shift = _integrals(order, alpha)
    up, down = jnp.exp(mode) * up / total, jnp.exp(-mode) * down / total
    log = mode + shift / total
    scale, turned = jnp.exp(log_scale), p < 0
    return {
        "x": scale * jnp.where(turned, down, up),
        "1/x": jnp.where(turned, up, down) / scale,
        "log": log_scale + jnp.where(turned, -log, log),
        "log_normalizer": p * log_scale + order * mode - curvature + jnp.log(total),
    }


@jax.custom_batching.custom_vmap
def _integrals(
    order: Float[Array, "*#batch"], alpha: Float[Array, "*batch"]
) -> tuple[Float[Array, "*batch"], ...]:
    """Integrals of 1, exp x, exp(-x) and x times the density, which is 1 at x = 0.

    With as many points as the hardest of them needs.
    """
    needed, most = _points_needed(order, alpha), _most_points(alpha)
    # So that not a number counts as the most.
    points = jnp.max(jnp.where(needed < most, needed, most), initial=2.0)
    return _trapezoidal_rule(order, alpha, points.astype(int))


@_integrals.def_vmap
@treats_rows_alone
def _integrals_of_rows(
    axis_size: int,
    in_batched: Any,
    order: Float[Array, "*#batch"],
    alpha: Float[Array, "*batch"],
) -> tuple[tuple[Float[Array, "*batch"], ...], Any]:
    # How long a step takes may not depend on the rows.
    found = _trapezoidal_rule(order, alpha, _most_points(alpha))
    return found, (any(in_batched),) * len(found)


def _trapezoidal_rule(
    order: Float[Array, "*#batch"],
    alpha: Float[Array, "*batch"],
    points: int | Int[Array, ""],
) -> tuple[Float[Array, "*batch"], ...]:
    left, right = _ends(order, alpha)
    spacing = (left + right) / (jnp.asarray(points, left.dtype) - 1.0)

    # One point after the other: no array has an axis of points.
    def add_point(
        i: Int[Array, ""], sums: tuple[Float[Array, "*batch"], ...]
    ) -> tuple[Float[Array, "*batch"], ...]:
        x = i.astype(spacing.dtype) * spacing - left
        # 1 + growth would have no digits left of a small ratio.
        growth, ratio = jnp.expm1(x), jnp.exp(x)
        drop = 0.5 * alpha * growth**2 / ratio + order * (growth - x)
        weight = jnp.exp(-drop)
        values = (weight, weight * ratio, weight / ratio, weight * x)
        return tuple(map(jnp.add, sums, values))

    zeros = (jnp.zeros_like(alpha),) * 4
    sums = jax.lax.fori_loop(0, points, add_point, zeros)
    return tuple(spacing * value for value in sums)


def _depth(alpha: Float[Array, "..."]) -> float:
    """Logarithm of what may be neglected, with its sign turned round."""
    return 4.0 - math.log(jnp.finfo(alpha.dtype).eps)


def _most_points(alpha: Float[Array, "..."]) -> int:
    single = jnp.finfo(alpha.dtype).bits <= 32
    return _SINGLE_POINTS if single else _DOUBLE_POINTS


def _points_needed(
    order: Float[Array, "*#batch"], alpha: Float[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """How many points make the rule exact to rounding.

    Its error is the density's Fourier transform at 2π / spacing: exp(-π² / spacing)
    for tails that fall off twice exponentially, exp(-2π² / (curvature · spacing²)) for
    a Gaussian.
    """
    depth, (left, right) = _depth(alpha), _ends(order, alpha)
    of_tails = depth / math.pi**2
    of_gaussian = jnp.sqrt(depth * (order + alpha) / 2.0) / math.pi
    return 1.0 + jnp.ceil((left + right) * jnp.hypot(of_tails, of_gaussian))


def _ends(
    order: Float[Array, "*#batch"], alpha: Float[Array, "*batch"]
) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
    """Distances of the first and the last point from the mode.

    Beyond them the density does not matter, not even for E[exp(±x)]: at both ends
    alpha (cosh x - 1) + order (exp x - 1 - x) is larger by `depth` than |x|. Each end
    is the nearest of several that suffice.
    """
    depth = _depth(alpha)
    # More than any |x| at an end.
    farthest = 200.0

    def quadratic(slope: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """The positive x where slope·x²/2 = depth + x."""
        return (1.0 + jnp.sqrt(1.0 + 2.0 * slope * depth)) / slope

    def exponential(
        factor: Float[Array, "*batch"], nearer: Float[Array, "*batch"]
    ) -> Float[Array, "*batch"]:
        """An x below `nearer` where factor (exp(x)/2 - 1) is depth + x or more."""
        enough = depth + jnp.minimum(nearer, farthest)
        return jnp.log(2.0 + 2.0 * enough / factor)

    right = quadratic(order + alpha)
    right = jnp.minimum(right, exponential(order + 0.5 * alpha, right))
    # Where order·x²/(x + 2) = depth + x, as exp(-x) - 1 + x is at least x²/(x + 2).
    excess = jnp.maximum(order - 1.0, 1e-6)
    root = jnp.sqrt((depth + 2.0) ** 2 + 8.0 * depth * excess)
    left = jnp.minimum(quadratic(alpha), (depth + 2.0 + root) / (2.0 * excess))
    left = jnp.minimum(left, exponential(alpha, left))
    return left, right
