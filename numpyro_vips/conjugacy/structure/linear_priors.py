"""Priors of scales that are linear in them, such as Exponential and Gamma, as mixtures.

Rows say of a standard deviation x how large 1/x² and log x are, and an Exponential
prior says how large x is; no family has all three. But for x > 0

    exp(-c x) = ∫ (2πt)^(-1/2) exp(-c² x² / 2t - t/2) dt,

the scale mixture of a Laplace density (Andrews and Mallows, 1974). With t as an
auxiliary variable the prior has x² in the place of x, and the family is that of the
roots of generalised inverse Gaussian variables. For c / x, as in an inverse Gamma
density of x, it is the same in 1/x. Given x the bound is exact.
"""

import dataclasses
import math
from collections.abc import Iterable

import numpy as np

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.terms import Atom, Dense, Label, Term, is_public
from numpyro_vips.conjugacy.families import find_family
from numpyro_vips.conjugacy.structure.latents import Latent
from numpyro_vips.conjugacy.structure.log_joint import LogJoint, SiteLogDensity
from numpyro_vips.conjugacy.structure.structure import statistic_name

# By the statistic that a prior is linear in, the one that takes its place.
_SQUARES = {"x": "x^2", "1/x": "x^-2"}
_FAMILY = "GeneralizedInverseGaussian"


def with_linear_priors_mixed(log_joint: LogJoint) -> LogJoint:
    """The log joint with mixtures in the place of the linear priors of scales.

    A latent that has a family already stays as it is, and so does one whose linear
    term is not its prior's own, or has a rate that is not public.

    Args:
      log_joint: The model as it was written.

    Returns:
      The same with squares of these latents and an auxiliary variable for each.
    """
    for latent in tuple(log_joint.latents.values()):
        used = _statistics(log_joint.densities, latent)
        of_rows = _statistics([d for d in log_joint.densities if d.is_row], latent)
        linear = used & _SQUARES.keys()
        squared = used - linear | {_SQUARES[s] for s in linear}
        if (
            latent.role != "global"
            or latent.family is not None
            or latent.states is not None
            or not linear
            or find_family(latent.support, used, of_rows) is not None
            or find_family(latent.support, squared, of_rows) is None
        ):
            continue
        for statistic in sorted(linear):
            log_joint = _mixed(log_joint, latent, statistic) or log_joint
    return log_joint


def _statistics(densities: Iterable[SiteLogDensity], latent: Latent) -> set[str]:
    """The functions of a latent that occur."""
    return {
        statistic_name(atom)
        for density in densities
        for term in density.form.terms
        for atom in term.atoms
        if atom.latent == latent.name
    }


def _mixed(log_joint: LogJoint, latent: Latent, statistic: str) -> LogJoint | None:
    """The log joint without this statistic of a latent; None where it has to stay."""
    densities, auxiliaries = [], []
    for density in log_joint.densities:
        found = [
            term
            for term in density.form.terms
            if statistic in {statistic_name(a) for a in _atoms_of(term, latent)}
        ]
        if not found:
            densities.append(density)
            continue
        if density.site != latent.name or density.mask or density.scale:
            return None
        if len(found) > 1 or not _is_mixture(found[0], latent):
            return None
        auxiliary = _auxiliary(log_joint, latent)
        densities.append(_with_mixture(density, found[0], auxiliary))
        auxiliaries.append(auxiliary)
    (auxiliary,) = auxiliaries
    return dataclasses.replace(
        log_joint,
        densities=tuple(densities),
        latents={**log_joint.latents, auxiliary.name: auxiliary},
    )


def _atoms_of(term: Term, latent: Latent) -> list[Atom]:
    return [atom for atom in term.atoms if atom.latent == latent.name]


def _is_mixture(term: Term, latent: Latent) -> bool:
    """Whether a term is the sum over all elements of a latent of -c x, or -c / x, with
    public positive c."""
    if len(term.atoms) != 1 or term.scale >= 0:
        return False
    labels = term.atoms[0].labels
    rates = [factor for factor in term.factors if not isinstance(factor, Atom)]
    return (
        tuple(label.size for label in labels) == latent.shape
        and len(set(labels)) == len(labels)
        and term.bound == set(labels)
        and all(
            isinstance(rate, Dense)
            and is_public(rate.array)
            and bool(np.all(np.asarray(rate.array) > 0))
            for rate in rates
        )
    )


def _auxiliary(log_joint: LogJoint, latent: Latent) -> Latent:
    """The mixing variables, one for each element of a latent."""
    name = f"{latent.name}:scale"
    taken = sum(other.startswith(name) for other in log_joint.latents)
    axes = tuple(map(Label, latent.shape))
    return Latent(
        name=f"{name}_{taken + 1}" if taken else name,
        role=latent.role,
        shape=latent.shape,
        support=None,
        family=_FAMILY,
        weight=forms.broadcast(forms.as_form(1.0), axes),
    )


def _with_mixture(
    density: SiteLogDensity, term: Term, auxiliary: Latent
) -> SiteLogDensity:
    """A prior's density with a mixture in the place of a linear term."""
    (atom,) = term.atoms
    labels = atom.labels

    def mixing(function: str, power: float = 1.0) -> Atom:
        return Atom(auxiliary.name, function, labels, power)

    def total(scale: float, *factors: Atom | Dense) -> Term:
        return Term(scale, factors, frozenset(labels)).refreshed()

    rates = [
        dataclasses.replace(rate, array=np.square(rate.array))
        for rate in term.factors
        if isinstance(rate, Dense)
    ]
    square = dataclasses.replace(atom, power=2.0 * atom.power)
    rest = [other for other in density.form.terms if other is not term]
    mixture = (
        total(-0.5 * term.scale**2, square, mixing("x", -1.0), *rates),
        total(-0.5, mixing("x")),
        total(-0.5, mixing("log")),
        Term(-0.5 * math.log(2.0 * math.pi) * math.prod(auxiliary.shape)),
    )
    form = forms.simplified(density.form.axes, (*rest, *mixture), False)
    return dataclasses.replace(density, form=form)
