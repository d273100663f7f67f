"""A compiled conjugate model: data, on which the functions of this folder act.

The model was interpreted when it was compiled. Its terms are kept with slots in the
place of what a row brings, and the program that makes a row's constants stands beside
them. `e_step` solves for a row's latents, `row_statistics` has the norm of what a row
contributes, `bounded_sum` adds clipped contributions up, and `m_step` is about the
globals.
"""

import dataclasses
import itertools
from collections.abc import Mapping

import jax.numpy as jnp

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
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.vips.features import Features, find_features
from numpyro_vips.vips.named_arrays import Values


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
      features: By recentred factor, what may be standardised; see `features.py`.
      factor_terms: By `numpyro.factor` site, its terms without masks and scales.
      dense: Sparse private arguments (`SparseRows`) that the program works on as dense
        arrays, and why.
      densified: For those that it works on by entries, the operations that need them
        dense.
      level_means: By the name of a row's latent that the program has as the sum of
        itself and a global one, the name of that; see `level_means.py`.
    """

    graph: ModelGraph
    structure: Structure
    row_constants: RowConstants
    row_terms: tuple[Term, ...]
    centred_terms: tuple[Term, ...]
    prior_terms_by_site: Mapping[str, tuple[Term, ...]]
    features: Mapping[str, Features]
    factor_terms: Mapping[str, tuple[Term, ...]]
    dense: Mapping[str, str]
    densified: Mapping[str, tuple[str, ...]]
    level_means: LevelMeans

    @property
    def prior_terms(self) -> tuple[Term, ...]:
        """The terms of all sites outside the unit plate."""
        return tuple(itertools.chain(*self.prior_terms_by_site.values()))

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


def program_of(
    graph: ModelGraph,
    log_joint: LogJoint,
    row_constants: RowConstants,
    *,
    overrides: Mapping[str, str] | None = None,
    dense: Mapping[str, str] | None = None,
    level_means: LevelMeans | None = None,
) -> ConjugateProgram:
    """The program of a model, from its log joint density.

    Args:
      graph: The model.
      log_joint, row_constants: What `symbolic_log_joint` found.
      overrides: Structure by latent, such as {"w": "diag"}.
      dense: Why some sparse arguments were made dense beforehand, by name.
      level_means: What the log joint density has in it as levels.

    Raises:
      NotConjugate: It has none, with the reasons by site.
    """
    structure = find_structure(log_joint, overrides or {})
    latents = log_joint.latents
    rows: list[Term] = []
    prior: dict[str, tuple[Term, ...]] = {}
    for density in log_joint.densities:
        terms = normal_terms(density.form.terms, latents)
        if density.is_row:
            rows += terms
        else:
            assert not any(term.slots for term in terms)
            prior[density.site] = (*prior.get(density.site, ()), *terms)
    factors = structure.posterior_factors, structure.factor_of
    corrections = [
        *centring.mean_corrections(rows, *factors, structure.centred),
        *centring.origin_corrections(rows, *factors, structure.recentred),
    ]
    return ConjugateProgram(
        graph=graph,
        structure=structure,
        row_constants=row_constants,
        row_terms=tuple(rows),
        centred_terms=tuple(
            normal_terms([*rows, *corrections], latents) if corrections else rows
        ),
        prior_terms_by_site=prior,
        features=find_features(structure, rows),
        factor_terms={
            density.site: tuple(normal_terms(density.unweighted.terms, latents))
            for density in log_joint.densities
            if density.unweighted is not None
        },
        dense=dense or {},
        densified=log_joint.densified,
        level_means=level_means or {},
    )
