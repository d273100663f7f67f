"""Joint states of several latents, against the table of all of them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.conjugacy.families.joint_categorical import (
    JointCategorical,
    elimination_order,
)

pytestmark = pytest.mark.usefixtures("x64")

STATES = {"a": 2, "b": 3, "c": 2, "d": 2}
# A loop of four, so that summing one out joins its neighbours.
CLIQUES = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"), ("b",)]
FAMILY = JointCategorical(STATES, CLIQUES)
RNG = np.random.default_rng(0)
TABLES = {
    ",".join(clique): RNG.normal(size=[STATES[n] for n in clique]) for clique in CLIQUES
}
JOINT = list(itertools.product(*(range(n) for n in STATES.values())))


def natural() -> dict[str, jax.Array]:
    return {statistic: jnp.asarray(table) for statistic, table in TABLES.items()}


def logits() -> np.ndarray:
    """The log weight of every joint state, by adding up the tables."""
    found = np.zeros(tuple(STATES.values()))
    for states in JOINT:
        at = dict(zip(STATES, states, strict=True))
        for clique in CLIQUES:
            entry = tuple(at[name] for name in clique)
            found[states] += TABLES[",".join(clique)][entry]
    return found


TABLE = np.exp(logits())
NORMALIZER = np.log(TABLE.sum())
PROBABILITIES = TABLE / TABLE.sum()


def marginal(names: tuple[str, ...]) -> np.ndarray:
    order = list(STATES)
    kept = PROBABILITIES.sum(
        tuple(i for i, name in enumerate(order) if name not in names)
    )
    left = [name for name in order if name in names]
    return kept.transpose([left.index(name) for name in names])


def marginals() -> dict[str, jax.Array]:
    return {",".join(c): jnp.asarray(marginal(c)) for c in CLIQUES}


def test_the_normaliser_and_moments_are_those_of_the_table() -> None:
    assert float(FAMILY.log_normalizer(natural())) == pytest.approx(NORMALIZER)
    moments = jax.jit(FAMILY.moments)(natural())
    for clique in CLIQUES:
        np.testing.assert_allclose(moments[",".join(clique)], marginal(clique))


def test_the_density_of_a_state_is_its_entry() -> None:
    distribution = FAMILY.distribution(natural())
    found = distribution.log_prob(jnp.asarray(JOINT))
    np.testing.assert_allclose(np.exp(found), PROBABILITIES.ravel())


@pytest.mark.thorough
def test_draws_have_the_probabilities_of_the_table() -> None:
    count = 20_000
    draws = FAMILY.distribution(natural()).sample(jax.random.key(0), (count,))
    found = np.zeros_like(PROBABILITIES)
    np.add.at(found, tuple(np.asarray(draws).T), 1.0 / count)
    error = np.sqrt(PROBABILITIES * (1 - PROBABILITIES) / count)
    assert np.all(np.abs(found - PROBABILITIES) < 4.5 * error)


@pytest.mark.parametrize("latents", [{"b"}, {"a", "d"}, {"c"}])
def test_probabilities_of_some_latents_are_those_of_a_clique(latents: set[str]) -> None:
    names, table = FAMILY.probabilities(latents, marginals())
    assert set(names) == latents
    np.testing.assert_allclose(table, marginal(names))


def test_a_batch_is_as_many_families_as_it_has_elements() -> None:
    twice = {s: jnp.stack([table, 2.0 * table]) for s, table in natural().items()}
    found = jax.jit(FAMILY.log_normalizer)(twice)
    assert found.shape == (2,) and float(found[0]) == pytest.approx(NORMALIZER)
    assert float(found[1]) == pytest.approx(np.log(np.sum(TABLE**2)))


def test_the_order_of_elimination_needs_small_tables() -> None:
    chain = {f"x{i}": 10 for i in range(8)}
    cliques = [(f"x{i}", f"x{i + 1}") for i in range(7)]
    order, largest = elimination_order(chain, cliques)
    assert sorted(order) == sorted(chain) and largest == 100
    # A star's centre must wait for its leaves.
    star = [("x0", f"x{i}") for i in range(1, 8)]
    order, largest = elimination_order(chain, star)
    assert largest == 100 and "x0" in order[-2:]
