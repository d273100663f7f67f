"""Whether the factors of a model keep every posterior in its family.

What a distribution says about its parameters is always legal: it never lowers the
concentration of a Gamma and never makes a precision negative. A `numpyro.factor` may
say anything, such as +w² or w·y with a y of either sign, and then there is an update
but no posterior. So nothing is assumed of the numbers that rows bring to a factor: they
are replaced by free ones of any sign and size, and the statistics that result must
still be legal for every family.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from numpyro_vips.conjugacy.algebra.terms import OneHot, Slot, Term
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.errors import quoted
from numpyro_vips.jax_tools.double_precision import trace_in_double
from numpyro_vips.model.synthetic.synthetic_rows import synthetic_latents
from numpyro_vips.vips.compile.certificate import point_moments
from numpyro_vips.vips.program.expectations import natural_parameters
from numpyro_vips.vips.program.named_arrays import MomentsByFactor, Numbers, Values
from numpyro_vips.vips.program.program import ConjugateProgram

_DRAWS = 40
_TOLERANCE = 1e-6


def illegal_factors(program: ConjugateProgram) -> dict[str, str]:
    """The reasons, by site, against factors that rows can turn the wrong way.

    Args:
      program: The compiled model, in double precision.
    """
    reasons = {}
    for site, terms in program.factor_terms.items():
        factor = _first_illegal(program, terms)
        if factor is not None:
            names = quoted(factor.latents)
            reasons[site] = (
                f"a factor that is no log density in {names} at some numbers "
                "that a row may hold, so that there may be no posterior to update "
                "to; write an observation as numpyro.sample(..., obs=...), or say "
                "that a number has a sign by jnp.maximum(t, 0)"
            )
    return reasons


def _first_illegal(
    program: ConjugateProgram, terms: Sequence[Term]
) -> PosteriorFactor | None:
    """The first posterior factor that a site's terms take out of its family.

    It is looked for at random numbers in the place of those that a row is free to hold.

    Args:
      program: The compiled model, in double precision.
      terms: Those of one `numpyro.factor`.

    Returns:
      None if at none of them a factor's natural parameters have to be projected.
    """
    free = _free_arrays(terms)
    structure = program.structure
    factors = structure.posterior_factors
    mine = [
        factor
        for factor in factors.values()
        if any(a.latent in factor.latents for t in terms for a in t.atoms)
    ]

    def changes(
        arrays: Numbers, values: Values, chosen: MomentsByFactor
    ) -> dict[str, tuple[Float[Array, ""], Float[Array, ""]]]:
        """By factor, how far `project` moves its statistics, and their size."""
        replaced = [term.filled(arrays) for term in terms]
        moments = dict(chosen)
        for factor in factors.values():
            if factor.name not in chosen:
                moments[factor.name] = point_moments(factor, values)
        found = {}
        for factor in mine:
            natural = natural_parameters(structure, factor, replaced, moments)
            size = jnp.asarray(sum(jnp.abs(x).max() for x in natural.values()))
            zero = jax.tree.map(jnp.zeros_like, natural)
            noise = jax.tree.map(lambda x, s=size: 0 * x + 1e-12 * s, natural)
            legal = factor.family.project(zero, natural, noise)
            change = sum(jnp.abs(legal[s] - natural[s]).max() for s in natural)
            found[factor.name] = jnp.asarray(change), size
        return found

    rng = np.random.default_rng(0)
    evaluate = None
    for draw in range(_DRAWS):
        arrays = {token: _draw(*what, rng) for token, what in free.items()}
        values = synthetic_latents(program.graph, 1, draw)
        chosen = _random_auxiliaries(program, rng)
        if evaluate is None:
            evaluate = trace_in_double(changes, arrays, values, chosen)
        for name, (change, size) in evaluate(arrays, values, chosen).items():
            if not change <= _TOLERANCE * size:
                return factors[name]
    return None


def _free_arrays(
    terms: Sequence[Term],
) -> dict[int | str, tuple[Slot, int | None, bool]]:
    """The arrays that rows bring, the upper limit of those that are indices, and
    whether the program lets none of an array's entries be negative."""
    found: dict[int | str, tuple[Slot, int | None, bool]] = {}
    for factor in (factor for term in terms for factor in term.constants):
        slot = factor.array
        if not isinstance(slot, Slot):
            continue
        if isinstance(factor, OneHot):
            found[slot.token] = slot, factor.target.size, True
        else:
            top = 2 if factor.branch else None
            found[slot.token] = slot, top, factor.lower >= 0
    return found


def _draw(
    slot: Slot, top: int | None, nonnegative: bool, rng: np.random.Generator
) -> Shaped[np.ndarray, "..."]:
    """Numbers of any size and sign, indices, or what a choice selects."""
    shape = slot.shape
    if top is not None:
        return rng.integers(0, top, shape).astype(slot.dtype)
    if slot.dtype == bool:
        return rng.integers(0, 2, shape).astype(bool)
    # One size for all, so that no single entry hides the others, most of the time.
    size = 10.0 ** rng.uniform(-3, 3, shape if rng.random() < 0.3 else ())
    drawn = size * rng.normal(size=shape)
    return (np.abs(drawn) if nonnegative else drawn).astype(slot.dtype)


def _random_auxiliaries(
    program: ConjugateProgram, rng: np.random.Generator
) -> dict[str, dict[str, Float[np.ndarray, "*batch states"]]]:
    """Some probabilities for every allocation variable."""
    moments = {}
    for factor in program.structure.posterior_factors.values():
        latent = program.structure.latents[factor.latents[0]]
        if latent.family is not None and latent.states is not None:
            shape = (*factor.shape, len(latent.states))
            moments[factor.name] = {
                "is": rng.dirichlet(np.ones(shape[-1]), shape[:-1]).reshape(shape)
            }
    return moments
