"""Several discrete latents with an exact joint posterior, such as a hidden chain.

Discrete latents that meet in a term share one factor of the posterior if summing them
out one after the other is cheap. For a hidden Markov model this is the
forward–backward algorithm: the moments are the gradient of the log normaliser, and
reverse-mode differentiation of the forward pass is the backward pass.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int, Num, PRNGKeyArray
from numpyro.distributions import constraints

from numpyro_vips.conjugacy.families.dirichlet import indicator
from numpyro_vips.conjugacy.families.family import (
    Family,
    Moments,
    NewMoments,
    Range,
    Shape,
)

# The most entries that a table may have while latents are summed out.
MAX_TABLE = 100_000

Clique = tuple[str, ...]
# Which latents a table is over, and the table, with batch axes in front.
Table = tuple[Clique, Float[Array, "..."]]


class JointCategorical(Family):
    """An exponential family over the states of several latents of one shape.

    A shape is that of each latent; a value has one more axis at its end, of the
    latents in the order of `states`.

    Attributes:
      states: Number of states of each latent.
      cliques: The sets of latents that meet in a term.
      statistics: One for each of them, names joined by commas: the indicator of their
        joint state.
    """

    name = "Categorical, jointly"
    statistics = ()
    moment_range: ClassVar[Range] = (0.0, 1.0)

    def __init__(self, states: Mapping[str, int], cliques: Sequence[Clique]) -> None:
        self.states = dict(states)
        self.cliques = tuple(cliques)
        self.statistics = tuple(",".join(clique) for clique in cliques)

    def moments(self, natural: Moments) -> NewMoments:
        gradient = jax.grad(lambda tables: self.log_normalizer(tables).sum())
        return gradient(dict(natural))

    def log_normalizer(self, natural: Moments) -> Float[Array, "*batch"]:
        *_, (_, rest) = self._summed_out(natural)
        return sum((table for _, table in rest[1:]), rest[0][1])

    def _summed_out(
        self, natural: Moments
    ) -> Iterator[tuple[tuple[str, Table] | None, list[Table]]]:
        """Sums latents out one after the other.

        Yields:
          Each latent with the table it was summed out of, its own axis the last, and
          the tables that are left.
        """
        found = [natural[statistic] for statistic in self.statistics]
        tables = list(zip(self.cliques, found, strict=True))
        yield None, tables
        order, _ = elimination_order(self.states, self.cliques)
        for latent in order:
            mine = [entry for entry in tables if latent in entry[0]]
            rest = [entry for entry in tables if latent not in entry[0]]
            others = dict.fromkeys(n for names, _ in mine for n in names if n != latent)
            union = (*others, latent)
            total = sum(
                (_expand(table, names, union) for names, table in mine[1:]),
                _expand(mine[0][1], mine[0][0], union),
            )
            tables = [*rest, (tuple(others), jax.nn.logsumexp(total, axis=-1))]
            yield (latent, (union, total)), tables

    def at(self, value: Num[Array, "*batch latents"]) -> NewMoments:
        one_hot = {
            name: indicator(value[..., i], count)
            for i, (name, count) in enumerate(self.states.items())
        }
        moments = {}
        for clique, statistic in zip(self.cliques, self.statistics, strict=True):
            tables = (_expand(one_hot[name], (name,), clique) for name in clique)
            moments[statistic] = math.prod(tables)
        return moments

    def moment_shapes(self, shape: Shape) -> dict[str, Shape]:
        return {
            statistic: (*shape, *(self.states[name] for name in clique))
            for clique, statistic in zip(self.cliques, self.statistics, strict=True)
        }

    def probabilities(
        self, latents: Collection[str], moments: Moments
    ) -> tuple[Clique, Float[Array, "..."]]:
        """The joint probabilities of some latents of one clique.

        Args:
          latents: Their names; some clique has them all.
          moments: The family's, a table of probabilities for each clique.

        Returns:
          The latents in the order of the axes, and the table, from the smallest clique.
        """
        having = (clique for clique in self.cliques if set(latents) <= set(clique))
        clique = min(having, key=len)
        table = moments[",".join(clique)]
        first = table.ndim - len(clique)
        others = [first + i for i, name in enumerate(clique) if name not in latents]
        return tuple(n for n in clique if n in latents), table.sum(others)

    def project(self, prior: Moments, data: Moments, noise: Moments) -> NewMoments:
        return {statistic: prior[statistic] + data[statistic] for statistic in prior}

    def widened(self, data: Moments, noise: Moments) -> NewMoments:
        """The share as it is: rows keep these latents, and no noise is in it."""
        return dict(data)

    def neutral(self, shape: Shape) -> NewMoments:
        return {s: jnp.zeros(of) for s, of in self.moment_shapes(shape).items()}

    def perturb(self, natural: Moments, key: PRNGKeyArray) -> NewMoments:
        return dict(natural)

    def parameters(self, natural: Moments) -> NewMoments:
        """Log probabilities up to a constant: those of a state are added up."""
        return dict(natural)

    def from_parameters(self, parameters: Moments) -> NewMoments:
        return dict(parameters)

    def distribution(self, parameters: Moments) -> dist.Distribution:
        return _JointStates(self, parameters)


class _JointStates(dist.Distribution):
    """Draws and density of the joint states of several latents, on the last axis."""

    support: Any = constraints.independent(constraints.nonnegative_integer, 1)

    def __init__(self, family: JointCategorical, natural: Moments) -> None:
        self.family, self.natural = family, natural
        self._normalizer = family.log_normalizer(natural)
        event_shape = (len(family.states),)
        super().__init__(self._normalizer.shape, event_shape, validate_args=False)

    def sample(
        self, key: PRNGKeyArray | None, sample_shape: tuple[int, ...] = ()
    ) -> Int[Array, "..."]:
        """Each latent given those summed out after it, the last one first."""
        assert key is not None
        shape = (*sample_shape, *self.batch_shape)
        steps = [step for step, _ in self.family._summed_out(self.natural) if step]
        drawn: dict[str, Int[Array, ...]] = {}
        keys = jax.random.split(key, len(steps))
        for k, (latent, (names, table)) in zip(keys, reversed(steps), strict=True):
            table = jnp.broadcast_to(
                table, (*shape, *table.shape[len(self.batch_shape) :])
            )
            for name in names[:-1]:
                index = drawn[name].reshape(*shape, *(1,) * (table.ndim - len(shape)))
                table = jnp.take_along_axis(table, index, axis=len(shape)).squeeze(
                    len(shape)
                )
            drawn[latent] = jax.random.categorical(k, table)
        return jnp.stack([drawn[name] for name in self.family.states], axis=-1)

    def log_prob(self, value: Any, *args: Any, **kwargs: Any) -> Float[Array, "..."]:
        found = self.family.at(jnp.asarray(value))
        total = -self._normalizer
        for statistic, indicators in found.items():
            product = indicators * self.natural[statistic]
            total = total + product.sum(range(jnp.ndim(value) - 1, product.ndim))
        return total


def _expand(
    table: Float[Array, "..."], names: Sequence[str], union: Sequence[str]
) -> Float[Array, "..."]:
    """Gives a table an axis for every latent of `union`, behind its batch axes."""
    batch = table.ndim - len(names)
    order = [names.index(name) for name in union if name in names]
    table = table.transpose(*range(batch), *(batch + i for i in order))
    sizes = iter(table.shape[batch:])
    shape = [next(sizes) if name in names else 1 for name in union]
    return table.reshape((*table.shape[:batch], *shape))


def elimination_order(
    states: Mapping[str, int], cliques: Sequence[Clique]
) -> tuple[list[str], int]:
    """An order in which to sum latents out, smallest tables first.

    Returns:
      The order and the number of entries of the largest table that it needs.
    """
    scopes = [set(clique) for clique in cliques]
    order: list[str] = []
    largest = 1
    remaining = list(states)
    while remaining:
        costs = {latent: _table_size(latent, scopes, states) for latent in remaining}
        latent = min(remaining, key=costs.__getitem__)
        largest = max(largest, costs[latent])
        union = set().union(*(s for s in scopes if latent in s)) - {latent}
        scopes = [s for s in scopes if latent not in s] + [union]
        order.append(latent)
        remaining.remove(latent)
    return order, largest


def _table_size(
    latent: str, scopes: Sequence[set[str]], states: Mapping[str, int]
) -> int:
    """Entries of the table that summing this latent out goes through."""
    union = set().union(*(scope for scope in scopes if latent in scope), {latent})
    return math.prod(states[name] for name in union)
