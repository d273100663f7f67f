"""Compiled models at globals that are not their priors', for several tests."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _models import MODELS, Rows, away_from_prior, uncertified
from _row_by_row import row_norm, solve_locals

from numpyro_vips.vips.program.expectations import expected
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.row_sums.bounded_sum import bounded_sum
from numpyro_vips.vips.row_sums.contributions import RowInputs

SWEEPS = 3
COUNT = 48
NAMES = tuple(MODELS)


class Setup:
    """A compiled model at globals that are not its prior's, in either precision."""

    def __init__(self, fn: Callable[..., None], rows: Rows):
        self.fn = fn
        self.program: ConjugateProgram = uncertified(fn, rows)
        self.names = tuple(self.program.graph.arguments.row_shapes())
        self.rows = self.as_dict(rows)
        self.expected_natural, self.scales = away_from_prior(self.program)

    def as_dict(self, rows: Rows) -> dict[str, np.ndarray]:
        return dict(zip(self.names, rows, strict=True))

    @functools.cached_property
    def _bounded_sum(self) -> Any:
        return jax.jit(
            lambda rows, mask, norm: bounded_sum(
                self.program,
                RowInputs(self.expected_natural),
                rows,
                mask,
                self.scales,
                norm,
                SWEEPS,
            )
        )

    def bounded_sum(
        self, rows: Mapping[str, Any], mask: Any, clipping_norm: float
    ) -> dict[str, np.ndarray]:
        found = self._bounded_sum(dict(rows), jnp.asarray(mask), clipping_norm)
        return {name: np.asarray(found[name]) for name in self.scales}

    @functools.cached_property
    def _row_by_row(self) -> Any:
        def one(row: Mapping[str, Any]) -> Any:
            mine = solve_locals(self.program, self.expected_natural, row, SWEEPS)

            arrays, _ = self.program.row_constants.zero_if_invalid(row)
            terms = [term.filled(arrays) for term in self.program.row_terms]

            def value(released: Mapping[str, Any]) -> jax.Array:
                return expected(
                    self.program.structure,
                    terms,
                    {**self.expected_natural, **released},
                    mine,
                )

            made = jax.grad(value)(
                {name: self.expected_natural[name] for name in self.scales}
            )
            blocks = {
                s.name: _symmetrised(s, made[s.name])
                for s in self.program.structure.statistics
                if s.name in self.scales
            }
            return blocks, row_norm(self.program, row, mine, self.scales)

        return jax.jit(jax.vmap(one))

    def row_by_row(
        self, rows: Mapping[str, Any]
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Every row's statistics, made in full, and its norm found without them."""
        made, norms = self._row_by_row({k: jnp.asarray(v) for k, v in rows.items()})
        return {k: np.asarray(v) for k, v in made.items()}, np.asarray(norms)

    def joint_norms(self, statistics: Mapping[str, np.ndarray]) -> np.ndarray:
        """Norms over all blocks, whose first axis is that of rows."""
        squares = [
            self.scales[name] ** 2 * (value.reshape(len(value), -1) ** 2).sum(1)
            for name, value in statistics.items()
        ]
        return np.sqrt(np.sum(squares, axis=0))


def _symmetrised(statistic: Any, array: jax.Array) -> jax.Array:
    if statistic.matrix is None:
        return array
    batch, rows, columns = statistic.matrix
    array = jnp.transpose(array, (*batch, *rows, *columns))
    array = array.reshape(statistic.block_shape)
    return 0.5 * (array + jnp.swapaxes(array, -1, -2))


@functools.cache
def setup(name: str) -> Setup:
    """The model in single precision, which is what runs in practice."""
    rows = tuple(
        array.astype(np.float32) if array.dtype.kind == "f" else array
        for array in MODELS[name].rows(COUNT)
    )
    return Setup(MODELS[name].fn, rows)
