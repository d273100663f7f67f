"""Norms of an engine's blocks in synthetic rows, and what they say of private ones.

Nothing here is proved: rows are clipped, whatever was found, so a norm that is too
small for some costs accuracy, not privacy.
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from numpyro_vips.fitting.engine import Engine
from numpyro_vips.jax_tools.random_keys import threefry_key
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.synthetic.prior_predictive import NoValidRows, rows_from_model
from numpyro_vips.model.synthetic.synthetic_rows import (
    rows_of_unit_size,
    rows_with_codes,
)
from numpyro_vips.privacy.releases import Together

# How many synthetic rows norms are read off.
NUM_TYPICAL_ROWS = 64
# Of rows in which integers are codes, how many there are, and how many codes: as of a
# category that the model compares with 2 or 7. Some statistics are zero without it.
_NUM_CODED_ROWS, _CODES = 512, (3, 5, 10, 30)
# At the first start the gradients of all rows may be zero, as where the model clips a
# latent at its prior's centre. So many starts are tried.
_NUM_STARTS = 32
# A norm that varies by less, over rows of any size, is the structure's.
_TOLERANCE = 1e-4
# Relative error of single precision in a square over the norm that it is the square of.
_ROUNDING_OF_SQUARES = 1e-3
# How many rows have to agree on it, and the least ratio of their norms.
_NUM_AGREEING, _LEAST_RANGE = 8, 10.0


class SyntheticNorms:
    """Norms of an engine's blocks in synthetic rows."""

    def __init__(
        self, engine: Engine, arguments: ModelArguments, names: Sequence[str]
    ) -> None:
        self._engine = engine
        self._arguments = arguments
        self._names = names
        self._state_at = functools.cache(
            lambda start: engine.initial_state(threefry_key(start))
        )

    def norms(self, rows: Mapping[str, np.ndarray], start: int = 0) -> dict[str, Any]:
        """The norms of synthetic rows, as the engine has them at one of several starts.

        Args:
          rows: Rows that are not private.
          start: The number of the start.

        Returns:
          By block, the norms of those rows that have finite ones: the engine counts
          others as zero.
        """
        taken = self._arguments.as_taken(rows)
        norms = self._engine.row_norms(self._state_at(start), taken, self._names)
        counted = np.all([np.isfinite(n) for n in norms.values()], axis=0)
        return {name: norm[counted] for name, norm in norms.items()}

    def typical_norms(
        self, graph: ModelGraph
    ) -> tuple[Mapping[str, np.ndarray], dict[str, np.ndarray]]:
        """Rows of unit size, or that the model itself draws, and norms by block.

        Raises:
          ValueError: No row that was tried is a valid observation.
        """
        valid, number_seen = [], 0
        for rows in rows_of_unit_size(self._arguments, NUM_TYPICAL_ROWS):
            norms = self.norms(rows)
            if len(norms[self._names[0]]) == NUM_TYPICAL_ROWS:
                if self._are_known(norms):
                    return rows, norms
                valid, number_seen = [rows], _number_seen(norms)
        if valid and not self._engine.is_one_vector:
            coded = rows_with_codes(self._arguments, _NUM_CODED_ROWS, _CODES)
            found = self.norms(coded)
            if _number_seen(found) > number_seen:
                # No row has the product of what tells two categories apart, and a large
                # norm for it would be noise for nothing.
                sizes = (float(np.max(norms)) for norms in found.values())
                least = min(size for size in sizes if size > 0)
                return coded, {
                    name: norms if np.any(norms > 0) else np.full_like(norms, least)
                    for name, norms in found.items()
                }
        try:
            valid.append(rows_from_model(graph, NUM_TYPICAL_ROWS, seed=0).rows)
        except NoValidRows as error:
            if not valid:
                raise ValueError(
                    f"No clipping norm could be looked for in this model: {error} Pass "
                    "clipping_norm=, a bound on the L2 norm of one row's statistics, "
                    "chosen from public knowledge; or arguments of the type that the "
                    "model means, such as real numbers for what it divides by."
                ) from None
        for start in range(_NUM_STARTS):
            for rows in valid:
                norms = self.norms(rows, start)
                if self._are_known(norms):
                    return rows, norms
        # Any edge of the grid will do: the rows themselves are going to say.
        return valid[0], {name: np.ones(1) for name in self._names}

    def _are_known(self, norms: Mapping[str, np.ndarray]) -> bool:
        """Whether there is a norm above zero of every block, or of the one vector."""
        if self._engine.is_one_vector:
            # A part of it, as of a layer of a network, may well be zero at the start.
            return any(np.any(norm > 0) for norm in norms.values())
        return all(np.any(norm > 0) for norm in norms.values())


# By block, the norms of some rows.
Norms = Mapping[str, np.ndarray]


def _number_seen(norms: Norms) -> int:
    """The number of blocks of which some row has a norm above zero."""
    return sum(bool(np.any(of > 0)) for of in norms.values())


def varying_blocks(others: Sequence[Norms], largest: Mapping[str, float]) -> set[str]:
    """The blocks that are larger in rows of other sizes than in typical ones.

    It is no proof that the others are not. None is needed: rows are clipped, and a
    norm that is too small for some costs accuracy, not privacy. Where no other row is
    valid, all may vary.

    Args:
      others: Norms in rows of other sizes.
      largest: The largest norm of each block in typical rows.
    """
    varying: set[str] = set()
    was_valid = False
    for tried in others:
        for name, norms in tried.items():
            was_valid |= len(norms) > 0
            if np.any(norms > largest[name] * (1.0 + _TOLERANCE)):
                varying.add(name)
    return varying if was_valid else set(largest)


def exclusive_blocks(
    tried: Sequence[Norms], largest: Mapping[str, float]
) -> list[Together]:
    """Blocks of one size of which every row that was tried has one at most.

    So y and 1 - y of a label y. No proof, and none is needed; see `varying_blocks`.

    Args:
      tried: Norms in rows of several sizes.
      largest: The norms of the blocks that may be meant.
    """
    present = {
        name: np.concatenate([norms[name] for norms in tried]) > 0 for name in largest
    }
    groups: list[list[str]] = []
    for name, mine in present.items():
        for group in groups:
            size = largest[group[0]]
            is_alike = abs(largest[name] - size) <= _TOLERANCE * size
            met = any(np.any(mine & present[other]) for other in group)
            if is_alike and not met and mine.any():
                group.append(name)
                break
        else:
            groups.append([name])
    return [
        Together(" or ".join(group), tuple(group), None)
        for group in groups
        if len(group) > 1
    ]


class SquareOf(NamedTuple):
    """Says that a norm is a factor times the square of another, in every row.

    Attributes:
      name: The other.
      factor: Positive.
    """

    name: str
    factor: float


def square_blocks(
    tried: Sequence[Norms], names: Collection[str]
) -> dict[str, SquareOf]:
    """The blocks whose norms are squares of those of others; see `SquareOf`.

    So (y - c)² and y - c. No proof, and none is needed; see `varying_blocks`.

    Args:
      tried: Norms in rows of several sizes.
      names: The blocks that may be meant.
    """
    norms = {name: np.concatenate([of[name] for of in tried]) for name in sorted(names)}
    found: dict[str, SquareOf] = {}
    for name, mine in norms.items():
        for other, root in norms.items():
            factor = _factor_of_squares(mine, root)
            if factor is not None:
                found[name] = SquareOf(other, factor)
    # What is counted is no square itself.
    return {name: of for name, of in found.items() if of.name not in found}


def _factor_of_squares(
    squares: Float64[np.ndarray, " rows"], norms: Float64[np.ndarray, " rows"]
) -> float | None:
    """What squares of norms are multiplied by, if it is the same in all rows."""
    is_present = (norms > 0) & np.isfinite(squares)
    if np.any(squares[~is_present] > 0) or is_present.sum() < _NUM_AGREEING:
        return None
    norms = norms[is_present].astype(np.float64)
    if norms.max() < _LEAST_RANGE * norms.min():
        return None
    factors = squares[is_present] / norms**2
    factor = float(np.median(factors))
    is_same = np.all(np.abs(factors - factor) <= _ROUNDING_OF_SQUARES * factor)
    return factor if is_same and factor > 0 else None
