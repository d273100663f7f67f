"""The log joint density of all rows at many points of the globals, without privacy.

Nothing here clips or adds noise. It is used only where the caller has asked for a fit
without them. Everything is in double precision, whatever the caller has switched on: in
single, far from the posterior, errors of rounding are larger than the differences that
an optimiser goes by, and it ends where they are largest.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Shaped

from numpyro_vips.dpvi.guides.unconstrained import UnconstrainedSpace
from numpyro_vips.dpvi.posterior.variational_newton import Target, in_batches
from numpyro_vips.jax_tools.compared_maxima import with_compared_maxima
from numpyro_vips.jax_tools.index_ranges import indices_in_range
from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.jax_tools.row_sums import in_double
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.sparse_rows import dense_rows

# Points that are worked on at a time, and the share of a second that they may take.
_MOST_POINTS = 64
_SHARE = 0.02
# Operations of a processor in a second, and how many the exponential function takes.
_OPERATIONS = 1e9
_TRANSCENDENTAL = 20.0

# A row's log density given the unconstrained globals by name, and whether its
# observations lie in the support.
RowDensity = Callable[
    [Mapping[str, Any], Mapping[str, Any]], tuple[Float[Array, ""], Bool[Array, ""]]
]


class FullBatchDensity:
    """The globals' log joint density with any rows, on their unconstrained space."""

    def __init__(
        self,
        row_density: RowDensity,
        log_prior: Callable[[Float[Array, " size"]], Float[Array, ""]],
        space: UnconstrainedSpace,
    ) -> None:
        """Traces and compiles nothing yet.

        Args:
          row_density: A row's part.
          log_prior: The globals' log density on the unconstrained space.
          space: The globals.
        """
        self._row_density = row_density
        self._log_prior = log_prior
        self._space = space
        self._jitted_densities = jax.jit(self._values_and_gradients)
        self._jitted_valid = jax.jit(self._valid)

    def with_rows(
        self, arguments: ModelArguments, tried: Float64[np.ndarray, "points size"]
    ) -> tuple[Target, int, float]:
        """The density of these rows and the globals, and its gradient.

        Args:
          arguments: The model's, with the rows.
          tried: Points. A row that is invalid at all of them counts as zero.

        Returns:
          The density, at how many points it takes about a second, and which share of
          the rows counts as zero.
        """
        with double_precision():
            taken = dense_rows(arguments.take(range(arguments.num_rows)))
            rows = in_double(taken)
            count = arguments.num_rows
            valid = jnp.zeros(count, bool)
            of_point = self._jitted_densities.lower(jnp.asarray(tried[:1]), rows, valid)
            per_second = _points_per_second(of_point.cost_analysis())
            at_a_time = int(np.clip(_SHARE * per_second, 1, _MOST_POINTS))
            for batch, _ in in_batches(tried, at_a_time):
                valid |= self._jitted_valid(jnp.asarray(batch), rows)
            # An invalid row gives way to a valid one and is not counted: what is not
            # finite times zero is not zero, in a gradient.
            first = jnp.argmax(valid)
            share_of_zeros = float(jnp.mean(~valid))
            rows = {
                name: jnp.where(
                    valid.reshape(-1, *(1,) * (row.ndim - 1)), row, row[first]
                )
                for name, row in rows.items()
            }

        def target(
            points: Float64[np.ndarray, "points size"],
        ) -> tuple[Float64[np.ndarray, " points"], Float64[np.ndarray, "points size"]]:
            values, gradients = [], []
            with double_precision():
                for batch, number in in_batches(points, at_a_time):
                    value, gradient = self._jitted_densities(
                        jnp.asarray(batch), rows, valid
                    )
                    values.append(np.asarray(value)[:number])
                    gradients.append(np.asarray(gradient)[:number])
            return np.concatenate(values), np.concatenate(gradients)

        return target, per_second, share_of_zeros

    def _rows(
        self, z: Float[Array, " size"], rows: Mapping[str, Shaped[Array, "rows ..."]]
    ) -> tuple[Float[Array, " rows"], Bool[Array, " rows"]]:
        free = self._space.split(z)
        row = {name: array[0] for name, array in rows.items()}
        program = jax.make_jaxpr(self._row_density)(free, row)
        run = jex_core.jaxpr_as_fun(with_compared_maxima(program))

        def of_row(
            row: Mapping[str, Any],
        ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
            inputs = jax.tree.leaves((free, row))
            value, in_support = run(*inputs)
            return value, in_support & indices_in_range(program, inputs)

        return jax.vmap(of_row)(dict(rows))

    def _valid(self, points: Any, rows: Any) -> Bool[Array, " rows"]:
        def at(z: Any) -> Bool[Array, " rows"]:
            value, is_valid = self._rows(z, rows)
            return is_valid & jnp.isfinite(value)

        return jnp.any(jax.vmap(at)(points), axis=0)

    def _values_and_gradients(self, points: Any, rows: Any, valid: Any) -> Any:
        def log_joint(z: Any) -> Float[Array, ""]:
            values, in_support = self._rows(z, rows)
            counted = jnp.where(in_support, values, -jnp.inf)
            return jnp.sum(jnp.where(valid, counted, 0.0)) + self._log_prior(z)

        return jax.vmap(jax.value_and_grad(log_joint))(points)


def _points_per_second(cost: Any) -> int:
    """How often a program runs in a second, roughly, by XLA's count of its work."""
    cost = cost or {}
    transcendentals = cost.get("transcendentals", 0.0)
    work = cost.get("flops", 0.0) + _TRANSCENDENTAL * transcendentals
    return int(_OPERATIONS / max(work, 1.0))
