"""Numbers that XLA works out once."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.jax_tools.materialized import materialized
from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.jax_tools.row_sums import counts_in_bins, increasing_edges

pytestmark = pytest.mark.optimized


def places_of(operation: str, function: Any, *arguments: Any) -> int:
    """In how many computations of the compiled program an operation stands."""
    compiled = jax.jit(function).lower(*arguments).compile().as_text()
    assert compiled is not None
    return len(re.findall(rf" {operation}\(", compiled))


def residual(w: Any, x: Any, y: Any) -> Any:
    return y - w * x


def clipped(w: Any, x: Any, y: Any, *, once: bool) -> Any:
    """A sum of pairs, each divided by its length if that is above 1."""
    found = (residual(w, x, y), x)
    if once:  # JAX's own barrier does it since JAX 0.12 only.
        found = materialized(found)
    lengths = jnp.sqrt(found[0] ** 2 + found[1] ** 2)
    return [jnp.sum(of / jnp.maximum(lengths, 1.0), axis=0) for of in found]


@pytest.mark.parametrize("shape", [(640,), (64, 3), (1,)])
def test_what_is_read_twice_is_worked_out_once(shape: tuple[int, ...]) -> None:
    x = jnp.ones(shape)

    def both(once: bool) -> int:
        return places_of(
            "subtract", lambda w, x, y: clipped(w, x, y, once=once), 1.1, x, x
        )

    assert both(once=True) == 1
    # If this fails XLA has become better, or the test worse.
    if shape == (640,):
        assert both(once=False) > 1


def test_norms_are_worked_out_once_for_all_bins() -> None:
    with double_precision():
        edges = increasing_edges(np.arange(1.0, 9.0))
        x, mask = jnp.ones(640), jnp.ones(640, bool)

        def counts(w: Any, x: Any, y: Any) -> Any:
            return counts_in_bins(residual(w, x, y), mask, edges)

        assert places_of("subtract", counts, 1.1, x, x) == 1


@pytest.mark.parametrize("run", [lambda function: function, jax.jit])
def test_numbers_stay_as_they_are(run: Any) -> None:
    rng = np.random.default_rng(0)
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 3e38, 1e-45], np.float32)
    trees: list[Any] = [
        {"a": special, "b": (rng.integers(-9, 9, (2, 3)), np.array([True, False]))},
        [np.zeros((0, 3)), np.float32(2.5)],
        *({"first": np.array([number, 7], np.int32)} for number in range(-5, 5)),
        *(np.asarray(x, np.float32) for x in (*special, *rng.normal(size=9) * 1e5)),
        np.array([2**31, 3], np.uint32),
        {},
        np.zeros((3, 0)),
    ]
    for tree in trees:
        found = run(materialized)(tree)
        assert jax.tree.structure(found) == jax.tree.structure(tree)
        for mine, given in zip(
            jax.tree.leaves(found), jax.tree.leaves(tree), strict=True
        ):
            as_given = jnp.asarray(given)
            assert mine.dtype == as_given.dtype
            np.testing.assert_array_equal(mine, as_given)


def test_numbers_of_double_precision_stay_as_they_are() -> None:
    given = np.random.default_rng(0).normal(size=(64, 9)) * 1e200
    with double_precision():
        found = jax.jit(materialized)(given)
    np.testing.assert_array_equal(found, given)


def test_numbers_stay_as_they_are_in_loops_and_under_vmap() -> None:
    given = jnp.asarray(np.random.default_rng(0).normal(size=(8, 5)))
    np.testing.assert_array_equal(jax.vmap(materialized)(given), given)
    np.testing.assert_array_equal(jax.lax.map(materialized, given), given)
