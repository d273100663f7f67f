"""The rows' gradients of DPVI and their clipped sum: all that reads private rows.

A row's gradient comes from a program of that row alone. It is taken entry by entry, or
kept as a product where the program shows that it is one (`factored_gradients.py`).

Clipping takes most off the rows that surprise the model, so that clipped gradients do
not add up to zero at the truth. Where rows can be drawn anew (`redrawn_rows.py`), the
later steps therefore clip g − g*, with g* the gradient of a row that the model draws in
the row's place. If the model is right, g and g* have the same distribution given the
row's covariates, and clip(g − g*) is odd in them: its mean is zero at the truth,
whatever the clipping norm. Such estimates are called conditionally unbiased (Künsch,
Stefanski and Carroll 1989). Theirs take the mean of clip(g*) off clip(g). That
difference may be longer than the norm, and clipping it again would bias it.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Shaped, UInt32

from numpyro_vips.dpvi.gradients.coordinates import Units
from numpyro_vips.dpvi.gradients.factored_gradients import FactoredProgram
from numpyro_vips.dpvi.gradients.released_leaves import ReleasedLeaves
from numpyro_vips.dpvi.gradients.row_fingerprints import fingerprint_of_row
from numpyro_vips.jax_tools.compared_maxima import with_compared_maxima
from numpyro_vips.jax_tools.index_ranges import indices_in_range
from numpyro_vips.jax_tools.materialized import materialized
from numpyro_vips.jax_tools.precision import Precision, double_precision
from numpyro_vips.jax_tools.random_keys import as_threefry
from numpyro_vips.jax_tools.row_sums import (
    Norms,
    clipping_factor,
    diagnostic_counts,
    in_double,
    map_over_rows,
    piece_length,
    sum_over_rows,
)
from numpyro_vips.jax_tools.separate_rows import check_row_program, over_rows

# Per-row gradients are held for so many numbers at a time.
_MOST_GRADIENT_NUMBERS = 2**23
# Pairs of rows drawn in place of a row whose own gradient is not needed.
_PAIRS = 16


class Shared(NamedTuple):
    """What all rows of a step share; all of it public.

    Attributes:
      tree: The arrays in which gradients are taken.
      draws: The guide's draws, one entry per particle.
      key: The step's key.
      units: What the globals' coordinates are multiplied with in which gradients are
        taken, see `coordinates.py`; None for the globals' own.
    """

    tree: Any
    draws: Shaped[Array, "particles ..."]
    key: PRNGKeyArray
    units: Units | None = None


class _RowGradient(NamedTuple):
    """One row's contribution.

    Attributes:
      leaves: By number of the leaf, the gradient or its coordinates.
      frames: What makes coordinates a gradient, see `AffineUse`.
      is_valid: Whether it may count.
    """

    leaves: dict[int, Float[Array, "..."]]
    frames: dict[int, tuple[Any, ...]]
    is_valid: Bool[Array, "*rows"]


# A row with what it observes drawn anew: from the arrays that gradients are taken in, a
# row and a key.
Redraw = Callable[[Any, Mapping[str, Any], PRNGKeyArray], Mapping[str, Any]]


class _PartialSum(NamedTuple):
    """What some rows add up to.

    Attributes:
      leaves: By number of the leaf, the sum of their clipped gradients.
      counts: See `row_sums.diagnostic_counts`.
    """

    leaves: dict[int, Float[Array, "..."]]
    counts: dict[str, Float[Array, ""]]


class RowGradients:
    """Gradients of a row's part of the ELBO in a tree of public arrays.

    Attributes:
      of_row: What one row's program is: `_gradient_of_row`, compiled.
      of_pair: Likewise `_pair_of_gradients`; None where no row can be redrawn.
    """

    def __init__(
        self,
        program: jex_core.ClosedJaxpr,
        released: Sequence[ReleasedLeaves],
        *,
        num_particles: int,
        arguments: Callable[[Any, PRNGKeyArray], tuple[Any, Any]] | None = None,
        redraw: Redraw | None = None,
    ) -> None:
        """Looks for gradients that are products.

        Args:
          program: Takes the globals, the parameters, a row and a key, and returns a
            row's part of the ELBO and whether its observations lie in the support.
          released: The blocks.
          num_particles: Draws from the guide.
          arguments: The program's globals and parameters for a tree and a draw; None
            if they are the tree.
          redraw: Draws rows anew, where they can be.

        Raises:
          UnsafeModelError: See `separate_rows.check_row_program`.
        """
        # Before derivatives are taken, which not every refused operation has.
        check_row_program(program)
        self._released = released
        self._num_particles = num_particles
        self._arguments = arguments or (lambda tree, draw: tree)
        self._closed = program
        program = with_compared_maxima(program)
        leaves = [leaf for entry in released for leaf in entry.leaves]
        is_direct = arguments is None and num_particles == 1
        self._program = FactoredProgram(program, leaves if is_direct else ())
        # Entry by entry: a difference of products is none.
        self._whole = FactoredProgram(program, ())
        self._redraw = redraw
        self.of_row = jax.jit(functools.partial(self._gradient_of_row, self._program))
        self.of_pair = None if redraw is None else jax.jit(self._pair_of_gradients)
        self._of_rows = over_rows(self.of_row)
        self._of_pairs = over_rows(self.of_pair or self.of_row)
        # Of the operations of `of_pair`, whose program has been looked at.
        self._of_redrawn = over_rows(jax.jit(self._pairs_of_redrawn))

    def _gradient_of_row(
        self, program: FactoredProgram, shared: Shared, row: Mapping[str, Any]
    ) -> _RowGradient:
        """One row's gradient of its ELBO, a mean over the draws of all particles.

        Args:
          program: The row's ELBO.
          shared: The variational parameters, the step's draws of globals, and its key.
          row: One row of every private argument.

        Returns:
          The gradient by leaf of the tree of parameters, whole or as frame and
          coordinates, and whether the row may count: its observations lie in their
          supports, its indices in range, and its ELBO is finite at every draw.
        """
        tree, draws, key, units = shared
        if units is not None:
            # Products of other coordinates are none of these.
            program = self._whole
        # Of the row's content, not its place in the batch: otherwise taking one row
        # away would change what the others contribute.
        row_key = jax.random.fold_in(key, fingerprint_of_row(row))
        uses = program.uses

        def particle(number: Any, draw: Shaped[Array, "..."]) -> _RowGradient:
            local_key = jax.random.fold_in(row_key, number)

            def inputs(tree: Any) -> list[Any]:
                return jax.tree.leaves((*self._arguments(tree, draw), row, local_key))

            def elbo(tree: Any, taps: Any) -> tuple[Float[Array, ""], Any]:
                (value, in_support), others = program(inputs(tree), taps)
                return value, (in_support, others)

            taps = {leaf: jnp.zeros(use.shape, use.dtype) for leaf, use in uses.items()}
            derivative = jax.value_and_grad(elbo, argnums=(0, 1), has_aux=True)
            (value, (in_support, others)), (gradient, at_taps) = derivative(tree, taps)
            # Those of `uses` are not needed, and so never made once this is compiled.
            leaves = dict(enumerate(jax.tree.leaves(gradient)))
            frames = {}
            for leaf, use in uses.items():
                frames[leaf], leaves[leaf] = use.isometric(others[leaf], at_taps[leaf])
            in_range = indices_in_range(self._closed, inputs(tree))
            is_valid = in_range & in_support & jnp.isfinite(value)
            return _RowGradient(leaves, frames, is_valid)

        found = jax.vmap(particle)(jnp.arange(self._num_particles), draws)
        leaves = {
            leaf: entry.cut(jnp.mean(found.leaves[leaf], 0))
            for entry in self._released
            for leaf in entry.leaves
        }
        if units is not None:
            leaves = self._in_coordinates(leaves, units)
        frames = jax.tree.map(lambda x: x[0], found.frames)
        return _RowGradient(leaves, frames, jnp.all(found.is_valid))

    def _in_coordinates(
        self,
        leaves: dict[int, Float[Array, "..."]],
        units: Units,
    ) -> dict[int, Float[Array, "..."]]:
        """The gradient in coordinates u of the globals, z = units u."""
        (entry,) = self._released
        gradient = jnp.ravel(entry.joined(leaves)) @ units
        parts = [jnp.zeros_like(leaves[leaf]) for leaf in entry.leaves]
        moved = entry._replace(leaves=tuple(range(len(parts))))
        moved.place(parts, gradient)
        return {**leaves, **dict(zip(entry.leaves, parts, strict=True))}

    def _pair_of_gradients(
        self, shared: Shared, row_and_key: tuple[Mapping[str, Any], UInt32[Array, "2"]]
    ) -> tuple[_RowGradient, _RowGradient]:
        """A row's gradient, and that of the row that is drawn in its place."""
        assert self._redraw is not None
        row, bits = row_and_key
        redrawn = self._redraw(shared.tree, row, as_threefry(bits))
        return (
            self._gradient_of_row(self._whole, shared, row),
            self._gradient_of_row(self._whole, shared, redrawn),
        )

    def _pairs_of_redrawn(
        self, shared: Shared, row_and_key: tuple[Mapping[str, Any], UInt32[Array, "2"]]
    ) -> tuple[_RowGradient, _RowGradient]:
        """Gradients of pairs of rows drawn in a row's place; pairs are the first axis.

        They may count if the row may itself.
        """
        assert self._redraw is not None
        redraw = self._redraw
        row, bits = row_and_key

        def gradient(key: PRNGKeyArray) -> _RowGradient:
            return self._gradient_of_row(
                self._whole, shared, redraw(shared.tree, row, key)
            )

        # Together, as a sampler takes long to compile.
        found = jax.vmap(gradient)(jax.random.split(as_threefry(bits), 2 * _PAIRS))
        first = jax.tree.map(lambda x: x[:_PAIRS], found)
        second = jax.tree.map(lambda x: x[_PAIRS:], found)
        own = self._gradient_of_row(self._whole, shared, row)
        return first._replace(is_valid=first.is_valid & own.is_valid), second

    def norms(
        self,
        shared: Shared,
        rows: Mapping[str, Any],
        row_keys: UInt32[Array | np.ndarray, "rows 2"] | None = None,
    ) -> dict[str, Float[Array, " rows"]]:
        """Norm of each block of each row, unclipped; NaN where the row may not count.

        In double precision, and as they are clipped by. They are not yet private.

        Args:
          shared: What all rows share.
          rows: With a leading axis of rows.
          row_keys: See `bounded_sum`.
        """

        def of_row(found: _RowGradient) -> dict[str, Float[Array, ""]]:
            norms = {}
            for entry in self._released:
                parts = [jnp.linalg.norm(found.leaves[leaf]) for leaf in entry.leaves]
                norm = jnp.linalg.norm(jnp.stack(parts))
                norms[entry.block.name] = jnp.where(found.is_valid, norm, jnp.nan)
            return norms

        callers, pieces = Precision.of_caller(), self._pieces(rows, row_keys)
        ones = {leaf: 1.0 for entry in self._released for leaf in entry.leaves}

        def of_piece(piece: Any) -> dict[str, Float[Array, " piece"]]:
            _, found = self._contributions(shared, piece, ones, callers=callers)
            return jax.vmap(of_row)(found)

        size = self._rows_at_a_time(
            jax.tree.leaves(shared.tree), is_redrawn="keys" in pieces
        )
        with double_precision():
            return map_over_rows(of_piece, pieces, size)

    def bounded_sum(
        self,
        shared: Shared,
        rows: Mapping[str, Shaped[Array, "rows ..."]],
        mask: Bool[Array, " rows"],
        scales: Mapping[str, Any],
        clipping_norm: Any,
        row_keys: UInt32[Array | np.ndarray, "rows 2"] | None = None,
    ) -> dict[str, Float[Array, "..."]]:
        """The sum that `DpviEngine.bounded_sum` describes, in double precision.

        It comes with the counts of `row_sums.diagnostic_counts`, of the rows' own
        gradients.

        Norms are taken and rows are added in double precision. In single, squares of
        small numbers are zero, so that a row could count with a norm of zero; and
        errors of rounding grow with the number of rows, and all of them change when one
        row is left out.

        Args:
          shared: What all rows share.
          rows, mask, scales, clipping_norm: See `DpviEngine.bounded_sum`.
          row_keys: 64 secret bits for each row, see `privacy.row_keys`. Where rows can
            be drawn anew, what is clipped then are differences to redrawn ones.
        """
        callers, pieces = Precision.of_caller(), self._pieces(rows, row_keys)
        is_redrawn = "keys" in pieces
        is_whole = is_redrawn or shared.units is not None
        uses = {} if is_whole else self._program.uses
        like = jax.tree.leaves(shared.tree)
        leaf_scales = {
            leaf: scales[entry.block.name]
            for entry in self._released
            for leaf in entry.leaves
        }

        def norms_of(found: _RowGradient) -> Norms:
            return _joint_norms(found, in_double(leaf_scales))

        def piece_sum(piece: Any, mask: Bool[Array, " piece"]) -> _PartialSum:
            bound = in_double(clipping_norm)
            own, found = self._contributions(
                shared, piece, leaf_scales, callers=callers
            )
            own_norms = norms_of(own)
            norms = norms_of(found) if is_redrawn else own_norms
            clipped = jax.vmap(_clipped, in_axes=(0, 0, None, 0))(
                found.leaves, norms, bound, mask
            )
            sums = {
                leaf: uses[leaf].total(like[leaf], found.frames[leaf], each)
                if leaf in uses
                else jnp.sum(each, 0)
                for leaf, each in clipped.items()
            }
            return _PartialSum(sums, diagnostic_counts(own_norms, mask, bound))

        with double_precision():
            size = self._rows_at_a_time(like, is_redrawn=is_redrawn)
            total, _ = sum_over_rows(piece_sum, pieces, mask, size)
            return self._blocks(total.leaves) | total.counts

    def differences(
        self, shared: Shared, rows_and_keys: Mapping[str, Any], *, callers: Precision
    ) -> tuple[Float[Array, "rows pairs size"], Bool[Array, " rows"]]:
        """Differences of gradients of pairs of rows that are drawn in a row's place.

        As vectors in double precision, within which this is called; not yet private.
        With it comes whether the row may count: it could itself, and so could all of
        the redrawn ones.

        Args:
          shared: What all rows share.
          rows_and_keys: `"rows"`, and their `"keys"`; see `bounded_sum`.
          callers: How exactly rows are worked on.
        """
        (entry,) = self._released
        given = rows_and_keys["rows"], rows_and_keys["keys"]
        with callers.restored():
            first, second = materialized(self._of_redrawn(shared, given))
        is_valid = jnp.all(first.is_valid & second.is_valid, axis=1)
        joined = jax.vmap(jax.vmap(entry.joined))
        one, other = (joined(in_double(of.leaves)) for of in (first, second))
        return materialized(one - other), is_valid

    @property
    def pairs_at_a_time(self) -> int:
        """How many rows `differences` are taken of together."""
        (entry,) = self._released
        size = 2 * _PAIRS * math.prod(entry.block.shape) * self._num_particles
        return piece_length(size, _MOST_GRADIENT_NUMBERS)

    def _pieces(self, rows: Mapping[str, Any], row_keys: Any) -> dict[str, Any]:
        """The rows, and their keys where these are to be redrawn and can be."""
        if row_keys is None or self.of_pair is None:
            return {"rows": rows}
        return {"rows": rows, "keys": row_keys}

    def _contributions(
        self,
        shared: Shared,
        piece: Mapping[str, Any],
        scales: Mapping[int, Any],
        *,
        callers: Precision,
    ) -> tuple[_RowGradient, _RowGradient]:
        """Rows' own gradients, and what is clipped of them, in double precision.

        Args:
          shared: What all rows share.
          piece: Some of `_pieces`. Where it has keys, gradients of redrawn rows are
            taken off.
          scales: By leaf, its factor in the joint vector.
          callers: How exactly rows are worked on, which is for the caller to say.
        """

        def gradients(of_rows: Any, rows: Any) -> Any:
            with callers.restored():
                # The norm and the sum are of the same numbers.
                found = materialized(of_rows(shared, rows))
            return in_double(found)

        if "keys" not in piece:
            own = gradients(self._of_rows, piece["rows"])
            return own, own
        own, redrawn = gradients(self._of_pairs, (piece["rows"], piece["keys"]))
        norms = _joint_norms(redrawn, in_double(scales))
        return own, _difference(own, redrawn, norms)

    def _rows_at_a_time(
        self, like: Sequence[Float[Array, "..."]], *, is_redrawn: bool = False
    ) -> int:
        numbers = 0
        for entry in self._released:
            for leaf in entry.leaves:
                use = self._program.uses.get(leaf)
                if is_redrawn:
                    numbers += 2 * like[leaf].size
                elif use is None:
                    numbers += like[leaf].size
                else:
                    numbers += math.prod(use.shape) + use.frame_size
        return piece_length(numbers * self._num_particles, _MOST_GRADIENT_NUMBERS)

    def _blocks(
        self, leaves: Mapping[int, Float[Array, "..."]]
    ) -> dict[str, Float[Array, "..."]]:
        return {entry.block.name: entry.joined(leaves) for entry in self._released}


def _joint_norms(rows: _RowGradient, scales: Mapping[int, Any]) -> Norms:
    """`_joint_norm` of rows; whether one is finite is the same wherever it is asked."""
    return materialized(jax.vmap(_joint_norm, in_axes=(0, None))(rows, scales))


def _joint_norm(row: _RowGradient, scales: Mapping[int, Any]) -> Float[Array, ""]:
    """The norm of a row's joint vector; not a number where the row counts as zero.

    Everything is in double precision, in which neither the squares of numbers of single
    precision nor sums of these are too small or too large. Where the numbers were
    worked out in double precision, a row whose norm is too large for it counts as
    zero.
    """
    joint = jnp.concatenate(
        [scales[leaf] * jnp.ravel(value) for leaf, value in row.leaves.items()]
    )
    norm = jnp.sqrt(jnp.sum(joint**2))
    # If it is finite, no entry is not a number or too large.
    return jnp.where(row.is_valid & jnp.isfinite(norm), norm, jnp.nan)


def _difference(
    found: _RowGradient, redrawn: _RowGradient, redrawn_norms: Norms
) -> _RowGradient:
    """Rows' gradients less those of redrawn rows, where these are not to be left out.

    A redrawn row is left out where it would count as zero. That makes no difference to
    the bound, and rows count as they do without redrawn ones.
    """

    def less(
        own: Float[Array, " rows *leaf"], other: Float[Array, " rows *leaf"]
    ) -> Float[Array, " rows *leaf"]:
        known = jnp.isfinite(redrawn_norms).reshape(-1, *(1,) * (own.ndim - 1))
        return own - jnp.where(known, other, 0.0)

    leaves = {leaf: less(v, redrawn.leaves[leaf]) for leaf, v in found.leaves.items()}
    return found._replace(leaves=leaves)


def _clipped(
    leaves: Mapping[int, Float[Array, "..."]],
    norm: Float[Array, ""],
    clipping_norm: Any,
    mask: Any,
) -> dict[int, Float[Array, "..."]]:
    """A row's contribution, shortened to the clipping norm; zero where it is none.

    Args:
      leaves: The contribution.
      norm: That of its joint vector, see `_joint_norm`.
      clipping_norm: The bound on it.
      mask: Whether the row is part of the batch.
    """
    factor = clipping_factor(norm, clipping_norm)
    counts = mask & jnp.isfinite(norm)
    return {k: jnp.where(counts, factor * value, 0.0) for k, value in leaves.items()}
