"""A Rényi filter: fits that are chosen one after the other, within one budget."""

from collections.abc import Sequence

from numpyro_vips.accounting.events import GaussianEvent
from numpyro_vips.accounting.renyi import (
    RENYI_ORDERS,
    renyi_of_events,
    renyi_to_epsilon,
)


def filter_epsilon(
    events: Sequence[GaussianEvent], epsilon: float, delta: float
) -> float:
    """What the filter reads after the events.

    For one order, a filter on the sum of Rényi divergences holds for fits that are
    chosen adaptively (Feldman and Zrnic 2021). Which order ends up the best may then
    depend on the results, so the orders share delta by a union bound: half of it goes
    to the order that suits full batches, fixed by the budget, the rest to a few others.

    Args:
      events: All releases so far, with one relation.
      epsilon, delta: The whole budget, by which the orders are chosen.

    Returns:
      The epsilon of the events at `delta`; it may be above the budget's.
    """
    orders, shares = _filter_orders(epsilon, delta)
    divergences = renyi_of_events(events, orders)
    return min(
        renyi_to_epsilon(order, float(divergence), share)
        for order, divergence, share in zip(orders, divergences, shares, strict=True)
    )


def _filter_orders(
    epsilon: float, delta: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    def capacity(order: float) -> float:
        # How much squared mu of full-batch releases the order admits.
        return (epsilon - renyi_to_epsilon(order, 0.0, delta / 2)) / order

    best = max(RENYI_ORDERS, key=capacity)
    # Subsampled steps suit lower orders; a ledger that is hardly used, higher ones.
    others = [1 + (best - 1) * 2 ** (k / 2) for k in (-4, -3, -2, -1, 1, 2, 4, 6, 8)]
    orders = (best, *others)
    shares = (delta / 2, *[delta / 2 / len(others)] * len(others))
    return orders, shares
