"""What a private result guarantees, and what it does not: for people and machines."""

import dataclasses
import functools
import math
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

import numpy as np

from numpyro_vips import _html, _validate, accounting
from numpyro_vips.accounting import (
    ACCOUNTANTS,
    RELATIONS,
    SAMPLINGS,
    Accountant,
    GaussianEvent,
    Relation,
    Sampling,
    jsonable,
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
    "timing and other side channels; only the size of a usual batch does not show in "
    "the number of passes",
    "floating-point attacks by rows that somebody chose: noise is added exactly, and "
    "the rounding of sums is part of the sensitivity. It is tested, not proved, that a "
    "row contributes the same whichever rows stand beside it. Of statistics with more "
    "than 512 entries that are sums within a row the rounding is not proved small",
    "what is treated as public",
)
_NOT_A_CPU = (
    "rows that make use of their place: that a row contributes the same to the last "
    "digit wherever it stands in a batch is tested on CPUs, and this fit ran on: "
    "{platform}"
)


def library_versions() -> dict[str, str]:
    """Versions of what took part in the guarantee."""
    libraries = (
        "numpyro_vips",
        "dp-accounting",
        "mpmath",
        "numpy",
        "randomgen",
        "scipy",
    )
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
class NoisyShare:
    """A released share of the rows, and how far it may be from that of all rows.

    Attributes:
      share: As released. Noise, and minibatches of other sizes than expected, may take
        it below 0 or above 1.
      stddev: Standard deviation of the noise and of how rows are drawn together.
    """

    share: float
    stddev: float

    def __str__(self) -> str:
        """The share in per cent, from 0 to 100, such as "31 % (sd 2 %)"."""
        share, stddev = 100 * min(1.0, max(0.0, self.share)), 100 * self.stddev
        if not stddev:
            return f"{float(f'{share:.2g}'):g} %"
        digits = max(0, 1 - math.floor(math.log10(stddev))) if 0 < stddev < 10 else 0
        return f"{share:.{digits}f} % (sd {stddev:.{digits}f} %)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyStatement:
    """The guarantee of one fit, as `result.privacy` holds it, or of other releases.

        >>> noise = accounting.GaussianEvent(
        ...     noise_stddev=20.0,
        ...     sensitivity=1.0,
        ...     relation="add_or_remove",
        ...     sampling="full",
        ...     sampling_rate=1.0,
        ...     num_steps=10,
        ... )
        >>> statement = PrivacyStatement(
        ...     unit="people",
        ...     relation="add_or_remove",
        ...     sampling="full",
        ...     epsilon=0.7,
        ...     delta=1e-5,
        ...     accountant="pld",
        ...     events=(noise,),
        ...     noise_source="ChaCha20",
        ...     public=("number of rows",),
        ...     clipping_norm=1.0,
        ...     engine="vips",
        ...     platform="cpu",
        ...     num_rows=1000,
        ...     num_rows_declared=True,
        ... )
        >>> statement.is_private, round(statement.gaussian_dp_mu, 3)
        (True, 0.158)
        >>> [(delta, round(eps, 2)) for delta, eps in statement.epsilon_curve([1e-6])]
        [(1e-06, 0.65)]
        >>> statement.delta_at(0.7) < 1e-5
        True
        >>> PrivacyStatement.from_dict(statement.to_dict()) == statement
        True
        >>> print(str(statement).splitlines()[2].split(" with ")[0])
        (0.7, 1e-05)-differentially private

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
      engine: `"vips"` or `"dpvi"`; `"moments"` of `Schema.private_moments`.
      platform: JAX's name for what worked on the rows, such as `"cpu"`; several are
        separated by commas.
      num_rows: The number of rows that the scale, the sampling rate and delta use.
      num_rows_declared: Whether the caller declared it, rather than it being the actual
        length.
      shares: Released shares of the rows, such as of those that were clipped, by name.
      remarks: What released numbers say of bounds, rows and priors that a reader of the
        posterior should know: a sentence or some each. They are no part of the
        guarantee, which holds as it is.
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
    shares: Mapping[str, NoisyShare] = dataclasses.field(
        default_factory=dict[str, NoisyShare]
    )
    remarks: tuple[str, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=library_versions)

    def __post_init__(self) -> None:
        _validate.one_of(RELATIONS, relation=self.relation)
        _validate.one_of(SAMPLINGS, sampling=self.sampling)
        _validate.one_of(ACCOUNTANTS, accountant=self.accountant)
        _validate.positive_integer(num_rows=self.num_rows)
        _validate.nonnegative(epsilon=self.epsilon)
        _validate.delta(delta=self.delta)

    @property
    def is_private(self) -> bool:
        """Whether epsilon is finite; if not, there is no noise and no guarantee.

        >>> import jax, numpy as np
        >>> import numpyro, numpyro.distributions as dist
        >>> import numpyro_vips as nv
        >>> @nv.private(unit="people")
        ... def model(y):
        ...     p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        ...     with numpyro.plate("people", len(y)):
        ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
        >>> budget = nv.PrivacyBudget(epsilon=1.0, delta=1e-6)
        >>> vi = nv.PrivateVI(model, budget=budget, progress_bar=False)
        >>> result = vi.run(jax.random.key(0), np.repeat([0, 1], [900, 2900]))
        >>> privacy = result.privacy
        >>> privacy.is_private
        True
        """
        return math.isfinite(self.epsilon)

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What the guarantee leaves out: a sentence each.

        >>> import jax, numpy as np
        >>> import numpyro, numpyro.distributions as dist
        >>> import numpyro_vips as nv
        >>> @nv.private(unit="people")
        ... def model(y):
        ...     p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        ...     with numpyro.plate("people", len(y)):
        ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
        >>> budget = nv.PrivacyBudget(epsilon=1.0, delta=1e-6)
        >>> vi = nv.PrivateVI(model, budget=budget, progress_bar=False)
        >>> result = vi.run(jax.random.key(0), np.repeat([0, 1], [900, 2900]))
        >>> privacy = result.privacy
        >>> privacy.not_covered[0].split(':')[0]
        'several rows about one person'
        """
        if self.platform == "cpu":
            return NOT_COVERED
        return (*NOT_COVERED, _NOT_A_CPU.format(platform=self.platform))

    @functools.cached_property
    def gaussian_dp_mu(self) -> float | None:
        """Mu of Gaussian differential privacy; see `accounting.gaussian_dp_mu`.

        >>> import jax, numpy as np
        >>> import numpyro, numpyro.distributions as dist
        >>> import numpyro_vips as nv
        >>> @nv.private(unit="people")
        ... def model(y):
        ...     p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        ...     with numpyro.plate("people", len(y)):
        ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
        >>> budget = nv.PrivacyBudget(epsilon=1.0, delta=1e-6)
        >>> vi = nv.PrivateVI(model, budget=budget, progress_bar=False)
        >>> result = vi.run(jax.random.key(0), np.repeat([0, 1], [900, 2900]))
        >>> privacy = result.privacy
        >>> round(privacy.gaussian_dp_mu, 3)
        0.237
        """
        return accounting.gaussian_dp_mu(self.events)

    @property
    def is_gaussian(self) -> bool:
        """Whether `gaussian_dp_mu` says all: every step uses every row."""
        return all(event.sampling_rate == 1 for event in self.events)

    def epsilon_curve(
        self, deltas: Sequence[float] = _CURVE_DELTAS
    ) -> list[tuple[float, float]]:
        """Pairs (delta, epsilon): the events have all of these guarantees at once.

            >>> import jax, numpy as np
            >>> import numpyro, numpyro.distributions as dist
            >>> import numpyro_vips as nv
            >>> @nv.private(unit="people")
            ... def model(y):
            ...     p = numpyro.sample("p", dist.Beta(1.0, 1.0))
            ...     with numpyro.plate("people", len(y)):
            ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
            >>> budget = nv.PrivacyBudget(epsilon=1.0, delta=1e-6)
            >>> vi = nv.PrivateVI(model, budget=budget, progress_bar=False)
            >>> result = vi.run(jax.random.key(0), np.repeat([0, 1], [900, 2900]))
            >>> privacy = result.privacy
            >>> curve = privacy.epsilon_curve([1e-8, 1e-6, 1e-4])
            >>> [(delta, round(epsilon, 2)) for delta, epsilon in curve]
            [(1e-08, 1.22), (1e-06, 1.0), (0.0001, 0.73)]

        Args:
          deltas: Target deltas in [0, 1]; by default powers of ten from 1e-3 to 1e-9.

        Returns:
          The pairs, in the order of `deltas`. Epsilon is infinite where none can be
          proved, as at a delta of 0.
        """
        price = functools.partial(
            accounting.epsilon_of_events, self.events, accountant=self.accountant
        )
        return [(delta, price(delta=delta)) for delta in deltas]

    def delta_at(self, epsilon: float) -> float:
        """The least delta at which the same releases are (epsilon, delta)-private.

        >>> import jax, numpy as np
        >>> import numpyro, numpyro.distributions as dist
        >>> import numpyro_vips as nv
        >>> @nv.private(unit="people")
        ... def model(y):
        ...     p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        ...     with numpyro.plate("people", len(y)):
        ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
        >>> budget = nv.PrivacyBudget(epsilon=1.0, delta=1e-6)
        >>> vi = nv.PrivateVI(model, budget=budget, progress_bar=False)
        >>> result = vi.run(jax.random.key(0), np.repeat([0, 1], [900, 2900]))
        >>> privacy = result.privacy
        >>> round(privacy.delta_at(0.5), 5)
        0.00189
        """
        return accounting.delta_of_events(
            self.events, epsilon=epsilon, accountant=self.accountant
        )

    def to_dict(self) -> dict[str, Any]:
        """The statement as JSON-able values; an infinite number becomes `"inf"`.

        >>> import json
        >>> import jax, numpy as np
        >>> import numpyro, numpyro.distributions as dist
        >>> import numpyro_vips as nv
        >>> @nv.private(unit="people")
        ... def model(y):
        ...     p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        ...     with numpyro.plate("people", len(y)):
        ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
        >>> budget = nv.PrivacyBudget(epsilon=1.0, delta=1e-6)
        >>> vi = nv.PrivateVI(model, budget=budget, progress_bar=False)
        >>> result = vi.run(jax.random.key(0), np.repeat([0, 1], [900, 2900]))
        >>> privacy = result.privacy
        >>> fields = json.loads(json.dumps(privacy.to_dict()))
        >>> fields["delta"], fields["relation"], fields["private"]
        (1e-06, 'add_or_remove', True)
        >>> PrivacyStatement.from_dict(fields) == privacy
        True
        """
        curve = [
            {"delta": delta, "epsilon": eps} for delta, eps in self.epsilon_curve()
        ]
        return jsonable(self) | {
            "private": self.is_private,
            "gaussian_dp_mu": self.gaussian_dp_mu,
            "epsilon_curve": jsonable(curve),
            "not_covered": list(self.not_covered),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "PrivacyStatement":
        """The inverse of `to_dict`; what follows from the events is computed anew."""
        values = {field.name: fields[field.name] for field in dataclasses.fields(cls)}
        values |= {name: float(values[name]) for name in ("epsilon", "delta")}
        norms: Any = values["clipping_norm"]
        several = not isinstance(norms, float | int | str)
        values["clipping_norm"] = tuple(map(float, norms)) if several else float(norms)
        values["events"] = tuple(map(GaussianEvent.from_dict, values["events"]))
        values["public"] = tuple(values["public"])
        values["remarks"] = tuple(values["remarks"])
        values["shares"] = {k: NoisyShare(**v) for k, v in values["shares"].items()}
        return cls(**values)

    def __str__(self) -> str:
        """The statement as text, for people."""
        lines = ["Privacy statement", "-----------------", *self._guarantee()]
        for name, value in self._facts():
            if isinstance(value, str):
                lines.append(f"{name + ':':<12} {value}")
            else:
                lines += [f"{name}:", *(f"  {text}" for text in value)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The statement for notebooks, as HTML."""
        return (
            _html.heading("Privacy statement")
            + "".join(map(_html.paragraph, self._guarantee()))
            + _html.facts(self._facts())
        )

    def _guarantee(self) -> list[str]:
        """What holds, or that nothing does: a paragraph each."""
        if not self.is_private:
            return [
                "NOT PRIVATE: epsilon is infinite; the result may reveal facts about "
                f"single {self.unit}.",
                "Do not publish it if the rows are confidential.",
            ]
        change = _RELATION_WORDS[self.relation].format(unit=self.unit)
        lines = [
            f"({self.epsilon:.6g}, {self.delta:.3g})-differentially private with "
            f"respect to {change}."
        ]
        mu = self.gaussian_dp_mu
        if mu is not None:
            about = "" if self.is_gaussian else "about "
            lines.append(f"Gaussian differential privacy: {about}mu = {mu:.4g}.")
        cells = [f"{eps:.4g} at {delta:.0e}" for delta, eps in self.epsilon_curve()]
        text = "The same releases, as epsilon at delta: " + ", ".join(cells)
        return [*lines, text]

    def _facts(self) -> list[tuple[str, str | list[str]]]:
        """Names, each with a text or a list of texts."""
        norms = np.atleast_1d(self.clipping_norm)
        origin = (
            "declared by the caller"
            if self.num_rows_declared
            else "the actual number, which is treated as public"
        )
        accountant = f"{self.accountant}: {_ACCOUNTANT_WORDS[self.accountant]}"
        clipping = "each row's contribution to norm "
        clipping += ", ".join(f"{norm:.6g}" for norm in norms)
        versions = ", ".join(f"{k} {v}" for k, v in self.versions.items())
        shares = [f"{value} {name}" for name, value in self.shares.items()]
        return [
            ("Engine", self.engine),
            ("Platform", self.platform),
            ("Sampling", _SAMPLING_WORDS[self.sampling]),
            ("Accountant", accountant),
            ("Clipping", clipping),
            ("Randomness", self.noise_source),
            ("Releases", [_describe(event) for event in self.events] or ["none"]),
            *([("Of all rows", shares)] if shares else []),
            *([("Remarks", list(self.remarks))] if self.remarks else []),
            (
                "Treated as public",
                [f"number of rows: {self.num_rows} ({origin})", *self.public],
            ),
            ("Not covered", list(self.not_covered)),
            ("Versions", versions),
        ]


def _describe(event: GaussianEvent) -> str:
    label = f"{event.label}: " if event.label else ""
    times = "once" if event.num_steps == 1 else f"{event.num_steps} times"
    rate = "" if event.sampling_rate == 1 else f", rate {event.sampling_rate:.6g}"
    return (
        f"{label}{times}, noise standard deviation "
        f"{event.noise_stddev:.6g}, sensitivity {event.sensitivity:.6g}{rate}"
    )
