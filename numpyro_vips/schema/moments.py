"""Means and standard deviations of a table's numbers, released once under a budget.

Of each column a row has three numbers, where u is its place in the range, from -1 to 1:

    u,  u² - 1/2,  0      if the number is there,
    0,  0,         1      if it is missing.

With the scales 1, 2 and √2 of these blocks a column's part of a row's vector has norm
√2 at most: u² + 4(u² - 1/2)² is convex in u², and so largest at 0 or 1, where it is 1
or 2. Without taking off the half, squares would have twice the noise; counting what is
missing costs nothing. How many numbers are there follows from that count and from the
number of rows, which is public.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64

from numpyro_vips import _validate, accounting
from numpyro_vips.accounting import GaussianEvent, Relation
from numpyro_vips.errors import quoted
from numpyro_vips.privacy.budget import PrivacyBudget, Spending, check_is_budget
from numpyro_vips.privacy.gaussian_mechanism import Block, GaussianMechanism
from numpyro_vips.privacy.sampling import FullBatch
from numpyro_vips.privacy.secure_random import SecureRandom
from numpyro_vips.privacy.statement import PrivacyStatement
from numpyro_vips.schema.columns import Interval

# Blocks of the release.
PLACES, SQUARES, MISSING = "places", "squares", "missing"
# What is left of the ledger is spent in this part, if the caller says nothing.
_SHARE = 0.1
# Each sum is rounded once, which moves two neighbouring ones apart by up to 2⁻⁵² of the
# number of rows; the bounds of a row's entries together are √2 of its norm at most.
_MOST_ROWS = 2**31
_ROUNDING = 2.0**-20


class ColumnMoments(NamedTuple):
    """Released moments of one column, on the scale that is encoded.

    That is the table's own, but for `LogBounded` the natural logarithm.

    Attributes:
      mean: Of the numbers that are there, within the range.
      sd: Likewise, and positive.
      mean_noise: Standard deviation of the noise in the mean, to first order.
      sd_noise: That of the noise in the standard deviation, likewise.
      is_hidden: Whether noise hides the spread: the variance that was released was less
        than one standard deviation of its noise, which stands in its place.
    """

    mean: float
    sd: float
    mean_noise: float
    sd_noise: float
    is_hidden: bool


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PrivateMoments:
    """Means and standard deviations of a table's bounded columns, and their price.

    `Schema.private_moments` makes them and `Schema.standardised` takes them. They are
    released quantities, and hold no rows.

        >>> import numpyro_vips as nv
        >>> schema = nv.Schema(age=nv.Bounded(0, 120), ill=nv.Binary())
        >>> people = {"age": np.arange(20.0, 70.0).repeat(200)}
        >>> budget = nv.PrivacyBudget(epsilon=1.0, delta=1e-6)
        >>> moments = schema.private_moments(people, budget=budget, unit="people")
        >>> abs(moments["age"].mean - 44.5) < 1, abs(moments["age"].sd - 14.4) < 1
        (True, True)
        >>> moments.privacy.engine, moments.privacy.num_rows
        ('moments', 10000)
        >>> schema.standardised(moments).design_columns
        ('age', 'ill')

    Attributes:
      moments: By column.
      columns: The public facts under which each was released.
      privacy: The privacy statement of the release.
    """

    moments: Mapping[str, ColumnMoments]
    columns: Mapping[str, Interval]
    privacy: PrivacyStatement

    def __getitem__(self, name: str) -> ColumnMoments:
        return self.moments[name]

    def __repr__(self) -> str:
        """The moments as a table, each beside its noise."""
        cells = [["", "mean", "sd of its noise", "sd", "sd of its noise", ""]]
        for name, found in self.moments.items():
            place, *_ = self.columns[name].encoded_columns(name)
            order = (found.mean, found.mean_noise, found.sd, found.sd_noise)
            numbers = (f"{number:.4g}" for number in order)
            remark = "hidden by noise" if found.is_hidden else ""
            cells.append([place.name, *numbers, remark])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join(
            "  ".join(
                cell.rjust(width) if 0 < place < 5 else cell.ljust(width)
                for place, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in cells
        )


def mechanism_of(
    num_columns: int, relation: Relation, noise_multiplier: float
) -> GaussianMechanism:
    """What adds the noise, and knows how far one row moves the sums."""
    shape = (num_columns,)
    blocks = (
        Block(name=PLACES, shape=shape, geometry="box", lower=-1.0, upper=1.0),
        Block(
            name=SQUARES, shape=shape, scale=2.0, geometry="box", lower=-0.5, upper=0.5
        ),
        Block(
            name=MISSING,
            shape=shape,
            scale=math.sqrt(2.0),
            geometry="box",
            lower=0.0,
            upper=1.0,
        ),
    )
    return GaussianMechanism(
        blocks=blocks,
        clipping_norm=math.sqrt(2.0 * num_columns),
        noise_multiplier=noise_multiplier,
        relation=relation,
        rounding=_ROUNDING,
    )


def sums_of_rows(
    places: Float[np.ndarray, "rows columns"],
) -> dict[str, Float64[np.ndarray, " columns"]]:
    """What all rows contribute, each within the bounds of `mechanism_of`.

    Args:
      places: In [-1, 1]; NaN where a number is missing.

    Returns:
      Exact sums, rounded once: not yet private.
    """
    is_missing = np.isnan(places)
    # Values may come from anywhere, and the bounds must hold whatever they are.
    u = np.where(is_missing, 0.0, places.clip(-1.0, 1.0))
    parts = {
        PLACES: u,
        SQUARES: np.where(is_missing, 0.0, u**2 - 0.5),
        MISSING: is_missing.astype(np.float64),
    }
    return {
        name: np.array([math.fsum(column) for column in part.T])
        for name, part in parts.items()
    }


def read_moments(
    noisy: Mapping[str, Float64[np.ndarray, " columns"]],
    mechanism: GaussianMechanism,
    num_rows: int,
    columns: Mapping[str, Interval],
) -> dict[str, ColumnMoments]:
    """Moments from noisy sums, which know how noisy they are.

    A mean lies in the range and a standard deviation is at most half of its length. The
    noise of the mean, squared, is added to the variance, which it makes too small on
    average. A variance below the standard deviation of its noise is read as that.

    Args:
      noisy: The release.
      mechanism: That made it.
      num_rows: The public number of rows.
      columns: The columns, in order.
    """
    of_places, of_squares, of_missing = (
        mechanism.block_noise_stddev(name) for name in (PLACES, SQUARES, MISSING)
    )
    # At least one, as every division needs.
    count = (num_rows - noisy[MISSING]).clip(1.0, num_rows)
    mean = (noisy[PLACES] / count).clip(-1.0, 1.0)
    square = noisy[SQUARES] / count  # Less a half.
    # Derivatives in the sums and the count, times their noise.
    mean_noise = np.hypot(of_places, mean * of_missing) / count
    variance = square + 0.5 - mean**2 + mean_noise**2
    variance_noise = np.sqrt(
        (2 * mean * of_places) ** 2
        + of_squares**2
        + ((2 * mean**2 - square) * of_missing) ** 2
    )
    variance_noise /= count
    is_hidden = variance < variance_noise
    # Without noise too it must be positive, where all numbers are the same.
    least = np.finfo(np.float64).eps
    sd = np.sqrt(np.maximum(variance, variance_noise).clip(least, 1.0))
    sd_noise = variance_noise / (2 * sd)
    found = {}
    for j, (name, column) in enumerate(columns.items()):
        centre, radius = column.centre_and_radius
        found[name] = ColumnMoments(
            mean=centre + radius * float(mean[j]),
            sd=radius * float(sd[j]),
            mean_noise=radius * float(mean_noise[j]),
            sd_noise=radius * float(sd_noise[j]),
            is_hidden=bool(is_hidden[j]),
        )
    return found


def release_moments(
    places: Float[np.ndarray, "rows columns"],
    columns: Mapping[str, Interval],
    *,
    budget: PrivacyBudget,
    unit: str,
    epsilon: float | None,
    delta: float | None,
    relation: Relation,
    num_rows: int | None,
    label: str | None,
    insecure_seed: int | None,
) -> PrivateMoments:
    """Charges the ledger, then sums the rows and adds noise, once.

    The arguments are those of `Schema.private_moments`, but for the rows.

    Args:
      places: Of each row and column; NaN where a number is missing.
      columns: The columns, in order.
    """
    check_is_budget(budget)
    _validate.text(unit=unit)
    public_rows = len(places) if num_rows is None else num_rows
    _validate.positive_integer(num_rows=public_rows)
    public_rows = int(public_rows)
    if len(places) > _MOST_ROWS:
        raise ValueError(
            f"Expected at most {_MOST_ROWS} rows, got {len(places)}: the sensitivity "
            "counts the rounding of so many. Nothing was charged."
        )
    what = f"means and standard deviations of {quoted(columns)}"
    is_private = budget.is_private or epsilon is not None
    # Unit noise, until its price is known.
    mechanism = mechanism_of(len(columns), relation, float(is_private))
    event = FullBatch(relation=relation).event(
        noise_stddev=mechanism.noise_stddev,
        sensitivity=mechanism.sensitivity(),
        label=what,
    )
    price = Spending(math.inf, budget.delta)
    random = SecureRandom(insecure_seed=insecure_seed)
    if is_private:
        factor, price = _priced(budget, event, epsilon, delta)
        event = accounting.scale_noise(event, factor)
        mechanism = dataclasses.replace(mechanism, noise_multiplier=factor)
        budget.charge(
            epsilon=price.epsilon,
            delta=price.delta,
            unit=unit,
            relation=relation,
            events=[event],
            label=what if label is None else label,
        )
    noisy = mechanism.add_noise(sums_of_rows(places), random.noise)
    return PrivateMoments(
        moments=read_moments(noisy, mechanism, public_rows, columns),
        columns=dict(columns),
        privacy=PrivacyStatement(
            unit=unit,
            relation=relation,
            sampling="full",
            epsilon=price.epsilon,
            delta=price.delta,
            accountant=budget.accountant,
            events=(event,) if is_private else (),
            noise_source=random.source,
            public=("names and ranges of the columns",),
            clipping_norm=mechanism.clipping_norm if is_private else math.inf,
            engine="moments",
            platform="cpu",
            num_rows=public_rows,
            num_rows_declared=num_rows is not None,
        ),
    )


def _priced(
    budget: PrivacyBudget,
    event: GaussianEvent,
    epsilon: float | None,
    delta: float | None,
) -> tuple[float, Spending]:
    """The factor on an event's noise that a share affords, and what that costs."""
    left = budget.remaining()
    if epsilon is None:
        epsilon = _SHARE * left.epsilon
    else:
        _validate.positive(epsilon=epsilon)
        epsilon = float(epsilon)
    if delta is not None:
        _validate.share_of_delta(delta=delta)
        delta = float(delta)
    else:
        # A Rényi filter has one delta for all.
        delta = left.delta if budget.composition == "rdp" else _SHARE * left.delta
    factor = budget.calibrate_events([event], epsilon=epsilon, delta=delta)
    price = accounting.epsilon_of_events(
        [accounting.scale_noise(event, factor)],
        delta=delta,
        accountant=budget.accountant,
    )
    return factor, Spending(price, delta)
