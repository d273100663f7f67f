"""Sums of globals, times numbers of a row, that something else is made of."""

from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.dpvi.linear_predictors import linear_predictors

FREE = {"a": jnp.asarray(0.3), "b": jnp.asarray(0.7)}


def predictor(a: Any, b: Any, x: Any) -> Any:
    return a + b * x


@pytest.mark.parametrize(
    ("density", "expected"),
    [
        (lambda a, b, x: jnp.exp(predictor(a, b, x)), [("ab", "exp")]),
        # An offset and a jump belong to it.
        (
            lambda a, b, x: jnp.tanh(predictor(a, b, x) + jnp.where(x > 0, b, 0.0)),
            [("ab", "tanh")],
        ),
        (lambda a, b, x: -((x - predictor(a, b, x)) ** 2), [("ab", "integer_pow")]),
        # In a product of two globals each is one by itself.
        (lambda a, b, x: x * (a * b), [("a", "mul"), ("b", "mul")]),
        (lambda a, b, x: jnp.exp(a + jnp.sin(b) * x), [("b", "sin"), ("a", "exp")]),
        # A row's own factor belongs to the feature, whatever global it depends on.
        (
            lambda a, b, x: jnp.exp(1 + a * x / (x + jnp.exp(b))),
            [("b", "exp"), ("a", "exp")],
        ),
        (lambda a, b, x: jnp.exp(x - a * x / (x + b)), [("b", "div"), ("a", "exp")]),
        (lambda a, b, x: jnp.exp(a * jnp.exp(-b * x)), [("b", "exp"), ("a", "exp")]),
        # A factor that depends on the same global leaves nothing linear in it.
        (
            lambda a, b, x: jnp.exp(a * jnp.exp(-a * x) + b),
            [("a", "exp"), ("b", "exp")],
        ),
        # What divides all rows alike is none of their own.
        (lambda a, b, x: ((x - a) / jnp.exp(b)) ** 2, [("b", "exp"), ("a", "div")]),
        # What is but added to the density is none.
        (lambda a, b, x: a * x + b, []),
    ],
)
def test_predictors_are_found_with_what_is_made_of_them(
    density: Any, expected: list[tuple[str, str]]
) -> None:
    program = jax.make_jaxpr(lambda free, x: density(free["a"], free["b"], x))(
        FREE, 0.5
    )
    found = linear_predictors(program, FREE).found
    assert [("".join(sorted(f.linear_in)), f.operation) for f in found] == expected


def test_values_are_those_of_the_program_in_the_same_order() -> None:
    program = jax.make_jaxpr(
        lambda free, x: jnp.exp(free["a"] + free["b"] * x) * jnp.sin(free["b"] - x)
    )(FREE, 0.5)
    found = linear_predictors(program, FREE)
    assert [of.operation for of in found.found] == ["exp", "sin"]
    values = jex_core.jaxpr_as_fun(found.program)(*FREE.values(), jnp.asarray(2.0))
    np.testing.assert_allclose(values, [1.7, -1.3], rtol=1e-6)
