from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.jax_tools.compiling_ahead import compiled_by, jit_ahead

COMPILATION = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compiled(monkeypatch):
    """Names of the programs that were compiled since."""
    names = []

    def listen(event, duration_secs, **facts):
        if event == COMPILATION:
            names.append(facts["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


def powers(x, count):
    return {"powers": [x**i for i in range(count)], "sum": jnp.sum(x)}


def test_a_program_is_compiled_once_and_not_run_before_its_call(compiled):
    traced = []

    def function(x, count):
        traced.append(count)
        jax.debug.callback(lambda value: ran.append(float(value)), jnp.sum(x))
        return powers(x, count)

    ran: list[float] = []
    program = jit_ahead(function, static_argnums=1)
    x = np.arange(3, dtype=np.float32)
    with ThreadPoolExecutor(2) as pool:
        with compiled_by(pool):
            zeros = program(x, 3)
        found = program(x, 3)
    jax.effects_barrier()
    assert traced == [3] and ran == [3.0]
    assert compiled.count("jit(function)") == 1
    assert jax.tree.structure(zeros) == jax.tree.structure(found)
    for zero, value, expected in zip(
        *map(jax.tree.leaves, (zeros, found, powers(x, 3))), strict=True
    ):
        assert (zero.shape, zero.dtype) == (value.shape, value.dtype)
        assert not np.any(zero)
        np.testing.assert_allclose(value, expected)


def test_programs_run_after_the_context_also_when_it_fails():
    program = jit_ahead(powers, static_argnums=1)
    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyError), compiled_by(pool):
        raise KeyError
    assert float(program(np.ones(2), 1)["sum"]) == 2.0


def test_an_executor_that_fails_does_no_harm():
    class Failing(ThreadPoolExecutor):
        def submit(self, *args, **kwargs):
            return super().submit(lambda: 1 / 0)

    program = jit_ahead(powers, static_argnums=1)
    with Failing(1) as pool:
        with compiled_by(pool):
            program(np.ones(2), 1)
        assert float(program(np.ones(2), 1)["sum"]) == 2.0


def test_a_program_may_return_keys():
    program = jit_ahead(jax.random.split)
    key = jax.random.key(3)
    with ThreadPoolExecutor(1) as pool:
        with compiled_by(pool):
            ahead = program(key)
        found = program(key)
    assert (ahead.shape, ahead.dtype) == (found.shape, found.dtype)
    assert jnp.array_equal(found, jax.random.split(key))
