"""What Gaussian releases cost in privacy, and how much noise a target needs.

    >>> price = epsilon(
    ...     noise_multiplier=2.0, sampling_rate=1.0, num_steps=1, delta=1e-5
    ... )
    >>> round(price, 3)
    1.993

Three accountants price the same events. None of them needs JAX.

* `"pld"` (default): privacy loss distributions. Full-batch Gaussian releases are
  priced exactly; Poisson batches through dp-accounting; batches drawn without
  replacement through their dominating pair, on dp-accounting's distributions. Every
  rounding goes up. Where the grid cannot resolve the answer (`delta` below 1e-10, or
  next to no noise) a Rényi bound or the bound without amplification takes over.
* `"moments"`: the analytical moments accountant of Wang, Balle and Kasiviswanathan
  (AISTATS 2019), with the papers' conversion to (epsilon, delta).
* `"strong"`: strong composition (Dwork and Roth 2014, theorem 3.20) with
  amplification by subsampling, the papers' baseline.

A noise multiplier is always the noise's standard deviation divided by the L2
sensitivity *in the stated relation*: add or remove one row for `"poisson"`, replace
one row for `"without_replacement"`. `docs/privacy.md` derives the formulas.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import special

from numpyro_vips import _validate

Relation = Literal["add_or_remove", "replace_one"]
Sampling = Literal["poisson", "without_replacement", "full"]
Accountant = Literal["pld", "moments", "strong"]

RELATIONS = ("add_or_remove", "replace_one")
SAMPLINGS = ("poisson", "without_replacement", "full")
ACCOUNTANTS = ("pld", "moments", "strong")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianEvent:
    """Identical Gaussian releases, in physical quantities.

    The sampler draws, the mechanism adds noise and the accountant prices from the
    same event, so that none of them can mean something else than the others.

    Attributes:
      noise_stddev: Standard deviation of the noise in each coordinate.
      sensitivity: L2 sensitivity of what is released, in `relation`. Infinite only
        where there is no noise.
      relation: What neighbouring data sets are: one has a row more
        (`"add_or_remove"`), or one row differs (`"replace_one"`).
      sampling: `"poisson"` includes each row by its own coin flip and needs
        `"add_or_remove"`; `"without_replacement"` draws a fixed number of distinct
        rows and needs `"replace_one"`; `"full"` uses every row.
      sampling_rate: The coin's probability, or the fraction of the rows drawn.
      num_steps: How many such releases, each on a fresh batch.
      label: What is released, for people.
    """

    noise_stddev: float
    sensitivity: float
    relation: Relation
    sampling: Sampling
    sampling_rate: float
    num_steps: int = 1
    label: str = ""

    def __post_init__(self) -> None:
        _validate.positive(sensitivity=self.sensitivity)
        _validate.positive_integer(num_steps=self.num_steps)
        _validate.probability(sampling_rate=self.sampling_rate)
        _validate.one_of(RELATIONS, relation=self.relation)
        _validate.one_of(SAMPLINGS, sampling=self.sampling)
        if not self.noise_stddev >= 0:
            raise ValueError(
                f"Expected noise_stddev={self.noise_stddev!r} to be zero or positive."
            )
        if self.sampling == "poisson" and self.relation != "add_or_remove":
            raise ValueError(
                "Expected relation='add_or_remove' with sampling='poisson': the size "
                "of a Poisson batch is random, so its price is for adding or "
                "removing one row. Use sampling='without_replacement' or 'full' with "
                "relation='replace_one'."
            )
        if self.sampling == "without_replacement" and self.relation != "replace_one":
            raise ValueError(
                "Expected relation='replace_one' with "
                "sampling='without_replacement': a fixed batch size presumes a public "
                "number of rows. Use sampling='poisson' or 'full' with "
                "relation='add_or_remove'."
            )
        if self.sampling == "full" and self.sampling_rate != 1:
            raise ValueError(
                f"Expected sampling_rate={self.sampling_rate!r} to be 1 with "
                "sampling='full'. Use sampling='poisson' or 'without_replacement' "
                "for smaller batches."
            )

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation over sensitivity; zero means no privacy."""
        if self.noise_stddev == 0:
            return 0.0
        return self.noise_stddev / self.sensitivity

    def to_dict(self) -> dict[str, Any]:
        """JSON-able fields; an infinite number becomes the string `"inf"`."""
        return {
            name: json_number(value) if isinstance(value, float) else value
            for name, value in dataclasses.asdict(self).items()
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "GaussianEvent":
        """The inverse of `to_dict`."""
        numbers = {
            name: float(fields[name])
            for name in ("noise_stddev", "sensitivity", "sampling_rate")
        }
        return cls(**{**fields, **numbers})


def json_number(value: float) -> float | str:
    """The number, or its name where JSON has none: `float` reads both back."""
    return value if math.isfinite(value) else str(value)


# ----------------------------------------------------------------------------------
# Prices


def epsilon(
    *,
    noise_multiplier: float,
    sampling_rate: float,
    num_steps: int,
    delta: float,
    sampling: Sampling = "poisson",
    accountant: Accountant = "pld",
) -> float:
    """The epsilon of `num_steps` Gaussian releases from sampled batches.

    Args:
      noise_multiplier: Standard deviation over L2 sensitivity in the relation that
        belongs to `sampling`. Zero costs infinitely much.
      sampling_rate: Probability of a row to be in a batch, or fraction of the rows.
      num_steps: Number of releases.
      delta: Target delta. At zero every Gaussian release costs infinitely much.
      sampling: `"poisson"` (add or remove one row), `"without_replacement"` (replace
        one row) or `"full"` (either; `sampling_rate` must be 1).
      accountant: `"pld"`, `"moments"` or `"strong"`.

    Returns:
      The smallest epsilon that the accountant can prove.
    """
    event = _unit_event(noise_multiplier, sampling_rate, num_steps, sampling)
    return epsilon_of_events([event], delta=delta, accountant=accountant)


def calibrate(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    num_steps: int,
    sampling: Sampling = "poisson",
    accountant: Accountant = "pld",
) -> float:
    """The smallest noise multiplier whose price is at most `epsilon`.

    The arguments are those of the function `epsilon`. The price of the answer never
    exceeds the target. An infinite target needs no noise: 0.
    """
    event = _unit_event(1.0, sampling_rate, num_steps, sampling)
    return calibrate_events(
        [event], epsilon=epsilon, delta=delta, accountant=accountant
    )


def epsilon_of_events(
    events: Sequence[GaussianEvent], *, delta: float, accountant: Accountant = "pld"
) -> float:
    """The epsilon of all the events together; they must share one relation."""
    _validate.one_of(ACCOUNTANTS, accountant=accountant)
    _check_delta(delta)
    groups = _groups(events)
    if not groups or delta >= 1:
        return 0.0
    if delta == 0 or any(group.noise_multiplier == 0 for group in groups):
        return math.inf
    return _EPSILON[accountant](groups, delta)


def delta_of_events(
    events: Sequence[GaussianEvent], *, epsilon: float, accountant: Accountant = "pld"
) -> float:
    """The delta of all the events together at `epsilon`."""
    _validate.one_of(ACCOUNTANTS, accountant=accountant)
    if not epsilon >= 0:
        raise ValueError(f"Expected epsilon={epsilon!r} to be zero or positive.")
    groups = _groups(events)
    if not groups or epsilon == math.inf:
        return 0.0
    if any(group.noise_multiplier == 0 for group in groups):
        return 1.0
    if accountant == "pld":
        return _pld_delta(groups, epsilon)
    # The two bounds are cheap in the other direction, and fall with delta.
    log_delta = _last_true(
        lambda u: _EPSILON[accountant](groups, math.exp(-u)) <= epsilon, 0.0, 700.0
    )
    return math.exp(-log_delta)


def epsilon_curve(
    events: Sequence[GaussianEvent],
    deltas: Sequence[float],
    *,
    accountant: Accountant = "pld",
) -> list[float]:
    """The epsilon at each of `deltas`, in their order."""
    return [epsilon_of_events(events, delta=d, accountant=accountant) for d in deltas]


def calibrate_events(
    events: Sequence[GaussianEvent],
    *,
    epsilon: float,
    delta: float,
    accountant: Accountant = "pld",
) -> float:
    """The smallest factor on every event's noise at which all cost at most `epsilon`.

    It scales a whole schedule of different steps: `noise_stddev` of each event times
    the factor. The relative sizes of the noises stay as given.

    Guarantees:
      `epsilon_of_events` of the scaled events never exceeds `epsilon`. An infinite
      target gives 0, and so do no events at all.

    Raises:
      ValueError: A finite target cannot be met, because `delta` is zero or because an
        event has no noise that could be scaled.
    """
    _validate.one_of(ACCOUNTANTS, accountant=accountant)
    _validate.positive(epsilon=epsilon)
    _check_delta(delta)
    groups = _groups(events)
    if math.isinf(epsilon) or not groups:
        return 0.0
    if delta == 0:
        raise ValueError(
            f"Expected delta={delta!r} to be positive with epsilon={epsilon!r}: "
            "Gaussian noise never gives pure differential privacy. Choose a delta "
            "well below 1 / num_rows."
        )
    if any(group.noise_multiplier == 0 for group in groups):
        raise ValueError(
            "Expected every event to have noise_stddev > 0: zero noise stays zero "
            "whatever it is multiplied by."
        )

    def price(factor: float) -> float:
        return epsilon_of_events(
            [scale_noise(event, factor) for event in events],
            delta=delta,
            accountant=accountant,
        )

    if accountant == "pld" and all(group.sampling == "full" for group in groups):
        return _nudged(price, epsilon, _total_mu(groups) / _largest_mu(epsilon, delta))
    start = _first_guess(groups, epsilon, delta)
    if accountant == "pld":
        # Search on one grid; the price that refines its own has the last word.
        start = smallest_factor(
            _single_grid_price(groups, delta, start), epsilon * (1 - 3e-4), start=start
        )
        return smallest_factor(price, epsilon, start=start, stride=1.003)
    return smallest_factor(price, epsilon, start=start)


def scale_noise(event: GaussianEvent, factor: float) -> GaussianEvent:
    """The event with `factor` times its noise."""
    return dataclasses.replace(event, noise_stddev=event.noise_stddev * factor)


def gaussian_dp_mu(events: Sequence[GaussianEvent]) -> float | None:
    """The mu of Gaussian differential privacy that describes the events.

    Full-batch events compose exactly: mu² is the sum of 1 / noise_multiplier². With
    sampled batches the trade-off curve is only nearly Gaussian; then this is the
    largest mu among those that match epsilon at delta = 1e-9, 1e-8, ..., 1e-3: a
    summary for people and not a bound. None where there is no noise.
    """
    groups = _groups(events)
    if not groups:
        return 0.0
    if any(group.noise_multiplier == 0 for group in groups):
        return None
    if all(group.sampling == "full" for group in groups):
        return _total_mu(groups)
    matches = []
    for exponent in range(3, 10):
        delta = 10.0**-exponent
        price = _pld_epsilon(groups, delta)
        if 0 < price < math.inf:
            matches.append(_largest_mu(price, delta))
    return max(matches) if matches else None


def _unit_event(
    noise_multiplier: float, sampling_rate: float, num_steps: int, sampling: Sampling
) -> GaussianEvent:
    _validate.one_of(SAMPLINGS, sampling=sampling)
    return GaussianEvent(
        noise_stddev=noise_multiplier,
        sensitivity=1.0,
        relation="replace_one"
        if sampling == "without_replacement"
        else "add_or_remove",
        sampling=sampling,
        sampling_rate=sampling_rate,
        num_steps=num_steps,
    )


def _check_delta(delta: float) -> None:
    if not 0 <= delta <= 1:
        raise ValueError(f"Expected delta={delta!r} in [0, 1].")


class _Group(NamedTuple):
    """Steps that are priced alike."""

    sampling: Sampling
    noise_multiplier: float
    sampling_rate: float
    num_steps: int

    @property
    def mu(self) -> float:
        return 1 / self.noise_multiplier

    @property
    def loss_stddev(self) -> float:
        """Roughly the standard deviation of one step's privacy loss."""
        if self.mu > 5:
            return self.mu
        return min(self.mu, self.sampling_rate * math.sqrt(math.expm1(self.mu**2)))


_Groups = tuple[_Group, ...]


def _groups(events: Sequence[GaussianEvent]) -> _Groups:
    """Merges equal steps, and drops what is free."""
    if len({event.relation for event in events}) > 1:
        raise ValueError(
            "Expected all events to have the same relation, and got both "
            "'add_or_remove' and 'replace_one': their epsilons are about different "
            "neighbours and do not add up. Use one sampling for the whole fit."
        )
    steps: dict[tuple[Sampling, float, float], int] = {}
    for event in events:
        noise_multiplier = event.noise_multiplier
        if noise_multiplier == 0:
            return (_Group(event.sampling, 0.0, event.sampling_rate, event.num_steps),)
        if math.isfinite(noise_multiplier):
            sampling = "full" if event.sampling_rate == 1 else event.sampling
            key = (sampling, noise_multiplier, event.sampling_rate)
            steps[key] = steps.get(key, 0) + event.num_steps
    return tuple(_Group(*key, count) for key, count in sorted(steps.items()))


def _scaled(groups: _Groups, factor: float) -> _Groups:
    return tuple(
        group._replace(noise_multiplier=group.noise_multiplier * factor)
        for group in groups
    )


def _total_mu(groups: _Groups) -> float:
    """The mu of the same steps on full batches: sampling never makes it worse."""
    return math.sqrt(sum(group.num_steps * group.mu**2 for group in groups))


# ----------------------------------------------------------------------------------
# The Gaussian mechanism, exactly


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Delta of the Gaussian mechanism with mean shift `mu` (Balle and Wang 2018).

    δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), for any real ε.
    """
    below = epsilon / mu - mu / 2
    above = epsilon / mu + mu / 2
    if below > -5:
        # With Mills ratios nothing cancels in the far tail.
        root = math.sqrt(0.5)
        ratios = special.erfcx(below * root) - special.erfcx(above * root)
        return float(0.5 * math.exp(-0.5 * below**2) * ratios)
    return float(special.ndtr(-below) - math.exp(epsilon + special.log_ndtr(-above)))


def _gaussian_epsilon(mu: float, delta: float) -> float:
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # From zero-concentrated DP with rho = mu²/2: an upper end that is always enough.
    enough = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return enough - _last_true(
        lambda back: gaussian_delta(mu, enough - back) <= delta, 0.0, enough
    )


def _largest_mu(epsilon: float, delta: float) -> float:
    """The largest mean shift that is (epsilon, delta)-private."""
    high = 1.0
    while gaussian_delta(high, epsilon) <= delta:
        high *= 2
    return _last_true(
        lambda mu: mu == 0 or gaussian_delta(mu, epsilon) <= delta, 0, high
    )


def _last_true(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The largest number found in [low, high] at which a falling condition holds.

    `holds(low)` is presumed. Bisection, to the last bits.
    """
    if holds(high):
        return high
    for _ in range(200):
        middle = 0.5 * (low + high)
        if not low < middle < high or high - low < 1e-13 * high:
            break
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


# ----------------------------------------------------------------------------------
# Privacy loss distributions

# Fast Fourier transforms leave about this much error in every composed probability.
# (measured against exact Gaussian curves, up to 10⁵ steps).
_FFT_ERROR = 1e-12
_SMALLEST_PLD_DELTA = 1e-10
_REFINEMENT = 0.002
_FEWEST_GRID_POINTS = 2**11
_MOST_GRID_POINTS = 2**18
_LEAST_NOISE_MULTIPLIER = 0.05
_MOST_REACH = 10.0  # Standard deviations.


def _pld_epsilon(groups: _Groups, delta: float) -> float:
    groups = _with_one_full_step(groups)
    if all(group.sampling == "full" for group in groups):
        return _gaussian_epsilon(_total_mu(groups), delta)
    if not _pld_is_reliable(groups, delta):
        return _fallback_epsilon(groups, delta)
    price, converged, _ = _refine(
        groups,
        lambda pld: float(pld.get_epsilon_for_delta(delta - _FFT_ERROR)),
        _reach(groups, delta),
    )
    return price if converged else min(price, _fallback_epsilon(groups, delta))


def _pld_delta(groups: _Groups, epsilon: float) -> float:
    groups = _with_one_full_step(groups)
    if all(group.sampling == "full" for group in groups):
        return gaussian_delta(_total_mu(groups), epsilon)
    fallback = min(
        gaussian_delta(_total_mu(groups), epsilon), _renyi_delta(groups, epsilon)
    )
    if not _pld_is_reliable(groups, 1.0):
        return fallback
    delta, converged, _ = _refine(
        groups,
        lambda pld: float(pld.get_delta_for_epsilon(epsilon)) + _FFT_ERROR,
        _MOST_REACH,
    )
    if converged and delta >= _SMALLEST_PLD_DELTA:
        return delta
    return min(fallback, max(delta, _SMALLEST_PLD_DELTA))


def _single_grid_price(
    groups: _Groups, delta: float, factor: float
) -> Callable[[float], float]:
    """The price on the grid that resolves it at `factor`, scaled with the losses."""
    groups = _with_one_full_step(groups)
    scaled = _scaled(groups, factor)
    if not _pld_is_reliable(scaled, delta):
        return lambda other: _pld_epsilon(_scaled(groups, other), delta)
    reach = _reach(scaled, delta)
    spacing = _refine(
        scaled, lambda pld: float(pld.get_epsilon_for_delta(delta - _FFT_ERROR)), reach
    ).spacing
    ratio = spacing / _loss_stddev(scaled)

    def price(factor: float) -> float:
        scaled = _scaled(groups, factor)
        if not _pld_is_reliable(scaled, delta):
            return _fallback_epsilon(scaled, delta)
        spacing = max(ratio * _loss_stddev(scaled), _smallest_spacing(scaled, reach))
        pld = _composed_pld(scaled, spacing, reach)
        return min(
            float(pld.get_epsilon_for_delta(delta - _FFT_ERROR)),
            _gaussian_epsilon(_total_mu(scaled), delta),
        )

    return price


def _with_one_full_step(groups: _Groups) -> _Groups:
    """Full-batch steps compose exactly into one with their total mu."""
    sampled = tuple(group for group in groups if group.sampling != "full")
    full = tuple(group for group in groups if group.sampling == "full")
    if not full:
        return sampled
    return (*sampled, _Group("full", 1 / _total_mu(full), 1.0, 1))


def _pld_is_reliable(groups: _Groups, delta: float) -> bool:
    return delta >= _SMALLEST_PLD_DELTA and all(
        group.noise_multiplier >= _LEAST_NOISE_MULTIPLIER for group in groups
    )


def _fallback_epsilon(groups: _Groups, delta: float) -> float:
    return min(
        _gaussian_epsilon(_total_mu(groups), delta), _renyi_epsilon(groups, delta)
    )


def _loss_stddev(groups: _Groups) -> float:
    """Of one step's loss, averaged over the steps.

    Connecting the dots over an interval of length h adds at most h²/4 to the variance
    of one step's loss, so this is the scale that a grid has to resolve.
    """
    num_steps = sum(group.num_steps for group in groups)
    variance = sum(group.num_steps * group.loss_stddev**2 for group in groups)
    return math.sqrt(variance / num_steps)


def _reach(groups: _Groups, delta: float) -> float:
    """How many standard deviations of the signal the grid has to cover.

    Larger losses count as infinite, which adds their mass to delta: a ten-thousandth
    of it at most. A larger delta thus gets by with a shorter grid. At a reach of r a
    step's mass is q·Φ(−r) + (1 − q)·Φ(−r − μ), where Φ(−r − μ) ≤ Φ(−r)·exp(−rμ).
    It is rounded up, so that prices at several deltas share most of their grids.
    """

    def reach(weight: float) -> float:
        return -float(special.ndtri(min(0.5, 1e-4 * delta / weight)))

    least = reach(sum(g.num_steps * g.sampling_rate for g in groups))
    weight = sum(
        g.num_steps
        * (g.sampling_rate + (1 - g.sampling_rate) * math.exp(-least * g.mu))
        for g in groups
    )
    return min(_MOST_REACH, 1.5 * math.ceil(reach(weight) / 1.5))


def _smallest_spacing(groups: _Groups, reach: float) -> float:
    return _loss_range(groups, reach) / _MOST_GRID_POINTS


def _loss_range(groups: _Groups, reach: float) -> float:
    return max(_lowest_loss(group) + _highest_loss(group, reach) for group in groups)


def _highest_loss(group: _Group, reach: float) -> float:
    """The step's loss log(1 − q + q·e^L) where the Gaussian's is L, at the reach."""
    largest = _largest_loss(group.mu, reach)
    if largest < 30:
        return math.log1p(group.sampling_rate * math.expm1(largest))
    return float(np.logaddexp(0, math.log(group.sampling_rate) + largest))


def _lowest_loss(group: _Group) -> float:
    """Minus the lowest loss: sampling keeps it above log(1 − q)."""
    lowest = _largest_loss(group.mu)
    if group.sampling_rate == 1:
        return lowest
    return min(lowest, -math.log1p(-group.sampling_rate))


def _largest_loss(mu: float, reach: float = _MOST_REACH) -> float:
    """The Gaussian's privacy loss at `reach` standard deviations."""
    return mu**2 / 2 + reach * mu


class _Refined(NamedTuple):
    value: float
    converged: bool
    spacing: float


def _refine(groups: _Groups, read: Callable[[Any], float], reach: float) -> _Refined:
    """Halves the grid until the reading moves by less than a fifth of a per cent.

    Every reading is an upper bound, so the smallest of them is the answer.
    """
    spacing = max(
        0.4 * _loss_stddev(groups), _loss_range(groups, reach) / _FEWEST_GRID_POINTS
    )
    best = math.inf
    while spacing >= _smallest_spacing(groups, reach):
        finer = read(_composed_pld(groups, spacing, reach))
        if best < math.inf and abs(best - finer) <= _REFINEMENT * finer:
            return _Refined(min(best, finer), True, spacing)
        best = min(best, finer)
        spacing /= 2
    return _Refined(best, False, 2 * spacing)


@functools.lru_cache(maxsize=16)
def _composed_pld(groups: _Groups, spacing: float, reach: float) -> Any:
    """The privacy loss distribution of all the steps, rounded up to the grid."""
    total = None
    for group in groups:
        one = _single_step_pld(group, spacing, reach)
        # Masses below the smallest normal number overflow in its search for tails.
        with np.errstate(over="ignore"):
            many = one if group.num_steps == 1 else one.self_compose(group.num_steps)
        total = many if total is None else total.compose(many)
    return total


def _single_step_pld(group: _Group, spacing: float, reach: float = _MOST_REACH) -> Any:
    """The step's losses on dp-accounting's distributions.

    `"poisson"`, `"full"`: the pair P = (1−q)·N(0, 1) + q·N(μ, 1), Q = N(0, 1) for
    removing a row, and its mirror image for adding one.

    `"without_replacement"`: amplification (Balle, Barthe and Gaboardi 2018, theorem 11)
    gives δ(ε) = q·δ_Gauss(log(1 + (e^ε − 1)/q)) for ε ≥ 0, which is the curve of the
    same P and Q. The relation is symmetric, so δ(−ε) = 1 − e^−ε + e^−ε·δ(ε). The pair
    with that curve has the losses of P where they are positive, their mirror image with
    the masses of Q where negative, and the rest of its mass at zero.
    """
    # dp-accounting takes a second to import: only those who need it wait for it.
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    def distribution(first: int, masses: np.ndarray, infinite: float) -> Any:
        return pld_pmf.DensePLDPmf(spacing, first, masses, infinite, True)

    last = math.ceil(_highest_loss(group, reach) / spacing)
    if group.sampling == "without_replacement":
        half = _connected_masses(group, spacing, 0, last)
        half.mirrored[-1] += half.lower_above
        masses = np.concatenate([half.mirrored[:0:-1], half.masses])
        moved = half.masses.sum() + half.upper_above + half.mirrored.sum()
        masses[last] += half.mirrored[0] + max(0.0, 1 - moved)
        return privacy_loss_distribution.PrivacyLossDistribution(
            distribution(-last, masses, half.upper_above)
        )
    first = -math.ceil(_lowest_loss(group) / spacing)
    whole = _connected_masses(group, spacing, first, last)
    # What lies outside the grid goes up: to its lowest point, or to infinity.
    whole.masses[0] += whole.upper_below
    whole.mirrored[-1] += whole.lower_above
    return privacy_loss_distribution.PrivacyLossDistribution(
        distribution(first, whole.masses, whole.upper_above),
        distribution(-last, whole.mirrored[::-1], whole.lower_below),
    )


class _ConnectedMasses(NamedTuple):
    """A step's losses on the grid points from `first` to `last`.

    Attributes:
      masses: Under P, of the loss log(P/Q), at each grid point.
      mirrored: Under Q, of the loss log(Q/P), at minus each grid point.
      upper_below: Mass of P below the grid; likewise the other three.
    """

    masses: np.ndarray
    mirrored: np.ndarray
    upper_below: float
    upper_above: float
    lower_below: float
    lower_above: float


def _connected_masses(
    group: _Group, spacing: float, first: int, last: int
) -> _ConnectedMasses:
    """Connects the dots (Doroshenko et al. 2022) of the step's pair, P against Q.

    Between two grid points both members' masses move to the two ends so that both sums
    stay: pessimistic, and second order in the spacing. Working from the masses, and not
    from differences of delta, keeps the relative precision of the tails.
    """
    mu, rate = group.mu, group.sampling_rate
    losses = spacing * np.arange(first, last + 1)
    # Where the likelihood ratio 1 − q + q·exp(μx − μ²/2) equals exp(loss).
    inner = losses
    if rate < 1:
        with np.errstate(divide="ignore"):
            inner = np.log1p(np.maximum(-1.0, np.expm1(losses) / rate))
    points = np.concatenate([[-np.inf], inner / mu + mu / 2, [np.inf]])
    lower = _interval_masses(points)
    upper = (1 - rate) * lower + rate * _interval_masses(points - mu)
    p, q = upper[1:-1], lower[1:-1]

    shrink = -math.expm1(-spacing)
    to_right = np.clip((p - q * np.exp(losses[:-1])) / shrink, 0, p)
    masses = np.append(p - to_right, 0.0)
    masses[1:] += to_right
    # The mirrored loss is highest on the left.
    to_left = np.clip((q - p * np.exp(-losses[1:])) / shrink, 0, q)
    mirrored = np.append(to_left, 0.0)
    mirrored[1:] += q - to_left
    return _ConnectedMasses(masses, mirrored, upper[0], upper[-1], lower[0], lower[-1])


def _interval_masses(points: np.ndarray) -> np.ndarray:
    """Standard normal mass between successive points, exact in both tails."""
    below, above = special.ndtr(points), special.ndtr(-points)
    return np.where(points[1:] < 0, np.diff(below), -np.diff(above))


# ----------------------------------------------------------------------------------
# Rényi divergences

RENYI_ORDERS = tuple(
    [1 + k / 10 for k in range(1, 100)]
    + [float(k) for k in range(11, 65)]
    + [float(round(64 * 2 ** (k / 2))) for k in range(1, 24)]
)


def renyi_of_events(
    events: Sequence[GaussianEvent], orders: Sequence[float] = RENYI_ORDERS
) -> np.ndarray:
    """Rényi divergence bounds of all the events together, one for each order."""
    return _renyi(_groups(events), tuple(orders))


def renyi_to_epsilon(order: float, divergence: float, delta: float) -> float:
    """Converts one order (Canonne, Kamath and Steinke 2020, proposition 12)."""
    return max(
        0.0,
        divergence
        + math.log1p(-1 / order)
        - (math.log(delta) + math.log(order)) / (order - 1),
    )


def _renyi_epsilon(groups: _Groups, delta: float) -> float:
    divergences = _renyi(groups, RENYI_ORDERS)
    return min(
        renyi_to_epsilon(order, float(divergence), delta)
        for order, divergence in zip(RENYI_ORDERS, divergences, strict=True)
    )


def _renyi_delta(groups: _Groups, epsilon: float) -> float:
    orders = np.array(RENYI_ORDERS)
    exponents = (orders - 1) * (
        _renyi(groups, RENYI_ORDERS) - epsilon + np.log1p(-1 / orders)
    ) - np.log(orders)
    return float(min(1.0, math.exp(min(0.0, np.min(exponents)))))


def _renyi(groups: _Groups, orders: tuple[float, ...]) -> np.ndarray:
    total = np.zeros(len(orders))
    for group in groups:
        if group.noise_multiplier == 0:
            return np.full(len(orders), math.inf)
        total += group.num_steps * _single_step_renyi(
            group._replace(num_steps=1), orders
        )
    return total


@functools.lru_cache(maxsize=64)
def _single_step_renyi(group: _Group, orders: tuple[float, ...]) -> np.ndarray:
    """Divergences of one step's dominating pair, never above the unsampled ones.

    For Poisson batches the pair is P = (1−q)·N(0, 1) + q·N(μ, 1) against N(0, 1), whose
    divergence in this direction is the larger one (Mironov, Talwar and Zhang 2019).
    """
    unsampled = np.array(orders) * group.mu**2 / 2
    if group.sampling == "full" or group.mu > 20:
        return unsampled
    sampled = np.array([_sampled_divergence(group, order) for order in orders])
    return np.minimum(sampled, unsampled)


def _sampled_divergence(group: _Group, order: float) -> float:
    mu, rate = group.mu, group.sampling_rate
    if order * mu > 300:
        # The sampled bound is long past its use there.
        return math.inf
    if group.sampling == "poisson":
        moment = _log_ratio_moment(mu, rate, order, -14.0)
    else:
        # Positive losses, their mirror image, and the atom at zero between them.
        near = special.ndtr(-mu / 2)
        atom = 1 - ((1 - rate) * near + rate * special.ndtr(mu / 2)) - near
        parts = [
            _log_ratio_moment(mu, rate, order, mu / 2),
            _log_ratio_moment(mu, rate, 1 - order, mu / 2),
            math.log(atom) if atom > 0 else -math.inf,
        ]
        moment = _log_sum_exp(np.array(parts))
    return max(0.0, moment) / (order - 1)


def _log_ratio_moment(mu: float, rate: float, power: float, start: float) -> float:
    """log ∫ N(x; 0, 1)·(1 − q + q·exp(μx − μ²/2))^power dx from `start` up."""

    def log_factor(x: np.ndarray) -> np.ndarray:
        loss = mu * x - mu**2 / 2
        return power * np.logaddexp(math.log1p(-rate), math.log(rate) + loss)

    end = max(power, 0.0) * mu + 14 + abs(start)
    return _log_gaussian_integral(log_factor, start, end, mu)


def _log_gaussian_integral(
    log_factor: Callable[[np.ndarray], np.ndarray], start: float, end: float, mu: float
) -> float:
    """log ∫ N(x; 0, 1)·factor(x) dx, for factors that vary on the scale 1 / mu.

    Gauss-Legendre panels in log space: every term is positive, so nothing cancels.
    """
    panels = math.ceil((end - start) * 2 * max(1.0, mu))
    nodes, weights = np.polynomial.legendre.leggauss(10)
    edges = np.linspace(start, end, panels + 1)
    half = (edges[1] - edges[0]) / 2
    x = (edges[:-1, None] + half * (nodes + 1)).ravel()
    exponents = log_factor(x) - x**2 / 2 - 0.5 * math.log(2 * math.pi)
    return _log_sum_exp(exponents + np.tile(np.log(weights * half), panels))


def _log_sum_exp(exponents: np.ndarray) -> float:
    largest = float(np.max(exponents))
    if math.isinf(largest):
        return largest
    return largest + math.log(float(np.sum(np.exp(exponents - largest))))


# ----------------------------------------------------------------------------------
# The analytical moments accountant

_MOST_EXACT_ORDER = 500
_MOMENT_ORDERS = tuple(range(2, _MOST_EXACT_ORDER + 1)) + tuple(
    round(_MOST_EXACT_ORDER * 2 ** (k / 4)) for k in range(1, 21)
)


def _moments_epsilon(groups: _Groups, delta: float) -> float:
    """min over integer α of RDP(α) + log(1/δ)/(α − 1) (Mironov 2017, proposition 3).

    Between two integers the bound is monotone, because the log moments are
    interpolated linearly, so integers suffice.
    """
    log_inverse = math.log(1 / delta)
    mu = _total_mu(groups)
    unsampled = mu**2 / 2 + mu * math.sqrt(2 * log_inverse)
    if all(group.sampling == "full" for group in groups):
        return unsampled
    orders = np.array(_MOMENT_ORDERS)
    divergences = sum(
        group.num_steps * _moments(group._replace(num_steps=1)) for group in groups
    )
    return min(unsampled, float(np.min(divergences + log_inverse / (orders - 1))))


@functools.lru_cache(maxsize=64)
def _moments(group: _Group) -> np.ndarray:
    orders = np.array(_MOMENT_ORDERS, float)
    if group.sampling == "full":
        return orders * group.mu**2 / 2
    terms = (
        _poisson_moment_terms(group)
        if group.sampling == "poisson"
        else _without_replacement_moment_terms(group)
    )
    log_factorial = special.gammaln(np.arange(_MOMENT_ORDERS[-1] + 1) + 1.0)
    log_moments = []
    for order in _MOMENT_ORDERS:
        powers = np.arange(order + 1)
        binomial = log_factorial[order] - log_factorial[: order + 1]
        binomial = binomial - log_factorial[order::-1]
        log_moments.append(_log_sum_exp(binomial + terms(order, powers)))
    return np.maximum(0.0, log_moments) / (orders - 1)


_MomentTerms = Callable[[int, np.ndarray], np.ndarray]


def _poisson_moment_terms(group: _Group) -> _MomentTerms:
    """Exact for integer orders, adding or removing one row.

    The moment is Σ_j C(α, j)·(1−q)^(α−j)·q^j·exp(j(j−1)μ²/2).
    """
    rate, half_squared_mu = group.sampling_rate, group.mu**2 / 2

    def terms(order: int, powers: np.ndarray) -> np.ndarray:
        return (
            powers * math.log(rate)
            + (order - powers) * math.log1p(-rate)
            + powers * (powers - 1) * half_squared_mu
        )

    return terms


def _without_replacement_moment_terms(group: _Group) -> _MomentTerms:
    """Theorem 27 of Wang, Balle and Kasiviswanathan, as autodp evaluates it.

    exp of the log moment is at most 1 + Σ_{j≥2} C(α, j) qʲ·b(j), where b(j) is the
    smaller of 2·exp((j−1)·RDP(j)) and 4·sqrt(B(2⌊j/2⌋)·B(2⌈j/2⌉)) with
    B(k) = E_Q[(P/Q − 1)ᵏ]. (autodp finds B by repeated differences, which lose all
    digits for weak signals; the integral here loses none.)
    """
    mu, rate = group.mu, group.sampling_rate
    powers = np.arange(_MOMENT_ORDERS[-1] + 1, dtype=float)
    bounds = math.log(2) + powers * (powers - 1) * mu**2 / 2
    # Beyond j·mu² = 20 the first bound is the smaller one.
    last = min(_MOST_EXACT_ORDER, math.floor(20 / mu**2))
    even = {j: _log_central_moment(mu, j) for j in range(2, last + 1, 2)}
    for j in range(2, last):
        low, high = 2 * (j // 2), 2 * ((j + 1) // 2)
        if high in even:
            second = math.log(4) + 0.5 * (even[low] + even[high])
            bounds[j] = min(bounds[j], second)
    bounds = bounds + powers * math.log(rate)
    bounds[0], bounds[1] = 0.0, -math.inf

    def terms(order: int, powers: np.ndarray) -> np.ndarray:
        return bounds[: order + 1]

    return terms


def _log_central_moment(mu: float, power: int) -> float:
    """log ∫ N(x; 0, 1)·(exp(μx − μ²/2) − 1)^power dx for an even power."""

    def log_factor(x: np.ndarray) -> np.ndarray:
        loss = mu * x - mu**2 / 2
        with np.errstate(divide="ignore"):
            size = np.log(np.abs(np.expm1(np.minimum(loss, 30))))
        return power * np.where(loss > 30, loss, size)

    return _log_gaussian_integral(log_factor, -14.0, power * mu + 14, mu)


# ----------------------------------------------------------------------------------
# Strong composition


def _strong_epsilon(groups: _Groups, delta: float) -> float:
    """The best split of delta between the steps and the composition's slack."""

    def price(log_odds: float) -> float:
        slack = delta * float(special.expit(log_odds))
        return _strong_composition(groups, delta - slack, slack)

    coarse = min((float(u) for u in np.linspace(-12, 12, 25)), key=price)
    fine = min((float(u) for u in np.linspace(coarse - 1, coarse + 1, 21)), key=price)
    return min(price(fine), _strong_composition(groups, delta, 0.0))


def _strong_composition(groups: _Groups, steps_delta: float, slack: float) -> float:
    """Strong composition, or the plain sum without slack.

    With εᵢ' = log(1 + q(e^εᵢ − 1)): sqrt(2·log(1/slack)·Σ εᵢ'²) + Σ εᵢ'(e^εᵢ' − 1).
    """
    num_steps = sum(group.num_steps for group in groups)
    squares = products = total = 0.0
    for group in groups:
        step_delta = min(0.5, steps_delta / num_steps / group.sampling_rate)
        amplified = _amplified(
            _classical_epsilon(group.noise_multiplier, step_delta), group.sampling_rate
        )
        total += group.num_steps * amplified
        squares += group.num_steps * amplified**2
        products += group.num_steps * amplified * _expm1(amplified)
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
    return max(1.0, _gaussian_epsilon(1 / noise_multiplier, delta))


def _amplified(epsilon: float, rate: float) -> float:
    if epsilon > 700:
        return epsilon + math.log(rate) if rate < 1 else epsilon
    return math.log1p(rate * math.expm1(epsilon))


def _expm1(x: float) -> float:
    return math.expm1(x) if x < 700 else math.inf


_EPSILON: dict[str, Callable[[_Groups, float], float]] = {
    "pld": _pld_epsilon,
    "moments": _moments_epsilon,
    "strong": _strong_epsilon,
}


# ----------------------------------------------------------------------------------
# Calibration


def _first_guess(groups: _Groups, epsilon: float, delta: float) -> float:
    """A factor from the central limit: the composed loss is about Gaussian."""
    allowed = _largest_mu(epsilon, delta)

    def spread(factor: float) -> float:
        return math.sqrt(
            sum(g.num_steps * g.loss_stddev**2 for g in _scaled(groups, factor))
        )

    low = high = _total_mu(groups) / allowed
    while low > 1e-9 * high and spread(low) < allowed:
        low /= 2
    return high / _last_true(
        lambda ratio: spread(high / ratio) <= allowed, 1, high / low
    )


def smallest_factor(
    price: Callable[[float], float],
    target: float,
    *,
    start: float,
    stride: float = 1.3,
    precision: float = 5e-4,
) -> float:
    """The smallest factor found at which a falling price is at most the target.

    Args:
      price: Falls with the factor, apart from small numerical steps.
      target: What the price may be.
      start: A first guess.
      stride: How far from the guess the first step goes.
      precision: Stop when the price or the factor is this close, relatively.

    Returns:
      A factor whose price was computed and is at most the target.
    """
    (x_low, y_low), (x_high, y_high) = _bracket(price, target, start, stride, precision)
    while x_high > x_low * (1 + precision) and y_high < target * (1 - precision):
        # Prices are close to powers of the noise: interpolate the logarithms, but
        # never too near an end, so that the bracket always shrinks.
        share = 0.5
        if y_high > 0 and y_low < math.inf:
            share = math.log(y_low / (target * (1 - precision / 2)))
            share = min(0.95, max(0.05, share / math.log(y_low / y_high)))
        x = x_low * (x_high / x_low) ** share
        y = price(x)
        if y <= target:
            x_high, y_high = x, y
        else:
            x_low, y_low = x, y
    return x_high


_Point = tuple[float, float]


def _bracket(
    price: Callable[[float], float],
    target: float,
    start: float,
    stride: float,
    precision: float,
) -> tuple[_Point, _Point]:
    """A factor that costs too much, and one near it that does not."""
    x, y = start, price(start)
    if target * (1 - precision) <= y <= target:
        return (x, y), (x, y)
    too_much = y > target
    while 1e-12 < x < 1e12:
        following = x * stride if too_much else x / stride
        value = price(following)
        if (value > target) != too_much:
            pair = ((x, y), (following, value))
            return pair if too_much else (pair[1], pair[0])
        x, y, stride = following, value, stride**2
    if too_much:
        raise ValueError(
            f"Expected a target that noise can meet, and epsilon={target!r} is out of "
            "this accountant's reach. Ask for a larger epsilon or delta, or use "
            "accountant='pld'."
        )
    return (x, y), (x, y)


def _nudged(price: Callable[[float], float], target: float, factor: float) -> float:
    """The factor, raised by the rounding errors between it and the target."""
    nudge = 1e-15
    while price(factor) > target:
        factor *= 1 + nudge
        nudge *= 2
    return factor
