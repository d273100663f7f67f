"""Scales of coefficients, such as those of effects of groups, as their margin has them.

Coordinate ascent gives a scale τ of effects a ~ Normal(μ, τ) the posterior that it has
if all effects are known. Where a group has few rows, or noise hides it, they are not:
τ is then less certain, and somewhere else. But what rows say of all coefficients w
together is a Gaussian likelihood, so that they can be integrated out,

    p(τ | rows) ∝ p(τ) ∫ p(w | τ) p(rows | w) dw,

on a grid, as in integrated nested Laplace approximations (Rue, Martino and Chopin,
2009). The posterior of τ is the member of its family that is nearest to that margin.
That of w is the one at the middle of it, and its covariance has what the mean of w
varies by along the grid. The auxiliary variables of a prior of τ are integrated out as
well. All of this is post-processing of released numbers.
"""

import functools
import itertools
import math
from collections.abc import Mapping
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64
from numpyro.distributions import constraints

from numpyro_vips.conjugacy.families.family import Family
from numpyro_vips.conjugacy.families.noisy_sums import rate_on_grid
from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.jax_tools.quick_compilation import jit_unoptimized
from numpyro_vips.vips.m_step.shares import share_of_prior
from numpyro_vips.vips.program.expectations import expected
from numpyro_vips.vips.program.named_arrays import (
    InDouble,
    MomentsByFactor,
    NewMomentsByFactor,
)
from numpyro_vips.vips.program.program import ConjugateProgram

# Points along the logarithm of each scale, by the number of scales; for more of them
# there is no grid.
_POINTS = {1: 61, 2: 25, 3: 13}
# Entries of all precision matrices on the grid.
_MOST_ENTRIES = 10_000_000
# The grid is laid several times: first so many powers of e below and above where
# coordinate ascent has a scale, then over what is left of it.
_BELOW, _ABOVE, _STAGES = 6.0, 4.0, 4
# What is so many nats below the mode does not count: where rows cannot tell small
# scales apart, moments of 1/τ² would be those of that tail alone.
_NEGLIGIBLE = 8.0
# Of a power of a scale at the end of the grid, in a log density.
_LEAST = 1e-4

_Natural = dict[str, Float64[np.ndarray, "..."]]


class Margin(NamedTuple):
    """Posteriors with the scales integrated over.

    Attributes:
      natural: Natural parameters of the scales, and of coefficients with scales in the
        middle of their margin and without the `spread`.
      middle: By scale, its moments at that point.
      spread: By factor of coefficients, the covariance of their mean along the grid.
    """

    natural: InDouble
    middle: InDouble
    spread: dict[str, Float64[np.ndarray, "..."]]


class _Grid(NamedTuple):
    """What is known at the points of a grid.

    Attributes:
      axes: Logarithms of each scale along its axis.
      places: The points.
      weights: The posterior's, over its points; none where it has no end.
      means: Those of coefficients, by factor.
    """

    axes: Float64[np.ndarray, "points scales"]
    places: Float64[np.ndarray, "grid scales"]
    weights: Float64[np.ndarray, " grid"]
    means: dict[str, Float64[np.ndarray, "grid ..."]]


class _Scales(NamedTuple):
    """Factors that the marginal posterior of scales is made of.

    Attributes:
      scales: Those about which rows say nothing except through coefficients.
      coefficients: The Gaussian factors that they are the scales of.
      auxiliaries: The auxiliary variables of the scales' priors.
    """

    scales: tuple[str, ...]
    coefficients: tuple[str, ...]
    auxiliaries: tuple[str, ...]

    @classmethod
    def of(cls, program: ConjugateProgram) -> Self | None:
        """The scales of a model; None if it has none, or too many for a grid."""
        structure = program.structure
        in_rows = {name for s in structure.statistics for name, *_ in s.atoms}
        factors = structure.posterior_factors

        def is_scale(name: str) -> bool:
            return all(
                latent.family is None
                and latent.weight is None
                and latent.support is constraints.positive
                and latent.name not in in_rows
                for latent in map(structure.latents.get, factors[name].latents)
                if latent is not None
            )

        scales, coefficients = set[str](), set[str]()
        together = [
            {structure.factor_of[atom.latent] for atom in term.atoms}
            for term in program.prior_terms
        ]
        for names in together:
            gaussian = {name for name in names if factors[name].layout is not None}
            found = set(filter(is_scale, names - gaussian)) if gaussian else set()
            scales |= found
            coefficients |= gaussian if found else set()
        auxiliaries = {
            name
            for names in together
            if names & scales
            for name in names - scales - coefficients
            if structure.latents[factors[name].latents[0]].family is not None
        }
        number = sum(math.prod(factors[name].shape) for name in scales)
        entries = sum(
            math.prod(factors[name].shape) * factors[name].shape[-1]
            for name in coefficients
        )
        if (
            number not in _POINTS
            or _POINTS[number] ** number * entries > _MOST_ENTRIES
            or coefficients & structure.flat
            or any(len(names & coefficients) > 1 for names in together)
        ):
            return None
        return cls(*map(tuple, map(sorted, (scales, coefficients, auxiliaries))))


class MarginalScales:
    """Integrates over the scales of coefficients, if a model has any.

    Args:
      program: The compiled model.
    """

    def __init__(self, program: ConjugateProgram):
        self._program = program
        self._found = _Scales.of(program)
        self._on_grid = jit_unoptimized(self._priors)
        self._shares = jit_unoptimized(self._moments_and_shares)

    def margin(self, natural: InDouble) -> Margin | None:
        """The margin of the scales; None if there is none, or it has no end.

        Args:
          natural: Natural parameters of all globals, by coordinate ascent.
        """
        if self._found is None:
            return None
        with double_precision():
            moments, shares = jax.tree.map(np.asarray, self._shares(natural))
            start = np.concatenate(
                [np.ravel(moments[name]["log"]) for name in self._found.scales]
            )
            low, high = start - _BELOW, start + _ABOVE
            for _ in range(_STAGES - 1):
                at = self._looked_at(low, high, moments, shares)
                counts = at.places[at.weights > 0]
                if not len(counts):
                    return None
                gap = at.axes[1] - at.axes[0]
                low, high = counts.min(0) - gap, counts.max(0) + gap
            at = self._looked_at(low, high, moments, shares)
            return self._margin_of(at, moments, shares) if at.weights.any() else None

    def _looked_at(
        self,
        low: Float64[np.ndarray, " scales"],
        high: Float64[np.ndarray, " scales"],
        moments: InDouble,
        shares: InDouble,
    ) -> _Grid:
        """A grid between two corners, and what is there."""
        steps = np.linspace(0.0, 1.0, _POINTS[len(low)])
        axes = low + (high - low) * steps[:, None]
        places = np.array([*itertools.product(*axes.T)])
        priors, logs = jax.tree.map(np.asarray, self._on_grid(places, moments))
        logs, means = _integrated(priors, logs, shares)
        weights = np.zeros(len(logs))
        if np.isfinite(logs).all():
            counts = logs > logs.max() - _NEGLIGIBLE
            weights[counts] = np.exp(logs[counts] - logs.max())
            weights /= weights.sum()
        return _Grid(axes, places, weights, means)

    def _margin_of(self, grid: _Grid, moments: InDouble, shares: InDouble) -> Margin:
        """The margin on the last grid."""
        assert self._found is not None
        factors = self._program.structure.posterior_factors
        axes = range(grid.axes.shape[1])
        table = grid.weights.reshape([len(grid.axes)] * len(axes))
        margins = np.stack(
            [table.sum(tuple({*axes} - {axis})) for axis in axes], axis=1
        )
        centre = grid.weights @ grid.places
        natural, middle, first = InDouble(), InDouble(), 0
        for name in self._found.scales:
            family, shape = factors[name].family, factors[name].shape
            own = slice(first, first + math.prod(shape))
            found = _nearest(family, grid.axes[:, own], margins[:, own])
            natural[name] = {s: value.reshape(shape) for s, value in found.items()}
            at = _at_logarithm(family, centre[own].reshape(shape))
            middle[name] = jax.tree.map(np.asarray, at)
            first = own.stop
        priors, _ = self._on_grid(centre[None], moments)
        spread = {}
        for name, share in shares.items():
            own = priors[name]
            natural[name] = {s: np.asarray(own[s])[0] + share[s] for s in share}
            away = grid.means[name] - np.tensordot(grid.weights, grid.means[name], 1)
            spread[name] = np.einsum("g,g...i,g...j->...ij", grid.weights, away, away)
        return Margin(natural, middle, spread)

    def _moments_and_shares(
        self, natural: MomentsByFactor
    ) -> tuple[NewMomentsByFactor, NewMomentsByFactor]:
        """Moments of all globals, and what rows add to coefficients."""
        structure, prior = self._program.structure, self._program.prior_terms
        assert self._found is not None
        factors = structure.posterior_factors_of("global")
        moments = {f.name: f.family.moments(natural[f.name]) for f in factors}
        shares = {}
        for name in self._found.coefficients:
            factor = structure.posterior_factors[name]
            own = share_of_prior(structure, factor, moments, prior)
            shares[name] = {s: natural[name][s] - own[s] for s in own}
        return moments, shares

    def _priors(
        self, grid: Float[Array, "grid scales"], moments: MomentsByFactor
    ) -> tuple[NewMomentsByFactor, Float[Array, " grid"]]:
        """Priors of coefficients at the points of a grid of logarithms of scales, and
        the log density of the points before any coefficient is integrated out."""
        structure, prior = self._program.structure, self._program.prior_terms
        found = self._found
        assert found is not None
        factors = structure.posterior_factors
        others = {
            latent
            for name in (*found.coefficients, *found.auxiliaries)
            for latent in factors[name].latents
        }
        rest = [t for t in prior if others.isdisjoint(a.latent for a in t.atoms)]

        def at(
            logs: Float[Array, " scales"],
        ) -> tuple[NewMomentsByFactor, Float[Array, ""]]:
            there, first = dict(moments), 0
            for name in found.scales:
                family, shape = factors[name].family, factors[name].shape
                last = first + math.prod(shape)
                there[name] = family.at(jnp.exp(logs[first:last].reshape(shape)))
                first = last
            # dτ is τ d log τ.
            total = logs.sum() + expected(structure, rest, None, there)
            for name in found.auxiliaries:
                own = share_of_prior(structure, factors[name], there, prior)
                total += factors[name].family.log_normalizer(own).sum()
            own = {
                name: share_of_prior(structure, factors[name], there, prior)
                for name in found.coefficients
            }
            return own, total

        return jax.vmap(at)(grid)


def _integrated(
    priors: InDouble, logs: Float64[np.ndarray, " grid"], shares: InDouble
) -> tuple[Float64[np.ndarray, " grid"], dict[str, Float64[np.ndarray, "grid ..."]]]:
    """The log density of the grid with coefficients integrated out, and their means."""
    means = {}
    for name, share in shares.items():
        linear = priors[name]["x"] + share["x"]
        precision = _precision(priors[name]["xx"] + share["xx"])
        sign, log_det = np.linalg.slogdet(precision)
        # Noise may leave a precision that is singular, which cannot be solved with.
        proper = (sign > 0)[..., None, None]
        solved = np.where(proper, precision, np.eye(precision.shape[-1]))
        means[name] = np.linalg.solve(solved, linear[..., None])[..., 0]
        each = 0.5 * (linear * means[name]).sum(-1) - 0.5 * log_det
        each = np.where(sign > 0, each, math.nan)
        logs = logs + each.sum(tuple(range(1, each.ndim)))
    return logs, means


def _precision(
    natural: Float64[np.ndarray, "*batch size size"],
) -> Float64[np.ndarray, "*batch size size"]:
    # A product of two latents may stand on one side of the diagonal alone.
    return -(natural + np.swapaxes(natural, -1, -2))


def spread_out(natural: _Natural, spread: Float64[np.ndarray, "..."]) -> _Natural:
    """Natural parameters of Gaussians whose covariance is larger by `spread`."""
    covariance = np.linalg.inv(_precision(natural["xx"]))
    mean = covariance @ natural["x"][..., None]
    wider = np.linalg.inv(covariance + spread)
    wider = 0.5 * (wider + np.swapaxes(wider, -1, -2))
    return {"x": (wider @ mean)[..., 0], "xx": -0.5 * wider}


_rate_on_grid = jit_unoptimized(rate_on_grid, static_argnames=("has_inverse",))
_POWERS = {"x": 1.0, "1/x": -1.0, "x^2": 2.0, "x^-2": -2.0}


def _nearest(
    family: Family,
    logs: Float64[np.ndarray, " points *batch"],
    weights: Float64[np.ndarray, " points *batch"],
) -> _Natural:
    """The members of a family that are nearest to weights on grids of log x."""
    statistics = sorted({*family.statistics} & {*_POWERS}, key=_POWERS.__getitem__)
    power = _POWERS[statistics[0]]
    points = power * logs
    found = _rate_on_grid(points, weights, has_inverse=len(statistics) > 1)
    # So little that the grid does not see it makes a density of what has no end on it.
    rate = np.maximum(found.rate, _LEAST * np.exp(-points.max(0)))
    natural = {"log": power * np.asarray(found.concentration) - 1.0}
    natural[statistics[0]] = -rate
    if found.inverse is not None:
        inverse = np.maximum(found.inverse, _LEAST * np.exp(points.min(0)))
        natural[statistics[1]] = -inverse
    return natural


@functools.partial(jit_unoptimized, static_argnums=0)
def _at_logarithm(
    family: Family, log: Float64[Array | np.ndarray, "*batch"]
) -> Mapping[str, Float64[Array, "..."]]:
    """Statistics of a family at exp(log)."""
    return family.at(jnp.exp(log))
