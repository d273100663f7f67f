"""Gradients kept as products, against JAX's own, entry by entry."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _dpvi_engines import engine_of_graph

from numpyro_vips.dpvi.gradients.factored_gradients import FactoredProgram
from numpyro_vips.handlers import private
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph

pytestmark = pytest.mark.optimized

KEY = jax.random.key(0)
ROWS = 7


def _soft(x):
    return jnp.sum(jnp.tanh(x) ** 2 + jax.nn.relu(x))


# For each program of w and a row: the shape of w, and whether its gradient is kept as a
# product. A row is a vector of 3 floats and an index below 5.
PROGRAMS: dict[str, tuple[Any, tuple[int, ...], bool]] = {
    "x @ w": (lambda w, x, i: _soft(x @ w), (3, 4), True),
    "w @ x": (lambda w, x, i: _soft(w @ x), (4, 3), True),
    "one row": (lambda w, x, i: _soft(x[None] @ w), (3, 4), True),
    "mapped": (
        lambda w, x, i: _soft(jax.vmap(lambda row: w @ row)(x[None])),
        (4, 3),
        True,
    ),
    "vector": (lambda w, x, i: _soft(x @ w), (3,), True),
    "transposed": (lambda w, x, i: _soft(w.T @ x), (3, 4), True),
    "reshaped": (lambda w, x, i: _soft(x @ w.reshape(3, 4)), (12,), True),
    "inside jit": (lambda w, x, i: jax.jit(lambda v: _soft(x @ v))(w), (3, 4), True),
    "batched": (
        lambda w, x, i: _soft(jnp.einsum("bk,kbm->bm", jnp.stack([x, x**2]), w)),
        (3, 2, 4),
        True,
    ),
    "batched, turned": (
        lambda w, x, i: _soft(jnp.einsum("kb,mbk->mb", jnp.stack([x, x**2]).T, w)),
        (4, 2, 3),
        True,
    ),
    "two axes": (
        lambda w, x, i: _soft(jnp.einsum("jk,jkm->m", jnp.outer(x, x + 1), w)),
        (3, 3, 4),
        True,
    ),
    "layer": (
        lambda w, x, i: _soft(jnp.tanh(jnp.outer(x, x)).ravel() @ w),
        (9, 4),
        True,
    ),
    "entry": (lambda w, x, i: _soft(w[i] * x), (5,), True),
    "entries": (lambda w, x, i: _soft(w[i] * x), (5, 3), True),
    "gathered": (lambda w, x, i: _soft(w[i[None]] * x), (5, 3), True),
    "taken": (lambda w, x, i: _soft(jnp.take(w, i, axis=1) * x), (3, 5), True),
    "used twice": (lambda w, x, i: _soft(x @ w) + _soft(w), (3, 4), False),
    "both sides": (lambda w, x, i: _soft((x @ w) @ w), (3, 3), False),
    "several vectors": (lambda w, x, i: _soft(jnp.outer(x, x) @ w), (3, 4), False),
    "several entries": (
        lambda w, x, i: _soft(w[jnp.stack([i, i])] * x),
        (5, 3),
        False,
    ),
    "scaled": (lambda w, x, i: _soft(x @ (2 * w)), (3, 4), False),
    "repeated": (
        lambda w, x, i: _soft(jnp.sum(jnp.broadcast_to(w, (2, 3)) * x)),
        (3,),
        False,
    ),
    "elementwise": (lambda w, x, i: _soft(jnp.sum(x * w)), (3,), False),
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_gradients_are_those_of_jax(case):
    function, shape, is_kept = PROGRAMS[case]
    rng = np.random.default_rng(0)
    w = jnp.asarray(rng.normal(size=shape), jnp.float32)
    X = jnp.asarray(rng.normal(size=(ROWS, 3)), jnp.float32)
    indices = jnp.asarray(rng.integers(0, 5, ROWS))
    program = FactoredProgram(jax.make_jaxpr(function)(w, X[0], indices[0]), [0])
    assert bool(program.uses) is bool(is_kept)
    if not is_kept:
        return
    use = program.uses[0]

    def of_row(x: Any, i: Any) -> Any:
        def value(tap: Any) -> Any:
            (result,), others = program([w, x, i], {0: tap})
            return result, others[0]

        gradient, others = jax.grad(value, has_aux=True)(jnp.zeros(use.shape))
        return use.isometric(others, gradient)

    rng = np.random.default_rng(1)
    weights = jnp.asarray(rng.uniform(0.5, 2.0, ROWS), jnp.float32)

    @jax.jit
    def kept_and_exact(w: Any) -> Any:
        frames, coordinates = jax.vmap(of_row)(X, indices)
        weighted = jax.vmap(jnp.multiply)(weights, coordinates)
        exact = jax.vmap(jax.grad(function), in_axes=(None, 0, 0))(w, X, indices)
        return coordinates, exact, use.total(w, frames, weighted)

    coordinates, exact, total = kept_and_exact(w)
    np.testing.assert_allclose(
        np.linalg.norm(np.reshape(coordinates, (ROWS, -1)), axis=1),
        np.linalg.norm(np.reshape(exact, (ROWS, -1)), axis=1),
        rtol=1e-5,
    )
    expected = np.einsum("n,n...->...", weights, exact)
    np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-25, 1e-10, 1.0, 1e20, 1e35])
def test_norms_hold_at_any_size(size):
    """Where the squares of a vector, or the inverse of its length, leave the range."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(size * rng.normal(size=300) / 30, jnp.float32)
    program = FactoredProgram(
        jax.make_jaxpr(lambda w, x: x @ w)(jnp.zeros((300, 2)), x), [0]
    )
    use = program.uses[0]
    r = jnp.asarray([1.5, -1.0]) / max(size, 1e-30)
    frames, coordinates = jax.jit(lambda x, r: use.isometric((x,), r))(x, r)
    exact = np.linalg.norm(np.outer(np.asarray(x, float), np.asarray(r, float)))
    total = use.total(
        jnp.zeros((300, 2)), jax.tree.map(lambda a: a[None], frames), coordinates[None]
    )
    found = np.linalg.norm(np.asarray(coordinates, float))
    # Numbers below 1e-38 are zero to the processor.
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(np.linalg.norm(total), exact, rtol=1e-4, atol=1e-7)
    assert np.linalg.norm(total) <= found * (1 + 1e-7)


def test_no_frame_makes_a_row_longer_than_its_coordinates():
    """XLA may find a length that is not the vector's; see `_at_most_one`."""
    rng = np.random.default_rng(0)
    w, x = jnp.zeros((2, 3, 4)), jnp.zeros((2, 3))
    program = FactoredProgram(
        jax.make_jaxpr(lambda w, x: jnp.einsum("gi,gij->gj", x - 1, w))(w, x), [0]
    )
    use = program.uses[0]
    assert not use.is_given
    coordinates = rng.normal(size=(5, 2, 4)).astype(np.float32)
    frame = rng.normal(size=(5, 2, 3)).astype(np.float32)
    frame *= np.array([1e-3, 1.0, 1e10, np.inf, np.nan], np.float32)[:, None, None]
    for row in range(5):
        of_row = (jnp.asarray(frame[row][None]),), jnp.asarray(coordinates[row][None])
        found = use.total(w, *of_row)
        length = np.linalg.norm(coordinates[row])
        assert np.linalg.norm(found) <= length * (1 + 1e-6), row
        if row == 2:
            np.testing.assert_allclose(np.linalg.norm(found), length, rtol=1e-5)


@pytest.mark.parametrize(
    ("function", "is_given"),
    [
        (lambda w, x: x @ w, True),
        (lambda w, x: x.reshape(3, 2).T.ravel() @ w, True),
        (lambda w, x: x.reshape(2, 3).reshape(6) @ w, True),
        (lambda w, x: (x - 1) @ w, False),
        (lambda w, x: jnp.tanh(x) @ w, False),
        (lambda w, x: jnp.ones(6) @ w + x.sum(), False),
    ],
)
def test_inputs_are_told_from_what_is_made_of_them(function, is_given):
    program = jax.make_jaxpr(function)(jnp.zeros((6, 2)), jnp.zeros(6))
    assert FactoredProgram(program, [0]).uses[0].is_given == is_given
    if is_given:
        assert not FactoredProgram(program, [0, 1]).uses[0].is_given


# --- in the engine --------------------------------------------------------------------


@private(unit="people")
def everything(X: Any, group: Any, y: Any = None):
    """A hidden layer, its bias, group effects, a matrix that is used twice, a scale."""
    width = X.shape[1]
    w: Any = numpyro.sample("w", dist.Normal(0, 1).expand([width, 4]).to_event(2))
    bias: Any = numpyro.sample("bias", dist.Normal(0, 1).expand([4]).to_event(1))
    twice: Any = numpyro.sample("twice", dist.Normal(0, 1).expand([4, 4]).to_event(2))
    with numpyro.plate("group", 5):
        u: Any = numpyro.sample("u", dist.Normal(0, 1))
    scale: Any = numpyro.sample("scale", dist.HalfNormal(1.0))
    last: Any = numpyro.param("last", jnp.linspace(-1.0, 1.0, 4))
    with numpyro.plate("people", X.shape[0]):
        hidden = jnp.tanh(X @ w + bias)
        mean = jnp.tanh(hidden @ twice) @ twice @ last + u[group]
        numpyro.sample("y", dist.StudentT(4.0, mean, scale), obs=y)


def _rows(count, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "X": rng.normal(size=(count, 3)).astype(np.float32),
        "group": rng.integers(0, 5, count),
        "y": rng.normal(size=count).astype(np.float32),
    }


@pytest.fixture(scope="module")
def engine():
    return _engine()


def _engine():
    arguments = bind_arguments(everything, tuple(_rows(9).values()), {})
    return engine_of_graph(build_graph(everything, arguments))


def _sum(engine, rows, mask, clipping_norm=0.6):
    blocks = engine.blocks("adaptive")
    scales = {block.name: 1.0 + 0.5 * i for i, block in enumerate(blocks)}
    state = engine.initial_state(KEY)
    found = engine.bounded_sum(
        state, rows, mask, scales=scales, clipping_norm=clipping_norm
    )
    return {name: scales[name] * np.asarray(found[name], float) for name in found}


@pytest.mark.quick_with("1000000.0")
@pytest.mark.parametrize("clipping_norm", [0.6, 1e6])
def test_the_engine_sums_the_same_either_way(engine, monkeypatch, clipping_norm):
    monkeypatch.setattr(
        "numpyro_vips.dpvi.gradients.clipped_gradients.FactoredProgram",
        lambda program, inputs: FactoredProgram(program, ()),
    )
    factored, dense = engine, _engine()
    assert not dense.compiled.row_gradients._program.uses
    assert len(factored.compiled.row_gradients._program.uses) == 3
    rows, mask = _rows(9), np.arange(9) != 2
    one, other = (_sum(e, rows, mask, clipping_norm) for e in (factored, dense))
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-5)
    state = factored.initial_state(KEY)
    names = [block.name for block in factored.blocks("adaptive")]
    norms = factored.row_norms(state, rows, names), dense.row_norms(state, rows, names)
    for name in names:
        np.testing.assert_allclose(norms[0][name], norms[1][name], rtol=1e-4)


def test_neighbours_differ_by_at_most_the_norm(engine):
    rng = np.random.default_rng(1)
    mask = np.arange(9) != 4
    without = _sum(engine, _rows(9), mask)
    reached = 0.0
    for size in (1.0, 1e3, 1e10, 1e18, 1e30, 3e38, np.inf, np.nan):
        for _ in range(5):
            rows = _rows(9)
            rows["X"][4] = size * rng.uniform(-1, 1, 3)
            rows["y"][4] = rng.choice([0.0, 1.0, 1e3]) * rng.normal()
            rows["group"][4] = rng.choice([0, 4, -1, 5, 99])
            with_row = _sum(engine, rows, np.ones(9, bool))
            moved = {name: with_row[name] - without[name] for name in without}
            joint = np.concatenate([part.ravel() for part in moved.values()])
            assert np.linalg.norm(joint) <= 0.6 * (1 + 1e-5)
            if not np.isfinite(size) or rows["group"][4] >= 5:
                np.testing.assert_array_equal(joint, 0.0)
            reached = max(reached, float(np.linalg.norm(joint)))
    assert reached > 0.59
