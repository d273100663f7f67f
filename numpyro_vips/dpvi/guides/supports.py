"""Where values of latents lie, in a file."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

# Supports with a name of their own, and those made from bounds or another support.
_NAMED = {
    name: getattr(constraints, name)
    for name in (
        *("real", "real_vector", "real_matrix", "positive", "nonnegative"),
        *("unit_interval", "circular", "simplex", "softplus_positive", "l1_ball"),
        *("ordered_vector", "positive_ordered_vector", "lower_cholesky"),
        *("softplus_lower_cholesky", "scaled_unit_lower_cholesky", "corr_cholesky"),
        *("corr_matrix", "positive_definite", "positive_semidefinite"),
    )
}
_BOUNDS = {
    "greater_than": ("lower_bound",),
    "greater_than_eq": ("lower_bound",),
    "less_than": ("upper_bound",),
    "less_than_eq": ("upper_bound",),
    "interval": ("lower_bound", "upper_bound"),
    "open_interval": ("lower_bound", "upper_bound"),
}


def support_to_json(support: Any) -> dict[str, Any] | None:
    """Describes a support, so that a saved posterior needs no model; None if unknown.

    Every support described here has a bijection to the unconstrained space.
    """
    for name, known in _NAMED.items():
        if type(support) is type(known):
            return {"name": name}
    for name, bounds in _BOUNDS.items():
        if type(support) is getattr(constraints, name):
            values = [np.asarray(getattr(support, bound)).tolist() for bound in bounds]
            return {"name": name, "bounds": values}
    if type(support) is type(constraints.zero_sum(1)):
        return {"name": "zero_sum", "event_dim": int(support.event_dim)}
    if type(support) is constraints.independent:
        base = support_to_json(support.base_constraint)
        count = int(support.reinterpreted_batch_ndims)
        return base and {"name": "independent", "base": base, "count": count}
    return None


def support_from_json(described: Mapping[str, Any], dtype: Any) -> Any:
    """The inverse of `support_to_json`; arrays of bounds get `dtype`."""
    name = described["name"]
    if name in _NAMED:
        return _NAMED[name]
    if name in _BOUNDS:
        bounds = [
            jnp.asarray(bound, dtype) if isinstance(bound, list) else bound
            for bound in described["bounds"]
        ]
        return getattr(constraints, name)(*bounds)
    if name == "zero_sum":
        return constraints.zero_sum(described["event_dim"])
    if name == "independent":
        base = support_from_json(described["base"], dtype)
        return constraints.independent(base, described["count"])
    raise ValueError(
        f"The posterior has the support {name!r}, which this version of numpyro_vips "
        "does not know. Upgrade numpyro_vips."
    )
