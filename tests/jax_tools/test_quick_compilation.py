from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.jax_tools import quick_compilation
from numpyro_vips.jax_tools.compiling_ahead import compiled_by
from numpyro_vips.jax_tools.quick_compilation import (
    jit_of_globals,
    jit_of_rows,
    jit_unoptimized,
)


def power(x, number):
    return jnp.linalg.matrix_power(jnp.cos(x), number)


@pytest.mark.parametrize("quick", [jit_unoptimized, jit_of_globals])
def test_values_are_those_of_jit(quick):
    x = np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)
    found = quick(power, static_argnums=1)(x, 3)
    np.testing.assert_allclose(
        found, jax.jit(power, static_argnums=1)(x, 3), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("size, level", [(10, 0), (10_000, None)])
def test_on_few_numbers_what_runs_on_globals_is_not_optimised(size, level, monkeypatch):
    options, jit = [], jax.jit

    def listening(function, *, compiler_options=None, **others):
        options.append(compiler_options)
        return jit(function, **others)

    monkeypatch.setattr(quick_compilation, "_known", dict)
    monkeypatch.setattr(jax, "jit", listening)
    found = jit_of_globals(lambda x: jnp.cos(x))(np.ones(size, np.float32))
    np.testing.assert_allclose(found, np.cos(np.ones(size)), rtol=1e-6)
    (used,) = options
    assert used.get("xla_backend_optimization_level") == level


@pytest.mark.parametrize("num_numbers, are_older", [(10, True), (10**9, False)])
def test_sums_over_few_rows_have_the_older_generators_and_are_optimised(
    num_numbers, are_older, monkeypatch
):
    monkeypatch.setattr(quick_compilation, "_known", dict)
    used, jit = [], jax.jit

    def listening(function, *, compiler_options=None, **others):
        used.append(compiler_options)
        return jit(function, **others)

    monkeypatch.setattr(jax, "jit", listening)
    assert float(jit_of_rows(lambda x: 2 * x, num_numbers)(1.0)) == 2.0
    (options,) = used
    assert (options is not None) == are_older
    if are_older:
        assert options["xla_cpu_use_fusion_emitters"] is False
        assert "xla_backend_optimization_level" not in options


def test_an_option_that_xla_does_not_know_takes_no_other_with_it():
    level = {"xla_backend_optimization_level": 0}
    options = {"xla_no_such_option": False, **level}
    assert quick_compilation._known(options) == level


def test_what_runs_on_globals_is_compiled_ahead_of_its_call():
    traced = []

    def function(x):
        traced.append(x)
        return 2 * x

    program = jit_of_globals(function)
    with ThreadPoolExecutor(1) as pool:
        with compiled_by(pool):
            assert float(program(3.0)) == 0.0
        assert float(program(3.0)) == 6.0
    assert len(traced) == 1


def test_a_function_is_traced_once():
    traces = []

    def function(x):
        traces.append(x)
        return 2 * x

    compiled = jit_unoptimized(function)
    assert [float(compiled(1.0)), float(compiled(2.0))] == [2.0, 4.0]
    assert len(traces) == 1


def test_options_that_this_compiler_does_not_know_are_left_out(monkeypatch):
    options = {"xla_nothing_known": 0}
    monkeypatch.setattr(quick_compilation, "_UNOPTIMIZED", options)
    assert float(jit_unoptimized(lambda x: 2 * x)(1.0)) == 2.0
