"""What may be done with the unit plate's index, on hand-written programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.jax_tools.plate_index import picks_rows_only

PUBLIC = jnp.arange(9.0)

PROGRAMS = {
    "unused": (lambda rows, index: rows.sum(), True),
    "rows": (lambda rows, index: rows[index] * PUBLIC[:2], True),
    "take": (lambda rows, index: jnp.take(rows, index, axis=0), True),
    "compiled": (lambda rows, index: jax.jit(lambda r, i: r[i])(rows, index), True),
    "one row": (lambda rows, index: rows[index[0]], True),
    "rows picked by rows": (lambda rows, index: rows[rows[index, 0].astype(int)], True),
    "a captured array": (lambda rows, index: rows[index, 0] + PUBLIC[index], False),
    "captured, compiled": (
        lambda rows, index: jax.jit(lambda i: PUBLIC[i])(index),
        False,
    ),
    "captured, one entry": (lambda rows, index: rows + PUBLIC[index[1]], False),
    "a number": (lambda rows, index: rows * index[:, None], False),
    "a comparison": (lambda rows, index: jnp.where(index > 0, 1.0, 2.0), False),
    "in a loop": (
        lambda rows, index: jax.lax.fori_loop(0, 3, lambda k, x: x + index, index),
        False,
    ),
}


@pytest.mark.parametrize("case", PROGRAMS.values(), ids=PROGRAMS)
def test_programs_are_judged(case):
    function, is_fine = case
    program = jax.make_jaxpr(function)(np.ones((3, 2), np.float32), np.arange(3))
    found = picks_rows_only(program, has_rows=[True, False], is_index=[False, True])
    assert found == is_fine
