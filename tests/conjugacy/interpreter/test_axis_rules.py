"""What moves, merges, cuts or joins axes keeps its value, inside functions too."""

import jax
import jax.numpy as jnp
import pytest
from _programs import Program, Refused, check_reason, check_value
from jax.nn import sigmoid
from jax.scipy.special import logsumexp

INSIDE: dict[str, Program] = {
    "reshape": lambda v: v.W.reshape(2, 4),
    "ravel": lambda v: v.W.ravel(),
    "reshape a product": lambda v: (v.X * v.w).reshape(3, 5),
    "split an axis": lambda v: v.W.reshape(2, 2, 2)[:, 1],
    "transpose": lambda v: jnp.transpose(v.W[:, None, :], (2, 0, 1)),
    "swap and add": lambda v: v.W.T + v.w[:2, None],
    "expand and squeeze": lambda v: jnp.squeeze(v.w[None, :, None], 0),
    "broadcast": lambda v: jnp.broadcast_to(v.w, (2, 3)) * v.R[:2],
    "tile": lambda v: jnp.tile(v.w, 2),
    "repeat": lambda v: jnp.repeat(v.w, 2),
    "slice": lambda v: v.W[1:3, ::-1],
    "strided slice": lambda v: v.W[::2, 0],
    "negative index": lambda v: v.w[-1] + v.W[-2, 1],
    "reverse": lambda v: jnp.flip(v.w),
    "roll": lambda v: jnp.roll(v.w, 1),
    "concatenate": lambda v: jnp.concatenate([v.w, v.a[None], v.tau]),
    "concatenate with constants": lambda v: jnp.concatenate([jnp.ones(2), v.w, v.y]),
    "stack": lambda v: jnp.stack([v.w, 2 * v.tau, v.p], axis=1),
    "intercept column": lambda v: (
        jnp.concatenate([v.X, jnp.ones((5, 1))], 1) @ jnp.append(v.w, v.a)
    ),
    "pad": lambda v: jnp.pad(v.w, (2, 1)),
    "pad with ones, inside too": lambda v: jax.lax.pad(v.tau, 1.0, [(1, 2, 1)]),
    "pad a matrix": lambda v: jnp.pad(v.W, ((0, 0), (1, 0))) * 2.0,
    "diag": lambda v: jnp.diag(v.tau),
    "unstack": lambda v: sum(k * row for k, row in enumerate(jnp.unstack(v.W))),
    "split": lambda v: jnp.split(v.W, [1, 3])[1] * 2.0,
    "unpack": lambda v: v.X[:, 0] * list(v.w)[1],
    "reshape inside exp": lambda v: jnp.exp(v.W).reshape(2, 4).T,
    "slice inside a sigmoid": lambda v: sigmoid(v.W)[1:3, ::-1],
    "split inside exp": lambda v: jnp.split(jnp.exp(v.w), [1])[1],
    "transpose a logsumexp": lambda v: logsumexp(v.W[:, None] * v.tau[:, None], -1).T,
    "concatenate exps": lambda v: jnp.concatenate([jnp.exp(v.w), jnp.ones(2), v.tau]),
    "stack exps": lambda v: jnp.stack([jnp.exp(v.w), v.tau], 1),
    "pad inside exp": lambda v: jnp.pad(jnp.exp(v.w), 1, constant_values=2.0),
    "pad by less than nothing": lambda v: jax.lax.pad(
        v.W, 0.0, [(-1, 2, 0), (1, -1, 1)]
    ),
    "a single entry": lambda v: v.W[1:2, 1:2].reshape(()) * v.w,
}

OUTSIDE: dict[str, Refused] = {
    "log of a padded latent": (lambda v: jnp.log(jnp.pad(v.tau, 1)), "tau", "log"),
    "inverse of a padded latent": (lambda v: 1 / jnp.pad(v.tau, 1), "tau", "power"),
    "padding with a latent": (lambda v: jax.lax.pad(v.w, v.a, [(1, 0, 0)]), "a", "pad"),
    "padding exp with zeros": (lambda v: jnp.pad(jnp.exp(v.W), 1), "W", "exp"),
    "concatenating sigmoids": (
        lambda v: jnp.concatenate([sigmoid(v.w), sigmoid(v.tau)]),
        "w",
        "sigmoid",
    ),
}


@pytest.mark.quick_with("reshape-*", "pad*", "*inside*")
@pytest.mark.parametrize("public", [True, False], ids=["public", "private"])
@pytest.mark.parametrize("name", INSIDE)
def test_a_program_keeps_its_value(name: str, public: bool) -> None:
    check_value(INSIDE[name], public=public)


@pytest.mark.thorough
@pytest.mark.parametrize("name", OUTSIDE)
def test_what_is_outside_the_algebra_says_why(name: str) -> None:
    check_reason(OUTSIDE[name])
