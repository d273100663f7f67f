"""Which globals stay where they start while the components of a mixture part.

Components start together, and the first thing that rows say of them is how broad they
are all together: scales grow to the width of all rows. From there components part
slowly, as broad ones overlap, and under noise a fit of a few steps ends there. With
scales and shares held where they start, narrow components go to where rows are, each
step parting them by the ratio of the rows' variance to their own. Then the rest
follows. DPVI does the same (`dpvi.late_globals`).

What is averaged while they wait belongs to globals that are left behind. So each of
these steps forgets those before it, the first one after them too, and they get less of
the budget. It is a matter of public facts and the order of steps alone; nothing is
released for it.
"""

import math

from numpyro_vips.vips.program import ConjugateProgram

# Which part of the steps, the first ones. Parting takes some ten steps of noisy sums,
# in which five overlapping clusters are found.
WAITING = 0.6


def waiting_factors(program: ConjugateProgram) -> frozenset[str]:
    """The factors of globals that wait: none where no mixture has Gaussian components.

    | what each state of a row's discrete latent has | what waits                      |
    |------------------------------------------------|---------------------------------|
    | a real global of its own, such as a mean       | the globals that rows depend on |
    |                                                | and that are not real           |
    | other globals alone, such as rates or words    | nothing                         |

    Binary units that add up, as in a belief network, are no states with a global each.
    """
    structure = program.structure
    factors = structure.posterior_factors
    has_components, others = False, set[str]()
    for term in program.row_terms:
        states = {
            atom.labels[-1]
            for atom in term.atoms
            if atom.function == "is" and structure.latents[atom.latent].role == "local"
        }
        for atom in term.atoms:
            if structure.latents[atom.latent].role != "global":
                continue
            name = structure.factor_of[atom.latent]
            if factors[name].layout is None:
                others.add(name)
            elif states.intersection(atom.labels):
                has_components = True
    return frozenset(others) if has_components else frozenset()


def num_waiting(num_steps: int) -> int:
    """How many of a fit's steps wait, where a factor does."""
    return math.floor(WAITING * num_steps)
