"""What a private result guarantees, and what it does not: for people and machines."""

import dataclasses
import functools
import math
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from numpyro_vips import _validate, accounting
from numpyro_vips.accounting import (
    ACCOUNTANTS,
    RELATIONS,
    SAMPLINGS,
    Accountant,
    GaussianEvent,
    Relation,
    Sampling,
    json_number,
)

_CURVE_DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)

_RELATION_WORDS = {
    "add_or_remove": "adding or removing one of the {unit}",
    "replace_one": "replacing one of the {unit}",
}
_SAMPLING_WORDS = {
    "poisson": "Poisson: each row by its own coin flip",
    "without_replacement": "a fixed number of rows, without replacement",
    "full": "every row in every step",
}
_ACCOUNTANT_WORDS = {
    "pld": "privacy loss distributions (exact for full batches)",
    "moments": "analytical moments accountant",
    "strong": "strong composition",
}

NOT_COVERED = (
    "several rows about one person: the protection is for single rows, and k rows are "
    "protected only about k times less",
    "what else is known or released about the same rows: other fits add up in the "
    "ledger, other publications do not",
    "facts about the population: what could be learned without the row is no secret",
    "timing and other side channels, but that the number of passes does not tell the "
    "size of a usual batch",
    "floating-point attacks on the noise: it is drawn from a cryptographic source, but "
    "as rounded double precision numbers, not exact reals",
    "what is treated as public",
)
_NOT_A_CPU = (
    "rows that make use of their place: that a row contributes the same to the last "
    "digit wherever it stands in a batch is tested on CPUs, and this fit ran on: "
    "{platform}"
)


def library_versions() -> dict[str, str]:
    """Versions of what took part in the guarantee."""
    libraries = ("numpyro_vips", "dp-accounting", "numpy", "randomgen", "scipy")
    return {
        "python": platform.python_version(),
        **{name: _installed_version(name) for name in libraries},
    }


@functools.cache  # Reading a package's metadata takes milliseconds.
def _installed_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyStatement:
    """The guarantee of one fit.

    Attributes:
      unit: Name of the plate whose rows are the protected individuals.
      relation: Which data sets are neighbours.
      sampling: How minibatches are drawn.
      epsilon: With `delta`, the fit's guarantee. Infinite means NOT PRIVATE.
      delta: Likewise.
      accountant: How `events` were priced.
      events: Every noisy release, in physical quantities.
      noise_source: Where sampling and noise come from.
      public: Everything that is treated as public: a sentence or a name each.
      clipping_norm: Bound on each row's contribution, or one for each kind of step.
      engine: `"vips"` or `"dpvi"`.
      platform: JAX's name for what worked on the rows, such as `"cpu"`; several are
        separated by commas.
      num_rows: The number of rows that the scale, the sampling rate and delta use.
      num_rows_declared: Whether the caller declared it, rather than it being the actual
        length.
      versions: Versions of the libraries that took part.
    """

    unit: str
    relation: Relation
    sampling: Sampling
    epsilon: float
    delta: float
    accountant: Accountant
    events: tuple[GaussianEvent, ...]
    noise_source: str
    public: tuple[str, ...]
    clipping_norm: float | tuple[float, ...]
    engine: str
    platform: str
    num_rows: int
    num_rows_declared: bool
    versions: Mapping[str, str] = dataclasses.field(default_factory=library_versions)

    def __post_init__(self) -> None:
        _validate.one_of(RELATIONS, relation=self.relation)
        _validate.one_of(SAMPLINGS, sampling=self.sampling)
        _validate.one_of(ACCOUNTANTS, accountant=self.accountant)
        _validate.positive_integer(num_rows=self.num_rows)
        if not self.epsilon >= 0:
            raise ValueError(
                f"Expected epsilon={self.epsilon!r} to be zero or positive."
            )
        if not 0 <= self.delta < 1:
            raise ValueError(f"Expected delta={self.delta!r} in [0, 1).")

    @property
    def is_private(self) -> bool:
        """False for an infinite epsilon."""
        return math.isfinite(self.epsilon)

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What the guarantee leaves out: a sentence each."""
        if self.platform == "cpu":
            return NOT_COVERED
        return (*NOT_COVERED, _NOT_A_CPU.format(platform=self.platform))

    @functools.cached_property
    def gaussian_dp_mu(self) -> float | None:
        """Mu of Gaussian differential privacy; see `accounting.gaussian_dp_mu`."""
        return accounting.gaussian_dp_mu(self.events)

    @property
    def is_gaussian(self) -> bool:
        """Whether `gaussian_dp_mu` says all: every step uses every row."""
        return all(event.sampling_rate == 1 for event in self.events)

    def epsilon_curve(
        self, deltas: Sequence[float] = _CURVE_DELTAS
    ) -> list[tuple[float, float]]:
        """Pairs (delta, epsilon): the events have all of these guarantees at once."""
        prices = accounting.epsilon_curve(
            self.events, deltas, accountant=self.accountant
        )
        return list(zip(deltas, prices, strict=True))

    def delta_at(self, epsilon: float) -> float:
        """The delta of the events at another epsilon."""
        return accounting.delta_of_events(
            self.events, epsilon=epsilon, accountant=self.accountant
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; infinite numbers become the string `"inf"`."""
        norms = self.clipping_norm
        return {
            "unit": self.unit,
            "relation": self.relation,
            "sampling": self.sampling,
            "private": self.is_private,
            "epsilon": json_number(self.epsilon),
            "delta": self.delta,
            "accountant": self.accountant,
            "gaussian_dp_mu": self.gaussian_dp_mu,
            "epsilon_curve": [
                {"delta": delta, "epsilon": json_number(epsilon)}
                for delta, epsilon in self.epsilon_curve()
            ],
            "events": [event.to_dict() for event in self.events],
            "noise_source": self.noise_source,
            "public": list(self.public),
            "not_covered": list(self.not_covered),
            "clipping_norm": [json_number(norm) for norm in norms]
            if isinstance(norms, tuple)
            else json_number(norms),
            "engine": self.engine,
            "platform": self.platform,
            "num_rows": self.num_rows,
            "num_rows_declared": self.num_rows_declared,
            "versions": dict(self.versions),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "PrivacyStatement":
        """The inverse of `to_dict`; what follows from the events is computed anew."""
        norms: float | str | list[float | str] = fields["clipping_norm"]
        return cls(
            unit=fields["unit"],
            relation=fields["relation"],
            sampling=fields["sampling"],
            epsilon=float(fields["epsilon"]),
            delta=float(fields["delta"]),
            accountant=fields["accountant"],
            events=tuple(GaussianEvent.from_dict(event) for event in fields["events"]),
            noise_source=fields["noise_source"],
            public=tuple(fields["public"]),
            clipping_norm=tuple(float(norm) for norm in norms)
            if isinstance(norms, list)
            else float(norms),
            engine=fields["engine"],
            # Statements of earlier versions do not say.
            platform=fields.get("platform", "unknown"),
            num_rows=int(fields["num_rows"]),
            num_rows_declared=bool(fields["num_rows_declared"]),
            versions=dict(fields["versions"]),
        )

    def __str__(self) -> str:
        """The statement as text, for people."""
        lines = ["Privacy statement", "-----------------"]
        if self.is_private:
            change = _RELATION_WORDS[self.relation].format(unit=self.unit)
            lines += [
                f"({self.epsilon:.6g}, {self.delta:.3g})-differentially private with "
                f"respect to {change}.",
            ]
            mu = self.gaussian_dp_mu
            if mu is not None:
                about = "" if self.is_gaussian else "about "
                lines.append(f"Gaussian differential privacy: {about}mu = {mu:.4g}.")
            cells = [
                f"{epsilon:.4g} at {delta:.0e}"
                for delta, epsilon in self.epsilon_curve()
            ]
            lines.append("The same releases, as epsilon at delta: " + ", ".join(cells))
        else:
            lines += [
                "NOT PRIVATE: epsilon is infinite; the result may tell about single "
                f"{self.unit}.",
                "Do not publish it if the rows are confidential.",
            ]
        norms = (
            self.clipping_norm
            if isinstance(self.clipping_norm, tuple)
            else (self.clipping_norm,)
        )
        lines += [
            f"Engine:      {self.engine}",
            f"Platform:    {self.platform}",
            f"Sampling:    {_SAMPLING_WORDS[self.sampling]}",
            f"Accountant:  {self.accountant}: {_ACCOUNTANT_WORDS[self.accountant]}",
            "Clipping:    each row's contribution to norm "
            + ", ".join(f"{norm:.6g}" for norm in norms),
            f"Randomness:  {self.noise_source}",
            "Releases:",
        ]
        lines += [f"  {_describe(event)}" for event in self.events] or ["  none"]
        lines.append("Treated as public:")
        origin = (
            "declared by the caller"
            if self.num_rows_declared
            else "the actual number, which is treated as public"
        )
        lines.append(f"  number of rows: {self.num_rows} ({origin})")
        lines += [f"  {fact}" for fact in self.public]
        lines.append("Not covered:")
        lines += [f"  {fact}" for fact in self.not_covered]
        versions = ", ".join(f"{k} {v}" for k, v in self.versions.items())
        lines.append(f"Versions:    {versions}")
        return "\n".join(lines)


def _describe(event: GaussianEvent) -> str:
    label = f"{event.label}: " if event.label else ""
    rate = "" if event.sampling_rate == 1 else f", rate {event.sampling_rate:.6g}"
    return (
        f"{label}{event.num_steps} time(s), noise standard deviation "
        f"{event.noise_stddev:.6g}, sensitivity {event.sensitivity:.6g}{rate}"
    )
