"""What is said never to be negative is not, whatever floating-point numbers come."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from numpyro_vips.conjugacy.interpreter.signs import (
    is_nonnegative,
    public_is_nonnegative,
)

HOSTILE = np.array(
    [-np.inf, -3e38, -2.5, -1.0, -1e-45, -0.0, 0.0, 1e-45, 0.3, 1.0, 7.0, 3e38, np.inf],
    np.float32,
)
UNARY = {
    "abs": jnp.abs,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "sqrt": jnp.sqrt,
    "square": lax.square,
    "logistic": lax.logistic,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "neg": jnp.negative,
    "sin": jnp.sin,
    "floor": jnp.floor,
    "round": jnp.round,
    "fourth": lambda x: lax.integer_pow(x, 4),
    "cube": lambda x: lax.integer_pow(x, 3),
    "inverse": lambda x: lax.integer_pow(x, -1),
    "inverse_square": lambda x: lax.integer_pow(x, -2),
    "cumsum": lambda x: lax.cumsum(x),
    "sum": lambda x: lax.reduce_sum_p.bind(x, axes=(0,), out_sharding=None),
    "to_int": lambda x: lax.convert_element_type(x, np.int32),
    "clamp": lambda x: lax.clamp(np.float32(0.0), x, np.float32(3.0)),
    "relu": lambda x: lax.max(x, np.float32(0.0)),
    "clamp_below_zero": lambda x: lax.clamp(np.float32(-2.0), x, np.float32(3.0)),
}
BINARY = {
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "div": lax.div,
    "max": lax.max,
    "min": lax.min,
    "pow": lax.pow,
    "rem": lax.rem,
    "ge": lax.ge,
    "dot": jnp.dot,
    "clamp_from": lambda x, low: lax.clamp(low, x, np.float32(3.0)),
}


def _claims(closed, signs):
    """The sign that is claimed for the last operation, and whether it is reached."""
    known = dict(zip(closed.jaxpr.invars, signs, strict=True))

    def sign(x):
        if hasattr(x, "val"):
            return public_is_nonnegative(np.asarray(x.val))
        return known.get(x, False)

    claim = False
    for eqn in closed.jaxpr.eqns:
        claim = is_nonnegative(eqn, [sign(x) for x in eqn.invars])
        known.update(dict.fromkeys(eqn.outvars, claim))
    return claim


@pytest.mark.parametrize(
    ("function", "arity"),
    [(f, 1) for f in UNARY.values()] + [(f, 2) for f in BINARY.values()],
    ids=[*UNARY, *BINARY],
)
def test_no_claim_is_wrong(function, arity):
    for signs in itertools.product([False, True], repeat=arity):
        # Minus infinity, as in 1 / -0.0, never counts.
        legal = HOSTILE[(HOSTILE >= 0) | np.isneginf(HOSTILE)]
        given = [legal if sign else HOSTILE for sign in signs]
        grid = [x.ravel() for x in np.meshgrid(*given)]
        if _claims(jax.make_jaxpr(function)(*grid), signs):
            found = np.asarray(function(*grid), np.float64)
            assert not np.any(np.isfinite(found) & (found < 0)), (signs, found)


@pytest.mark.parametrize(
    "name", ["abs", "exp", "square", "fourth", "clamp", "relu", "ge"]
)
def test_claims_are_made_where_they_are_needed(name):
    function = {**UNARY, **BINARY}[name]
    given = [HOSTILE] * (2 if name in BINARY else 1)
    assert _claims(jax.make_jaxpr(function)(*given), [False] * len(given))


def test_integers_that_may_overflow_make_no_claim():
    x = np.array([2**31 - 1], np.int32)
    assert not _claims(jax.make_jaxpr(jnp.add)(x, x), [True, True])
    assert not _claims(jax.make_jaxpr(jnp.abs)(x), [False])
