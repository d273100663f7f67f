"""Updates of a row's latents against plain loops."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from numpyro_vips.vips.e_step.element_updates import one_by_one


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("states", [2, 3])
@pytest.mark.parametrize("possible", [True, False])
def test_elements_that_act_on_each_other_are_updated_in_turn(
    states: int, possible: bool
) -> None:
    count, rng = 4, np.random.default_rng(0)
    alone = rng.normal(size=(count, states))
    pairs = rng.normal(size=(count, states, count, states))
    if not possible:
        alone[1, 0] = alone[2, states - 1] = -np.inf
    start = rng.dirichlet(np.ones(states), size=count)

    expected = start.copy()
    for i in range(count):
        natural = alone[i] + np.einsum("ss->s", pairs[i, :, i])
        for j in set(range(count)) - {i}:
            natural += (pairs[i, :, j] + pairs[j, :, i].T) @ expected[j]
        expected[i] = special.softmax(natural)

    def value(mine: Mapping[str, jax.Array]) -> jax.Array:
        return jnp.vdot(alone, mine["is"]) + jnp.vdot(pairs, mine["pairs"])

    found = jax.jit(lambda start: one_by_one(value, start))(start)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
