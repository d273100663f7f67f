"""What two noisy counts say about a probability, against brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from numpyro_vips.conjugacy.families.dirichlet import Beta
from numpyro_vips.conjugacy.families.noisy_shares import Counts, share_of_noisy_counts


def counts(of: float, others: float) -> Counts:
    return Counts(jnp.asarray(float(of)), jnp.asarray(float(others)))


def by_brute_force(
    prior: tuple[float, float], total: int, read: float, stddev: float
) -> tuple[float, float]:
    """Mean and standard deviation of the probability, over all whole counts."""
    count = np.arange(total + 1)
    logs = stats.betabinom.logpmf(count, total, *prior)
    logs = logs + stats.norm.logpdf(read, count, stddev)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    of = stats.beta(prior[0] + count, prior[1] + total - count)
    mean = weights @ of.mean()
    return mean, np.sqrt(weights @ (of.var() + (of.mean() - mean) ** 2))


@pytest.mark.parametrize("prior", [(1.0, 1.0), (2.0, 5.0), (20.0, 800.0)])
@pytest.mark.parametrize("read", [-6.0, 0.0, 5.0, 40.0, 500.0])
@pytest.mark.parametrize("stddev", [2.0, 8.0])
def test_it_is_the_posterior_given_a_noisy_count(
    prior: tuple[float, float], read: float, stddev: float
) -> None:
    total = 1000
    with jax.enable_x64(True):
        found = share_of_noisy_counts(
            counts(*prior), counts(read, total - read), counts(stddev, stddev)
        )
        beta = stats.beta(float(found.of), float(found.others))
    # Of a count that is seen both ways noise is smaller.
    share = min(max(read / total, 0.0), 1.0)
    seen = stddev * np.hypot(1.0 - share, share)
    mean, deviation = by_brute_force(prior, total, read, seen)
    assert beta.mean() == pytest.approx(mean, rel=0.05, abs=0.1 * deviation)
    assert beta.std() == pytest.approx(deviation, rel=0.1)


@pytest.mark.parametrize("read", [-15.0, -3.0, 0.0, 3.0])
def test_a_rare_label_is_rare_however_its_count_reads(read: float) -> None:
    """As a count that counts for the less the smaller it is, it had the mean 0.03."""
    with jax.enable_x64(True):
        data = {"log": jnp.asarray(read), "log1m": jnp.asarray(1000.0 - read)}
        prior, noise = Beta().neutral(()), dict.fromkeys(data, jnp.asarray(4.0))
        moved = Beta().project_to_widen(data, noise)
        share = Beta().share_under_noise(prior, moved, noise)
        total = {s: float(prior[s] + share[s]) for s in share}
    beta = stats.beta(total["log"] + 1.0, total["log1m"] + 1.0)
    assert beta.mean() < 0.01 and 0.001 < beta.std() < 0.008


@pytest.mark.parametrize(("stddev", "tolerance"), [(0.0, 0.0), (1e-3, 1e-2)])
def test_without_noise_or_with_little_counts_are_what_they_are(
    stddev: float, tolerance: float
) -> None:
    with jax.enable_x64(True):
        data = {"log": jnp.asarray([3.0, 70.0]), "log1m": jnp.asarray([900.0, 0.0])}
        prior = {"log": jnp.full(2, 1.0), "log1m": jnp.full(2, 2.0)}
        noise = dict.fromkeys(data, jnp.full(2, stddev))
        share = Beta().share_under_noise(prior, data, noise)
    for name, value in data.items():
        np.testing.assert_allclose(share[name], value, rtol=tolerance, atol=tolerance)


def test_where_noise_hides_both_counts_the_prior_is_left() -> None:
    with jax.enable_x64(True):
        found = share_of_noisy_counts(
            counts(3.0, 2.0), counts(-40.0, 20.0), counts(50.0, 50.0)
        )
        np.testing.assert_allclose([*found], [3.0, 2.0], rtol=1e-6)
