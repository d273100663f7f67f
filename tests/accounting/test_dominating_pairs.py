"""The losses of one step, against enumeration and dp-accounting's distributions."""

import itertools
import math

import numpy as np
import pytest
from _events import event
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from scipy import integrate, stats

from numpyro_vips import accounting
from numpyro_vips.accounting.dominating_pairs import single_step_pld
from numpyro_vips.accounting.events import StepGroup


def mixture_delta(centres_p, centres_q, noise, epsilon):
    """Hockey-stick divergence of two equally weighted mixtures, by quadrature."""
    grid = np.linspace(-12 * noise, 12 * noise + 6, 40_001)

    def density(centres):
        return stats.norm.pdf((grid[:, None] - centres) / noise).mean(1) / noise

    excess = density(np.array(centres_p)) - math.exp(epsilon) * density(
        np.array(centres_q)
    )
    return integrate.trapezoid(np.maximum(excess, 0), grid)


def test_one_step_without_replacement_against_all_subsets():
    """Enumerates every batch of small neighbouring data sets with values in [0, 1]."""
    num_rows, size, noise, epsilon = 4, 2, 0.8, 0.4
    batches = list(itertools.combinations(range(num_rows), size))
    events = [event(noise, size / num_rows, sampling="without_replacement")]
    stated = accounting.delta_of_events(events, epsilon=epsilon)

    worst = 0.0
    values = [0.0, 0.5, 1.0]
    for others in itertools.combinations_with_replacement(values, num_rows - 1):
        for old, new in itertools.permutations(values, 2):
            before, after = (
                [sum((row, *others)[i] for i in batch) for batch in batches]
                for row in (old, new)
            )
            worst = max(worst, mixture_delta(before, after, noise, epsilon))
    assert worst <= stated
    assert worst >= 0.99 * stated


def test_without_replacement_mass_function_is_the_connected_curve():
    """dp-accounting connects the dots of the same curve, from its deltas."""
    noise, rate, spacing = 1.1, 0.07, 0.01
    group = StepGroup("without_replacement", noise, rate, 1)
    ours = single_step_pld(group, spacing)._pmf_remove
    half = (ours.size - 1) // 2

    def delta(epsilon):
        if epsilon < 0:
            return 1 - math.exp(epsilon) + math.exp(epsilon) * delta(-epsilon)
        inner = math.log1p(math.expm1(epsilon) / rate)
        return rate * accounting.gaussian_delta(1 / noise, inner)

    reference = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        spacing,
        -half,
        half,
        np.array([delta(spacing * k) for k in range(-half, half + 1)]),
    )
    for epsilon in [0.0, 0.013, 0.2, 1.0]:
        assert ours.get_delta_for_epsilon(epsilon) == pytest.approx(
            reference.get_delta_for_epsilon(epsilon), rel=1e-8
        )
    assert ours._probs.sum() + ours._infinity_mass == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("noise", "rate"), [(0.7, 0.01), (3.0, 0.4), (0.3, 1.0)])
@pytest.mark.parametrize("spacing", [0.02, 0.001])
def test_a_step_is_dp_accountings_step(noise, rate, spacing):
    group = StepGroup("full" if rate == 1 else "poisson", noise, rate, 1)
    ours = single_step_pld(group, spacing)
    reference = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=spacing
    )
    for direction in ("_pmf_remove", "_pmf_add"):
        own, theirs = getattr(ours, direction), getattr(reference, direction)
        theirs = theirs.to_dense_pmf()
        assert own._probs.sum() + own._infinity_mass == pytest.approx(1, abs=1e-12)
        first = max(own._lower_loss, theirs._lower_loss)
        last = min(own._lower_loss + own.size, theirs._lower_loss + theirs.size)
        cuts = [
            slice(first - d._lower_loss, last - d._lower_loss) for d in (own, theirs)
        ]
        assert own._probs[cuts[0]].sum() == pytest.approx(1, abs=1e-12)
        np.testing.assert_allclose(
            own._probs[cuts[0]], theirs._probs[cuts[1]], rtol=1e-5, atol=1e-12
        )
