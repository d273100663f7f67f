"""Words that share a document's message, against probabilities written out by hand."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import UNIT, uncertified
from scipy.special import softmax

from numpyro_vips.vips.e_step.coordinates import Given, locals_of
from numpyro_vips.vips.e_step.shared_messages import SharedMessage, with_shared_message
from numpyro_vips.vips.m_step.starts import start
from numpyro_vips.vips.program.expectations import expected_natural_of

TOPICS, WORDS, LENGTH = 3, 6, 5
LOG_THETA = np.array([-0.4, -1.7, -1.1])
PROBABILITIES = np.random.default_rng(0).dirichlet(np.full(WORDS, 0.3), TOPICS)
PLACES = np.array([4, 0, 0, 5, 2])
COUNTS = np.array([1.0, 3.0, 2.0, 0.0, 1.0], np.float32)
NUMBERS = np.array([-1.0, 0.5, 3.0, 0.1, 2.0], np.float32)


def topics(number: int = TOPICS) -> Any:
    with numpyro.plate("topics", number):
        return numpyro.sample("beta", dist.Dirichlet(jnp.ones(WORDS)))


def documents(words: Any, number: int = TOPICS) -> None:
    beta = topics(number)
    with numpyro.plate(UNIT, words.shape[0], dim=-2):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(number)))
        with numpyro.plate("words", LENGTH, dim=-1):
            z = numpyro.sample("z", dist.Categorical(theta))
            numpyro.sample("w", dist.Categorical(beta[z]), obs=words)


def four_topics(words: Any) -> None:
    documents(words, 4)


def counted(words: Any, counts: Any) -> None:
    """Each word stands for so many copies of it; one for none."""
    beta = topics()
    with numpyro.plate(UNIT, words.shape[0], dim=-2):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(TOPICS)))
        with (
            numpyro.plate("words", LENGTH, dim=-1),
            numpyro.handlers.scale(scale=counts),
        ):
            z = numpyro.sample("z", dist.Categorical(theta))
            numpyro.sample("w", dist.Categorical(beta[z]), obs=words)


def numbers(x: Any) -> None:
    """What an element observes picks no entry of a table."""
    with numpyro.plate("topics", TOPICS):
        mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    with numpyro.plate(UNIT, x.shape[0], dim=-2):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(TOPICS)))
        with numpyro.plate("words", LENGTH, dim=-1):
            z = numpyro.sample("z", dist.Categorical(theta))
            numpyro.sample("x", dist.Normal(mean[z], 0.5), obs=x)


def one_share_for_all(words: Any) -> None:
    beta = topics()
    theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(TOPICS)))
    plate = numpyro.plate("words", LENGTH, dim=-1)
    with numpyro.plate(UNIT, words.shape[0], dim=-2), plate:
        z = numpyro.sample("z", dist.Categorical(theta))
        numpyro.sample("w", dist.Categorical(beta[z]), obs=words)


def one_share_each(words: Any) -> None:
    beta = topics()
    plate = numpyro.plate("words", LENGTH, dim=-1)
    with numpyro.plate(UNIT, words.shape[0], dim=-2), plate:
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(TOPICS)))
        z = numpyro.sample("z", dist.Categorical(theta))
        numpyro.sample("w", dist.Categorical(beta[z]), obs=words)


MEANS = np.array([-1.0, 0.3, 2.0])
SQUARES = MEANS**2 + np.array([0.1, 0.5, 0.2])
ROWS = {
    documents: {"words": PLACES},
    four_topics: {"words": PLACES},
    counted: {"words": PLACES, "counts": COUNTS},
    numbers: {"x": NUMBERS},
    one_share_for_all: {"words": PLACES},
    one_share_each: {"words": PLACES},
}


def coordinate_of(
    fn: Callable[..., None], log_beta: np.ndarray
) -> SharedMessage | None:
    """How z is updated at these expectations of the globals."""
    row = ROWS[fn]
    program = uncertified(fn, tuple(array[None] for array in row.values()))
    structure = program.structure
    moments = dict(start(program, jax.random.key(0)).moments)
    if "beta" in moments:
        moments["beta"] = {**moments["beta"], "log": jnp.asarray(log_beta)}
    if "mean" in moments:
        x, xx = jnp.asarray(MEANS), jnp.asarray(SQUARES)
        assert {k: v.size for k, v in moments["mean"].items()} == {"x": 3, "xx": 3}
        shapes = {k: v.shape for k, v in moments["mean"].items()}
        moments["mean"] = {"x": x.reshape(shapes["x"]), "xx": xx.reshape(shapes["xx"])}
    arrays, _ = program.row_constants({k: jnp.asarray(v) for k, v in row.items()})
    given = Given(structure, arrays, expected_natural_of(structure, moments))
    factor = structure.posterior_factors["z"]
    terms = [term for term in program.row_terms if "z" in locals_of(structure, term)]
    return with_shared_message(given, factor, terms)


def updated(
    coordinate: SharedMessage, log_theta: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, which may be padded, and natural parameters, by word."""
    theta = coordinate.structure.posterior_factors["theta"]
    shape = theta.family.moment_shapes(theta.shape)["log"]
    log = jnp.asarray(log_theta, jnp.float32).reshape(shape)
    factor = coordinate.update({"theta": {"log": log}}, None)
    moments, natural = coordinate.dense(factor)
    natural = np.asarray(natural["is"]).reshape(LENGTH, TOPICS)
    return np.asarray(moments["is"]).reshape(LENGTH, -1), natural


def probabilities_at(coordinate: SharedMessage, log_theta: np.ndarray) -> np.ndarray:
    return updated(coordinate, log_theta)[0]


@pytest.mark.thorough
def test_probabilities_of_words() -> None:
    log_beta = np.log(PROBABILITIES).astype(np.float32)
    coordinate = coordinate_of(documents, log_beta)
    assert coordinate is not None
    for log_theta in (LOG_THETA, 10.0 * LOG_THETA, LOG_THETA + 200.0):
        found = probabilities_at(coordinate, log_theta)
        expected = softmax(log_beta[:, PLACES].T + log_theta, axis=1)
        np.testing.assert_allclose(found[:, :TOPICS], expected, rtol=1e-4, atol=1e-30)
        # States that there are not have no probability.
        assert not found[:, TOPICS:].any()


@pytest.mark.thorough
def test_natural_parameters_are_those_of_the_probabilities() -> None:
    log_beta = np.log(PROBABILITIES).astype(np.float32)
    coordinate = coordinate_of(documents, log_beta)
    assert coordinate is not None
    _, found = updated(coordinate, LOG_THETA)
    expected = log_beta[:, PLACES].T + LOG_THETA
    difference = found - expected
    np.testing.assert_allclose(difference - difference[:, :1], 0.0, atol=1e-5)


def test_copies_of_a_word_have_its_probabilities() -> None:
    """Those of no copy count for nothing, and are only to be finite."""
    log_beta = np.log(PROBABILITIES).astype(np.float32)
    log_beta[1, PLACES[COUNTS == 0]] = -np.inf
    coordinate = coordinate_of(counted, log_beta)
    assert coordinate is not None
    found, natural = updated(coordinate, LOG_THETA)
    expected = softmax(log_beta[:, PLACES].T + LOG_THETA, axis=1)
    is_there = COUNTS > 0
    np.testing.assert_allclose(found[is_there, :TOPICS], expected[is_there], rtol=1e-4)
    assert np.isfinite(found).all() and np.isfinite(natural).all()


@pytest.mark.thorough
def test_elements_that_pick_no_entry() -> None:
    coordinate = coordinate_of(numbers, np.zeros(0))
    assert coordinate is not None
    x = NUMBERS[:, None].astype(float)
    log = -0.5 * (x**2 - 2.0 * x * MEANS + SQUARES) / 0.25 + LOG_THETA
    found = probabilities_at(coordinate, LOG_THETA)[:, :TOPICS]
    np.testing.assert_allclose(found, softmax(log, axis=1), rtol=1e-3, atol=1e-12)


def test_probabilities_that_underflow_are_not_more_than_one_together() -> None:
    """Ranges of what a row contributes rest on it. The products of the last two states
    are below the least number, and added up as zeros."""
    far = -43.75
    log_beta = np.zeros((4, WORDS), np.float32)
    log_beta[:, PLACES[0]] = 0.0, -200.0, far, far
    coordinate = coordinate_of(four_topics, log_beta)
    assert coordinate is not None

    @jax.jit  # Where XLA takes numbers below the least for zeros.
    def found(log_theta: Any) -> Any:
        factor = coordinate.update({"theta": {"log": log_theta}}, None)
        return coordinate.moments(factor)

    theta = coordinate.structure.posterior_factors["theta"]
    shape = theta.family.moment_shapes(theta.shape)["log"]
    log_theta = np.array([-200.0, 0.0, far, far], np.float32).reshape(shape)
    moments = {k: np.asarray(v, float) for k, v in found(log_theta).items()}
    # As sums over rows have them, in double precision.
    products = moments["base"] * moments["message"] / moments["total"][..., None]
    assert products.sum(-1).max() <= 1.0 + 1e-6


def test_impossible_states_and_words_count_in_none() -> None:
    log_beta = np.log(PROBABILITIES).astype(np.float32)
    log_beta[1, 4] = -np.inf
    log_beta[:, 2] = -np.inf
    coordinate = coordinate_of(documents, log_beta)
    assert coordinate is not None
    found = probabilities_at(coordinate, LOG_THETA)[:, :TOPICS]
    assert not found[4].any()
    log = np.where([True, False, True], log_beta[:, 4] + LOG_THETA, -np.inf)
    np.testing.assert_allclose(found[0], softmax(log), rtol=1e-4)
    # A word that underflows in each topic that the document has is not made up.
    far = np.array([0.0, -300.0, -300.0])
    log_beta[0, 4] = -np.inf
    coordinate = coordinate_of(documents, log_beta)
    assert coordinate is not None
    assert np.isfinite(probabilities_at(coordinate, far)).all()
    assert not probabilities_at(coordinate, far)[0].any()


@pytest.mark.thorough
@pytest.mark.parametrize("fn", [one_share_for_all, one_share_each])
def test_without_a_message_that_is_shared_there_is_none(fn: Any) -> None:
    log_beta = np.log(PROBABILITIES).astype(np.float32)
    assert coordinate_of(fn, log_beta) is None
