"""What the rest of a fit needs of VIPS and of DPVI, and of what chooses them.

Nothing outside of `vips/` and `dpvi/` asks which of the two an engine is.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from numpyro_vips.abilities import Abilities
from numpyro_vips.handlers import private
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.posterior import Posterior
from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.privacy.releases import ClippingEffect, Release


class Engine(Abilities, Protocol):
    """Row contributions and public steps for one model. States are public.

    These are the core: what each step releases, how rows are summed, and what becomes
    of the sums. What else an engine may be able to do is in `abilities`.

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
    def is_one_vector(self) -> bool: ...

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
        redraws: bool = False,
    ) -> Any:
        """The state after a step, from noisy estimates of the sums over all rows.

        A pilot only says about which points, or in which coordinates, the next releases
        are; see `pilots`. `redraws` says whether rows had keys, see `bounded_sum`.
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
          NotConjugateError, UnsafeModelError: The engine cannot run the model.
        """
        ...
