"""Strong composition with amplification by subsampling, the papers' baseline."""

import math

import numpy as np
from scipy import special

from numpyro_vips.accounting.events import Groups
from numpyro_vips.accounting.gaussian import gaussian_epsilon, sampled_loss


def strong_epsilon(groups: Groups, delta: float) -> float:
    """The best split of delta between the steps and the composition's slack."""

    def price(log_odds: float) -> float:
        slack = delta * float(special.expit(log_odds))
        return _strong_composition(groups, delta - slack, slack)

    coarse = min((float(u) for u in np.linspace(-12, 12, 25)), key=price)
    fine = min((float(u) for u in np.linspace(coarse - 1, coarse + 1, 21)), key=price)
    return min(price(fine), _strong_composition(groups, delta, 0.0))


def _strong_composition(groups: Groups, steps_delta: float, slack: float) -> float:
    """Strong composition, or the plain sum without slack.

    With εᵢ' = log(1 + q(e^εᵢ − 1)): sqrt(2·log(1/slack)·Σ εᵢ'²) + Σ εᵢ'(e^εᵢ' − 1).
    """
    num_steps = sum(group.num_steps for group in groups)
    squares = products = total = 0.0
    for group in groups:
        step_delta = min(0.5, steps_delta / num_steps / group.sampling_rate)
        classical = _classical_epsilon(group.noise_multiplier, step_delta)
        amplified = sampled_loss(classical, group.sampling_rate)
        total += group.num_steps * amplified
        squares += group.num_steps * amplified**2
        products += group.num_steps * amplified * special.expm1(amplified)
    if slack == 0:
        return total
    return min(total, math.sqrt(2 * math.log(1 / slack) * squares) + products)


def _classical_epsilon(noise_multiplier: float, delta: float) -> float:
    """sqrt(2·log(1.25/δ))/σ while that is at most 1, where the theorem holds.

    Above 1 the exact curve takes over, held at 1 or more so that the price falls with
    the noise.
    """
    classical = math.sqrt(2 * math.log(1.25 / delta)) / noise_multiplier
    if classical <= 1:
        return classical
    return max(gaussian_epsilon(1 / noise_multiplier, delta), 1.0)
