"""Rows' clipped gradients, of a program written by hand."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _compiled import reads_without_memory
from _dpvi_engines import engine_of_graph

import numpyro_vips as nv
from numpyro_vips.dpvi.gradients.clipped_gradients import RowGradients, Shared
from numpyro_vips.dpvi.gradients.released_leaves import ReleasedLeaves
from numpyro_vips.dpvi.gradients.row_fingerprints import fingerprint_of_row
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.jax_tools.random_keys import threefry_key
from numpyro_vips.jax_tools.row_sums import CLIPPED_ROWS, ZERO_ROWS
from numpyro_vips.jax_tools.separate_rows import over_rows
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph
from numpyro_vips.privacy.gaussian_mechanism import Block

RNG = np.random.default_rng(5)
W, B = RNG.normal(size=3), np.array(0.3)
ROWS = {
    "x": RNG.normal(size=(9, 3)).astype(np.float32),
    "y": RNG.normal(size=9).astype(np.float32),
}
BLOCKS = (Block(name="w", shape=(3,)), Block(name="b", shape=()))


def elbo(free: Any, params: Any, row: Any, key: Any) -> Any:
    """-(y - x @ w - b)⁴, of rows with y above -5."""
    del params, key
    w, b = free
    return -((row["y"] - row["x"] @ w - b) ** 4), row["y"] > -5.0


def by_hand(rows: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Gradients in w and b of every row."""
    x, y = rows["x"].astype(float), rows["y"].astype(float)
    slope = 4 * (y - x @ W - B) ** 3
    return slope[:, None] * x, slope


def gradients(function: Any = elbo, **options: Any) -> tuple[RowGradients, Shared]:
    tree = ((jnp.asarray(W, jnp.float32), jnp.asarray(B, jnp.float32)), {})
    row = {name: array[0] for name, array in ROWS.items()}
    program = jax.make_jaxpr(function)(*tree, row, threefry_key(0))
    released = [ReleasedLeaves(block, (leaf,)) for leaf, block in enumerate(BLOCKS)]
    shared = Shared(tree, jnp.zeros((1, 1)), threefry_key(7))
    return RowGradients(program, released, num_particles=1, **options), shared


@functools.cache
def compiled(redraw: Any = None) -> Any:
    row_gradients, shared = gradients(redraw=redraw)
    return jax.jit(functools.partial(row_gradients.bounded_sum, shared))


def bounded_sum(
    rows: Any,
    mask: Any,
    norm: float,
    scales: Any = None,
    *,
    redraw: Any = None,
    keys: Any = None,
) -> Any:
    """Of rows as they are, or with `keys` less rows that are redrawn by them."""
    arrays = {name: jnp.asarray(array) for name, array in rows.items()}
    scales = scales or {"w": 1.0, "b": 1.0}
    found = compiled(redraw)(arrays, jnp.asarray(mask), scales, norm, keys)
    return {name: np.asarray(array) for name, array in found.items()}


def test_without_a_bound_it_is_the_sum_of_the_gradients() -> None:
    mask = np.arange(9) % 4 != 0
    found = bounded_sum(ROWS, mask, np.inf)
    of_w, of_b = by_hand(ROWS)
    np.testing.assert_allclose(found["w"], of_w[mask].sum(0), rtol=1e-4)
    np.testing.assert_allclose(found["b"], of_b[mask].sum(), rtol=1e-4)
    assert found[CLIPPED_ROWS] == found[ZERO_ROWS] == 0.0


@pytest.mark.parametrize("scales", [{"w": 1.0, "b": 1.0}, {"w": 0.3, "b": 0.1}])
def test_each_row_is_shortened_to_the_bound_on_its_joint_norm(scales) -> None:
    bound = 0.8
    of_w, of_b = by_hand(ROWS)
    norms = np.sqrt(scales["w"] ** 2 * (of_w**2).sum(1) + scales["b"] ** 2 * of_b**2)
    weights = np.minimum(1.0, bound / norms)
    assert 0 < np.sum(weights < 0.99) < 9
    found = bounded_sum(ROWS, np.ones(9, bool), bound, scales)
    np.testing.assert_allclose(found["w"], weights @ of_w, rtol=1e-4)
    np.testing.assert_allclose(found["b"], weights @ of_b, rtol=1e-4)
    assert found[CLIPPED_ROWS] == np.sum(norms > 1.01 * bound)


def test_one_row_moves_the_sum_by_no_more_than_the_bound() -> None:
    bound = 0.8
    all_rows = bounded_sum(ROWS, np.ones(9, bool), bound)
    for left_out in range(9):
        others = bounded_sum(ROWS, np.arange(9) != left_out, bound)
        moved = [np.ravel(all_rows[name] - others[name]) for name in ("w", "b")]
        assert np.linalg.norm(np.concatenate(moved)) <= bound


@pytest.mark.parametrize(
    "wrong",
    [{"y": np.float32(-6.0)}, {"y": np.float32(np.nan)}, {"x": np.float32(1e30)}],
)
def test_a_row_that_may_not_count_adds_zero_and_is_counted(wrong: Any) -> None:
    """Outside its support, no number, or with a gradient that is none."""
    rows = {name: array.copy() for name, array in ROWS.items()}
    for name, value in wrong.items():
        rows[name][4] = value
    found = bounded_sum(rows, np.ones(9, bool), 0.8)
    without = bounded_sum(ROWS, np.arange(9) != 4, 0.8)
    np.testing.assert_allclose(found["w"], without["w"], rtol=1e-6)
    np.testing.assert_allclose(found["b"], without["b"], rtol=1e-6)
    assert found[ZERO_ROWS] == 1.0
    row_gradients, shared = gradients()
    norms = row_gradients.norms(shared, rows)
    assert np.isnan(norms["w"][4]) and np.isfinite(np.delete(norms["w"], 4)).all()


# --- less redrawn rows ----------------------------------------------------------------

KEYS = RNG.integers(0, 2**32, (9, 2), dtype=np.uint32)


def redraw(tree: Any, row: Any, key: Any) -> Any:
    """y about x @ w + b, and outside its support where x is all ones."""
    (w, b), _ = tree
    y = row["x"] @ w + b + jax.random.normal(key)
    return {**row, "y": jnp.where(jnp.all(row["x"] == 1.0), -6.0, y)}


def redrawn_rows(rows: Any, keys: Any = KEYS) -> Any:
    noise = [jax.random.normal(jax.random.wrap_key_data(key)) for key in keys]
    return {**rows, "y": rows["x"] @ W + B + np.asarray(noise)}


@pytest.mark.parametrize("bound", [0.8, np.inf])
@pytest.mark.parametrize("scales", [{"w": 1.0, "b": 1.0}, {"w": 0.3, "b": 0.1}])
def test_what_is_clipped_are_differences_to_redrawn_rows(bound, scales) -> None:
    pairs = zip(by_hand(ROWS), by_hand(redrawn_rows(ROWS)), strict=True)
    of_w, of_b = (own - other for own, other in pairs)
    norms = np.sqrt(scales["w"] ** 2 * (of_w**2).sum(1) + scales["b"] ** 2 * of_b**2)
    weights = np.minimum(1.0, bound / norms)
    mask = np.arange(9) != 2
    found = bounded_sum(ROWS, mask, bound, scales, redraw=redraw, keys=KEYS)
    np.testing.assert_allclose(found["w"], (weights * mask) @ of_w, rtol=1e-3)
    np.testing.assert_allclose(found["b"], (weights * mask) @ of_b, rtol=1e-3)
    # What is counted are the rows' own gradients.
    plain = bounded_sum(ROWS, mask, bound, scales)
    assert found[CLIPPED_ROWS] == plain[CLIPPED_ROWS]


def test_without_keys_rows_that_can_be_redrawn_count_as_others_do() -> None:
    found = bounded_sum(ROWS, np.ones(9, bool), 0.8, redraw=redraw)
    plain = bounded_sum(ROWS, np.ones(9, bool), 0.8)
    for name, value in plain.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6)


def test_one_row_and_its_key_move_the_sum_by_no_more_than_the_bound() -> None:
    rows = {name: array.copy() for name, array in ROWS.items()}
    rows["x"][1], rows["x"][2] = 1.0, 1e12  # Redrawn outside the support, and huge.
    rows["y"][3], rows["y"][4] = np.nan, 1e9
    whole = bounded_sum(rows, np.ones(9, bool), 0.8, redraw=redraw, keys=KEYS)
    moves = []
    for left_out in range(9):
        mask = np.arange(9) != left_out
        others = bounded_sum(rows, mask, 0.8, redraw=redraw, keys=KEYS)
        moved = [np.ravel(whole[name] - others[name]) for name in ("w", "b")]
        moves.append(np.linalg.norm(np.concatenate(moved)))
    assert max(moves) <= 0.8 and np.sum(np.asarray(moves) > 0.799) >= 2
    assert moves[3] == 0.0


def test_a_row_whose_redrawn_one_counts_as_zero_stands_alone() -> None:
    rows = {name: array.copy() for name, array in ROWS.items()}
    rows["x"][:] = 1.0
    found = bounded_sum(rows, np.ones(9, bool), 0.8, redraw=redraw, keys=KEYS)
    plain = bounded_sum(rows, np.ones(9, bool), 0.8)
    for name, value in plain.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6)


def test_clipped_differences_add_up_to_zero_at_the_truth() -> None:
    """And clipped gradients do not, where a row's density is skewed."""

    def exponential(free: Any, params: Any, row: Any, key: Any) -> Any:
        del params, key
        _, b = free
        return b - jnp.exp(b) * row["y"], True

    def exponential_row(tree: Any, row: Any, key: Any) -> Any:
        return {**row, "y": jax.random.exponential(key) * jnp.exp(-tree[0][1])}

    count = 20_000
    y = RNG.exponential(np.exp(-B), count).astype(np.float32)
    rows = {"x": np.zeros((count, 3), np.float32), "y": y}
    keys = RNG.integers(0, 2**32, (count, 2), dtype=np.uint32)
    row_gradients, shared = gradients(exponential, redraw=exponential_row)
    for is_redrawn in (True, False):
        found = row_gradients.bounded_sum(
            shared,
            {name: jnp.asarray(array) for name, array in rows.items()},
            jnp.ones(count, bool),
            {"w": 1.0, "b": 1.0},
            0.5,
            keys if is_redrawn else None,
        )
        # A row's clipped gradient has a standard deviation below 0.5.
        score = float(found["b"]) / (0.5 * np.sqrt(count))
        assert abs(score) < 4.0 if is_redrawn else score > 10.0


def test_norms_are_those_of_the_blocks() -> None:
    row_gradients, shared = gradients()
    norms = row_gradients.norms(shared, ROWS)
    of_w, of_b = by_hand(ROWS)
    np.testing.assert_allclose(norms["w"], np.linalg.norm(of_w, axis=1), rtol=1e-4)
    np.testing.assert_allclose(norms["b"], np.abs(of_b), rtol=1e-4)


def test_a_program_by_which_rows_could_leave_is_refused() -> None:
    def shows(free: Any, params: Any, row: Any, key: Any) -> Any:
        jax.debug.print("{}", row["y"])
        return elbo(free, params, row, key)

    with pytest.raises(UnsafeModelError, match="calls back to Python"):
        gradients(shows)


def test_a_rows_draws_depend_on_what_it_holds_and_not_on_its_place() -> None:
    first = {name: array[0] for name, array in ROWS.items()}
    number = fingerprint_of_row(first)
    assert number == fingerprint_of_row(
        {name: array.copy() for name, array in first.items()}
    )
    # Every entry has a say, and so has where it stands.
    others = [fingerprint_of_row({**first, "x": first["x"][::-1]})]
    for place in range(3):
        changed = first["x"].copy()
        changed[place] = np.nextafter(changed[place], np.float32(9))
        others.append(fingerprint_of_row({**first, "x": changed}))
    assert number not in others and len(set(map(int, others))) == 4


# --- in other coordinates -------------------------------------------------------------

UNITS = np.array([[1.0, 0.2, 0, 0], [0.2, 0.1, 0, 0], [0, 0, 0.5, 0], [0, 0, 0, 0.01]])


def sum_in_coordinates(rows: Any, mask: Any, norm: float, keys: Any = None) -> Any:
    row_gradients, shared = gradients(redraw=None if keys is None else redraw)
    released = [ReleasedLeaves(Block(name="loc", shape=(4,)), (0, 1))]
    row_gradients._released = released
    at = shared._replace(units=jnp.asarray(UNITS, jnp.float32))
    arrays = {name: jnp.asarray(array) for name, array in rows.items()}
    mask = jnp.asarray(mask)
    found = row_gradients.bounded_sum(at, arrays, mask, {"loc": 1.0}, norm, keys)
    return np.asarray(found["loc"], np.float64)


def test_gradients_are_clipped_in_the_coordinates() -> None:
    bound = 0.8
    of_w, of_b = by_hand(ROWS)
    # d/du at z = U u, of w and b in one vector.
    of_u = np.column_stack([of_w, of_b]) @ UNITS
    weights = np.minimum(1.0, bound / np.linalg.norm(of_u, axis=1))
    assert 0 < np.sum(weights < 0.99) < 9
    everyone = np.ones(9, bool)
    found = sum_in_coordinates(ROWS, everyone, bound)
    np.testing.assert_allclose(found, weights @ of_u, rtol=1e-4)
    row_gradients, shared = gradients()
    row_gradients._released = [ReleasedLeaves(Block(name="loc", shape=(4,)), (0, 1))]
    at = shared._replace(units=jnp.asarray(UNITS, jnp.float32))
    norms = row_gradients.norms(at, ROWS)["loc"]
    np.testing.assert_allclose(norms, np.linalg.norm(of_u, axis=1), rtol=1e-4)


@pytest.mark.parametrize("keys", [None, KEYS], ids=["as they are", "redrawn"])
def test_one_row_moves_a_sum_in_coordinates_by_no_more_than_the_bound(
    keys: Any,
) -> None:
    bound, moved = 0.01, []
    all_rows = sum_in_coordinates(ROWS, np.ones(9, bool), bound, keys)
    for left_out in range(9):
        others = sum_in_coordinates(ROWS, np.arange(9) != left_out, bound, keys)
        moved.append(np.linalg.norm(all_rows - others))
    assert 0.999 * bound < max(moved) <= bound


def shares(total: Any, y: Any) -> None:
    m: Any = numpyro.sample("m", dist.Beta(2.0, 2.0))
    k: Any = numpyro.sample("k", dist.Exponential(0.1))
    with numpyro.plate("rows", y.shape[0]):
        found = dist.BetaBinomial(m * k, (1.0 - m) * k, total)
        numpyro.sample("y", found, obs=y)


@pytest.mark.optimized
def test_rows_together_have_the_gradients_that_each_has_alone() -> None:
    """XLA 0.10 works out a maximum's operands anew, so that they differ from it."""
    total, y = np.full(1500, 20, np.int32), np.arange(1500, dtype=np.int32) % 21
    model = nv.private(shares, unit="rows")
    graph = build_graph(model, bind_arguments(model, (total, y), {}))
    found = engine_of_graph(graph).compiled.row_gradients
    tree = ({"k": jnp.float32(2.0), "m": jnp.float32(1.0)}, {})
    units = jnp.array([[0.05, 0.01], [0.0, 0.2]])
    at = Shared(tree, jnp.zeros((1, 2)), threefry_key(0), units)
    rows = {"total": total, "y": y}
    together = jax.jit(over_rows(found.of_row))(at, rows).leaves
    for number in range(21):
        alone = found.of_row(at, {n: of[number] for n, of in rows.items()}).leaves
        for leaf, gradient in together.items():
            same = gradient[number::21]
            np.testing.assert_allclose(same, alone[leaf], atol=1e-5)


def in_loop(w: Any, x: Any, y: Any) -> Any:
    def step(total: Any, factor: Any) -> Any:
        return total + jnp.max(y + w * factor), None

    return jax.lax.scan(step, 0.0, x)[0]


def by_segment(w: Any, x: Any, y: Any) -> Any:
    places = jnp.array([0, 0, 1, 1])
    return jax.ops.segment_max(y + w * x, places, 2) @ x[:2]


MAXIMA: dict[str, Any] = {
    "max": lambda w, x, y: jnp.max(y + w * x) * w[0],
    "range": lambda w, x, y: jnp.ptp(y + w * x),
    "loop": in_loop,
    "segments": by_segment,
    "checkpoint": jax.checkpoint(lambda w, x, y: jnp.max(y + w * x)),
}


@pytest.mark.optimized
@pytest.mark.quick_with("max", "loop")
@pytest.mark.parametrize("name", MAXIMA)
def test_rows_have_the_gradients_of_maxima_of_their_numbers(name: str) -> None:
    """A third of them was zero, or lacked a part."""
    function, w = MAXIMA[name], np.array([-0.13, 0.77, 1.3, -2.1], np.float32)

    def of_rows(x: Any, y: Any) -> None:
        w: Any = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
        with numpyro.plate("rows", len(y)):
            numpyro.factor("f", jax.vmap(function, (None, 0, 0))(w, x, y))

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 4)), rng.normal(size=64)
    rows = {"x": x.astype(np.float32), "y": y.astype(np.float32)}
    model = nv.private(of_rows, unit="rows")
    graph = build_graph(model, bind_arguments(model, tuple(rows.values()), {}))
    found = engine_of_graph(graph, has_norms=True).compiled.row_gradients

    @jax.jit
    def total(scaled: Any, rows: Any, mask: Any) -> Any:
        # As the guide does, which makes its draws in the same program.
        at = Shared(({"w": 0.125 * scaled}, {}), jnp.zeros((1, 2)), threefry_key(0))
        return found.bounded_sum(at, rows, mask, {"loc": 1.0}, math.inf)["loc"]

    for number in range(64):
        expected = jax.grad(function)(w, rows["x"][number], rows["y"][number])
        mine = total(8 * w, rows, np.arange(64) == number)
        np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)


def hinge(x: Any, y: Any) -> None:
    """Rows pay for being above w x, and in b for being on one side of zero."""
    w: Any = numpyro.sample("w", dist.Normal(0.0, 1.0))
    b: Any = numpyro.sample("b", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(x)):
        loss = jnp.maximum(0.0, y - w * x) * x
        numpyro.factor("loss", b * jnp.where(w * x > 0.0, 1.0, 0.0) - loss)


@pytest.mark.optimized
def test_rows_that_cancel_have_one_gradient_for_the_norm_and_for_the_sum() -> None:
    """Where w x is rounded before it is taken off y, the gradient is zero, and else it
    is up to 10²³. XLA 0.10 did one for the norm and the other for the sum."""
    rng, count, w = np.random.default_rng(0), 256, np.float32(-0.13)
    x = np.exp(rng.uniform(np.log(1e2), np.log(1e12), count)).astype(np.float32)
    rows = {"x": x, "y": w * x}
    model = nv.private(hinge, unit="rows")
    graph = build_graph(model, bind_arguments(model, tuple(rows.values()), {}))
    gradient = engine_of_graph(graph, has_norms=True).compiled.row_gradients

    @jax.jit
    def total(loc: Any, rows: Any, mask: Any) -> Any:
        # As the guide does, which makes its draws in the same program.
        tree = ({"b": jnp.float32(0.1), "w": 0.125 * loc}, {})
        at = Shared(tree, jnp.zeros((1, 2)), threefry_key(0))
        return gradient.bounded_sum(at, rows, mask, {"loc": 1.0}, 1.0)["loc"]

    for number in range(count):
        found = total(8 * w, rows, np.arange(count) == number)
        assert np.linalg.norm(found) <= 1.0


@pytest.mark.optimized
@pytest.mark.parametrize("has_units", [False, True])
def test_all_that_rows_add_is_in_memory_before_it_is_read(has_units: bool) -> None:
    row_gradients, shared = gradients()
    if has_units:
        released = [ReleasedLeaves(Block(name="w", shape=(4,)), (0, 1))]
        program = row_gradients._closed  # pyright: ignore[reportPrivateUsage]
        row_gradients = RowGradients(program, released, num_particles=1)
        shared = shared._replace(units=jnp.eye(4))
    # As many as are worked on together: others are filled up, in memory too.
    rows = {name: np.resize(of, (64, *of.shape[1:])) for name, of in ROWS.items()}
    scales = {"w": 1.0} if has_units else {"w": 1.0, "b": 1.0}
    total = jax.jit(row_gradients.bounded_sum)
    lowered = total.lower(shared, rows, np.ones(64, bool), scales, 1.0)
    assert not reads_without_memory(lowered.compile(), "rows")
