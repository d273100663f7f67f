"""Globals that are logarithms, as coefficients of a rate exp(a + b x) are.

A wide prior of such a global, as Normal(0, 1000), says nothing of how far it may be
away: at a distance of a hundred rates are beyond any number. So its prior is cut short,
as that of a scale is whose logarithm is fitted.
"""

from collections.abc import Mapping
from typing import Any

import jax.extend.core as jex_core

from numpyro_vips.dpvi.linear_predictors import linear_predictors

# What grows as an exponential, or is an exponential divided by another one.
_EXPONENTIALS = {"exp", "exp2", "expm1", "logistic", "tanh", "erf", "erfc"}


def logarithmic_globals(
    program: jex_core.ClosedJaxpr, free: Mapping[str, Any]
) -> frozenset[str]:
    """Names of the globals that a row's log density takes an exponential of.

    That is of the global itself, or of a sum that it is added to, perhaps times a
    number of the row.

    Args:
      program: A row's log density, of inputs that begin with the leaves of `free`.
      free: The globals, by name: one array each.
    """
    predictors = linear_predictors(program, free).found
    return frozenset[str]().union(
        *(of.linear_in for of in predictors if of.operation in _EXPONENTIALS)
    )
