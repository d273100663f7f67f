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

from numpyro_vips.conjugacy.algebra import elementwise, forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import Dense, Term, is_public
from numpyro_vips.conjugacy.densities.scale_mixtures import laplace
from numpyro_vips.conjugacy.families import find_family
from numpyro_vips.conjugacy.structure.augmentation import Augmentation, augmented
from numpyro_vips.conjugacy.structure.latents import Latent
from numpyro_vips.conjugacy.structure.log_joint import LogJoint
from numpyro_vips.conjugacy.structure.site_densities import SiteLogDensity
from numpyro_vips.conjugacy.structure.structure import statistic_name

# By the statistic that a prior is linear in, the one that takes its place.
_SQUARES = {"x": "x^2", "1/x": "x^-2"}


def with_linear_priors_mixed(log_joint: LogJoint) -> LogJoint:
    """The log joint with mixtures in the place of the linear priors of scales.

    A latent that has a family already stays as it is, and so does one whose linear
    term is not its prior's own, or has a rate that is not public.

    Args:
      log_joint: The model as it was written.

    Returns:
      The same with squares of these latents and an auxiliary variable for each.
    """
    if log_joint.failures:  # Some prior may have no density here.
        return log_joint
    for latent in tuple(log_joint.latents.values()):
        used = _statistics(log_joint.densities, latent)
        of_rows = _statistics([d for d in log_joint.densities if d.is_row], latent)
        linear = used & _SQUARES.keys()
        squared = used - linear | {_SQUARES[s] for s in linear}
        if (
            latent.role == "global"
            and latent.family is None
            and latent.states is None
            and linear
            and find_family(latent.support, used, of_rows) is None
            and find_family(latent.support, squared, of_rows) is not None
        ):
            log_joint = _mixed(log_joint, latent, linear)
    return log_joint


def _statistics(densities: Iterable[SiteLogDensity], latent: Latent) -> set[str]:
    """The functions of a latent that occur."""
    return {
        statistic
        for density in densities
        for term in density.form.terms
        for statistic in _statistics_in(term, latent)
    }


def _statistics_in(term: Term, latent: Latent) -> set[str]:
    return {statistic_name(a) for a in term.atoms if a.latent == latent.name}


def _mixed(log_joint: LogJoint, latent: Latent, linear: set[str]) -> LogJoint:
    """The log joint without these statistics of a latent, if mixtures may replace
    them; else as it is."""
    (own,) = (d for d in log_joint.densities if d.site == latent.name)
    terms = [
        term
        for density in log_joint.densities
        for term in density.form.terms
        if linear & _statistics_in(term, latent)
    ]
    rest = [term for term in own.form.terms if term not in terms]
    is_own = len(rest) + len(terms) == len(own.form.terms)
    if not is_own or own.mask or own.scale:
        return log_joint
    if not all(_is_mixture(term, latent) for term in terms):
        return log_joint

    def mixture(augment: Augmentation) -> Form:
        kept = Form(own.form.axes, tuple(rest))
        return sum((_mixture(term, augment) for term in terms), kept)

    form, auxiliaries = augmented(mixture, latent.name, latent.role, log_joint.latents)
    changed = dataclasses.replace(own, form=form)
    added = {auxiliary.latent.name: auxiliary.latent for auxiliary in auxiliaries}
    return dataclasses.replace(
        log_joint,
        densities=tuple(changed if d is own else d for d in log_joint.densities),
        latents={**log_joint.latents, **added},
    )


def _is_mixture(term: Term, latent: Latent) -> bool:
    """Whether a term is the sum over all elements of a latent of -c x, or -c / x, with
    public positive c."""
    if len(term.atoms) != 1 or term.scale >= 0:
        return False
    labels = term.atoms[0].labels
    return (
        tuple(label.size for label in labels) == latent.shape
        and len(set(labels)) == len(labels)
        and term.bound == set(labels)
        and all(
            isinstance(rate, Dense)
            and is_public(rate.array)
            and bool(np.all(np.asarray(rate.array) > 0))
            for rate in term.constants
        )
    )


def _mixture(term: Term, augment: Augmentation) -> Form:
    """The sum of -c x as that of 2 / c times Laplace densities with the scale 1 / c."""
    (atom,) = term.atoms
    x = Form(atom.labels, (Term(1.0, (atom,)),))
    rate = forms.broadcast(
        Form(atom.labels, (Term(-term.scale, tuple(term.constants)),)), atom.labels
    )
    zero, scale = forms.number(0.0), elementwise.power(rate, -1.0)
    density = laplace(x, zero, scale, augment=augment)
    each = density + math.log(2.0) - elementwise.log(rate)
    return forms.sum_over(each, range(len(atom.labels)))
