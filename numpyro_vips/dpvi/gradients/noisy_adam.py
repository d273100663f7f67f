"""Adam for noisy gradients: one second moment per site, and a bounded update.

Adam divides every coordinate by its own root mean square. Private noise is alike in
all coordinates of a release, so that in a coordinate without signal Adam makes steps as
long as in one that is all signal. Here all coordinates of a site share one root mean
square; noise then moves a coordinate no further than it deserves. A coordinate far
above that average is held to one learning rate per step, as in Adam.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from numpyro_vips import _validate

# Public choices, made once on public data with rows of L2 norm 1 and not tuned since.
LEARNING_RATE = 0.2
# Of parameters without a prior, such as the weights of a network.
PARAMETER_LEARNING_RATE = 0.02
CONSTANT_STEPS = 200
FIRST_DECAY = 0.9
SECOND_DECAY = 0.99


class NoisyAdamState(NamedTuple):
    """Moments of the gradient; those in `second` are equal within a site."""

    steps: Int[Array, ""]
    first: Any
    second: Any


def noisy_adam(
    sizes: Sequence[int] | None = None,
    *,
    learning_rate: float = LEARNING_RATE,
    constant_steps: int = CONSTANT_STEPS,
) -> optax.GradientTransformation:
    """An optax optimiser for arrays made up of sites along their leading axis.

    Args:
      sizes: Number of coordinates of each site, in order. Every array that is
        optimised consists of these. By default every array is one site.
      learning_rate: Largest move of a coordinate in a step, while the rate is constant.
      constant_steps: After so many steps the rate falls like 1/t, which needs no
        horizon: short runs, private ones, keep their pace and long runs converge.
    """
    _validate.positive(learning_rate=learning_rate)
    _validate.positive_integer(constant_steps=constant_steps)
    site_of = np.repeat(np.arange(len(sizes or ())), sizes or ())

    def site_mean(values: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        if sizes is None:
            return jnp.full_like(values, jnp.mean(values))
        # Of no global there is no coordinate.
        per_coordinate = values.reshape(len(site_of), math.prod(values.shape[1:]))
        per_coordinate = per_coordinate.mean(1)
        sums = jax.ops.segment_sum(per_coordinate, site_of, num_segments=len(sizes))
        means = (sums / np.asarray(sizes, values.dtype))[site_of]
        return jnp.broadcast_to(
            means.reshape(-1, *(1,) * (values.ndim - 1)), values.shape
        )

    def init(params: Any) -> NoisyAdamState:
        zeros = jax.tree.map(
            lambda x: jax.device_put(np.zeros(x.shape, x.dtype)), params
        )
        return NoisyAdamState(jax.device_put(np.zeros((), np.int32)), zeros, zeros)

    def update(
        updates: Any, state: Any, params: Any = None
    ) -> tuple[Any, NoisyAdamState]:
        """One step: the moves, and the next state, as optax has them."""
        gradient = updates  # The name that optax gives its argument.
        steps = state.steps + 1
        first = jax.tree.map(
            lambda m, g: FIRST_DECAY * m + (1 - FIRST_DECAY) * g, state.first, gradient
        )
        second = jax.tree.map(
            lambda v, g: SECOND_DECAY * v + (1 - SECOND_DECAY) * site_mean(g**2),
            state.second,
            gradient,
        )
        rate = learning_rate * jnp.minimum(1.0, constant_steps / steps.astype(float))

        def step(
            m: Float[Array, "*shape"], v: Float[Array, "*shape"]
        ) -> Float[Array, "*shape"]:
            # Both averages start at zero; dividing makes up for it.
            m = m / (1 - FIRST_DECAY ** steps.astype(m.dtype))
            v = v / (1 - SECOND_DECAY ** steps.astype(v.dtype))
            relative = m / jnp.where(v > 0, jnp.sqrt(v), 1.0)
            return -rate.astype(m.dtype) * jnp.clip(relative, -1.0, 1.0)

        moves = jax.tree.map(step, first, second)
        return moves, NoisyAdamState(steps, first, second)

    return optax.GradientTransformation(init, update)


def default_optimizer(sizes: Sequence[int], rank: int) -> optax.GradientTransformation:
    """`noisy_adam` for what DPVI fits, at a rate for every kind of array.

    The columns of a covariance's factor act together, so each gets a share of the rate.

    Args:
      sizes: Number of unconstrained coordinates of every global.
      rank: Columns of the automatic guide's factor.
    """
    kinds: dict[Any, optax.GradientTransformation] = {
        "coordinate": noisy_adam(sizes),
        "factor": noisy_adam(sizes, learning_rate=LEARNING_RATE / max(1, rank)),
        "param": noisy_adam(learning_rate=PARAMETER_LEARNING_RATE),
    }

    def labels(variational: Any) -> Any:
        arrays = {
            name: "factor" if name == "factor" else "coordinate"
            for name in variational.guide
        }
        params = jax.tree.map(lambda _: "param", variational.params)
        return variational._replace(guide=arrays, params=params)

    return optax.multi_transform(kinds, labels)
