"""Units of the entries of a vector that rows add to a sum, as of several measurements.

Of several measurements of a row, each with a level and a scale of its own, as in

    numpyro.sample("y", dist.Normal(level, scale).to_event(1), obs=y)

rows release the vectors y and y². Noise is as large in the small entries as in the
large ones: beside a column of incomes nothing would be seen of ages. So a histogram of
each column comes first (`fitting.bounds.column_histogram`), and entries are clipped,
and get their noise, in units of the sizes that it has found. About the means of a
pilot, entries are as large as their spread, so that columns are counted there again.
Every column adds to the noise of all, and y says how large y² is: so of vectors whose
entries are powers of each other's only those of the lowest power are counted.

Units are public or released numbers, and clipping follows them, see `column_units`.
"""

import math
from collections.abc import Container, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from numpyro_vips.conjugacy.algebra.terms import OneHot, Term
from numpyro_vips.conjugacy.families.dirichlet import Dirichlet
from numpyro_vips.conjugacy.structure.statistic import Statistic
from numpyro_vips.vips.program.expectations import binding
from numpyro_vips.vips.program.named_arrays import as_rows_know
from numpyro_vips.vips.program.program import ConjugateProgram

# How far logarithms are from a line at most, for rounding, and how much they must vary.
_TOLERANCE, _LEAST_SPREAD = 1e-2, 1e-2
# Rounding may make the power of equal vectors larger than 1.
_LEAST_EXPONENT = 1.1


def vectors_of_entries(program: ConjugateProgram) -> frozenset[str]:
    """The statistics whose entries are columns of rows, and no features or groups.

    They are released a single time. A row adds to each of their entries, in a size that
    the model does not limit; to those of groups it adds by an index that it holds. The
    counts of the categories of one total are one measurement.
    """
    structure = program.structure
    of_features = {*program.features, *structure.centred, *structure.newton}
    of_totals = {
        name
        for name, factor in structure.posterior_factors.items()
        if isinstance(factor.family, Dirichlet)
    }
    indexed = {
        found[0].name
        for term in program.row_terms
        if _has_index(term) and (found := binding(structure, term)) is not None
    }

    def has_columns(statistic: Statistic) -> bool:
        factors = {structure.factor_of[latent] for latent, *_ in statistic.atoms}
        is_limited = math.isfinite(statistic.lower) and math.isfinite(statistic.upper)
        return (
            statistic.release == "once"
            and statistic.matrix is None
            and len(statistic.shape) == 1
            and statistic.shape[0] > 1
            and not statistic.summed
            and not is_limited
            and statistic.name not in indexed
            and factors.isdisjoint(of_features | of_totals)
        )

    return frozenset(s.name for s in structure.statistics if has_columns(s))


def _has_index(term: Term) -> bool:
    return any(isinstance(factor, OneHot) for factor in term.factors)


def first_entry_units(
    program: ConjugateProgram, names: frozenset[str]
) -> dict[str, Float64[np.ndarray, " _entries"]]:
    """By statistic, the units before anything is known: all are 1."""
    return {
        statistic.name: as_rows_know(np.ones(statistic.shape))
        for statistic in program.structure.statistics
        if statistic.name in names
    }


class Power(NamedTuple):
    """A vector whose entries are powers of another one's, up to constants.

    Attributes:
      of: The name of the other one.
      exponent: The power.
    """

    of: str
    exponent: float


def powers_of_others(
    entries: Mapping[str, Float64[np.ndarray, "_entries rows"]],
) -> dict[str, Power]:
    """The vectors whose entries are powers of another one's, higher than the first.

    Args:
      entries: By statistic, absolute values in some rows. Those that are not finite, or
        zero, say nothing.
    """
    found: dict[str, Power] = {}
    for name, mine in entries.items():
        of_others = [
            Power(other, _exponent(theirs, mine)) for other, theirs in entries.items()
        ]
        higher = [power for power in of_others if power.exponent > _LEAST_EXPONENT]
        if higher:
            # That of the lowest power, which is no power of others.
            found[name] = max(higher, key=lambda power: power.exponent)
    return found


def _exponent(
    base: Float64[np.ndarray, "_entries rows"],
    power: Float64[np.ndarray, "_others rows"],
) -> float:
    """The p with power = c baseᵖ, for a constant c of each entry; nan if none is."""
    is_known = (base > 0) & np.isfinite(base) if base.shape == power.shape else None
    if is_known is None:
        return math.nan
    is_known &= (power > 0) & np.isfinite(power)
    numbers = is_known.sum(1, keepdims=True)
    if not numbers.all():
        return math.nan
    logs = []
    for values in (base, power):
        logarithms = np.log(np.where(is_known, values, 1.0))
        middle = logarithms.sum(1, keepdims=True) / numbers
        logs.append(np.where(is_known, logarithms - middle, 0.0))
    square = np.vdot(logs[0], logs[0])
    if square < _LEAST_SPREAD * numbers.sum():
        return math.nan
    exponent = float(np.vdot(logs[0], logs[1]) / square)
    is_power = np.allclose(logs[1], exponent * logs[0], rtol=0.0, atol=_TOLERANCE)
    return exponent if is_power else math.nan


def suited_to_entries(
    units: Mapping[str, Float64[np.ndarray, "..."]],
    sizes: Mapping[str, Float64[np.ndarray, " _entries"]],
    *,
    powers: Mapping[str, Power],
    about_points: Container[str],
) -> dict[str, Float64[np.ndarray, "..."]]:
    """Units that suit the sizes of the entries of some statistics.

    Sums about the means of a pilot vary as much as their entries are large, and noise
    in proportion to these is equally bad for all. What is summed about zero may vary as
    its size does, such as durations, or as the root of it, such as counts. Noise in
    proportion to the root is right for counts, and of durations whose sizes have the
    ratio r it is √r times too large for the shorter ones.

    Args:
      units: Those before, by statistic.
      sizes: By statistic, how large each entry is in these, over what it would be in
        rows of unit size.
      powers: The vectors that are powers of these.
      about_points: The statistics that are taken about the means of a pilot.
    """
    of_all = {name: sizes[of] ** exponent for name, (of, exponent) in powers.items()}
    found = {
        name: as_rows_know(units[name] / (of if name in about_points else np.sqrt(of)))
        for name, of in {**of_all, **sizes}.items()
    }
    return {**units, **found}
