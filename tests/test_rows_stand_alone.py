"""Whatever JAX computes of a row, it is the same beside any rows, wherever it stands.

Sensitivities rest on it: a row that is left out moves all others to another place. So
each operation that a row's program may have is run on rows beside others that are not
numbers, infinite, huge, tiny, or slow to converge, and at other places.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.scipy import linalg, signal, special
from jax.scipy.sparse import linalg as sparse_linalg

import numpyro_vips as nv
from numpyro_vips.jax_tools import separate_rows
from numpyro_vips.jax_tools.jaxprs import equations_of
from numpyro_vips.jax_tools.quick_compilation import jit_of_rows
from numpyro_vips.jax_tools.row_sums import SPARE_ROWS, rows_in
from numpyro_vips.jax_tools.separate_rows import over_rows

# Worked on together with places behind them that hold none, as in a fit.
NUM_ROWS = rows_in(128)
SHARED = np.eye(20) + np.random.default_rng(1).normal(size=(20, 20)) / 9


def shared(x: Any) -> Any:
    """A matrix that no row has a part in, of the shape of one."""
    return jnp.asarray(SHARED, x.dtype)[: len(x), : len(x)]


def positive(x: Any) -> Any:
    return x @ x.T + jnp.eye(len(x), dtype=x.dtype)


def whole(x: Any) -> Any:
    """Small numbers at which rows look things up, whatever is in them."""
    return (jnp.nan_to_num(jnp.abs(x), posinf=9.0).clip(0, 9) * 3).astype(int)


def digits(x: Any) -> Any:
    return lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)


def key_of(x: Any) -> Any:
    key = jax.random.key(0, impl="threefry2x32")
    return jax.random.fold_in(key, digits(x[0, 0]))


def arithmetic(x: Any) -> Any:
    y = x.T
    found = (x + 1, x - y, x * y, x / y, -x, jnp.abs(x), jnp.sign(x), x**3, x % y)
    roots = (jnp.sqrt(jnp.abs(x)), lax.rsqrt(jnp.abs(x)), jnp.cbrt(x), jnp.square(x))
    narrow = (lax.reduce_precision(x, 5, 7), x.astype(jnp.float16))
    powers = (jnp.power(jnp.abs(x), y), jnp.nextafter(x, y), lax.clamp(-1.0, x, 1.0))
    return found, roots, narrow, powers


def comparisons(x: Any) -> Any:
    y = x.T
    found = (x == y, x != y, x < y, x <= y, x > y, x >= y, jnp.isfinite(x))
    chosen = (jnp.maximum(x, y), jnp.minimum(x, y), jnp.where(x > 0, x, y))
    return found, chosen, (jnp.floor(x), jnp.ceil(x), jnp.round(x))


def exponentials(x: Any) -> Any:
    size = jnp.abs(x)
    logs = (jnp.log(size), jnp.log1p(size), jnp.log2(size), jax.nn.softplus(x))
    parts = jnp.ldexp(*jnp.frexp(x))
    return jnp.exp(x), jnp.exp2(x), jnp.expm1(x), jax.nn.sigmoid(x), logs, parts


def angles(x: Any) -> Any:
    inside = jnp.tanh(x)
    inverses = (jnp.arcsin(inside), jnp.arccos(inside), jnp.arctan(x))
    hyperbolic = (jnp.sinh(x), jnp.cosh(x), jnp.arcsinh(x), jnp.arctanh(inside))
    others = (jnp.arctan2(x, x.T), jnp.arccosh(1 + jnp.abs(x)))
    return jnp.sin(1e3 * x), jnp.cos(x), jnp.tan(x), inverses, hyperbolic, others


def integers(x: Any) -> Any:
    i = digits(x)
    one = i.dtype.type(1)
    shifted = (i << one, i >> one, lax.shift_right_logical(i, one))
    # Not every version of JAX has the upper half of a product.
    upper: Any = getattr(lax, "mulhi", lax.mul)
    counted = (lax.population_count(i), lax.clz(i), upper(i, i.T))
    logical = (i & i.T, i | i.T, i ^ i.T, ~i, lax.reduce_xor(i, axes=(0,)))
    return shifted, counted, logical, i // 3, i % 5


def complex_numbers(x: Any) -> Any:
    z = lax.complex(x, x.T)
    return jnp.real(z * z), jnp.imag(jnp.conj(z)), jnp.abs(z)


def special_functions(x: Any) -> Any:
    errors = (special.erf(x), special.erfc(x), special.erfinv(jnp.tanh(x)))
    bessel = (special.i0e(x), special.i1e(x))
    gammas = (special.gammaln(jnp.abs(x)), special.digamma(x))
    return errors, bessel, gammas, special.ndtri(jax.nn.sigmoid(x))


def series(x: Any) -> Any:
    a, b = jnp.abs(x[0]) + 0.1, jnp.abs(x[1]) + 0.1
    incomplete = (special.gammainc(a, b), special.gammaincc(a, b))
    slopes = jax.vmap(jax.grad(special.gammainc))(a, b)
    beta = special.betainc(a, b, jax.nn.sigmoid(x[2]))
    return incomplete, slopes, beta, special.polygamma(2, a), special.zeta(1.0 + a, b)


def shapes(x: Any) -> Any:
    joined = (jnp.concatenate([x, x]), jnp.stack([x, x.T]), jnp.tile(x, 2))
    moved = (x.T, x[::-1], jnp.roll(x, 1), jnp.pad(x, 1), jnp.ravel(x), x[:2])
    cut = (jnp.split(x, [2]), jnp.squeeze(x[None], 0), jnp.diagonal(x))
    spread = (jnp.broadcast_to(x[0], (3, len(x))), lax.iota(int, 3) + (x[0, 0] > 0))
    return joined, moved, cut, spread


def sums(x: Any) -> Any:
    extremes = (jnp.max(x, 0), jnp.min(x, 1), jnp.argmax(x, 0), jnp.argmin(x, 1))
    logical = (jnp.any(x > 0, 0), jnp.all(x > 0, 1))
    own = lax.reduce(x, np.zeros((), x.dtype), lambda a, b: a * 0.5 + b, (0,))
    totals = (jnp.sum(x), jnp.prod(x), jnp.std(x), special.logsumexp(x))
    return totals, own, extremes, logical


def running(x: Any) -> Any:
    extremes = (lax.cummax(x), lax.cummin(x), lax.cumlogsumexp(x))
    products = lax.associative_scan(jnp.matmul, jnp.stack([x, x.T, x]))
    return jnp.cumsum(x, 0), jnp.cumprod(x, 1), extremes, products


def windows(x: Any) -> Any:
    def of(reduce: Any, start: float) -> Callable[[Any], Any]:
        return lambda x: lax.reduce_window(x, start, reduce, (2, 2), (1, 1), "SAME")

    largest = of(lax.max, -np.inf)
    own = of(lambda a, b: a * 0.5 + b, 1.0)
    slopes = jax.grad(lambda x: jnp.sum(largest(x) ** 2))(x)
    along = jax.jvp(largest, (x,), (x.T,))[1]
    return (
        largest(x),
        of(lax.min, np.inf)(x),
        of(lax.add, 0.0)(x),
        own(x),
        slopes,
        along,
    )


def picks(x: Any) -> Any:
    i = whole(x[0])
    at = i % len(x)
    moved = x.at[at]
    changed = (moved.set(1.0), moved.add(x), moved.subtract(x), moved.multiply(x))
    largest = (moved.max(x.T), moved.min(x.T))
    part = lax.dynamic_slice(x, (i[0], i[1]), (2, 2))
    updated = lax.dynamic_update_slice(x, 2 * part, (i[0], i[1]))
    segments = jax.ops.segment_sum(x, i % 3, 3)
    return x[at], changed, largest, part, updated, segments


def orders(x: Any) -> Any:
    found = jnp.searchsorted(jnp.sort(x[0]), x[1]), jnp.unique(x[0], size=3)
    largest = (lax.top_k(x[0], 2), lax.approx_max_k(x[0], 2))
    places = jnp.nonzero(x[0] > 0, size=2)
    return jnp.sort(x, None), jnp.argsort(x), jnp.median(x), found, largest, places


def products(x: Any) -> Any:
    by = shared(x)
    of_rows = (x @ x, x @ x[0], x[0] @ x[1], jnp.outer(x[0], x[1]))
    of_vectors = (by @ x[0], x[0] @ by, x[0] @ by[0])
    chain = jnp.einsum("ij,jk,kl->il", x, by, x), jnp.tanh(x[0] @ by) @ by
    return of_rows, of_vectors, chain, by @ x, x @ by, by @ x @ by


# One at a time: XLA would have two of them at once wait for each other.
def triangular_factors(x: Any) -> Any:
    return jnp.linalg.slogdet(x)


def square_roots(x: Any) -> Any:
    return jnp.linalg.cholesky(positive(x))


def orthogonal_factors(x: Any) -> Any:
    return jnp.linalg.qr(x)


def symmetric_eigenvalues(x: Any) -> Any:
    return jnp.linalg.eigh(x + x.T)


def eigenvalues(x: Any) -> Any:
    return jnp.linalg.eigvals(x)


def singular_values(x: Any) -> Any:
    return jnp.linalg.svd(x)


def schur_forms(x: Any) -> Any:
    return linalg.schur(x)[1]


def hessenberg_forms(x: Any) -> Any:
    return linalg.hessenberg(x, calc_q=False)


def tridiagonal_forms(x: Any) -> Any:
    return lax.linalg.tridiagonal(x + x.T, lower=True)[1:3]


def solutions(x: Any) -> Any:
    return jnp.linalg.solve(x, x[0])


def solutions_of_shared(x: Any) -> Any:
    by = shared(x)
    return jnp.linalg.solve(by, x[0]), linalg.solve_triangular(by, x, lower=True)


def solutions_of_bands(x: Any) -> Any:
    return lax.linalg.tridiagonal_solve(x[0], x[1], x[2], x[:1].T)


def steps_to_solutions(x: Any) -> Any:
    """The last rows of all were rounded otherwise; here they are none."""
    by = sparse_linalg.bicgstab(lambda v: x[0] * v, x[1], maxiter=4)[0]
    return by, sparse_linalg.cg(lambda v: shared(x).T @ (shared(x) @ v), x[1])[0]


def matrix_exponentials(x: Any) -> Any:
    return linalg.expm(x / 8)


def transforms(x: Any) -> Any:
    back = jnp.fft.irfft(jnp.fft.rfft(x[0]))
    return jnp.abs(jnp.fft.fft(x)), back, jnp.real(jnp.fft.fft2(x))


def convolutions(x: Any) -> Any:
    kernel = shared(x)[:2, :2]

    def total(kernel: Any) -> Any:
        return jnp.sum(jnp.tanh(signal.convolve2d(x, kernel)))

    own = jnp.convolve(x[0], x[1]), signal.convolve2d(x, x[:2, :2], mode="same")
    return own, signal.convolve2d(x, kernel), jax.grad(total)(kernel)


def loops(x: Any) -> Any:
    def until(total: Any) -> Any:
        return jnp.sum(total) < 3.0

    size = jnp.abs(x)
    scanned = lax.scan(lambda c, y: (jnp.tanh(c + y @ c), c.sum()), x[0], x[None])
    grown = lax.while_loop(until, lambda c: c + size[0].clip(0.1, 1), size[1])
    turns = lax.fori_loop(0, whole(x[0, 0]), lambda _, c: jnp.sin(c + x[1]), x[0])
    return scanned, grown, turns, lax.map(jnp.sum, x)


def branches(x: Any) -> Any:
    of_two = lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x)
    return of_two, lax.switch(whole(x[0, 0]) % 2, [jnp.sum, jnp.prod], x)


def derivatives(x: Any) -> Any:
    def stepped(x: Any) -> Any:
        return jnp.sum(lax.scan(lambda c, y: (c * y, c * jnp.sin(y)), x[0], x)[1])

    own_derivative: Any = jax.custom_vjp(jnp.sin)
    own_derivative.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),))
    kept = jax.checkpoint(lambda w: jnp.sin(checkpoint_name(x @ w, "product")))
    of_w = [
        lambda w: jnp.sum(jnp.tanh(x @ w) ** 3),
        lambda w: jnp.sum(kept(w)),
        lambda w: jnp.sum(jax.nn.relu(x @ w)),
        lambda w: jnp.sum(own_derivative(w)),
    ]
    bent = jax.hessian(lambda w: jnp.sum(jnp.log(jnp.cosh(x @ w))))(x[0])
    still = lax.optimization_barrier(lax.stop_gradient(own_derivative(x)))
    return [jax.grad(f)(x[0]) for f in of_w], bent, jax.grad(stepped)(x), still


def draws(x: Any) -> Any:
    key, a = key_of(x), jnp.abs(x[0]).clip(0.1, 1e3)
    gammas = (jax.random.gamma(key, a), jax.random.beta(key, a, 1.0))
    slope = jax.grad(lambda a: jax.random.gamma(key, a))(a[0])
    bits = jax.random.bits(jax.random.split(key)[1])
    others = (jax.random.poisson(key, 9.0 * a), jax.random.categorical(key, x))
    return jax.random.normal(key, (3,)), gammas, slope, bits, others


FUNCTIONS = (
    *(arithmetic, comparisons, exponentials, angles, integers, complex_numbers),
    *(special_functions, series, shapes, sums, running, windows, picks, orders),
    *(products, transforms, convolutions, square_roots, triangular_factors),
    *(orthogonal_factors, symmetric_eigenvalues, eigenvalues, singular_values),
    *(schur_forms, hessenberg_forms, tridiagonal_forms, matrix_exponentials),
    *(solutions, solutions_of_shared, solutions_of_bands, steps_to_solutions),
    *(loops, branches, derivatives, draws),
)
# What takes minutes with larger matrices.
LONG = (symmetric_eigenvalues, eigenvalues, singular_values, schur_forms)
# What no function above has in the program of a row.
WITHOUT_A_FUNCTION = {
    # Calls, and what JAX writes of its own accord, of other operations.
    *(
        "call",
        "closed_call",
        "custom_lin",
        "eval_jaxpr",
        "dce_sink",
        "stage",
        "unstack",
    ),
    *("empty2", "eq_to", "one_minus_square", "polynomial"),
    # Where arrays are.
    *("device_put", "sharding_constraint"),
    # Parts of others: of draws, and of what is refused or has another in its place.
    *("threefry2x32", "householder_product", "select_and_scatter"),
}


def hostile(rng: np.random.Generator, size: int) -> np.ndarray:
    """Rows as nobody wants them."""
    one = np.ones((size, size))
    values = (np.nan, np.inf, -np.inf, 1e30, 1e-40, 0.0, -0.0)
    long = [scale * rng.normal(size=(size, size)) for scale in (300.0, 1e5)]
    holed = np.where(rng.random((size, size)) < 0.2, np.nan, 1.0)
    return np.stack([*(value * one for value in values), *long, holed])


def check_rows(
    function: Callable[[Any], Any], size: int, dtype: Any, *, num_numbers: int
) -> None:
    """Compares the bits of each row's results beside other rows and at other places."""
    mapped = jit_of_rows(over_rows(lambda _, row: function(row)), num_numbers)

    def of_rows(rows: np.ndarray) -> list[np.ndarray]:
        places = [(0, SPARE_ROWS), *((0, 0) for _ in rows.shape[1:])]
        found = mapped((), np.pad(rows.astype(dtype), places))
        return [np.asarray(leaf)[: len(rows)] for leaf in jax.tree.leaves(found)]

    rng = np.random.default_rng(size)
    rows = rng.normal(size=(NUM_ROWS, size, size))
    others = hostile(rng, size)
    alone = of_rows(rows)
    for _ in range(3):
        kept = rng.random(NUM_ROWS) < 0.5
        drawn = others[rng.integers(len(others), size=NUM_ROWS)]
        mixed = np.where(kept[:, None, None], rows, drawn)
        beside = of_rows(mixed)
        shifted = of_rows(np.roll(mixed, 1, axis=0))
        for before, found, moved in zip(alone, beside, shifted, strict=True):
            np.testing.assert_array_equal(found[kept], before[kept])
            np.testing.assert_array_equal(np.roll(moved, -1, axis=0), found)
    for found in of_rows(np.repeat(rows[:1], NUM_ROWS, axis=0)):
        np.testing.assert_array_equal(found, np.repeat(found[:1], NUM_ROWS, axis=0))


@pytest.mark.optimized
@pytest.mark.thorough_with("*17*", "*double*")
# Sums over few rows and over many are compiled otherwise.
@pytest.mark.parametrize("num_numbers", [0, 10**9], ids=["few", "many"])
@pytest.mark.parametrize(
    ("function", "size"),
    [(f, size) for f in FUNCTIONS for size in (5, 17) if size == 5 or f not in LONG],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
@pytest.mark.parametrize("dtype", ["float32", "double"])
def test_a_row_is_the_same_beside_any_rows_and_anywhere(
    function: Callable[[Any], Any], size: int, dtype: str, num_numbers: int
) -> None:
    with jax.enable_x64(dtype == "double"):
        if function is convolutions and dtype == "double":
            with pytest.raises(nv.UnsafeModelError, match="convolution"):
                check_rows(function, size, dtype, num_numbers=num_numbers)
        else:
            check_rows(function, size, dtype, num_numbers=num_numbers)


def test_each_operation_of_a_row_is_in_one_of_the_functions() -> None:
    row = jax.ShapeDtypeStruct((5, 5), np.float32)
    found = {
        equation.primitive.name
        for function in FUNCTIONS
        for equation in equations_of(jax.make_jaxpr(function)(row))
    }
    listed = {primitive.name for _, primitive in separate_rows._listed()}
    assert listed - found <= WITHOUT_A_FUNCTION
