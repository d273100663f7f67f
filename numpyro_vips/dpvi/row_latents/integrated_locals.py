"""One or two continuous latents of a row, integrated out whatever the model is.

The integral of exp(log density) over them is taken by Gauss-Hermite quadrature on their
unconstrained space. Nodes lie about the Gaussian that has the mode and the curvature of
the row's density there, and are then moved to the mean and the covariance that these
first nodes find (adaptive quadrature; Naylor and Smith, 1982). Nothing is asked of the
model but its density. The gradient in the globals is that of the sum over the nodes,
which are held fixed: moving them would not change the integral. Every row is integrated
anew in every step, and nothing of it is kept.

The sum is as good as the integral where the density has one mode, as log concave ones
have. Of several modes far apart only those that the nodes come near are counted.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float
from numpyro.distributions import biject_to

from numpyro_vips.jax_tools.gauss_hermite import grid_of_nodes, root_of
from numpyro_vips.jax_tools.random_keys import threefry_key
from numpyro_vips.model.graph import ModelGraph, Site
from numpyro_vips.model.handler_stack import unvalidated
from numpyro_vips.model.log_density import row_log_density
from numpyro_vips.model.synthetic.prior_centre import initial_params
from numpyro_vips.model.synthetic.synthetic_rows import synthetic_row

# Nodes per dimension, by the number of dimensions. How exact they are is tested in
# `tests/dpvi/row_latents/test_integrated_locals.py`.
NUM_NODES = {1: 31, 2: 15}
_NEWTON_STEPS = 12
_FRACTIONS = (1.0, 0.3, 0.1, 0.0)
# How far apart gradients are compared where there is no second derivative. NumPyro's
# Bernoulli has none at a chance of exactly zero, as of seeing who is not there.
_APART = 1e-2
# The longest Newton step, in unconstrained coordinates.
_LONGEST = 5.0
# How often nodes are moved to where the nodes before them found the mass.
_MOVES = 2
# The narrowest and the widest that a Gaussian may be in some direction.
_NARROWEST = 1e-4
_WIDEST = 1e4

_Point = Float[Array, " coordinates"]
_Matrix = Float[Array, "coordinates coordinates"]
_LogDensity = Callable[[_Point], Float[Array, ""]]


class IntegratedLocals:
    """log p(row | globals), with the row's continuous latents integrated out.

    Attributes:
      solved: Names of these latents.
      method: `"integral"`.
      sums_by_messages: No, the latents are real.
    """

    method = "integral"
    sums_by_messages = False

    def __init__(self, graph: ModelGraph) -> None:
        """Lays the latents out; no private value is read.

        Raises:
          ValueError: `not_integrable` gives the reason.
        """
        reason = not_integrable(graph)
        if reason is not None:
            raise ValueError(reason)
        self._graph = graph
        self._shapes = _unconstrained_shapes(graph)
        self._sites = _continuous(graph)
        self.solved = tuple(site.name for site in self._sites)

    def __call__(
        self,
        values: Mapping[str, Float[Array, "..."]],
        row: Mapping[str, Any],
        params: Mapping[str, Any],
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        """The integral's logarithm, and whether the row may count.

        Discrete latents of the row are summed out, with an integral in each of their
        joint states.

        Args:
          values: The globals.
          row: One row of every private argument.
          params: The parameters without a prior.
        """
        graph = self._graph
        # Which sites there are is all that is read of these.
        anything = {s.name: jnp.ones(s.shape, s.dtype) for s in self._sites}

        def integral(
            latents: Mapping[str, Any],
        ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
            """The log of the integral, and whether the row is valid at all nodes."""
            known = {k: v for k, v in latents.items() if k not in self.solved}

            @jax.jit  # Traced once, and asked for in ten places.
            def density(
                free: _Point, known: Any, row: Any, params: Any
            ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
                mine, log_volume = self._constrained(free, known, row, params)
                latents = {**known, **mine}
                total, is_valid = row_log_density(graph, latents, row, params)
                return total + log_volume, is_valid

            fixed = jax.lax.stop_gradient((known, row, params))
            dtype = jnp.result_type(float)
            size = sum(map(math.prod, self._shapes.values()))
            loc, root = _gaussian_near(
                lambda free: density(free, *fixed)[0], jnp.zeros(size, dtype)
            )
            loc, root = jax.lax.stop_gradient((loc, root))
            nodes, log_weights = grid_of_nodes(NUM_NODES[size], size)
            places = loc + jnp.asarray(nodes, dtype) @ root.T
            totals, are_valid = jax.vmap(lambda x: density(x, known, row, params))(
                places
            )
            log_volume = jnp.log(jnp.diagonal(root)).sum()
            weighted = _finite(totals) + log_weights.astype(dtype)
            return jax.nn.logsumexp(weighted) + log_volume, jnp.all(are_valid)

        return row_log_density(
            graph, {**values, **anything}, row, params, sites=(), rest=integral
        )

    def _constrained(
        self, free: _Point, known: Mapping[str, Any], row: Any, params: Any
    ) -> tuple[dict[str, Any], Float[Array, ""]]:
        """Values of the latents in their supports, and the log volume of the map.

        A support may depend on globals, rows and earlier latents.
        """
        rows = {name: jnp.asarray(value)[None] for name, value in row.items()}
        mine = {s.name: jnp.ones(s.shape, s.dtype) for s in self._sites}
        log_volume, start = jnp.zeros((), free.dtype), 0
        for site in self._sites:
            messages = self._graph.run(rows, {**known, **mine}, params=params)
            transform = biject_to(messages[site.name]["fn"].support)
            shape = self._shapes[site.name]
            stop = start + math.prod(shape)
            own = free[start:stop].reshape(shape)
            mine[site.name] = transform(own)
            log_volume += jnp.sum(transform.log_abs_det_jacobian(own, mine[site.name]))
            start = stop
        return mine, log_volume


def not_integrable(graph: ModelGraph) -> str | None:
    """Why a row's continuous latents are not integrated out; None if they are."""
    for site in _continuous(graph):
        if "scale" in graph.program_outputs[site.name]:
            return f"{site.name!r} is under numpyro.handlers.scale"
    try:
        size = sum(map(math.prod, _unconstrained_shapes(graph).values()))
    except NotImplementedError as error:
        return str(error)
    if size > max(NUM_NODES):
        return f"a row has {size} numbers of its own, and up to {max(NUM_NODES)} can be"
    return None


def _continuous(graph: ModelGraph) -> list[Site]:
    return [site for site in graph.latents("local") if not site.is_discrete]


def _unconstrained_shapes(graph: ModelGraph) -> dict[str, tuple[int, ...]]:
    """The shapes of a row's continuous latents on their unconstrained space.

    Raises:
      NotImplementedError: NumPyro knows no map from the real numbers to a support.
    """
    rows = {name: value[None] for name, value in synthetic_row(graph).items()}
    latents = [site for site in graph.sites.values() if site.is_latent]
    # Of the model only shapes are looked at.
    values = {site.name: jnp.ones(site.shape, site.dtype) for site in latents}
    params = initial_params(graph, threefry_key(0))
    with unvalidated():
        messages = graph.run(rows, values, params=params)
    return {
        site.name: biject_to(messages[site.name]["fn"].support).inverse_shape(
            site.shape
        )
        for site in _continuous(graph)
    }


def _finite(values: Float[Array, "..."]) -> Float[Array, "..."]:
    """Log densities, where what is no density counts as zero."""
    return jnp.where(jnp.isnan(values), -jnp.inf, values)


def _gaussian_near(log_density: _LogDensity, start: _Point) -> tuple[_Point, _Matrix]:
    """Mean, and lower root of the covariance, of a Gaussian that is near a density."""
    gradient = jax.grad(log_density)

    def curvature(x: _Point) -> _Matrix:
        exact = jax.hessian(log_density)(x)
        ways = _APART * jnp.eye(len(x), dtype=x.dtype)
        near = jax.vmap(lambda way: gradient(x + way) - gradient(x - way))(ways)
        near = (near + near.T) / (4.0 * _APART)
        return jnp.where(jnp.all(jnp.isfinite(exact)), exact, near)

    fractions = jnp.asarray(_FRACTIONS, start.dtype)

    def newton(_: Any, x: _Point) -> _Point:
        step = _covariance(curvature(x)) @ gradient(x)
        length = jnp.sqrt(jnp.sum(step**2))
        step *= jnp.minimum(1.0, _LONGEST / jnp.where(length > 0, length, 1.0))
        step = jnp.where(jnp.isfinite(step), step, 0.0)
        tried = x + fractions[:, None] * step
        return tried[jnp.argmax(_finite(jax.vmap(log_density)(tried)))]

    mode = jax.lax.fori_loop(0, _NEWTON_STEPS, newton, start)
    mean, root = mode, _root(_covariance(curvature(mode)))
    nodes, log_weights = grid_of_nodes(NUM_NODES[len(start)], len(start))
    nodes = jnp.asarray(nodes, start.dtype)
    for _ in range(_MOVES):
        places = mean + nodes @ root.T
        logs = _finite(jax.vmap(log_density)(places)) + log_weights.astype(start.dtype)
        # Where nothing has a density, the row counts as zero anyway.
        shares = jnp.nan_to_num(jax.nn.softmax(logs))
        mean = shares @ places
        away = places - mean
        mean = jnp.where(jnp.sum(shares) > 0, mean, mode)
        covariance = (shares[:, None] * away).T @ away
        root = _root(covariance + _NARROWEST**2 * jnp.eye(len(start)))
    return mean, root


def _covariance(curvature: _Matrix) -> _Matrix:
    """The inverse of minus a matrix of one or two rows, made positive definite."""
    precision = jnp.nan_to_num(-curvature)
    middle = jnp.trace(precision) / len(precision)
    if len(precision) == 1:
        least, one = precision[0, 0], jnp.ones((1, 1), precision.dtype)
    else:
        half = 0.5 * (precision[0, 0] - precision[1, 1])
        least = middle - jnp.sqrt(half**2 + precision[0, 1] ** 2)
        one = jnp.eye(2, dtype=precision.dtype)
    # Against the gradient it would lead to where the density is least.
    floor = _WIDEST**-2 + 1e-3 * abs(middle)
    precision = precision + jnp.maximum(0.0, floor - least) * one
    if len(precision) == 1:
        return 1.0 / precision
    (a, b), (_, d) = precision
    return jnp.array([[d, -b], [-b, a]]) / (a * d - b * b)


def _root(covariance: _Matrix) -> _Matrix:
    """The Cholesky factor, of a Gaussian that is neither too narrow nor too wide."""
    return root_of(
        covariance, lambda left, _: jnp.clip(left, _NARROWEST**2, _WIDEST**2)
    )
