"""The topic model experiment of the VIPS paper: its settings, and what it costs.

Park, Foulds, Chaudhuri and Welling, JAIR 2020, section 4.3 and algorithm 3.
"""

import math
from typing import Any

import numpyro_vips as nv

# Replacing a document by another changes the sum of two non-negative statistics of
# norm C by sqrt(2) C at most; the paper says C.
REPLACE_ONE = math.sqrt(2.0)
# The paper's code and that of Hoffman et al. (2010): weights (1024 + t)^-0.7.
TAU, KAPPA = 1024.0, 0.7
# The paper's document length, and the clipping norm as a share of it.
DOCUMENT_LENGTH, CLIPPING_SHARE = 500, 0.1


def step_size(step: int) -> float:
    """The weight of step t = 0, 1, ... in the running average."""
    return (TAU + step) ** -KAPPA


def settings(num_documents: int, minibatch: int) -> dict[str, Any]:
    """Settings of `PrivateVI` for one epoch of the paper's algorithm 3."""
    return {
        "engine": nv.VIPS(step_size=step_size),
        "sampling": nv.WithoutReplacement(minibatch / num_documents),
        "num_steps": num_documents // minibatch,
    }


def noise_settings(
    sigma: float, clipping_norm: float, delta: float, *, replace_one: bool
) -> dict[str, Any]:
    """Settings for noise of standard deviation `sigma * clipping_norm` on the sums.

    That is what the paper means by σ. The library's noise multiplier is the standard
    deviation over the sensitivity, which under replace-one is sqrt(2) times the norm.
    """
    return {
        "noise_multiplier": sigma / (REPLACE_ONE if replace_one else 1.0),
        "clipping_norm": clipping_norm,
        "delta": delta,
    }


def epsilons(
    sigma: float, *, sampling_rate: float, num_steps: int, delta: float
) -> dict[str, float]:
    """ε of one run, as the paper counted and under the corrected sensitivity."""

    def price(noise_multiplier: float, accountant: nv.accounting.Accountant) -> float:
        return nv.accounting.epsilon(
            noise_multiplier=noise_multiplier,
            sampling_rate=sampling_rate,
            num_steps=num_steps,
            delta=delta,
            sampling="without_replacement",
            accountant=accountant,
        )

    return {
        "as_the_paper_counted": price(sigma, "moments"),
        "corrected_moments": price(sigma / REPLACE_ONE, "moments"),
        "corrected": price(sigma / REPLACE_ONE, "pld"),
    }


def strong_composition_sigma(
    sigma: float, *, sampling_rate: float, num_steps: int, delta: float
) -> float:
    """The σ for which strong composition gives the ε that the moments accountant has.

    Both count as the paper did; the corrected sensitivity would change both alike.
    """
    setting: dict[str, Any] = {
        "sampling_rate": sampling_rate,
        "num_steps": num_steps,
        "delta": delta,
        "sampling": "without_replacement",
    }
    epsilon = nv.accounting.epsilon(
        noise_multiplier=sigma, accountant="moments", **setting
    )
    return nv.accounting.calibrate(epsilon=epsilon, accountant="strong", **setting)
