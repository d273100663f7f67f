"""Statistics that a row's indices scatter: their norms and sums, and what meets."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import UNIT, uncertified
from _setups import COUNT, SWEEPS, Setup, setup
from scipy import special

from numpyro_vips.vips.row_sums.bounded_sum import bounded_sum
from numpyro_vips.vips.row_sums.contributions import MAX_PIECE, RowInputs
from numpyro_vips.vips.row_sums.scattered import additions_of_rows

pytestmark = pytest.mark.optimized


def weighted_topics(ids: Any, counts: Any) -> None:
    """Seven topics, no whole number of vectors, and words that do not count."""
    with numpyro.plate("topics", 7):
        beta = numpyro.sample("beta", dist.Dirichlet(0.3 * jnp.ones(40)))
    with numpyro.plate(UNIT, ids.shape[0], dim=-2):
        theta = numpyro.sample("theta", dist.Dirichlet(0.4 * jnp.ones(7)))
        with (
            numpyro.plate("words", ids.shape[1], dim=-1),
            numpyro.handlers.mask(mask=counts > 0),
            numpyro.handlers.scale(scale=jnp.maximum(counts, 1)),
        ):
            z = numpyro.sample("z", dist.Categorical(theta))
            numpyro.sample("w", dist.Categorical(beta[z]), obs=ids)


@pytest.mark.thorough
def test_topics_of_many_pieces_match_one_document_after_the_other() -> None:
    """Padding, scattering and the scan over pieces against plain coordinate ascent."""
    rng = np.random.default_rng(3)
    count, width = 2 * MAX_PIECE + 30, 9
    ids = np.stack([rng.permutation(40)[:width] for _ in range(count)])
    counts = rng.integers(0, 4, ids.shape)
    ids[counts == 0] = rng.choice([0, 3], (counts == 0).sum())
    program = uncertified(weighted_topics, (ids[:4], counts[:4]))
    log_beta = np.log(rng.dirichlet(np.full(40, 0.3), 7)).clip(-40).astype(np.float32)
    (name,) = (s.name for s in program.structure.statistics if s.release != "public")
    expected, norms, clipping_norm = np.zeros((7, 40)), [], 4.0
    phi = np.zeros((0, 7))
    for document, weights in zip(ids, counts, strict=True):
        document, weights = document[weights > 0], weights[weights > 0]
        gamma = np.full(7, 0.4)
        for _ in range(SWEEPS):
            logits = special.digamma(gamma) + log_beta.T[document]
            phi = weights[:, None] * special.softmax(logits, -1)
            gamma = 0.4 + phi.sum(0)
        norms.append(np.linalg.norm(phi))
        shrink = min(1.0, clipping_norm / max(norms[-1], 1e-9))
        np.add.at(expected.T, document, shrink * phi)
    assert 0.1 < np.mean(np.array(norms) > clipping_norm) < 0.9
    found = jax.jit(
        lambda rows: bounded_sum(
            program,
            RowInputs({name: jnp.asarray(log_beta)}),
            rows,
            jnp.ones(count, bool),
            {name: 1.0},
            clipping_norm,
            SWEEPS,
        )
    )({"ids": jnp.asarray(ids), "counts": jnp.asarray(counts)})
    np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-3)


def test_a_public_weight_of_what_an_index_picks_does_not_hide_a_contribution() -> None:
    """Entries that meet add up and others do not, also where a weight is picked too.

    The row's statistic is Σ_l y_l c[i_l] at i_l. Were all entries taken to meet, those
    of either sign would cancel in its norm, and the row would pass unclipped.
    """
    weights = jnp.asarray([1.0, 2.0, 3.0, 0.5])

    def weighted(ids: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(4), 1.0).to_event(1))
        entries = numpyro.plate("entries", ids.shape[1], dim=-1)
        with numpyro.plate(UNIT, ids.shape[0], dim=-2), entries:
            numpyro.sample("y", dist.Normal((w * weights)[ids], 1.0), obs=y)

    rng = np.random.default_rng(0)
    ids = rng.integers(0, 4, (COUNT, 3))
    y = rng.normal(size=(COUNT, 3)).astype(np.float32)
    ids[0], y[0] = [0, 1, 2], [6.0, -6.0, 2.0]  # y @ weights[ids] is zero.
    this = Setup(weighted, (ids, y))
    made, found = this.row_by_row(this.rows)
    norms = this.joint_norms(made)
    np.testing.assert_allclose(found, norms, rtol=2e-4)
    norm = 0.5 * float(norms.min())
    for number in range(COUNT):
        change = this.bounded_sum(this.rows, np.arange(COUNT) == number, norm)
        found = this.joint_norms({k: v[None] for k, v in change.items()})[0]
        assert found <= norm * (1 + 1e-3)


def test_additions_of_a_row_are_the_numbers_that_may_meet() -> None:
    """The words of a document may be one word, and a row has one group."""
    topics = setup("topics")
    words = topics.rows["words"].shape[1]
    found = additions_of_rows(topics.program)
    assert found["⟨log beta⟩"] == words > 1
    groups = setup("logistic_groups").program
    assert set(additions_of_rows(groups).values()) <= {1}
    regression = setup("linear_regression").program
    assert additions_of_rows(regression) == {}
