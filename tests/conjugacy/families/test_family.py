"""What all families share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.conjugacy.families.gamma import Gamma, InverseGamma
from numpyro_vips.conjugacy.families.gaussian import Normal


@pytest.mark.parametrize("family", [Normal(), Gamma(), InverseGamma()])
def test_either_projection_is_the_one_that_was_asked_for(family) -> None:
    rng = np.random.default_rng(7)
    with jax.enable_x64(True):
        shape = (5, 3) if family.event_dim else (5,)
        own = family.neutral(shape)
        data = {s: value + rng.normal(size=value.shape) for s, value in own.items()}
        noise = {s: jnp.full(value.shape, 0.7) for s, value in own.items()}
        nothing = {s: jnp.zeros_like(value) for s, value in own.items()}
        widened = family.project_to_widen(data, noise)
        projected = family.project(nothing, data, noise)
        either = jax.jit(family.project_either)
        for expected, to_widen in ((widened, True), (projected, False)):
            found = either(data, noise, to_widen)
            for s in expected:
                np.testing.assert_allclose(found[s], expected[s], rtol=1e-9, atol=1e-12)
    assert any(not np.allclose(widened[s], projected[s]) for s in widened)
