"""What is priced: releases in physical quantities, and groups of equal ones."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from numpyro_vips import _validate

Relation = Literal["add_or_remove", "replace_one"]
Sampling = Literal["poisson", "without_replacement", "full"]

RELATIONS = ("add_or_remove", "replace_one")
SAMPLINGS = ("poisson", "without_replacement", "full")

_LEAST_RATIO = 1e-100
_MOST_STEPS = 10**15  # Counts that floating point holds exactly, also added up.


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianEvent:
    """Identical Gaussian releases, in physical quantities.

    The sampler draws, the mechanism adds noise and the accountant prices from the
    same event, so that none of them can mean something else than the others.

    Attributes:
      noise_stddev: Standard deviation of the noise in each coordinate. Infinite noise
        hides everything, and costs nothing.
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

        >>> event = GaussianEvent(
        ...     noise_stddev=3.0,
        ...     sensitivity=2.0,
        ...     relation="add_or_remove",
        ...     sampling="poisson",
        ...     sampling_rate=0.1,
        ...     num_steps=100,
        ... )
        >>> event.noise_multiplier
        1.5
        >>> GaussianEvent.from_dict(event.to_dict()) == event
        True

    Numbers of any kind are kept as Python's own, so that no narrower type overflows
    where they are priced.

    Raises:
      ValueError: A number is out of range or not a number, or the noise is so far from
        the sensitivity that their ratio cannot be priced.
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
        _validate.nonnegative(noise_stddev=self.noise_stddev)
        _validate.positive_integer(num_steps=self.num_steps)
        _validate.probability(sampling_rate=self.sampling_rate)
        _validate.one_of(RELATIONS, relation=self.relation)
        _validate.one_of(SAMPLINGS, sampling=self.sampling)
        for name in ("noise_stddev", "sensitivity", "sampling_rate"):
            object.__setattr__(self, name, float(getattr(self, name)))
        object.__setattr__(self, "num_steps", int(self.num_steps))
        if self.num_steps > _MOST_STEPS:
            raise ValueError(
                f"Expected num_steps={self.num_steps!r} to be at most {_MOST_STEPS}."
            )
        self._check_noise()
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

    def _check_noise(self) -> None:
        if self.noise_stddev == 0:
            return
        if math.isinf(self.sensitivity):
            raise ValueError(
                f"Expected a finite sensitivity with noise_stddev={self.noise_stddev!r}"
                ": no noise hides a row of unbounded size. Clip the rows, or use "
                "noise_stddev=0 for a release that need not be private."
            )
        # Outside, the ratio or its square is zero or infinite in floating point.
        if math.isfinite(self.noise_stddev) and not (
            _LEAST_RATIO < self.noise_stddev / self.sensitivity < 1 / _LEAST_RATIO
        ):
            raise ValueError(
                f"Expected noise_stddev={self.noise_stddev!r} to lie between "
                f"{_LEAST_RATIO:g} and {1 / _LEAST_RATIO:g} times sensitivity="
                f"{self.sensitivity!r}, or to be 0 or infinite. Give both in the same "
                "units."
            )

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation over sensitivity; zero means no privacy."""
        if self.noise_stddev == 0:
            return 0.0
        return self.noise_stddev / self.sensitivity

    def to_dict(self) -> dict[str, Any]:
        """JSON-able fields; an infinite number becomes the string `"inf"`."""
        return jsonable(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "GaussianEvent":
        """The inverse of `to_dict`."""
        numbers = {
            name: float(fields[name])
            for name in ("noise_stddev", "sensitivity", "sampling_rate")
        }
        values: dict[str, Any] = {**fields, **numbers}
        return cls(**values)


def jsonable(record: object) -> Any:
    """Records and mappings as dicts, tuples as lists.

    An infinite number becomes its name, since JSON has none: `float` reads both back.
    """
    value: Any = record
    if dataclasses.is_dataclass(record):
        value = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    parts: Any = value  # Of what type is not known.
    if isinstance(value, Mapping):
        return {name: jsonable(part) for name, part in parts.items()}
    if isinstance(value, list | tuple):
        return [jsonable(part) for part in parts]
    is_number = not isinstance(value, float) or math.isfinite(value)
    return value if is_number else str(value)


def scale_noise(event: GaussianEvent, factor: float) -> GaussianEvent:
    """The event with `factor` times its noise.

    >>> event = GaussianEvent(
    ...     noise_stddev=8.0,
    ...     sensitivity=2.0,
    ...     relation="replace_one",
    ...     sampling="full",
    ...     sampling_rate=1.0,
    ... )
    >>> scale_noise(event, 0.5).noise_multiplier
    2.0
    """
    return dataclasses.replace(event, noise_stddev=event.noise_stddev * float(factor))


def unit_event(
    noise_multiplier: float, sampling_rate: float, num_steps: int, sampling: Sampling
) -> GaussianEvent:
    """Releases of sensitivity 1, in the relation that belongs to a way of sampling."""
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


def check_delta(delta: float) -> None:
    """Raises a `ValueError` unless a number is in [0, 1]."""
    _validate.nonnegative(delta=delta)
    if float(delta) > 1:
        raise ValueError(f"Expected delta={delta!r} in [0, 1].")


class StepGroup(NamedTuple):
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


Groups = tuple[StepGroup, ...]


def groups_of(events: Iterable[GaussianEvent]) -> Groups:
    """The steps of some events, equal ones merged and those that cost nothing left out.

    One step without noise is all that is returned if there is any: no other matters.
    The events may come from an iterator, of which nothing is left then.

    Raises:
      ValueError: The events have different relations.
    """
    events = tuple(events)
    if len({event.relation for event in events}) > 1:
        raise ValueError(
            "Expected all events to have the same relation, and got both "
            "'add_or_remove' and 'replace_one': their epsilons are about different "
            "neighbours and do not add up. Use one sampling for the whole fit."
        )
    steps: dict[tuple[Sampling, float, float], int] = {}
    for event in events:
        noise_multiplier = event.noise_multiplier
        # NaN, which no event should have, is no privacy.
        if not noise_multiplier > 0:
            return (
                StepGroup(event.sampling, 0.0, event.sampling_rate, event.num_steps),
            )
        if noise_multiplier < math.inf:
            sampling = "full" if event.sampling_rate == 1 else event.sampling
            key = (sampling, noise_multiplier, event.sampling_rate)
            steps[key] = steps.get(key, 0) + event.num_steps
    return tuple(StepGroup(*key, count) for key, count in sorted(steps.items()))


def scaled_groups(groups: Groups, factor: float) -> Groups:
    """The steps with `factor` times their noise."""
    return tuple(
        group._replace(noise_multiplier=group.noise_multiplier * factor)
        for group in groups
    )


def total_mu(groups: Groups) -> float:
    """The mu of the same steps on full batches: sampling never makes it worse."""
    return math.sqrt(sum(group.num_steps * group.mu**2 for group in groups))
