"""A compiled conjugate model: what the engine can ask of it.

The parts are in files of their own: `expectations` (E_q of a term), `e_step`
(the E-step of a row), `row_statistics` (norms and clipped sums) and `m_step`
(the M-step). The (n̄, s̄) of the VIPS paper are the expected natural parameters of the
likelihood and the gradient of a row's expected log joint density in them.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.terms import Term
from numpyro_vips.conjugacy.densities import logistic_bounds
from numpyro_vips.conjugacy.structure import centring
from numpyro_vips.conjugacy.structure.log_joint import LogJoint, symbolic_log_joint
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.structure import Structure, normal_terms
from numpyro_vips.jax_tools.row_programs import over_rows
from numpyro_vips.jax_tools.row_sums import in_double, in_pieces
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.sparse_rows import dense_rows
from numpyro_vips.vips import expectations
from numpyro_vips.vips import m_step as globals_
from numpyro_vips.vips.coordinates import (
    LocalFactor,
    copies,
    divided_by_weight,
    locals_of,
)
from numpyro_vips.vips.e_step import (
    couples_latents,
    entropy,
    solve_row,
    without_padding,
)
from numpyro_vips.vips.expectations import MomentsByFactor
from numpyro_vips.vips.invalid_rows import ZeroInvalidRows
from numpyro_vips.vips.row_statistics import (
    PartialSum,
    RowContribution,
    add,
    as_block,
    clipping_weights,
    epsilon,
    in_order,
    numbers_of,
    piece_size,
    scattered_statistics,
    squared_row_norm,
    weighted,
    where_rows,
    with_numbers,
    zero_sum,
)
from numpyro_vips.vips.starting_moments import zero_moments


def _with_leading_axis(row: Mapping[str, Any]) -> dict[str, Any]:
    return jax.tree.map(lambda array: array[None], dict(row))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConjugateProgram:
    """A compiled model. All methods are pure and may be traced.

    Attributes:
      graph: The model that was compiled.
      structure: Its families, posterior factors and statistics.
      augmentation: The bound for its logistic likelihoods, by site or for all.
      check_parameters: Whether a row is valid only if its parameters lie in NumPyro's
        constraints.
      dense: Sparse private arguments (`SparseRows`) that the program works on as dense
        arrays, and why.
      densified: For those that it works on by entries, the operations that need them
        dense.
    """

    graph: ModelGraph
    structure: Structure
    augmentation: logistic_bounds.Choice = logistic_bounds.DEFAULT
    check_parameters: bool = True
    dense: Mapping[str, str] = dataclasses.field(default_factory=dict)
    densified: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    def symbolic_log_joint(
        self, rows: Mapping[str, Any], *, weighted: bool = True
    ) -> LogJoint:
        """The log joint density of one row, whose arguments have a leading axis."""
        return symbolic_log_joint(
            self.graph,
            dense_rows(rows, self.dense),
            weighted=weighted,
            augmentation=self.augmentation,
            check_parameters=self.check_parameters,
        )

    # --- one row ----------------------------------------------------------------------

    def row_terms(
        self, row: Mapping[str, Any], *, zero_invalid: bool = True
    ) -> tuple[LogJoint, list[Term], ZeroInvalidRows]:
        """A single row's terms, all its constants zero if the row is not valid."""
        found = self.symbolic_log_joint(_with_leading_axis(row))
        terms: list[Term] = []
        for density in found.densities:
            if density.is_row:
                terms += normal_terms(density.form.terms, found.latents)
        zeroing = ZeroInvalidRows(found.valid if zero_invalid else True)
        return found, [zeroing.term(term) for term in terms], zeroing

    def local_factors(
        self,
        expected_natural: Mapping[str, jax.Array],
        row: Mapping[str, Any],
        sweeps: int,
    ) -> dict[str, LocalFactor]:
        """Moments and natural parameters of a row's factors; see `solve_row`."""
        found, terms, zeroing = self.row_terms(row)
        factors = solve_row(
            self.structure, found, terms, zeroing, expected_natural, sweeps
        )
        return without_padding(factors)

    def solve_locals(
        self,
        expected_natural: Mapping[str, jax.Array],
        row: Mapping[str, Any],
        sweeps: int,
    ) -> dict[str, dict[str, jax.Array]]:
        """Moments of a row's latents, by coordinate ascent from a fresh start.

        Those of a discrete latent may be padded with states that it does not have.
        """
        found, terms, zeroing = self.row_terms(row)
        factors = solve_row(
            self.structure, found, terms, zeroing, expected_natural, sweeps
        )
        return {name: moments for name, (moments, _) in factors.items()}

    def row_bound(
        self,
        expected_natural: Mapping[str, jax.Array],
        row: Mapping[str, Any],
        sweeps: int,
    ) -> jax.Array:
        """The row's part of the evidence lower bound: E_q of its terms, plus entropies.

        For tests and for rows that the caller may see; it is not bounded and never
        released for private ones. Not a number if the row is not valid.
        """
        factors = self.local_factors(expected_natural, row, sweeps)
        total, valid = self.row_bound_at(expected_natural, row, factors)
        return jnp.where(valid, total, jnp.nan)

    def row_bound_at(
        self,
        expected_natural: Mapping[str, jax.Array],
        row: Mapping[str, Any],
        factors: Mapping[str, LocalFactor],
    ) -> tuple[jax.Array, jax.Array]:
        """The bound for given factors of the row's latents, and whether it is valid."""
        found, terms, zeroing = self.row_terms(row)
        moments = {name: mine for name, (mine, _) in factors.items()}
        total = self.expected(terms, expected_natural, moments)
        for posterior_factor in self.structure.posterior_factors_of("local"):
            weight = copies(posterior_factor, found.latents)
            array = None
            if weight is not None:
                array = zeroing.array(forms.constant_array(weight))
            mine, natural = factors[posterior_factor.name]
            total = total + entropy(posterior_factor, natural, mine, array)
        return total, jnp.asarray(found.valid)

    def global_bound(
        self, moments: MomentsByFactor, natural: MomentsByFactor, row: Any
    ) -> jax.Array:
        """The globals' part of the bound: E_q of their prior, plus entropies."""
        total = self.expected(self.prior_terms(row), None, moments)
        for factor in self.structure.posterior_factors_of("global"):
            weight = copies(factor, self.structure.latents)
            array = None if weight is None else forms.constant_array(weight)
            each = natural[factor.name]
            if array is not None:
                each = divided_by_weight(each, array, factor.family)
            total = total + entropy(factor, each, moments[factor.name], array)
        return total

    # --- statistics about the mean ---------------------------------------------------

    def means(self, moments: MomentsByFactor) -> dict[str, jax.Array]:
        """The points about which statistics are released, by latent; see `centring`."""
        return centring.means_of(
            self.structure.posterior_factors, self.structure.centred, moments
        )

    def _centred(self, terms: Sequence[Term], means: centring.Means) -> list[Term]:
        """Terms whose products of centred latents stand for those about the mean."""
        if not means:
            return list(terms)
        structure = self.structure
        added = [
            correction
            for term in terms
            for correction in centring.mean_corrections(
                term,
                structure.posterior_factors,
                structure.factor_of,
                structure.centred,
                means,
            )
        ]
        return normal_terms([*terms, *added], structure.latents)

    # --- expectations -----------------------------------------------------------------

    def expected(
        self,
        terms: Sequence[Term],
        expected_natural: Mapping[str, jax.Array] | None,
        moments: MomentsByFactor,
    ) -> jax.Array:
        """E_q of a sum of terms; globals from n̄ if it is given, else from moments."""
        return expectations.expected(self.structure, terms, expected_natural, moments)

    def expected_natural_of(self, moments: MomentsByFactor) -> dict[str, jax.Array]:
        """n̄: for every statistic, the product of global moments that it multiplies."""
        return expectations.expected_natural_of(self.structure, moments)

    def zero_moments(self, factor: PosteriorFactor) -> dict[str, jax.Array]:
        return zero_moments(factor)

    # --- rows -------------------------------------------------------------------------

    def row_norms(
        self,
        row: Mapping[str, Any],
        local_moments: MomentsByFactor,
        scales: Mapping[str, float],
        means: centring.Means | None = None,
    ) -> jax.Array:
        """L2 norm of one row's scaled statistics, over the blocks in `scales`.

        Not finite if the row is not valid.
        """
        means = means or {}
        terms, contribution = self._row_contribution(row, local_moments, scales, means)
        with jax.enable_x64(True):
            return self._norm(
                terms, in_double(contribution), in_double(scales), in_double(means)
            )

    def _row_contribution(
        self,
        row: Mapping[str, Any],
        local_moments: MomentsByFactor,
        scales: Mapping[str, float],
        means: centring.Means,
    ) -> tuple[list[Term], RowContribution]:
        """A row's terms and its contribution, from which norm and sum are made.

        Both are made of the same numbers and in double precision, where no product of a
        few of them is too large or too small. In single precision squares of small
        numbers are zero: a row could count with a norm of zero and not be clipped.
        """
        whole_row, terms, _ = self.row_terms(row)
        scattered = scattered_statistics(
            self.structure, self._centred(terms, means), local_moments, scales
        )
        numbers = numbers_of(terms)
        return terms, RowContribution(
            numbers, local_moments, scattered, whole_row.valid, epsilon()
        )

    def _norm(
        self,
        terms: Sequence[Term],
        contribution: RowContribution,
        scales: Mapping[str, float],
        means: centring.Means,
    ) -> jax.Array:
        square = squared_row_norm(
            self.structure,
            self._centred(with_numbers(terms, contribution.numbers), means),
            contribution,
            scales,
        )
        norm = jnp.sqrt(jnp.maximum(square, 0.0))
        return jnp.where(contribution.valid, norm, jnp.nan)

    def bounded_sum(
        self,
        expected_natural: Mapping[str, jax.Array],
        rows: Mapping[str, jax.Array],
        mask: jax.Array,
        scales: Mapping[str, float],
        clipping_norm: float | jax.Array,
        sweeps: int,
        means: centring.Means | None = None,
    ) -> dict[str, jax.Array]:
        """Sums the rows' expected sufficient statistics, each clipped in L2 norm.

        Guarantees:
          Adding or removing one row changes the sum, each block times its scale, by
          at most `clipping_norm` in L2 norm, whatever the rows hold: a row that holds
          something not finite or outside its support counts as zero.

        Args:
          expected_natural: n̄, one array per statistic.
          rows: The private arguments, with a leading axis of rows.
          mask: Whether each row is part of the minibatch.
          scales: Scale of each block that is released; the others are left out.
          clipping_norm: Bound on the norm of one row's scaled statistics.
          sweeps: Number of coordinate-ascent sweeps over a row's latents.
          means: The points about which statistics are taken, by latent; zero if left
            out.

        Returns:
          The sum of each block in `scales`, not yet private, in double precision.
        """
        # Which precision latents are solved for in is for the caller to say.
        is_double = jnp.result_type(float) == jnp.float64

        def solve(rows: Mapping[str, jax.Array]) -> tuple[list[Term], RowContribution]:
            with jax.enable_x64(is_double):
                return self._row_contributions(
                    expected_natural, rows, scales, sweeps, means or {}
                )

        with jax.enable_x64(True):
            return self._sum(
                solve,
                in_double(expected_natural),
                rows,
                mask,
                in_double(scales),
                in_double(clipping_norm),
                in_double(means or {}),
            )

    def _sum(
        self,
        solve: Callable[[Mapping[str, jax.Array]], tuple[list[Term], RowContribution]],
        expected_natural: Mapping[str, jax.Array],
        rows: Mapping[str, jax.Array],
        mask: jax.Array,
        scales: Mapping[str, float],
        clipping_norm: float | jax.Array,
        means: centring.Means,
    ) -> dict[str, jax.Array]:
        """Adds up the contributions that `solve` returns, in double precision.

        `solve` maps rows to their terms and contributions in the caller's precision;
        other arguments and the result are those of `bounded_sum`.
        """

        def of_piece(rows: Any, mask: jax.Array) -> dict[str, PartialSum]:
            terms, contributions = solve(rows)
            return self._sum_of_contributions(
                expected_natural,
                terms,
                in_double(contributions),
                mask,
                scales,
                clipping_norm,
                means,
            )

        def add_partial_sums(
            sums: Any, partial_sums: Mapping[str, PartialSum]
        ) -> dict[str, jax.Array]:
            return {name: add(sums[name], partial_sums[name]) for name in scales}

        def zeros(partial_sums: Mapping[str, PartialSum]) -> dict[str, jax.Array]:
            return {
                name: zero_sum(partial_sums[name], expected_natural[name].shape)
                for name in scales
            }

        pieces = in_pieces(dict(rows), mask, self._piece_size(rows))
        first = jax.tree.map(lambda x: x[0], pieces)
        if len(pieces[1]) == 1:
            partial_sums = of_piece(*first)
            sums = add_partial_sums(zeros(partial_sums), partial_sums)
        else:
            partial_sums = jax.eval_shape(of_piece, *first)
            sums, _ = jax.lax.scan(
                lambda sums, piece: (add_partial_sums(sums, of_piece(*piece)), None),
                zeros(partial_sums),
                pieces,
            )
        sums = {
            name: in_order(sums[name], partial_sums[name], expected_natural[name].shape)
            for name in scales
        }
        return {
            statistic.name: as_block(statistic, sums[statistic.name])
            for statistic in self.structure.statistics
            if statistic.name in scales
        }

    def _row_contributions(
        self,
        expected_natural: Mapping[str, jax.Array],
        rows: Mapping[str, jax.Array],
        scales: Mapping[str, float],
        sweeps: int,
        means: centring.Means,
    ) -> tuple[list[Term], RowContribution]:
        """The E-step: rows' terms, and their numbers with a leading axis of rows."""
        found: list[list[Term]] = []

        def solve(shared: Any, row: Mapping[str, Any]) -> RowContribution:
            expected_natural, scales, means = shared
            local_moments = self.solve_locals(expected_natural, row, sweeps)
            terms, contribution = self._row_contribution(
                row, local_moments, scales, means
            )
            found.append(terms)
            return contribution

        shared = jax.tree.map(
            jnp.asarray, (dict(expected_natural), dict(scales), dict(means))
        )
        contributions = over_rows(solve)(shared, rows)
        # Else XLA may work out a number twice, for the norm and for the sum, and round
        # it in two ways.
        return found[0], jax.lax.optimization_barrier(contributions)

    def _sum_of_contributions(
        self,
        expected_natural: Mapping[str, jax.Array],
        terms: Sequence[Term],
        contributions: RowContribution,
        mask: jax.Array,
        scales: Mapping[str, float],
        clipping_norm: float | jax.Array,
        means: centring.Means,
    ) -> dict[str, PartialSum]:
        norms = jax.vmap(
            lambda contribution: self._norm(terms, contribution, scales, means)
        )(contributions)
        weights, usable = clipping_weights(norms, mask, clipping_norm)
        # What is not usable must not reach the sum even as 0 · nan.
        contributions = jax.tree.map(lambda x: where_rows(usable, x), contributions)
        partial_sums: dict[str, PartialSum] = {
            name: weighted(partial_sum, weights)
            for name, partial_sum in contributions.scattered.items()
        }

        def total(released: Mapping[str, jax.Array]) -> jax.Array:
            def expected(contribution: RowContribution) -> jax.Array:
                mine = self._centred(with_numbers(terms, contribution.numbers), means)
                return self.expected(
                    mine, {**expected_natural, **released}, contribution.local_moments
                )

            return jnp.vdot(weights, jax.vmap(expected)(contributions))

        rest = {
            name: expected_natural[name] for name in scales if name not in partial_sums
        }
        return partial_sums | (jax.grad(total)(rest) if rest else {})

    def _piece_size(self, rows: Mapping[str, jax.Array]) -> int | None:
        """Rows to work on together; None for all, where no latents are swept."""
        found: list[bool] = []

        def look(row: Mapping[str, Any]) -> None:
            _, terms, _ = self.row_terms(row)
            found.append(couples_latents(self.structure, terms))

        jax.eval_shape(look, jax.tree.map(lambda array: array[0], dict(rows)))
        if not found[0]:
            return None
        shapes = jax.eval_shape(
            lambda: [
                self.zero_moments(g)
                for g in self.structure.posterior_factors_of("local")
            ]
        )
        leaves = jax.tree.leaves(shapes)
        return piece_size(sum(leaf.size * leaf.dtype.itemsize for leaf in leaves))

    def public_statistics(
        self,
        expected_natural: Mapping[str, jax.Array],
        row: Mapping[str, Any],
        sweeps: int,
    ) -> dict[str, jax.Array]:
        """One row's contribution to each public statistic; any row gives the same.

        Of the row's latents, only those take part whose factors do not depend on
        private rows.
        """
        # A synthetic row need not be valid; nothing of it is looked at.
        found, terms, zeroing = self.row_terms(row, zero_invalid=False)
        posterior_factors = {
            name: posterior_factor
            for name, posterior_factor in self.structure.posterior_factors.items()
            if posterior_factor.role == "global"
            or name not in self.structure.data_dependent_factors
        }
        alike = [
            t for t in terms if locals_of(self.structure, t) <= set(posterior_factors)
        ]
        structure = dataclasses.replace(
            self.structure, posterior_factors=posterior_factors
        )
        factors = solve_row(structure, found, alike, zeroing, expected_natural, sweeps)
        local_moments = {name: moments for name, (moments, _) in factors.items()}

        def expected(expected_natural: Mapping[str, jax.Array]) -> jax.Array:
            public = []
            for term in alike:
                found = expectations.binding(self.structure, term)
                if found is not None and found[0].release == "public":
                    public.append(term)
            return self.expected(public, expected_natural, local_moments)

        gradients = jax.grad(expected)(dict(expected_natural))
        return {
            s.name: as_block(s, gradients[s.name])
            for s in self.structure.statistics
            if s.release == "public"
        }

    # --- globals ----------------------------------------------------------------------

    def prior_terms(self, row: Mapping[str, Any]) -> list[Term]:
        """Terms of the sites outside the unit plate (they do not depend on the row)."""
        found = self.symbolic_log_joint(_with_leading_axis(row))
        terms: list[Term] = []
        for density in found.densities:
            if not density.is_row:
                terms += normal_terms(density.form.terms, found.latents)
        return terms

    def start(self, key: jax.Array, row: Mapping[str, Any]) -> globals_.Start:
        """Where a fit starts; see `m_step`. Any row will do."""
        return globals_.start(self.structure, self.prior_terms(row), key)

    def update_globals(
        self,
        statistics: Mapping[str, jax.Array],
        noise_stddev: Mapping[str, jax.Array],
        moments: MomentsByFactor,
        centre: Mapping[str, jax.Array],
        row: Mapping[str, Any],
        max_sweeps: int | jax.Array = 500,
    ) -> tuple[dict, dict]:
        """Coordinate ascent over the globals for given sums of row statistics.

        Any row will do, private or synthetic: the prior does not depend on it.
        """
        return globals_.update_globals(
            self.structure,
            self.prior_terms(row),
            statistics,
            noise_stddev,
            moments,
            centre,
            max_sweeps=max_sweeps,
        )
