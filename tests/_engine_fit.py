"""A model's VIPS engine with rows, to ask for sums as a fit does."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from _fits import vi_of

from numpyro_vips.vips.engine import VipsEngine

# A norm that no row of the tests comes near.
UNCLIPPED = 1e15


class EngineFit:
    """What a default fit of a model has prepared.

    Args:
      model: The model; its plate of rows is `rows`.
      rows: Its arguments, all of them private.
      options: Of `PrivateVI`.
    """

    def __init__(
        self, model: Callable[..., None], rows: tuple[np.ndarray, ...], **options: Any
    ):
        prepared, _ = vi_of(model, **options)._prepare_fit(rows, {})
        self.steps, self.parts = prepared.steps, prepared.parts
        self.engine: Any = prepared.engine
        assert isinstance(self.engine, VipsEngine)
        names = prepared.arguments.row_shapes()
        self.rows = dict(zip(names, rows, strict=True))
        self.start = self.engine.initial_state(jax.random.key(0))
        self.scales = {
            s.name: 1.0 for s in self.engine.statistics if s.release != "public"
        }

    def sums(
        self,
        state: Any,
        clipping_norm: float,
        rows: Mapping[str, Any] | None = None,
        *,
        without: int | None = None,
    ) -> dict[str, np.ndarray]:
        """The clipped sums of some rows, by default of all, without noise.

        Where one is left out, it is as in a batch that is not full: its place is
        there, and it is not. So one program sums both neighbours.
        """
        rows = self.rows if rows is None else rows
        mask = np.ones(len(next(iter(rows.values()))), bool)
        if without is not None:
            mask[without] = False
        found = self.engine.bounded_sum(
            state, rows, mask, scales=self.scales, clipping_norm=clipping_norm
        )
        return {name: np.asarray(found[name]) for name in self.scales}

    def furthest_neighbour(
        self,
        state: Any,
        clipping_norm: float,
        rows: Mapping[str, Any] | None = None,
        *,
        num_rows: int = 6,
    ) -> float:
        """How far clipped sums move, in L2 norm, if one of the first rows is gone."""
        whole, furthest = self.sums(state, clipping_norm, rows), 0.0
        for row in range(num_rows):
            without = self.sums(state, clipping_norm, rows, without=row)
            moved = [np.ravel(whole[name] - without[name]) for name in self.scales]
            furthest = max(furthest, float(np.linalg.norm(np.concatenate(moved))))
        return furthest

    def check_counted_norms(self, state: Any, *, num_rows: int = 5) -> None:
        """Norms that histograms count are those of what the first rows release."""
        norms = self.engine.row_norms(state, self.rows, sorted(self.scales))
        for row in range(num_rows):
            one = {name: array[row : row + 1] for name, array in self.rows.items()}
            for name, alone in self.sums(state, UNCLIPPED, one).items():
                np.testing.assert_allclose(
                    norms[name][row], np.linalg.norm(alone), rtol=1e-4, atol=1e-12
                )
