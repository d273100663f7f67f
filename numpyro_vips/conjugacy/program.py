"""Evaluates a conjugate model: moments, local solutions, row statistics, globals.

The expected energy of a row is linear in the joint moments n̄ of the globals that its
terms multiply (`Structure.statistics`), so the row's expected sufficient statistics
are its gradient in n̄: exactly the (n̄, s̄) of the VIPS paper. No row's statistic is
ever materialised. The norm of a row comes from inner products of its terms, and the
clipped sum over rows is one weighted backward pass.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_vips.conjugacy import forms
from numpyro_vips.conjugacy.energy import Energy, energy
from numpyro_vips.conjugacy.families import Categorical, Family, PolyaGamma
from numpyro_vips.conjugacy.forms import Atom, Label, OneHot, Term
from numpyro_vips.conjugacy.joint_categorical import JointCategorical
from numpyro_vips.conjugacy.structure import (
    Group,
    NotConjugate,
    Statistic,
    Structure,
    exponential_family,
    global_part,
    is_real,
    normal_terms,
    specialises,
    statistic_name,
)
from numpyro_vips.model_graph import ModelGraph

Moments = Mapping[str, Mapping[str, jax.Array]]
Operand = tuple[Any, forms.Labels]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConjugateProgram:
    """A compiled model. All methods are pure and may be traced.

    Attributes:
      graph: The model that was compiled.
      structure: Its families, blocks and statistics.
    """

    graph: ModelGraph
    structure: Structure

    # --- one row ----------------------------------------------------------------------

    def row_terms(
        self, row: Mapping[str, Any], *, clear: bool = True
    ) -> "tuple[Energy, list[Term], _Clear]":
        """A single row's terms, all its constants zero if the row is not valid."""
        found = energy(self.graph, {k: v[None] for k, v in row.items()})
        terms: list[Term] = []
        for piece in found.pieces:
            if piece.is_row:
                terms += normal_terms(piece.form.terms, found.latents)
        cleared = _Clear(found.valid if clear else True)
        return found, [cleared.term(term) for term in terms], cleared

    def solve_locals(
        self, joint: Mapping[str, jax.Array], row: Mapping[str, Any], sweeps: int
    ) -> dict[str, dict[str, jax.Array]]:
        """Moments of a row's latents, by coordinate ascent from a fresh start.

        Auxiliary variables start at a neutral value and each latent of the model at
        what its parents and its own likelihood make of it. Then all are swept from the
        last to the first, so that what is observed moves first.
        """
        found, terms, cleared = self.row_terms(row)
        groups = self.structure.groups_of("local")
        weights = {
            name: cleared.array(forms.constant_array(latent.weight))
            for name, latent in found.latents.items()
            if latent.weight is not None
        }
        own = {g.name: [t for t in terms if self._mentions(t, g)] for g in groups}
        moments = self._neutral_auxiliaries(groups)
        for group in groups:
            if group.name in moments:
                continue
            known = [
                term
                for term in own[group.name]
                if self._locals_of(term) <= {*moments, group.name}
            ]
            moments[group.name] = self._update(group, known, joint, moments, weights)

        def sweep(_: int, current: dict) -> dict:
            current = dict(current)
            for group in reversed(groups):
                current[group.name] = self._update(
                    group, own[group.name], joint, current, weights
                )
            return current

        if not self._coupled(terms):
            return sweep(0, moments)  # Each solution is exact at once.
        return jax.lax.fori_loop(0, sweeps, sweep, moments)

    def _neutral_auxiliaries(
        self, groups: Sequence[Group]
    ) -> dict[str, dict[str, jax.Array]]:
        """Moments from which auxiliary variables start."""
        moments: dict[str, dict[str, jax.Array]] = {}
        for group in groups:
            if self.structure.latents[group.latents[0]].family is None:
                continue
            if group.family is Categorical:
                moments[group.name] = self._even(group)
                continue
            value = 0.25 if group.family is PolyaGamma else 1.0
            moments[group.name] = {
                statistic: jnp.full(group.shape, {"log": 0.0}.get(statistic, value))
                for statistic in group.family.statistics
            }
        return moments

    def _update(
        self,
        group: Group,
        terms: Sequence[Term],
        joint: Mapping[str, jax.Array],
        moments: Moments,
        weights: Mapping[str, jax.Array],
    ) -> dict[str, jax.Array]:
        def expected(mine: Mapping[str, jax.Array]) -> jax.Array:
            return self.expected(terms, joint, {**moments, group.name: mine})

        if any(_couples_elements(term, group) for term in terms):
            return _one_by_one(expected, moments.get(group.name), self._even(group))
        natural = jax.grad(expected)(self.zero_moments(group))
        weight = weights.get(group.name)
        if weight is not None:
            natural = divided_by_weight(natural, weight, group.family)
        return group.family.moments(natural)

    def zero_moments(self, group: Group) -> dict[str, jax.Array]:
        return {
            statistic: jnp.zeros(self._moment_shape(group, statistic))
            for statistic in group.family.statistics
        }

    def _even(self, group: Group) -> dict[str, jax.Array]:
        """Every state of a discrete latent equally likely."""
        shape = self._moment_shape(group, "is")
        return {"is": jnp.full(shape, 1.0 / shape[-1])}

    def _moment_shape(self, group: Group, statistic: str) -> tuple[int, ...]:
        if isinstance(group.family, JointCategorical):
            return (*group.shape, *group.family.table_shape(statistic))
        if statistic == "xx":
            return (*group.shape, group.shape[-1])
        if statistic == "is":
            states = self.structure.latents[group.name].states
            assert states is not None
            return (*group.shape, len(states))
        if statistic == "logdet":
            return group.shape[:-2]
        return group.shape

    def _locals_of(self, term: Term) -> set[str]:
        return {
            self.structure.group_of[atom.latent]
            for atom in term.atoms
            if self.structure.latents[atom.latent].role == "local"
        }

    def _mentions(self, term: Term, group: Group) -> bool:
        return any(atom.latent in group.latents for atom in term.atoms)

    def _parents_first(self, groups: Sequence[Group]) -> list[Group]:
        """In the model's order; a block waits for the parents of all its sites."""
        position = {name: i for i, name in enumerate(self.structure.latents)}
        return sorted(groups, key=lambda g: max(position[n] for n in g.latents))

    def _coupled(self, terms: Sequence[Term]) -> bool:
        return any(len(self._locals_of(term)) > 1 for term in terms)

    def row_bound(
        self, joint: Mapping[str, jax.Array], row: Mapping[str, Any], sweeps: int
    ) -> jax.Array:
        """The row's part of the evidence lower bound: E_q of its terms, plus entropies.

        For tests and for rows that the caller may see; it is not bounded and never
        released for private ones.
        """
        found, terms, cleared = self.row_terms(row)
        moments = self.solve_locals(joint, row, sweeps)
        total = self.expected(terms, joint, moments)
        for group in self.structure.groups_of("local"):
            mine = [term for term in terms if self._mentions(term, group)]

            def expected(value: Any, group: Group = group, mine: Any = mine) -> Any:
                return self.expected(mine, joint, {**moments, group.name: value})

            weight = found.latents[group.latents[0]].weight
            array = None
            if weight is not None:
                array = cleared.array(forms.constant_array(weight))
            current = moments[group.name]
            natural = jax.grad(expected)(current)
            if any(_couples_elements(term, group) for term in mine):
                # The entropy of independent elements, whatever they interact with.
                entropy = jax.scipy.special.entr(current["is"]).sum()
            else:
                entropy = group_entropy(group, natural, current, array)
            total = total + entropy
        return total

    def global_bound(self, moments: Moments, natural: Moments, row: Any) -> jax.Array:
        """The globals' part of the bound: E_q of their prior, plus entropies."""
        total = self.expected(self.prior_terms(row), None, moments)
        for group in self.structure.groups_of("global"):
            weight = self.structure.latents[group.latents[0]].weight
            array = None if weight is None else forms.constant_array(weight)
            total = total + group_entropy(
                group, natural[group.name], moments[group.name], array
            )
        return total

    # --- expectations -----------------------------------------------------------------

    def expected(
        self,
        terms: Sequence[Term],
        joint: Mapping[str, jax.Array] | None,
        moments: Moments,
    ) -> jax.Array:
        """E_q of a sum of terms.

        Globals are read from the joint moments n̄ if those are given, else from the
        moments of their groups.
        """
        total = jnp.zeros(())
        for term in terms:
            operands = self._constants(term)
            if joint is not None:
                operands += self._joint_operand(term, joint)
                operands += self._moment_operands(term, moments, role="local")
            else:
                operands += self._moment_operands(term, moments, role=None)
            total = total + forms.contract(term.scale, operands, ())
        return total

    def _constants(self, term: Term) -> "list[Operand | OneHot]":
        return [
            factor if isinstance(factor, OneHot) else (factor.array, factor.labels)
            for factor in term.factors
            if not isinstance(factor, Atom)
        ]

    def _binding(self, term: Term) -> tuple[Statistic, forms.Labels] | None:
        part = global_part(term, self.structure.latents)
        if not part.atoms:
            return None
        for statistic in self.structure.statistics:
            binding = specialises(part, statistic)
            if binding is not None:
                return statistic, tuple(part.labels[i] for i in binding)
        raise AssertionError("every row term has a statistic")

    def _joint_operand(
        self, term: Term, joint: Mapping[str, jax.Array]
    ) -> "list[Operand | OneHot]":
        found = self._binding(term)
        if found is None:
            return []
        statistic, labels = found
        return [(joint[statistic.name], labels)]

    def _moment_operands(
        self, term: Term, moments: Moments, role: str | None
    ) -> "list[Operand | OneHot]":
        by_group: dict[str, list[Atom]] = {}
        for atom in term.atoms:
            if role is None or self.structure.latents[atom.latent].role == role:
                by_group.setdefault(self.structure.group_of[atom.latent], []).append(
                    atom
                )
        return [
            _moment(self.structure.groups[name], atoms, moments[name])
            for name, atoms in by_group.items()
        ]

    def joint_moments(self, moments: Moments) -> dict[str, jax.Array]:
        """n̄: for every statistic, the product of global moments that it multiplies."""
        return {
            statistic.name: self._joint_moment(statistic, moments)
            for statistic in self.structure.statistics
        }

    def _joint_moment(self, statistic: Statistic, moments: Moments) -> jax.Array:
        labels = tuple(map(Label, statistic.shape))
        atoms = tuple(
            Atom(latent, function, tuple(labels[i] for i in numbers), power)
            for latent, function, power, numbers in statistic.atoms
        )
        operands = self._moment_operands(Term(1.0, atoms), moments, role=None)
        return jnp.asarray(forms.contract(1.0, operands, labels))

    # --- rows -------------------------------------------------------------------------

    def row_norms(
        self,
        row: Mapping[str, Any],
        local_moments: Moments,
        scales: Mapping[str, float],
    ) -> jax.Array:
        """L2 norm of one row's scaled statistics, over the blocks in `scales`.

        Not finite if the row is not valid. Where large terms cancel, rounding could
        swallow the norm of what is left, so a bound on the rounding error is added.
        """
        whole_row, terms, _ = self.row_terms(row)
        by_statistic: dict[str, list[tuple[Term, forms.Labels]]] = {}
        for term in terms:
            found = self._binding(term)
            if found is not None and found[0].name in scales:
                by_statistic.setdefault(found[0].name, []).append((term, found[1]))
        total = jnp.zeros(())
        for name, entries in by_statistic.items():
            square = self._squared_norm(entries, local_moments)
            if _may_cancel(entries):
                bound = self._squared_norm(entries, local_moments, magnitudes=True)
                square = jnp.maximum(square, 0.0) + _ROUNDING * _epsilon() * bound
            total = total + scales[name] ** 2 * square
        norm = jnp.sqrt(jnp.maximum(total, 0.0))
        return jnp.where(whole_row.valid, norm, jnp.nan)

    def _squared_norm(
        self,
        entries: Sequence[tuple[Term, forms.Labels]],
        local_moments: Moments,
        *,
        magnitudes: bool = False,
    ) -> jax.Array:
        square = jnp.zeros(())
        for (i, first), (j, second) in itertools.product(enumerate(entries), repeat=2):
            if i <= j:
                inner = self._inner_product(
                    first, second, local_moments, magnitudes=magnitudes
                )
                square = square + (1.0 if i == j else 2.0) * inner
        return square

    def _inner_product(
        self,
        first: tuple[Term, forms.Labels],
        second: tuple[Term, forms.Labels],
        local_moments: Moments,
        *,
        magnitudes: bool = False,
    ) -> jax.Array:
        """⟨a, b⟩ of two terms' coefficient arrays, without making either.

        With `magnitudes`, every number is replaced by its absolute value.
        """
        a, a_labels = first
        b, b_labels = second
        fresh = {x: Label(x.size) for x in b.bound}
        b, b_labels = b.renamed(fresh), tuple(fresh.get(x, x) for x in b_labels)
        # Entry i of both arrays is the same coordinate, so its labels are one.
        merged: dict[Label, Label] = {}

        def root(label: Label) -> Label:
            while label in merged:
                label = merged[label]
            return label

        for x, y in zip(a_labels, b_labels, strict=True):
            x, y = root(x), root(y)
            if x is not y:
                merged[y] = x
        substitution = {label: root(label) for label in merged}
        operands: list[Operand | OneHot] = []
        for term in (a.renamed(substitution), b.renamed(substitution)):
            operands += self._constants(term)
            operands += self._moment_operands(term, local_moments, role="local")
        present = {
            label
            for operand in operands
            for label in (
                forms.labels_of(operand) if isinstance(operand, OneHot) else operand[1]
            )
        }
        size = 1.0
        for label in {root(x) for x in a_labels} - present:
            size *= label.size
        scale = a.scale * b.scale * size
        if magnitudes:
            scale = abs(scale)
            operands = [
                x if isinstance(x, OneHot) else (jnp.abs(x[0]), x[1]) for x in operands
            ]
        return jnp.asarray(forms.contract(scale, operands, ()))

    def bounded_sum(
        self,
        joint: Mapping[str, jax.Array],
        rows: Mapping[str, jax.Array],
        mask: jax.Array,
        scales: Mapping[str, float],
        clipping_norm: float,
        sweeps: int,
    ) -> dict[str, jax.Array]:
        """Sums the rows' expected sufficient statistics, each clipped in L2 norm.

        Guarantees:
          Adding or removing one row changes the sum, each block times its scale, by
          at most `clipping_norm` in L2 norm, whatever the rows hold: a row that holds
          something not finite or outside its support counts as zero.

        Args:
          joint: n̄, one array per statistic.
          rows: The private arguments, with a leading axis of rows.
          mask: Whether each row is part of the minibatch.
          scales: Scale of each block that is released; the others are left out.
          clipping_norm: Bound on the norm of one row's scaled statistics.
          sweeps: Number of coordinate-ascent sweeps over a row's latents.

        Returns:
          The sum of each block in `scales`, not yet private.
        """

        def solve(row: Mapping[str, Any]) -> tuple[Any, jax.Array]:
            local_moments = self.solve_locals(joint, row, sweeps)
            return local_moments, self.row_norms(row, local_moments, scales)

        local_moments, norms = jax.vmap(solve)(rows)
        usable = mask & jnp.isfinite(norms)
        shrink = jnp.minimum(1.0, clipping_norm / jnp.maximum(norms, 1e-30))
        weights = jnp.where(usable, shrink, 0.0)
        # What is not usable must not reach the sum even as 0 · nan.
        rows = jax.tree.map(lambda x: _where_rows(usable, x), rows)
        local_moments = jax.tree.map(lambda x: _where_rows(usable, x), local_moments)

        def weighted(released: Mapping[str, jax.Array]) -> jax.Array:
            def expected(row: Any, mine: Any) -> jax.Array:
                _, terms, _ = self.row_terms(row)
                return self.expected(terms, {**joint, **released}, mine)

            return jnp.vdot(weights, jax.vmap(expected)(rows, local_moments))

        sums = jax.grad(weighted)({name: joint[name] for name in scales})
        return {s.name: self._as_block(s, sums[s.name]) for s in self._named(scales)}

    def _named(self, names: Mapping[str, Any]) -> list[Statistic]:
        return [s for s in self.structure.statistics if s.name in names]

    def _as_block(self, statistic: Statistic, array: jax.Array) -> jax.Array:
        """Brings a statistic to its block's shape, symmetric ones symmetrised."""
        if statistic.matrix is None:
            return array
        batch, rows, columns = statistic.matrix
        array = array.transpose(*batch, *rows, *columns)
        array = array.reshape(statistic.block_shape)
        return 0.5 * (array + jnp.swapaxes(array, -1, -2))

    def _from_block(self, statistic: Statistic, block: jax.Array) -> jax.Array:
        """Undoes `_as_block`."""
        if statistic.matrix is None:
            return block
        order = [axis for part in statistic.matrix for axis in part]
        array = block.reshape([statistic.shape[i] for i in order])
        return array.transpose([order.index(i) for i in range(len(order))])

    def public_statistics(self, row: Mapping[str, Any]) -> dict[str, jax.Array]:
        """One row's share of each public statistic; any row gives the same."""

        def expected(joint: Mapping[str, jax.Array]) -> jax.Array:
            _, terms, _ = self.row_terms(row)
            public = []
            for term in terms:
                found = self._binding(term)
                if found is not None and found[0].release == "public":
                    public.append(term)
            return self.expected(public, joint, {})

        zeros = {s.name: jnp.zeros(s.shape) for s in self.structure.statistics}
        gradients = jax.grad(expected)(zeros)
        return {
            s.name: self._as_block(s, gradients[s.name])
            for s in self.structure.statistics
            if s.release == "public"
        }

    # --- globals ----------------------------------------------------------------------

    def prior_terms(self, row: Mapping[str, Any]) -> list[Term]:
        """Terms of the sites outside the unit plate (they do not depend on the row)."""
        found = energy(self.graph, {k: v[None] for k, v in row.items()})
        terms: list[Term] = []
        for piece in found.pieces:
            if not piece.is_row:
                terms += normal_terms(piece.form.terms, found.latents)
        return terms

    def initial_moments(
        self, key: jax.Array, row: Mapping[str, Any]
    ) -> dict[str, dict[str, jax.Array]]:
        """Each global at its prior given its parents.

        Where a symmetric start would stay symmetric, as with mixture components or
        the factors of a product, it is perturbed at random.
        """
        terms = self.prior_terms(row)
        groups = self.structure.groups_of("global")
        own = {g.name: [t for t in terms if self._mentions(t, g)] for g in groups}
        perturb = self._may_start_symmetric()
        moments = self._neutral_auxiliaries(groups)
        ordered = self._parents_first(groups)
        for group, subkey in zip(
            ordered, jax.random.split(key, max(len(ordered), 1)), strict=True
        ):
            if group.name in moments:
                continue
            known = [
                term
                for term in own[group.name]
                if {self.structure.group_of[a.latent] for a in term.atoms}
                <= {*moments, group.name}
            ]

            def expected(mine: Any, group: Group = group, known: Any = known) -> Any:
                return self.expected(known, None, {**moments, group.name: mine})

            natural = jax.grad(expected)(self.zero_moments(group))
            if perturb:
                natural = exponential_family(group).perturb(natural, subkey)
            moments[group.name] = group.family.moments(natural)
        return moments

    def _may_start_symmetric(self) -> bool:
        """Whether there are local latents, allocations, or products of real factors."""
        latents, group_of = self.structure.latents, self.structure.group_of
        for latent in latents.values():
            if latent.role == "local" and (
                latent.family is None or latent.states is not None
            ):
                return True
        for statistic in self.structure.statistics:
            real = {name for name, *_ in statistic.atoms if is_real(latents[name])}
            if len({group_of[name] for name in real}) > 1:
                return True
        return False

    def natural_parameters(
        self,
        group: Group,
        statistics: Mapping[str, jax.Array],
        noise_stddev: Mapping[str, jax.Array],
        moments: Moments,
        prior_terms: Sequence[Term],
    ) -> dict[str, jax.Array]:
        """Natural parameters of one global's factor given the other factors."""

        def from_prior(mine: Any) -> jax.Array:
            return self.expected(prior_terms, None, {**moments, group.name: mine})

        def from_data(mine: Any, sums: Mapping[str, jax.Array]) -> jax.Array:
            joint = self.joint_moments({**moments, group.name: mine})
            total = jnp.zeros(())
            for statistic in self.structure.statistics:
                summed = self._from_block(statistic, sums[statistic.name])
                total = total + jnp.vdot(summed, joint[statistic.name])
            return total

        here = dict(moments[group.name])
        deviations = {
            statistic.name: self._entry_stddev(statistic, noise_stddev[statistic.name])
            for statistic in self.structure.statistics
        }
        return exponential_family(group).project(
            jax.grad(from_prior)(here),
            jax.grad(from_data)(here, statistics),
            jax.grad(from_data)(here, deviations),
        )

    def _entry_stddev(self, statistic: Statistic, stddev: jax.Array) -> jax.Array:
        """Noise standard deviation of each entry of a block."""
        entries = jnp.broadcast_to(stddev, statistic.block_shape)
        if statistic.matrix is None:
            return entries
        # The noise is isotropic in isometric coordinates; see `GaussianMechanism`.
        diagonal = jnp.eye(statistic.block_shape[-1], dtype=bool)
        return jnp.where(diagonal, entries, entries * math.sqrt(0.5))

    def update_globals(
        self,
        statistics: Mapping[str, jax.Array],
        noise_stddev: Mapping[str, jax.Array],
        moments: Moments,
        row: Mapping[str, Any],
        *,
        max_sweeps: int = 500,
        tolerance: float = 1e-9,
    ) -> tuple[dict, dict]:
        """Coordinate ascent over the globals for given sums of row statistics.

        It is post-processing of released numbers, so it runs to convergence.

        Args:
          statistics: One sum over all rows per statistic, noisy or public.
          noise_stddev: Standard deviation of the noise in each of them.
          moments: Where to start.
          row: Any row, real or made up: the prior does not depend on it.

        Returns:
          Moments and natural parameters of every global group.
        """
        prior = self.prior_terms(row)
        groups = self.structure.groups_of("global")

        def sweep(moments: Moments) -> tuple[dict, dict]:
            current, natural = dict(moments), {}
            for group in groups:
                natural[group.name] = self.natural_parameters(
                    group, statistics, noise_stddev, current, prior
                )
                current[group.name] = group.family.moments(natural[group.name])
            return current, natural

        first = sweep(moments)
        if len(groups) == 1:
            return first

        # Single precision never gets to 1e-9, and where a covariance is nearly singular
        # rounding keeps the changes far above its resolution. Sweeps that no longer
        # bring the globals closer together stop.
        resolution = 16.0 * float(jnp.finfo(jnp.result_type(float)).eps)
        enough = max(tolerance, resolution)

        def going(carry: tuple) -> jax.Array:
            count, change, _, stalled, _ = carry
            return (count < max_sweeps) & (change > enough) & (stalled < 5)

        def step(carry: tuple) -> tuple:
            count, _, least, stalled, (before, _) = carry
            after, natural = sweep(before)
            change = _relative_change(before, after)
            stalled = jnp.where(change < least, 0, stalled + 1)
            least = jnp.minimum(least, change)
            return count + 1, change, least, stalled, (after, natural)

        start = (1, jnp.asarray(jnp.inf), jnp.asarray(jnp.inf), 0, first)
        return jax.lax.while_loop(going, step, start)[-1]


def group_entropy(
    group: Group,
    natural: Mapping[str, jax.Array],
    moments: Mapping[str, jax.Array],
    weight: jax.Array | None,
) -> jax.Array:
    """Entropy of a factor at its optimum: log normaliser minus ⟨natural, moments⟩.

    Of an auxiliary variable: minus its divergence from its own base measure, once for
    each of its `weight` copies.
    """
    if weight is None:
        linear = sum(jnp.vdot(natural[s], moments[s]) for s in natural)
        return jnp.sum(group.family.log_normalizer(natural)) - linear
    each = divided_by_weight(natural, weight, group.family)
    total = jnp.sum(weight * group.family.log_normalizer(each))
    return total - sum(jnp.vdot(natural[s], moments[s]) for s in natural)


def _couples_elements(term: Term, group: Group) -> bool:
    """Whether a term multiplies two elements of one discrete latent."""
    mine = [a for a in term.atoms if a.latent in group.latents and a.function == "is"]
    return len(mine) == 2 and mine[0].latent == mine[1].latent


def _pair_moment(probabilities: jax.Array) -> jax.Array:
    """E[1[z_i=s] 1[z_j=t]] for all pairs of independent elements i and j.

    It is affine in each element's probabilities given the others', i = j included.
    """
    states = probabilities.shape[-1]
    flat = probabilities.reshape(-1, states)
    pairs = flat[:, :, None, None] * flat[None, None, :, :]
    same = jnp.eye(len(flat), dtype=bool)[:, None, :, None]
    diagonal = flat[:, :, None, None] * jnp.eye(states)[None, :, None, :]
    return jnp.where(same, diagonal, pairs).reshape(probabilities.shape * 2)


def _one_by_one(
    expected: Callable[[Mapping[str, jax.Array]], jax.Array],
    current: Mapping[str, jax.Array] | None,
    even: Mapping[str, jax.Array],
) -> dict[str, jax.Array]:
    """Updates the elements of a discrete latent in turn, so that the bound only rises.

    The expectation is quadratic in the elements' probabilities, so its gradient is
    affine: it is linearised once, and each update corrects it for the elements behind.
    """
    start = (even if current is None else current)["is"]
    states = start.shape[-1]

    def gradient(probabilities: jax.Array) -> jax.Array:
        return jax.grad(expected)({"is": probabilities})["is"]

    slope = jax.jacfwd(gradient)(start).reshape(start.size, start.size)
    slope = slope.reshape(-1, states, start.size // states, states)

    def update(i: int, carry: tuple) -> tuple:
        probabilities, natural = carry
        new = jax.nn.softmax(natural[i])
        natural = natural + slope[:, :, i, :] @ (new - probabilities[i])
        return probabilities.at[i].set(new), natural

    flat = start.reshape(-1, states)
    natural = gradient(start).reshape(-1, states)
    flat, _ = jax.lax.fori_loop(0, len(flat), update, (flat, natural))
    return {"is": flat.reshape(start.shape)}


def divided_by_weight(
    natural: Mapping[str, jax.Array],
    weight: jax.Array,
    family: "type[Family] | JointCategorical",
) -> dict[str, jax.Array]:
    """Natural parameters of one of `weight` independent copies.

    Of no copy, as where an observation is masked out, those of a neutral member: they
    must only be such that nothing becomes infinite.
    """
    assert not isinstance(family, JointCategorical)
    neutral = family.neutral

    def divide(statistic: str, value: jax.Array) -> jax.Array:
        each = weight.reshape(weight.shape + (1,) * (value.ndim - weight.ndim))
        other = neutral.get(statistic, 0.0)
        return jnp.where(each > 0, value / jnp.where(each > 0, each, 1.0), other)

    return {statistic: divide(statistic, value) for statistic, value in natural.items()}


def _relative_change(before: Any, after: Any) -> jax.Array:
    changes = jax.tree.map(
        lambda x, y: jnp.max(jnp.abs(x - y)) / (1e-12 + jnp.max(jnp.abs(y))),
        before,
        after,
    )
    return jnp.max(jnp.stack(jax.tree.leaves(changes)))


def _where_rows(usable: jax.Array, array: jax.Array) -> jax.Array:
    shape = (-1, *(1,) * (array.ndim - 1))
    return jnp.where(usable.reshape(shape), array, jnp.zeros((), array.dtype))


# Rounding errors of a contraction, in units of the machine epsilon times the sum of
# magnitudes: far more than blocked summation makes.
_ROUNDING = 64.0


def _epsilon() -> float:
    return float(jnp.finfo(jnp.result_type(float)).eps)


def _may_cancel(entries: Sequence[tuple[Term, forms.Labels]]) -> bool:
    """Whether a statistic is a sum, of several terms or within one."""
    if len(entries) > 1:
        return True
    term, labels = entries[0]
    return any(label.size > 1 and label not in labels for label in term.bound)


class _Clear:
    """Zeroes the private constants of a row that may not count."""

    def __init__(self, valid: Any):
        self.valid = valid
        self._cleared: dict[int, Any] = {}

    def array(self, array: Any) -> Any:
        return jnp.where(self.valid, array, jnp.zeros((), jnp.asarray(array).dtype))

    def term(self, term: Term) -> Term:
        factors = []
        for factor in term.factors:
            if isinstance(factor, Atom) or not factor.row:
                factors.append(factor)
                continue
            is_dense = isinstance(factor, forms.Dense)
            array = factor.array if is_dense else factor.indices
            # One object per array, so that equal factors stay recognisable.
            if id(array) not in self._cleared:
                self._cleared[id(array)] = (array, self.array(array))
            name = "array" if is_dense else "indices"
            cleared = self._cleared[id(array)][1]
            factors.append(dataclasses.replace(factor, **{name: cleared}))
        return Term(term.scale, tuple(factors), term.bound)


def _moment(
    group: Group, atoms: Sequence[Atom], moments: Mapping[str, jax.Array]
) -> Operand:
    """The moment of a group that one term asks for, and its labels."""
    if isinstance(group.family, JointCategorical):
        by_latent = {atom.latent: atom for atom in atoms}
        ordered = [by_latent[name] for name in group.latents if name in by_latent]
        table = moments[",".join(atom.latent for atom in ordered)]
        return table, (*atoms[0].labels[:-1], *(a.labels[-1] for a in ordered))
    if group.layout is None and len(atoms) == 2:
        return _pair_moment(moments["is"]), (*atoms[0].labels, *atoms[1].labels)
    if group.layout is None:
        (atom,) = atoms
        return moments[statistic_name(atom)], atom.labels
    layout = group.layout
    if len(atoms) == 1:
        (atom,) = atoms
        batch, block = layout.labels(atom.latent, atom.labels)
        array = moments["x"][..., layout.span(atom.latent)]
        shape = (*layout.batch_shape, *layout.block_shape(atom.latent))
        return array.reshape(shape), (*batch, *block)
    first, second = atoms
    batch, rows = layout.labels(first.latent, first.labels)
    other, columns = layout.labels(second.latent, second.labels)
    if batch != other:
        # Found by the search itself unless structure= has taken the block apart.
        raise NotConjugate(
            {
                first.latent: "structure='diag' needs terms without products of two "
                f"entries of {first.latent!r}"
            }
        )
    array = moments["xx"][..., layout.span(first.latent), layout.span(second.latent)]
    shape = (
        *layout.batch_shape,
        *layout.block_shape(first.latent),
        *layout.block_shape(second.latent),
    )
    return array.reshape(shape), (*batch, *rows, *columns)
