"""What has a clipping norm of its own in a fit, and where that norm comes from.

The first of these that applies:

1. The caller's `clipping_norm=`.
2. The model's structure: a statistic whose norm has the same limit whatever the numbers
   of a row are, such as the indicator of a category; or whatever numbers the schema
   that has encoded a row can make of one, unless these are labels with columns of
   unequal size and rows are many enough for a histogram.
3. A private histogram of the norms of all rows, see `norm_histogram`. It is paid for,
   and repeated where norms depend on the globals. Norms that are the squares of others
   follow from the histogram of those.
4. Where no bin of the histogram stands out of its noise, as with few rows: rows that
   the priors draw, see `prior_norms`, or under DPVI synthetic rows of unit size.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from numpyro_vips import _validate
from numpyro_vips.fitting.bounds.norm_histogram import norm_grid
from numpyro_vips.fitting.bounds.seen_norms import UNBALANCED, UNBALANCED_EXPOSED
from numpyro_vips.fitting.bounds.synthetic_norms import (
    NUM_TYPICAL_ROWS,
    Norms,
    SquareOf,
    SyntheticNorms,
    exclusive_blocks,
    square_blocks,
    varying_blocks,
)
from numpyro_vips.fitting.engine import Engine
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.facts.exposures import exposures
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.synthetic.synthetic_rows import (
    rows_of_encodings,
    rows_of_other_sizes,
)
from numpyro_vips.privacy.releases import (
    SQUARES,
    WHOLE_VECTOR,
    Columns,
    Release,
    Together,
)

# Well within the range of norms that mechanisms take.
_SMALLEST, _LARGEST = 1e-29, 1e29
# Residuals of labels, y - σ(ψ), are at the start, where all logits are zero, half as
# large as they may become.
_MOST_GROWN = 2.0


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
      is_information: Whether it is rows' information, or moments that stand for it; see
        `SeenNorms.least_loss`.
      square_of: The part whose norm it is the square of, in every row. Where that is
        counted, this is not.
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
    is_information: bool = False
    square_of: SquareOf | None = None

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
    trial = SyntheticNorms(engine, graph.arguments, names)
    rows, norms = trial.typical_norms(graph)
    typical = {name: norms[name] for name in names}
    if engine.is_one_vector:
        return _parts_of_one_vector(engine, graph, typical)
    return _parts_of_statistics(engine, graph, trial, rows, typical)


def _parts_of_one_vector(
    engine: Engine, graph: ModelGraph, typical: Norms
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
            reference=squared_norm(reference),
            is_late=True,
            is_information=block.name in SQUARES,
        )
        for kind in ("pilot", "information")
        for block in engine.blocks(kind)
    )
    return (*_with_columns((part,), engine, _most_columns(graph)), *late)


def _parts_of_statistics(
    engine: Engine,
    graph: ModelGraph,
    trial: SyntheticNorms,
    rows: Mapping[str, np.ndarray],
    typical: Norms,
) -> tuple[NormPart, ...]:
    """A part for each statistic, or for those that share a norm.

    Args:
      engine, graph: See `norm_parts`.
      trial: What computes norms of synthetic rows.
      rows, typical: Typical rows, and their norms by block.
    """
    num_rows, most_columns = graph.arguments.public_num_rows, _most_columns(graph)
    largest = {name: float(np.max(norms)) for name, norms in typical.items()}
    # About other points than zero norms are others, whatever they were.
    others = [trial.norms(sized) for sized in rows_of_other_sizes(rows)]
    varying = varying_blocks(others, largest) | engine.recentred
    information = {block.name for block in engine.blocks("refreshed")}
    bounded = _bounded_by_encodings(trial, graph.arguments, rows)
    if _counts_encoded_labels(graph.arguments):
        of_labels = engine.growing | information
        bounded = {n: norm for n, norm in bounded.items() if n not in of_labels}
    # The grid of what is counted all the same stays that of rows of unit size.
    largest |= {name: bounded[name] for name in varying & bounded.keys()}
    varying -= bounded.keys() - engine.recentred
    squares = square_blocks([typical, *others], varying)
    grown = dict.fromkeys(engine.growing.difference(varying), _MOST_GROWN)
    parts = tuple(
        NormPart(
            name=name,
            blocks=(name,),
            reference=_moderate_norm(grown.get(name, 1.0) * norm),
            is_fixed=name not in varying,
            is_balanced=name in engine.balanced,
            is_lasting=name in engine.lasting,
            is_information=name in information,
            square_of=squares.get(name),
        )
        for name, norm in largest.items()
    )
    fixed = {part.name: part.reference for part in parts if part.is_fixed}
    parts = joined(parts, exclusive_blocks([typical, *others], fixed), norm=max)
    parts = joined(parts, _together_from_the_start(engine, parts, most_columns))
    # Every histogram adds to the noise of all.
    if len(counted_of(parts)) > num_rows / _ROWS_PER_HISTOGRAM:
        later = [mine for mine in engine.together if not mine.from_the_start]
        parts = joined(parts, later)
    return _with_columns(parts, engine, most_columns)


def counted_of(parts: Sequence[NormPart]) -> list[NormPart]:
    """Those of some parts that get a histogram, where all of them are to be known.

    A square spreads over twice as many bins as what it is the square of, so its own
    counts would be lost in the noise first, and every histogram adds to that of all.
    """
    names = {part.name for part in parts}
    return [
        part
        for part in parts
        if part.square_of is None or part.square_of.name not in names
    ]


def squares_of(
    counted: Sequence[NormPart], parts: Sequence[NormPart]
) -> list[NormPart]:
    """The parts whose norms follow from those that are counted; see `counted_of`."""
    names = {part.name for part in counted}
    return [
        part
        for part in parts
        if part.square_of and part.square_of.name in names and part.name not in names
    ]


def _most_columns(graph: ModelGraph) -> float:
    """How many columns may be counted, each in a histogram of its own."""
    num_rows = graph.arguments.public_num_rows
    return min(num_rows / _ROWS_PER_COLUMN, _MOST_COLUMNS)


def _together_from_the_start(
    engine: Engine, parts: Sequence[NormPart], most_columns: float
) -> list[Together]:
    """What shares a norm once its columns are counted, where these are not too many.

    Norms that the structure bounds are not counted, nor are their columns.
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
    trial: SyntheticNorms, arguments: ModelArguments, rows: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Norms of the blocks that do not vary with what a schema can encode."""
    if not arguments.encodings:
        return {}
    ordinary = {**rows, **rows_of_encodings(arguments, NUM_TYPICAL_ROWS, "any")}
    ends = rows_of_encodings(arguments, NUM_TYPICAL_ROWS, "ends")
    typical = trial.norms(ordinary)
    if any(len(norms) == 0 for norms in typical.values()):
        return {}
    largest = {name: float(np.max(norms)) for name, norms in typical.items()}
    others = [trial.norms(sized) for sized in rows_of_other_sizes(ordinary, ends)]
    varying = varying_blocks(others, largest)
    return {
        name: norm for name, norm in largest.items() if norm > 0 and name not in varying
    }


def _counts_encoded_labels(arguments: ModelArguments) -> bool:
    """Whether residuals of labels and curvatures are counted, though a schema bounds
    them.

    Mostly they are far below those of a row that surprises the model and is in rare
    categories, and noise goes with the norm. Columns of -1 and 1 alone make all rows
    equally long.
    """
    if arguments.public_num_rows < _HISTOGRAMS_OF_LABELS * _ROWS_PER_HISTOGRAM:
        return False
    encoded = rows_of_encodings(arguments, NUM_TYPICAL_ROWS, "any").values()
    return any(np.ptp(np.abs(rows)) > 0 for rows in encoded)


# Rows for each of several histograms, below which their noise hides too much.
_ROWS_PER_HISTOGRAM = 300
# Those of a regression on encoded rows: residuals share one, and curvatures.
_HISTOGRAMS_OF_LABELS = 2
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
            is_information=all(by_block[name].is_information for name in mine.blocks),
        )
        for mine in shared
    ]
    taken = {name for mine in shared for name in mine.blocks}
    return (*(part for part in parts if taken.isdisjoint(part.blocks)), *found)


def squared_norm(norm: float) -> float:
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
