"""What the rest of a fit needs of VIPS and of DPVI, and of what chooses them.

Nothing outside of `vips/` and `dpvi/` asks which of the two an engine is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from numpyro_vips.handlers import private
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.simulated_rows import RowSimulator
from numpyro_vips.posterior import Posterior
from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.privacy.releases import (
    ClippingEffect,
    Columns,
    Kept,
    Release,
    Together,
)


class Engine(Protocol):
    """Row contributions and public steps for one model. States are public.

    Attributes:
      name: `"vips"` or `"dpvi"`.
      is_one_vector: Whether the blocks of a step are parts of one vector, which are
        neither scaled against each other nor given norms one by one.
      balanced: The blocks of which rows' contributions add up to about zero at the
        optimum, as gradients do.
    """

    @property
    def name(self) -> str: ...

    @property
    def balanced(self) -> frozenset[str]: ...

    @property
    def growing(self) -> frozenset[str]:
        """Blocks whose norms the start halves: rows' residuals of labels, y - σ(ψ)."""
        ...

    @property
    def pilots(self) -> int:
        """How often what is "refreshed", or else what is recentred, is released first.

        What is released later is about points, or in coordinates, that these say.
        """
        ...

    @property
    def lasting(self) -> frozenset[str]:
        """Blocks of which some rows stay as large as at the start in every state.

        Where nearly all labels are alike, the noise of a later histogram hides them.
        """
        ...

    @property
    def recentred(self) -> frozenset[str]:
        """Blocks that `recentre` changes, which are of one kind: `"once"` or
        `"adaptive"`. None needs no `recentre`."""
        ...

    @property
    def together(self) -> tuple[Together, ...]:
        """Blocks that share a norm; each block in one of these at most."""
        ...

    @property
    def columns(self) -> Mapping[str, Columns]:
        """By block, its columns, if there are several that may get units of their
        own."""
        ...

    @property
    def is_one_vector(self) -> bool: ...

    @property
    def row_simulator(self) -> RowSimulator | None:
        """What draws rows whose norms tell those of a fit's; None where nothing does.

        So not under DPVI: gradients at the start are larger than those at the end.
        """
        ...

    @property
    def redrawn_after(self) -> int | None:
        """After how many of its steps rows may be redrawn; None where none can be."""
        ...

    # --- what the schedule is made of: public, known before rows are read -------------

    def blocks(self, release: Release) -> tuple[Block, ...]:
        """What is released of this kind, at scale 1.

        Blocks of `"information"` are for the posterior's intervals alone, and what they
        add is no part of the vector of the steps: each has a clipping norm of its own.
        """
        ...

    def default_num_steps(self, *, is_private: bool, until_converged: bool) -> int:
        """How many steps release what is adaptive, if the caller leaves that open.

        Args:
          is_private: Whether there is noise.
          until_converged: Whether the fit may end earlier, see `has_converged`.
        """
        ...

    def step_sizes(
        self, num_steps: int, *, is_private: bool, is_full: bool
    ) -> Sequence[float]:
        """What `update` gets as `step_size` in each of these steps.

        Args:
          num_steps: Number of adaptive steps.
          is_private: Whether there is noise.
          is_full: Whether each of them uses all rows.
        """
        ...

    def forgotten_steps(
        self, num_steps: int, *, is_private: bool, is_full: bool
    ) -> int:
        """How many of these steps, the first ones, have no part in the result.

        They lead to where the others start from, and get less of the budget.

        Args:
          num_steps, is_private, is_full: See `step_sizes`.
        """
        ...

    # --- one step ---------------------------------------------------------------------

    def initial_state(self, rng_key: jax.Array) -> Any:
        """The state before any row is read."""
        ...

    def row_norms(
        self, state: Any, rows: Mapping[str, Any], names: Sequence[str]
    ) -> Mapping[str, np.ndarray]:
        """Norm of each block for rows that the caller may see: (number of rows,)."""
        ...

    def bounded_sum(
        self,
        state: Any,
        rows: Mapping[str, Any],
        mask: Any,
        *,
        scales: Mapping[str, float],
        clipping_norm: float,
        row_keys: np.ndarray | None = None,
    ) -> Mapping[str, Any]:
        """The clipped sum of a chunk's row contributions, not yet private.

        Args:
          state: The state before the step.
          rows: Private arrays, with the rows along the leading axis.
          mask: True where a row is meant, (number of rows,).
          scales: Factor of each block that is asked for in the joint vector. With
            `row_sums.DIAGNOSTICS` among them, rows are counted, too, whose factors and
            counts are no part of the joint vector that is clipped.
          clipping_norm: L2 bound on a row's joint vector.
          row_keys: Secret bits of each row's own, see `privacy.row_keys`, where a step
            redraws rows: (number of rows, 2), uint32.

        Returns:
          The sum of each block in `scales`.
        """
        ...

    def norm_counts(
        self,
        state: Any,
        rows: Mapping[str, Any],
        mask: Any,
        *,
        parts: Mapping[str, Sequence[str]],
        edges: Mapping[str, np.ndarray],
        row_keys: np.ndarray | None = None,
    ) -> Mapping[str, Any]:
        """In how many of a chunk's rows each norm lies in which bin, not yet private.

        Args:
          state: The state before the step.
          rows: Private arrays, with the rows along the leading axis.
          mask: True where a row is meant, (number of rows,).
          parts: By the name of a norm, the blocks whose joint norm it is.
          edges: By the name of a norm, where bins end, growing: (number of edges,).
          row_keys: See `bounded_sum`. With them norms are those of what is clipped in
            steps that redraw rows.

        Returns:
          By the name of a norm, the counts of the bins (edges[i - 1], edges[i]], where
          the first and the last bin have no end: (number of edges + 1,). A row that
          counts as zero is in none of them.
        """
        ...

    def column_counts(
        self,
        state: Any,
        rows: Mapping[str, Any],
        mask: Any,
        *,
        edges: Mapping[str, np.ndarray],
    ) -> Mapping[str, Any]:
        """In how many of a chunk's rows each column lies in which bin, not yet private.

        Args:
          state, rows, mask: See `norm_counts`.
          edges: By the name of a block in `columns`, where the bins of absolute values
            end, growing: (number of edges,).

        Returns:
          By the name of the block, counts as of `norm_counts`, one line for each
          column: (number of columns, number of edges + 1).
        """
        ...

    def with_column_sizes(self, state: Any, sizes: Mapping[str, np.ndarray]) -> Any:
        """The state in which columns are clipped in units that suit their sizes.

        Args:
          state: The state that was given to `column_counts`.
          sizes: By block, how large each column's entries are, over what they would be
            in rows of unit size: (number of columns,). Of released numbers alone.
        """
        ...

    def suited_to_norms(
        self, state: Any, ratios: Mapping[str, float]
    ) -> tuple[Any, Mapping[str, float]]:
        """The state in which features have units that suit the norms of rows.

        Args:
          state: The state at which a histogram of norms was released.
          ratios: By block, the norm that it found over that of rows of unit size; of
            blocks that stood out of its noise.

        Returns:
          The state, and by block what the norms are to be multiplied by in it; those
          that stay are left out.
        """
        ...

    def with_kept(self, state: Any, kept: Mapping[str, Kept]) -> Any:
        """The state that knows what clipping leaves of differences to redrawn rows.

        Args:
          state: The state at which a histogram of norms was released.
          kept: By block of which it has shown something, if the next steps redraw rows.
            Of released numbers alone.
        """
        ...

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
        ...

    def compile_update(self, state: Any) -> None:
        """Starts to compile what `update` runs, within `compiled_by`.

        Args:
          state: One whose arrays have the shapes and types that they have later.
        """
        ...

    def update(
        self,
        state: Any,
        released: Mapping[str, np.ndarray],
        noise_stddev: Mapping[str, float],
        step_size: float,
        *,
        is_pilot: bool = False,
    ) -> Any:
        """The state after a step, from noisy estimates of the sums over all rows.

        A pilot only says about which points, or in which coordinates, the next releases
        are; see `pilots`.
        """
        ...

    def recentre(self, state: Any) -> Any:
        """The state from which `recentred` blocks are released about where globals are.

        It is asked for after each pilot, before a histogram of the norms about there.
        """
        ...

    def stretched(self, state: Any) -> Mapping[str, float]:
        """By block, how much larger norms may have become by `recentre`.

        For norms that no histogram shows afterwards. Others are left out.
        """
        ...

    def expected_squares(self, state: Any) -> Mapping[str, float]:
        """By block, about what the squared norms of all rows add up to.

        As far as what was released says it; others are left out. A histogram of norms
        may not show them all.
        """
        ...

    def has_posterior(self, state: Any) -> bool:
        """Whether all that a posterior needs has been released."""
        ...

    def posterior(self, state: Any) -> Posterior:
        """The posterior of the globals, parameters alone."""
        ...

    def released(self, state: Any) -> Mapping[str, np.ndarray]:
        """What the state holds of released numbers, by name, for who must do without
        a posterior."""
        ...

    def until_converged(
        self, state: Any, arguments: ModelArguments
    ) -> Iterator[Any] | None:
        """States on the way to convergence; None where the planned steps lead there.

        Only of a fit without noise: what it looks at, and when it ends, is up to it.

        Args:
          state: The initial state.
          arguments: The model's, with the rows.
        """
        ...

    def has_converged(self, state: Any) -> bool:
        """Whether planned steps may end here; asked only of a fit without noise."""
        ...

    def other_starts(self, rng_key: jax.Array) -> Sequence[Any]:
        """Further initial states that are worth a try, of a fit without noise."""
        ...

    def best(self, states: Sequence[Any], arguments: ModelArguments) -> Any:
        """The best of some states that starts without noise have led to."""
        ...

    def informed(self, state: Any, arguments: ModelArguments) -> Any:
        """The last state of a fit without noise, with what intervals need of rows."""
        ...

    def diagnostics(self, state: Any) -> Mapping[str, Any]:
        """What is known of how good the posterior is, JSON-able.

        Made of the state alone, so of released numbers. `"warnings"`, if there, is a
        list of sentences on what the caller should know before using the posterior.
        """
        ...

    def clipping_effect(self, state: Any, names: Sequence[str]) -> ClippingEffect:
        """What clipping rows of these blocks does to the posterior of the state.

        Made of the model and of released numbers. The blocks are those of one step.
        """
        ...

    # --- what `explain` and the statement say -----------------------------------------

    @property
    def captured(self) -> Mapping[str, np.ndarray]:
        """Arrays held beside the model, as by a guide; they are treated as public."""
        ...

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


class EngineSettings(Protocol):
    """`VIPS` or `DPVI`: comparable, hashable, and `repr` is the code that makes it."""

    @property
    def for_row_queries(self) -> Mapping[str, Any]:
        """What a `RowQuery` needs to know of the settings, JSON-able."""
        ...

    def build_engine(
        self,
        model: private,
        graph: ModelGraph,
        *,
        num_steps: int | None,
        until_converged: bool,
        has_norms: bool,
    ) -> Engine:
        """The engine for a model; reads shapes, not values.

        Raises:
          NotConjugate, UnsafeModelError: The engine cannot run the model.
        """
        ...
