"""What a support says of the values in it."""

import math
from typing import Any

import jax.core
import numpy as np
from numpyro.distributions import constraints

from numpyro_vips.conjugacy.families.family import Range

POSITIVE = (constraints.positive, constraints.nonnegative)


_BOUNDS: tuple[tuple[Any, Range], ...] = (
    (constraints.positive, (0.0, math.inf)),
    (constraints.nonnegative, (0.0, math.inf)),
    (constraints.unit_interval, (0.0, 1.0)),
    (constraints.simplex, (0.0, 1.0)),
    (constraints.boolean, (0.0, 1.0)),
    (constraints.nonnegative_integer, (0.0, math.inf)),
    (constraints.multinomial(1), (0.0, math.inf)),
)


def bounds(support: Any) -> Range:
    """Between which numbers every entry of a value with this support lies."""
    support = base_support(support)
    for known, interval in _BOUNDS:
        if same_support(support, known):
            return interval
    if isinstance(support, type(constraints.integer_interval(0, 1))):
        lower, upper = support.lower_bound, support.upper_bound
        return (
            float(lower) if isinstance(lower, int) else -math.inf,
            float(upper) if isinstance(upper, int) else math.inf,
        )
    return -math.inf, math.inf


def base_support(support: Any) -> Any:
    """The support of single numbers or vectors, without reinterpreted batch axes."""
    while isinstance(support, type(constraints.independent(constraints.real, 1))):
        support = support.base_constraint
    return support


def same_support(support: Any, known: Any) -> bool:
    """Whether a support is one of NumPyro's that is known by its name."""
    if known is constraints.unit_interval:
        is_interval = isinstance(support, type(constraints.interval(0.0, 1.0)))
        return support is known or (
            is_interval
            and _is_everywhere(support.lower_bound, 0.0)
            and _is_everywhere(support.upper_bound, 1.0)
        )
    if known is constraints.nonnegative and isinstance(support, _FROM_A_NUMBER_ON):
        return _is_everywhere(support.lower_bound, 0.0)  # type: ignore[attr-defined]
    return support is known or type(support) is type(known)


_FROM_A_NUMBER_ON = (
    type(constraints.greater_than(0.0)),
    type(constraints.greater_than_eq(0.0)),
)


def _is_everywhere(bound: Any, number: float) -> bool:
    """Whether a bound, which may be an array, is known to be this number."""
    if isinstance(bound, jax.core.Tracer):
        return False
    return bool(np.all(np.asarray(bound) == number))


def described(support: Any) -> str:
    """A support's name, with its bounds where it has no name of its own."""
    support = base_support(support)
    name = type(support).__name__.strip("_")
    if name not in ("Interval", "GreaterThan", "GreaterThanEq", "LessThan"):
        return name
    bounds = [getattr(support, f"{end}_bound", None) for end in ("lower", "upper")]
    bounds = [bound for bound in bounds if bound is not None]
    if not all(isinstance(bound, int | float) for bound in bounds):
        return name  # Arrays would fill the message.
    return f"{name}({', '.join(f'{bound:g}' for bound in bounds)})"
