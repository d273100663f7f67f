"""How far rounding moves a clipped sum, as a part of its sensitivity.

Rows are added in double precision. A sum in which every number goes through at most h
roundings, in whatever order, differs from the exact one by at most γ(h) Σ|x_n|, with
γ(h) = h·u / (1 − h·u) and u = 2⁻⁵³ (Higham 2002, section 4.2). If no row's joint vector
is longer than B, that is at most γ(h)·N·B for N rows, in the norm of the joint vector
and whatever its scales. Where a row has several numbers for one entry of the sum, as
those of equal words of a document, h counts the addition of each of them. Leaving out a
row may change how all others are rounded, so two neighbouring sums are moved apart by
up to twice as much. B is at most the sensitivity: a row of that length may be left out,
or replaced by zeros.
"""

import dataclasses
import math
from collections.abc import Sequence

from numpyro_vips.fitting.private_step import chunks_of
from numpyro_vips.fitting.reducers.tree_sum import most_roundings
from numpyro_vips.fitting.step import Step
from numpyro_vips.jax_tools.row_sums import rows_in

_UNIT = 2.0**-53
# Roundings of a row's number besides additions: products with its weight and among its
# factors, symmetrisation, units of columns.
_PRODUCTS = 64
# Data sets of so many rows are covered in any case.
_FEW_ROWS = 2**16
# For what is rounded in single precision at the edges of a box.
_EDGES = 2.0**-22


def most_rows(num_rows: int) -> int:
    """How many rows a data set may have, given the public number of rows."""
    return max(2 * num_rows, _FEW_ROWS)


def check_number_of_rows(present: int, num_rows: int) -> None:
    """Refuses a data set for which the bound on rounding does not hold.

    Raises:
      ValueError: There are more rows than `most_rows`.
    """
    if present > most_rows(num_rows):
        raise ValueError(
            f"Expected at most {most_rows(num_rows)} rows with num_rows={num_rows}, "
            f"got {present}: the sensitivity counts the rounding of so many. Declare "
            "about as many as there are. Nothing was charged to the privacy budget."
        )


def with_rounding(
    steps: Sequence[Step], num_rows: int, max_batch_size: int | None
) -> tuple[Step, ...]:
    """The steps with what rounding adds to their sensitivity, relative to it.

    Args:
      steps: The schedule.
      num_rows: The public number of rows.
      max_batch_size: Most rows that are worked on at a time, if the caller says so.
    """
    return tuple(
        dataclasses.replace(step, rounding=_rounding(step, num_rows, max_batch_size))
        for step in steps
    )


def _rounding(step: Step, num_rows: int, max_batch_size: int | None) -> float:
    if step.only_counts:
        return 0.0  # Sums of ones are exact.
    rows = most_rows(num_rows)
    _, length = chunks_of(step, num_rows, max_batch_size)
    # Within a chunk XLA adds as it likes; chunks are added in a tree.
    within = length * max((block.additions for block in step.blocks), default=1)
    roundings = within + most_roundings(math.ceil(rows / rows_in(length))) + _PRODUCTS
    gamma = roundings * _UNIT / (1.0 - roundings * _UNIT)
    return 2.0 * rows * gamma + _EDGES
