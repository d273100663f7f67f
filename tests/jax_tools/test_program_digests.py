"""Digests of programs and arrays."""

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.jax_tools.program_digests import digest_of_arrays, digest_of_programs

X = np.arange(6.0, dtype=np.float32)
TABLE = np.array([0.1, 0.2, 0.3], np.float32)


def digest(function: Any, **arrays: Any) -> str:
    return digest_of_programs([jax.make_jaxpr(function)(X)], arrays)


def looped(table: Any) -> Any:
    """The table is a constant of a program inside of a loop."""
    return lambda x: jax.lax.fori_loop(
        0, 3, lambda i, c: c + jnp.asarray(table)[i] * x.sum(), 0.0
    )


@jax.custom_jvp
def doubled(x: Any) -> Any:
    return 2.0 * x


doubled.defjvp(lambda primals, tangents: (doubled(*primals), 2.0 * tangents[0]))


OTHER_TABLE = np.nextafter(TABLE, np.float32(1.0))
PAIRS = {
    "a number": (lambda x: x * 0.1, lambda x: x * np.float32(0.10000001)),
    "an array": (lambda x: x[:3] * TABLE, lambda x: x[:3] * OTHER_TABLE),
    "an array in a loop": (looped(TABLE), looped(OTHER_TABLE)),
    "an operation": (jnp.sin, jnp.cos),
    "an operation in a branch": (
        lambda x: jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x),
        lambda x: jax.lax.cond(x[0] > 0, jnp.sin, jnp.tan, x),
    ),
}


@pytest.mark.parametrize("what", PAIRS)
def test_programs_that_differ_have_other_digests(what: str) -> None:
    one, other = map(digest, PAIRS[what])
    assert one != other


def test_arrays_that_programs_are_given_count() -> None:
    found = {
        digest(jnp.sin),
        digest(jnp.sin, table=TABLE),
        digest(jnp.sin, other=TABLE),
        digest(jnp.sin, table=OTHER_TABLE),
        digest(jnp.sin, table=TABLE.astype(np.float64)),
        digest(jnp.sin, key=jax.random.key(0)),
        digest(jnp.sin, key=jax.random.key(1)),
    }
    assert len(found) == 7
    assert digest_of_arrays([X, TABLE]) != digest_of_arrays([TABLE, X])
    assert digest_of_arrays([X]) != digest_of_arrays([X.reshape(2, 3)])
    assert digest_of_arrays([X]) == digest_of_arrays([jnp.asarray(X)])


@pytest.mark.thorough
def test_where_functions_lie_in_memory_does_not_count() -> None:
    program = """
import sys; sys.path.insert(0, "tests/jax_tools")
padding = [object() for _ in range(int(sys.argv[1]))]
from test_program_digests import digest, doubled, looped, TABLE
print(digest(doubled), digest(looped(TABLE)))
"""
    found = {
        subprocess.run(
            [sys.executable, "-c", program, str(size)],
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for size in (1, 100_000)
    }
    assert found == {f"{digest(doubled)} {digest(looped(TABLE))}\n"}
