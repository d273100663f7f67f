"""How rows are clipped and added up: in double precision, and an even number at a time.

Both engines work on rows in the precision that the caller has switched on, and add them
in double precision, under `double_precision()`.

A row's place must not decide what it contributes. A processor works on as many rows at
once as its vectors are wide, and on those that are left over one by one, where it may
add a row's numbers in another order. If they cancel, as those of x @ w may, the last
digit decides about the sign of the result, and a row behind one that is left out would
contribute something else. So nothing may be left over: rows are worked on together by
`aligned` lengths, or one by one. Where a vector takes some numbers of each row and
leaves out others, it would read beyond the last row, so the last rows are taken one by
one whatever their number: these places hold no rows, see `SPARE_ROWS`.
`tests/test_rounding.py` tests that for both engines.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree, Shaped

from numpyro_vips.jax_tools.materialized import materialized
from numpyro_vips.jax_tools.precision import double_precision

# One number for each row, and whether each row is part of the batch.
Norms = Float[Array, " rows"]
Mask = Bool[Array | np.ndarray, " rows"]
# A clipping norm: a number of the caller's, or one that a program is given.
Scalar = float | Float[Array | np.ndarray, ""]

# What a sum of clipped rows also counts: rows well above the clipping norm, and rows
# that hold something invalid or not finite.
CLIPPED_ROWS = "rows clipped"
ZERO_ROWS = "rows that count as zero"
DIAGNOSTICS = (CLIPPED_ROWS, ZERO_ROWS)

# By how much rows are clipped below the clipping norm.
_ROOM = 2.0**-20
# By how much a row that counts as clipped is longer than the clipping norm. A norm that
# comes from the structure is the largest of synthetic rows; real ones may be a little
# longer, where their latents are known more surely.
_NOTABLE = 0.01
# Rows that are worked on together are a multiple of these: more than fit into any
# vector, also where loops over vectors are unrolled.
ROW_ALIGNMENT = 64
# Places at the end of what is worked on together that hold no row: as many as the
# widest vector has numbers. Loops that leave out numbers of each row are not unrolled.
SPARE_ROWS = 16
# So many rows may take this times as much as the rows of a piece otherwise do.
_LARGER = 8


def clipping_factor(
    norm: Float[Array, "*rows"], clipping_norm: Scalar
) -> Float[Array, "*rows"]:
    """What a row is multiplied by, so that its norm is at most the clipping norm.

    There is room for rounding, also of the norm, and of the clipping norm and the
    scales, which the caller gives in single precision.

    Args:
      norm: Norm of the row's joint vector, finite, in double precision.
      clipping_norm: The bound on it; infinity clips nothing.
    """
    bound = clipping_norm * (1.0 - _ROOM)
    return jnp.minimum(1.0, bound / jnp.maximum(norm, 1e-300))


def diagnostic_counts(
    norms: Norms, mask: Mask, clipping_norm: Scalar
) -> dict[str, Float[Array, ""]]:
    """How many rows were clipped, and how many counted as zero; not yet private.

    Rows from which clipping takes less than a hundredth do not count as clipped.

    Args:
      norms: Norm of each row's joint vector, not finite where it counts as zero.
      mask: Whether each row is part of the batch.
      clipping_norm: The bound on norms.
    """
    valid = jnp.isfinite(norms)
    counts = {
        CLIPPED_ROWS: mask & valid & (norms > clipping_norm * (1.0 + _NOTABLE)),
        ZERO_ROWS: mask & ~valid,
    }
    real = jnp.result_type(float)
    return {name: jnp.sum(rows.astype(real)) for name, rows in counts.items()}


def increasing_edges(
    edges: Float[np.ndarray, " edges"],
) -> Float[Array, " edges"]:
    """Public edges of bins, in double precision.

    Raises:
      AssertionError: They do not grow, so that a row could lie in two bins.
    """
    assert np.all(np.diff(edges) > 0), edges
    with double_precision():
        return jnp.asarray(edges, np.float64)


def counts_in_bins(
    norms: Norms, mask: Mask, edges: Float[Array, " _edges"]
) -> Float[Array, " _bins"]:
    """How many norms lie in each bin (edges[i - 1], edges[i]]; not yet private.

    A row is in one bin, or in none if it is masked or its norm is not finite.

    Args:
      norms: One number for each row.
      mask: Whether each row is part of the batch.
      edges: Where bins end, see `increasing_edges`. The first and the last bin have no
        end.

    Returns:
      One count more than there are edges.
    """
    end = jnp.full(1, jnp.inf, edges.dtype)
    above, up_to = jnp.concatenate([-end, edges]), jnp.concatenate([edges, end])
    # Else XLA may work out a norm anew for each bin, and round it in several ways.
    norms = materialized(norms)
    # Compared with every edge, not searched for, which takes longer to compile.
    is_in = (norms[:, None] > above) & (norms[:, None] <= up_to)
    counted = (mask & jnp.isfinite(norms))[:, None]
    return jnp.sum((counted & is_in).astype(jnp.result_type(float)), axis=0)


def counts_of_norms(
    norms: Norms, mask: Mask, edges: Float[Array, " _edges"]
) -> Float[Array, " _one_more"]:
    """`counts_in_bins`, and at the end how many rows count as zero; not yet private.

    A row is counted once: if its norm is finite in a bin, if not at the end.
    """
    zero = mask & ~jnp.isfinite(norms)
    zeros = jnp.sum(zero.astype(jnp.result_type(float)), keepdims=True)
    return jnp.concatenate([counts_in_bins(norms, mask, edges), zeros])


def counts_of_parts(
    norms: Mapping[str, Norms],
    mask: Mask,
    parts: Iterable[tuple[str, Sequence[str]]],
    edges: Mapping[str, Float[Array, " _edges"]],
) -> dict[str, Float[Array, " _one_more"]]:
    """`counts_of_norms` of joint norms, in double precision.

    Args:
      norms: Norm of each block in each row.
      mask: Whether each row is part of the batch.
      parts: Names of joint norms, each with its blocks.
      edges: By such a name, where bins end.
    """
    with double_precision():
        return {
            part: counts_of_norms(
                jnp.sqrt(sum((norms[name] ** 2 for name in blocks), jnp.zeros(()))),
                mask,
                edges[part],
            )
            for part, blocks in parts
        }


def aligned(length: int) -> int:
    """The next multiple of `ROW_ALIGNMENT`."""
    return -(-length // ROW_ALIGNMENT) * ROW_ALIGNMENT


# Rows that are worked on at a time at most, unless max_batch_size says otherwise; a
# multiple of ROW_ALIGNMENT. Other rows are worked on in the same length as those of a
# fit, so that nothing new is compiled for them.
DEFAULT_CHUNK = 4096


def equal_chunks(number: int, longest: int = DEFAULT_CHUNK) -> tuple[int, int]:
    """Number and length of the chunks, few and equal, that rows are worked on in.

    Each takes `rows_in(length)` rows.

    Args:
      number: How many rows there are.
      longest: The length that a chunk may have, before it is `aligned`.
    """
    chunks = -(-number // rows_in(aligned(longest)))
    return chunks, aligned(-(-number // chunks) + SPARE_ROWS)


def rows_in(length: int) -> int:
    """How many of the places of a chunk or a piece may hold rows."""
    return length - SPARE_ROWS


def piece_length(size_of_row: int, limit: int) -> int:
    """How many rows to work on together: a multiple of `ROW_ALIGNMENT`, or one.

    Args:
      size_of_row: What a row takes while it is worked on, such as in bytes.
      limit: What the rows of a piece may take. The shortest pieces, of `ROW_ALIGNMENT`
        rows and of twice as many, may take up to eight times as much; if they take
        more, rows are worked on one by one.
    """
    fitting = limit // max(1, size_of_row)
    if fitting >= 2 * ROW_ALIGNMENT:
        return fitting - fitting % ROW_ALIGNMENT
    # Of short pieces much is spare.
    most = _LARGER * limit // max(1, size_of_row)
    return min(2, most // ROW_ALIGNMENT) * ROW_ALIGNMENT or 1


def in_double(tree: Any) -> Any:
    """Real numbers in double precision, where that is switched on."""

    def converted(x: Any) -> Any:
        is_real = jnp.issubdtype(jnp.result_type(x), jnp.floating)
        return jnp.asarray(x, jnp.result_type(float)) if is_real else x

    return jax.tree.map(converted, tree)


def in_pieces(
    rows: PyTree[Shaped[Array | np.ndarray, "rows ..."]],
    mask: Mask,
    size: int | None = None,
) -> tuple[PyTree[Shaped[Array, "pieces length ..."]], Bool[Array, "pieces length"]]:
    """Splits rows into equal pieces, filled up with rows that the mask leaves out.

    Args:
      rows: Arrays with a leading axis of rows, or trees of them as sparse rows are. The
        last `SPARE_ROWS` are the last ones of a piece, so that a row that is among them
        may depend on its place.
      mask: Whether each row counts.
      size: Most rows of a piece, a multiple of `ROW_ALIGNMENT` or one; None for all
        rows in one piece.

    Returns:
      The rows and the mask, with the pieces along a new leading axis. A piece has an
      `aligned` length, of which `rows_in` are filled, or one row if `size` is one.
    """
    count = mask.shape[0]
    number, length = _pieces_of(count, size)
    own = length if number == 1 or length == 1 else rows_in(length)
    missing = number * own + length - own - count

    def split(
        array: Shaped[Array | np.ndarray, "rows ..."],
    ) -> Shaped[Array, "pieces length ..."]:
        others = [(0, 0) for _ in array.shape[1:]]
        filled = jnp.pad(array, [(0, missing), *others])
        body = filled[: number * own].reshape(number, own, *array.shape[1:])
        if own == length:
            return body
        spare = filled[None, number * own :]
        spare = jnp.pad(spare, [(number - 1, 0), (0, 0), *others])
        return jnp.concatenate([body, spare], axis=1)

    pieces = jax.tree.map(split, rows), split(mask)
    # Else XLA may work on the rows as they were and fill up what comes out.
    return materialized(pieces) if missing or own < length else pieces


def _pieces_of(count: int, size: int | None) -> tuple[int, int]:
    """Number and length of the pieces of some rows; see `in_pieces`."""
    if size is None or count <= size:
        return 1, aligned(max(1, count))
    if size == 1:
        return count, 1
    rows = rows_in(count)
    number = -(-rows // rows_in(size))
    return number, aligned(-(-rows // number) + SPARE_ROWS)


def _zeros_like(partial: Any) -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), partial)


def _plus(total: Any, partial: Any) -> Any:
    return jax.tree.map(jnp.add, total, partial)


def sum_over_rows(
    piece_sum: Callable[[Any, Bool[Array, " length"]], Any],
    rows: Mapping[str, Any],
    mask: Mask,
    size: int | None,
    *,
    zeros: Callable[[Any], Any] = _zeros_like,
    add: Callable[[Any, Any], Any] = _plus,
) -> tuple[Any, Any]:
    """A sum over rows, of which few enough are worked on at a time.

    Args:
      piece_sum: From the rows of a piece and their mask to what they add, a tree of
        arrays.
      rows: Arrays with a leading axis of rows, or trees of them as sparse rows are.
      mask: Whether each row counts.
      size: Most rows of a piece; see `in_pieces`.
      zeros: From what a piece adds, or its shapes, to the total of none.
      add: From a total and what a piece adds to the next total.

    Returns:
      The total, and what the first piece adds or its shapes.
    """
    pieces = in_pieces(dict(rows), mask, size)
    first = jax.tree.map(lambda x: x[0], pieces)
    if len(pieces[1]) == 1:  # It needs no loop, which takes longer to compile.
        partial = piece_sum(*first)
        return add(zeros(partial), partial), partial
    shapes = jax.eval_shape(piece_sum, *first)
    total, _ = jax.lax.scan(
        lambda total, piece: (add(total, piece_sum(*piece)), None),
        zeros(shapes),
        pieces,
    )
    return total, shapes


def map_over_rows(
    function: Callable[[Any], Any],
    rows: Mapping[str, Any],
    size: int | None,
) -> PyTree[Shaped[Array, "rows ..."]]:
    """What a function makes of rows, of which few enough are worked on at a time.

    Args:
      function: From the rows of a piece to a tree of arrays, whose first axis is that
        of the rows.
      rows: Arrays with a leading axis of rows, or trees of them as sparse rows are.
      size: Most rows of a piece; see `in_pieces`.
    """
    count = len(jax.tree.leaves(rows)[0])
    pieces, _ = in_pieces(dict(rows), jnp.ones(count, bool), size)
    number, length = jax.tree.leaves(pieces)[0].shape[:2]
    if number == 1:
        found = function(jax.tree.map(lambda x: x[0], pieces))
        return jax.tree.map(lambda x: x[:count], found)
    own = 1 if length == 1 else rows_in(length)

    def joined(
        array: Shaped[Array, "pieces length ..."],
    ) -> Shaped[Array, "rows ..."]:
        body = array[:, :own].reshape(-1, *array.shape[2:])
        return jnp.concatenate([body, array[-1, own:]])[:count]

    return jax.tree.map(joined, jax.lax.map(function, pieces))
