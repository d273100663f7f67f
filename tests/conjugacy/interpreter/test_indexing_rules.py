"""Gathers and updates keep their values, wherever their positions come from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _programs import Program, Refused, check_reason, check_value
from jax.nn import one_hot, sigmoid
from numpyro.ops.indexing import Vindex


def window(
    array: jax.Array, start: tuple[int, ...], sizes: tuple[int, ...]
) -> jax.Array:
    axes = tuple(range(len(sizes)))
    numbers = jax.lax.GatherDimensionNumbers(axes, (), axes)
    return jax.lax.gather(array, jnp.asarray(start), numbers, sizes)


INSIDE: dict[str, Program] = {
    "gather of a sigmoid": lambda v: sigmoid(v.w)[v.i],
    "gather by data": lambda v: v.w[v.i],
    "gather of rows": lambda v: v.beta[v.i],
    "gather of an element": lambda v: v.beta[v.i, v.i],
    "take": lambda v: jnp.take(v.w, v.i),
    "take along an axis": lambda v: jnp.take_along_axis(v.beta[:, :], v.i[:3, None], 1),
    "one-hot of data": lambda v: one_hot(v.i, 3) @ v.w,
    "gather with slopes": lambda v: v.w[v.i] * v.X[:, 0] + v.tau[v.i],
    "inverse root at data": lambda v: 1 / jnp.sqrt(v.tau[v.i]),
    "gather by a latent": lambda v: v.w[v.z],
    "gather of rows by a latent": lambda v: v.beta[v.z],
    "gather by a scalar latent": lambda v: v.beta[v.s],
    "gather by a latent and data": lambda v: v.beta[v.z[:5], v.i],
    "Vindex": lambda v: Vindex(v.beta)[v.z, :] * v.R[0, 0],
    "Vindex with constants": lambda v: Vindex(v.beta)[v.z, np.arange(5)[:, None]],
    "inverse root at a latent": lambda v: 1 / jnp.sqrt(v.tau[v.z]),
    "square at a latent": lambda v: (v.w[v.z] - 1.0) ** 2,
    "log at a latent": lambda v: jnp.log(v.beta[v.z]),
    "one-hot of a latent": lambda v: one_hot(v.z, 3) @ v.w,
    "index arithmetic": lambda v: v.beta[0][(v.z + 1) % 3],
    "two latents": lambda v: v.w[v.z] * v.b,
    # As JAX 0.9 writes a slice.
    "window by a gather": lambda v: window(v.W, (1, 0), (2, 2)),
    "loop over columns": lambda v: sum(v.X[:, k] * v.w[k] for k in range(3)),
    "gather inside exp": lambda v: jnp.exp(v.w)[v.i],
    "gather with a batch": lambda v: jax.vmap(jnp.take)(v.beta, v.i[:3]),
    "dynamic slice": lambda v: jax.lax.dynamic_slice(v.W, (1, 0), (2, 2)),
    "dynamic slice past the end": lambda v: jax.lax.dynamic_slice(v.w, (9,), (2,)),
    "dynamic index by data": lambda v: jax.lax.dynamic_index_in_dim(v.W, v.i[0]),
    "update of an entry": lambda v: v.w.at[1].set(v.a),
    "update of a row": lambda v: v.W.at[2].set(v.w[:2] * 3.0),
    "update that adds": lambda v: v.W.at[1:3, 1].add(v.a),
    "update that multiplies": lambda v: v.tau.at[jnp.array([0, 2])].multiply(v.p[:2]),
    "update of constants": lambda v: jnp.ones(4).at[1:].set(v.w),
    "update of all entries": lambda v: jnp.zeros(3).at[jnp.array([2, 0, 1])].set(v.tau),
    "root of an update": lambda v: jnp.sqrt(v.tau.at[0].set(v.p[0])),
}

OUTSIDE: dict[str, Refused] = {
    "gather at a continuous index": (
        lambda v: v.beta[0][v.tau.astype(int)],
        "tau",
        "",
    ),
    "dynamic slice at data": (
        lambda v: jax.lax.dynamic_slice(v.W, (v.i[0], 0), (2, 2)),
        "W",
        "a slice that starts",
    ),
    "window at data": (
        lambda v: window(v.W, (v.i[0], 0), (2, 2)),
        "W",
        "a gather of part of an axis",
    ),
    "update at data": (
        lambda v: v.w.at[v.i[0]].set(v.a),
        "w",
        "an update at an index that is not public",
    ),
    "two updates of one entry": (
        lambda v: v.w.at[jnp.array([1, 1])].add(v.tau[:2]),
        "w",
        "several updates of one entry",
    ),
}


@pytest.mark.quick_with("gather by*", "*update*")
@pytest.mark.parametrize("public", [True, False], ids=["public", "private"])
@pytest.mark.parametrize("name", INSIDE)
def test_a_program_keeps_its_value(name: str, public: bool) -> None:
    check_value(INSIDE[name], public=public)


@pytest.mark.thorough
@pytest.mark.parametrize("name", OUTSIDE)
def test_what_is_outside_the_algebra_says_why(name: str) -> None:
    check_reason(OUTSIDE[name])
