"""Effects z that rows know only times their scale: fitted as a = τ z.

In a predictor μ + τ z[group] with z ~ Normal(0, 1), as LocScaleReparam makes it, no row
changes where μ is raised and all z are lowered, nor where τ grows and z shrinks, and by
how much depends on where μ and τ are. In a = τ z the directions are the same
everywhere, so that noise can be kept out of them (`gradients/silent_directions.py`),
and no row depends on τ: nothing is released of it, as of the scale of any prior. It is
the same model, and draws of z are a / τ.

Effects of several kinds, such as a level and a slope for each group, are often written
as diag(τ) L z[group] with a Cholesky factor L of their correlations, as of
`LKJCholesky`. Rows then know a = diag(τ) L z alone, and the same is done. And so it is
with coefficients that are written as τ z, as of splines and of ridge regressions.

That rows know no more is tried, on synthetic rows at random places of the globals. No
private value is read.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex_core
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Shaped
from numpyro.distributions import constraints

from numpyro_vips.dpvi.gradients.trial_gradients import picks_entries
from numpyro_vips.dpvi.guides.public_ranges import is_positive
from numpyro_vips.dpvi.guides.unconstrained import GuideSite, UnconstrainedSpace
from numpyro_vips.jax_tools.double_precision import trace_in_double
from numpyro_vips.jax_tools.jaxprs import called_program, evaluate
from numpyro_vips.jax_tools.quick_compilation import jit_unoptimized
from numpyro_vips.model.distributions import unwrapped

# Effects for each scale, from which on they are fitted so.
_FEWEST_EFFECTS = 3
# Places at which densities are compared.
_TRIALS = 3
# What is left of a difference that is zero, in single precision, over the larger of one
# and the number.
_ROUNDING = 1e-4

# Of globals, by name.
Values = Mapping[str, Float[Array | np.ndarray, "..."]]


class EffectFactors(NamedTuple):
    """What effects are multiplied by before a row knows them.

    Attributes:
      scale: Name of their scale.
      correlated_by: Name of the Cholesky factor of their correlations; None for none.
    """

    scale: str
    correlated_by: str | None = None

    @property
    def factors(self) -> tuple[str, ...]:
        """The names of both, or of the scale alone."""
        return tuple(name for name in self if name is not None)

    def of(self, effects: GuideSite) -> GuideSite:
        """The effects' site with the product as its number."""
        return dataclasses.replace(
            effects, over=self.scale, correlated_by=self.correlated_by
        )


def centred_effects(
    density: Callable[[Mapping[str, Any], Mapping[str, Any]], Float[Array, ""]],
    program: Callable[[], jex_core.ClosedJaxpr],
    space: UnconstrainedSpace,
    priors: Mapping[str, Any],
    start: Mapping[str, Any],
    rows: Callable[[], Mapping[str, Shaped[np.ndarray, "rows ..."]]],
) -> dict[str, EffectFactors]:
    """Names of such effects, and what each is multiplied by.

    Args:
      density: A row's log density, of the globals' values and of the row.
      program: Traces the same.
      space: The globals.
      priors: Their distributions given the globals before them.
      start: Unconstrained values of all globals, about which trials are made.
      rows: Makes synthetic rows, some of whose integers number the effects.
    """
    candidates = [*_candidates(space.sites, priors)]
    if candidates:
        traced = program()
        if not picks_entries(traced):
            # Trials would find out, too, that a residual's scale is no factor of
            # coefficients, but the density is compiled for them.
            products = _products(traced, start)
            candidates = [
                (effects, product)
                for effects, product in candidates
                if {effects.name, *product.factors} in products
            ]
    if not candidates:
        return {}
    places, made = _places(space, start), rows()
    of_rows = jit_unoptimized(jax.vmap(density, in_axes=(None, 0)))
    found: dict[str, EffectFactors] = {}
    for effects, product in candidates:
        used = {name for other in found.values() for name in other.factors}
        if effects.name in found or used & set(product.factors):
            continue
        if _known_alone(
            effects, product, space, places, lambda values: of_rows(values, made)
        ):
            found[effects.name] = product
    return found


def _places(space: UnconstrainedSpace, start: Mapping[str, Any]) -> list[Values]:
    """Values of the globals at random places about the start."""
    rng, values_of = np.random.default_rng(7), trace_in_double(space.values, start)
    return [
        values_of(
            {
                name: free + rng.normal(size=np.shape(free))
                for name, free in start.items()
            }
        )
        for _ in range(_TRIALS)
    ]


def _candidates(
    sites: Sequence[GuideSite], priors: Mapping[str, Any]
) -> Iterator[tuple[GuideSite, EffectFactors]]:
    """Normal effects about zero, each with all that may multiply them."""
    scales = [site for site in sites if is_positive(site.support)]
    choleskys = [site for site in sites if _is_of_correlations(site)]
    for effects in sites:
        if not (effects.is_real and _is_about_zero(priors[effects.name])):
            continue
        for scale in scales:
            last = effects.shape[len(effects.shape) - len(scale.shape) :]
            has_many = effects.size >= _FEWEST_EFFECTS * scale.size
            if scale.shape == last and has_many:
                yield effects, EffectFactors(scale.name)
            for cholesky in choleskys:
                is_of_kinds = len(effects.shape) == 2 and len(cholesky.shape) == 2
                kinds = cholesky.shape[-1]
                is_scaled = scale.shape == (kinds,) and kinds in effects.shape
                if is_of_kinds and is_scaled and has_many:
                    yield effects, EffectFactors(scale.name, cholesky.name)


def _products(
    program: jex_core.ClosedJaxpr, free: Mapping[str, Any]
) -> set[frozenset[str]]:
    """Pairs of globals of which there is a product, each factor made of one alone.

    Args:
      program: A row's log density, of inputs that begin with the leaves of `free`.
      free: The globals, by name: one array each.
    """
    names = jax.tree.leaves({name: name for name in free})
    others = len(program.in_avals) - len(names)
    inputs = [*(frozenset({name}) for name in names), *([frozenset()] * others)]
    found: set[frozenset[str]] = set()

    def made_of(
        equation: jex_core.JaxprEqn, operands: Sequence[frozenset[str]]
    ) -> list[frozenset[str]] | None:
        if called_program(equation, keep_rules=True) is not None:
            return None
        together = frozenset[str]().union(*operands)
        if equation.primitive.name == "mul" and {len(x) for x in operands} == {1}:
            found.add(together)
        return [together for _ in equation.outvars]

    evaluate(program, inputs, made_of, constant=lambda _: frozenset(), keep_rules=True)
    return found


def _is_of_correlations(site: GuideSite) -> bool:
    return site.support is constraints.corr_cholesky


def _is_about_zero(prior: Any) -> bool:
    base, _ = unwrapped(prior)
    return isinstance(base, dist.Normal) and not np.any(np.asarray(base.loc))


def _known_alone(
    effects: GuideSite,
    product: EffectFactors,
    space: UnconstrainedSpace,
    places: Sequence[Values],
    density: Callable[[Mapping[str, Any]], Float[Array, " rows"]],
) -> bool:
    """Whether no row notices when all factors of the product change, and it does not.

    Args:
      effects, product: What may be so.
      space: The globals, none of them divided by another.
      places: Values of the globals.
      density: Of all rows.
    """
    divided = UnconstrainedSpace(
        sites=tuple(product.of(s) if s.name == effects.name else s for s in space.sites)
    )

    def with_factors_of(other: Values, one: Values) -> Values:
        """Values `one` with another's factors, and effects that make up for them."""
        changed = {**one, **{name: other[name] for name in product.factors}}
        changed[effects.name] = _multiplied(one, effects, product)
        return divided.over_scales(changed)

    moved = trace_in_double(with_factors_of, *places[:2])
    for one, other in itertools.pairwise(places):
        without = {**one, effects.name: np.zeros_like(one[effects.name])}
        here, there, away = (
            np.asarray(density(values), np.float64)
            for values in (one, moved(other, one), without)
        )
        finite = np.isfinite([here, there, away]).all(0)
        here, there, away = here[finite], there[finite], away[finite]
        rounding = _ROUNDING * (1.0 + np.abs(here))
        is_noticed = np.any(np.abs(here - there) > rounding)
        matters = np.any(np.abs(here - away) > 10.0 * rounding)
        if is_noticed or not matters:
            return False
    return True


def _multiplied(
    values: Values, effects: GuideSite, product: EffectFactors
) -> Float[Array | np.ndarray, "..."]:
    """The effects times all that multiplies them: undoes `GuideSite.over`."""
    z, scale = values[effects.name], values[product.scale]
    if product.correlated_by is None:
        return scale * z
    factor = scale[:, None] * values[product.correlated_by]
    return z @ factor.T if z.shape[-1] == len(factor) else factor @ z
