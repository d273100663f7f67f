"""What must hold of a row's numbers, or else it counts as zero."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from numpyro_vips.conjugacy.algebra.terms import OneHot, same_constant
from numpyro_vips.conjugacy.interpreter.values import Constant
from numpyro_vips.conjugacy.structure.site_densities import SiteLogDensity
from numpyro_vips.model.distributions import Distributed


def observed_part(output: Mapping[str, Any]) -> Any:
    """Whether a site's observation lies in its support, where it is not masked out."""
    in_support = output["in_support"]
    mask = output["parameters"].get("mask")
    if not isinstance(mask, Constant):
        entries = in_support.entries
        if entries is not None:
            return jnp.all(entries.values) & bool(entries.elsewhere)
        return in_support.array
    inside, seen = in_support.dense("a mask"), mask.dense("a mask")
    rank, shape = np.ndim(inside), np.shape(seen)
    if shape[:rank] == np.shape(inside) and set(shape[rank:]) <= {1}:
        seen = jnp.reshape(seen, np.shape(inside))
        inside = jnp.logical_or(inside, jnp.logical_not(seen))
    return inside


def _unmasked(output: Mapping[str, Any], legal: Any) -> Any:
    """What has to hold of a site's parameters, where they are not masked out."""
    mask = output.get("mask")
    if not isinstance(mask, Constant):
        return legal
    try:
        return jnp.logical_or(legal, jnp.logical_not(mask.dense("a mask")))
    except TypeError:  # Shapes that do not match; then every entry has to be legal.
        return legal


def legal_parameters(
    distributed: Distributed, parameters: Mapping[str, Any]
) -> list[Any]:
    """Whether the parameters that rows bring lie where NumPyro wants them."""
    checks = []
    for name in distributed.parameters:
        value = parameters[name]
        constraint = distributed.kind.arg_constraints.get(name)
        if (
            not isinstance(value, Constant)
            or not value.is_private
            or constraint is None
        ):
            continue
        try:
            legal = constraint(value.dense("a check of parameters"))
        except NotImplementedError:  # It depends on the other parameters.
            continue
        checks.append(_unmasked(parameters, legal))
    for name, component in distributed.components.items():
        checks += legal_parameters(component, parameters[name])
    return checks


def all_valid(densities: Sequence[SiteLogDensity], checks: list[Any]) -> Any:
    """Whether everything that the row brings is finite, in range and in support."""
    results = [jnp.all(check) for check in checks]
    seen: list[tuple[Any, int | None]] = []
    terms = [t for density in densities if density.is_row for t in density.form.terms]
    for factor in (f for term in terms for f in term.constants if f.is_private):
        array = factor.array
        size = factor.target.size if isinstance(factor, OneHot) else None
        if any(size == other and same_constant(array, x) for x, other in seen):
            continue
        seen.append((array, size))
        if size is not None:
            results.append(jnp.all((array >= 0) & (array < size)))
        elif jnp.issubdtype(array.dtype, jnp.floating):
            results.append(jnp.all(jnp.isfinite(array)))
    return functools.reduce(jnp.logical_and, results, jnp.ones((), bool))
