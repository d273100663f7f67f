"""What noise leaves of counts, against repetition."""

import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.conjugacy.families.dirichlet import Beta, Dirichlet

REPETITIONS = 20_000


@pytest.mark.parametrize("noise", [5.0, 20.0])
def test_beta_has_the_variance_of_noisy_counts(noise: float) -> None:
    rng, rows, chance = np.random.default_rng(0), 1000, 0.3
    of_rows = chance * (1 - chance) / rows
    by_noise = noise * rng.normal(size=(2, REPETITIONS))
    counts = np.array([[rows * chance], [rows * (1 - chance)]]) + by_noise
    of_noise = np.var(counts[0] / counts.sum(0))
    data = {
        "log": jnp.asarray(rows * chance),
        "log1m": jnp.asarray(rows * (1 - chance)),
    }
    share = Beta().widened(data, dict.fromkeys(data, jnp.asarray(noise)))
    found = Beta().distribution(Beta().parameters(share))
    np.testing.assert_allclose(found.variance, of_rows + of_noise, rtol=0.05)
    np.testing.assert_allclose(share["log"] / share["log1m"], 3 / 7, rtol=1e-5)


def test_dirichlet_has_the_variance_of_noisy_counts() -> None:
    rng, noise = np.random.default_rng(1), 15.0
    counts = np.array([100.0, 300.0, 50.0, 150.0])
    shares = counts / counts.sum()
    noisy = counts + noise * rng.normal(size=(REPETITIONS, 4))
    of_noise = np.var(noisy / noisy.sum(1, keepdims=True), axis=0).sum()
    of_rows = (shares * (1 - shares)).sum() / counts.sum()
    share = Dirichlet().widened(
        {"log": jnp.asarray(counts)}, {"log": jnp.full(4, noise)}
    )
    found = Dirichlet().distribution(Dirichlet().parameters(share)).variance.sum()
    np.testing.assert_allclose(found, of_rows + of_noise, rtol=0.05)
