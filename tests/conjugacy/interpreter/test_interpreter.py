"""Programs run in the algebra give what they give on arrays, or say why they cannot."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _evaluate import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.nn import one_hot, relu, sigmoid, softplus
from numpyro.ops.indexing import Vindex

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.interpreter.interpreter import interpret
from numpyro_vips.conjugacy.interpreter.values import (
    Constant,
    Opaque,
    Transformed,
    Value,
)

RNG = np.random.default_rng(1)
LATENTS: dict[str, np.ndarray] = {
    "w": RNG.normal(size=3).astype(np.float32),
    "W": RNG.normal(size=(4, 2)).astype(np.float32),
    "a": np.float32(0.8) * np.ones((), np.float32),
    "tau": RNG.uniform(0.5, 2.0, 3).astype(np.float32),
    "T": RNG.uniform(0.5, 2.0, (4, 2)).astype(np.float32),
    "p": RNG.uniform(0.1, 0.9, 3).astype(np.float32),
    "beta": RNG.dirichlet(np.ones(5), size=3).astype(np.float32),
    "z": RNG.integers(0, 3, 6),
    "s": RNG.integers(0, 3, ()),
    "b": RNG.integers(0, 2, 6),
}
STATES = {"z": np.arange(3), "s": np.arange(3), "b": np.arange(2)}
ROWS: dict[str, np.ndarray] = {
    "X": RNG.normal(size=(5, 3)).astype(np.float32),
    "R": RNG.uniform(0.2, 0.8, (5, 3)).astype(np.float32),
    "i": RNG.integers(0, 3, 5),
    "y": RNG.normal(size=5).astype(np.float32),
}


class Named:
    """Attribute access to the arrays that a program is given."""

    def __init__(self, arrays: dict[str, Any]):
        self.__dict__.update(arrays)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


Program = Callable[[Named], Any]


def run(program: Program, *, public: bool) -> tuple[Value, np.ndarray, list[Any]]:
    """What the interpreter makes of a program, what it really returns, and checks.

    The rows are either public NumPy arrays or arrays that must not shape anything.
    """
    names = [*LATENTS, *ROWS]
    arrays = {**LATENTS, **ROWS}

    def positional(*values: Any) -> Any:
        return program(Named(dict(zip(names, values, strict=True))))

    closed = jax.make_jaxpr(positional)(*(jnp.asarray(arrays[n]) for n in names))
    inputs: list[Value] = [
        forms.latent(name, value.shape, STATES.get(name), signed=name in "wWa")
        for name, value in LATENTS.items()
    ]
    for value in ROWS.values():
        array = value if public else jnp.asarray(value)
        inputs.append(Constant(array, is_private=not public))
    (result,), checks = interpret(closed, inputs)
    expected = program(Named({k: jnp.asarray(v) for k, v in arrays.items()}))
    return result, np.asarray(expected), checks


def value_of(result: Value) -> np.ndarray:
    if isinstance(result, Constant):
        return np.asarray(result.array)
    if isinstance(result, Transformed):
        function = {"exp": np.exp, "sigmoid": lambda x: 1 / (1 + np.exp(-x))}
        return function[result.function](value_of(result.form))
    assert isinstance(result, Form)
    return evaluate(result, LATENTS, STATES)


def window(array: Any, start: tuple[int, ...], sizes: tuple[int, ...]) -> Any:
    axes = tuple(range(len(sizes)))
    numbers = jax.lax.GatherDimensionNumbers(axes, (), axes)
    return jax.lax.gather(array, jnp.asarray(start), numbers, sizes)


INSIDE: dict[str, Program] = {
    # Linear algebra.
    "cumulative sum": lambda v: jnp.cumsum(v.w) + jax.lax.cumsum(v.w, reverse=True),
    "cumulative sum along an axis": lambda v: jnp.cumsum(v.W, 1),
    "matmul": lambda v: v.X @ v.w,
    "matmul from the left": lambda v: v.w @ v.X.T,
    "matrix product": lambda v: v.X[:, :2] @ v.W.T,
    "product of two latents": lambda v: v.W @ v.T.T,
    "outer product": lambda v: v.w[:, None] * v.tau[None, :],
    "einsum": lambda v: jnp.einsum("nd,d->n", v.X, v.w),
    "einsum of three": lambda v: jnp.einsum("nd,d,d->n", v.X, v.w, v.tau),
    "batched einsum": lambda v: jnp.einsum("nd,nd,d->n", v.X, v.R, v.w),
    "diagonal einsum": lambda v: jnp.einsum("ii->i", jnp.outer(v.w, v.tau)),
    "trace": lambda v: jnp.trace(jnp.outer(v.w, v.tau)),
    "product and sum": lambda v: (v.X * v.w).sum(-1),
    "vmap of a dot": lambda v: jax.vmap(lambda x: jnp.dot(x, v.w))(v.X),
    "residual squared": lambda v: (v.y - v.X @ v.w - v.a) ** 2,
    "mean": lambda v: (v.X * v.w).mean(-1),
    "tensordot": lambda v: jnp.tensordot(v.W, v.T, axes=[[0, 1], [0, 1]]),
    "kron": lambda v: jnp.kron(v.w, v.tau),
    # Shapes.
    "reshape": lambda v: v.W.reshape(2, 4),
    "ravel": lambda v: v.W.ravel(),
    "reshape a product": lambda v: (v.X * v.w).reshape(3, 5),
    "split an axis": lambda v: v.W.reshape(2, 2, 2)[:, 1],
    "transpose": lambda v: jnp.transpose(v.W[:, None, :], (2, 0, 1)),
    "swap and add": lambda v: v.W.T + v.w[:2, None],
    "expand and squeeze": lambda v: jnp.squeeze(v.w[None, :, None], 0),
    "broadcast": lambda v: jnp.broadcast_to(v.w, (2, 3)) * v.R[:2],
    "tile": lambda v: jnp.tile(v.w, 2),
    "repeat": lambda v: jnp.repeat(v.w, 2),
    "slice": lambda v: v.W[1:3, ::-1],
    # As JAX 0.9 writes a slice.
    "window by a gather": lambda v: window(v.W, (1, 0), (2, 2)),
    "strided slice": lambda v: v.W[::2, 0],
    "negative index": lambda v: v.w[-1] + v.W[-2, 1],
    "reverse": lambda v: jnp.flip(v.w),
    "roll": lambda v: jnp.roll(v.w, 1),
    "concatenate": lambda v: jnp.concatenate([v.w, v.a[None], v.tau]),
    "concatenate with constants": lambda v: jnp.concatenate([jnp.ones(2), v.w, v.y]),
    "stack": lambda v: jnp.stack([v.w, 2 * v.tau, v.p], axis=1),
    "intercept column": lambda v: (
        jnp.concatenate([v.X, jnp.ones((5, 1))], 1) @ jnp.append(v.w, v.a)
    ),
    "pad": lambda v: jnp.pad(v.w, (2, 1)),
    "pad with ones, inside too": lambda v: jax.lax.pad(v.tau, 1.0, [(1, 2, 1)]),
    "pad a matrix": lambda v: jnp.pad(v.W, ((0, 0), (1, 0))) * 2.0,
    "diag": lambda v: jnp.diag(v.tau),
    "unstack": lambda v: sum(k * row for k, row in enumerate(jnp.unstack(v.W))),
    "split": lambda v: jnp.split(v.W, [1, 3])[1] * 2.0,
    "unpack": lambda v: v.X[:, 0] * list(v.w)[1],
    "square of a square at a latent": lambda v: (
        ((v.w[v.z] - 1.0) ** 2) * ((v.w[v.z] + 2.0) ** 2)
    ),
    "loop over columns": lambda v: sum(v.X[:, k] * v.w[k] for k in range(3)),
    # Elementwise.
    "inverse root": lambda v: 1 / jnp.sqrt(v.tau),
    "rsqrt": lambda v: jax.lax.rsqrt(v.tau) * 3.0,
    "power": lambda v: v.tau**-0.5 / jnp.sqrt(0.1),
    "root of the inverse": lambda v: jnp.sqrt(1 / (2.0 * v.tau)),
    "scale by rows": lambda v: 1 / jnp.sqrt(v.R * v.tau),
    "square": lambda v: jnp.square(v.X @ v.w),
    "log": lambda v: jnp.log(3.0 * v.tau),
    "log of an inverse root": lambda v: jnp.log(1 / jnp.sqrt(v.tau)),
    "log1p": lambda v: jnp.log1p(-v.p),
    "log of one minus": lambda v: jnp.log(1 - v.p),
    "log of a table": lambda v: jnp.log(v.beta),
    "exp of log": lambda v: jnp.log(jnp.exp(v.w + 1.0)),
    "exp": lambda v: jnp.exp(v.X @ v.w),
    "exp times a constant": lambda v: 2.0 * jnp.exp(v.w),
    "product of exps": lambda v: jnp.exp(v.w) * jnp.exp(v.tau),
    "quotient of exps": lambda v: jnp.exp(v.w) / jnp.exp(v.tau),
    "power of an exp": lambda v: jnp.exp(v.w) ** -0.5,
    "sigmoid": lambda v: sigmoid(v.X @ v.w),
    "sigmoid written out": lambda v: 1 / (1 + jnp.exp(-(v.X @ v.w))),
    "one minus sigmoid": lambda v: 1 - sigmoid(v.w),
    "gather of a sigmoid": lambda v: sigmoid(v.w)[v.i],
    # Selections by data.
    "gather by data": lambda v: v.w[v.i],
    "gather of rows": lambda v: v.beta[v.i],
    "gather of an element": lambda v: v.beta[v.i, v.i],
    "take": lambda v: jnp.take(v.w, v.i),
    "take along an axis": lambda v: jnp.take_along_axis(v.beta[:, :], v.i[:3, None], 1),
    "one-hot of data": lambda v: one_hot(v.i, 3) @ v.w,
    "gather with slopes": lambda v: v.w[v.i] * v.X[:, 0] + v.tau[v.i],
    "where by data": lambda v: jnp.where(v.y > 0, v.a, v.X @ v.w),
    "data times where": lambda v: jnp.where(v.X > 0, 1.0, 0.0) @ v.w,
    "inverse root at data": lambda v: 1 / jnp.sqrt(v.tau[v.i]),
    # Selections by discrete latents.
    "gather by a latent": lambda v: v.w[v.z],
    "gather of rows by a latent": lambda v: v.beta[v.z],
    "gather by a scalar latent": lambda v: v.beta[v.s],
    "gather by a latent and data": lambda v: v.beta[v.z[:5], v.i],
    "Vindex": lambda v: Vindex(v.beta)[v.z, :] * v.R[0, 0],
    "Vindex with constants": lambda v: Vindex(v.beta)[v.z, np.arange(5)[:, None]],
    "inverse root at a latent": lambda v: 1 / jnp.sqrt(v.tau[v.z]),
    "square at a latent": lambda v: (v.w[v.z] - 1.0) ** 2,
    "log at a latent": lambda v: jnp.log(v.beta[v.z]),
    "one-hot of a latent": lambda v: one_hot(v.z, 3) @ v.w,
    "where by a latent": lambda v: jnp.where(v.b == 1, v.a, v.w[0]),
    "where by a comparison": lambda v: jnp.where(v.z >= 1, v.a, 2.0),
    "arithmetic on a latent": lambda v: (v.z * 2 + 1) * v.a,
    "nonlinear in a latent": lambda v: jnp.exp(0.3 * v.z) * v.a,
    "index arithmetic": lambda v: v.beta[0][(v.z + 1) % 3],
    "two latents": lambda v: v.w[v.z] * v.b,
    "linear switch": lambda v: v.b * v.a + (1 - v.b) * v.w[0],
}


@pytest.mark.thorough
@pytest.mark.parametrize("public", [True, False], ids=["public", "private"])
@pytest.mark.parametrize("name", INSIDE)
def test_a_program_keeps_its_value(name: str, public: bool) -> None:
    result, expected, checks = run(INSIDE[name], public=public)
    assert not isinstance(result, Opaque), result.reason
    found = value_of(result)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    assert all(np.all(check) for check in checks)


# What has no form: which latent the reason must name, besides what is done to it.
OUTSIDE: dict[str, tuple[Program, str, str]] = {
    "relu": (lambda v: relu(v.X @ v.w), "w", "max"),
    "tanh": (lambda v: jnp.tanh(v.w), "w", "tanh"),
    "clip": (lambda v: jnp.clip(v.X @ v.w, -1, 1), "w", ""),
    "abs": (lambda v: jnp.abs(v.w), "w", "abs"),
    "sine": (lambda v: jnp.sin(v.X @ v.w), "w", "sin"),
    "erf": (lambda v: jax.scipy.special.erf(v.X @ v.w), "w", "erf"),
    "cube of a sum": (lambda v: (v.X @ v.w) ** 3, "w", "power"),
    "inverse of a sum": (lambda v: 1 / (v.X @ v.w), "w", "power"),
    "root of a sum": (lambda v: jnp.sqrt(v.tau.sum()), "tau", "power"),
    "log of a sum": (lambda v: jnp.log(v.R @ v.tau), "tau", "log"),
    "softplus times a latent": (
        lambda v: softplus(v.X @ v.w) * v.a,
        "w",
        "logsumexp",
    ),
    "softmax": (lambda v: jax.nn.softmax(v.w), "w", ""),
    "exp in a sum": (lambda v: jnp.exp(v.w) + v.a, "w", "exp"),
    "sigmoid times a latent": (lambda v: sigmoid(v.w) * v.tau, "w", "sigmoid"),
    "where by a continuous latent": (lambda v: jnp.where(v.w > 0, v.a, 1.0), "w", ""),
    "where by a sum of latents": (
        lambda v: jnp.where(v.X @ v.w > 0, 1.0, 0.0),
        "w",
        "",
    ),
    "data-dependent power": (lambda v: v.tau**v.R, "tau", "power"),
    "latent power": (lambda v: v.tau**v.p, "p", "power"),
    "maximum of two": (lambda v: jnp.maximum(v.w, v.tau), "tau", "max"),
    "largest": (lambda v: v.w.max(), "w", "max"),
    "product of all": (lambda v: jnp.prod(v.w), "w", ""),
    "sorted": (lambda v: jnp.sort(v.w), "w", "sort"),
    "inverse matrix": (lambda v: jnp.linalg.inv(v.W[:2] + jnp.eye(2)), "W", ""),
    "Cholesky factor": (lambda v: jnp.linalg.cholesky(jnp.diag(v.tau)), "tau", ""),
    "log-gamma": (lambda v: jax.lax.lgamma(v.tau), "tau", "lgamma"),
    "gather at a continuous index": (
        lambda v: v.beta[0][v.tau.astype(int)],
        "tau",
        "",
    ),
    "rounded": (lambda v: jnp.round(v.w), "w", "round"),
    "log of a padded latent": (lambda v: jnp.log(jnp.pad(v.tau, 1)), "tau", "log"),
    "inverse of a padded latent": (lambda v: 1 / jnp.pad(v.tau, 1), "tau", "power"),
    "inverse of a switch that may be zero": (
        lambda v: 1 / jnp.where(v.y > 0, v.a, 0.0),
        "a",
        "power",
    ),
    "a long loop": (
        lambda v: jax.lax.fori_loop(0, 600, lambda i, x: x * v.a, v.a),
        "a",
        "a loop of 600 steps",
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", OUTSIDE)
def test_what_is_outside_the_algebra_says_why(name: str) -> None:
    program, latent, operation = OUTSIDE[name]
    result, _, _ = run(program, public=False)
    assert isinstance(result, Opaque), "accepted"
    assert latent in result.latents
    assert repr(latent) in result.reason
    assert operation in result.reason


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
