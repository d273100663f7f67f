"""The entries of a ledger."""

import dataclasses
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal

from numpyro_vips import _validate
from numpyro_vips.accounting import (
    ACCOUNTANTS,
    RELATIONS,
    Accountant,
    GaussianEvent,
    Relation,
    jsonable,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Charge:
    """One entry of the ledger.

    Attributes:
      label: What was fitted.
      unit: Who is protected: the name of the plate whose rows the relation is about.
      epsilon: The entry's epsilon by itself.
      delta: The entry's delta by itself.
      relation: The neighbouring relation that both are about.
      accountant: Who priced it.
      events: Every noisy release, in physical quantities.
      time: When it was charged, ISO 8601 in UTC.

    Raises:
      ValueError: A number is out of range, or an event has another relation.
    """

    label: str
    unit: str
    epsilon: float
    delta: float
    relation: Relation
    accountant: Accountant
    events: tuple[GaussianEvent, ...]
    time: str

    def __post_init__(self) -> None:
        _validate.text(unit=self.unit)
        _validate.nonnegative(epsilon=self.epsilon)
        _validate.delta(delta=self.delta)
        _validate.one_of(RELATIONS, relation=self.relation)
        _validate.one_of(ACCOUNTANTS, accountant=self.accountant)
        if any(event.relation != self.relation for event in self.events):
            raise ValueError(
                f"Expected every event to have relation={self.relation!r}, the fit's "
                "own."
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON-able fields; an infinite number becomes the string `"inf"`."""
        return jsonable(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Charge":
        """The inverse of `to_dict`."""
        values = {field.name: fields[field.name] for field in dataclasses.fields(cls)}
        values |= {name: float(values[name]) for name in ("epsilon", "delta")}
        values["events"] = tuple(map(GaussianEvent.from_dict, values["events"]))
        return cls(**values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitInSteps:
    """How far a charged fit has come that may go on after an interruption.

    Attributes:
      charge: Number of its entry in the ledger.
      steps: How many of its steps were released.
      key: What the last of them is read with in the fit's checkpoint; see
        `fitting/checkpoint.py`.
    """

    charge: int
    steps: int = 0
    key: str = ""

    def __post_init__(self) -> None:
        _validate.nonnegative(charge=self.charge, steps=self.steps)


def exact(value: float) -> Fraction:
    """The decimal number that was written, so that ten times 0.1 is 1."""
    return Fraction(repr(float(value)))


def total(name: Literal["epsilon", "delta"], charges: tuple[Charge, ...]) -> Fraction:
    """The exact sum of the charges' epsilons or deltas, as decimals."""
    return sum((exact(getattr(charge, name)) for charge in charges), Fraction(0))
