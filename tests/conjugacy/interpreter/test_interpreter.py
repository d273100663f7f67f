"""Programs run in the algebra give what they give on arrays, or say why they cannot.

Those of one primitive are beside its rules, in `test_elementwise_rules.py` and so on.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _programs import (
    Named,
    Program,
    Refused,
    check_reason,
    check_value,
    run,
    value_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.nn import sigmoid

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.interpreter.interpreter import interpret
from numpyro_vips.conjugacy.interpreter.values import (
    Constant,
    Opaque,
    Transformed,
    Value,
)

INSIDE: dict[str, Program] = {
    "a loop that is written out": lambda v: jax.lax.fori_loop(
        0, 3, lambda i, total: total + v.W[i, 0] * v.X[i, 0], v.a
    ),
    "a loop that stacks": lambda v: jax.lax.scan(
        lambda total, w: (total + w, 2.0 * total), v.a, v.w
    )[1],
    "the branch that a public number chooses": lambda v: jax.lax.switch(
        1, [lambda x: x, lambda x: 2.0 * x, jnp.tanh], v.w
    ),
    "logaddexp": lambda v: jnp.logaddexp(v.w, v.X @ v.W[:3, :1]),
    "logaddexp of three": lambda v: jnp.logaddexp(jnp.logaddexp(v.w, v.a), v.tau),
    "xlogy": lambda v: jax.scipy.special.xlogy(v.R, v.tau),
    "what is compiled by itself": lambda v: jax.jit(lambda x: x @ v.w)(v.X),
}


@pytest.mark.parametrize("public", [True, False], ids=["public", "private"])
@pytest.mark.parametrize("name", INSIDE)
def test_a_program_keeps_its_value(name: str, public: bool) -> None:
    check_value(INSIDE[name], public=public)


# What has no rule, or a rule that no file of rules has.
OUTSIDE: dict[str, Refused] = {
    "tanh": (lambda v: jnp.tanh(v.w), "w", "tanh"),
    "clip": (lambda v: jnp.clip(v.X @ v.w, -1, 1), "w", ""),
    "sine": (lambda v: jnp.sin(v.X @ v.w), "w", "sin"),
    "erf": (lambda v: jax.scipy.special.erf(v.X @ v.w), "w", "erf"),
    "sorted": (lambda v: jnp.sort(v.w), "w", "sort"),
    "inverse matrix": (lambda v: jnp.linalg.inv(v.W[:2] + jnp.eye(2)), "W", ""),
    "Cholesky factor": (lambda v: jnp.linalg.cholesky(jnp.diag(v.tau)), "tau", ""),
    "log-gamma": (lambda v: jax.lax.lgamma(v.tau), "tau", "lgamma"),
    "rounded": (lambda v: jnp.round(v.w), "w", "round"),
    "a long loop": (
        lambda v: jax.lax.fori_loop(0, 600, lambda i, x: x * v.a, v.a),
        "a",
        "a loop of 600 steps",
    ),
    "a branch that data choose": (
        lambda v: jax.lax.cond(v.y[0] > 0, lambda: v.a, lambda: 2.0 * v.a),
        "a",
        "lax.cond",
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", OUTSIDE)
def test_what_is_outside_the_algebra_says_why(name: str) -> None:
    check_reason(OUTSIDE[name])


def test_an_opaque_value_stays_opaque_with_its_first_reason() -> None:
    result, _, _ = run(lambda v: 2.0 * (v.tau + jnp.tanh(v.w))[:2], public=False)
    assert isinstance(result, Opaque)
    assert "tanh of 'w'" in result.reason
    assert result.latents == {"w", "tau"}
    assert result.shape == (2,)


@pytest.mark.parametrize("bad", [-4, 3, 1000])
def test_private_indices_out_of_range_are_noticed(bad: int) -> None:
    """JAX clamps them; a row with such an id must not count as another one's."""
    table = jnp.arange(3.0)
    constant = jax.make_jaxpr(lambda w, i: table[i] * w[0])
    closed = constant(jnp.zeros(3), jnp.zeros(2, int))
    for indices, expected in (([0, 2], True), ([0, bad], False)):
        inputs: list[Value] = [
            forms.latent("w", (3,)),
            Constant(jnp.asarray(indices), is_private=True),
        ]
        _, checks = interpret(closed, inputs)
        assert bool(np.all([np.all(check) for check in checks])) is expected


# --- random programs --------------------------------------------------------------

_LEAVES = ("w", "tau", "p", "X", "R", "beta", "z", "a", "b")
_UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": lambda x: -x,
    "double": lambda x: 2.0 * x,
    "shift": lambda x: x + 1.5,
    "square": lambda x: x * x,
    "inverse": lambda x: 1.0 / (x + 0.0),
    "root": lambda x: jnp.sqrt(x),
    "log": lambda x: jnp.log(x),
    "sigmoid": lambda x: sigmoid(1.0 * x),
    "sum": lambda x: x.sum(-1) if jnp.ndim(x) else x,
    "transpose": lambda x: x.T,
    "slice": lambda x: x[1:] if jnp.ndim(x) and x.shape[0] > 1 else x,
    "flatten": lambda x: jnp.ravel(x),
    "pad": lambda x: jnp.pad(x, [(1, 0)] * jnp.ndim(x)) if jnp.ndim(x) else x,
    "tanh": lambda x: jnp.tanh(x),
    "where": lambda x: jnp.where(jnp.arange(jnp.size(x)).reshape(x.shape) % 2, x, 0.5),
    "join": lambda x: jnp.concatenate([jnp.ravel(x), jnp.ones(2)]),
    "first": lambda x: x[jnp.array([0, 0])] if jnp.ndim(x) else x,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "dot": lambda x, y: jnp.einsum("...i,...i->...", x, y),
    "outer": lambda x, y: jnp.multiply.outer(x, y),
}

_expressions = st.recursive(
    st.sampled_from(_LEAVES),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(sorted(_UNARY)), inner),
        st.tuples(st.sampled_from(sorted(_BINARY)), inner, inner),
    ),
    max_leaves=4,
)


def _build(expression: Any, v: Named) -> Any:
    if isinstance(expression, str):
        value = getattr(v, expression)
        return value.astype(float) if expression in ("z", "b") else value
    name, *parts = expression
    values = [_build(part, v) for part in parts]
    if name in _UNARY:
        return _UNARY[name](values[0])
    x, y = values
    try:
        jnp.broadcast_shapes(jnp.shape(x), jnp.shape(y))
    except ValueError:
        return x
    if name == "dot" and (not jnp.ndim(x) or not jnp.ndim(y)):
        return x * y
    if name == "outer" and jnp.ndim(x) + jnp.ndim(y) > 3:
        return x
    return _BINARY[name](x, y)


@pytest.mark.thorough
def test_random_programs_keep_their_value_or_are_refused() -> None:
    read: list[bool] = []

    @settings(max_examples=120, deadline=None, derandomize=True, database=None)
    @given(expression=_expressions, public=st.booleans())
    def look(expression: Any, public: bool) -> None:
        result, expected, _ = run(lambda v: _build(expression, v), public=public)
        read.append(isinstance(result, Form | Transformed))
        if isinstance(result, Opaque):
            assert result.latents
            assert any(repr(latent) in result.reason for latent in result.latents)
            return
        with np.errstate(all="ignore"):
            found = value_of(result)
        assert found.shape == expected.shape
        # What is not a number on arrays (the log of a negative one) may be anything.
        valid = np.isfinite(expected)
        np.testing.assert_allclose(found[valid], expected[valid], rtol=1e-3, atol=1e-4)

    look()
    # Most are of latents and are read; the others are of rows alone, or refused.
    assert len(read) >= 100
    assert np.mean(read) > 0.5
