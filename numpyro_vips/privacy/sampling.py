"""How a step takes its rows: the choices for `PrivateVI(sampling=...)`.

Each knows the neighbouring relation that its privacy is about, and makes the event that
the accountant prices and by which rows are drawn. `docs/privacy.md` compares them.
"""

import dataclasses
import math
from typing import Any, ClassVar

from numpyro_vips import _validate
from numpyro_vips._keywords import naming_arguments
from numpyro_vips.accounting import RELATIONS, GaussianEvent, Relation, Sampling

_RATES = {"batch_size": "rate=0.1 for a tenth of the rows in each step"}


class RowSampling:
    """What all samplings have in common.

    Attributes:
      rate: Share of the rows in a minibatch, in (0, 1].
      relation: What neighbouring data sets are: one has a row more
        (`"add_or_remove"`), or one row differs (`"replace_one"`).
    """

    rate: float
    relation: Relation
    _scheme: ClassVar[Sampling]

    @property
    def scheme(self) -> Sampling:
        """How the accountant calls it; a rate of 1 takes all rows in any case."""
        return "full" if self.rate == 1.0 else self._scheme

    def stddev_of_share(self, share: float, num_rows: int) -> float:
        """How far the share of some rows in a minibatch is from that in all rows.

        The share in a minibatch is their number over the expected size of it.

        Args:
          share: The share of all rows, from 0 to 1.
          num_rows: How many these are.

        Returns:
          The standard deviation over minibatches.
        """
        variance = (1.0 - self.rate) * share / (self.rate * num_rows)
        if self.scheme == "without_replacement" and num_rows > 1:
            # The size is fixed, and no row is drawn twice (hypergeometric).
            variance *= (1.0 - share) * num_rows / (num_rows - 1)
        return math.sqrt(variance)

    def event(
        self, *, noise_stddev: float, sensitivity: float, label: str = ""
    ) -> GaussianEvent:
        """One Gaussian release from rows that are drawn like this.

        Args:
          noise_stddev: Standard deviation of the noise in each coordinate.
          sensitivity: L2 sensitivity of what is released, in `relation`.
          label: What is released, for people.
        """
        return GaussianEvent(
            noise_stddev=noise_stddev,
            sensitivity=sensitivity,
            relation=self.relation,
            sampling=self.scheme,
            sampling_rate=self.rate,
            label=label,
        )


@naming_arguments()
@dataclasses.dataclass(frozen=True, kw_only=True)
class FullBatch(RowSampling):
    """Every step uses every row. The default.

    A fixed budget gives better estimates from few steps on all rows than from many on
    some; minibatches save time.

        >>> FullBatch()
        FullBatch(relation='add_or_remove')

    Args:
      relation: `"add_or_remove"` (the default) or `"replace_one"`. The latter takes the
        number of rows for public, and its sensitivities are up to twice as large.

    Raises:
      ValueError: There is no such relation.
    """

    relation: Relation = "add_or_remove"
    rate: float = dataclasses.field(default=1.0, init=False, repr=False)
    _scheme = "full"

    def __post_init__(self) -> None:
        _validate.one_of(RELATIONS, relation=self.relation)


@dataclasses.dataclass(frozen=True, repr=False)
class _Minibatch(RowSampling):
    """Rows that are drawn at a rate."""

    rate: float

    def __post_init__(self) -> None:
        _validate.probability(rate=self.rate)
        # Also an array of no dimension, which could not be hashed.
        object.__setattr__(self, "rate", float(self.rate))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.rate!r})"


@naming_arguments(**_RATES)
@dataclasses.dataclass(frozen=True, repr=False)
class Poisson(_Minibatch):
    """Each row is in a step's minibatch by its own coin flip; add-or-remove one row.

    The size of a minibatch is random and private; estimates divide by its expectation.
    `docs/privacy_proofs.md` says how it is priced.

        >>> Poisson(0.1).relation
        'add_or_remove'

    Args:
      rate: The coin's probability, in (0, 1].

    Raises:
      TypeError, ValueError: The rate is no such number.
    """

    relation: Relation = dataclasses.field(default="add_or_remove", init=False)
    _scheme = "poisson"


@naming_arguments(**_RATES)
@dataclasses.dataclass(frozen=True, repr=False)
class WithoutReplacement(_Minibatch):
    """A step's minibatch is a uniform subset of fixed size; replace one row.

    The sampling of the VIPS and DPVI papers. The number of rows is public, and the rate
    times it a whole number.

        >>> WithoutReplacement(0.1).relation
        'replace_one'

    Args:
      rate: Share of the rows in a minibatch, in (0, 1].

    Raises:
      TypeError, ValueError: The rate is no such number.
    """

    relation: Relation = dataclasses.field(default="replace_one", init=False)
    _scheme = "without_replacement"


def as_sampling(sampling: Any) -> RowSampling:
    """What `PrivateVI(sampling=...)` means: `"full"` is short for `FullBatch()`.

    Raises:
      TypeError, ValueError: It is neither that nor a sampling.
    """
    if isinstance(sampling, RowSampling):
        return sampling
    needs_rate = {"poisson": "Poisson", "without_replacement": "WithoutReplacement"}
    if isinstance(sampling, str):
        if sampling == "full":
            return FullBatch()
        if sampling in needs_rate:
            name = needs_rate[sampling]
            raise ValueError(
                f"Expected sampling={sampling!r} to come with its rate: write "
                f"sampling=nv.{name}(rate), such as nv.{name}(0.1)."
            )
        raise ValueError(
            f"Expected sampling={sampling!r} to be 'full', nv.FullBatch(relation=), "
            "nv.Poisson(rate) or nv.WithoutReplacement(rate)."
        )
    got = f"an object of type {type(sampling).__name__}"
    if isinstance(sampling, type):
        got = f"the class {sampling.__name__} itself"
    raise TypeError(
        "Expected sampling to be 'full', nv.FullBatch(relation=), nv.Poisson(rate) or "
        f"nv.WithoutReplacement(rate), got {got}."
    )
