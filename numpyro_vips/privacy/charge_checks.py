"""Charges that no ledger takes, however large its budget is."""

import math

from numpyro_vips import accounting
from numpyro_vips.privacy.charges import Charge


def check_neighbours(first: Charge, entry: Charge) -> None:
    """Refuses a charge about other neighbours than the ledger's first."""
    if first.relation != entry.relation:
        raise ValueError(
            f"Expected relation={first.relation!r}, which this ledger's first fit "
            f"used, got {entry.relation!r}: epsilons about different neighbours do not "
            "add up. Nothing was charged. Choose the sampling that belongs to the "
            "ledger's relation, or open another ledger for other data."
        )
    if first.unit != entry.unit:
        raise ValueError(
            f"Expected unit={first.unit!r}, which this ledger's first fit protects, "
            f"got {entry.unit!r}: epsilons about different neighbours do not add up. "
            "Nothing was charged. Give the plate the same name if its rows are the "
            "same individuals, or open another ledger for the other unit."
        )


def check_price(entry: Charge) -> None:
    """Refuses a charge that is lower than what its events cost."""
    if math.isinf(entry.epsilon):
        return
    price = accounting.epsilon_of_events(
        entry.events, delta=entry.delta, accountant=entry.accountant
    )
    # Written so that a price that is not a number is refused.
    if not price <= entry.epsilon * (1 + 1e-9):
        raise ValueError(
            f"Expected epsilon={entry.epsilon!r} to be at least what the events cost "
            f"at delta={entry.delta!r}, which is {price!r} by accountant="
            f"{entry.accountant!r}. Nothing was charged. Charge that price, or "
            "calibrate the noise to the share."
        )
