"""The regularised incomplete Beta function, in which no number waits for another.

JAX before 0.12 evaluates a continued fraction for all numbers of an array together, and
goes on with all of them until the last one has converged. Each further turn is rounded,
so that a number comes out other where one beside it takes long: by 6e-6 of itself in
single precision. Under `jax.vmap` the numbers of all rows are one array.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

# Turns of the loop at most, as JAX has them.
_MOST_TURNS = {jnp.dtype("float32"): 200, jnp.dtype("float64"): 600}


class _Fraction(NamedTuple):
    """A continued fraction that is evaluated from its front.

    Attributes:
      turn: How many terms it has so far.
      goes_on: Which numbers have not converged.
      numerators, denominators: Ratios of the last two of them.
      value: What it comes to so far.
    """

    turn: Int[Array, ""]
    goes_on: Bool[Array, "*shape"]
    numerators: Float[Array, "*shape"]
    denominators: Float[Array, "*shape"]
    value: Float[Array, "*shape"]


def incomplete_beta(
    a: Float[Array, "*shape"], b: Float[Array, "*shape"], x: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """I_x(a, b), number by number; not a number where an argument is out of range.

    Guarantees:
      A number of the result depends on its own arguments alone, to the last digit, also
      under `jax.vmap`.

    Args:
      a, b: Not negative.
      x: Between 0 and 1.
    """
    dtype = a.dtype
    if dtype not in _MOST_TURNS:  # Too narrow.
        wide = (jnp.asarray(each, jnp.float32) for each in (a, b, x))
        return incomplete_beta(*wide).astype(dtype)
    # The fraction converges quickly there, and I_x(a, b) = 1 - I_(1-x)(b, a).
    is_quick = x < (a + 1.0) / (a + b + 2.0)
    first, second = jnp.where(is_quick, a, b), jnp.where(is_quick, b, a)
    place = jnp.where(is_quick, x, 1.0 - x)
    value = _factor(first, second, place) * _fraction(first, second, place)
    value = jnp.where(is_quick, value, 1.0 - value)
    is_first_none, is_second_none = (a == 0) | jnp.isinf(b), (b == 0) | jnp.isinf(a)
    is_zero = (is_second_none & (x != 1)) | (is_first_none & (x == 0))
    is_one = (is_first_none & (x != 0)) | (is_second_none & (x == 1))
    value = jnp.where(is_one, 1.0, jnp.where(is_zero, 0.0, value))
    is_known = (a >= 0) & (b >= 0) & (x >= 0) & (x <= 1)
    return jnp.where(is_known & ~(is_first_none & is_second_none), value, jnp.nan)


def _factor(
    a: Float[Array, "*shape"], b: Float[Array, "*shape"], x: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """xᵃ (1 - x)ᵇ / (a B(a, b)), with a Γ(a) = 1 where a is next to zero."""
    gammaln = jax.lax.lgamma
    of_others = gammaln(b) - gammaln(a + b)
    tiny = 2.0 * float(jnp.finfo(a.dtype).tiny)
    near_zero = jnp.exp(jnp.log1p(-x) * b - of_others)
    log_power = jnp.log(x) * a + jnp.log1p(-x) * b
    return jnp.where(
        a < tiny, near_zero, jnp.exp(log_power - gammaln(a) - of_others) / a
    )


def _fraction(
    a: Float[Array, "*shape"], b: Float[Array, "*shape"], x: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """1/(1 + d₁/(1 + d₂/(1 + ...))), DLMF 8.17.22, by the method of Lentz (1976) as
    Thompson and Barnett (1986) have it."""
    least = float(jnp.finfo(a.dtype).eps) / 2

    def not_zero(ratio: Any) -> Any:
        return jnp.where(jnp.abs(ratio) < least, least, ratio)

    def term(turn: Int[Array, ""]) -> Float[Array, "*shape"]:
        """d of the last turn; 1 in the first one. DLMF 8.17.23."""
        m = ((turn - 1) // 2).astype(a.dtype)
        even = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        # Where a is zero, so is this quotient's a + m.
        even = jnp.where(m == 0, -(a + b) * x / (a + 1.0), even)
        odd = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        return jnp.where(turn == 1, 1.0, jnp.where(turn % 2 == 0, even, odd))

    def is_open(now: _Fraction) -> Bool[Array, ""]:
        return (now.turn <= _MOST_TURNS[a.dtype]) & jnp.any(now.goes_on)

    def turned(now: _Fraction) -> _Fraction:
        numerators = not_zero(1.0 + term(now.turn) / now.numerators)
        denominators = 1.0 / not_zero(1.0 + term(now.turn) * now.denominators)
        change = numerators * denominators
        return _Fraction(
            now.turn + 1,
            now.goes_on & (jnp.abs(change - 1.0) >= least),
            numerators,
            denominators,
            # What has converged stays.
            jnp.where(now.goes_on, now.value * change, now.value),
        )

    small = jnp.full_like(a, least)
    start = _Fraction(
        jnp.ones((), jnp.int32), jnp.ones(a.shape, bool), small, 0.0 * small, small
    )
    return jax.lax.while_loop(is_open, turned, start).value
