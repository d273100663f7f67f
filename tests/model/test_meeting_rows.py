"""Where rows meet in a program, as far as messages tell."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.jax_tools.jaxprs import without_dead_code
from numpyro_vips.model.meeting_rows import first_meeting, in_rows


def meeting(function, shape=(3,)):
    programs = (
        jax.make_jaxpr(function)(jax.ShapeDtypeStruct((count, *shape), np.float32))
        for count in (2, 3)
    )
    return first_meeting(*map(without_dead_code, programs))


def scanned(x):
    return jax.lax.scan(lambda total, row: (total + row.sum(),) * 2, 0.0, x)[1]


MEETINGS = {
    "mean": (lambda x: x - x.mean(0), "all"),
    "standard deviation": (lambda x: x / x.std(0), "all"),
    "Gram matrix of columns": (lambda x: x @ jnp.linalg.inv(x.T @ x), "all"),
    "totals by group": (
        lambda x: jax.ops.segment_sum(x[:, 0], x[:, 1].astype(int), 4)[0],
        "all",
    ),
    "cumulative sum": (lambda x: jnp.cumsum(x, 0), "order"),
    "cumulative logsumexp": (lambda x: jax.lax.cumlogsumexp(x), "order"),
    "order": (lambda x: x[jnp.argsort(x[:, 0])], "order"),
    "loop": (scanned, "order"),
    "in a compiled function": (jax.jit(lambda x: 2 * jnp.sort(x, 0)), "order"),
    "risk sets": (lambda x: (x[:, :1] <= x[:, 0]).sum(1), "pairs"),
    "Gram matrix of rows": (lambda x: (x @ x.T) @ x, "pairs"),
    "first row": (lambda x: x - x[0], "others"),
    "row before": (lambda x: jnp.concatenate([x[:1], x[:-1]]), "others"),
    "reversed": (lambda x: x[::-1], "others"),
    "rolled": (lambda x: jnp.roll(x, 1, 0), "others"),
    "row by index": (lambda x: x[x[:, 0].astype(int)], "others"),
    "number of rows": (lambda x: x / x.shape[0], "number"),
}

# What a function does within rows, however it is written.
WITHIN = (
    lambda x: x - x.mean(-1, keepdims=True),
    lambda x: jnp.cumsum(x, -1),
    lambda x: jnp.sort(x, -1)[:, ::-1],
    lambda x: jnp.concatenate([x, x[:, :1]], -1),
    lambda x: x @ jnp.ones((3, 2)),
    lambda x: jnp.arange(4.0)[x[:, 0].astype(int)],
    lambda x: jnp.linalg.cholesky(x[:, :, None] * x[:, None] + jnp.eye(3)),
    lambda x: jax.lax.scan(lambda c, y: (c + y,) * 2, jnp.zeros(x.shape[0]), x.T)[1].T,
    lambda x: jax.lax.map(jnp.sin, x.T).T,
)


@pytest.mark.parametrize("name", MEETINGS)
def test_the_kind_and_the_line_of_a_meeting(name: str) -> None:
    function, kind = MEETINGS[name]
    found = meeting(function)
    assert found is not None and found.kind == kind
    assert found.where.startswith(", in line ")
    assert " of test_meeting_rows.py" in found.where


@pytest.mark.parametrize("function", WITHIN)
def test_what_a_row_does_by_itself_is_no_meeting(function) -> None:
    assert meeting(function) is None


def test_the_line_is_that_of_this_call_of_a_function_that_jax_has_met() -> None:
    """JAX keeps the program of an earlier call, with the lines of that."""
    jnp.median(np.ones((5, 3), np.float32), 0)
    for count in (2, 3):
        jax.make_jaxpr(lambda x: jnp.median(x, 0))(np.ones((count, 3), np.float32))
    found = meeting(lambda x: x - jnp.median(x, 0))  # This one.
    assert found is not None and found.where.endswith("# This one.`")


def test_the_first_of_several_is_told() -> None:
    found = meeting(lambda x: jnp.cumsum(x - x.mean(0), 0))
    assert found is not None and found.kind == "all"
    assert "zero will do if the model has an intercept" in found.advice


@pytest.mark.parametrize(
    ("two", "three", "text"),
    [
        ((), (), "()"),
        ((2,), (3,), "(N,)"),
        ((2, 1), (3, 1), "(N, 1)"),
        ((2, 2), (3, 3), "(N, N)"),
        ((1, 4), (2, 4), "(N - 1, 4)"),
        ((3,), (4,), "(N + 1,)"),
        ((6,), (9,), "(3 N,)"),
    ],
)
def test_shapes_are_told_in_the_number_of_rows(two, three, text) -> None:
    assert in_rows(two, three) == text
