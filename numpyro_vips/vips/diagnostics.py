"""What is known of how good a conjugate posterior is, from released numbers alone."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Array, Float
from scipy.special import softmax

from numpyro_vips.uncertainty import on_widths_of_prior
from numpyro_vips.vips.corrections.reading import ObservedSums
from numpyro_vips.vips.description import bounds_at, warnings_of
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.steps.drift import largest_drift
from numpyro_vips.vips.steps.state import VipsState, is_noisy
from numpyro_vips.vips.steps.statistic_roles import StatisticRoles

# The relative change from which on globals count as moving, after too few steps to know
# how far they still have to go,
_STILL = 1e-3
# and how many standard deviations they may have to go otherwise.
_NEAR = 0.05
# The probability of its likeliest state below which a discrete global is undecided.
_DECIDED = 0.95


def diagnostics_of(
    program: ConjugateProgram,
    roles: StatisticRoles,
    state: VipsState,
    seen: ObservedSums | None,
    widths: Mapping[str, float],
    parameters: Mapping[str, Float[Array, "..."]],
) -> dict[str, Any]:
    """What is known of how good the posterior is.

    Args:
      program: The model.
      roles: What each statistic is released for.
      state: The state of the fit.
      seen: What rows show of their latents; None before there is a posterior.
      widths: By site, the smallest width of its entries over the prior's, where noisy
        residuals were released of it.
      parameters: Those of the posterior; empty before there is one.

    Returns:
      num_steps, change, drift: See `VipsState`.
      converged: Whether the globals no longer move. Under noise False where sums
        of the last step had moved, and None where noise hides whether.
      moving: The sites whose statistics had, under noise; see `drift`.
      remaining: How far they still have to go at most, in standard deviations of
        the posterior; None if that is not known.
      evidence_bounds: Of the starts of a fit without noise, best first.
      as_good: The globals of which another start found another posterior, with the
        same bound.
      missing_information: The largest share of the information about a direction of
        the globals that is missing, as rows do not show their own latents; None if
        that is not known.
      errors_left: What is left of the errors of early steps, in standard deviations
        of the posterior, which knows of them; None if that is not known.
      below_noise: By site, how many of its sums of squares are below their noise.
      undecided: See `undecided_globals`.
      bounds: By site, the auxiliary variables that make its log density a bound.
      warnings: See `Engine.diagnostics`.
    """
    structure = program.structure
    below = {
        site: count
        for name, count in state.below_noise.items()
        for site in structure.posterior_factors[name].latents
        if count
    }
    bounds = {site: ", ".join(bounds_at(program, site)) for site in program.graph.sites}
    remaining = math.inf if state.trail is None else state.trail.remaining
    is_still = state.change < _STILL
    if state.trail is not None and state.trail.is_long:
        is_still = remaining <= _NEAR
    # The posterior allows for what is left of early steps, where that is known.
    is_corrected = seen is not None and seen.left is not None
    moving, converged = [] if is_corrected else _moving(program, roles, state), is_still
    if is_noisy(state.noise_stddev):
        converged = False if moving else None
    found = {
        "num_steps": state.num_steps,
        "change": state.change,
        "drift": dict(state.drift),
        "moving": moving,
        "converged": converged,
        "remaining": remaining if math.isfinite(remaining) else None,
        "evidence_bounds": list(state.bounds),
        "as_good": list(state.as_good),
        "missing_information": None if seen is None else seen.missing,
        "errors_left": None if seen is None else seen.left,
        "below_noise": below,
        "undecided": undecided_globals(program, parameters),
        "bounds": {site: bound for site, bound in bounds.items() if bound},
    }
    return {
        **found,
        "warnings": [*warnings_of(program, found), *on_widths_of_prior(widths)],
    }


def undecided_globals(
    program: ConjugateProgram, parameters: Mapping[str, Float[Array, "..."]]
) -> dict[str, float]:
    """Discrete globals of which no state is certain, beside other globals.

    The posterior has them independent of these, and is made as if each row were in all
    states at once: that of a rate before a change at an unknown place is one of a mean
    rate, and as narrow.

    Args:
      program: The model.
      parameters: Those of the posterior.

    Returns:
      By site, the probability of the likeliest state, the smallest of its entries.
    """
    structure, beside_others = program.structure, set[str]()
    for statistic in structure.statistics:
        names = {structure.factor_of[latent] for latent in statistic.latents}
        if len(names) > 1:
            beside_others |= names
    found: dict[str, float] = {}
    for factor in structure.posterior_factors_of("global"):
        logits = parameters.get(f"{factor.name}/logits")
        is_discrete = factor.family.num_states is not None
        if not is_discrete or logits is None or factor.name not in beside_others:
            continue
        certain = softmax(np.asarray(logits, np.float64), axis=-1).max(-1)
        if np.size(certain) and np.min(certain) < _DECIDED:
            found |= dict.fromkeys(factor.latents, float(np.min(certain)))
    return found


def _moving(
    program: ConjugateProgram, roles: StatisticRoles, state: VipsState
) -> list[str]:
    """The sites whose sums moved in the last step by more than noise explains.

    Newton steps go where noise drives them, and residuals move with the place that
    they are asked at. Minibatches differ from each other without any movement.
    """
    structure, found = program.structure, dict[str, None]()
    for statistic in structure.statistics:
        name = statistic.name
        if name not in state.drift or name in roles.residuals:
            continue
        if name in state.clipped and state.clipped[name].sampling_rate < 1.0:
            continue
        if state.drift[name] > largest_drift(roles.released_as[name]):
            factors = {structure.factor_of[latent] for latent in statistic.latents}
            for factor in sorted(factors):
                found |= dict.fromkeys(structure.posterior_factors[factor].latents)
    return [name for name in found if name in program.graph.sites]
