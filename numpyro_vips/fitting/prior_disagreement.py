"""Whether a posterior lies where its prior says that it hardly can, or is the prior.

Under privacy a prior decides more than the posterior: where a fit starts, and what is
clipped before anything is known of the rows. A prior in other units than the data, such
as Normal(0, 1) for a mean age, is the usual reason, and nobody can look at the rows to
find out. What is compared here has been released, so the comparison costs nothing.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints

from numpyro_vips.conjugacy.families import supports
from numpyro_vips.jax_tools.double_precision import evaluate_in_double
from numpyro_vips.model.distributions import unwrapped
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.synthetic.prior_centre import prior_median, prior_quantile
from numpyro_vips.model.synthetic.synthetic_rows import synthetic_rows
from numpyro_vips.posterior import MeanAndStddev

# The prior's mass as far out as the posterior, on both sides and over all entries of a
# site: four standard deviations for the mean of one Normal.
_UNLIKELY = 1e-4
# Of what the posterior leaves open the end nearer to the prior is taken.
_STDDEVS_LEFT_OPEN = 2.0
# At a bound of the support, as where a scale is nearly zero or an event is rare, there
# is little mass because there is little room. Where the prior disagrees its density has
# fallen, by this factor at least.
_FALLEN_BY = 100.0
_MOST_MASS = (0.005, 0.995)
# Within so many of its standard deviations of an end of its range, a posterior leans on
# it, as one does whose density rises up to the end: an exponential one is within one.
# Angles of von Mises that were fitted on the wrong side were within 2.3.
_STDDEVS_FROM_END = 2.0
_STDDEVS_OF_ANGLES = 3.0
# A posterior whose so many deviations are more of its range than this is merely wide.
_MOST_OF_RANGE = 0.25
# Ranges and ends that are no choice: those of chances, correlations and sizes.
_NATURAL_RANGES = ((0.0, 1.0), (-1.0, 1.0))
_NATURAL_END = 0.0
# From that part of the spread of its prior on, the prior decides about a scale: where
# noise hides what rows say, its posterior has more than half of it.
_MOST_OF_PRIOR = 0.5
# The interquartile range of a Normal, in standard deviations.
_QUARTILES, _OF_NORMAL = (0.25, 0.75), 1.349


def prior_disagreements(
    graph: ModelGraph,
    posterior: Mapping[str, MeanAndStddev],
    unclear: Collection[str] = (),
) -> list[str]:
    """A sentence for each global site whose posterior is far out in its prior.

    There is one, too, where it leans on an end of the prior's finite range, and where
    that of a scale of rows is hardly narrower than its prior.

    The prior of a site is the model's own, given the posterior means of the latents
    before it. Entries of a vector are looked at one by one, by their marginals. Nothing
    is said of a site whose prior is flat or has no marginals with a formula, such as a
    correlation matrix; nor of shares that add up to one, which have no unit and may be
    nearly one under a flat prior; nor of a model with discrete globals or parameters.

    Args:
      graph: The model.
      posterior: Mean and standard deviation of every entry of every global.
      unclear: Sites of which it is said elsewhere that noise hides them.
    """
    sites = graph.latents("global")
    if graph.params or any(site.is_discrete for site in sites):
        return []
    names = [site.name for site in sites]
    rows = synthetic_rows(graph.arguments, 1, 0)

    def priors(rows: Mapping[str, Any], means: Mapping[str, Any]) -> dict[str, Any]:
        messages = graph.run(rows, means)
        found = {name: _marginals(messages[name]["fn"]) for name in names}
        return {name: prior for name, prior in found.items() if prior is not None}

    means = {name: posterior[name].mean for name in names}
    try:
        found = evaluate_in_double(priors, rows, means)
    # Such as a transform of NumPyro's that takes no double precision. The fit has been
    # paid for by now, and is not lost to a check of it.
    except Exception:
        return []
    texts = [_disagreement(name, found[name], posterior[name]) for name in found]
    texts += [_at_an_end(name, found[name], posterior[name]) for name in found]
    texts += [
        _on_prior_alone(name)
        for name in found
        if name not in unclear
        and _is_its_prior(found[name], posterior[name])
        and _reaches_rows(graph, rows, means, name)
    ]
    return [text for text in texts if text is not None]


def _at_an_end(name: str, prior: Any, posterior: MeanAndStddev) -> str | None:
    """What is wrong where a posterior leans on an end of its prior's finite range."""
    support = supports.base_support(prior.support)
    if not isinstance(support, type(constraints.interval(0.0, 1.0))):
        return None
    ends = np.asarray(support.lower_bound), np.asarray(support.upper_bound)
    shape = np.shape(posterior.mean)
    low, high = (np.broadcast_to(end, shape).astype(np.float64) for end in ends)
    mean, stddev = (np.asarray(part, np.float64) for part in posterior)
    is_angle = np.isclose(high - low, 2.0 * math.pi, rtol=1e-3)
    reach = np.where(is_angle, _STDDEVS_OF_ANGLES, _STDDEVS_FROM_END) * stddev
    at_low = (mean - reach < low) & (low != _NATURAL_END)
    at_high = (mean + reach > high) & (high != _NATURAL_END)
    leans = (at_low | at_high) & (reach < _MOST_OF_RANGE * (high - low))
    for natural in _NATURAL_RANGES:
        leans &= (low != natural[0]) | (high != natural[1])
    if not leans.any():
        return None
    place = np.unravel_index(np.argmax(leans), mean.shape)
    where = repr(name) + "".join(f"[{index}]" for index in place)
    end = (low if at_low[place] else high)[place]
    text = (
        f"The posterior of {where} leans on an end of its prior's range: it is "
        f"{mean[place]:.4g} (sd {stddev[place]:.2g}), and the range ends at "
        f"{end:.4g}. "
    )
    if is_angle[place]:
        return text + (
            "If it is an angle, the truth may be at the other end, where the fit does "
            "not get to, and the posterior may be wrong. Turn the angles by a public "
            "constant, so that they are far from both ends."
        )
    return text + (
        "If the truth may lie beyond it, the posterior is wrong. Give a wider range, "
        "from public knowledge, or a prior without ends."
    )


def _is_its_prior(prior: Any, posterior: MeanAndStddev) -> bool:
    """Whether some entry of a positive global is hardly narrower than its prior."""
    support = supports.base_support(prior.support)
    if not supports.same_support(support, constraints.nonnegative):
        return False
    try:
        low, high = (prior_quantile(prior, q) for q in _QUARTILES)
    except Exception:  # As of `_disagreement`.
        return False
    mean, stddev = (np.asarray(part, np.float64) for part in posterior)
    with np.errstate(all="ignore"):
        # Of a logarithm, too: far above the prior a posterior is wide, and clear.
        of_logarithm = stddev / mean > _MOST_OF_PRIOR * np.log(high / low) / _OF_NORMAL
    is_wide = stddev > _MOST_OF_PRIOR * (high - low) / _OF_NORMAL
    return bool(np.any(is_wide & of_logarithm))


def _reaches_rows(
    graph: ModelGraph, rows: Mapping[str, Any], means: Mapping[str, Any], name: str
) -> bool:
    """Whether densities of rows depend on a global, the other globals being given.

    Of a scale of other globals a few of these say little, with noise or without it.
    """
    of_rows = [site.name for site in graph.sites.values() if site.role != "global"]

    def parameters(rows: Mapping[str, Any], means: Mapping[str, Any]) -> list[Any]:
        messages = graph.run(rows, means)
        return jax.tree.leaves([messages[site]["fn"] for site in of_rows])

    larger = {**means, name: 2.0 * means[name]}
    try:
        found = (evaluate_in_double(parameters, rows, at) for at in (means, larger))
        return not all(map(np.array_equal, *found))
    except Exception:  # As of the priors.
        return True


def _on_prior_alone(name: str) -> str:
    """What to know where the prior decides about a scale.

    If the scale is far above its prior, and noise hides the sum of squares that would
    say so, then the prior explains the rows by other globals.
    """
    return (
        f"The posterior of {name!r} is hardly narrower than its prior, which decides: "
        "beside the noise the rows say little of it. If the truth is where the prior "
        "has little mass, it is missed, and other globals make up for it. What helps: "
        "a prior in the units of the data, from public knowledge; more rows, a larger "
        "epsilon or fewer globals."
    )


def _marginals(prior: Any) -> Any:
    """Distributions of the entries of a value; None where they are not known."""
    base, _ = unwrapped(prior)
    if isinstance(base, dist.MultivariateNormal | dist.LowRankMultivariateNormal):
        return dist.Normal(base.mean, jnp.sqrt(jnp.asarray(base.variance)))
    if isinstance(base, dist.ImproperUniform) or base.event_shape:
        return None
    return base


def _disagreement(name: str, prior: Any, posterior: MeanAndStddev) -> str | None:
    mean = np.asarray(posterior.mean, np.float64)
    reach = _STDDEVS_LEFT_OPEN * np.asarray(posterior.stddev, np.float64)
    try:
        with np.errstate(all="ignore"):
            below = evaluate_in_double(prior.cdf, mean + reach)
            above = 1.0 - evaluate_in_double(prior.cdf, mean - reach)
            nearest = np.where(below < above, mean + reach, mean - reach)
            density = evaluate_in_double(prior.log_prob, nearest)
            usual = evaluate_in_double(prior.log_prob, prior_median(prior))
    # There is no formula, or that of a distribution of the user's own fails.
    except Exception:
        return None
    tail = 2.0 * np.minimum(below, above)
    # Comparisons with what is not a number are false, and so is the warning.
    far = (tail * mean.size < _UNLIKELY) & (usual - density > math.log(_FALLEN_BY))
    if not far.any():
        return None
    place = np.unravel_index(np.argmin(np.where(far, tail, np.inf)), mean.shape)
    return _sentence(name, prior, posterior, place, count=int(far.sum()))


def _sentence(
    name: str, prior: Any, posterior: MeanAndStddev, place: Any, *, count: int
) -> str:
    """What is wrong with a site, shown at one entry of it, and what to do."""
    shape = np.shape(posterior.mean)
    where = repr(name)
    if shape:
        where += "".join(f"[{index}]" for index in place)
    if count > 1:
        where += f" ({count} of the {math.prod(shape)} entries of it)"
    mean, stddev = (float(np.asarray(part)[place]) for part in posterior)
    low, high = (
        float(np.broadcast_to(prior_quantile(prior, q), shape)[place])
        for q in _MOST_MASS
    )
    return (
        f"The prior of {where} and the data disagree: the posterior is {mean:.4g} "
        f"(sd {stddev:.2g}), and 99 % of the prior lie between {low:.4g} and "
        f"{high:.4g}. "
        "The truth may be even farther out, since the prior draws the posterior "
        "towards itself, and clipping may do so, too. Give a wider prior, from public "
        "knowledge, or write the data in units in which the prior holds. If the prior "
        "is right, the posterior is not: check the units of the data, and the share of "
        "clipped rows."
    )
