"""Coordinates in which globals that share a mean move together.

Effects a of groups with a ~ Normal(μ, s) may all be far from where they start, and none
of them far from the others. A row knows of one of them alone. Each would have to find
the way by itself, in steps as long as s. So there is a coordinate for all of them
together, which every row knows of, as there is one in μ + u[group] with u ~ Normal(0,
s).

The prior says which globals these are: along some direction it is wider than they are
given all others. No private value is read.
"""

from collections.abc import Callable

import jax
import jax.extend.core as jex_core
import numpy as np
from jaxtyping import Array, Bool, Float, Float64

from numpyro_vips.jax_tools.double_precision import evaluate_in_numpy
from numpyro_vips.jax_tools.jaxprs import inlined
from numpyro_vips.model.synthetic.prior_centre import units_of_prior

# By how much variances have to differ for a direction to count.
_WIDER = 2.0
# What single precision makes of an eigenvalue of zero, beside ones of one.
_ROUNDING = 1e-5


def prior_coordinates(
    log_prior: Callable[[Float[Array, " size"]], Float[Array, ""]],
    centre: Float[Array, " size"],
    is_real: Bool[np.ndarray, " size"],
    num_read: int,
) -> Float64[np.ndarray, "read read"]:
    """What coordinates are multiplied with to give the globals that rows depend on.

    The prior's curvature at its centre is that of a Normal. A direction in which this
    is wider than its coordinates are given all others is made longer, up to where a
    step moves each of its coordinates as far as one of a mean of the same width.

    Args:
      log_prior: Of all unconstrained globals.
      centre: The prior's centre.
      is_real: Which globals may be any number. Others stay as they are.
      num_read: Number of globals that rows depend on, which come first.
    """
    read = np.flatnonzero(is_real[:num_read])
    units = np.eye(num_read)
    if len(read) < 2:
        return units
    # In the precision that the model was traced in, which is traced once.
    density = jex_core.jaxpr_as_fun(
        inlined(jax.make_jaxpr(log_prior)(centre), keep_rules=True)
    )
    program = jax.make_jaxpr(jax.hessian(lambda z: density(z)[0]))(centre)
    (hessian,) = evaluate_in_numpy(program, centre)
    real = np.flatnonzero(is_real)
    precision = -hessian[np.ix_(real, real)]
    given = np.diag(precision)
    if not np.isfinite(precision).all() or np.any(given <= 0):
        return units
    scaled = precision / np.sqrt(np.outer(given, given))
    values, axes = np.linalg.eigh(scaled)
    if values[0] < -_ROUNDING:
        return units
    covariance = (axes / np.maximum(values, _ROUNDING)) @ axes.T
    wider, axes = np.linalg.eigh(covariance[: len(read), : len(read)])
    marginal = np.sqrt(np.diag(covariance) / given)[: len(read)]
    # As far as a step would go in a global that is as wide by itself.
    reach = max(1.0, float(np.max(units_of_prior(marginal))))
    longest = 1.0 + reach**2 / np.max(axes**2, axis=0)
    lengths = np.where(wider > _WIDER, np.minimum(wider, longest), 1.0) ** 0.5
    units[np.ix_(read, read)] = (axes * lengths) @ axes.T
    return units
