"""NumPy functions called from compiled code."""

import concurrent.futures
import functools
import sys
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to

import numpyro_vips as nv
from numpyro_vips import polya_gamma
from numpyro_vips.conjugacy.families.generalized_inverse_gaussian import _GIG
from numpyro_vips.jax_tools.host_calls import (
    call_on_host,
    is_own_callback,
)
from numpyro_vips.jax_tools.jaxprs import equations_of
from numpyro_vips.jax_tools.separate_rows import check_row_program

pytestmark = pytest.mark.optimized


def _sum_and_product(
    x: np.ndarray, y: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
    assert shape == (2, *x.shape)
    return np.stack([x + y, x * y])


@pytest.mark.parametrize("compiled", [False, True], ids=["called", "compiled"])
@pytest.mark.parametrize("double", [False, True], ids=["single", "double"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)])
def test_shapes_and_values_arrive_exactly(shape, double, compiled):
    with jax.enable_x64(double):
        x = jnp.asarray(np.random.default_rng(0).normal(size=shape), float)
        y = x / 3

        def function(x, y):
            return call_on_host(_sum_and_product, (2, *shape), x, y)

        found = jax.jit(function)(x, y) if compiled else function(x, y)
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(found, np.stack([x + y, x * y]))


def test_an_exception_cannot_tell_what_a_row_holds():
    def picky(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        assert shape == ()
        if x < 0:
            raise ValueError(f"Expected a positive number, got {x}.")
        return np.log(x - 1.0)

    rows = jnp.array([2.0, -1.0, 1.0])
    with np.errstate(all="raise"):
        found = jax.jit(jax.vmap(lambda x: call_on_host(picky, (), x)))(rows)
    np.testing.assert_array_equal(found, [0.0, np.nan, -np.inf])
    with pytest.raises(ValueError, match="positive"):
        call_on_host(picky, (), -1.0)


def test_warnings_are_what_they_were_after_calls_from_several_threads():
    """Else none of the rest of the process would be shown, such as of a seed."""

    def draw(number: int) -> None:
        compiled(jax.random.key(number)).block_until_ready()

    compiled = jax.jit(lambda key: nv.PolyaGamma(2.5, 1.0).sample(key, (2_000,)))
    draw(0)
    before, interval = warnings.filters[:], sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(draw, range(200)))
    finally:
        sys.setswitchinterval(interval)
    assert warnings.filters[:] == before


@pytest.mark.parametrize("value", [1.0, 0.0, -1.0, 1e30, np.inf, np.nan])
def test_functions_of_this_package_do_not_warn(value, recwarn):
    number = jnp.float32(value)
    variable = nv.PolyaGamma(number, number, validate_args=False)
    for function in (
        lambda: variable.log_prob(number),
        lambda: variable.sample(jax.random.key(0)),
        lambda: _GIG(number, number, number).sample(jax.random.key(0)),
    ):
        jax.jit(function)()
    assert not recwarn.list


def callback_in(function: Any) -> Any:
    program = jax.make_jaxpr(function)(1.0)
    (equation,) = (
        equation
        for equation in equations_of(program)
        if "callback" in equation.primitive.name
    )
    return equation


def test_functions_of_this_package_are_known():
    draw = nv.PolyaGamma(2.0, 1.0).log_prob
    assert is_own_callback(callback_in(draw))
    function = polya_gamma._log_density
    like = functools.partial(call_on_host, function, ())
    assert is_own_callback(callback_in(lambda x: like(x, x, x)))


class Equal:
    """An object that says it is whatever it is compared with."""

    __module__ = polya_gamma.__name__

    def __init__(self):
        self.function = self.callback_func = self

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(polya_gamma._log_density)

    def __call__(self, x: np.ndarray, **_: Any) -> np.ndarray:
        return x


def spy(x: np.ndarray, shape: tuple[int, ...] = ()) -> np.ndarray:
    return x


wrapper = functools.wraps(polya_gamma._log_density)(spy)


@pytest.mark.parametrize("function", [spy, wrapper, Equal(), functools.partial(spy)])
def test_functions_of_a_model_are_not_called_with_rows(function):
    """A model that imports `call_on_host` may not make Python see single rows."""
    for look in (
        lambda x: call_on_host(function, (), x),
        lambda x: jax.pure_callback(function, jax.ShapeDtypeStruct((), x.dtype), x),
    ):
        assert not is_own_callback(callback_in(look))
        with pytest.raises(nv.UnsafeModelError, match="calls back to Python"):
            check_row_program(jax.make_jaxpr(look)(1.0))
    assert not is_own_callback(callback_in(lambda x: call_on_host(function, (), x)))


def test_functions_of_this_package_are_known_to_take_row_by_row_alone():
    """Given several at once, a row's draw would depend on who is before it."""
    equation = callback_in(nv.PolyaGamma(2.0, 1.0).log_prob)
    for method, is_known in (("sequential", True), ("broadcast_all", False)):
        params = {**equation.params, "vmap_method": method}
        assert is_own_callback(equation.replace(params=params)) == is_known


def test_a_model_that_calls_on_host_is_refused():
    """With nothing charged and no row seen."""
    seen = []

    def noting(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        seen.append(x)
        return x

    @nv.private(unit="rows")
    def model(y: Any) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", len(y)):
            called = jnp.stack([call_on_host(noting, (), each) for each in y])
            numpyro.sample("y", dist.StudentT(4.0, mean, 1.0), obs=called)

    budget = nv.PrivacyBudget(1.0, 1e-5)
    with pytest.raises(nv.UnsafeModelError, match="calls back to Python"):
        fit_to(model, np.full(20, 77.25), budget=budget, engine="dpvi", num_steps=1)
    assert not budget.charges
    assert not any(np.any(x == 77.25) for x in seen)
