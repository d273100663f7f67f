"""Several discrete latents with an exact joint posterior, such as a hidden chain.

Discrete latents that meet in a term share one factor of the posterior if summing them
out one after the other is cheap. For a hidden Markov model this is the
forward–backward algorithm: the moments are the gradient of the log normaliser, and
reverse-mode differentiation of the forward pass is the backward pass.
"""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax

from numpyro_vips.conjugacy.families.family import Moments

# The most entries that a table may have while latents are summed out.
MAX_TABLE = 100_000


class JointCategorical:
    """An exponential family over the states of several latents of one shape.

    Attributes:
      name: As `explain` prints it.
      states: Number of states of each latent.
      statistics: The sets of latents that meet in a term, names joined by commas;
        each is the indicator of their joint state.
    """

    name = "Categorical, jointly"
    event_dim = 0
    neutral: ClassVar[Mapping[str, float]] = {}

    def __init__(
        self, states: Mapping[str, int], cliques: Sequence[tuple[str, ...]]
    ) -> None:
        self.states = dict(states)
        self.cliques = tuple(cliques)
        self.statistics = tuple(",".join(clique) for clique in cliques)

    def table_shape(self, statistic: str) -> tuple[int, ...]:
        return tuple(self.states[name] for name in statistic.split(","))

    def log_normalizer(self, natural: Moments) -> jax.Array:
        tables = [
            (clique, natural[statistic])
            for clique, statistic in zip(self.cliques, self.statistics, strict=True)
        ]
        order, _ = elimination_order(self.states, self.cliques)
        for latent in order:
            mine = [entry for entry in tables if latent in entry[0]]
            rest = [entry for entry in tables if latent not in entry[0]]
            union = tuple(dict.fromkeys(n for names, _ in mine for n in names))
            total = sum(_expand(table, names, union) for names, table in mine)
            axis = union.index(latent) - len(union)
            kept = tuple(name for name in union if name != latent)
            tables = [*rest, (kept, jax.nn.logsumexp(total, axis=axis))]
        result = tables[0][1]
        for _, table in tables[1:]:
            result = result + table
        return result

    def moments(self, natural: Moments) -> dict[str, jax.Array]:
        gradient = jax.grad(lambda tables: self.log_normalizer(tables).sum())
        return gradient(dict(natural))


def _expand(table: jax.Array, names: Sequence[str], union: Sequence[str]) -> jax.Array:
    """Gives a table an axis for every latent of `union`, behind its batch axes."""
    batch = table.ndim - len(names)
    order = [names.index(name) for name in union if name in names]
    table = table.transpose(*range(batch), *(batch + i for i in order))
    sizes = iter(table.shape[batch:])
    shape = [next(sizes) if name in names else 1 for name in union]
    return table.reshape((*table.shape[:batch], *shape))


def elimination_order(
    states: Mapping[str, int], cliques: Sequence[tuple[str, ...]]
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
