"""What an engine may be able to do besides its steps; `fitting/engine.py` has these.

An engine without one of these abilities has the members all the same, as they are here:
they say that there is nothing, or give a state back as it is. So nobody asks of which
kind it is.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.facts.loops_of_rows import ProgramOfRows
from numpyro_vips.model.synthetic.simulated_rows import RowSimulator
from numpyro_vips.privacy.releases import Columns, Kept, Together, ValidRows


class ClippingNorms(Protocol):
    """Where clipping norms come from, and what follows from them.

    An engine may know nothing of this but `norm_counts`: then no block is special, no
    norms are shared, and every state stays as it is.
    """

    @property
    def growing(self) -> frozenset[str]:
        """Blocks whose norms the start halves: rows' residuals of labels, y - σ(ψ)."""
        return frozenset()

    @property
    def lasting(self) -> frozenset[str]:
        """Blocks of which some rows stay as large as at the start in every state.

        Where nearly all labels are alike, the noise of a later histogram hides them.
        """
        return frozenset()

    @property
    def curvatures_in_parts(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the "refreshed" matrices whose entries are in several blocks, as
        those of coefficients with a name each."""
        return ()

    @property
    def together(self) -> tuple[Together, ...]:
        """Blocks that share a norm; each block in one of these at most."""
        return ()

    @property
    def row_simulator(self) -> RowSimulator | None:
        """What draws rows whose norms tell those of a fit's; None where nothing does.

        So not under DPVI: gradients at the start are larger than those at the end.
        """
        return None

    def norm_counts(
        self,
        state: Any,
        rows: Mapping[str, Any],
        mask: Any,
        *,
        parts: Mapping[str, Sequence[str]],
        edges: Mapping[str, jax.Array],
        row_keys: np.ndarray | None = None,
    ) -> Mapping[str, Any]:
        """The number of a chunk's rows in each bin of every norm, not yet private.

        Args:
          state: The state before the step.
          rows: Private arrays, with the rows along the leading axis.
          mask: True where a row is meant, (number of rows,).
          parts: By the name of a norm, the blocks whose joint norm it is.
          edges: By the name of a norm, where bins end: (number of edges,), as
            `row_sums.increasing_edges` makes them.
          row_keys: See `bounded_sum`. With them norms are those of what is clipped in
            steps that redraw rows.

        Returns:
          By the name of a norm, the counts of the bins (edges[i - 1], edges[i]], where
          the first and the last bin have no end, and at the end the number of rows that
          count as zero, which are in none of them: (number of edges + 2,).
        """
        ...

    def before_norms(self, state: Any, names: Collection[str]) -> Any:
        """The state from which norms are counted again, after a step.

        An engine may choose units there, by what it has released; then `stretched` says
        by how much norms may have grown. Another one gives the same state back.

        Args:
          state: The state after the step.
          names: The blocks whose norms are counted.
        """
        return state

    def expected_squares(self, state: Any) -> Mapping[str, float]:
        """By block, about what the squared norms of all rows add up to.

        As far as what was released says it; others are left out. A histogram of norms
        may not show them all.
        """
        return {}

    def suited_to_norms(
        self, state: Any, ratios: Mapping[str, float]
    ) -> tuple[Any, Mapping[str, float]]:
        """The state in which features have units that suit the norms of rows.

        Args:
          state: The state at which a histogram of norms was released.
          ratios: By the name of a norm, what it found over that of rows of unit size;
            of norms that stood out of its noise.

        Returns:
          The state, and by block what the norms are to be multiplied by in it; those
          that stay are left out.
        """
        return state, {}

    def with_bound(
        self,
        state: Any,
        scales: Mapping[str, float],
        clipping_norm: float,
        sampling_rate: float,
    ) -> Any:
        """The state before the `update` that gets sums clipped like this.

        An engine may read a release with the bound in mind that rows were clipped to,
        which is public, like everything in a state; another gives the state back.

        Args:
          state: The state before the step.
          scales, clipping_norm: As in `bounded_sum`.
          sampling_rate: Expected share of the rows that the sums are of.
        """
        return state


class PublicSums(Protocol):
    """Sums that need no release, as all rows that count add the same to them.

    An engine whose sums all have noise has none, and gives every state back.
    """

    @property
    def has_public_sums(self) -> bool:
        """Whether there are any."""
        return False

    def valid_count(self, state: Any, rows: Mapping[str, Any], mask: Any) -> float:
        """How many of a chunk's rows do not count as zero, not yet private; asked only
        where there are public sums.

        Args:
          state, rows, mask: See `norm_counts`.
        """
        raise AssertionError("No sums are public.")

    def with_valid_rows(self, state: Any, valid: ValidRows) -> Any:
        """The state before the step, which knows how many rows do not count as zero."""
        return state


class ColumnUnits(Protocol):
    """Columns of blocks that are clipped in units of their own.

    An engine without any has no `columns`; then nothing else here is asked for.
    """

    @property
    def columns(self) -> Mapping[str, Columns]:
        """By block, its columns, if there are several that may get units of their
        own."""
        return {}

    def column_counts(
        self,
        state: Any,
        rows: Mapping[str, Any],
        mask: Any,
        *,
        edges: Mapping[str, jax.Array],
    ) -> Mapping[str, Any]:
        """The number of a chunk's rows in each bin of every column, not yet private.

        Args:
          state, rows, mask: See `norm_counts`.
          edges: By the name of a block in `columns`, where the bins of absolute values
            end: (number of edges,), as for `norm_counts`.

        Returns:
          By the name of the block, counts of bins as of `norm_counts`, one line for
          each column: (number of columns, number of edges + 1). A row that counts as
          zero is in none of them.
        """
        return {}

    def with_column_sizes(self, state: Any, sizes: Mapping[str, np.ndarray]) -> Any:
        """The state in which columns are clipped in units that suit their sizes.

        Args:
          state: The state that was given to `column_counts`.
          sizes: By block, how large each column's entries are, over what they would be
            in rows of unit size: (number of columns,). Of released numbers alone.
        """
        return state


class Recentring(Protocol):
    """Pilots, and releases about points, or in coordinates, that they have found.

    An engine without any has no `pilots`, and nothing that is `recentred`.
    """

    @property
    def pilots(self) -> int:
        """How often what is "refreshed", or else what is recentred, is released first.

        What is released later is about points, or in coordinates, that these say.
        """
        return 0

    @property
    def recentred(self) -> frozenset[str]:
        """Blocks that `recentre` changes, which are of one kind: `"once"` or
        `"adaptive"`. None needs no `recentre`."""
        return frozenset()

    def recentre(self, state: Any) -> Any:
        """The state from which `recentred` blocks are released about where globals are.

        It is asked for after each pilot, before a histogram of the norms about there.
        """
        return state

    def recentre_again(self, state: Any) -> Any:
        """The state with points that follow the globals, in the coordinates of before.

        It is asked for after steps that leave nothing in the average of the next one,
        once `recentre` has been. No histogram follows, so norms have to stay as large.
        """
        return state

    def stretched(self, state: Any) -> Mapping[str, float]:
        """By block, how much larger norms may have become by `recentre`.

        For norms that no histogram shows afterwards. Others are left out.
        """
        return {}


class RedrawnRows(Protocol):
    """Steps that take the contribution of a redrawn row off a row's own.

    They give `bounded_sum` and `norm_counts` the keys that rows are redrawn with. An
    engine that cannot says None to `redrawn_after`.
    """

    @property
    def redrawn_after(self) -> int | None:
        """After how many of its steps rows may be redrawn; None where none can be."""
        return None

    def with_kept(self, state: Any, kept: Mapping[str, Kept]) -> Any:
        """The state that knows what clipping leaves of differences to redrawn rows.

        Args:
          state: The state at which a histogram of norms was released.
          kept: By block of which it has shown something, if the next steps redraw rows.
            Of released numbers alone.
        """
        return state


class FitsWithoutNoise(Protocol):
    """What a fit without noise may do besides planned steps: look at rows by itself.

    An engine that just takes these knows no `other_starts` and never converges.
    """

    def until_converged(
        self, state: Any, arguments: ModelArguments
    ) -> Iterator[Any] | None:
        """States on the way to convergence; None where the planned steps lead there.

        Only of a fit without noise: what it looks at, and when it ends, is up to it.

        Args:
          state: The initial state.
          arguments: The model's, with the rows.
        """
        return None

    def has_converged(self, state: Any) -> bool:
        """Whether planned steps may end here; asked only of a fit without noise."""
        return False

    def other_starts(self, rng_key: jax.Array) -> Sequence[Any]:
        """Further initial states that are worth a try, of a fit without noise."""
        return []

    def best(self, states: Sequence[Any], arguments: ModelArguments) -> Any:
        """The best of some states that starts without noise have led to."""
        return states[0]

    def informed(self, state: Any, arguments: ModelArguments) -> Any:
        """The last state of a fit without noise, with what intervals need of rows."""
        return state


class Description(Protocol):
    """What `explain` and the statement say."""

    @property
    def captured(self) -> Mapping[str, np.ndarray]:
        """Arrays held beside the model, as by a guide; they are treated as public."""
        return {}

    @property
    def programs_of_rows(self) -> Sequence[ProgramOfRows]:
        """What the caller has written of it and runs on rows, beside the model's own
        program: densities, and a guide."""
        return ()

    def describe_site(self, name: str) -> Mapping[str, Any]:
        """What a row of `Plan.sites` says beside the site's name and shape."""
        ...

    def describe_statistics(self) -> Sequence[Mapping[str, Any]]:
        """The rows of `Plan.statistics`, but for norms and sensitivities."""
        ...

    def describe_sparse_rows(self, name: str) -> str:
        """The end of a sentence on a private argument with `max_nonzeros`."""
        ...

    def notes(self) -> Iterable[str]:
        """What else to know."""
        ...


class Abilities(
    ClippingNorms,
    PublicSums,
    ColumnUnits,
    Recentring,
    RedrawnRows,
    FitsWithoutNoise,
    Description,
    Protocol,
):
    """All of these protocols, which VIPS and DPVI have."""
