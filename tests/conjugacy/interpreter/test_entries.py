"""What is done on a row's entries is what would be done on the whole row."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import gammaln

from numpyro_vips.conjugacy.algebra.terms import Origin
from numpyro_vips.conjugacy.interpreter.entries import constant_of
from numpyro_vips.conjugacy.interpreter.interpreter import interpret
from numpyro_vips.conjugacy.interpreter.values import Constant, Value
from numpyro_vips.model.sparse_rows import keep_largest

# Two rows of seven numbers, of which up to three are not zero.
X = np.array([[0, 2, 0, 0, -1, 0, 3], [0, 0, 0.5, 0, 0, 0, 0]], np.float32)
Y = np.array([1.5, -2.0], np.float32)
Program = Callable[[Any, Any], Any]


def run(program: Program) -> tuple[Constant, np.ndarray, Origin]:
    origin = Origin("x")
    sparse = jax.tree.map(jnp.asarray, keep_largest(X, 3))
    inputs: list[Value] = [
        constant_of(sparse, origin),
        Constant(jnp.asarray(Y), is_private=True),
    ]
    closed = jax.make_jaxpr(program)(jnp.asarray(X), jnp.asarray(Y))
    (found,), _ = interpret(closed, inputs)
    assert isinstance(found, Constant)
    return found, np.asarray(program(jnp.asarray(X), jnp.asarray(Y))), origin


# The number is what stands in all places that are no entries.
BY_ENTRIES: dict[str, tuple[Program, float]] = {
    "as it is": (lambda x, y: x, 0.0),
    "a function that is zero at zero": (lambda x, y: jnp.sin(x) * 2.0, 0.0),
    "another": (lambda x, y: jnp.exp(-x) + 1.0, 2.0),
    "a logarithm": (lambda x, y: jnp.log(x + 1.0), 0.0),
    "of two functions of it": (lambda x, y: x * x + gammaln(x + 2.0), 0.0),
    "a comparison": (lambda x, y: jnp.where(x > 0, 1.0, 0.0), 0.0),
    "more axes": (lambda x, y: (x + 3.0)[:, None, :], 3.0),
    "all places of a slice": (lambda x, y: jax.lax.slice(x, (0, 0), (2, 7)), 0.0),
    "fewer axes": (lambda x, y: x[:, None, :].reshape(2, 1, 1, 7)[:, 0, 0], 0.0),
}


@pytest.mark.parametrize("name", BY_ENTRIES)
def test_a_function_is_taken_of_the_entries_and_once_elsewhere(name: str) -> None:
    program, elsewhere = BY_ENTRIES[name]
    found, expected, origin = run(program)
    assert found.entries is not None and origin.densified == []
    np.testing.assert_allclose(found.entries.elsewhere, elsewhere, atol=1e-6)
    np.testing.assert_allclose(found.array, expected, rtol=1e-5, atol=1e-6)
    assert found.entries.values.shape[-1] == 3


REDUCED: dict[str, Program] = {
    "a sum": lambda x, y: (x + 1.0).sum(-1),
    "a sum of all": lambda x, y: (x + 1.0).sum(),
    "the largest": lambda x, y: (x - 1.0).max(-1),
    "the smallest": lambda x, y: (x + 5.0).min(-1),
    "whether all": lambda x, y: jnp.all(x > -2.0, -1),
    "whether any": lambda x, y: jnp.any(x < 0.0, -1),
    "how many": lambda x, y: (x == 0).sum(-1),
}


@pytest.mark.parametrize("name", REDUCED)
def test_what_is_taken_of_all_places_counts_those_without_an_entry(name: str) -> None:
    found, expected, origin = run(REDUCED[name])
    assert found.entries is None and origin.densified == []
    np.testing.assert_allclose(found.array, expected, rtol=1e-6)
    assert found.array.dtype == expected.dtype


DENSE: dict[str, tuple[Program, str]] = {
    "a place": (lambda x, y: x[:, 2], "slice"),
    "beside numbers of rows": (lambda x, y: x * y[:, None], "mul"),
    "in another order": (lambda x, y: x.T, "transpose"),
    "over the other axis": (lambda x, y: x.sum(0), "reduce_sum"),
    "in turn": (lambda x, y: jnp.cumsum(x, -1), "cumsum"),
    "beside known numbers": (lambda x, y: x + jnp.arange(7.0), "add"),
}


@pytest.mark.parametrize("name", DENSE)
def test_what_needs_whole_rows_has_them_and_says_so(name: str) -> None:
    program, operation = DENSE[name]
    found, expected, origin = run(program)
    assert found.entries is None
    assert any(operation in reason for reason in origin.densified), origin.densified
    np.testing.assert_allclose(found.array, expected, rtol=1e-6)
