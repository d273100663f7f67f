"""What a caller has JAX refuse, or check, is for the caller's own code."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _jax_settings import CHOSEN

from numpyro_vips.jax_tools.usual_settings import usual_settings

NAMES = (
    *("jax_numpy_rank_promotion", "jax_numpy_dtype_promotion", "jax_disable_jit"),
    *("jax_debug_nans", "jax_debug_infs", "jax_check_tracer_leaks"),
    "jax_transfer_guard",
)


def values() -> dict[str, Any]:
    return {name: getattr(jax.config, name) for name in NAMES}


def test_settings_are_the_usual_ones_within_and_the_callers_afterwards() -> None:
    with usual_settings():
        usual = values()
    for setting in CHOSEN.values():
        with setting():
            callers = values()
            assert callers != usual
            with usual_settings():
                assert values() == usual
            assert values() == callers


def test_precision_stays_the_callers() -> None:
    for is_double in (False, True):
        with jax.enable_x64(is_double), usual_settings():
            assert (jnp.ones(1).dtype == np.float64) == is_double
