"""What a support says of the values in it."""

import math
from typing import Any

import jax.core
from numpyro.distributions import constraints

POSITIVE = (constraints.positive, constraints.nonnegative)


def is_positive(support: Any) -> bool:
    """Whether no value with this support has a negative entry."""
    support = base_support(support)
    known = (*POSITIVE, constraints.unit_interval, constraints.simplex)
    return any(same_support(support, other) for other in known)


def is_nonnegative(support: Any) -> bool:
    """Whether no value with this support, discrete ones included, is negative."""
    support = base_support(support)
    if is_positive(support):
        return True
    if isinstance(support, type(constraints.integer_interval(0, 1))):
        lower = support.lower_bound
        return isinstance(lower, int) and lower >= 0
    counts = (
        type(constraints.boolean),
        type(constraints.nonnegative_integer),
        type(constraints.multinomial(1)),
    )
    return isinstance(support, counts)


def upper_bound(support: Any) -> float:
    """The largest entry of a value with this support; infinite where none is known."""
    support = base_support(support)
    if isinstance(support, type(constraints.boolean)):
        return 1.0
    if same_support(support, constraints.unit_interval):
        return 1.0
    if same_support(support, constraints.simplex):
        return 1.0
    if isinstance(support, type(constraints.integer_interval(0, 1))):
        upper = support.upper_bound
        return float(upper) if isinstance(upper, int) else math.inf
    return math.inf


def base_support(support: Any) -> Any:
    while isinstance(support, type(constraints.independent(constraints.real, 1))):
        support = support.base_constraint
    return support


def same_support(support: Any, known: Any) -> bool:
    if known is constraints.unit_interval:
        bounds = (
            getattr(support, "lower_bound", None),
            getattr(support, "upper_bound", None),
        )
        is_interval = isinstance(support, type(constraints.interval(0.0, 1.0)))
        return support is known or (
            is_interval and not _is_traced(bounds) and bounds == (0.0, 1.0)
        )
    return support is known or type(support) is type(known)


def _is_traced(values: Any) -> bool:
    return any(isinstance(value, jax.core.Tracer) for value in values)
