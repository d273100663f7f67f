"""Loops of a row end by themselves, whatever other rows do."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from _watched_sums import watched_sums
from jax import lax

from numpyro_vips.jax_tools.separate_rows import _may_be_rounded_twice, over_rows

pytestmark = pytest.mark.optimized
COUNT = 63


def turning(row: Any) -> Any:
    """Turns a point until it is on the other side of an edge, a few times at most."""
    a, b, c, d, edge, most = (row[place] for place in range(6))

    def goes_on(state: Any) -> Any:
        x, y, turns = state
        return (x * a + y * b > edge) & (turns < most)

    def turned(state: Any) -> Any:
        x, y, turns = state
        return (x * a + y * b) * c - y * d, y * (c + x * a + y * b) + x * d, turns + 1

    start = a * b + c * d, a * d - b * c, jnp.zeros_like(a)
    return lax.while_loop(goes_on, turned, start)[0]


SLOW = np.array([1, 1, 1, 0, -99, 9], np.float32)


def row_on_the_edge() -> np.ndarray:
    """A row that by JAX's own loop takes a turn more beside `SLOW` than without it."""
    rng, mapped = np.random.default_rng(0), jax.jit(jax.vmap(turning))
    for _ in range(2000):
        row = rng.normal(size=6).astype(np.float32)
        a, b, c, d = row[:4]
        row[4:] = (a * b + c * d) * a + (a * d - b * c) * b, 1.0
        row[4] += rng.integers(-2, 3) * np.spacing(np.abs(row[4]))
        rows = np.tile(row, (COUNT + 1, 1))
        if mapped(rows)[1] != mapped(np.concatenate([SLOW[None], rows[1:]]))[1]:
            return row
    pytest.skip("XLA rounds both answers alike, on this machine.")


def test_a_row_takes_as_many_turns_beside_a_slow_one() -> None:
    rows = np.tile(row_on_the_edge(), (COUNT + 1, 1))
    mapped = jax.jit(over_rows(lambda _, row: turning(row)))
    beside = mapped((), np.concatenate([SLOW[None], rows[1:]]))
    np.testing.assert_array_equal(beside[1:], mapped((), rows)[1:])


@pytest.mark.usefixtures("without_remarks")
@pytest.mark.parametrize("engine", ["vips", "dpvi"])
def test_a_slow_row_moves_a_sum_by_its_own_part_alone(engine: str) -> None:
    """It moved a sum by more than a hundred times the sensitivity."""
    row = row_on_the_edge()
    rows = np.tile(row, (COUNT, 1))
    beside = np.concatenate([SLOW[None], rows])
    ends = [float(jax.jit(jax.vmap(turning))(given)[-1]) for given in (rows, beside)]
    middle = np.float32(np.mean(ends))

    def model(X: Any) -> None:
        mean: Any = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        end = jax.vmap(turning)(X)
        with numpyro.plate("rows", len(X)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=1e9 * (end - middle))

    def sums(X: np.ndarray) -> list[tuple[float, Any]]:
        options: dict[str, Any] = {"num_steps": 1, "clipping_norm": 0.5}
        options |= {"diagnostics": False, "num_rows": COUNT + 1}
        with watched_sums() as found:
            vi_of(model, engine=engine, **options).run(jax.random.key(0), X)
        return found

    for (bound, first), (_, second) in zip(sums(rows), sums(beside), strict=True):
        moved = [np.sum((first[name] - second[name]) ** 2) for name in first]
        assert np.sqrt(sum(moved)) <= bound


def test_loops_that_compare_what_they_carry_are_left_alone() -> None:
    def is_rounded(asked: Any) -> bool:
        def loop(x: Any, y: Any) -> Any:
            return lax.while_loop(asked, lambda s: (s[0] * y, s[1] + 1), (x, 0))

        equations = jax.make_jaxpr(loop)(1.0, 2.0).eqns
        (found,) = (e for e in equations if e.primitive.name == "while")
        return _may_be_rounded_twice(found)

    assert not is_rounded(lambda state: (state[0] > 1.0) & (state[1] < 9))
    assert is_rounded(lambda state: state[0] * 3.0 + state[0] ** 2 > 1.0)


@pytest.mark.parametrize("is_mapped", [False, True])
def test_loops_end_where_those_of_jax_do(is_mapped: bool) -> None:
    def until(row: Any) -> Any:
        def goes_on(state: Any) -> Any:
            return jnp.vdot(state[0], row) > 0.5

        def turned(state: Any) -> Any:
            total, turns, key = state
            key = jax.random.fold_in(key, turns)
            return total * 0.7, turns + 1, key

        return lax.while_loop(goes_on, turned, (row, 0, jax.random.key(1)))[:2]

    each = jax.vmap(until) if is_mapped else until
    rows = np.random.default_rng(0).normal(size=(8, 4, 5)[not is_mapped :])
    rows = rows.astype(np.float32)
    found = jax.jit(over_rows(lambda _, row: each(row)))((), rows)
    for mine, expected in zip(found, jax.vmap(each)(rows), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-6)
