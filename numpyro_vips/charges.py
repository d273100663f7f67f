"""The entries of a ledger."""

import dataclasses
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal

from numpyro_vips.accounting import Accountant, GaussianEvent, Relation, json_number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Charge:
    """One entry of the ledger.

    Attributes:
      label: What was fitted.
      epsilon: The entry's epsilon by itself.
      delta: The entry's delta by itself.
      relation: The neighbouring relation that both are about.
      accountant: Who priced it.
      events: Every noisy release, in physical quantities.
      time: When it was charged, ISO 8601 in UTC.
    """

    label: str
    epsilon: float
    delta: float
    relation: Relation
    accountant: Accountant
    events: tuple[GaussianEvent, ...]
    time: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-able fields; an infinite number becomes the string `"inf"`."""
        return {
            "label": self.label,
            "epsilon": json_number(self.epsilon),
            "delta": self.delta,
            "relation": self.relation,
            "accountant": self.accountant,
            "events": [event.to_dict() for event in self.events],
            "time": self.time,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Charge":
        """The inverse of `to_dict`."""
        return cls(
            label=fields["label"],
            epsilon=float(fields["epsilon"]),
            delta=float(fields["delta"]),
            relation=fields["relation"],
            accountant=fields["accountant"],
            events=tuple(GaussianEvent.from_dict(event) for event in fields["events"]),
            time=fields["time"],
        )


def exact(value: float) -> Fraction:
    """The decimal number that was written, so that ten times 0.1 is 1."""
    return Fraction(repr(float(value)))


def total(name: Literal["epsilon", "delta"], charges: tuple[Charge, ...]) -> Fraction:
    return sum((exact(getattr(charge, name)) for charge in charges), Fraction(0))
