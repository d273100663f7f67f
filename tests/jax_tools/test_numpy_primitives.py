"""NumPy's version of JAX's primitives: operation by operation the same numbers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import special as jsp
from scipy import special

from numpyro_vips.jax_tools.double_precision import (
    _apply_jax,
    _in_double,
    trace_in_double,
)
from numpyro_vips.jax_tools.numpy_primitives import NUMPY, NUMPY_SEVERAL

X = np.linspace(0.15, 0.85, 12).reshape(3, 4)
CUBE = np.arange(24.0).reshape(2, 3, 4)
MATRIX = np.eye(3) * 2.0 + 0.3
INDEX = np.array([[2, 0], [1, 3], [-1, 1]])
FLAGS = X > 0.5

PROGRAMS: list[tuple[Callable[..., Any], tuple]] = [
    (lambda x: (jnp.sin(x), jnp.cos(x), jnp.tanh(x), jnp.exp2(x), jnp.cbrt(x)), (X,)),
    (lambda x: (jnp.tan(x), jnp.sinh(x), jnp.cosh(x), jnp.atan2(x, 1 - x)), (X,)),
    (lambda x: (jnp.asin(x), jnp.acos(x), jnp.atan(x), jnp.asinh(x)), (X,)),
    (lambda x: (jnp.acosh(1 + x), jnp.atanh(x)), (X,)),
    (lambda x: (jnp.exp(x), jnp.expm1(x), jnp.log(x), jnp.log1p(x)), (X,)),
    (lambda x: (jnp.sqrt(x), lax.rsqrt(x), jnp.square(x), x**3, x**-2, x**0.7), (X,)),
    (lambda x: (jnp.abs(-x), -x, jnp.sign(x - 0.5), jnp.floor(3 * x)), (X,)),
    (lambda x: (jnp.ceil(3 * x), jnp.round(3 * x), jnp.isfinite(x)), (X,)),
    (lambda x: (jsp.gammaln(x), jsp.digamma(x), jsp.erf(x), jsp.erfc(x)), (X,)),
    (lambda x: (lax.igamma(x, x + 1), lax.igammac(x, x + 1)), (X,)),
    (lambda x: lax.betainc(x, x + 1, x), (X,)),
    (
        lambda x: (jsp.erfinv(x), jax.nn.sigmoid(x), jax.nn.softmax(x), jsp.ndtr(x)),
        (X,),
    ),
    (lambda x: (x + x, x - 2, x * x, 2 / x, jnp.maximum(x, 0.5), x % 0.2), (X,)),
    (
        lambda i: (i // 2, lax.div(i, jnp.asarray(-2)), lax.rem(i, jnp.asarray(2))),
        (INDEX,),
    ),
    (lambda i: lax.shift_right_logical(i, jnp.ones_like(i)), (INDEX,)),
    (lambda i: lax.bitcast_convert_type(i + 2**62, jnp.float64), (INDEX,)),
    (lambda x: lax.bitcast_convert_type(x, jnp.uint64), (X,)),
    (lambda f: (f & ~f, f | f, f ^ True, jnp.all(f, 0), jnp.any(f, 1)), (FLAGS,)),
    (lambda x: (x < 0.5, x <= x, x > 0.5, x >= x, x == x, x != 0.15), (X,)),
    (
        lambda x: (
            lax.clamp(0.3, x, 0.6),
            jnp.clip(x, 0.4, 0.5),
            jnp.where(x > 0.5, x, -x),
        ),
        (X,),
    ),
    (lambda i, x: lax.select_n(i, x, 2 * x, 3 * x), (FLAGS.astype(np.int32) * 2, X)),
    (
        lambda x: (
            lax.pad(x, 7.0, [(1, 2, 0), (0, 0, 1)]),
            lax.pad(x, 7.0, [(-1, 0, 2), (2, -2, 0)]),
            lax.pad(x[:0], 7.0, [(0, 1, 1), (0, 0, 0)]),
        ),
        (X,),
    ),
    (lambda x: (x.sum(0), x.max(1), x.min(), x.prod(0), x.sum((0, 1))), (X,)),
    (lambda x: (jnp.argmax(x, 1), jnp.argmin(x, 0)), (X,)),
    (lambda x: (jnp.cumsum(x, 1), jnp.cumprod(x, 0), lax.cummax(x, 0)), (X,)),
    (lambda x: (lax.cumsum(x, 1, reverse=True), lax.cumlogsumexp(x, 0)), (X,)),
    (lambda x: (lax.cummin(x, 1, reverse=True), lax.cummax(-x, 1)), (X,)),
    (lambda i: (jnp.cumsum(i, 0), jnp.cumprod(i, 1)), (INDEX,)),
    (lambda x: (x.T, x.reshape(2, 6), x[None], x[:, :1].squeeze(1), x[::2]), (X,)),
    (lambda x: (jnp.flip(x, 1), jnp.tile(x, (2, 1)), jnp.stack([x, x], 1)), (X,)),
    (lambda x: (jnp.concatenate([x, 2 * x], 1), jnp.split(x, [1, 3], 1)), (X,)),
    (
        lambda x: (
            jnp.pad(x, ((1, 2), (0, 1)), constant_values=7.0),
            jnp.ones(3) * x[0, 0],
        ),
        (X,),
    ),
    (lambda x: lax.pad(x, 0.5, ((1, -1, 2), (-1, 2, 0))), (X,)),
    (lambda x: jnp.arange(4) * x, (X,)),
    (lambda x: lax.dynamic_slice(x, (9, 1), (2, 2)), (X,)),
    (lambda x, y: (x @ y, jnp.einsum("ij,jk->ki", x, y)), (X, X.T)),
    (lambda a: jnp.einsum("bij,bkj->bik", a, a), (CUBE,)),
    (lambda a: jnp.einsum("bij,bkj->ik", a, a), (CUBE,)),
    (lambda x, i: (x[i[:, 0]], x[:, i[:, 0]], x[i[:, 0], i[:, 1]]), (X, INDEX)),
    (lambda x, i: jnp.take(x, i * 2, axis=1), (X, INDEX)),
    (lambda x, i: jnp.take(x, i * 2, axis=1, mode="clip"), (X, INDEX)),
    (lambda x, i: jnp.take_along_axis(x, i[:, :1], 1), (X, INDEX)),
    (
        lambda a, i: (a[:, i], a[0, i[0, 0]], a[i[:2, 1] * 0, :, i[:2, 0]]),
        (CUBE, INDEX),
    ),
    (lambda a, i: jax.vmap(lambda row, k: row[:, k])(a, i[:2, 1]), (CUBE, INDEX)),
    (
        lambda x, i: (
            x.at[i[:, 0]].add(2.0),
            x.at[i[:, 0], i[:, 1]].add(i[:, 0] + 0.5),
            x.at[i[:2, 0]].set(x[:2]),
            x.at[1:, ::2].set(7.0),
            x.at[:, i[:, 1] * 3].add(1.0),
            x.at[:, i[:, 1] * 3].add(1.0, mode="clip"),
        ),
        (X, INDEX),
    ),
    (
        lambda a, i: (
            a.at[:, i[:2, 0] * 0].add(1.0),
            a.at[i[:2, 1] * 0, :, i[:2, 0]].add(a[0, :, :2].T),
            jax.vmap(lambda row, k: row.at[:, k].set(k))(a, i[:2, 1]),
            lax.dynamic_update_slice(a, a[:1, :2, :3] + 1, (9, 0, 1)),
        ),
        (CUBE, INDEX),
    ),
    (lambda a: jnp.linalg.cholesky(a), (MATRIX,)),
    (lambda a: (jnp.linalg.inv(a), jnp.linalg.slogdet(a)), (MATRIX,)),
    (
        lambda a, x: jsp.logsumexp(jax.scipy.linalg.solve_triangular(a, x, trans=1), 0),
        (MATRIX, X),
    ),
    (
        lambda a, x: lax.linalg.triangular_solve(
            a, x.T, lower=True, unit_diagonal=True
        ),
        (MATRIX, X),
    ),
    (lambda x: lax.cond(x.sum() > 1, jnp.sin, jnp.cos, x), (X,)),
    (lambda x: jnp.stack([row * 2 for row in jnp.unstack(x)]), (X,)),
    (lambda x: lax.scan(lambda c, v: (c + v, c * v), x[0], x), (X,)),
    (lambda x: jax.grad(lambda v: jnp.sum(jsp.gammaln(v[:, 1:]) * v[:, :-1]))(x), (X,)),
    (lambda x, i: jax.grad(lambda v: jnp.sum(v[i[:, 0]] ** 2))(x), (X, INDEX)),
]


@pytest.mark.thorough
@pytest.mark.parametrize("function, arguments", PROGRAMS)
def test_same_numbers_as_jax(function, arguments):
    found = trace_in_double(function, *arguments)(*arguments)
    with jax.enable_x64(True):
        expected = jax.jit(function)(*map(jnp.asarray, arguments))
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(
        jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
    ):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-14)


def test_every_operation_is_covered():
    """The programs above contain nearly all of the table."""
    seen: set[str] = set()

    def walk(jaxpr: Any) -> None:
        for eqn in jaxpr.eqns:
            seen.add(eqn.primitive.name)
            for value in jax.tree.leaves(
                dict(eqn.params), is_leaf=lambda v: hasattr(v, "eqns")
            ):
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    walk(inner)

    with jax.enable_x64(True):
        for function, arguments in PROGRAMS:
            walk(jax.make_jaxpr(function)(*arguments).jaxpr)
    trivial = {"add_any", "copy", "copy_p", "expand_dims", "reduce_precision"}
    if jax.__version_info__ < (0, 10):  # Has others in their place.
        trivial |= {"stack", "tile", "unstack"}
    assert (set(NUMPY) | set(NUMPY_SEVERAL)) - seen <= trivial | {"stop_gradient"}


def test_an_operation_that_numpy_does_not_know_is_left_to_jax():
    program = jax.make_jaxpr(lax.bessel_i1e)(np.float32(2.0))
    (eqn,) = [e for e in program.jaxpr.eqns if e.primitive.name == "bessel_i1e"]
    assert eqn.primitive.name not in NUMPY
    (found,) = _apply_jax(eqn, [_in_double(2.0)])
    np.testing.assert_allclose(found, special.i1e(2.0), rtol=1e-5)


def test_a_triangular_system_without_a_solution_is_not_a_number():
    """Others beside it keep theirs."""
    systems = np.array([[[0.0, 0.0], [1.0, 2.0]], [[2.0, 9.0], [1.0, 4.0]]])

    def solved(a: Any) -> Any:
        return lax.linalg.triangular_solve(
            a, jnp.ones((2, 2, 1)), left_side=True, lower=True
        )

    found = trace_in_double(solved, systems)(systems)
    assert np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1, :, 0], [0.5, 0.125])


def test_a_failed_cholesky_factor_is_not_a_number():
    found = trace_in_double(jnp.linalg.cholesky, -np.eye(2))(-np.eye(2))
    assert np.isnan(found).any()
