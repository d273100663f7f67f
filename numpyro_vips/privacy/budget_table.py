"""What a ledger shows of itself: what was spent on what, as text and as HTML."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from numpyro_vips import _html
from numpyro_vips.accounting import Accountant
from numpyro_vips.privacy.charges import Charge

_COLUMNS = ("charged (UTC)", "epsilon", "delta", "releases", "accountant", "for")


class BudgetTable(NamedTuple):
    """What is shown of a ledger.

    Attributes:
      head: Lines on the budget.
      rows: A line of headings, and one for each charge.
      last: What is spent, and what is left.
    """

    head: list[str]
    rows: list[tuple[str, ...]]
    last: str


def budget_table(
    *,
    epsilon: float,
    delta: float,
    composition: str,
    accountant: Accountant,
    charges: Sequence[Charge],
    spent: tuple[float, float],
    left: tuple[float, float],
) -> BudgetTable:
    """The table of a ledger.

    Args:
      epsilon, delta, composition, accountant: Those that it was opened with.
      charges: What was charged, oldest first.
      spent, left: Epsilon and delta, by its rule of composition.
    """
    kind = "" if math.isfinite(epsilon) else "   NOT PRIVATE"
    # A ledger without charges may be used for any unit.
    units = [f"Unit: {charges[0].unit}."] if charges else []
    head = [
        f"Privacy budget: epsilon = {epsilon:.6g}, "
        f"delta = {delta:.3g}, composition {composition!r}, "
        f"accountant {accountant!r}{kind}",
        *units,
    ]
    # Of the digits that are shown of the budget; calibration stops a hair below.
    rest = 0.0 if left[0] < 5e-7 * epsilon else left[0]
    last = (
        f"Spent: epsilon = {spent[0]:.6g}, delta = {spent[1]:.3g}. "
        f"Left: epsilon = {rest:.6g}, delta = {left[1]:.3g}."
    )
    return BudgetTable(head, [_COLUMNS, *map(_row, charges)], last)


def _row(charge: Charge) -> tuple[str, ...]:
    return (
        charge.time.removesuffix("+00:00").replace("T", " "),
        f"{charge.epsilon:.6g}",
        f"{charge.delta:.3g}",
        str(sum(event.num_steps for event in charge.events)),
        charge.accountant,
        charge.label or "(no label)",
    )


def as_text(table: BudgetTable) -> str:
    """The table as lines, its columns padded with spaces."""
    head, rows, last = table
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = list(head)
    for row in rows if len(rows) > 1 else []:
        cells = [cell.ljust(w) for cell, w in zip(row, widths, strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join([*lines, last])


def as_html(table: BudgetTable) -> str:
    """The table for notebooks."""
    (title, *others), (columns, *rows), last = table
    parts = [_html.heading(title), *map(_html.paragraph, others)]
    if rows:
        parts.append(_html.table(columns, rows))
    return "".join([*parts, _html.paragraph(last)])
