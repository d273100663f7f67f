"""Where the clipping norms of a fit come from, and the scales of its blocks.

The first of these that applies:

1. The caller's `clipping_norm=`.
2. The model's structure: a statistic whose norm has the same limit whatever the numbers
   of a row are, such as the indicator of a category; or whatever numbers the schema
   that has encoded a row can make of one.
3. A private histogram of the norms of all rows, see `norm_histogram`. It is paid for,
   and repeated where norms depend on the globals.
4. Where no bin of the histogram stands out of its noise, as with few rows: synthetic
   rows of unit size.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from numpyro_vips import _validate
from numpyro_vips.accounting import Relation
from numpyro_vips.fitting.bounds.norm_histogram import (
    UNBALANCED,
    UNBALANCED_EXPOSED,
    norm_grid,
)
from numpyro_vips.fitting.engine import Engine
from numpyro_vips.jax_tools.random_keys import threefry_key
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.exposures import exposures
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.prior_predictive import NoValidRows, rows_from_model
from numpyro_vips.model.synthetic_rows import (
    encoded_rows,
    rows_of_other_sizes,
    rows_of_unit_size,
)
from numpyro_vips.privacy.gaussian_mechanism import Block, optimal_scales
from numpyro_vips.privacy.releases import (
    SQUARES,
    WHOLE_VECTOR,
    Columns,
    Release,
    Together,
)

# How many synthetic rows norms are read off.
NUM_TYPICAL_ROWS = 64
# At the first start the gradients of all rows may be zero, as where the model clips a
# latent at its prior's centre. So many starts are tried.
_NUM_STARTS = 32
# Well within the range of norms that mechanisms take.
_SMALLEST, _LARGEST = 1e-29, 1e29
# Residuals of labels, y - σ(ψ), are at the start, where all logits are zero, half as
# large as they may become.
_MOST_GROWN = 2.0
# A norm that varies by less, over rows of any size, is the structure's.
_TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class NormPart:
    """A part of the joint vector that has a norm of its own.

    Attributes:
      name: The statistic, or `WHOLE_VECTOR`.
      blocks: Names of its blocks.
      reference: Its norm in synthetic rows of unit size.
      is_fixed: Whether the structure bounds it by that, whatever a row holds.
      is_balanced: Whether rows' contributions add up to about zero at the optimum, as
        gradients do.
      is_lasting: Whether some rows stay as large as a histogram has found them.
      directions: See `Together`; None for one block.
      columns: Those of its columns that get a histogram each, see `column_histogram`;
        None without any.
      is_late: Whether its histogram comes right before its release, as the globals are
        where it is released only then. Where that shows nothing, the norm follows from
        those of the other parts.
      unbalanced: Which part of what is clipped off differences to redrawn rows does not
        add up to zero; see `SeenNorms.least_variance`.
    """

    name: str
    blocks: tuple[str, ...]
    reference: float
    is_fixed: bool = False
    is_balanced: bool = False
    is_lasting: bool = False
    directions: int | None = None
    columns: Columns | None = None
    is_late: bool = False
    unbalanced: float = UNBALANCED

    @property
    def grid(self) -> np.ndarray:
        """The edges of its histogram, see `norm_grid`."""
        return norm_grid(self.reference)


def norm_parts(engine: Engine, graph: ModelGraph) -> tuple[NormPart, ...]:
    """What has a norm, and what is known of it before rows are read.

    Args:
      engine: What there is to release.
      graph: The model, of whose rows only shapes and types are looked at.

    Raises:
      ValueError: No synthetic row is a valid observation of the model.
    """
    kinds: tuple[Release, ...] = ("once", "refreshed", "adaptive")
    if not engine.is_one_vector:
        # That of one vector is looked at when the globals are near to where they end.
        kinds += ("information",)
    names = [block.name for blocks in map(engine.blocks, kinds) for block in blocks]
    if not names:
        return ()
    trial = _Trial(engine, graph.arguments, names)
    rows, norms = trial.typical_norms(graph)
    typical = {name: norms[name] for name in names}
    if engine.is_one_vector:
        return _parts_of_one_vector(engine, graph, typical)
    return _parts_of_statistics(engine, graph, trial, rows, typical)


def _parts_of_one_vector(
    engine: Engine, graph: ModelGraph, typical: "_Norms"
) -> tuple[NormPart, ...]:
    """The whole vector, and what is released beside it once the globals are near.

    Args:
      engine, graph: See `norm_parts`.
      typical: Norms of typical rows, by block.
    """
    joint = np.sqrt(sum(norms**2 for norms in typical.values()))
    reference = _moderate_norm(float(np.max(joint)))
    part = NormPart(
        name=WHOLE_VECTOR,
        blocks=tuple(typical),
        reference=reference,
        is_balanced=engine.balanced.issuperset(typical),
        is_lasting=engine.lasting.issuperset(typical),
        unbalanced=UNBALANCED_EXPOSED if exposures(graph) else UNBALANCED,
    )
    late = (
        NormPart(
            name=block.name,
            blocks=(block.name,),
            reference=_squared(reference),
            is_late=True,
        )
        for kind in ("pilot", "information")
        for block in engine.blocks(kind)
    )
    return (*_with_columns((part,), engine, _most_columns(graph)), *late)


def _parts_of_statistics(
    engine: Engine,
    graph: ModelGraph,
    trial: "_Trial",
    rows: Mapping[str, np.ndarray],
    typical: "_Norms",
) -> tuple[NormPart, ...]:
    """A part for each statistic, or for those that share a norm.

    Args:
      engine, graph: See `norm_parts`.
      trial: What tells norms of synthetic rows.
      rows, typical: Typical rows, and their norms by block.
    """
    num_rows, most_columns = graph.arguments.public_num_rows, _most_columns(graph)
    largest = {name: float(np.max(norms)) for name, norms in typical.items()}
    # About other points than zero norms are others, whatever they were.
    others = [trial.norms(sized) for sized in rows_of_other_sizes(rows)]
    varying = _varying(others, largest) | engine.recentred
    # The grid of what is counted all the same stays that of rows of unit size.
    bounded = _bounded_by_encodings(trial, graph.arguments, rows)
    largest |= {name: bounded[name] for name in varying & bounded.keys()}
    varying -= bounded.keys() - engine.recentred
    grown = dict.fromkeys(engine.growing.difference(varying), _MOST_GROWN)
    parts = tuple(
        NormPart(
            name=name,
            blocks=(name,),
            reference=_moderate_norm(grown.get(name, 1.0) * norm),
            is_fixed=name not in varying,
            is_balanced=name in engine.balanced,
            is_lasting=name in engine.lasting,
        )
        for name, norm in largest.items()
    )
    fixed = {part.name: part.reference for part in parts if part.is_fixed}
    parts = joined(parts, _exclusive([typical, *others], fixed), norm=max)
    parts = joined(parts, _together_from_the_start(engine, parts, most_columns))
    # Every histogram adds to the noise of all.
    if len(parts) > num_rows / _ROWS_PER_HISTOGRAM:
        later = [mine for mine in engine.together if not mine.from_the_start]
        parts = joined(parts, later)
    return _with_columns(parts, engine, most_columns)


def _most_columns(graph: ModelGraph) -> float:
    """How many columns may be counted, each in a histogram of its own."""
    num_rows = graph.arguments.public_num_rows
    return min(num_rows / _ROWS_PER_COLUMN, _MOST_COLUMNS)


def _together_from_the_start(
    engine: Engine, parts: Sequence[NormPart], most_columns: float
) -> list[Together]:
    """What shares a norm once its columns are counted, where these are not too many.

    Norms that the structure says are not counted, nor are their columns.
    """
    fixed = {name for part in parts if part.is_fixed for name in part.blocks}
    shared = [
        mine
        for mine in engine.together
        if mine.from_the_start and not fixed.issuperset(mine.blocks)
    ]
    columns = engine.columns
    number = sum(columns[mine.name].number for mine in shared if mine.name in columns)
    return shared if 0 < number <= most_columns else []


def _with_columns(
    parts: Sequence[NormPart], engine: Engine, most: float
) -> tuple[NormPart, ...]:
    """The parts, of which those with columns count them, if they are few."""
    columns = engine.columns
    counted = {
        part.name: columns[part.name]
        for part in parts
        if part.name in columns and not part.is_fixed
    }
    if sum(of.number for of in counted.values()) > most:
        return tuple(parts)
    return tuple(
        dataclasses.replace(part, columns=counted.get(part.name)) for part in parts
    )


def _bounded_by_encodings(
    trial: "_Trial", arguments: ModelArguments, rows: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Norms of the blocks that do not vary with what a schema can encode."""
    if not arguments.encodings:
        return {}
    ordinary = {**rows, **encoded_rows(arguments, NUM_TYPICAL_ROWS, "any")}
    ends = encoded_rows(arguments, NUM_TYPICAL_ROWS, "ends")
    typical = trial.norms(ordinary)
    if any(len(norms) == 0 for norms in typical.values()):
        return {}
    largest = {name: float(np.max(norms)) for name, norms in typical.items()}
    others = [trial.norms(sized) for sized in rows_of_other_sizes(ordinary, ends)]
    varying = _varying(others, largest)
    return {
        name: norm for name, norm in largest.items() if norm > 0 and name not in varying
    }


# Rows for each of several histograms, below which their noise hides too much.
_ROWS_PER_HISTOGRAM = 300
# The same of columns, whose counts take a fixed small part of the budget: with fewer
# rows none stands out.
_ROWS_PER_COLUMN = 50
# Columns beyond which counting them takes longer than the fit.
_MOST_COLUMNS = 128


def joined(
    parts: Sequence[NormPart],
    together: Sequence[Together],
    norm: Callable[..., float] = math.hypot,
) -> tuple[NormPart, ...]:
    """The parts, with one in the place of those that share a norm.

    Args:
      parts: Parts of one block each, or some of several.
      together: Which share one.
      norm: From the norms of parts to that of all of them in one row.
    """
    by_block = {name: part for part in parts for name in part.blocks}
    shared = [mine for mine in together if set(mine.blocks) <= by_block.keys()]
    found = [
        NormPart(
            name=mine.name,
            blocks=mine.blocks,
            reference=_moderate_norm(
                norm(*(by_block[name].reference for name in mine.blocks))
            ),
            is_fixed=all(by_block[name].is_fixed for name in mine.blocks),
            is_balanced=all(by_block[name].is_balanced for name in mine.blocks),
            is_lasting=all(by_block[name].is_lasting for name in mine.blocks),
            directions=mine.directions,
        )
        for mine in shared
    ]
    taken = {name for mine in shared for name in mine.blocks}
    return (*(part for part in parts if taken.isdisjoint(part.blocks)), *found)


class _Trial:
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
        valid = []
        for rows in rows_of_unit_size(self._arguments, NUM_TYPICAL_ROWS):
            norms = self.norms(rows)
            if len(norms[self._names[0]]) == NUM_TYPICAL_ROWS:
                if self._are_known(norms):
                    return rows, norms
                valid = [rows]
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
_Norms = Mapping[str, np.ndarray]


def _varying(others: Sequence[_Norms], largest: Mapping[str, float]) -> set[str]:
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


def _exclusive(tried: Sequence[_Norms], largest: Mapping[str, float]) -> list[Together]:
    """Blocks of one size of which every row that was tried has one at most.

    So y and 1 - y of a label y. It is no proof, and none is needed; see `_varying`.

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


def bounded_blocks(
    blocks: Sequence[Block],
    norms: Mapping[str, float],
    *,
    relation: Relation,
    is_one_vector: bool,
    parts: Sequence[NormPart] = (),
) -> tuple[tuple[Block, ...], float]:
    """Scales the blocks of one step against each other and bounds their joint norm.

    Parts are scaled so that their relative errors are alike, unless they are parts of
    one vector. Errors are counted where they end, see `Block.directions`.

    Args:
      blocks: What the step releases, at scale 1.
      norms: The norm that each part of it is clipped to, by the part's name.
      relation: The relation that the noise protects.
      is_one_vector: Whether the blocks are parts of one vector, named `WHOLE_VECTOR`,
        or its information.
      parts: Those of several blocks; any other block is a part by itself.

    Returns:
      The blocks, and the bound on their joint norm.
    """
    if is_one_vector:
        name = blocks[0].name
        if name in SQUARES and name in norms:
            return tuple(blocks), norms[name]
        return tuple(blocks), _norm_of_vector(blocks, norms[WHOLE_VECTOR])
    part_of = {name: part for part in parts for name in part.blocks}
    members: dict[str, list[Block]] = {}
    for block in blocks:
        name = part_of[block.name].name if block.name in part_of else block.name
        members.setdefault(name, []).append(block)
    bounds = {name: norms[name] for name in members}
    if len(members) == 1:
        return tuple(blocks), next(iter(bounds.values()))
    whole = [_as_one(mine, part_of.get(mine[0].name)) for mine in members.values()]
    scales = optimal_scales(
        whole,
        bounds,
        relation=relation,
        weights={
            block.name: block.num_directions
            / block.num_coordinates
            / bounds[block.name] ** 2
            for block in whole
        },
    )
    return tuple(
        dataclasses.replace(block, scale=scales[name])
        for name, mine in members.items()
        for block in mine
    ), 1.0


def _as_one(blocks: Sequence[Block], part: NormPart | None) -> Block:
    """The blocks of a part as one, of which only sizes and signs matter."""
    if part is None or len(blocks) == 1:
        return blocks[0]
    return Block(
        name=part.name,
        shape=(sum(block.num_coordinates for block in blocks),),
        directions=part.directions,
    )


def given_blocks(
    blocks: Sequence[Block],
    given: float | Mapping[str, float],
    *,
    relation: Relation,
) -> tuple[tuple[Block, ...], float]:
    """Blocks and joint bound for the caller's `clipping_norm=`.

    A number bounds the statistics as they are. With a typical norm of each they are
    scaled as by `bounded_blocks`, and the joint bound is that of a row in which each
    has its typical norm.

    Raises:
      ValueError: A block has no norm.
    """
    if not isinstance(given, Mapping):
        return tuple(blocks), _norm_of_vector(blocks, given)
    missing = [block.name for block in blocks if block.name not in given]
    if missing:
        raise ValueError(
            f"Expected clipping_norm= to have a norm for {missing} too; it has "
            f"{sorted(given)}."
        )
    return bounded_blocks(blocks, given, relation=relation, is_one_vector=False)


def _norm_of_vector(blocks: Sequence[Block], norm: float) -> float:
    """The norm of a row's gradient, or that of its information, which is its square.

    At the truth a row's information is on average the gradient's outer product with
    itself.
    """
    if any(block.name in SQUARES for block in blocks):
        return _squared(norm)
    return norm


def _squared(norm: float) -> float:
    return min(max(norm**2, _SMALLEST), _LARGEST)


def _moderate_norm(norm: float) -> float:
    try:
        _validate.moderate(clipping_norm=norm)
    except ValueError as error:
        raise ValueError(
            f"No default clipping norm could be found for this model: {error} Pass "
            "clipping_norm=, a bound on the L2 norm of what one row contributes, "
            "chosen from public knowledge."
        ) from None
    return norm
