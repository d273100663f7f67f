"""What noise leaves of counts, against repetition."""

import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.conjugacy.families.dirichlet import Beta, Categorical, Dirichlet

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


@pytest.mark.parametrize("noise", [0.1, 3.0, 30.0])
def test_likely_states_hold_the_true_one_under_noise(noise: float) -> None:
    """A jump at one of 40 places, between Normal rows whose means are known."""
    rng, states, rows, repetitions = np.random.default_rng(2), 40, 25, 1_000
    place = np.arange(states)
    true = rng.integers(0, states, repetitions)
    # Sums over the rows between two places; their log density if the mean is 0, less
    # that if it is 1/2.
    mean = np.where(place < true[:, None], 0.0, 0.5)
    sums = rows * mean + np.sqrt(rows) * rng.normal(size=mean.shape)
    steps = 0.125 * rows - 0.5 * sums
    exact = np.cumsum(steps, 1) - steps
    released = exact + noise * rng.normal(size=exact.shape)
    data = {"is": jnp.asarray(released)}
    family = Categorical(states)
    share = family.widened(data, {"is": jnp.full(released.shape, noise)})
    found = np.asarray(family.moments(share)["is"])
    of_true = np.take_along_axis(found, true[:, None], 1)
    likelier = np.where(found > of_true, found, 0.0).sum(1)
    # The most likely states that make up 90 % hold the true one as often.
    assert np.mean(likelier < 0.9) > 0.87
    naive = np.asarray(family.moments(data)["is"])
    assert np.mean(np.log(of_true)) > np.mean(
        np.log(np.take_along_axis(naive, true[:, None], 1) + 1e-30)
    )


def test_states_without_noise_are_as_they_were() -> None:
    data = {"is": jnp.array([[3.0, -700.0, 2.5], [0.0, 1e4, -1e4]])}
    share = Categorical(3).widened(data, {"is": jnp.zeros((2, 3))})
    np.testing.assert_array_equal(share["is"], data["is"])


def test_what_states_have_in_common_rounds_no_difference() -> None:
    data = {"is": jnp.array([1e14, 1e14 + 2e8], jnp.float32)}
    assert data["is"][1] > data["is"][0]
    noise = {"is": jnp.full(2, 1e8, jnp.float32)}
    share = Categorical(2).widened(data, noise)
    chance = Categorical(2).moments(share)["is"]
    np.testing.assert_allclose(chance[1] / chance[0], np.exp(1.0), rtol=0.05)
