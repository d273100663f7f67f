"""Which fits leave their first steps out of the average, and what waits meanwhile.

Sums of the first steps belong to globals that are left behind. Where the way from there
is long, an average of ten steps has much of them, and what is known of the way is known
up to noise that the average no longer shows: posteriors are then off and sure. So such
a fit has more steps; the first ones leave nothing in the average, the first one after
them neither, and they get less of the budget. It is a matter of public facts and the
order of steps alone; nothing is released for it. There are three such fits.

**Components that part.** The components of a mixture start together, and the first
thing that rows say of them is how broad they are all together: scales grow to the width
of all rows. From there components part slowly, as broad ones overlap, and under noise a
fit of a few steps ends there. With scales and shares held where they start, narrow
components go to where rows are, each step parting them by the ratio of the rows'
variance to their own. Then the rest follows. DPVI does the same
(`dpvi.guides.late_globals`). Components that the prior has at places of their own are
parted from the start. Under strong noise, steps that forget would have them change
places.

**Rows of one unknown class.** Rows are shared out between classes as these start:
little by what the rows are. A row with several discrete latents, such as a chain of
hidden states or the topics of a document's words, is not of one class: what its first
steps find is not as far off, and forgetting them costs more than it gains.

**Latents that divide the rows' variance.** Where a row has several real latents, such
as an intercept and a slope of everybody's own, and their scales are learnt, coordinate
ascent moves variance from one scale to another little by little: a scale that starts
too large takes many steps to become small.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence, Set

import numpy as np

from numpyro_vips.conjugacy.algebra.terms import Label, Term
from numpyro_vips.conjugacy.structure.structure import Structure, is_real
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.synthetic.prior_centre import global_values, unconstrained_scale

# Which part of the steps, the first ones. Parting takes some ten steps of noisy sums,
# in which five overlapping clusters are found.
WAITING = 0.6
# Components whose priors' centres are further apart than this, in standard deviations
# of the wider prior, do not start together: each prior has at most 2.3 % of its mass on
# the other's side of the point half way between them.
_APART = 4.0


def waiting_factors(
    structure: Structure, row_terms: Sequence[Term], *, starts_apart: bool
) -> frozenset[str]:
    """The factors of globals that wait: none where no mixture has Gaussian components.

    | what each state of a row's discrete latent has | what waits                      |
    |------------------------------------------------|---------------------------------|
    | a real global of its own, such as a mean       | the globals that rows depend on |
    |                                                | and that are not real           |
    | such globals, all apart by their priors        | nothing                         |
    | other globals alone, such as rates or words    | nothing; see `row_class`        |

    Binary units that add up, as in a belief network, are no states with a global each.

    Args:
      structure: What was found in the model.
      row_terms: The terms of the sites under the unit plate.
      starts_apart: What `components_start_apart` says.
    """
    if starts_apart or not _components(structure, row_terms):
        return frozenset()
    return frozenset(
        structure.factor_of[atom.latent]
        for term in row_terms
        for atom in term.atoms
        if structure.latents[atom.latent].role == "global"
        and not _is_real(structure, atom.latent)
    )


def components_start_apart(
    graph: ModelGraph, structure: Structure, row_terms: Sequence[Term]
) -> bool:
    """Whether there are real components, and the prior has all at their own places.

    Args:
      graph: The model, of which the priors are evaluated.
      structure: What was found in it.
      row_terms: The terms of the sites under the unit plate.
    """
    components = _components(structure, row_terms)
    return bool(components) and _start_apart(graph, components)


def _is_real(structure: Structure, latent: str) -> bool:
    factor = structure.posterior_factors[structure.factor_of[latent]]
    return factor.layout is not None


def _components(
    structure: Structure, row_terms: Sequence[Term]
) -> list[set[tuple[str, int]]]:
    """The real globals that each discrete latent of a row chooses a component of.

    Args:
      structure: What was found in the model.
      row_terms: The terms of its rows.

    Returns:
      For each label that counts the states of such a latent, the globals with this
      label, each by name and by which of its axes it is.
    """
    found = dict[Label, set[tuple[str, int]]]()
    for term in row_terms:
        states = {
            atom.labels[-1]
            for atom in term.atoms
            if atom.function == "is" and structure.latents[atom.latent].role == "local"
        }
        for atom in term.atoms:
            is_global = structure.latents[atom.latent].role == "global"
            if not is_global or not _is_real(structure, atom.latent):
                continue
            for label in states.intersection(atom.labels):
                component = (atom.latent, atom.labels.index(label))
                found.setdefault(label, set()).add(component)
    return list(found.values())


def _start_apart(graph: ModelGraph, components: Iterable[Set[tuple[str, int]]]) -> bool:
    """Whether in each mixture one global's prior has all components apart.

    Args:
      graph: The model.
      components: See `_components`.
    """
    centres, priors, _ = global_values(graph)

    def parts(name: str, axis: int) -> bool:
        centre = np.asarray(centres[name], np.float64)
        scale = unconstrained_scale(priors[name])
        centre, scale = (
            np.moveaxis(of, axis, 0).reshape(centre.shape[axis], -1)
            for of in (centre, np.broadcast_to(scale, centre.shape))
        )
        return all(
            np.max(abs(centre[i] - centre[j]) / np.maximum(scale[i], scale[j])) > _APART
            for i, j in itertools.combinations(range(len(centre)), 2)
        )

    return all(any(parts(*component) for component in of) for of in components)


def num_waiting(num_steps: int) -> int:
    """The number of a fit's first steps in which globals that wait are not updated."""
    return math.floor(WAITING * num_steps)


def row_class(structure: Structure, *, starts_apart: bool) -> str | None:
    """The latent that says of which class a row is.

    Args:
      structure: What was found in the model.
      starts_apart: What `components_start_apart` says.

    Returns:
      The only discrete latent of a row. None where there is no such latent, or where
      the prior has the classes at places of their own: steps that forget would have
      them change places under strong noise.
    """
    discrete = [
        latent
        for latent in structure.latents.values()
        if latent.role == "local" and latent.states is not None
    ]
    if starts_apart or len(discrete) != 1 or math.prod(discrete[0].shape) > 1:
        return None
    return discrete[0].name


def scaled_squares(
    structure: Structure, row_terms: Sequence[Term]
) -> Iterator[tuple[frozenset[str], str]]:
    """Real latents of a row whose square a global scales, and that global, by term.

    A term without data is part of the latents' own density.

    Args:
      structure: What was found in the model.
      row_terms: The terms of the sites under the unit plate.
    """
    latents, factor_of = structure.latents, structure.factor_of
    for term in row_terms:
        real = [a.latent for a in term.atoms if is_real(latents[a.latent])]
        others = [a.latent for a in term.atoms if not is_real(latents[a.latent])]
        is_square = (
            len(real) == 2
            and all(latents[name].role == "local" for name in real)
            and len({factor_of[name] for name in real}) == 1
        )
        is_scaled = len(others) == 1 and latents[others[0]].role == "global"
        if is_square and is_scaled and not term.is_private:
            yield frozenset(real), others[0]


def dividing_latents(structure: Structure, row_terms: Sequence[Term]) -> frozenset[str]:
    """The real latents of a row whose scale is learnt; none where there is one only.

    Args:
      structure, row_terms: See `scaled_squares`.
    """
    found = [mine for mine, _ in scaled_squares(structure, row_terms)]
    together = frozenset[str]().union(*found)
    return together if len(together) > 1 else frozenset()
