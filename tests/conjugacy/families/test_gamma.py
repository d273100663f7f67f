"""What noise leaves of counts and totals, against repetition."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from numpyro_vips.conjugacy.families.gamma import Gamma, InverseGamma

REPETITIONS = 20_000


@pytest.mark.parametrize("family", [Gamma(), InverseGamma()])
def test_gamma_has_the_variance_of_noisy_counts_and_totals(family: Gamma) -> None:
    rng = np.random.default_rng(2)
    count, total, of_count, of_total = 400.0, 100.0, 15.0, 4.0
    logs = np.log(count + of_count * rng.normal(size=REPETITIONS)) - np.log(
        total + of_total * rng.normal(size=REPETITIONS)
    )
    first, log = family.statistics
    sign = 1.0 if log == "log" and first == "x" else -1.0
    share = family.widened(
        {first: jnp.asarray(-total), log: jnp.asarray(sign * count)},
        {first: jnp.asarray(of_total), log: jnp.asarray(of_count)},
    )
    variance = special.polygamma(1, sign * float(share[log]))
    np.testing.assert_allclose(variance, 1 / count + np.var(logs), rtol=0.05)
    np.testing.assert_allclose(share[log] / share[first], -sign * count / total, 1e-5)
