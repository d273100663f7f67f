"""Elements of one discrete latent that act on each other, updated in turn."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from numpyro_vips.conjugacy.algebra.terms import Term
from numpyro_vips.conjugacy.families.family import Moments
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.vips.e_step.coordinates import Coordinate
from numpyro_vips.vips.program.expectations import expected
from numpyro_vips.vips.program.named_arrays import LocalFactor, MomentsByFactor


class Elements(Coordinate):
    """Elements of one discrete latent that act on each other, updated in turn."""

    def update(self, moments: MomentsByFactor, known: set[str] | None) -> LocalFactor:
        factor, terms = self.posterior_factor, self.terms_in(known)

        def value(own: Moments) -> Float[Array, ""]:
            return expected(self.structure, terms, None, {**moments, factor.name: own})

        start = moments.get(factor.name) or factor.family.neutral_moments(factor.shape)
        found = one_by_one(value, start["is"])
        smallest = jnp.finfo(found.dtype).tiny
        return {"is": found}, {"is": jnp.log(jnp.maximum(found, smallest))}


def couples_elements(term: Term, factor: PosteriorFactor) -> bool:
    """Whether a term multiplies two elements of one discrete latent."""
    mine = [a for a in term.atoms if a.latent in factor.latents and a.function == "is"]
    return len(mine) == 2 and mine[0].latent == mine[1].latent


def one_by_one(
    value: Callable[[Moments], Float[Array, ""]],
    start: Float[Array, "*batch states"],
) -> Float[Array, "*batch states"]:
    """Updates the elements of a discrete latent in turn, so that the bound only rises.

    The expectation is linear in the elements' probabilities and in those of pairs, so
    one gradient in both has all coefficients; each update then corrects the natural
    parameters of the elements that it acts on.

    Args:
      value: The expected terms, from the moments "is" and "pairs" of the elements.
      start: The elements' probabilities before.
    """
    states = start.shape[-1]
    flat = start.reshape(-1, states)
    count = len(flat)

    def of_moments(
        single: Float[Array, "*batch states"], pairs: Float[Array, "..."]
    ) -> Float[Array, ""]:
        return value({"is": single, "pairs": pairs})

    zeros = jnp.zeros_like(start), jnp.zeros(start.shape * 2)
    single, pairs = jax.grad(of_moments, argnums=(0, 1))(*zeros)
    single = single.reshape(count, states)
    pairs = pairs.reshape(count, states, count, states)
    apart = ~jnp.eye(count, dtype=bool)[:, None, :, None]
    both_ways = jnp.where(apart, pairs + pairs.transpose(2, 3, 0, 1), 0.0)
    # What each state is worth more than the first: of two states one number, not two.
    gain = both_ways[:, 1:] - both_ways[:, :1]
    slope = gain[..., 1:] - gain[..., :1]
    # An element with itself is in one state only. A state may be impossible.
    alone = single + jnp.einsum("isis->is", pairs)

    def update(
        i: Int[Array, ""],
        carry: tuple[Float[Array, "elements states"], Float[Array, "elements others"]],
    ) -> tuple[Float[Array, "elements states"], Float[Array, "elements others"]]:
        probabilities, coupled = carry
        new = jax.nn.softmax(alone[i].at[1:].add(coupled[i]))
        change = jnp.einsum("sjt,s->jt", slope[i], (new - probabilities[i])[1:])
        return probabilities.at[i].set(new), coupled + change

    coupled = gain[..., 0].sum(2) + jnp.einsum("isjt,jt->is", slope, flat[:, 1:])
    flat, _ = jax.lax.fori_loop(0, count, update, (flat, coupled))
    return flat.reshape(start.shape)
