"""A compiled conjugate model: data, on which the functions of this folder act.

The model was interpreted when it was compiled. Its terms are kept with slots in the
place of what a row brings, and the program that makes a row's constants stands beside
them. `e_step` solves for a row's latents, `row_norms` has the norm of what a row
contributes, `bounded_sum` adds clipped contributions up, and `m_step` is about the
globals.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float64

from numpyro_vips.conjugacy.algebra.terms import Term
from numpyro_vips.conjugacy.structure import centring
from numpyro_vips.conjugacy.structure.level_means import LevelMeans
from numpyro_vips.conjugacy.structure.log_joint import LogJoint
from numpyro_vips.conjugacy.structure.row_constants import RowConstants
from numpyro_vips.conjugacy.structure.structure import (
    Structure,
    find_structure,
    normal_terms,
)
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.vips.program.feature_detection import find_features
from numpyro_vips.vips.program.feature_products import with_own_products
from numpyro_vips.vips.program.features import Features
from numpyro_vips.vips.program.forgotten_steps import (
    components_start_apart,
    dividing_latents,
    row_class,
    waiting_factors,
)
from numpyro_vips.vips.program.named_arrays import Values
from numpyro_vips.vips.program.silent_directions import (
    InEncodings,
    seen_in_encodings,
    silent_directions,
)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ConjugateProgram:
    """A compiled model.

    Attributes:
      graph: The model that was compiled.
      structure: Its families, posterior factors and statistics.
      row_constants: What a row brings to the slots of its terms.
      row_terms: The terms of the sites under the unit plate.
      centred_terms: The same with centred latents about their means, and recentred ones
        about their origins, which are slots too; see `conjugacy.structure.centring`.
      prior_terms_by_site: The terms of each site outside the unit plate. They have no
        slots.
      features: By factor that is recentred or takes Newton steps, what may be
        standardised; see `features.py`.
      silent: By factor that takes Newton steps, the directions of which rows say
        nothing, as orthonormal columns; see `silent_directions.py`.
      unlisted: By factor that takes Newton steps, the coordinates that rows have a
        feature of only where a schema does not list their category.
      factor_terms: By `numpyro.factor` site, its terms without masks and scales.
      dense: Sparse private arguments (`SparseRows`) that the program works on as dense
        arrays, and why.
      densified: For those that it works on by entries, the operations that need them
        dense.
      level_means: By the name of a row's latent that the program has as the sum of
        itself and a global one, the name of that; see `level_means.py`.
      waiting: The factors of globals that wait until the components of a mixture have
        parted; see `forgotten_steps.py`.
      row_class: The latent that says of which class a row is, if there is one; see
        `forgotten_steps.py`.
      dividing: Latents of rows that divide the rows' variance between them; see
        `forgotten_steps.py`.
    """

    graph: ModelGraph
    structure: Structure
    row_constants: RowConstants
    row_terms: tuple[Term, ...]
    centred_terms: tuple[Term, ...]
    prior_terms_by_site: Mapping[str, tuple[Term, ...]]
    features: Mapping[str, Features]
    silent: Mapping[str, Float64[np.ndarray, "size directions"]]
    unlisted: Mapping[str, Bool[np.ndarray, " size"]]
    factor_terms: Mapping[str, tuple[Term, ...]]
    dense: Mapping[str, str]
    densified: Mapping[str, tuple[str, ...]]
    level_means: LevelMeans
    waiting: frozenset[str]
    row_class: str | None
    dividing: frozenset[str]

    @property
    def prior_terms(self) -> tuple[Term, ...]:
        """The terms of all sites outside the unit plate."""
        return tuple(itertools.chain(*self.prior_terms_by_site.values()))

    @property
    def starts_far(self) -> bool:
        """Whether the first sums are those of globals far from where a fit ends."""
        return bool(self.waiting or self.dividing or self.row_class)

    def with_levels(self, latents: Values) -> Values:
        """Values of the model's latents as those of the program's, of one row."""
        moved = {
            effect: jnp.asarray(latents[effect]) + jnp.asarray(latents[mean])
            for effect, mean in self.level_means.items()
        }
        return {**latents, **moved}

    @property
    def refreshed(self) -> frozenset[str]:
        """The statistics that are released rarely."""
        statistics = self.structure.statistics
        return frozenset(s.name for s in statistics if s.release == "refreshed")


def _row_terms(log_joint: LogJoint) -> list[Term]:
    """The terms of the sites under the unit plate."""
    return [
        term
        for density in log_joint.densities
        if density.is_row
        for term in normal_terms(density.form.terms, log_joint.latents)
    ]


# How many times more numbers rows may release for features of their own. A coefficient
# for every group, b[g] x, has a feature for every group then, and products of two
# groups are zero in every row, but released with noise.
_MOST_GROWTH = 2.0


class _WithFeatures(NamedTuple):
    """A log joint density with the structure and the features that it has."""

    log_joint: LogJoint
    row_constants: RowConstants
    row_terms: Sequence[Term]
    structure: Structure
    features: Mapping[str, Features]

    @classmethod
    def of(
        cls,
        log_joint: LogJoint,
        row_constants: RowConstants,
        overrides: Mapping[str, str],
    ) -> Self:
        structure = find_structure(log_joint, overrides)
        rows = _row_terms(log_joint)
        features = find_features(structure, rows)
        return cls(log_joint, row_constants, rows, structure, features)

    def with_own_products(self, name: str, overrides: Mapping[str, str]) -> Self:
        """The program whose terms hold products of constants as constants of their own.

        Where what multiplies a factor's coefficients is a product of a row's constants,
        such as of a covariate and an exposure, `find_features` then sees it as a
        feature. The posterior's structure stays what it was, but for what rows release.

        Args:
          name: The factor.
          overrides: The caller's `structure`, as for `of`.

        Returns:
          The new program; this one if the factor gains no feature by it, or if any
          other factor or statistic would lose by it.
        """
        moved = with_own_products(
            self.structure,
            name,
            self.log_joint,
            self.row_constants,
            more_than=self._num_features(name),
        )
        if moved is None:
            return self
        after = self.of(*moved, overrides)
        is_kept = (
            after._num_features(name) > self._num_features(name)
            and self.features.keys() <= after.features.keys()
            and self.structure.recentred <= after.structure.recentred
            and self.structure.factor_of == after.structure.factor_of
            and _kinds(self.structure) == _kinds(after.structure)
            and _num_released(after.structure)
            <= _MOST_GROWTH * _num_released(self.structure)
        )
        return after if is_kept else self

    def _num_features(self, name: str) -> int:
        return len(self.features[name].places) if name in self.features else 0


def _kinds(structure: Structure) -> set[str]:
    return {statistic.release for statistic in structure.statistics} - {"public"}


def _num_released(structure: Structure) -> int:
    """Numbers in all that rows release, each of which gets noise."""
    return sum(
        math.prod(statistic.shape)
        for statistic in structure.statistics
        if statistic.release != "public"
    )


def _in_encodings(
    found: _WithFeatures, arguments: ModelArguments, name: str
) -> InEncodings:
    """What rows that a schema can make show of a Gaussian factor.

    Args:
      found: The model's structure.
      arguments: Its arguments, without rows.
      name: The factor.
    """
    size = found.structure.posterior_factors[name].shape[-1]
    if name not in found.features:
        return InEncodings(np.zeros((size, 0)), np.zeros(size, bool))
    return seen_in_encodings(arguments, found.row_constants, found.features[name], size)


def program_of(
    graph: ModelGraph,
    log_joint: LogJoint,
    row_constants: RowConstants,
    *,
    overrides: Mapping[str, str] | None = None,
    dense: Mapping[str, str] | None = None,
    level_means: LevelMeans | None = None,
    starts_apart: bool | None = None,
) -> ConjugateProgram:
    """The program of a model, from its log joint density.

    Args:
      graph: The model.
      log_joint, row_constants: What `symbolic_log_joint` found.
      overrides: Structure by latent, such as {"w": "diag"}.
      dense: Why some sparse arguments were made dense beforehand, by name.
      level_means: What the log joint density has in it as levels.
      starts_apart: What `components_start_apart` says; None to ask it. It runs the
        model, which may only be done in the precision in which the model was first
        traced: of a NumPy array that a model captures JAX keeps a copy in that one, and
        fails where it runs in the other (seen with jax 0.10).

    Raises:
      NotConjugateError: It has none, with the reasons by site.
    """
    overrides = overrides or {}
    found = _WithFeatures.of(log_joint, row_constants, overrides)
    for name in sorted(found.structure.recentred):
        found = found.with_own_products(name, overrides)
    log_joint, row_constants = found.log_joint, found.row_constants
    structure, latents = found.structure, log_joint.latents
    rows = found.row_terms
    prior: dict[str, tuple[Term, ...]] = {}
    for density in log_joint.densities:
        if not density.is_row:
            terms = normal_terms(density.form.terms, latents)
            assert not any(term.slots for term in terms)
            prior[density.site] = (*prior.get(density.site, ()), *terms)
    factors = structure.posterior_factors, structure.factor_of
    corrections = [
        *centring.mean_corrections(rows, *factors, structure.centred),
        *centring.origin_corrections(rows, *factors, structure.recentred),
    ]
    if starts_apart is None:
        starts_apart = components_start_apart(graph, structure, rows)
    newton = sorted(structure.newton)
    of_terms = {name: silent_directions(structure, name, rows) for name in newton}
    encoded = {name: _in_encodings(found, graph.arguments, name) for name in newton}
    return ConjugateProgram(
        graph=graph,
        structure=structure,
        row_constants=row_constants,
        row_terms=tuple(rows),
        centred_terms=tuple(
            normal_terms([*rows, *corrections], latents) if corrections else rows
        ),
        prior_terms_by_site=prior,
        features=found.features,
        silent={
            name: of_terms[name] if of_terms[name].shape[1] else of.silent
            for name, of in encoded.items()
        },
        unlisted={name: of.unlisted for name, of in encoded.items()},
        factor_terms={
            density.site: tuple(normal_terms(density.unweighted.terms, latents))
            for density in log_joint.densities
            if density.unweighted is not None
        },
        dense=dense or {},
        densified=log_joint.densified,
        level_means=level_means or {},
        waiting=waiting_factors(structure, rows, starts_apart=starts_apart),
        row_class=row_class(structure, starts_apart=starts_apart),
        dividing=dividing_latents(structure, rows),
    )
